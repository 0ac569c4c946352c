//! Everything that a FERRET-k run was told: what a transcript records beside the releases.

use super::levels;
use super::sum::MOST_RECORDS;
use crate::error::{Error, Result};
use crate::grad::ClipFunction;
use crate::method::common::told;
use crate::method::{Scales, Tune};
use crate::model::Adapter;
use crate::optim::{Hyper, Route, Schedule, Silent};
use crate::privacy::Event;
use crate::privacy::Sampler;
use crate::privacy::mi::signs_per_step;
use crate::rng::sketch::MOST_BUCKETS;
use crate::rng::{Mask, SketchKind, count_fires, plan_fires};
use serde::{Deserialize, Serialize};

/// What a step releases of its k noised sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// Their signs.
    Sign,
    /// Two bits of each, its sign and one of two levels, and the size of all ([`super::levels`]).
    #[default]
    Level,
    /// The sums, on a public grid of C / 1024.
    Scalar,
}

impl Release {
    /// The one that a statement tells of.
    pub fn stated(signs: bool, levels: bool) -> Self {
        match (signs, levels) {
            (_, true) => Self::Level,
            (true, _) => Self::Sign,
            _ => Self::Scalar,
        }
    }

    /// Bits that a step of k numbers releases.
    pub fn bits(self, k: u64) -> u64 {
        match self {
            Self::Sign => k,
            Self::Level => u64::from(levels::BITS) * k + 32,
            Self::Scalar => 32 * k,
        }
    }

    /// The most numbers a step that take no more than so many bits.
    pub fn numbers_in(self, bits: u64) -> u64 {
        match self {
            Self::Sign => bits,
            Self::Level => bits.saturating_sub(32) / u64::from(levels::BITS),
            Self::Scalar => bits / 32,
        }
    }
}

/// The settings of a run. Public, all of them, the number of records included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which tensors are tuned; the others have no bucket.
    #[serde(default, skip_serializing_if = "Tune::is_all")]
    pub tune: Tune,
    /// The adapter that the run begins with, where that is what is tuned: drawn from the public seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// k: how many numbers a step asks of its batch.
    pub bits_per_step: u32,
    /// How weights fall into buckets.
    pub sketch: SketchKind,
    /// Entries of ±s in U, by tensor; none: ±1 everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<Scales>,
    /// What is released of the sums.
    pub release: Release,
    /// z: standard deviation of the noise on each sum, in units of `clip`.
    pub noise_multiplier: f64,
    /// C: the most one record moves the k sums together. It scales nothing else.
    pub clip: f64,
    /// How the length of a record's sketch becomes its factor.
    pub clip_rule: ClipFunction,
    /// The probability that a step computes anything; which ones do follows from the seed.
    pub p: f64,
    /// Number of records N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// Steps T that the run was planned for, where they are not those of the passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Records computed on at once.
    pub micro_batch: u32,
    /// How releases reach the weights.
    pub route: Route,
    /// The direct route's momentum; 0 for AdamW, which has its own.
    pub momentum: f64,
    /// What AdamW does at a step that computes nothing.
    pub silent: Silent,
    /// Peak learning rate: for signs by the direct route, how far a step moves the weights; for levels, about how far.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// AdamW's weight decay; 0 for the direct route, which has none.
    pub weight_decay: f64,
    /// Seed of the public randomness.
    pub seed: u64,
}

/// The momentum that does well with signs and levels by the direct route.
pub const USUAL_MOMENTUM: f64 = 0.7;

/// Variance of one record's gradient over the square of the mean gradient: what a plan takes it for.
const GRADIENT_NOISE: f64 = 3.0;

told!(Settings);

