//! What a run released about its records, in the form accountants read.

use crate::error::{Error, Result};
use std::collections::HashMap;

/// How batches are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Sampler {
    /// Every record with probability s, independently.
    #[default]
    Poisson,
    /// A fixed number of records without replacement, anew at each step.
    Uniform,
    /// Each epoch in a random order, cut into batches.
    Shuffle,
}

/// So many steps, each releasing so many bits computed on one and the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fires {
    /// Number of such steps.
    pub steps: u64,
    /// Bits released on the batch of each.
    pub bits: u32,
}

/// A release, or several of them. Sampling is Poisson: every record is in a batch with probability `sampling_rate`,
/// independently of the others, and the batch stays secret. In a neighbour one record is replaced by an empty one.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// Sums of sensitivity 1 on Poisson batches, each with Gaussian noise of this standard deviation.
    SubsampledGaussian {
        /// Standard deviation of the noise over the sensitivity of the sum.
        noise_multiplier: f64,
        /// Probability that a record is in the batch.
        sampling_rate: f64,
        /// Number of sums.
        steps: u64,
    },
    /// The signs of such sums of `bits` numbers: made from what [`Event::SubsampledGaussian`] releases, and so as private for any number
    /// of them; in nats of mutual information fewer signs may tell less.
    SubsampledSigns {
        /// Standard deviation of the noise on each number over the sensitivity of the sum.
        noise_multiplier: f64,
        /// Signs of each sum.
        bits: u32,
        /// Probability that a record is in the batch.
        sampling_rate: f64,
        /// Number of sums.
        steps: u64,
    },
    /// Bits on Poisson batches, each flipped with probability `flip` before release.
    SubsampledRandomisedResponse {
        /// Probability of a flip, above 0 and at most 1/2.
        flip: f64,
        /// Probability that a record is in the batch.
        sampling_rate: f64,
        /// How many bits shared how many batches.
        fires: Vec<Fires>,
    },
    /// One after the other, each free to depend on what the earlier ones released.
    Composed(Vec<Event>),
}

/// One kind of step, with Poisson sampling: the atoms into which an [`Event`] falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A noised sum of sensitivity 1.
    Gaussian {
        /// Standard deviation of the noise.
        noise_multiplier: f64,
        /// Probability that a record is in the batch.
        sampling_rate: f64,
    },
    /// `bits` flipped bits on one batch.
    Response {
        /// Probability of a flip.
        flip: f64,
        /// Probability that a record is in the batch.
        sampling_rate: f64,
        /// Bits on this batch.
        bits: u32,
    },
}

impl Step {
    /// Probability that a record is in the batch.
    pub fn sampling_rate(&self) -> f64 {
        match *self {
            Step::Gaussian { sampling_rate, .. } | Step::Response { sampling_rate, .. } => sampling_rate,
        }
    }

    /// Equal for equal steps: noise or flips, rate, and bits, of which a noised sum has none.
    fn key(&self) -> (u64, u64, u32) {
        match *self {
            Step::Gaussian { noise_multiplier, sampling_rate } => {
                (noise_multiplier.to_bits(), sampling_rate.to_bits(), 0)
            }
            Step::Response { flip, sampling_rate, bits } => (flip.to_bits(), sampling_rate.to_bits(), bits),
        }
    }
}

/// The most kinds of steps that the accountants take: each has a distribution of its own.
///
/// What each takes adds up: on two cores an epsilon takes less than a second for up to some thirty kinds, and noise for an epsilon for up
/// to five; for more, in proportion.
pub const MAX_KINDS: usize = 1000;

/// The most bits on one batch the accountants take: beyond it the flips protect nothing anyway.
pub const MAX_BITS: u32 = 512;

impl Event {
    /// FERRET's Gaussian release: the sign times C plus noise of standard deviation `dither` C along each direction.
    ///
    /// A record can turn all k signs of a batch, a shift of 2 C sqrt(k), so the noise multiplier is dither / (2 sqrt(k)).
    pub fn dithered(dither: f64, sampling_rate: f64, fires: &[Fires]) -> Self {
        let step = |f: &Fires| Event::SubsampledGaussian {
            noise_multiplier: dither / (2.0 * f64::from(f.bits).sqrt()),
            sampling_rate,
            steps: f.steps,
        };
        Event::Composed(fires.iter().filter(|f| f.bits > 0).map(step).collect())
    }

    /// The steps of this event with how often each happens; steps that release nothing are left out.
    ///
    /// Fails on parameters outside their range, naming them.
    pub fn steps(&self) -> Result<Vec<(Step, u64)>> {
        let mut out: Vec<(Step, u64)> = Vec::new();
        self.collect(&mut out)?;
        let mut merged: Vec<(Step, u64)> = Vec::new();
        let mut places: HashMap<(u64, u64, u32), usize> = HashMap::new();
        for (step, count) in out {
            let place = *places.entry(step.key()).or_insert(merged.len());
            match merged.get_mut(place) {
                Some((_, c)) => {
                    *c = c.checked_add(count).ok_or_else(|| Error::usage("more steps than 64 bits can count"))?
                }
                None => merged.push((step, count)),
            }
        }
        if merged.len() > MAX_KINDS {
            return Err(Error::Privacy(format!(
                "{} kinds of steps, of different noise, rates or bits on a batch: at most {MAX_KINDS} are accounted for",
                merged.len()
            )));
        }
        Ok(merged)
    }

