//! What one batch's release costs under each sampler, and lists of them.

use super::{bits, flips, gaussian, up};
use crate::error::{Error, Result};
use crate::privacy::Sampler;
use crate::privacy::event::{Event, Fires};
use rayon::prelude::*;

/// What leaves on one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Release {
    /// `bits` bits, each flipped with probability `flip`, 0 for bits as they are.
    Bits {
        /// Probability of a flip, at most 1/2.
        flip: f64,
        /// Bits on this batch.
        bits: u32,
    },
    /// A sum of clipped contributions with Gaussian noise.
    Sum {
        /// Standard deviation of the noise over the clipping bound.
        noise_multiplier: f64,
    },
    /// The signs of `bits` numbers, each a sum of contributions that are clipped together, with Gaussian noise: FERRET-k.
    Signs {
        /// Standard deviation of the noise on each number over the clipping bound.
        noise_multiplier: f64,
        /// Signs on this batch.
        bits: u32,
    },
    /// `bits` signs, each with Gaussian noise of standard deviation `dither`.
    Scalars {
        /// Standard deviation of the noise in units of the sign's size.
        dither: f64,
        /// Scalars on this batch.
        bits: u32,
    },
}

/// Nats charged to any one record, given all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Charge {
    /// Nats.
    pub nats: f64,
    /// Whether the worst case attains it (up to a certified 1e-5): a capacity, and not only a bound on one.
    pub exact: bool,
}

impl Charge {
    fn times(self, count: u64) -> Self {
        Self { nats: if count == 0 { 0.0 } else { up(self.nats * count as f64) }, ..self }
    }

    /// What both cost, one after the other.
    pub fn and(self, other: Self) -> Self {
        Self { nats: up(self.nats + other.nats), exact: self.exact && other.exact }
    }

    /// What releases nothing.
    pub const NOTHING: Self = Self { nats: 0.0, exact: true };
}

/// See [`charge`].
const LEAST_RATE: f64 = 1e-90;

/// See [`charge`].
const MOST_NOISE: f64 = 1e30;

/// What a release costs on a batch that has the record with probability `s`.
///
/// Poisson and uniform batches: the capacity or the divergence of (1-s) A + s B_x. A sum on a uniform batch: another record stands in
/// the place, the shift is up to 2, as with half the noise. Signs are not added up: a record turns them by 2 on any batch.
/// Signs of a noised sum are made from it, and are bits as well: the least of what either may tell.
/// Shuffled epochs: s times the unsampled channel's, which bounds the other two as well. There the centre may be the batch without
/// the record: 1/(2 z^2) for a sum, and for k signs of size 1 around 0, k / (2 dither^2).
///
/// Infinite where nothing finite is proven; never not a number.
pub fn charge(release: Release, s: f64, sampler: Sampler) -> Result<Charge> {
    let refuse = |what: String| Err(Error::Usage(what));
    if !(0.0..=1.0).contains(&s) {
        return refuse(format!("the sampling rate must lie between 0 and 1, found {s}"));
    }
    // Charges rise with s and fall with the noise, and squares of what is smaller, or one over the square of what is larger, leave the
    // floats: that is charged as if it were this.
    let s = if s > 0.0 { s.max(LEAST_RATE) } else { s };
    let fresh = sampler != Sampler::Shuffle;
    let (nats, exact) = match release {
        Release::Bits { flip, .. } if !(0.0..=0.5).contains(&flip) => {
            return refuse(format!("the flip probability must lie between 0 and 0.5, found {flip}"));
        }
        Release::Bits { flip, bits } => {
            let given_order = up(s * f64::from(bits) * bits::unsampled(flip));
            if !fresh {
                (given_order, bits == 1)
            } else if flip == 0.0 {
                (bits::clean(s, bits).min(given_order), true)
            } else {
                (flips::flipped(s, flip, bits), flips::is_capacity(flip, bits))
            }
        }
        Release::Sum { noise_multiplier: z } | Release::Signs { noise_multiplier: z, .. }
            if !(z > 0.0 && z.is_finite()) =>
        {
            return refuse(format!(
                "the noise multiplier must be a positive number, found {z}: without noise a sum has no bound"
            ));
        }
        Release::Signs { noise_multiplier, bits } => {
            let sum = charge(Release::Sum { noise_multiplier }, s, sampler)?.nats;
            let clean = charge(Release::Bits { flip: 0.0, bits }, s, sampler)?;
            (sum.min(clean.nats), clean.exact && clean.nats == 0.0)
        }
        Release::Sum { noise_multiplier: z } => {
            let z = z.min(MOST_NOISE);
            let given_order = up(0.5 * s / (z * z));
            match sampler {
                Sampler::Poisson => (gaussian::divergence(s, z).upper, false),
                Sampler::Uniform => (gaussian::divergence(s, 0.5 * z).upper.min(given_order), false),
                Sampler::Shuffle => (given_order, false),
            }
        }
        Release::Scalars { dither, .. } if !(dither > 0.0 && dither.is_finite()) => {
            return refuse(format!("the dither must be a positive number, found {dither}"));
        }
        Release::Scalars { dither, bits } => {
            let (dither, k) = (dither.min(MOST_NOISE), f64::from(bits));
            let given_order = up(s * k * (0.5 / (dither * dither)).min(bits::unsampled(0.0)));
            if bits == 0 {
                (0.0, true)
            } else if fresh {
                let divergence = gaussian::divergence(s, dither / (2.0 * k.sqrt())).upper;
                (divergence.min(bits::clean(s, bits)).min(given_order), false)
            } else {
                (given_order, false)
            }
        }
    };
    Ok(Charge { nats: if nats.is_nan() { f64::INFINITY } else { nats }, exact })
}

