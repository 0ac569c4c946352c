//! Everything that a FERRET run was told: what a transcript records beside the bits.

use super::Cuts;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::method::MOST_STEPS;
use crate::optim::{Hyper, Schedule, Silent, Updates};
use crate::privacy::mi::Accounting;
use crate::privacy::statement::Sampler;
use crate::rng::{Direction, Mask, count_fires, plan_fires};
use serde::{Deserialize, Serialize};
use std::f64::consts::LN_2;

/// How releases reach the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// As gradients of AdamW: the paper's set-up.
    #[default]
    Adamw,
    /// `w -= lr * bit * C * u`: the paper's Algorithm 1. No weight decay.
    Direct,
}

impl Route {
    /// The rule by which releases change `tensors` tensors in the memory of `B`, in a run of `steps` steps.
    pub fn updates<B: Backend>(
        self,
        tensors: usize,
        steps: u32,
        hyper: Hyper,
        schedule: Schedule,
        silent: Silent,
    ) -> Updates<B> {
        match self {
            Self::Adamw => Updates::adamw(tensors, steps, hyper, schedule, silent),
            Self::Direct => Updates::direct(tensors, steps, hyper.learning_rate, schedule),
        }
    }
}

/// How the fires are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MaskKind {
    /// Every (step, group) by itself with probability p.
    #[default]
    Bernoulli,
    /// floor(nats / (s ln 2)) slots of the run, or as many as the exact accounting pays for: the budget is never exceeded.
    Exact,
}

/// What a fired group sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// Its release times the direction.
    #[default]
    Sign,
    /// Its true gradient: not private, for comparison only.
    TrueGradient,
}

/// What is released of the sign of a fired group's inner product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Release {
    /// The bit itself: bounded mutual information, no (eps, delta).
    #[default]
    Bit,
    /// Randomised response: the bit, flipped with a known probability.
    Rr {
        /// Probability of a flip, below 1/2.
        flip: f64,
        /// Count the bit as `bit / (1 - 2 flip)`, whose expectation is the true sign.
        unbiased: bool,
    },
    /// A scalar: sign times C plus Gaussian noise.
    Gaussian {
        /// Standard deviation of the noise in units of C.
        dither: f64,
    },
}

/// What has a batch of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum BatchPer {
    /// Every step.
    #[default]
    Step,
    /// Every released bit.
    Bit,
}

/// How the inner product of gradient and direction is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Backward down to the lowest fired block.
    #[default]
    Backward,
    /// Forward mode, in the memory of inference.
    Jvp,
}

/// The settings of a run. Public, all of them, the number of records included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The method's name, `ferret-max` and so on.
    pub method: String,
    /// Which tensors make a group.
    pub groups: Cuts,
    /// Budget in nats of mutual information.
    pub epsilon: f64,
    /// How the plan counts them.
    #[serde(default, skip_serializing_if = "Accounting::is_paper")]
    pub accounting: Accounting,
    /// Number of records N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// Number of steps T the run was planned for.
    pub steps: u32,
    /// s = B / N.
    pub sampling_rate: f64,
    /// Probability that a group fires at a step: `min(1, epsilon / (G T s ln 2))`.
    pub p: f64,
    /// How fires are drawn.
    pub mask: MaskKind,
    /// How directions are distributed.
    pub direction: Direction,
    /// What is released.
    pub release: Release,
    /// What a fired group sends.
    pub payload: Payload,
    /// C: the length of a fired group's gradient.
    pub clip: f64,
    /// How releases reach the weights.
    pub route: Route,
    /// What AdamW does to silent groups.
    pub silent: Silent,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// AdamW's weight decay; 0 for the direct route, which has none.
    pub weight_decay: f64,
    /// How batches were drawn.
    pub sampler: Sampler,
    /// What had a batch of its own.
    pub batch_per: BatchPer,
    /// How inner products were computed.
    pub engine: Engine,
    /// Seed of the public randomness.
    pub seed: u64,
}

/// Steps times groups, far above any run too: whoever reads a transcript walks over all of them.
const MOST_SLOTS: u64 = 10_000_000_000;

/// Fires that the exact mask draws, which are held in memory while it does: far above any run as well.
const MOST_DRAWN: u64 = 1 << 24;

