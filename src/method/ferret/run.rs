//! Training: for every step in which a group fires, one inner product a fired group, one release, one update.
//!
//! The plan comes first and touches no data: silent steps cost nothing but AdamW's idle arithmetic. A fired step runs forward once
//! and backward down to the lowest fired block.
//!
//! On the CPU the weights are those of replay at every step. On a device they are updated there (`device.rs`): what comes back
//! from it in a step is one number a fired group, and the loss.

use super::device::Device;
use super::replay::{Released, Replayer};
use super::settings::{BatchPer, Engine, Payload, Release, Route, Settings};
use super::transcript::{Releases, Transcript, on_grid};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::grad::{GroupDirection, GroupDot, Sum};
use crate::method::held::is_host;
use crate::method::tally::Seen;
use crate::method::{Held, Opening, Samples, Sensitive};
use crate::model::{Batch, Decoder, ParamId, Reduction, Weights};
use crate::optim::Silent;
use crate::rng::{DirectionStream, Secret, SecretDomain, coin};

pub use crate::method::tally::Private;

/// What a run is made of.
pub struct Run<'a> {
    /// The model it begins at.
    pub base: Weights,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// What it is told.
    pub settings: Settings,
    /// The releases of an earlier part of the same run, to continue after.
    pub releases: Option<Releases>,
    /// The generator of samples, flips and noise.
    pub secret: &'a Secret,
    /// What it learns from.
    pub records: Sensitive<&'a [Example]>,
    /// Records computed on at once.
    pub micro_batch: usize,
}

/// A run in progress.
pub struct Trainer<'a, B: Backend> {
    held: Held<B>,
    replayer: Replayer,
    /// None where the weights lie in host memory and the replayer updates them.
    device: Option<Device<B>>,
    settings: Settings,
    /// The fires of the whole run, in order, and how many of them are over.
    fires: Vec<(u32, u32)>,
    done: usize,
    releases: Releases,
    base_sha256: String,
    secret: &'a Secret,
    records: Sensitive<&'a [Example]>,
    micro_batch: usize,
}

/// What a computed step may tell.
pub struct Step {
    /// Which step.
    pub step: u32,
    /// The groups that fired: public.
    pub groups: Vec<u32>,
    /// What the step's batch gave away besides the release; for logs that say so.
    pub private: Sensitive<Private>,
}

