//! Plain training on dense gradients, with nothing private about it: how the embedded model is made, and how the world is tried out.

use crate::backend::{Cpu, Memory};
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::Sum;
use crate::method::MOST_STEPS;
use crate::method::held::Held;
use crate::model::{ParamId, Reduction, Weights};
use crate::optim::{AdamW, Gradient, Hyper, Schedule, Silent};
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
    mut done: impl FnMut(f64),
    mut after_epoch: impl FnMut(u32, &crate::model::Decoder<Cpu<f32>>) -> Result<()>,
) -> Result<Weights> {
    let steps = settings.steps(examples.len())?;
    let mut held = Held::new(Cpu::<f32>::new(), weights)?;
    let mut adam = AdamW::new(held.decoder().layout.len(), steps, settings.hyper, settings.schedule, Silent::None);
    let mut rng = ChaCha8Rng::seed_from_u64(settings.seed);
    let mut order: Vec<usize> = (0..examples.len()).collect();
    let mut step = 0;
    for epoch in 0..settings.epochs {
        shuffle(&mut order, || rng.next_u64());
        for chosen in order.chunks(settings.batch) {
            let batch = batches::batch(chosen.iter().map(|&i| &examples[i]));
            let weights = batch.weights(settings.reduction);
            let decoder = held.decoder();
            let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
            let losses = decoder.backend.download(&decoder.backward(&batch, &weights, &mut sum))?;
            let loss: f64 = losses.iter().zip(&weights).map(|(&l, &w)| f64::from(l) * f64::from(w)).sum();
            if !loss.is_finite() {
                return Err(Error::Diverged(format!("the loss is {loss} at step {step}: training has diverged")));
            }
            let grads = sum.into_grads();
            let grads = grads.iter().flatten().map(|g| decoder.backend.download(g)).collect::<Result<Vec<_>>>()?;
            held.update(
                |_| true,
                |tensors| {
                    for (i, (tensor, gradient)) in tensors.iter_mut().zip(&grads).enumerate() {
                        adam.step(step, ParamId(i), tensor, Gradient::Dense(gradient));
                    }
                    Ok(())
                },
            )?;
            step += 1;
            done(loss);
        }
        after_epoch(epoch + 1, held.decoder())?;
    }
    held.into_weights()
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