impl Settings {
    /// The paper's: bits through AdamW, idle steps with a zero gradient, directions on the sphere, Poisson batches of 50. Of sizes and
    /// budget it says only that one record is seen in one step of one group; the caller fills them in.
    pub fn paper(method: &str, groups: Cuts) -> Self {
        Self {
            method: method.into(),
            groups,
            epsilon: 0.5,
            accounting: Accounting::Paper,
            records: 1,
            batch: 50,
            epochs: 1,
            steps: 1,
            sampling_rate: 1.0,
            p: 1.0,
            mask: MaskKind::Bernoulli,
            direction: Direction::Sphere,
            release: Release::Bit,
            payload: Payload::Sign,
            clip: 1.0,
            route: Route::Adamw,
            silent: Silent::Zero,
            learning_rate: 2e-4,
            schedule: Schedule::Constant,
            weight_decay: 1e-3,
            sampler: Sampler::Poisson,
            batch_per: BatchPer::Step,
            engine: Engine::Backward,
            seed: 0,
        }
    }

    /// With the sampling rate and the firing probability that sizes and budget make.
    pub fn planned(mut self) -> Self {
        self.sampling_rate = self.batch as f64 / self.records as f64;
        self.p = self.probability();
        self
    }

    /// `min(1, epsilon / (G T s ln 2))`: the probability that spends `epsilon` in expectation.
    pub fn fire_probability(epsilon: f64, groups: u64, steps: u64, sampling_rate: f64) -> f64 {
        (epsilon / (groups as f64 * steps as f64 * sampling_rate * LN_2)).min(1.0)
    }

    /// The mask that these settings name.
    pub fn mask(&self) -> Mask {
        match self.mask {
            MaskKind::Bernoulli => Mask::Bernoulli { p: self.p },
            MaskKind::Exact => Mask::Exact { slots: self.paid_slots() },
        }
    }

    /// The fires (step, group) of the first `steps_run` steps, in order.
    pub fn fires(&self, steps_run: u32) -> Vec<(u32, u32)> {
        let groups = self.groups.len() as u32;
        match self.mask() {
            // A step's fires do not depend on the steps after it.
            mask @ Mask::Bernoulli { .. } => plan_fires(self.seed, steps_run.min(self.steps), groups, mask),
            mask => {
                let mut fires = plan_fires(self.seed, self.steps, groups, mask);
                fires.truncate(fires.partition_point(|f| f.0 < steps_run));
                fires
            }
        }
    }

    /// How many [`Settings::fires`] lists, without listing more than `most`; above that it says only that there are more.
    pub fn count_fires(&self, steps_run: u32, most: u64) -> u64 {
        match self.mask() {
            // The exact mask is drawn for the whole run: what a part of it holds must be looked up.
            Mask::Exact { slots } if steps_run < self.steps && slots < self.slots() => {
                self.fires(steps_run).len() as u64
            }
            mask => count_fires(self.seed, steps_run.min(self.steps), self.groups.len() as u32, mask, most),
        }
    }

    /// G T: the (step, group) that may fire.
    fn slots(&self) -> u64 {
        u64::from(self.steps) * self.groups.len() as u64
    }

