//! Training: for every step in which a group fires, one inner product a fired group, one release, one update.
//!
//! The plan comes first and touches no data: silent steps cost nothing but AdamW's idle arithmetic. A fired step runs forward once
//! and backward down to the lowest fired block.
//!
//! Weights are updated where they lie, by the replayer. In host memory they are those of replay at every step. What a device holds
//! follows the same arithmetic up to how it rounds, and serves to compute the next bits: what is published is then replayed from the
//! base model on the CPU, when the run ends. All that comes back from a device in a step is one number a fired group, and the loss.

use super::plan::Released;
use super::replay::{Replayer, follow};
use super::settings::{BatchPer, Engine, Payload, Release, Settings};
use super::transcript::{FILE, Releases, Transcript, on_grid};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::grad::{GroupDirection, GroupDot, Sum};
use crate::kernel::{Scalars, Stored};
use crate::method::crew::{Crew, Totals};
use crate::method::list::Record;
use crate::method::run::{Finished, Run, Step, Task};
use crate::method::tally::{Private, Sums, is_host};
use crate::method::{Opening, Sensitive, state};
use crate::model::{Batch, Decoder, Reduction, Weights, checkpoint};
use crate::rng::{DirectionStream, Secret, SecretDomain, coin};
use std::path::Path;

/// A run in progress.
pub struct Trainer<'a, B: Backend> {
    decoder: Decoder<B>,
    replayer: Replayer<B>,
    /// What the published weights are replayed from; none where those of the decoder are already.
    base: Option<Weights<Stored>>,
    settings: Settings,
    /// Steps that are made of those planned.
    stop: u32,
    /// The fires of the whole run, in order, and how many of them are over.
    fires: Vec<(u32, u32)>,
    done: usize,
    /// The same, counted by step.
    computed: (u64, u64),
    releases: Releases,
    base_sha256: String,
    secret: &'a Secret,
    records: Sensitive<&'a [Example]>,
    crew: Crew,
}

/// Records, and the fired groups that see them.
type Sample = (Sensitive<Vec<usize>>, Vec<u32>);