impl Settings {
    /// Levels of a tensor sketch through the direct route with momentum, Poisson batches of 50. Sizes, rate, and k for another noise, are the caller's
    /// to fill in.
    pub fn usual(noise_multiplier: f64) -> Self {
        Self {
            tune: Tune::default(),
            adapter: None,
            bits_per_step: Self::usual_bits(Release::default(), 50, noise_multiplier),
            sketch: SketchKind::Tensor,
            scales: None,
            release: Release::default(),
            noise_multiplier,
            clip: 1.0,
            clip_rule: ClipFunction::Automatic,
            p: 1.0,
            records: 1,
            batch: 50,
            epochs: 1,
            steps: None,
            sampler: Sampler::Poisson,
            micro_batch: 8,
            route: Route::Direct,
            momentum: USUAL_MOMENTUM,
            silent: Silent::Zero,
            learning_rate: 1.0,
            schedule: Schedule::Constant,
            weight_decay: 0.0,
            seed: 0,
        }
    }

    /// k for batches of B with noise z: the power of two below the number of signs that make four fifths of the progress there is to be made
    /// ([`signs_per_step`]) or below 32 B, whichever is more, between 64 and 65,536; of levels as many as take no more bits. Under much noise a few signs should do by that count, and in
    /// trials did not (eps 0.1, B = 100: perplexity 43 with 64 signs, 34 to 38 with 1,024 and 2,048); 32 B of them are 12 KB over three passes of 1,500 records.
    pub fn usual_bits(release: Release, batch: u64, noise_multiplier: f64) -> u32 {
        let enough =
            signs_per_step(batch, noise_multiplier, GRADIENT_NOISE).max(32 * batch.min(1 << 16)).clamp(64, 1 << 16);
        let signs = 1u32 << enough.ilog2();
        match release {
            Release::Level => signs / levels::BITS,
            Release::Sign | Release::Scalar => signs,
        }
    }

    /// The numbers of the update rules.
    pub(super) fn hyper(&self) -> Hyper {
        Hyper { momentum: self.momentum, ..Hyper::new(self.learning_rate, self.weight_decay) }
    }

    /// k.
    pub fn k(&self) -> usize {
        self.bits_per_step as usize
    }

    /// Those of the first `stop` steps that compute something, in order.
    pub fn fires(&self, stop: u32) -> Vec<u32> {
        let fires = plan_fires(self.seed, stop.min(self.steps()), 1, Mask::Bernoulli { p: self.p });
        fires.into_iter().map(|f| f.0).collect()
    }

    /// How many [`Settings::fires`] lists, without listing more than `most`; above that it says only that there are more.
    pub fn count_fires(&self, stop: u32, most: u64) -> u64 {
        count_fires(self.seed, stop.min(self.steps()), 1, Mask::Bernoulli { p: self.p }, most)
    }

    /// Whether anything is promised: contributions are bounded and noise is added.
    pub fn holds(&self) -> bool {
        self.noise_multiplier > 0.0 && self.clip_rule != ClipFunction::None
    }

