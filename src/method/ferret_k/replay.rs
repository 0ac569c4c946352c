//! What a step's releases do to the weights, and the run that follows from its transcript.

use super::plan::Plan;
use super::settings::Settings;
use super::transcript::{Releases, Transcript};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::method::rebuild;
use crate::method::replayer::{self, Replayable, follow};
use crate::model::{Layout, ParamId, Weights};
use crate::optim::{Gradient, Updates};
use crate::rng::StepSketch;

/// Applies FERRET-k's releases.
pub type Replayer<B> = replayer::Replayer<Plan, B>;

impl<B: Backend> Replayer<B> {
    /// Apply what `step` released, a number for each bucket of its `sketch`: signs, or levels or scalars in units of C.
    pub fn step(
        &mut self,
        b: &B,
        step: u32,
        numbers: &[f32],
        sketch: &StepSketch,
        weights: &mut [B::Weight],
    ) -> Result<()> {
        let k = sketch.k();
        self.is_ahead(step)?;
        if numbers.len() != k || !numbers.iter().all(|x| x.is_finite()) {
            return Err(Error::Privacy(format!(
                "{} numbers were to be applied at step {step}, expected {k}, all of them finite: nothing was applied",
                numbers.len()
            )));
        }
        self.pass(step);
        let (pullback, scale) = (sketch.pullback(numbers, 1.0), self.plan.scale());
        for p in self.plan.tuned() {
            // One product of two numbers that follow from public settings: the same bits in training and in replay.
            let scale = sketch.scale(p.0).map_or(scale, |s| scale * s);
            let gradient = Gradient::Pulled { pullback: &pullback, tensor: p.0, scale };
            self.updates.step(b, step, p, &mut weights[p.0], gradient);
        }
        Ok(())
    }
}

impl Replayable for Plan {
    type Settings = Settings;
    type Fire = u32;
    type Releases = Releases;

    fn of(layout: &Layout, settings: &Settings) -> Result<Self> {
        Self::new(layout, settings)
    }

    fn steps(&self) -> u32 {
        self.settings().steps()
    }

    fn tuned(&self) -> impl Iterator<Item = ParamId> + '_ {
        (0..self.shapes.len()).map(ParamId).filter(|&p| self.tunes(p))
    }

    fn updates<B: Backend>(&self, tensors: usize) -> Updates<B> {
        let Settings { route, schedule, silent, .. } = *self.settings();
        Updates::new(route, tensors, self.steps(), self.settings().hyper(), schedule, silent)
    }

    fn apply<B: Backend>(
        replayer: &mut Replayer<B>,
        b: &B,
        fires: &[u32],
        releases: &Releases,
        weights: &mut [B::Weight],
        mut progress: impl FnMut(u32),
    ) -> Result<()> {
        let k = replayer.plan().settings().k();
        if fires.len() * k != releases.len() {
            return Err(Error::usage(format!("{} releases for {} steps of {k}", releases.len(), fires.len())));
        }
        for (i, &step) in fires.iter().enumerate() {
            progress(step);
            let sketch = replayer.plan().sketch(step);
            replayer.step(b, step, &releases.numbers(i, k), &sketch, weights)?;
        }
        Ok(())
    }
}

/// The tuned weights of a finished run, from its base model and its transcript: no data, no matrix product, the same bytes on every
/// machine. Refuses another base, and a result that is not the one the transcript names.
pub fn replay<T: Scalars>(base: Weights<T>, transcript: &Transcript, progress: impl FnMut(u32)) -> Result<Weights<T>> {
    transcript.check()?;
    let Transcript { settings, releases, steps_run, .. } = transcript;
    rebuild::checked(base, transcript, (settings.adapter.as_ref(), settings.seed), |base| {
        follow::<Plan, _>(base, settings, &transcript.fires(), releases, *steps_run, progress)
    })
}
