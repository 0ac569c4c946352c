//! Training: at every step a sample, its gradient, a release, an update.
//!
//! On the CPU the gradient is one buffer from the sum to the optimizer: summed, noised, scaled and consumed in place. For a device it is
//! downloaded once, and the new weights are sent over.

use super::compress::{self, Address};
use super::settings::{Method, Privacy, Settings, Variant};
use super::state::{self, State};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::{Clipping, Norms, Sum};
use crate::method::ferret::Route;
use crate::method::ferret::run::Private;
use crate::method::{Held, Opening, Samples, Sensitive};
use crate::model::{Decoder, ParamId, Reduction, Weights};
use crate::optim::{AdamW, BLOCK, Gradient, Hyper, Silent, direct};
use crate::rng::Secret;
use rayon::prelude::*;
use std::path::Path;

/// What a run is made of.
pub struct Run<'a> {
    /// The model it begins at, or stands at ([`State::load`]).
    pub weights: Weights,
    /// What it is told.
    pub settings: Settings,
    /// Where an earlier part of the same run stopped.
    pub state: Option<State>,
    /// The generator of samples and noise.
    pub secret: &'a Secret,
    /// What it learns from.
    pub records: Sensitive<&'a [Example]>,
}

/// A run in progress.
pub struct Trainer<'a, B: Backend> {
    held: Held<B>,
    /// None: the direct route.
    adamw: Option<AdamW>,
    clipping: Option<Clipping>,
    /// What error feedback remembers.
    memory: Option<Vec<Vec<f32>>>,
    settings: Settings,
    next: u32,
    secret: &'a Secret,
    records: Sensitive<&'a [Example]>,
}

/// What a computed step may tell.
pub struct Step {
    /// Which step.
    pub step: u32,
    /// What the step's batch gave away besides the release; for logs that say so.
    pub private: Sensitive<Private>,
}

/// A gradient where the optimizer can work on it.
enum Host<B: Backend> {
    /// The backend's own tensors, in host memory.
    Shared(Vec<B::Tensor>),
    /// Copies of a device's.
    Copied(Vec<Vec<f32>>),
}

impl<B: Backend> Host<B> {
    fn new(b: &B, mut tensors: Vec<B::Tensor>) -> Result<Self> {
        if tensors.first_mut().is_some_and(|t| b.host_mut(t).is_some()) {
            return Ok(Self::Shared(tensors));
        }
        Ok(Self::Copied(tensors.iter().map(|t| b.download(t)).collect::<Result<_>>()?))
    }

