//! Updates on a device, for training there.
//!
//! What the device holds follows the releases by the same arithmetic as replay, up to how the device rounds; it serves to compute
//! the next bits. What is published is replayed from the base model on the CPU, when the run ends.

use super::replay::{Released, Replayer};
use super::settings::Settings;
use super::transcript::Releases;
use crate::backend::Backend;
use crate::error::Result;
use crate::method::Held;
use crate::model::Weights;
use crate::optim::{Given, Hyper, Updates};
use crate::rng::DirectionStream;

/// The device's optimizer, and what the published weights are replayed from.
pub(super) struct Device<B: Backend> {
    updates: Updates<B>,
    base: Weights,
}

impl<B: Backend> Device<B> {
    pub(super) fn new(base: Weights, s: &Settings) -> Self {
        let hyper = Hyper::new(s.learning_rate, s.weight_decay);
        let updates = s.route.updates(base.layout.len(), s.steps, hyper, s.schedule, s.silent);
        Self { updates, base }
    }

    /// Bring all weights to where they stand before `step`.
    pub(super) fn catch_up_all(&mut self, held: &mut Held<B>, step: u32) {
        let (b, params) = held.parts();
        self.updates.catch_up_all(b, step, params);
    }

    /// Apply what was released for the groups of `step`, along their directions.
    pub(super) fn apply(
        &mut self,
        held: &mut Held<B>,
        replayer: &Replayer,
        step: u32,
        released: &[(u32, Released)],
        directions: &[DirectionStream],
    ) -> Result<()> {
        let scales = released.iter().map(|&(_, r)| replayer.scale(r)).collect::<Result<Vec<_>>>()?;
        let (b, params) = held.parts();
        for ((&(group, _), scale), direction) in released.iter().zip(scales).zip(directions) {
            let mut offset = 0;
            for &id in replayer.members(group) {
                let (rows, cols) = b.weight_shape(&params[id.0]);
                let gradient = Given::Along { direction, offset, scale };
                self.updates.step(b, step, id, &mut params[id.0], gradient);
                offset += rows * cols;
            }
        }
        Ok(())
    }

    /// Apply whole gradients: the ablation.
    pub(super) fn apply_gradients(
        &mut self,
        held: &mut Held<B>,
        replayer: &Replayer,
        step: u32,
        gradients: &[(u32, Vec<B::Tensor>)],
    ) {
        let (b, params) = held.parts();
        for (group, gradient) in gradients {
            for (&id, tensor) in replayer.members(*group).iter().zip(gradient) {
                self.updates.step(b, step, id, &mut params[id.0], Given::Dense { tensor, scale: 1.0 });
            }
        }
    }

    /// Apply the releases of an earlier part of the run.
    pub(super) fn resume(
        &mut self,
        held: &mut Held<B>,
        replayer: &Replayer,
        fires: &[(u32, u32)],
        releases: &Releases,
    ) -> Result<()> {
        let mut done = 0;
        for fires in fires.chunk_by(|a, b| a.0 == b.0) {
            let step = fires[0].0;
            let released: Vec<_> = fires.iter().enumerate().map(|(j, f)| (f.1, releases.get(done + j))).collect();
            let directions: Vec<_> = fires.iter().map(|f| replayer.direction(step, f.1)).collect();
            self.apply(held, replayer, step, &released, &directions)?;
            done += fires.len();
        }
        Ok(())
    }

    /// The weights that the releases lead to, on the CPU.
    pub(super) fn replay(
        self,
        settings: &Settings,
        fires: &[(u32, u32)],
        releases: &Releases,
        steps_run: u32,
    ) -> Result<Weights> {
        let mut weights = self.base;
        let mut replayer = Replayer::new(&weights.layout, settings)?;
        replayer.apply(fires, releases, &mut weights.tensors, |_| ())?;
        replayer.finish(steps_run, &mut weights.tensors);
        Ok(weights)
    }
}
