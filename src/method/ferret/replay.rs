//! What a fire's release does to the weights, and the run that follows from its transcript.

use super::plan::{Message, Plan};
use super::settings::{Payload, Settings};
use super::transcript::{Releases, Transcript};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::method::rebuild;
use crate::method::replayer::{self, Replayable, follow};
use crate::model::{Layout, ParamId, Weights};
use crate::optim::{Gradient, Updates};
use crate::rng::DirectionStream;

impl Releases {
    /// What fire `i` of the run sent.
    pub(super) fn get(&self, i: usize) -> Message {
        match self {
            Releases::Bits(bits) => Message::Bit(bits[i]),
            Releases::Scalars(scalars) => Message::Scalar(scalars[i]),
        }
    }
}

/// Applies FERRET's releases.
pub type Replayer<B> = replayer::Replayer<Plan, B>;

impl<B: Backend> Replayer<B> {
    /// Apply the releases of `step`, groups in rising order, along the plan's `directions` of these groups. Nothing is applied when one
    /// of them is outside the alphabet.
    pub fn step(
        &mut self,
        b: &B,
        step: u32,
        releases: &[(u32, Message)],
        directions: &[DirectionStream],
        weights: &mut [B::Weight],
    ) -> Result<()> {
        self.begin(step, releases.iter().map(|r| r.0))?;
        let scales = releases.iter().map(|r| self.plan.scale(r.1)).collect::<Result<Vec<_>>>()?;
        self.pass(step);
        for ((&(group, _), scale), direction) in releases.iter().zip(scales).zip(directions) {
            let mut offset = 0;
            for &id in self.plan.members(group) {
                let w = &mut weights[id.0];
                let (rows, cols) = b.weight_shape(w);
                self.updates.step(b, step, id, w, Gradient::Along { direction, offset, scale });
                offset += rows * cols;
            }
        }
        Ok(())
    }

    /// Apply whole gradients, tensor by tensor of each group: the ablation, which no transcript holds.
    pub(super) fn step_gradients(
        &mut self,
        b: &B,
        step: u32,
        gradients: &[(u32, Vec<B::Tensor>)],
        weights: &mut [B::Weight],
    ) -> Result<()> {
        self.begin(step, gradients.iter().map(|g| g.0))?;
        self.pass(step);
        for (group, gradient) in gradients {
            for (&id, tensor) in self.plan.members(*group).iter().zip(gradient) {
                self.updates.step(b, step, id, &mut weights[id.0], Gradient::Whole { tensor, scale: 1.0 });
            }
        }
        Ok(())
    }

    /// Refuse a step that is over or beyond the run, and groups that are not the plan's, each once.
    fn begin(&self, step: u32, groups: impl Iterator<Item = u32> + Clone) -> Result<()> {
        let sorted = groups.clone().zip(groups.clone().skip(1)).all(|(a, b)| a < b);
        if !sorted || groups.last().is_some_and(|g| g as usize >= self.plan.groups()) {
            return Err(Error::usage(format!("the releases of step {step} are not one a group in rising order")));
        }
        self.is_ahead(step)
    }
}

impl Replayable for Plan {
    type Settings = Settings;
    type Fire = (u32, u32);
    type Releases = Releases;

    fn of(layout: &Layout, settings: &Settings) -> Result<Self> {
        Self::new(layout, settings)
    }

    fn steps(&self) -> u32 {
        self.settings().steps()
    }

    fn tuned(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.tuned.iter().copied()
    }

    fn updates<B: Backend>(&self, tensors: usize) -> Updates<B> {
        self.settings().common().updates(tensors, self.settings().silent)
    }

    fn apply<B: Backend>(
        replayer: &mut Replayer<B>,
        b: &B,
        fires: &[(u32, u32)],
        releases: &Releases,
        weights: &mut [B::Weight],
        mut progress: impl FnMut(u32),
    ) -> Result<()> {
        if fires.len() != releases.len() {
            return Err(Error::usage(format!("{} releases for {} fires", releases.len(), fires.len())));
        }
        let mut done = 0;
        for fired in fires.chunk_by(|a, b| a.0 == b.0) {
            let step = fired[0].0;
            let now: Vec<_> = fired.iter().enumerate().map(|(j, f)| (f.1, releases.get(done + j))).collect();
            let directions: Vec<_> = fired.iter().map(|f| replayer.plan().direction(step, f.1)).collect();
            progress(step);
            replayer.step(b, step, &now, &directions, weights)?;
            done += fired.len();
        }
        Ok(())
    }
}

/// The tuned weights of a finished run, from its base model and its transcript: no data, no matrix product, the same bytes on every
/// machine. Refuses another base, and a result that is not the one the transcript names.
pub fn replay<T: Scalars>(base: Weights<T>, transcript: &Transcript, progress: impl FnMut(u32)) -> Result<Weights<T>> {
    transcript.check()?;
    if transcript.settings.payload != Payload::Sign {
        return Err(Error::usage(
            "the run sent true gradients (`payload` true-gradient), which no transcript holds: it cannot be replayed",
        ));
    }
    let Transcript { settings, releases, steps_run, .. } = transcript;
    rebuild::checked(base, transcript, (settings.adapter.as_ref(), settings.seed), |base| {
        follow::<Plan, _>(base, settings, &transcript.fires(), releases, *steps_run, progress)
    })
}