    fn slices(&mut self, b: &B) -> Vec<&mut [f32]> {
        match self {
            Self::Shared(tensors) => {
                tensors.iter_mut().map(|t| b.host_mut(t).expect("host memory, as when it was made")).collect()
            }
            Self::Copied(tensors) => tensors.iter_mut().map(Vec::as_mut_slice).collect(),
        }
    }
}

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue.
    pub fn new(backend: B, run: Run<'a>) -> Result<Self> {
        let Run { weights, settings, state, secret, records } = run;
        settings.check()?;
        let clipping = settings.method.privacy().map(|p| p.clipping(&weights.layout)).transpose()?;
        let tensors = weights.layout.len();
        let mut adamw = (settings.route == Route::Adamw).then(|| {
            let hyper = Hyper::new(settings.learning_rate, settings.weight_decay);
            AdamW::new(tensors, settings.steps, hyper, settings.schedule, Silent::Zero)
        });
        let remembers = settings.method == Method::Signsgd { variant: Variant::ErrorFeedback };
        let (mut next, mut memory) = (0, None);
        if let Some(State { step, moments, memory: saved }) = state {
            let moments_fit = moments.len() == if adamw.is_some() { tensors } else { 0 };
            if step > settings.steps || !moments_fit || saved.is_some() != remembers {
                return Err(Error::usage("the saved state is not of this run: its step, moments or memory do not fit"));
            }
            for (i, moments) in moments.into_iter().enumerate() {
                let adamw = adamw.as_mut().expect("moments are AdamW's");
                adamw.restore(ParamId(i), step, Some(moments));
            }
            (next, memory) = (step, saved);
        } else if remembers {
            memory = Some(weights.layout.specs().iter().map(|s| vec![0.0; s.len()]).collect());
        }
        let held = Held::new(backend, weights)?;
        Ok(Self { held, adamw, clipping, memory, settings, next, secret, records })
    }

    /// The number of the next step: how many are over.
    pub fn next_step(&self) -> u32 {
        self.next
    }

    /// The decoder as it stands.
    pub fn decoder(&self) -> &Decoder<B> {
        self.held.decoder()
    }

    /// Compute, release and apply one step; none when all are over.
    pub fn step(&mut self) -> Result<Option<Step>> {
        let (step, s) = (self.next, &self.settings);
        if step >= s.steps {
            return Ok(None);
        }
        let sample = Samples::new(self.secret, s.sampler, s.records as usize, s.batch as usize)?.draw(step, 0);
        let work = sample.zip(self.records.as_ref()).map(|(sample, records)| self.gradient(step, &sample, records));
        // Failing is public; it depends on the machine (a lost device), and on the data only where a device runs out of memory.
        let (gradient, private) = work.open(&Opening::release("whether the computation succeeded"))?;
        let (gradient, private) = (Sensitive::new(gradient), Sensitive::new(private));
        let (update, private) = match self.settings.method.privacy().cloned() {
            Some(privacy) => (self.release_noised(step, &privacy, gradient)?, private),
            None => self.release_plain(step, gradient, private)?,
        };
        self.apply(step, update)?;
        self.next += 1;
        Ok(Some(Step { step, private }))
    }

    /// Save under `root` what resuming needs: whole or not at all.
    pub fn save(&mut self, root: &Path) -> Result<()> {
        let Self { held, adamw, memory, next, .. } = self;
        if *next == 0 {
            return Ok(());
        }
        let layout = held.decoder().layout.clone();
        let moments: Vec<_> = adamw
            .iter()
            .flat_map(|a| layout.ids().map(|p| a.state(p).1.expect("every step moves every tensor")))
            .collect();
        held.update(|_| false, |weights| state::save(root, *next, &layout, weights, &moments, memory.as_deref()))
    }

    /// The weights after the last step.
    pub fn finish(self) -> Result<Weights> {
        let Self { held, adamw, memory, next, .. } = self;
        drop((adamw, memory));
        let weights = held.into_weights()?;
        if !weights.tensors.par_iter().all(|t| t.iter().all(|x| x.is_finite())) {
            return Err(Error::usage(format!(
                "the weights are no longer numbers after {next} steps: the run has diverged; lower --learning-rate"
            )));
        }
        Ok(weights)
    }

    /// What the batch adds up to before anything is released: the sum of clipped gradients, the mean gradient, or the votes.
    fn gradient(&self, step: u32, sample: &[usize], records: &[Example]) -> Result<(Host<B>, Private)> {
        let decoder = self.held.decoder();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let votes = self.settings.method == Method::Signsgd { variant: Variant::MajorityVote };
        let mut ballot: Option<Vec<Vec<f32>>> =
            votes.then(|| layout.specs().iter().map(|s| vec![0.0; s.len()]).collect());
        let mut sum = Sum::new(b, layout, |_| true);
        let mut private = Private { records: 0, tokens: 0, loss: None };
        for chunk in sample.chunks(self.settings.micro_batch as usize) {
            let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
            let mut weights = batch.weights(Reduction::SampleSum);
            let losses = if let Some(clipping) = &self.clipping {
                let mut norms = Norms::new(b, layout, batch.segments.len(), |_| true);
                let losses = decoder.backward(&batch, &weights, &mut norms);
                let factors = clipping.factors(b, &norms)?;
                norms.clipped_sum(b, &factors, &mut sum);
                losses
            } else {
                weights.iter_mut().for_each(|w| *w /= sample.len() as f32);
                decoder.backward(&batch, &weights, &mut sum)
            };
            private = private.join(Private::of(&batch, Some(&b.download(&losses)?)));
            if let Some(ballot) = &mut ballot {
                let worker = std::mem::replace(&mut sum, Sum::new(b, layout, |_| true));
                let mut worker = Host::new(b, tensors(worker))?;
                for (i, (x, votes)) in worker.slices(b).into_iter().zip(ballot).enumerate() {
                    compress::vote(x, votes, self.address(step, i));
                }
            }
        }
        let gradient = match ballot {
            Some(ballot) => Host::Copied(ballot),
            None => Host::new(b, tensors(sum))?,
        };
        Ok((gradient, private))
    }

    /// Noise on the sum, once a logical batch; then the expected batch size, or signs, as post-processing.
    fn release_noised(&self, step: u32, privacy: &Privacy, sum: Sensitive<Host<B>>) -> Result<Host<B>> {
        let b = &self.held.decoder().backend;
        let sigma = rounded_up(privacy.noise_multiplier * privacy.clip);
        let noised = sum.map(|mut sum| {
            let mut offset = 0;
            for x in sum.slices(b) {
                if sigma > 0.0 {
                    self.secret.add_noise_at(step, offset, sigma, x);
                }
                offset += x.len() as u64;
            }
            sum
        });
        let opening = if privacy.holds() {
            Opening::release("a clipped sum with Gaussian noise, as charged by the accountants")
        } else {
            Opening::non_private("a sum without noise, or of gradients that are not clipped")
        };
        let mut update = noised.open(&opening);
        let signs = matches!(self.settings.method, Method::DpSignsgd(_));
        // The expected batch size: the realised one is secret, and dividing by it would release it unprotected.
        let scale = 1.0 / self.settings.batch as f32;
        for (i, x) in update.slices(b).into_iter().enumerate() {
            if signs {
                compress::signs(x, self.address(step, i));
            } else {
                x.par_chunks_mut(BLOCK).for_each(|x| x.iter_mut().for_each(|x| *x *= scale));
            }
        }
        Ok(update)
    }

    /// The gradient as it is, or compressed: not private.
    fn release_plain(
        &mut self,
        step: u32,
        gradient: Sensitive<Host<B>>,
        private: Sensitive<Private>,
    ) -> Result<(Host<B>, Sensitive<Private>)> {
        let (mut update, private) =
            gradient.zip(private).open(&Opening::non_private("the mean gradient, as it is or compressed"));
        if let Some(loss) = private.loss.filter(|l| !l.is_finite()) {
            return Err(Error::usage(format!(
                "the loss is {loss} at step {step}: the run has diverged; lower --learning-rate"
            )));
        }
        let address = |i| Address { seed: self.settings.seed, step, tensor: i as u32 };
        let b = &self.held.decoder().backend;
        // An empty batch sends nothing: its gradient is 0, not a set of coins.
        let slices = if private.records > 0 { update.slices(b) } else { Vec::new() };
        for (i, x) in slices.into_iter().enumerate() {
            match (&self.settings.method, &mut self.memory) {
                (Method::Signsgd { variant: Variant::ErrorFeedback }, Some(memory)) => {
                    compress::signs_with_memory(x, &mut memory[i], address(i));
                }
                (Method::Signsgd { .. }, _) => compress::signs(x, address(i)),
                (Method::Qsgd { bits }, _) => compress::quantise(x, *bits, address(i)),
                _ => {}
            }
        }
        Ok((update, Sensitive::new(private)))
    }

    fn apply(&mut self, step: u32, mut update: Host<B>) -> Result<()> {
        let gradients = update.slices(&self.held.decoder().backend);
        let Self { held, adamw, settings, .. } = self;
        held.update(
            |_| true,
            |weights| {
                for (i, (w, g)) in weights.iter_mut().zip(gradients).enumerate() {
                    match adamw {
                        Some(adamw) => adamw.step(step, ParamId(i), w, Gradient::Dense(g)),
                        None => {
                            let rate = settings.schedule.rate(settings.learning_rate, step, settings.steps);
                            direct::step(w, Gradient::Dense(g), rate);
                        }
                    }
                }
                Ok(())
            },
        )
    }

    fn address(&self, step: u32, tensor: usize) -> Address {
        Address { seed: self.settings.seed, step, tensor: tensor as u32 }
    }
}

fn tensors<B: Backend>(sum: Sum<B>) -> Vec<B::Tensor> {
    sum.into_grads().into_iter().map(|g| g.expect("all parameters are trained")).collect()
}

/// Never less noise than was accounted for.
fn rounded_up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}