/// What `fires` cost: so many batches with so many bits each, `release` telling what is done to them.
pub fn charge_fires(release: Release, s: f64, sampler: Sampler, fires: &[Fires]) -> Result<Charge> {
    let one = |bits: u32| match release {
        Release::Bits { flip, .. } => Release::Bits { flip, bits },
        Release::Scalars { dither, .. } => Release::Scalars { dither, bits },
        Release::Signs { noise_multiplier, .. } => Release::Signs { noise_multiplier, bits },
        Release::Sum { .. } => release,
    };
    let fires = || fires.iter().filter(|f| f.steps > 0);
    // Each number of bits once: a capacity may take tens of milliseconds.
    let mut kinds: Vec<u32> = fires().map(|f| f.bits).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let charges: Vec<_> = kinds.par_iter().map(|&bits| charge(one(bits), s, sampler)).collect();
    // In order, so that of several errors it is always the first that is told.
    let charges = charges.into_iter().collect::<Result<Vec<Charge>>>()?;
    let of = |bits: u32| charges[kinds.partition_point(|k| *k < bits)];
    Ok(fires().fold(Charge::NOTHING, |total, f| total.and(of(f.bits).times(f.steps))))
}

/// What `event` costs in nats, if its batches were drawn by `sampler`. Gaussian steps are taken for sums: scalars of FERRET on batches
/// of a fixed size cost less than this says, see [`charge_fires`].
pub fn charge_event(event: &Event, sampler: Sampler) -> Result<Charge> {
    // Parameters outside their range, and more steps than can be counted.
    event.steps()?;
    match event {
        &Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps } => {
            Ok(charge(Release::Sum { noise_multiplier }, sampling_rate, sampler)?.times(steps))
        }
        &Event::SubsampledSigns { noise_multiplier, bits, sampling_rate, steps } => {
            Ok(charge(Release::Signs { noise_multiplier, bits }, sampling_rate, sampler)?.times(steps))
        }
        Event::SubsampledRandomisedResponse { flip, sampling_rate, fires } => {
            charge_fires(Release::Bits { flip: *flip, bits: 1 }, *sampling_rate, sampler, fires)
        }
        Event::Composed(events) => {
            events.iter().try_fold(Charge::NOTHING, |total, event| Ok(total.and(charge_event(event, sampler)?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Sampler; 3] = [Sampler::Poisson, Sampler::Uniform, Sampler::Shuffle];

    #[test]
    fn an_order_known_to_the_observer_never_costs_less_than_a_fresh_sample() {
        for s in [1e-6, 0.005, 0.3, 1.0] {
            for release in [
                Release::Bits { flip: 0.0, bits: 1 },
                Release::Bits { flip: 0.0, bits: 5 },
                Release::Bits { flip: 0.1, bits: 3 },
                Release::Sum { noise_multiplier: 0.7 },
                Release::Sum { noise_multiplier: 3.0 },
                Release::Scalars { dither: 1.5, bits: 2 },
            ] {
                let [poisson, uniform, shuffle] = ALL.map(|sampler| charge(release, s, sampler).unwrap().nats);
                assert!(
                    poisson <= uniform && uniform <= shuffle * (1.0 + 1e-9),
                    "{release:?} {s}: {poisson} {uniform} {shuffle}"
                );
            }
        }
    }

    #[test]
    fn a_fixed_batch_size_halves_the_noise_of_a_sum() {
        let at = |z, sampler| charge(Release::Sum { noise_multiplier: z }, 0.005, sampler).unwrap().nats;
        assert_eq!(at(1.0, Sampler::Uniform), at(0.5, Sampler::Poisson));
        let event = Event::SubsampledGaussian { noise_multiplier: 1.0, sampling_rate: 0.005, steps: 1000 };
        for (sampler, nats) in [(Sampler::Poisson, 0.0212), (Sampler::Uniform, 0.402), (Sampler::Shuffle, 2.5)] {
            let found = charge_event(&event, sampler).unwrap().nats;
            assert!((found / nats - 1.0).abs() < 2e-3, "{sampler:?}: {found}");
        }
    }

    /// A fixed-size world in full: one of two records is drawn, one shifts by -1, the other is +1 or -1: all of 2 apart.
    #[test]
    fn a_fixed_batch_size_needs_the_half() {
        let z = 1.0;
        let density = crate::privacy::normal::density;
        let law = |x: f64, value: f64| 0.5 * density((x + 1.0) / z) + 0.5 * density((x - value) / z);
        let (n, w) = (4000, 16.0 / 4000.0);
        let mut information = 0.0;
        for i in 0..n {
            let x = -8.0 + w * (f64::from(i) + 0.5);
            let p = [law(x, 1.0), law(x, -1.0)];
            let mean = 0.5 * (p[0] + p[1]);
            information += p.iter().map(|p| 0.5 * p * (p / mean).ln()).sum::<f64>() * w;
        }
        let charged = |sampler| charge(Release::Sum { noise_multiplier: z }, 0.5, sampler).unwrap().nats;
        assert!(information <= charged(Sampler::Uniform), "{information} {}", charged(Sampler::Uniform));
    }

    #[test]
    fn bits_of_one_batch_are_never_charged_one_by_one() {
        let clean = Release::Bits { flip: 0.0, bits: 1 };
        let of =
            |fires: &str| charge_fires(clean, 0.005, Sampler::Poisson, &Fires::parse(fires).unwrap()).unwrap().nats;
        assert!(of("1x4") > of("4") && of("2x2") > of("4"));
        approx::assert_relative_eq!(
            of("3x2,5"),
            3.0 * bits::clean(0.005, 2) + 5.0 * bits::clean(0.005, 1),
            max_relative = 1e-10
        );
        assert_eq!(of("0x3"), 0.0);
        // A shuffled pass with a bit on every batch tells a record that turns its bit for certain.
        let pass = charge_fires(clean, 0.01, Sampler::Shuffle, &[Fires { steps: 100, bits: 1 }]).unwrap().nats;
        approx::assert_relative_eq!(pass, std::f64::consts::LN_2, max_relative = 1e-9);
    }

    #[test]
    fn signs_of_a_noised_sum_cost_the_least_of_sum_and_bits() {
        let z = 1.0;
        let at = |release, s, sampler| charge(release, s, sampler).unwrap().nats;
        for sampler in ALL {
            for s in [1e-4, 0.005, 0.3, 1.0] {
                let sum = at(Release::Sum { noise_multiplier: z }, s, sampler);
                for bits in [1, 2, 16, 1024, u32::MAX] {
                    let signs = at(Release::Signs { noise_multiplier: z, bits }, s, sampler);
                    let clean = at(Release::Bits { flip: 0.0, bits }, s, sampler);
                    assert_eq!(signs, sum.min(clean), "{sampler:?} {s} {bits}");
                }
                // Next to no noise: signs are bits.
                let clean = at(Release::Bits { flip: 0.0, bits: 3 }, s, sampler);
                assert_eq!(at(Release::Signs { noise_multiplier: 1e-9, bits: 3 }, s, sampler), clean);
            }
            assert_eq!(at(Release::Signs { noise_multiplier: z, bits: 0 }, 0.1, sampler), 0.0);
        }
        // A run of signs is charged as DPSGD's sums are, whatever their number.
        let event = Event::SubsampledSigns { noise_multiplier: z, bits: 1024, sampling_rate: 0.005, steps: 1000 };
        let found = charge_event(&event, Sampler::Poisson).unwrap().nats;
        assert!((found / 0.0212 - 1.0).abs() < 2e-3, "{found}");
    }

    /// Two signs by brute force: records shift two noisy numbers anywhere on the unit circle, and the prior is the worst.
    #[test]
    fn no_world_of_two_noisy_signs_is_above_the_charge() {
        let plus = |x: f64, z: f64| crate::privacy::normal::above(-x / z);
        for (s, z) in [(0.3, 0.5), (0.05, 1.0), (1.0, 2.0), (0.5, 0.1)] {
            let charged = charge(Release::Signs { noise_multiplier: z, bits: 2 }, s, Sampler::Poisson).unwrap().nats;
            for centre in [(0.0, 0.0), (0.3, -0.5), (-0.4, -0.4), (1.0, 0.0)] {
                let law = |x: f64, y: f64| {
                    let (a, b) = (plus(centre.0 + x, z), plus(centre.1 + y, z));
                    [a * b, a * (1.0 - b), (1.0 - a) * b, (1.0 - a) * (1.0 - b)]
                };
                let away = law(0.0, 0.0);
                let channel: Vec<Vec<f64>> = (0..16)
                    .map(|i| {
                        let angle = f64::from(i) * std::f64::consts::TAU / 16.0;
                        let drawn = law(angle.cos(), angle.sin());
                        (0..4).map(|y| (1.0 - s) * away[y] + s * drawn[y]).collect()
                    })
                    .collect();
                let (told, _) = bits::tests::capacity(&channel);
                assert!(told <= charged, "{s} {z} {centre:?}: {told} above {charged}");
            }
        }
    }

    #[test]
    fn nothing_that_is_released_is_charged_nothing() {
        for sampler in ALL {
            for s in [5e-324, 1e-310, 1e-200, 1e-12] {
                for release in [
                    Release::Bits { flip: 0.0, bits: 1 },
                    Release::Bits { flip: 0.3, bits: 1 },
                    Release::Bits { flip: 0.3, bits: 4 },
                    Release::Sum { noise_multiplier: 1e300 },
                    Release::Sum { noise_multiplier: 2.0 },
                    Release::Scalars { dither: 1e300, bits: 3 },
                    Release::Signs { noise_multiplier: 1e200, bits: 9 },
                ] {
                    let nats = charge(release, s, sampler).unwrap().nats;
                    assert!(nats > 0.0 && nats.is_finite(), "{release:?} at {s:e}, {sampler:?}: {nats}");
                }
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_and_what_overflows_infinite() {
        for bad in [
            Release::Bits { flip: 0.6, bits: 1 },
            Release::Bits { flip: f64::NAN, bits: 1 },
            Release::Sum { noise_multiplier: 0.0 },
            Release::Scalars { dither: f64::INFINITY, bits: 1 },
        ] {
            assert!(ALL.iter().all(|s| charge(bad, 0.1, *s).is_err()), "{bad:?}");
        }
        assert!(charge(Release::Bits { flip: 0.1, bits: 1 }, 1.5, Sampler::Poisson).is_err());
        for sampler in ALL {
            let sum = charge(Release::Sum { noise_multiplier: 1e-200 }, 0.1, sampler).unwrap();
            assert_eq!(sum.nats, f64::INFINITY);
            // Signs are bits, however little noise they have.
            let signs = charge(Release::Scalars { dither: 1e-200, bits: 2 }, 0.1, sampler).unwrap();
            assert!(signs.nats <= 0.2 * std::f64::consts::LN_2 * (1.0 + 1e-9));
            let many = charge(Release::Bits { flip: 1e-310, bits: 512 }, 0.1, sampler).unwrap();
            assert!(many.nats > 0.0 && many.nats <= 51.2 * std::f64::consts::LN_2 * (1.0 + 1e-9));
        }
    }
}