    /// Whether the settings make sense and agree with each other.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        // The statement repeats it: a sentence in its place would be a promise that no one made.
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(self.method.starts_with("ferret") && self.method.len() <= 40 && self.method.chars().all(plain)) {
            return refuse("method is no name of FERRET's: ferret, ferret-max and so on are expected".into());
        }
        let positive = [("epsilon", self.epsilon), ("clip", self.clip), ("sampling_rate", self.sampling_rate)];
        for (name, x) in positive {
            if !(x > 0.0 && x.is_finite()) {
                return refuse(format!("{name} is {x}, expected a number above 0"));
            }
        }
        for (name, x) in [("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)] {
            if !(x >= 0.0 && x.is_finite()) {
                return refuse(format!("{name} is {x}, expected 0 or a number above it"));
            }
        }
        if self.steps == 0 || self.steps > MOST_STEPS {
            return refuse(format!("steps is {}, expected 1 to {MOST_STEPS}", self.steps));
        }
        if self.slots() > MOST_SLOTS {
            return refuse(format!(
                "{} steps of {} groups are more than {MOST_SLOTS} slots",
                self.steps,
                self.groups.len()
            ));
        }
        if let Mask::Exact { slots } = self.mask()
            && slots > MOST_DRAWN
            && slots < self.slots()
        {
            return refuse(format!(
                "epsilon {} pays for {slots} bits, expected at most {MOST_DRAWN} with mask exact",
                self.epsilon
            ));
        }
        if self.batch == 0 || self.batch > self.records {
            return refuse(format!("batch is {} of {} records, expected 1 to all of them", self.batch, self.records));
        }
        let s = self.batch as f64 / self.records as f64;
        if (self.sampling_rate - s).abs() > 1e-9 * s {
            return refuse(format!("sampling_rate is {}, but batch / records is {s}", self.sampling_rate));
        }
        match self.release {
            Release::Bit => {}
            Release::Rr { flip, .. } if (0.0..0.5).contains(&flip) => {}
            Release::Rr { flip, .. } => return refuse(format!("flip is {flip}, expected 0 or more and below 0.5")),
            Release::Gaussian { dither } if dither > 0.0 && dither.is_finite() => {}
            Release::Gaussian { dither } => return refuse(format!("dither is {dither}, expected a number above 0")),
        }
        let p = self.probability();
        if self.p.is_nan() || p.is_nan() || (self.p - p).abs() > 1e-9 * p || self.p > 1.0 {
            let by = match self.accounting {
                Accounting::Paper => "epsilon / (G T s ln 2)",
                Accounting::Exact => "the budget",
            };
            return refuse(format!("p is {}, but {by} makes it {p}", self.p));
        }
        if let Schedule::Linear { warmup } = self.schedule
            && !(0.0..=1.0).contains(&warmup)
        {
            return refuse(format!("warmup is {warmup}, expected 0 to 1"));
        }
        if self.sampler == Sampler::Shuffle && self.batch_per == BatchPer::Bit {
            return refuse("sampler shuffle has one batch a step: have batch_per step, or sample otherwise".into());
        }
        if self.payload == Payload::TrueGradient && self.release != Release::Bit {
            return refuse("payload true-gradient sends gradients: release must stay bit".into());
        }
        if self.route == Route::Direct && self.weight_decay != 0.0 {
            return refuse(format!("weight_decay is {}, but the direct route has none: expected 0", self.weight_decay));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) fn example() -> Settings {
    let groups = Cuts::try_from("16x1".to_owned()).unwrap();
    Settings { records: 1000, epochs: 3, steps: 60, seed: 1, ..Settings::paper("ferret-max", groups) }.planned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        example().check().unwrap();
        type Edit = fn(&mut Settings);
        let edits: &[(&str, Edit)] = &[
            ("method", |s| s.method = "ferret-max`, proven (0, 0)-private by `audit".into()),
            ("method", |s| s.method = "perfectly-private".into()),
            ("method", |s| s.method = "ferret".repeat(10)),
            ("epsilon", |s| s.epsilon = f64::NAN),
            ("epsilon", |s| s.epsilon = 0.0),
            ("p is", |s| s.epsilon = 0.6),
            ("p is", |s| s.p *= 1.001),
            ("p is", |s| s.p = f64::NAN),
            ("sampling_rate", |s| s.records = 1001),
            ("batch", |s| s.batch = 0),
            ("batch", |s| s.batch = 1001),
            ("steps", |s| s.steps = 0),
            ("steps", |s| s.steps = u32::MAX),
            ("p is", |s| s.steps = 61),
            ("flip", |s| s.release = Release::Rr { flip: 0.5, unbiased: false }),
            ("dither", |s| s.release = Release::Gaussian { dither: -1.0 }),
            ("clip", |s| s.clip = f64::INFINITY),
            ("learning_rate", |s| s.learning_rate = -1.0),
            ("warmup", |s| s.schedule = Schedule::Linear { warmup: 1.5 }),
            ("weight_decay", |s| s.route = Route::Direct),
            ("shuffle", |s| (s.sampler, s.batch_per) = (Sampler::Shuffle, BatchPer::Bit)),
            ("true-gradient", |s| {
                (s.payload, s.release) = (Payload::TrueGradient, Release::Rr { flip: 0.1, unbiased: false });
            }),
        ];
        for (name, edit) in edits {
            let mut s = example();
            edit(&mut s);
            let error = s.check().unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn above_the_ceiling_everything_fires() {
        let mut s = example();
        s.epsilon = 1e3;
        s.p = Settings::fire_probability(1e3, 16, 60, 0.05);
        assert_eq!(s.p, 1.0);
        s.check().unwrap();
        assert_eq!(s.fires(60).len(), 960);
        s.mask = MaskKind::Exact;
        assert_eq!(s.fires(60).len(), 960);
    }

    #[test]
    fn exact_spends_the_floor_and_prefixes_agree() {
        let mut s = example();
        s.mask = MaskKind::Exact;
        let all = s.fires(60);
        assert_eq!(all.len(), 14); // 0.5 / (0.05 ln 2) = 14.4
        for kind in [MaskKind::Exact, MaskKind::Bernoulli] {
            s.mask = kind;
            let all = s.fires(60);
            let some: Vec<_> = all.iter().copied().filter(|f| f.0 < 30).collect();
            assert_eq!(s.fires(30), some);
        }
    }
}
