//! The best batch, bits a batch and flip rate for a budget.
//!
//! Compute is so many passes: E N gradients, whatever the batch, so T = ceil(N/B) E batches. A bit flipped with probability f points the
//! right way with 1 - 2f of a clean bit's strength, so by the square of that it is worth less; its batch may be empty; and of a batch's
//! gradient only 1 / (1 + x/B) is signal, x the variance of one record's gradient over the square of the mean. So a run is
//! worth the sum over its bits of
//!
//! (1-2f)^2 P(batch not empty) / (1 + x/B)
//!
//! clean-bit equivalents. At a given batch size and number of bits on it the best flip rate is the smallest that pays for all T batches:
//! what a bit is worth over what it costs only rises with f. Without flips, as many batches as the budget pays for.

use super::{batch::Release, batch::charge, steps};
use crate::error::{Error, Result};
use crate::privacy::Sampler;
use crate::privacy::accountant::Accountant;
use crate::privacy::event::{Event, Fires};
use crate::privacy::pld::Pld;
use crate::privacy::rdp::Rdp;
use rayon::prelude::*;

/// What is to be planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Records N, taken as public.
    pub records: u64,
    /// Passes over them: the compute.
    pub epochs: u64,
    /// Budget in nats.
    pub nats: Option<f64>,
    /// Budget as (epsilon, delta).
    pub eps_delta: Option<(f64, f64)>,
    /// x: the gradient noise, variance of one record's gradient over the square of the mean.
    pub noise: f64,
}

/// What keeps a plan from being worth more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// More nats, or a larger epsilon, would buy more.
    Budget,
    /// All gradients are used, and the budget costs less than a tenth of the bits' worth.
    Compute,
}

/// One way to spend the budget.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Choice {
    /// Batch size B.
    pub batch: u64,
    /// Bits on each batch.
    pub bits: u32,
    /// Probability of a flip.
    pub flip: f64,
    /// Batches that release bits.
    pub batches: u64,
    /// Batches that the passes allow.
    pub most_batches: u64,
    /// B / N.
    pub sampling_rate: f64,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Nats spent on any one record, given all others.
    pub nats: f64,
    /// The epsilon that is proven at the delta asked for: exact for single bits, by RDP for more on a batch.
    pub epsilon: Option<f64>,
    /// Clean-bit equivalents.
    pub equivalents: f64,
    /// What limits.
    pub limit: Limit,
}

/// What methods that add noise to a whole sum, DPSGD and FERRET-k, would do within the same budget at one batch size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct NoisySums {
    /// Batch size B.
    pub batch: u64,
    /// Batches.
    pub steps: u64,
    /// The noise that nats, and (epsilon, delta) by RDP, ask for: the larger.
    pub noise_multiplier: f64,
    /// Nats spent on any one record, given all others.
    pub nats: f64,
    /// Signs a step at which FERRET-k with this noise makes four fifths of its greatest progress.
    pub signs: u64,
    /// What those signs are worth in clean-bit equivalents.
    pub ferret_k: f64,
    /// What whole updates are worth, at most: pi/2 of FERRET-k's limit.
    pub dpsgd: f64,
}

/// The gradient noise x of small models that are fine-tuned, where none was measured.
pub const USUAL_NOISE: f64 = 3.0;

/// Signs a step at which FERRET-k with batches of B and noise z makes four fifths of its greatest progress, at gradient noise x: `4 B² (1 + x / B) / (z² (1 + x))`.
pub fn signs_per_step(batch: u64, noise_multiplier: f64, gradient_noise: f64) -> u64 {
    let (b, z, x) = (batch as f64, noise_multiplier, gradient_noise);
    (4.0 * b * b * (1.0 + x / b) / (z * z * (1.0 + x))).ceil().max(1.0) as u64
}

/// Batch sizes at which noisy sums are looked at.
const SUM_BATCHES: [u64; 5] = [10, 50, 200, 1000, 5000];

/// Batch sizes looked at.
const BATCHES: [u64; 16] = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000];

/// Bits a batch looked at, in order, while they are worth more than the ones before. Beyond, the joint charge takes long to compute.
const BITS: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

