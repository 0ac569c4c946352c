//! Training: at every step a sample, its gradient, a release, an update.
//!
//! Gradient, moments and weights stay in the backend's memory: the gradient is one buffer from the sum to the optimizer, and a device
//! gives back nothing of a step but the loss. The secret generator never leaves the host: for a device, noise is drawn on the host and
//! sent over, to be added there before anything is released.

use super::compress::Address;
use super::settings::{Method, Privacy, Record, Settings, Variant};
use super::state::{self, State};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::grad::{Clipping, Norms, Scaled, Sum};
use crate::kernel::{Scalars, Stored};
use crate::method::crew::Crew;
use crate::method::list;
use crate::method::run::{Conclusion, Run, Step, Task};
use crate::method::tally::Private;
use crate::method::{Opening, Sensitive};
use crate::model::{Decoder, ParamId, Reduction, Weights, checkpoint};
use crate::optim::{Gradient, Silent, Updates};
use crate::rng::Secret;
use std::borrow::Cow;
use std::path::Path;

/// A run in progress.
pub struct Trainer<'a, B: Backend> {
    decoder: Decoder<B>,
    updates: Updates<B>,
    clipping: Option<Clipping>,
    /// The parameters that are tuned, in order; updates, moments and residues have one tensor for each.
    tuned: Vec<ParamId>,
    /// What signs left out so far, for error feedback.
    residue: Option<Vec<B::Tensor>>,
    /// s of every tensor, where there are any.
    scales: Option<Vec<f32>>,
    settings: Settings,
    /// Steps that are made of those planned.
    stop: u32,
    next: u32,
    base_sha256: String,
    secret: &'a Secret,
    records: Sensitive<&'a [Example]>,
    crew: Crew,
}

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue where an earlier part of the same run stopped; the task's weights are then those of [`State::load`].
    pub fn new(backend: B, task: Task<'a, Settings, impl Scalars>, state: Option<State>) -> Result<Self> {
        let Task { base: weights, base_sha256, settings, stop, secret, records } = task;
        secret.claim()?;
        settings.check()?;
        let tuned = settings.tune.ids(&weights.layout)?;
        let clipping = settings.method.privacy().map(|p| p.clipping(&weights.layout, &tuned)).transpose()?;
        let scales = settings.scales.as_ref().map(|s| s.by_tensor(weights.layout.len(), &tuned)).transpose()?;
        let mut updates: Updates<B> = settings.common().updates(weights.layout.len(), Silent::Zero);
        let shapes: Vec<(usize, usize)> = tuned.iter().map(|&p| weights.layout.spec(p).matrix()).collect();
        let send = |i: usize, data: Vec<f32>| backend.upload(shapes[i].0, shapes[i].1, data);
        let remembers = settings.method == Method::Signsgd { variant: Variant::ErrorFeedback };
        let (mut next, mut residue) = (0, None);
        if let Some(State { step, moments, residue: saved }) = state {
            let moments_fit = moments.len() == if updates.has_moments() { tuned.len() } else { 0 };
            if step > settings.steps() || !moments_fit || saved.is_some() != remembers {
                return Err(Error::usage(
                    "the saved state is not of this run: its step, moments or residue do not fit",
                ));
            }
            for (i, (m, v)) in moments.into_iter().enumerate() {
                updates.restore(tuned[i], step, (send(i, m)?, send(i, v)?));
            }
            let sent = saved.map(|saved| saved.into_iter().enumerate().map(|(i, e)| send(i, e)).collect());
            (next, residue) = (step, sent.transpose()?);
        } else if remembers {
            residue = Some(shapes.iter().map(|&(rows, cols)| backend.zeros(rows, cols)).collect());
        }
        let stop = stop.unwrap_or(u32::MAX).min(settings.steps());
        let decoder = Decoder::new(backend, weights)?;
        let crew = Crew::default();
        Ok(Self {
            decoder,
            updates,
            clipping,
            tuned,
            residue,
            scales,
            settings,
            stop,
            next,
            base_sha256,
            secret,
            records,
            crew,
        })
    }

    /// [`Run::finish`] with the weights in f32, and the record as such.
    pub fn end(self) -> Result<(Weights, Record, B)> {
        let (weights, record, backend) = self.conclude()?;
        Ok((weights.into_form(), record, backend))
    }

    fn conclude(self) -> Result<(Weights<Stored>, Record, B)> {
        let Self { decoder, updates, residue, settings, next, base_sha256, .. } = self;
        drop((updates, residue));
        let (weights, backend) = decoder.into_weights()?;
        weights.check_finite(next)?;
        let tuned_sha256 = checkpoint::tensors_sha256(&weights);
        let record =
            Record { version: Record::version(&settings), settings, steps_run: next, base_sha256, tuned_sha256 };
        Ok((weights, record, backend))
    }

    /// What the batch adds up to before anything is released: the sum of clipped gradients, the mean gradient, or the votes.
    fn gradient(&self, step: u32, sample: &[usize], records: &[Example]) -> Result<(Vec<B::Tensor>, Private)> {
        let decoder = &self.decoder;
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let wants = |p: ParamId| self.tuned.binary_search(&p).is_ok();
        let votes = self.settings.method == Method::Signsgd { variant: Variant::MajorityVote };
        let mut ballot: Option<Vec<B::Tensor>> = votes.then(|| tensors(Sum::new(b, layout, wants)));
        let mut sum = Sum::new(b, layout, wants);
        // What the mean is over; clipped sums are divided by the expected size, and nobody needs to know this one.
        let size = if self.clipping.is_none() { self.crew.batch_size(sample.len())? } else { 0 };
        let private = self.crew.batch(b, (sample, records), self.settings.micro_batch, |batch, seen| {
            let means = batch.weights(Reduction::SampleSum);
            let losses = if let Some(clipping) = &self.clipping {
                let mut norms = Norms::new(b, layout, batch.segments.len(), wants);
                let losses = decoder.backward(batch, &means, &mut Scaled::new(&mut norms, self.scales.as_deref()));
                let factors = clipping.factors(b, &norms)?;
                norms.clipped_sum(b, &factors, &mut sum);
                losses
            } else {
                let weights: Vec<f32> = means.iter().map(|w| w / size as f32).collect();
                decoder.backward(batch, &weights, &mut sum)
            };
            if let Some(ballot) = &mut ballot {
                let worker = std::mem::replace(&mut sum, Sum::new(b, layout, wants));
                for (i, (x, votes)) in tensors(worker).iter_mut().zip(ballot).enumerate() {
                    b.signs(x, self.address(step, i));
                    b.add(votes, x);
                }
            }
            seen.add(b, batch, Some((&losses, &means)))
        })?;
        let mut sums = ballot.unwrap_or_else(|| tensors(sum));
        self.crew.sum(b, sums.iter_mut())?;
        Ok((sums, private))
    }

    /// Noise on the sum, once a logical batch; then signs as post-processing, if the method sends them. The factor that is still to
    /// come comes with it.
    fn release_noised(
        &self,
        step: u32,
        privacy: &Privacy,
        sum: Sensitive<Vec<B::Tensor>>,
    ) -> Result<(Vec<B::Tensor>, f32)> {
        let b = &self.decoder.backend;
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

    /// Add the step's noise: in place in host memory; else drawn there, sent over and added.
    fn add_noise(&self, step: u32, sigma: f32, sum: &mut [B::Tensor]) -> Result<()> {
        let b = &self.decoder.backend;
        let mut offset = 0;
        for x in sum {
            let (rows, cols) = b.shape(x);
            match b.host_mut(x) {
                Some(x) => self.secret.add_noise_at(step, offset, sigma, x),
                None => {
                    let mut noise = vec![0.0; rows * cols];
                    self.secret.add_noise_at(step, offset, sigma, &mut noise);
                    b.add(x, &b.upload(rows, cols, noise)?);
                }
            }
            offset += (rows * cols) as u64;
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
        let (seed, tuned) = (self.settings.seed, &self.tuned);
        let address = |i: usize| Address { seed, step, tensor: tuned[i].0 as u32 };
        let b = &self.decoder.backend;
        // An empty batch sends nothing: its gradient is 0, not a set of coins.
        let tensors = if private.records > 0 { &mut update[..] } else { &mut [] };
        for (i, x) in tensors.iter_mut().enumerate() {
            match (&self.settings.method, &mut self.residue) {
                (Method::Signsgd { variant: Variant::ErrorFeedback }, Some(residue)) => {
                    b.signs_with_residue(x, &mut residue[i], address(i));
                }
                (Method::Signsgd { .. }, _) => b.signs(x, address(i)),
                (Method::Qsgd { bits }, _) => b.quantise(x, *bits, address(i)),
                _ => {}
            }
        }
        Ok((update, Sensitive::new(private)))
    }

    /// Where the public coins of tuned tensor `i` lie.
    fn address(&self, step: u32, i: usize) -> Address {
        Address { seed: self.settings.seed, step, tensor: self.tuned[i].0 as u32 }
    }
}

impl<B: Backend> Run<B> for Trainer<'_, B> {
    fn next(&self) -> Option<u32> {
        (self.next < self.stop).then_some(self.next)
    }

    fn progress(&self) -> (u64, u64) {
        (self.next.into(), self.stop.into())
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let sample = self.crew.samples(&self.settings.common(), self.secret)?.draw(step, 0);
        let work = sample.zip(self.records.as_ref()).map(|(sample, records)| self.gradient(step, &sample, records));
        let (gradient, private) = work.or_failed()?.unzip();
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
        let Decoder { backend, params, .. } = &mut self.decoder;
        for (&p, tensor) in self.tuned.iter().zip(&update) {
            let scale = self.scales.as_ref().map_or(scale, |s| scale * s[p.0]);
            self.updates.step(backend, step, p, &mut params[p.0], Gradient::Whole { tensor, scale });
        }
        self.next += 1;
        Ok(Some(Step { step, groups: Vec::new(), private }))
    }

    fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    fn recompute(&mut self, on: bool) {
        self.decoder.recompute = on;
    }

    fn over(&mut self, crew: Crew) {
        self.crew = crew;
    }

    fn save(&mut self, root: &Path) -> Result<()> {
        let Self { decoder: Decoder { backend: b, params, layout, .. }, updates, tuned, residue, next, .. } = self;
        if *next == 0 {
            return Ok(());
        }
        let own = params.iter_mut().enumerate().filter(|(i, _)| tuned.binary_search(&ParamId(*i)).is_ok());
        let weights = own.map(|(_, w)| on_host(b, b.master(w))).collect::<Result<Vec<_>>>()?;
        let moments = match updates.has_moments() {
            true => {
                updates.all_moments().map(|(m, v)| Ok((on_host(b, m)?, on_host(b, v)?))).collect::<Result<Vec<_>>>()?
            }
            false => Vec::new(),
        };
        let residue =
            residue.as_mut().map(|residue| residue.iter_mut().map(|e| on_host(b, e)).collect::<Result<Vec<_>>>());
        state::save(root, *next, layout, tuned, &weights, &moments, residue.transpose()?.as_deref())
    }

    fn finish(self: Box<Self>) -> Result<Conclusion<B>> {
        let (weights, record, backend) = self.conclude()?;
        Ok(Conclusion { weights, record: list::Record::Dense(record), backend })
    }
}

/// The content in host memory: borrowed where it lies there.
fn on_host<'a, B: Backend>(b: &B, x: &'a mut B::Tensor) -> Result<Cow<'a, [f32]>> {
    match b.host_mut(x).is_some() {
        true => Ok(Cow::Borrowed(b.host_mut(x).expect("host memory, as was just asked"))),
        false => b.download(x).map(Cow::Owned),
    }
}

/// The gradients of the tuned parameters, in order.
fn tensors<B: Backend>(sum: Sum<B>) -> Vec<B::Tensor> {
    sum.into_grads().into_iter().flatten().collect()
}

/// Never less noise than was accounted for.
fn rounded_up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}