/// A sample's inner product for each group that sees it, and the rest.
type Shares = (Sensitive<Vec<f64>>, Sensitive<Private>);

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue after the `releases` of an earlier part of the same run.
    pub fn new(backend: B, task: Task<'a, Settings, impl Scalars>, releases: Option<Releases>) -> Result<Self> {
        let Task { base, base_sha256, settings, stop, secret, records } = task;
        secret.claim()?;
        let mut replayer = Replayer::new(&base.layout, &settings)?;
        let stop = stop.unwrap_or(u32::MAX).min(settings.steps());
        let fires = replayer.plan().fires(stop);
        let releases = releases.unwrap_or(match settings.release {
            Release::Gaussian { .. } => Releases::Scalars(Vec::new()),
            _ => Releases::Bits(Vec::new()),
        });
        let done = releases.len();
        if done > fires.len() || (done > 0 && done < fires.len() && fires[done - 1].0 == fires[done].0) {
            return Err(Error::usage("the saved releases end in the middle of a step: they are not of this run"));
        }
        let base = base.into_stored();
        let exact = is_host(&backend) || settings.payload == Payload::TrueGradient;
        let kept = (!exact).then(|| base.clone());
        let mut decoder = Decoder::new(backend, base)?;
        replayer.apply(&decoder.backend, &fires[..done], &releases, &mut decoder.params, |_| ())?;
        let steps = |fires: &[(u32, u32)]| fires.chunk_by(|a, b| a.0 == b.0).count() as u64;
        Ok(Self {
            decoder,
            replayer,
            base: kept,
            settings,
            stop,
            computed: (steps(&fires[..done]), steps(&fires)),
            fires,
            done,
            releases,
            base_sha256,
            secret,
            records,
            crew: Crew::default(),
        })
    }

    /// What has been released.
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// The transcript so far, for resuming.
    fn so_far(&self) -> Transcript {
        Transcript {
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: None,
            settings: self.settings.clone(),
            steps_run: if self.done == 0 { 0 } else { self.fires[self.done - 1].0 + 1 },
            releases: self.releases.clone(),
        }
    }

    /// The releases of the unfinished run that [`Run::save`] left in `root`; none where there are none.
    pub fn saved(root: &Path, task: &Task<'_, Settings, impl Scalars>) -> Result<Option<Releases>> {
        let Some((_, path)) = state::current(root)? else { return Ok(None) };
        let so_far = Transcript::from_json(&crate::fsio::read_text(&path)?, &path)?;
        if so_far.base_sha256 != task.base_sha256 || so_far.settings != task.settings {
            return Err(Error::file(path, "is not of the run that it lies beside"));
        }
        Ok(Some(so_far.releases))
    }

    /// [`Run::finish`] with the weights in f32, and the transcript as such.
    pub fn end(self) -> Result<(Weights, Transcript, B)> {
        let (weights, transcript, backend) = self.conclude()?;
        Ok((weights.into_form(), transcript, backend))
    }

    fn conclude(self) -> Result<(Weights<Stored>, Transcript, B)> {
        let Self { mut decoder, mut replayer, base, settings, stop, fires, done, releases, base_sha256, .. } = self;
        let (weights, backend) = match base {
            Some(base) => {
                let Decoder { backend, params, .. } = decoder;
                drop((params, replayer));
                (follow(base, &settings, &fires[..done], &releases, stop, |_| ())?, backend)
            }
            None => {
                replayer.catch_up(&decoder.backend, stop, &mut decoder.params);
                decoder.into_weights()?
            }
        };
        weights.check_finite(stop)?;
        let tuned_sha256 = Some(checkpoint::tensors_sha256(&weights));
        Ok((weights, Transcript { base_sha256, tuned_sha256, settings, steps_run: stop, releases }, backend))
    }

    /// The samples of a step: each a list of records and the fired groups that see it.
    fn samples(&self, step: u32, groups: &[u32]) -> Result<Vec<Sample>> {
        let samples = self.crew.samples(&self.settings.common(), self.secret)?;
        Ok(match self.settings.batch_per {
            BatchPer::Step => vec![(samples.draw(step, 0), groups.to_vec())],
            BatchPer::Bit => groups.iter().map(|&g| (samples.draw(step, g), vec![g])).collect(),
        })
    }

    fn release_signs(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let mut private = Sensitive::new(Private { records: 0, tokens: 0, loss: None });
        let mut released: Vec<(u32, Released)> = Vec::with_capacity(groups.len());
        let directions: Vec<DirectionStream> =
            groups.iter().map(|&g| self.replayer.plan().direction(step, g)).collect();
        let (samples, owns): (Vec<_>, Vec<_>) = self.samples(step, groups)?.into_iter().unzip();
        let streams = |own: &[u32]| -> Vec<DirectionStream> {
            groups.iter().zip(&directions).filter(|(g, _)| own.contains(g)).map(|(_, d)| d.clone()).collect()
        };
        for ((dots, seen), groups) in self.shares(samples, &owns, streams)?.into_iter().zip(&owns) {
            let signs = dots.map(|dots| {
                groups.iter().zip(dots).map(|(&g, dot)| (g, self.release(step, g, dot))).collect::<Vec<_>>()
            });
            // The one place where a gradient's sign leaves: at most ln 2 nats a fire.
            released.extend(signs.open(&Opening::release("one sign of <gradient, u> a fired group")));
            private = private.zip(seen).map(|(a, b)| a.join(b));
        }
        released.sort_by_key(|r| r.0);
        self.record(&released);
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.step(backend, step, &released, &directions, params)?;
        Ok(private)
    }

    /// From an inner product to what is released. Ties (exactly zero, not a number, infinite, an empty batch) take the public coin.
    fn release(&self, step: u32, group: u32, dot: f64) -> Released {
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

    /// `<gradient of the sample, u>` of each sample for each of its `groups`, by the engine that the settings name.
    fn shares(
        &self,
        samples: Vec<Sensitive<Vec<usize>>>,
        groups: &[Vec<u32>],
        streams: impl Fn(&[u32]) -> Vec<DirectionStream>,
    ) -> Result<Vec<Shares>> {
        let (decoder, plan) = (&self.decoder, self.replayer.plan());
        let b = &decoder.backend;
        let samples = samples.into_iter().fold(Sensitive::new(Vec::new()), |all, sample| {
            all.zip(sample).map(|(mut all, sample)| {
                all.push(sample);
                all
            })
        });
        let work = samples.zip(self.records.as_ref()).map(|(samples, records)| -> Result<Vec<(Vec<f64>, Private)>> {
            let mut totals = Totals::new(&self.crew);
            for (sample, groups) in samples.iter().zip(groups) {
                // Directions are as large as what they belong to: made only by whoever has work for them.
                let mut directions: Option<Vec<GroupDirection>> = None;
                let make = || {
                    let own = groups.iter().zip(streams(groups));
                    own.map(|(&g, stream)| GroupDirection::new(stream, plan.members(g), &decoder.layout)).collect()
                };
                totals.sample(b, (sample, records), self.settings.micro_batch, groups.len(), |batch, seen| {
                    project(seen, decoder, batch, directions.get_or_insert_with(make), self.settings.engine)
                })?;
            }
            totals.add_up(b)
        });
        // Failing is public; it depends on the machine (a lost device, another rank), and on the data only where a device runs out of memory.
        let found = work.open(&Opening::release("whether the computation succeeded"))?;
        Ok(found.into_iter().map(|(dots, private)| (Sensitive::new(dots), Sensitive::new(private))).collect())
    }

    /// The ablation: true gradients of the fired groups, divided by the expected batch size. Not private.
    fn release_gradients(&mut self, step: u32, groups: &[u32]) -> Result<Sensitive<Private>> {
        let opening = Opening::non_private("the true gradient of every fired group");
        let mut totals = Totals::new(&self.crew);
        let mut gradients: Vec<(u32, Vec<B::Tensor>)> = Vec::new();
        let decoder = &self.decoder;
        let b = &decoder.backend;
        for (sample, groups) in self.samples(step, groups)? {
            let (sample, records) = sample.zip(self.records.as_ref()).open(&opening);
            let members = |g: u32| self.replayer.plan().members(g);
            let mut sum = Sum::new(b, &decoder.layout, |p| groups.iter().any(|&g| members(g).contains(&p)));
            totals.sample(b, (&sample, records), self.settings.micro_batch, 0, |batch, seen| {
                let means = batch.weights(Reduction::SampleSum);
                let weights: Vec<f32> = means.iter().map(|w| w / self.settings.batch as f32).collect();
                seen.add(b, batch, Some((&decoder.backward(batch, &weights, &mut sum), &means)))
            })?;
            let mut sums = sum.into_grads();
            self.crew.sum(b, sums.iter_mut().flatten())?;
            for &g in &groups {
                let own = members(g).iter().map(|p| sums[p.0].take().expect("asked for, and in one group")).collect();
                gradients.push((g, own));
            }
        }
        let nothing = Private { records: 0, tokens: 0, loss: None };
        let total = totals.add_up(b)?.into_iter().fold(nothing, |total, (_, seen)| total.join(seen));
        gradients.sort_by_key(|g| g.0);
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.step_gradients(backend, step, &gradients, params)?;
        Ok(Sensitive::new(total))
    }
}

