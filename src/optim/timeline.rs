//! AdamW (Loshchilov and Hutter): Adam with decoupled weight decay. The constants of every step of a run; knows no weights.
//!
//! A group that does not fire has no gradient at that step. What AdamW then does is [`Silent`]: step with a zero gradient, so that momentum
//! runs on and weights decay; or nothing. Zero-gradient steps depend on nothing but the tensor itself, so they wait until someone
//! needs the tensor and are then iterated in registers in one pass over the weights. No closed form: the bits are those of
//! stepping one by one.

use super::Schedule;
use crate::ops::update::{Constants, Step};
use serde::{Deserialize, Serialize};

/// What AdamW does to a tensor at a step that brings it no gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Silent {
    /// A step with a zero gradient: moments decay, momentum moves on, weights decay. Bias correction counts all steps.
    #[default]
    Zero,
    /// Nothing. Bias correction counts the tensor's own gradients.
    None,
}

/// The numbers of the update rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled: weights are multiplied by `1 - lr wd` at every step.
    pub weight_decay: f64,
    /// Forgetting of the first moment.
    pub beta1: f64,
    /// Forgetting of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// The direct route's: what is kept of the sum of earlier gradients.
    pub momentum: f64,
}

impl Hyper {
    /// The usual betas .9 and .999 and eps 1e-8; no momentum of the direct route.
    pub fn new(learning_rate: f64, weight_decay: f64) -> Self {
        Self { learning_rate, weight_decay, beta1: 0.9, beta2: 0.999, eps: 1e-8, momentum: 0.0 }
    }
}

/// The constants of every step of a run: knows no weights.
#[derive(Clone, Debug)]
pub struct Timeline {
    hyper: Hyper,
    schedule: Schedule,
    steps: u32,
    silent: Silent,
    constants: Constants,
    /// `1 - beta1^t`, `1 - beta2^t` for t = 1 .. steps; powers by repeated multiplication.
    corrections: Vec<(f64, f64)>,
}

impl Timeline {
    /// For a run of `steps` steps.
    pub fn new(steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        let mut powers = (1.0, 1.0);
        let corrections = (0..steps)
            .map(|_| {
                powers = (powers.0 * hyper.beta1, powers.1 * hyper.beta2);
                (1.0 - powers.0, 1.0 - powers.1)
            })
            .collect();
        let constants = Constants {
            keep_m: hyper.beta1 as f32,
            take_m: (1.0 - hyper.beta1) as f32,
            keep_v: hyper.beta2 as f32,
            take_v: (1.0 - hyper.beta2) as f32,
            eps: hyper.eps as f32,
        };
        Self { hyper, schedule, steps, silent, constants, corrections }
    }

    /// The constants of all steps.
    pub fn constants(&self) -> Constants {
        self.constants
    }

    /// The constants of the `t`-th update (from 1), made at `step` (from 0).
    fn at(&self, t: u32, step: u32) -> Step {
        let rate = self.schedule.rate(self.hyper.learning_rate, step, self.steps);
        let (c1, c2) = self.corrections[t as usize - 1];
        Step {
            decay: (1.0 - rate * self.hyper.weight_decay) as f32,
            rate: (rate / c1) as f32,
            correction: (1.0 / c2.sqrt()) as f32,
        }
    }

    /// The constants for a gradient at `step` to a tensor that has `done` steps behind it.
    ///
    /// Panics when the step is not below the number of steps, or was applied already.
    pub fn gradient(&self, done: u32, step: u32) -> Step {
        assert!(step < self.steps, "step {step} of a run of {}", self.steps);
        assert!(self.silent == Silent::None || done == step, "step {step} of a tensor comes after step {done}");
        self.at(done + 1, step)
    }

    /// The idle steps due before `step` to a tensor that has `done` steps behind it.
    pub fn idle(&self, done: u32, step: u32) -> Vec<Step> {
        match self.silent {
            Silent::Zero => (done..step).map(|s| self.at(s + 1, s)).collect(),
            Silent::None => Vec::new(),
        }
    }
}
