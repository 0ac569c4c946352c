//! Training: at every step a sample, its gradient, a release, an update.
//!
//! Gradient, moments and weights stay in the backend's memory: the gradient is one buffer from the sum to the optimizer, and a device
//! gives back nothing of a step but the loss. The secret generator never leaves the host: for a device, noise is drawn on the host and
//! sent over, to be added there before anything is released.

use super::compress::Address;
use super::settings::{Method, Privacy, Settings, Variant};
use super::state::{self, State};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::{Clipping, Norms, Sum};
use crate::method::held::is_host;
use crate::method::tally::{Private, Seen};
use crate::method::{Held, Opening, Samples, Sensitive};
use crate::model::{Decoder, ParamId, Reduction, Weights};
use crate::optim::{Given, Hyper, Silent, Updates};
use crate::rng::Secret;
use std::borrow::Cow;
use std::path::Path;

/// Numbers of noise sent to a device at a time: 64 MiB.
const NOISE_AT_ONCE: usize = 1 << 24;

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
    updates: Updates<B>,
    clipping: Option<Clipping>,
    /// What error feedback remembers.
    memory: Option<Vec<B::Tensor>>,
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

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue.
    pub fn new(backend: B, run: Run<'a>) -> Result<Self> {
        let Run { weights, settings, state, secret, records } = run;
        settings.check()?;
        let clipping = settings.method.privacy().map(|p| p.clipping(&weights.layout)).transpose()?;
        let tensors = weights.layout.len();
        let hyper = Hyper::new(settings.learning_rate, settings.weight_decay);
        let mut updates = settings.route.updates(tensors, settings.steps, hyper, settings.schedule, Silent::Zero);
        let shapes: Vec<(usize, usize)> = weights.layout.specs().iter().map(|s| s.matrix()).collect();
        let send = |i: usize, data: Vec<f32>| backend.upload(shapes[i].0, shapes[i].1, data);
        let remembers = settings.method == Method::Signsgd { variant: Variant::ErrorFeedback };
        let (mut next, mut memory) = (0, None);
        if let Some(State { step, moments, memory: saved }) = state {
            let moments_fit = moments.len() == if updates.has_moments() { tensors } else { 0 };
            if step > settings.steps || !moments_fit || saved.is_some() != remembers {
                return Err(Error::usage("the saved state is not of this run: its step, moments or memory do not fit"));
            }
            for (i, (m, v)) in moments.into_iter().enumerate() {
                updates.restore(ParamId(i), step, (send(i, m)?, send(i, v)?));
            }
            let sent = saved.map(|saved| saved.into_iter().enumerate().map(|(i, e)| send(i, e)).collect());
            (next, memory) = (step, sent.transpose()?);
        } else if remembers {
            memory = Some(shapes.iter().map(|&(rows, cols)| backend.zeros(rows, cols)).collect());
        }
        let held = Held::new(backend, weights)?;
        Ok(Self { held, updates, clipping, memory, settings, next, secret, records })
    }

    /// The number of the next step: how many are over.
    pub fn next_step(&self) -> u32 {
        self.next
    }

    /// The decoder as it stands.
    pub fn decoder(&self) -> &Decoder<B> {
        self.held.decoder()
    }

    /// Save memory by running blocks again in backward; the bits stay the same. See [`Decoder::recompute`].
    pub fn recompute(&mut self, on: bool) {
        self.held.recompute(on);
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
        let (update, scale, private) = match self.settings.method.privacy().cloned() {
            Some(privacy) => {
                let (update, scale) = self.release_noised(step, &privacy, gradient)?;
                (update, scale, private)
            }
            None => {
                let (update, private) = self.release_plain(step, gradient, private)?;
                (update, 1.0, private)
            }
        };
        self.apply(step, &update, scale);
        self.next += 1;
        Ok(Some(Step { step, private }))
    }

    /// Save under `root` what resuming needs: whole or not at all.
    pub fn save(&mut self, root: &Path) -> Result<()> {
        let Self { held, updates, memory, next, .. } = self;
        if *next == 0 {
            return Ok(());
        }
        let layout = held.decoder().layout.clone();
        let (b, params) = held.parts();
        let weights = params.iter_mut().map(|w| on_host(b, b.master(w))).collect::<Result<Vec<_>>>()?;
        let moments = match updates.has_moments() {
            true => {
                updates.all_moments().map(|(m, v)| Ok((on_host(b, m)?, on_host(b, v)?))).collect::<Result<Vec<_>>>()?
            }
            false => Vec::new(),
        };
        let memory = memory.as_mut().map(|memory| memory.iter_mut().map(|e| on_host(b, e)).collect::<Result<Vec<_>>>());
        state::save(root, *next, &layout, &weights, &moments, memory.transpose()?.as_deref())
    }

    /// The weights after the last step.
    pub fn finish(self) -> Result<Weights> {
        let Self { held, updates, memory, next, .. } = self;
        drop((updates, memory));
        let weights = held.into_weights()?;
        weights.check_finite(next)?;
        Ok(weights)
    }

    /// What the batch adds up to before anything is released: the sum of clipped gradients, the mean gradient, or the votes.
    fn gradient(&self, step: u32, sample: &[usize], records: &[Example]) -> Result<(Vec<B::Tensor>, Private)> {
        let decoder = self.held.decoder();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let votes = self.settings.method == Method::Signsgd { variant: Variant::MajorityVote };
        let mut ballot: Option<Vec<B::Tensor>> = votes.then(|| tensors(Sum::new(b, layout, |_| true)));
        let mut sum = Sum::new(b, layout, |_| true);
        let mut seen = Seen::new(b, 0);
        for chunk in sample.chunks(self.settings.micro_batch as usize) {
            let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
            let means = batch.weights(Reduction::SampleSum);
            let losses = if let Some(clipping) = &self.clipping {
                let mut norms = Norms::new(b, layout, batch.segments.len(), |_| true);
                let losses = decoder.backward(&batch, &means, &mut norms);
                let factors = clipping.factors(b, &norms)?;
                norms.clipped_sum(b, &factors, &mut sum);
                losses
            } else {
                let weights: Vec<f32> = means.iter().map(|w| w / sample.len() as f32).collect();
                decoder.backward(&batch, &weights, &mut sum)
            };
            seen.add(b, &batch, Some((&losses, &means)))?;
            if let Some(ballot) = &mut ballot {
                let worker = std::mem::replace(&mut sum, Sum::new(b, layout, |_| true));
                for (i, (x, votes)) in tensors(worker).iter_mut().zip(ballot).enumerate() {
                    b.signs(x, self.address(step, i));
                    b.add(votes, x);
                }
            }
        }
        Ok((ballot.unwrap_or_else(|| tensors(sum)), seen.read(b)?.1))
    }

    /// Noise on the sum, once a logical batch; then signs as post-processing, if the method sends them. The factor that is still to
    /// come comes with it.
    fn release_noised(
        &self,
        step: u32,
        privacy: &Privacy,
        sum: Sensitive<Vec<B::Tensor>>,
    ) -> Result<(Vec<B::Tensor>, f32)> {
        let b = &self.held.decoder().backend;
        let sigma = rounded_up(privacy.noise_multiplier * privacy.clip);
        let noised = sum.map(|mut sum| {
            if sigma > 0.0 {
                self.add_noise(step, sigma, &mut sum)?;
            }
            Ok(sum)
        });
        let opening = if privacy.holds() {
            Opening::release("a clipped sum with Gaussian noise, as charged by the accountants")
        } else {
            Opening::non_private("a sum without noise, or of gradients that are not clipped")
        };
        let mut update = noised.open(&opening)?;
        if matches!(self.settings.method, Method::DpSignsgd(_)) {
            update.iter_mut().enumerate().for_each(|(i, x)| b.signs(x, self.address(step, i)));
            return Ok((update, 1.0));
        }
        // The expected batch size: the realised one is secret, and dividing by it would release it unprotected.
        Ok((update, 1.0 / self.settings.batch as f32))
    }

    /// Add the step's noise: in place in host memory; else drawn there and sent over, some tensors at a time.
    fn add_noise(&self, step: u32, sigma: f32, sum: &mut [B::Tensor]) -> Result<()> {
        let b = &self.held.decoder().backend;
        let len = |x: &B::Tensor| b.shape(x).0 * b.shape(x).1;
        let mut offset = 0;
        if is_host(b) {
            for x in sum.iter_mut().filter_map(|x| b.host_mut(x)) {
                self.secret.add_noise_at(step, offset, sigma, x);
                offset += x.len() as u64;
            }
            return Ok(());
        }
        let mut rest = sum;
        while !rest.is_empty() {
            let mut size = 0;
            let more = |x: &&B::Tensor| {
                size += len(x);
                size <= NOISE_AT_ONCE
            };
            let count = rest.iter().take_while(more).count().max(1);
            let (now, later) = rest.split_at_mut(count);
            let send = |x: &B::Tensor| {
                let mut noise = vec![0.0; len(x)];
                self.secret.add_noise_at(step, offset, sigma, &mut noise);
                offset += noise.len() as u64;
                b.upload(b.shape(x).0, b.shape(x).1, noise)
            };
            let noise = now.iter().map(send).collect::<Result<Vec<_>>>()?;
            now.iter_mut().zip(&noise).for_each(|(x, noise)| b.add(x, noise));
            rest = later;
        }
        Ok(())
    }

    /// The gradient as it is, or compressed: not private.
    fn release_plain(
        &mut self,
        step: u32,
        gradient: Sensitive<Vec<B::Tensor>>,
        private: Sensitive<Private>,
    ) -> Result<(Vec<B::Tensor>, Sensitive<Private>)> {
        let (mut update, private) =
            gradient.zip(private).open(&Opening::non_private("the mean gradient, as it is or compressed"));
        if let Some(loss) = private.loss.filter(|l| !l.is_finite()) {
            return Err(Error::Diverged(format!(
                "the loss is {loss} at step {step}: the run has diverged; lower `learning_rate`"
            )));
        }
        let address = |i| Address { seed: self.settings.seed, step, tensor: i as u32 };
        let b = &self.held.decoder().backend;
        // An empty batch sends nothing: its gradient is 0, not a set of coins.
        let tensors = if private.records > 0 { &mut update[..] } else { &mut [] };
        for (i, x) in tensors.iter_mut().enumerate() {
            match (&self.settings.method, &mut self.memory) {
                (Method::Signsgd { variant: Variant::ErrorFeedback }, Some(memory)) => {
                    b.signs_with_memory(x, &mut memory[i], address(i));
                }
                (Method::Signsgd { .. }, _) => b.signs(x, address(i)),
                (Method::Qsgd { bits }, _) => b.quantise(x, *bits, address(i)),
                _ => {}
            }
        }
        Ok((update, Sensitive::new(private)))
    }

    /// Take the step along `scale * update`.
    fn apply(&mut self, step: u32, update: &[B::Tensor], scale: f32) {
        let (b, params) = self.held.parts();
        for (i, (w, tensor)) in params.iter_mut().zip(update).enumerate() {
            self.updates.step(b, step, ParamId(i), w, Given::Dense { tensor, scale });
        }
    }

    fn address(&self, step: u32, tensor: usize) -> Address {
        Address { seed: self.settings.seed, step, tensor: tensor as u32 }
    }
}

/// The content in host memory: borrowed where it lies there.
fn on_host<'a, B: Backend>(b: &B, x: &'a mut B::Tensor) -> Result<Cow<'a, [f32]>> {
    if is_host(b) {
        return Ok(Cow::Borrowed(b.host_mut(x).expect("host memory, as was just asked")));
    }
    b.download(x).map(Cow::Owned)
}

fn tensors<B: Backend>(sum: Sum<B>) -> Vec<B::Tensor> {
    sum.into_grads().into_iter().map(|g| g.expect("all parameters are trained")).collect()
}

/// Never less noise than was accounted for.
fn rounded_up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}