impl<B: Backend> Run<B> for Trainer<'_, B> {
    fn next(&self) -> Option<u32> {
        self.fires.get(self.done).map(|f| f.0)
    }

    fn progress(&self) -> (u64, u64) {
        self.computed
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let groups: Vec<u32> = self.fires[self.done..].iter().take_while(|f| f.0 == step).map(|f| f.1).collect();
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.catch_up(backend, step, params);
        let private = match self.settings.payload {
            Payload::Sign => self.release_signs(step, &groups)?,
            Payload::TrueGradient => self.release_gradients(step, &groups)?,
        };
        self.done += groups.len();
        self.computed.0 += 1;
        Ok(Some(Step { step, groups, private }))
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
        // True gradients are in no transcript: such a run begins again.
        if self.done == 0 || self.settings.payload == Payload::TrueGradient {
            return Ok(());
        }
        let so_far = self.so_far();
        state::save(root, so_far.steps_run, FILE, |path| crate::fsio::write(path, so_far.to_json()?.as_bytes()))
    }

    fn finish(self: Box<Self>) -> Result<Finished<B>> {
        let (weights, transcript, backend) = self.conclude()?;
        Ok(Finished { weights, record: Record::Ferret(transcript), backend })
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
    seen: &mut Sums<B>,
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