impl Ask {
    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Usage(what));
        if self.nats.is_none() && self.eps_delta.is_none() {
            return refuse("a plan needs a budget: nats, (epsilon, delta), or both".into());
        }
        if let Some(nats) = self.nats.filter(|n| !(*n > 0.0 && n.is_finite())) {
            return refuse(format!("the budget must be a positive number of nats, found {nats}"));
        }
        if let Some((eps, delta)) = self.eps_delta
            && !(eps > 0.0 && eps.is_finite() && delta > 0.0 && delta < 1.0)
        {
            return refuse(format!("({eps}, {delta}): epsilon must be positive and delta strictly between 0 and 1"));
        }
        if !(self.noise >= 0.0 && self.noise.is_finite()) {
            return refuse(format!("the gradient noise must be 0 or a positive number, found {}", self.noise));
        }
        if self.epochs == 0 || self.records == 0 {
            return refuse(format!("{} passes over {} records: both must be at least 1", self.epochs, self.records));
        }
        Ok(())
    }

    /// Uniform batches are never empty, but (eps, delta) is proven for Poisson's alone.
    pub fn sampler(&self) -> Sampler {
        if self.eps_delta.is_some() { Sampler::Poisson } else { Sampler::Uniform }
    }

    /// The best choice at each batch size, the best of all first.
    pub fn choices(&self) -> Result<Vec<Choice>> {
        self.check()?;
        let mut found = Vec::new();
        let mut best = 0.0;
        let batches: Vec<u64> = BATCHES.into_iter().filter(|b| *b <= self.records).collect();
        // Two at once, where the second may be for nothing.
        'all: for two in batches.chunks(2) {
            for choice in two.par_iter().map(|&batch| self.at_batch(batch, u32::MAX)).collect::<Vec<_>>() {
                let choice = choice?;
                found.extend(choice);
                let worth = choice.map_or(0.0, |c| c.equivalents);
                best = f64::max(best, worth);
                // Larger batches leave fewer bits: from a fraction of the best no way leads back.
                if worth < 0.2 * best {
                    break 'all;
                }
            }
        }
        found.sort_by(|a, b| b.equivalents.total_cmp(&a.equivalents));
        if found.is_empty() {
            return Err(Error::Privacy(
                "the budget does not pay for one bit at any batch size: raise it, or use more records".into(),
            ));
        }
        Ok(found)
    }

    /// DPSGD and FERRET-k within the same budget, Poisson batches of the sizes that any noise suffices at.
    ///
    /// k signs a step after noise z are worth k / (1 + x/B + z^2 (1+x) k / B^2) clean bits: half of the limit B^2 / (z^2 (1+x)) at
    /// k = B^2 (1 + x/B) / (z^2 (1+x)), four fifths of it at four times as many.
    pub fn noisy_sums(&self) -> Result<Vec<NoisySums>> {
        self.check()?;
        let all = SUM_BATCHES.into_iter().filter(|b| *b <= self.records).map(|b| self.noisy_sums_at(b));
        all.filter(|found| !matches!(found, Err(Error::Privacy(_)))).collect()
    }

    /// [`Ask::noisy_sums`] at one batch size.
    pub fn noisy_sums_at(&self, batch: u64) -> Result<NoisySums> {
        let steps = steps(self.records, batch, self.epochs)?;
        let rate = batch as f64 / self.records as f64;
        let spent = |z: f64| Ok::<_, Error>(charge(Release::Sum { noise_multiplier: z }, rate, Sampler::Poisson)?.nats);
        let enough = |z: f64| -> Result<bool> {
            if self.nats.is_some_and(|nats| spent(z).map_or(true, |one| one * steps as f64 > nats)) {
                return Ok(false);
            }
            let Some((eps, delta)) = self.eps_delta else { return Ok(true) };
            let event = Event::SubsampledGaussian { noise_multiplier: z, sampling_rate: rate, steps };
            match Rdp::default().epsilon(&event, delta) {
                Ok(b) => Ok(b.upper <= eps),
                Err(Error::Privacy(_)) => Ok(false),
                Err(e) => Err(e),
            }
        };
        let (mut low, mut high) = ((0.05_f64).ln(), (1e7_f64).ln());
        if !enough(high.exp())? {
            return Err(Error::Privacy(format!("not even noise of 1e7 a step keeps {steps} steps within the budget")));
        }
        while high - low > 1e-3 {
            let middle = 0.5 * (low + high);
            if enough(middle.exp())? { high = middle } else { low = middle }
        }
        // Four digits, upwards.
        let (z, b, x, t) = ((high.exp() * 1e4).ceil() / 1e4, batch as f64, self.noise, steps as f64);
        let limit = b * b / (z * z * (1.0 + x));
        let signs = signs_per_step(batch, z, x);
        Ok(NoisySums {
            batch,
            steps,
            noise_multiplier: z,
            nats: spent(z)? * t * (1.0 + 1e-12),
            signs,
            ferret_k: t * signs as f64 / (1.0 + x / b + signs as f64 / limit),
            dpsgd: t * std::f64::consts::FRAC_PI_2 * limit,
        })
    }

    /// The best choice with at most `most` bits on batches of `batch`; none if the budget pays for none.
    pub fn at_batch(&self, batch: u64, most: u32) -> Result<Option<Choice>> {
        let mut best: Option<Choice> = None;
        for bits in BITS.into_iter().filter(|b| *b <= most) {
            let Some(choice) = self.at(batch, bits)? else { break };
            if best.is_some_and(|b| b.equivalents >= choice.equivalents) {
                break;
            }
            best = Some(choice);
        }
        Ok(best)
    }

    /// The best choice with `bits` bits on batches of `batch`; none if the budget pays for none.
    pub fn at(&self, batch: u64, bits: u32) -> Result<Option<Choice>> {
        let most_batches = steps(self.records, batch, self.epochs)?;
        let sampling_rate = batch as f64 / self.records as f64;
        let sampler = self.sampler();
        let cost = |flip: f64| Ok::<_, Error>(charge(Release::Bits { flip, bits }, sampling_rate, sampler)?.nats);
        let epsilon = |flip: f64, steps: u64| -> Result<f64> {
            let Some((_, delta)) = self.eps_delta else { return Ok(0.0) };
            let fires = vec![Fires { steps, bits }];
            let event = Event::SubsampledRandomisedResponse { flip, sampling_rate, fires };
            // Single bits are summed exactly in no time; bits that share a batch by PLD would take long.
            let found = match bits {
                1 => Pld::default().epsilon(&event, delta),
                _ => Rdp::default().epsilon(&event, delta),
            };
            match found {
                Ok(b) => Ok(b.upper),
                Err(Error::Privacy(_)) => Ok(f64::INFINITY),
                Err(e) => Err(e),
            }
        };
        let most = most_batches as f64;
        let affords = |flip: f64| -> Result<bool> {
            let nats = self.nats.is_none_or(|nats| cost(flip).is_ok_and(|c| c * most <= nats));
            Ok(nats && (self.eps_delta.is_none_or(|(eps, _)| epsilon(flip, most_batches).is_ok_and(|e| e <= eps))))
        };
        let worth = |flip: f64, batches: u64| {
            let seen = match sampler {
                Sampler::Uniform | Sampler::Shuffle => 1.0,
                Sampler::Poisson => -(self.records as f64 * (-sampling_rate).ln_1p()).exp_m1(),
            };
            let clean = 1.0 - 2.0 * flip;
            batches as f64 * f64::from(bits) * clean * clean * seen / (1.0 + self.noise / batch as f64)
        };
        let choice = |flip: f64, batches: u64| -> Result<Choice> {
            let clean = 1.0 - 2.0 * flip;
            let limit = if batches == most_batches && clean * clean > 0.9 { Limit::Compute } else { Limit::Budget };
            Ok(Choice {
                batch,
                bits,
                flip,
                batches,
                most_batches,
                sampling_rate,
                sampler,
                nats: cost(flip)? * batches as f64 * (1.0 + 1e-12),
                epsilon: self.eps_delta.map(|_| epsilon(flip, batches)).transpose()?,
                equivalents: worth(flip, batches),
                limit,
            })
        };
        // Clean bits have no epsilon.
        if self.eps_delta.is_none() && affords(0.0)? {
            return choice(0.0, most_batches).map(Some);
        }
        // The smallest flip that pays for every batch, by bisection of its odds.
        let flip_at = |logit: f64| 1.0 / (1.0 + (-logit).exp());
        let (mut low, mut high) = (-28.0, -1e-4);
        if !affords(flip_at(high))? {
            return Ok(None);
        }
        if affords(flip_at(low))? {
            high = low;
        }
        while high - low > 1e-3 {
            let middle = 0.5 * (low + high);
            if affords(flip_at(middle))? { high = middle } else { low = middle }
        }
        // Six digits are what a command line shows; upwards, so that the budget is kept.
        let flip = flip_at(high);
        let unit = 10_f64.powi(5 - flip.log10().floor() as i32);
        let mut best = choice(((flip * unit).ceil() / unit).min(0.5), most_batches)?;
        // Or fewer, clean bits.
        if let (None, Some(nats), 1) = (self.eps_delta, self.nats, bits) {
            let batches = (nats / cost(0.0)?).min(most) as u64;
            let clean = choice(0.0, batches)?;
            if batches > 0 && clean.equivalents > best.equivalents {
                best = clean;
            }
        }
        Ok(Some(best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Ask = Ask { records: 10_000, epochs: 3, nats: Some(1.0), eps_delta: None, noise: 3.0 };

    #[test]
    fn the_best_choice_keeps_the_budget_and_is_best_by_trying_all() {
        for ask in [ASK, Ask { nats: Some(0.1), ..ASK }, Ask { eps_delta: Some((1.0, 1e-5)), ..ASK }] {
            let all = ask.choices().unwrap();
            let best = all[0];
            assert!(all.iter().all(|c| c.equivalents <= best.equivalents && c.nats <= ask.nats.unwrap()));
            assert!(best.epsilon.is_none_or(|e| e <= 1.0) && best.epsilon.is_some() == ask.eps_delta.is_some());
            // Brute force: flips on a grid, any number of batches.
            for bits in [1, 2, 4] {
                for flip in [0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4] {
                    let nats = charge(Release::Bits { flip, bits }, best.sampling_rate, best.sampler).unwrap().nats;
                    let batches = (ask.nats.unwrap() / nats).min(best.most_batches as f64).floor();
                    if ask.eps_delta.is_some() {
                        continue;
                    }
                    let clean = 1.0 - 2.0 * flip;
                    let worth = batches * f64::from(bits) * clean * clean / (1.0 + 3.0 / best.batch as f64);
                    assert!(worth <= best.equivalents * 1.001, "{ask:?} {bits} {flip}: {worth} above {best:?}");
                }
            }
        }
    }

    #[test]
    fn flips_make_compute_the_limit_and_more_budget_is_worth_more() {
        let rich = Ask { nats: Some(1e3), ..ASK }.choices().unwrap()[0];
        assert_eq!(rich.limit, Limit::Compute);
        let worth = [0.01, 0.1, 0.5, 1.0, 2.0].map(|n| Ask { nats: Some(n), ..ASK }.choices().unwrap()[0].equivalents);
        assert!(worth.windows(2).all(|w| w[0] < w[1]), "{worth:?}");
        // By the paper's charge and B = 50, one nat buys 289 bits worth 272.
        assert!(worth[3] > 10.0 * 272.0, "{worth:?}");
        let empty = Ask { eps_delta: Some((1.0, 1e-5)), nats: None, ..ASK }.at(1, 1).unwrap().unwrap();
        assert_eq!(empty.sampler, Sampler::Poisson);
        let full = empty.batches as f64 * (1.0 - 2.0 * empty.flip).powi(2) / 4.0;
        assert!((empty.equivalents / full - (1.0 - (-1.0_f64).exp())).abs() < 1e-3, "37 % of the batches are empty");
    }

    #[test]
    fn noisy_sums_keep_the_same_budget() {
        let both = Ask { eps_delta: Some((1.0, 1e-5)), ..ASK };
        for ask in [ASK, both, Ask { nats: None, ..both }] {
            for d in ask.noisy_sums().unwrap() {
                assert!(ask.nats.is_none_or(|nats| d.nats <= nats), "{d:?}");
                let (z, rate) = (d.noise_multiplier, d.batch as f64 / 1e4);
                let event = Event::SubsampledGaussian { noise_multiplier: z, sampling_rate: rate, steps: d.steps };
                let eps = Rdp::default().epsilon(&event, 1e-5).map_or(f64::INFINITY, |b| b.upper);
                assert!(ask.eps_delta.is_none() || eps <= 1.0, "{d:?}: {eps}");
                // Not wasteful: a hundredth less noise breaks one of the two.
                let less = charge(Release::Sum { noise_multiplier: 0.99 * z }, rate, Sampler::Poisson);
                assert!(eps > 0.95 || ask.nats.is_some_and(|nats| less.unwrap().nats * d.steps as f64 > nats), "{d:?}");
                let share = d.ferret_k / (d.dpsgd / std::f64::consts::FRAC_PI_2);
                assert!((share - 0.8).abs() < 0.05 || d.signs == 1, "{d:?}: {share}");
            }
        }
    }

    #[test]
    fn flips_are_written_in_six_digits_that_keep_the_budget() {
        for nats in [0.01, 0.3, 1.0, 50.0] {
            for batch in [1, 5, 50] {
                let c = Ask { nats: Some(nats), ..ASK }.at(batch, 1).unwrap().unwrap();
                let read: f64 = c.flip.to_string().parse().unwrap();
                assert_eq!(read, c.flip);
                assert!(c.nats <= nats && c.flip.to_string().trim_start_matches(['0', '.']).len() <= 7, "{c:?}");
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(Ask { nats: None, ..ASK }.choices().is_err());
        assert!(Ask { nats: Some(-1.0), ..ASK }.choices().is_err());
        assert!(Ask { noise: f64::NAN, ..ASK }.choices().is_err());
        assert!(Ask { epochs: 0, ..ASK }.choices().is_err());
        assert!(Ask { eps_delta: Some((1.0, 2.0)), ..ASK }.choices().is_err());
        assert!(Ask { nats: Some(1e-30), ..ASK }.noisy_sums_at(50).is_err(), "no noise suffices");
    }
}
