//! Plain training on dense gradients, with nothing private about it: how the embedded model is made, and how the world is tried out.

use crate::backend::Cpu;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::Sum;
use crate::method::run::{Run, Step, Watch, drive};
use crate::method::{MOST_STEPS, Opening, Private, Sensitive};
use crate::model::{Decoder, ParamId, Reduction, Weights};
use crate::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use crate::rng::shuffle;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How to train.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Passes over the examples, each in a new order.
    pub epochs: u32,
    /// Examples a step.
    pub batch: usize,
    /// AdamW.
    pub hyper: Hyper,
    /// The learning rate over the run.
    pub schedule: Schedule,
    /// What the loss is a mean of.
    pub reduction: Reduction,
    /// Seed of the order.
    pub seed: u64,
}

impl Settings {
    /// Steps that a run over `examples` examples takes.
    pub fn steps(&self, examples: usize) -> Result<u32> {
        let steps = (examples.div_ceil(self.batch) as u64).checked_mul(self.epochs.into());
        steps.filter(|&steps| steps <= MOST_STEPS.into()).map(|steps| steps as u32).ok_or_else(|| {
            let (epochs, batch) = (self.epochs, self.batch);
            Error::usage(format!(
                "{epochs} passes over {examples} records in batches of {batch} are more than {MOST_STEPS} steps: give fewer passes"
            ))
        })
    }
}

/// Train `weights` on `examples` on the processor. `after_epoch` sees the weights after each pass, `done` the loss of each step.
pub fn fit(
    weights: Weights,
    examples: &[Example],
    settings: &Settings,
    done: impl FnMut(f64),
    after_epoch: impl FnMut(u32, &Decoder<Cpu<f32>>) -> Result<()>,
) -> Result<Weights> {
    let steps = settings.steps(examples.len())?;
    let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
    let updates = Updates::adamw(decoder.layout.len(), steps, settings.hyper, settings.schedule, Silent::None);
    let rng = ChaCha8Rng::seed_from_u64(settings.seed);
    let order = (0..examples.len()).collect();
    let mut fit = Fit { decoder, updates, rng, order, examples, settings, step: 0, steps };
    drive(&mut fit, &mut Passes { done, after_epoch, steps: steps / settings.epochs.max(1) })?;
    fit.decoder.weights()
}

/// A run without a boundary: everything here is public.
struct Fit<'a> {
    decoder: Decoder<Cpu<f32>>,
    updates: Updates<Cpu<f32>>,
    rng: ChaCha8Rng,
    order: Vec<usize>,
    examples: &'a [Example],
    settings: &'a Settings,
    step: u32,
    steps: u32,
}

impl Run<Cpu<f32>> for Fit<'_> {
    fn next(&self) -> Option<u32> {
        (self.step < self.steps).then_some(self.step)
    }

    fn progress(&self) -> (u64, u64) {
        (self.step.into(), self.steps.into())
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let Self { decoder, updates, rng, order, examples, settings, .. } = self;
        let place = step as usize % examples.len().div_ceil(settings.batch);
        if place == 0 {
            shuffle(order, || rng.next_u64());
        }
        let chosen = order.chunks(settings.batch).nth(place).unwrap_or_default();
        let batch = batches::batch(chosen.iter().map(|&i| &examples[i]));
        let weights = batch.weights(settings.reduction);
        let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        let losses = decoder.backward(&batch, &weights, &mut sum);
        let loss: f64 = losses.as_slice().iter().zip(&weights).map(|(&l, &w)| f64::from(l) * f64::from(w)).sum();
        if !loss.is_finite() {
            return Err(Error::Diverged(format!("the loss is {loss} at step {step}: training has diverged")));
        }
        for (i, (w, tensor)) in decoder.params.iter_mut().zip(sum.into_grads().iter().flatten()).enumerate() {
            updates.step(&decoder.backend, step, ParamId(i), w, Gradient::Whole { tensor, scale: 1.0 });
        }
        self.step += 1;
        let private = Private { records: chosen.len(), tokens: batch.rows(), loss: Some(loss) };
        Ok(Some(Step { step, groups: Vec::new(), private: Sensitive::new(private) }))
    }

    fn decoder(&self) -> &Decoder<Cpu<f32>> {
        &self.decoder
    }
}

/// Tells the loss of each step, and shows the decoder after each pass of `steps` steps.
struct Passes<D, E> {
    done: D,
    after_epoch: E,
    steps: u32,
}

impl<D: FnMut(f64), E: FnMut(u32, &Decoder<Cpu<f32>>) -> Result<()>> Watch<Cpu<f32>> for Passes<D, E> {
    fn after(&mut self, run: &mut dyn Run<Cpu<f32>>, step: Step) -> Result<()> {
        let opening = Opening::evaluation("losses on public text, or of a trial that is not private");
        (self.done)(step.private.open(&opening).loss.unwrap_or_default());
        match (step.step + 1) % self.steps {
            0 => (self.after_epoch)((step.step + 1) / self.steps, run.decoder()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::{Preset, random};

    #[test]
    fn training_learns_and_threads_change_nothing() {
        let examples: Vec<Example> = (0..7).map(|i| Example::all((i..i + 9 + i % 3).collect())).collect();
        let settings = Settings {
            epochs: 6,
            batch: 3,
            hyper: Hyper::new(3e-3, 1e-3),
            schedule: Schedule::Constant,
            reduction: Reduction::SampleMean,
            seed: 5,
        };
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut losses = Vec::new();
            let weights = random(Preset::Tiny.config(), 3).unwrap();
            let tuned = pool.install(|| fit(weights, &examples, &settings, |l| losses.push(l), |_, _| Ok(()))).unwrap();
            (crate::model::checkpoint::tensors_sha256(&tuned), losses)
        };
        let (hash, losses) = run(1);
        assert_eq!((hash, losses.clone()), run(3));
        assert_eq!(losses.len(), settings.steps(examples.len()).unwrap() as usize);
        assert!(losses[17] < losses[0] - 1.0, "{losses:?}");
    }
}