    fn collect(&self, out: &mut Vec<(Step, u64)>) -> Result<()> {
        match self {
            // No signs release nothing.
            &Event::SubsampledSigns { bits: 0, sampling_rate, .. } => check_rate(sampling_rate)?,
            &Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps }
            | &Event::SubsampledSigns { noise_multiplier, sampling_rate, steps, .. } => {
                check_rate(sampling_rate)?;
                if !(noise_multiplier > 0.0 && noise_multiplier.is_finite()) {
                    return Err(Error::Usage(format!(
                        "the noise multiplier must be a positive number, found {noise_multiplier}: without noise a sum has no (eps, delta)"
                    )));
                }
                if steps > 0 && sampling_rate > 0.0 {
                    out.push((Step::Gaussian { noise_multiplier, sampling_rate }, steps));
                }
            }
            Event::SubsampledRandomisedResponse { flip, sampling_rate, fires } => {
                let (flip, sampling_rate) = (*flip, *sampling_rate);
                check_rate(sampling_rate)?;
                if !(flip > 0.0 && flip <= 0.5) {
                    return Err(Error::Usage(format!(
                        "the flip probability must lie in (0, 0.5], found {flip}: an unflipped bit has only the (0, delta) statement of `ferret plan`"
                    )));
                }
                for &Fires { steps, bits } in fires {
                    if bits > MAX_BITS {
                        return Err(Error::Usage(format!(
                            "{bits} bits on one batch: at most {MAX_BITS} are accounted for; give each bit a batch of its own"
                        )));
                    }
                    if steps > 0 && bits > 0 && sampling_rate > 0.0 && flip < 0.5 {
                        out.push((Step::Response { flip, sampling_rate, bits }, steps));
                    }
                }
            }
            Event::Composed(events) => {
                for event in events {
                    event.collect(out)?;
                }
            }
        }
        Ok(())
    }
}

fn check_rate(q: f64) -> Result<()> {
    if (0.0..=1.0).contains(&q) {
        Ok(())
    } else {
        Err(Error::Usage(format!("the sampling rate must lie between 0 and 1, found {q}")))
    }
}

impl Fires {
    /// Read `144`, or `123x1,9x2,1x3`: so many steps with so many bits on one batch.
    pub fn parse(text: &str) -> Result<Vec<Fires>> {
        let wrong = || {
            Error::Usage(format!(
                "fires: expected a count such as 144 or steps x bits such as 123x1,9x2,1x3, found {text:?}"
            ))
        };
        text.split(',')
            .map(|part| {
                let (steps, bits) = part.trim().split_once('x').unwrap_or((part.trim(), "1"));
                Ok(Fires {
                    steps: steps.trim().parse().map_err(|_| wrong())?,
                    bits: bits.trim().parse().map_err(|_| wrong())?,
                })
            })
            .collect()
    }

    /// Total number of bits.
    pub fn total(fires: &[Fires]) -> u64 {
        fires.iter().map(|f| f.steps.saturating_mul(u64::from(f.bits))).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_are_read_and_counted() {
        assert_eq!(Fires::parse("144").unwrap(), vec![Fires { steps: 144, bits: 1 }]);
        let mixed = Fires::parse("123x1, 9x2,1x3").unwrap();
        assert_eq!(Fires::total(&mixed), 144);
        for bad in ["", "x", "3x", "-1", "1x2x3", "1.5"] {
            assert!(Fires::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn equal_steps_merge_and_empty_ones_vanish() {
        let g = |steps, q| Event::SubsampledGaussian { noise_multiplier: 1.0, sampling_rate: q, steps };
        let steps = Event::Composed(vec![g(3, 0.1), g(4, 0.1), g(9, 0.0), g(0, 0.5)]).steps().unwrap();
        assert_eq!(steps, vec![(Step::Gaussian { noise_multiplier: 1.0, sampling_rate: 0.1 }, 7)]);
        assert!(g(1, 1.5).steps().is_err() && g(1, f64::NAN).steps().is_err());
    }

    #[test]
    fn signs_of_a_noised_sum_are_that_sum_for_accountants() {
        let signs = |bits| Event::SubsampledSigns { noise_multiplier: 1.5, bits, sampling_rate: 0.1, steps: 5 };
        for bits in [1, 1024] {
            let steps = signs(bits).steps().unwrap();
            assert_eq!(steps, vec![(Step::Gaussian { noise_multiplier: 1.5, sampling_rate: 0.1 }, 5)]);
        }
        assert_eq!(signs(0).steps().unwrap(), vec![]);
    }

    #[test]
    fn a_file_cannot_name_more_kinds_of_steps_than_are_accounted_for() {
        let many = |kinds: u32| -> Vec<Event> {
            let one = |i: u32| Event::SubsampledGaussian {
                noise_multiplier: 1.0 + f64::from(i),
                sampling_rate: 0.1,
                steps: 1,
            };
            (0..kinds).map(one).collect()
        };
        assert_eq!(Event::Composed(many(1000)).steps().unwrap().len(), 1000);
        assert!(Event::Composed(many(1001)).steps().unwrap_err().to_string().contains("1001 kinds"));
    }

    #[test]
    fn k_signs_on_one_batch_divide_the_noise_by_twice_root_k() {
        let steps = Event::dithered(2.0, 0.1, &[Fires { steps: 5, bits: 4 }]).steps().unwrap();
        assert_eq!(steps, vec![(Step::Gaussian { noise_multiplier: 0.5, sampling_rate: 0.1 }, 5)]);
    }
}
