//! Everything that a FERRET run was told: what a transcript records beside the bits.

use super::Cuts;
use crate::error::{Error, Result};
use crate::method::Tune;
use crate::method::common::{stored, told};
use crate::model::Adapter;
use crate::optim::{Route, Schedule, Silent};
use crate::privacy::Sampler;
use crate::privacy::mi::Accounting;
use crate::rng::{Direction, Mask, count_fires, plan_fires};
use serde::{Deserialize, Serialize};

/// How the fires are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MaskKind {
    /// Every (step, group) by itself with probability p, as in the paper: the budget is met on average only.
    Bernoulli,
    /// floor(nats / (s ln 2)) slots of the run: the budget is never exceeded.
    #[default]
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
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Settings {
    /// The method's name, `ferret-max` and so on.
    pub method: String,
    /// Which tensors are tuned.
    #[serde(default, skip_serializing_if = "Tune::is_all")]
    pub tune: Tune,
    /// The adapter that the run begins with, where that is what is tuned: drawn from the public seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Which of these make a group.
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
    /// Steps T that the run was planned for, where they are not those of the passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
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
    /// Records computed on at once. Files from before it was recorded count as the program's default.
    #[serde(default = "usual_micro_batch")]
    pub micro_batch: u32,
    /// Seed of the public randomness.
    pub seed: u64,
}

/// Steps times groups, far above any run too: whoever reads a transcript walks over all of them.
const MOST_SLOTS: u64 = 10_000_000_000;

/// Fires that the exact mask draws, which are held in memory while it does: far above any run as well.
const MOST_DRAWN: u64 = 1 << 24;

told!(Settings);
stored!(Settings, sampling_rate, p);

impl Settings {
    /// The paper's: bits through AdamW, idle steps with a zero gradient, directions on the sphere, Poisson batches of 50, Bernoulli masks. Sizes and
    /// budget are the caller's to fill in.
    pub fn paper(method: &str, groups: Cuts) -> Self {
        Self {
            method: method.into(),
            tune: Tune::default(),
            adapter: None,
            groups,
            epsilon: 0.5,
            accounting: Accounting::Paper,
            records: 1,
            batch: 50,
            epochs: 1,
            steps: None,
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
            micro_batch: usual_micro_batch(),
            seed: 0,
        }
    }

    /// The mask that these settings name.
    pub fn mask(&self) -> Mask {
        match self.mask {
            MaskKind::Bernoulli => Mask::Bernoulli { p: self.p() },
            MaskKind::Exact => Mask::Exact { slots: self.paid_slots() },
        }
    }

    /// The fires (step, group) of the first `steps_run` steps, in order.
    pub fn fires(&self, steps_run: u32) -> Vec<(u32, u32)> {
        let groups = self.groups.len() as u32;
        match self.mask() {
            // A step's fires do not depend on the steps after it.
            mask @ Mask::Bernoulli { .. } => plan_fires(self.seed, steps_run.min(self.steps()), groups, mask),
            mask => {
                let mut fires = plan_fires(self.seed, self.steps(), groups, mask);
                fires.truncate(fires.partition_point(|f| f.0 < steps_run));
                fires
            }
        }
    }

    /// How many [`Settings::fires`] lists, without listing more than `most`; above that it says only that there are more.
    pub fn count_fires(&self, steps_run: u32, most: u64) -> u64 {
        match self.mask() {
            // The exact mask is drawn for the whole run: what a part of it holds must be looked up.
            Mask::Exact { slots } if steps_run < self.steps() && slots < self.slots() => {
                self.fires(steps_run).len() as u64
            }
            mask => count_fires(self.seed, steps_run.min(self.steps()), self.groups.len() as u32, mask, most),
        }
    }

    /// G T: the (step, group) that may fire.
    fn slots(&self) -> u64 {
        u64::from(self.steps()) * self.groups.len() as u64
    }

    /// Whether the settings make sense and agree with each other.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        // The statement repeats it: a sentence in its place would be a promise that no one made.
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let own = self.method.starts_with("ferret") && self.method != crate::method::ferret_k::NAME;
        if !(own && self.method.len() <= 40 && self.method.chars().all(plain)) {
            return refuse("method is no name of FERRET's: ferret, ferret-max and so on are expected".into());
        }
        self.common().check()?;
        self.tune.check(self.adapter.as_ref())?;
        for (name, x) in [("epsilon", self.epsilon), ("clip", self.clip)] {
            if !(x > 0.0 && x.is_finite()) {
                return refuse(format!("{name} is {x}, expected a number above 0"));
            }
        }
        if self.slots() > MOST_SLOTS {
            return refuse(format!(
                "{} steps of {} groups are more than {MOST_SLOTS} slots",
                self.steps(),
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
        match self.release {
            Release::Bit => {}
            Release::Rr { flip, .. } if (0.0..0.5).contains(&flip) => {}
            Release::Rr { flip, .. } => return refuse(format!("flip is {flip}, expected 0 or more and below 0.5")),
            Release::Gaussian { dither } if dither > 0.0 && dither.is_finite() => {}
            Release::Gaussian { dither } => return refuse(format!("dither is {dither}, expected a number above 0")),
        }
        if self.sampler == Sampler::Shuffle && self.batch_per == BatchPer::Bit {
            return refuse("sampler shuffle has one batch a step: have batch_per step, or sample otherwise".into());
        }
        if self.payload == Payload::TrueGradient && self.release != Release::Bit {
            return refuse("payload true-gradient sends gradients: release must stay bit".into());
        }
        Ok(())
    }
}

fn usual_micro_batch() -> u32 {
    8
}

#[cfg(test)]
pub(super) fn example() -> Settings {
    let groups = Cuts::try_from("16x1".to_owned()).unwrap();
    Settings { records: 1000, epochs: 3, seed: 1, ..Settings::paper("ferret-max", groups) }
}

#[cfg(test)]
mod tests;