/// Records, and the fired groups that see them.
type Sample = (Sensitive<Vec<usize>>, Vec<u32>);

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue.
    pub fn new(backend: B, run: Run<'a>) -> Result<Self> {
        let Run { base, base_sha256, settings, releases, secret, records, micro_batch } = run;
        settings.check()?;
        if micro_batch == 0 {
            return Err(Error::usage("`micro_batch` 0 would never finish a batch: give at least 1"));
        }
        let mut replayer = Replayer::new(&base.layout, &settings)?;
        let fires = settings.fires(settings.steps);
        let releases = releases.unwrap_or(match settings.release {
            Release::Gaussian { .. } => Releases::Scalars(Vec::new()),
            _ => Releases::Bits(Vec::new()),
        });
        let done = releases.len();
        if done > fires.len() || (done > 0 && done < fires.len() && fires[done - 1].0 == fires[done].0) {
            return Err(Error::usage("the saved releases end in the middle of a step: they are not of this run"));
        }
        let mut device = (!is_host(&backend)).then(|| Device::new(base.clone(), &settings));
        let mut held = Held::new(backend, base)?;
        match &mut device {
            Some(device) => device.resume(&mut held, &replayer, &fires[..done], &releases)?,
            None => held.update(|_| true, |weights| replayer.apply(&fires[..done], &releases, weights, |_| ()))?,
        }
        Ok(Self { held, replayer, device, settings, fires, done, releases, base_sha256, secret, records, micro_batch })
    }

    /// The step that will be computed next; none when all fires are over.
    pub fn next_fire(&self) -> Option<u32> {
        self.fires.get(self.done).map(|f| f.0)
    }

    /// All fires of the run and how many are over.
    pub fn progress(&self) -> (usize, usize) {
        (self.done, self.fires.len())
    }

    /// What has been released.
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// Compute the next step in which a group fires, release and update; none when there is none.
    pub fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next_fire() else { return Ok(None) };
        let groups: Vec<u32> = self.fires[self.done..].iter().take_while(|f| f.0 == step).map(|f| f.1).collect();
        let Self { held, replayer, device, .. } = self;
        match device {
            Some(device) => device.catch_up_all(held, step),
            None => held.update(
                |_| true,
                |weights| {
                    replayer.catch_up_all(step, weights);
                    Ok(())
                },
            )?,
        }
        let private = match self.settings.payload {
            Payload::Sign => self.release_signs(step, &groups)?,
            Payload::TrueGradient => self.release_gradients(step, &groups)?,
        };
        self.done += groups.len();
        Ok(Some(Step { step, groups, private }))
    }

    /// The end after `steps_run` steps: idle steps are made up for, and the transcript names the result.
    pub fn finish(self, steps_run: u32) -> Result<(Weights, Transcript)> {
        let Self { mut held, replayer, device, settings, fires, done, releases, base_sha256, .. } = self;
        let weights = match device {
            Some(device) if settings.payload == Payload::Sign => {
                drop(held);
                device.replay(&settings, &fires[..done], &releases, steps_run)?
            }
            Some(mut device) => {
                device.catch_up_all(&mut held, steps_run.min(settings.steps));
                held.into_weights()?
            }
            None => {
                held.update(
                    |_| true,
                    |weights| {
                        replayer.finish(steps_run, weights);
                        Ok(())
                    },
                )?;
                held.into_weights()?
            }
        };
        weights.check_finite(steps_run)?;
        let tuned_sha256 = Some(crate::model::checkpoint::tensors_sha256(&weights));
        Ok((weights, Transcript { base_sha256, tuned_sha256, settings, steps_run, releases }))
    }

    /// The transcript so far, for resuming.
    pub fn so_far(&self) -> Transcript {
        Transcript {
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: None,
            settings: self.settings.clone(),
            steps_run: if self.done == 0 { 0 } else { self.fires[self.done - 1].0 + 1 },
            releases: self.releases.clone(),
        }
    }

    /// The decoder as of the last computed step; idle steps since then are not in it.
    pub fn decoder(&self) -> &Decoder<B> {
        self.held.decoder()
    }

    /// Save memory by running blocks again in backward; the bits stay the same. See [`Decoder::recompute`].
    pub fn recompute(&mut self, on: bool) {
        self.held.recompute(on);
    }

    /// The samples of a step: each a list of records and the fired groups that see it.
    fn samples(&self, step: u32, groups: &[u32]) -> Result<Vec<Sample>> {
        let Settings { sampler, records, batch, batch_per, .. } = self.settings;
        let samples = Samples::new(self.secret, sampler, records as usize, batch as usize)?;
        Ok(match batch_per {
            BatchPer::Step => vec![(samples.draw(step, 0), groups.to_vec())],
            BatchPer::Bit => groups.iter().map(|&g| (samples.draw(step, g), vec![g])).collect(),
        })
    }

    fn release_signs(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let mut private = Sensitive::new(Private { records: 0, tokens: 0, loss: None });
        let mut released: Vec<(u32, Released)> = Vec::with_capacity(groups.len());
        let directions: Vec<DirectionStream> = groups.iter().map(|&g| self.replayer.direction(step, g)).collect();
        for (sample, own) in self.samples(step, groups)? {
            let streams = groups.iter().zip(&directions).filter(|(g, _)| own.contains(g)).map(|(_, d)| d.clone());
            let (dots, seen) = self.shares(sample, &own, streams)?;
            let groups = own;
            let signs = dots.map(|dots| {
                groups.iter().zip(dots).map(|(&g, dot)| (g, self.release(step, g, dot))).collect::<Vec<_>>()
            });
            // The one place where a gradient's sign leaves: at most ln 2 nats a fire.
            released.extend(signs.open(&Opening::release("one sign of <gradient, u> a fired group")));
            private = private.zip(seen).map(|(a, b)| a.join(b));
        }
        released.sort_by_key(|r| r.0);
        self.record(&released);
        match &mut self.device {
            Some(device) => device.apply(&mut self.held, &self.replayer, step, &released, &directions)?,
            None => self.apply(step, groups, &released)?,
        }
        Ok(private)
    }

    /// From an inner product to what is released. Ties (exactly zero, not a number, infinite, an empty batch) take the public coin.
    fn release(&self, step: u32, group: u32, dot: f64) -> Released<'static> {
        let sign = sign_or_coin(dot, coin(self.settings.seed, step, group));
        match self.settings.release {
            Release::Bit => Released::Bit(sign),
            Release::Rr { flip, .. } => {
                let flipped = self.secret.stream(SecretDomain::Flips, step, group).bernoulli(flip);
                Released::Bit(if flipped { -sign } else { sign })
            }
            Release::Gaussian { dither } => {
                let noise = self.secret.stream(SecretDomain::Noise, step, group).gaussian();
                Released::Scalar(on_grid(f64::from(sign) + dither * noise, self.settings.clip))
            }
        }
    }

    fn record(&mut self, released: &[(u32, Released)]) {
        for (_, release) in released {
            match (release, &mut self.releases) {
                (Released::Bit(b), Releases::Bits(bits)) => bits.push(*b),
                (Released::Scalar(x), Releases::Scalars(scalars)) => scalars.push(*x),
                _ => unreachable!("releases are of the kind the settings name"),
            }
        }
    }

    fn apply(&mut self, step: u32, groups: &[u32], released: &[(u32, Released)]) -> Result<()> {
        let Self { held, replayer, settings, .. } = self;
        let members: Vec<ParamId> = groups.iter().flat_map(|&g| replayer.members(g).to_vec()).collect();
        let idle_moves = settings.route == Route::Adamw && settings.silent == Silent::Zero;
        held.update(|p| idle_moves || members.contains(&p), |weights| replayer.step(step, released, weights))
    }

    /// `<gradient of the sample, u>` for each of `groups`, by the engine that the settings name.
    fn shares(
        &self,
        sample: Sensitive<Vec<usize>>,
        groups: &[u32],
        streams: impl Iterator<Item = DirectionStream>,
    ) -> Result<(Sensitive<Vec<f64>>, Sensitive<Private>)> {
        let decoder = self.held.decoder();
        let directions: Vec<GroupDirection> = groups
            .iter()
            .zip(streams)
            .map(|(&g, stream)| GroupDirection::new(stream, self.replayer.members(g), &decoder.layout))
            .collect();
        let work = sample.zip(self.records.as_ref()).map(|(sample, records)| -> Result<(Vec<f64>, Private)> {
            let mut seen = Seen::new(&decoder.backend, groups.len());
            for chunk in sample.chunks(self.micro_batch) {
                let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
                project(&mut seen, decoder, &batch, &directions, self.settings.engine)?;
            }
            seen.read(&decoder.backend)
        });
        // Failing is public; it depends on the machine (a lost device), and on the data only where a device runs out of memory.
        let (dots, private) = work.open(&Opening::release("whether the computation succeeded"))?;
        Ok((Sensitive::new(dots), Sensitive::new(private)))
    }

    /// The ablation: true gradients of the fired groups, divided by the expected batch size. Not private.
    fn release_gradients(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let opening = Opening::non_private("the true gradient of every fired group");
        let mut total = Private { records: 0, tokens: 0, loss: None };
        let mut gradients: Vec<(u32, Vec<B::Tensor>)> = Vec::new();
        for (sample, groups) in self.samples(step, groups)? {
            let (sample, records) = sample.zip(self.records.as_ref()).open(&opening);
            let decoder = self.held.decoder();
            let b = &decoder.backend;
            let members = |g: u32| self.replayer.members(g);
            let mut sum = Sum::new(b, &decoder.layout, |p| groups.iter().any(|&g| members(g).contains(&p)));
            let mut seen = Seen::new(b, 0);
            for chunk in sample.chunks(self.micro_batch) {
                let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
                let means = batch.weights(Reduction::SampleSum);
                let weights: Vec<f32> = means.iter().map(|w| w / self.settings.batch as f32).collect();
                seen.add(b, &batch, Some((&decoder.backward(&batch, &weights, &mut sum), &means)))?;
            }
            total = total.join(seen.read(b)?.1);
            let mut sums = sum.into_grads();
            for &g in &groups {
                let own = members(g).iter().map(|p| sums[p.0].take().expect("asked for, and in one group")).collect();
                gradients.push((g, own));
            }
        }
        gradients.sort_by_key(|g| g.0);
        match &mut self.device {
            Some(device) => device.apply_gradients(&mut self.held, &self.replayer, step, &gradients),
            None => {
                let b = &self.held.decoder().backend;
                let read = |g: &Vec<B::Tensor>| g.iter().map(|t| b.download(t)).collect::<Result<Vec<_>>>();
                let read = gradients.iter().map(|(g, own)| Ok((*g, read(own)?))).collect::<Result<Vec<_>>>()?;
                let released: Vec<(u32, Released)> = read.iter().map(|(g, v)| (*g, Released::Gradient(v))).collect();
                self.apply(step, groups, &released)?;
            }
        }
        Ok(Sensitive::new(total))
    }
}