    /// What the first `stop` steps release, for accountants; none where nothing can be promised.
    pub fn event(&self, stop: u32) -> Option<Event> {
        let (noise_multiplier, sampling_rate) = (self.noise_multiplier, self.sampling_rate());
        let steps = self.count_fires(stop, u64::MAX);
        self.holds().then_some(match self.release {
            Release::Sign => {
                Event::SubsampledSigns { noise_multiplier, bits: self.bits_per_step, sampling_rate, steps }
            }
            // Of levels no less is proven than of the sums that they are made from.
            Release::Level | Release::Scalar => Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps },
        })
    }

    /// Whether the settings make sense and agree with each other.
    pub fn check(&self) -> Result<()> {
        self.common().check()?;
        self.tune.check(self.adapter.as_ref())?;
        self.scales.as_ref().map_or(Ok(()), Scales::check)?;
        let refuse = |what: String| Err(Error::usage(what));
        if !(1..=MOST_BUCKETS).contains(&self.k()) {
            return refuse(format!("bits_per_step is {}, expected 1 to {MOST_BUCKETS}", self.bits_per_step));
        }
        let Self { noise_multiplier: z, clip, p, momentum, .. } = *self;
        if !(0.0..=1e30).contains(&z) {
            return refuse(format!("noise_multiplier is {z}, expected 0 to 1e30"));
        }
        if !(1e-30..=1e30).contains(&clip) {
            return refuse(format!("clip is {clip}, expected 1e-30 to 1e30"));
        }
        if !(p > 0.0 && p <= 1.0) {
            return refuse(format!("p is {p}, expected a number above 0 and at most 1"));
        }
        if !(0.0..1.0).contains(&momentum) {
            return refuse(format!("momentum is {momentum}, expected 0 or more and below 1"));
        }
        if momentum > 0.0 && self.route == Route::Adamw {
            return refuse(format!("momentum is {momentum}, but AdamW has its own: expected 0, or the direct route"));
        }
        if self.batch > MOST_RECORDS {
            return refuse(format!(
                "batch is {}, expected at most {MOST_RECORDS}: sums of more sketches could be rounded",
                self.batch
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let good = Settings { records: 1000, ..Settings::usual(1.5) };
        good.check().unwrap();
        type Edit = fn(&mut Settings);
        let edits: &[(&str, Edit)] = &[
            ("bits_per_step", |s| s.bits_per_step = 0),
            ("bits_per_step", |s| s.bits_per_step = u32::MAX),
            ("noise_multiplier", |s| s.noise_multiplier = f64::NAN),
            ("noise_multiplier", |s| s.noise_multiplier = -1.0),
            ("clip", |s| s.clip = 0.0),
            ("clip", |s| s.clip = f64::INFINITY),
            ("exponent of 65", |s| s.scales = Some(Scales(vec![3, 65]))),
            ("p is", |s| s.p = 0.0),
            ("p is", |s| s.p = 1.1),
            ("momentum", |s| s.momentum = 1.0),
            ("momentum", |s| s.route = Route::Adamw),
            ("batch", |s| s.batch = 1001),
            ("batch", |s| (s.records, s.batch) = (1 << 30, 1 << 20)),
            ("micro_batch", |s| s.micro_batch = 0),
            ("weight_decay", |s| s.weight_decay = 0.1),
        ];
        for (name, edit) in edits {
            let mut s = good.clone();
            edit(&mut s);
            let error = s.check().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn more_noise_pays_for_fewer_bits_but_not_for_few() {
        // The trial's setting: (1, 1e-5), B = 50.
        assert_eq!(Settings::usual_bits(Release::Sign, 50, 1.52), 1024);
        assert_eq!(Settings::usual_bits(Release::Sign, 50, 15.2), 1024);
        assert_eq!(Settings::usual_bits(Release::Sign, 5, 15.2), 128);
        assert_eq!(Settings::usual_bits(Release::Sign, 1, 5.0), 64);
        assert_eq!(Settings::usual_bits(Release::Sign, 100_000, 0.5), 65_536);
        assert_eq!(Settings::usual_bits(Release::Sign, 50, 0.0), 65_536);
        // Levels in as many bits.
        assert_eq!(Settings::usual_bits(Release::Level, 50, 1.52), 512);
    }

    #[test]
    fn as_many_numbers_as_fit_and_no_more() {
        for release in [Release::Sign, Release::Level, Release::Scalar] {
            for bits in [0, 31, 34, 64, 2666, 2667] {
                let k = release.numbers_in(bits);
                assert!(k == 0 || release.bits(k) <= bits, "{release:?}: {k} in {bits}");
                assert!(release.bits(k + 1) > bits, "{release:?}: {k} in {bits}");
            }
        }
    }

    #[test]
    fn fires_follow_from_the_seed_and_prefixes_agree() {
        let s = Settings { records: 1000, epochs: 10, p: 0.3, ..Settings::usual(1.5) };
        let all = s.fires(u32::MAX);
        assert!((20..100).contains(&all.len()) && all.is_sorted(), "{all:?}");
        assert_eq!(s.fires(77), all.iter().copied().filter(|&t| t < 77).collect::<Vec<_>>());
        assert_eq!(s.count_fires(77, u64::MAX), s.fires(77).len() as u64);
        assert_ne!(Settings { seed: 1, ..s.clone() }.fires(u32::MAX), all);
        assert_eq!(Settings { p: 1.0, ..s }.fires(u32::MAX), (0..200).collect::<Vec<_>>());
    }
}
