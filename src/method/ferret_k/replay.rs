//! From releases to weights: the one way, for training and for replay, wherever the weights lie.

use super::plan::Plan;
use super::settings::Settings;
use super::transcript::{Releases, Transcript};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::method::rebuild;
use crate::model::{Layout, Weights};
use crate::optim::{Gradient, Updates};
use crate::rng::StepSketch;

/// Applies releases, step by step, to weights in the memory of `B`, which come in layout order.
///
/// Steps that compute nothing need no call. With AdamW, and silent steps that run on with a zero gradient, they still move weights:
/// [`Replayer::catch_up`] makes up for them before someone reads the weights.
pub struct Replayer<B: Backend> {
    plan: Plan,
    updates: Updates<B>,
    /// Every step below this is over.
    next: u32,
}

impl<B: Backend> Replayer<B> {
    /// At the beginning of a run on weights of this layout.
    pub fn new(layout: &Layout, settings: &Settings) -> Result<Self> {
        let plan = Plan::new(layout, settings)?;
        let Settings { route, schedule, silent, .. } = *settings;
        let updates = Updates::new(route, layout.len(), settings.steps(), settings.hyper(), schedule, silent);
        Ok(Self { plan, updates, next: 0 })
    }

    /// What it follows.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Apply what `step` released, a number for each bucket of its `sketch`: signs, or scalars in units of C.
    pub fn step(
        &mut self,
        b: &B,
        step: u32,
        numbers: &[f32],
        sketch: &StepSketch,
        weights: &mut [B::Weight],
    ) -> Result<()> {
        let (steps, k) = (self.plan.settings().steps(), sketch.k());
        if step < self.next || step >= steps {
            return Err(Error::usage(format!("step {step} is not among {}..{steps}", self.next)));
        }
        if numbers.len() != k || !numbers.iter().all(|x| x.is_finite()) {
            return Err(Error::Privacy(format!(
                "{} numbers were to be applied at step {step}, expected {k}, all of them finite: nothing was applied",
                numbers.len()
            )));
        }
        self.next = step + 1;
        let (pullback, scale) = (sketch.pullback(numbers, 1.0), self.plan.scale());
        for p in self.plan.tuned() {
            let gradient = Gradient::Pulled { pullback: &pullback, tensor: p.0, scale };
            self.updates.step(b, step, p, &mut weights[p.0], gradient);
        }
        Ok(())
    }

    /// Bring all weights to where they stand before `step`, or at the run's end.
    pub fn catch_up(&mut self, b: &B, step: u32, weights: &mut [B::Weight]) {
        let step = step.min(self.plan.settings().steps());
        for p in self.plan.tuned() {
            self.updates.catch_up(b, step, p, &mut weights[p.0]);
        }
    }

    /// Apply recorded releases to the steps that computed something; `progress` hears of each before it is made. For replay, and for resuming.
    pub fn apply(
        &mut self,
        b: &B,
        fires: &[u32],
        releases: &Releases,
        weights: &mut [B::Weight],
        mut progress: impl FnMut(u32),
    ) -> Result<()> {
        let k = self.plan.settings().k();
        if fires.len() * k != releases.len() {
            return Err(Error::usage(format!("{} releases for {} steps of {k}", releases.len(), fires.len())));
        }
        for (i, &step) in fires.iter().enumerate() {
            progress(step);
            self.step(b, step, &releases.numbers(i, k), &self.plan.sketch(step), weights)?;
        }
        Ok(())
    }
}

/// The weights that these releases lead to after `stop` steps, on the CPU.
pub(super) fn follow<T: Scalars>(
    weights: Weights<T>,
    settings: &Settings,
    fires: &[u32],
    releases: &Releases,
    stop: u32,
    progress: impl FnMut(u32),
) -> Result<Weights<T>> {
    let mut replayer = Replayer::new(&weights.layout, settings)?;
    rebuild::on_host(weights, |b, params| {
        replayer.apply(b, fires, releases, params, progress)?;
        replayer.catch_up(b, stop, params);
        Ok(())
    })
}

/// The tuned weights of a finished run, from its base model and its transcript: no data, no matrix product, the same bytes on every
/// machine. Refuses another base, and a result that is not the one the transcript names.
pub fn replay<T: Scalars>(base: Weights<T>, transcript: &Transcript, progress: impl FnMut(u32)) -> Result<Weights<T>> {
    transcript.check()?;
    let Transcript { settings, releases, steps_run, .. } = transcript;
    rebuild::checked(base, transcript, (settings.adapter.as_ref(), settings.seed), |base| {
        follow(base, settings, &transcript.fires(), releases, *steps_run, progress)
    })
}