/// The sign of `dot`, or the public `coin` where it has none.
pub fn sign_or_coin(dot: f64, coin: i8) -> i8 {
    match dot {
        d if d > 0.0 && d.is_finite() => 1,
        d if d < 0.0 && d.is_finite() => -1,
        _ => coin,
    }
}

/// Add a micro-batch's `<gradient, u>` for every direction.
fn project<B: Backend>(
    seen: &mut Seen<B>,
    decoder: &Decoder<B>,
    batch: &Batch,
    directions: &[GroupDirection],
    engine: Engine,
) -> Result<()> {
    let b = &decoder.backend;
    let weights = batch.weights(Reduction::SampleSum);
    match engine {
        Engine::Backward => {
            let mut sink = GroupDot::new(b, directions, &batch.segments);
            let losses = decoder.backward(batch, &weights, &mut sink);
            for (i, rows) in sink.into_rows().iter().enumerate() {
                seen.add_dot(b, i, rows, None)?;
            }
            seen.add(b, batch, Some((&losses, &weights)))
        }
        Engine::Jvp => {
            for (i, direction) in directions.iter().enumerate() {
                seen.add_dot(b, i, &decoder.jvp(batch, direction), Some(&weights))?;
            }
            seen.add(b, batch, None)
        }
    }
}
