//! Training: for every step that computes, each record's sketch, clipped; their sum, noised; its signs; one update.
//!
//! The plan comes first and touches no data. Weights are updated where they lie, by the replayer. In host memory they are those of replay at every
//! step. What a device holds follows the same arithmetic up to how it rounds, and serves to compute the next release: what is published is then
//! replayed from the base model on the CPU, when the run ends.

use super::replay::{Replayer, follow};
use super::settings::{Release, Settings};
use super::sum::Total;
use super::transcript::{Releases, Transcript, on_grid};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::grad::Sketch;
use crate::kernel::{Scalars, Stored};
use crate::method::crew::{Crew, Totals};
use crate::method::ferret::sign_or_coin;
use crate::method::ferret::transcript::FILE;
use crate::method::list::Record;
use crate::method::run::{Finished, Run, Step, Task};
use crate::method::tally::{Private, is_host};
use crate::method::{Opening, Sensitive, state};
use crate::model::{Decoder, Reduction, Weights, checkpoint};
use crate::ops::sketch::clip;
use crate::rng::{Secret, SecretDomain, StepSketch, coin};
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
    /// The steps that compute, in order, and how many of them are over.
    fires: Vec<u32>,
    done: usize,
    releases: Releases,
    base_sha256: String,
    secret: &'a Secret,
    records: Sensitive<&'a [Example]>,
    crew: Crew,
}

impl<'a, B: Backend> Trainer<'a, B> {
    /// Begin, or continue after the `releases` of an earlier part of the same run.
    pub fn new(backend: B, task: Task<'a, Settings, impl Scalars>, releases: Option<Releases>) -> Result<Self> {
        let Task { base, base_sha256, settings, stop, secret, records } = task;
        secret.claim()?;
        let mut replayer = Replayer::new(&base.layout, &settings)?;
        let stop = stop.unwrap_or(u32::MAX).min(settings.steps());
        let (fires, k) = (settings.fires(stop), settings.k());
        let releases = releases.unwrap_or(Releases::none(settings.release));
        let done = releases.len() / k;
        if done > fires.len() || done * k != releases.len() {
            return Err(Error::usage("the saved releases end in the middle of a step: they are not of this run"));
        }
        let base = base.into_stored();
        let kept = (!is_host(&backend)).then(|| base.clone());
        let mut decoder = Decoder::new(backend, base)?;
        replayer.apply(&decoder.backend, &fires[..done], &releases, &mut decoder.params, |_| ())?;
        let crew = Crew::default();
        Ok(Self {
            decoder,
            replayer,
            base: kept,
            settings,
            stop,
            fires,
            done,
            releases,
            base_sha256,
            secret,
            records,
            crew,
        })
    }

    /// What has been released.
    pub fn releases(&self) -> &Releases {
        &self.releases
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

    /// The sum over the sample of every record's clipped sketch, k numbers.
    fn sums(&self, sketch: &StepSketch, sample: &[usize], records: &[Example]) -> Result<(Vec<f64>, Private)> {
        let (decoder, settings) = (&self.decoder, &self.settings);
        let (b, function) = (&decoder.backend, settings.clip_rule);
        let mut total = Total::new(sketch.k(), settings.clip);
        let mut totals = Totals::new(&self.crew);
        totals.sample(b, (sample, records), settings.micro_batch, 0, |batch, seen| {
            let means = batch.weights(Reduction::SampleSum);
            let tunes = |p| self.replayer.plan().tunes(p);
            let mut sink = Sketch::new(b, &decoder.layout, sketch, batch.segments.len(), tunes);
            let losses = decoder.backward(batch, &means, &mut sink);
            for mut v in sink.finish(b)? {
                clip(function, settings.clip, &mut v);
                total.add(&v);
            }
            seen.add(b, batch, Some((&losses, &means)))
        })?;
        self.crew.add(total.units())?;
        let (_, private) = totals.add_up(b)?.pop().expect("one sample");
        Ok((total.read(), private))
    }

    /// Noise on every sum, once a logical batch and in double precision; then what is released of them. An empty batch is noise alone, and one like any
    /// other. Where there is no noise, a sum of 0 takes the public coin.
    fn release(&self, step: u32, sums: Sensitive<Vec<f64>>) -> Releases {
        let Settings { noise_multiplier, clip, release, seed, .. } = self.settings;
        let mut noise = self.secret.stream(SecretDomain::Noise, step, 0);
        // Never less noise than was accounted for.
        let sigma = if noise_multiplier > 0.0 { (noise_multiplier * clip).next_up() } else { 0.0 };
        let noised = sums.map(|sums| {
            let noised = sums.iter().map(|sum| sum + sigma * noise.gaussian());
            match release {
                Release::Sign => Releases::Signs(
                    noised.zip(0..).map(|(x, bucket)| sign_or_coin(x, coin(seed, step, bucket))).collect(),
                ),
                Release::Scalar => Releases::Scalars(noised.map(|x| on_grid(x / clip)).collect()),
            }
        });
        // The one place where something of a gradient leaves.
        noised.open(&if self.settings.holds() {
            Opening::release(
                "signs, or places on a grid, of clipped sums with Gaussian noise, as charged by the accountants",
            )
        } else {
            Opening::non_private("sums without noise, or of sketches that are not clipped")
        })
    }
}

impl<B: Backend> Run<B> for Trainer<'_, B> {
    fn next(&self) -> Option<u32> {
        self.fires.get(self.done).copied()
    }

    fn progress(&self) -> (u64, u64) {
        (self.done as u64, self.fires.len() as u64)
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.catch_up(backend, step, params);
        let sketch = self.replayer.plan().sketch(step);
        let sample = self.crew.samples(&self.settings.common(), self.secret)?.draw(step, 0);
        let work = sample.zip(self.records.as_ref()).map(|(sample, records)| self.sums(&sketch, &sample, records));
        // Failing is public; it depends on the machine (a lost device), and on the data only where a device runs out of memory.
        let (sums, private) = work.open(&Opening::release("whether the computation succeeded"))?;
        let (sums, private) = (Sensitive::new(sums), Sensitive::new(private));
        let released = self.release(step, sums);
        let Decoder { backend, params, .. } = &mut self.decoder;
        self.replayer.step(backend, step, &released.numbers(0, sketch.k()), &sketch, params)?;
        match (&mut self.releases, released) {
            (Releases::Signs(all), Releases::Signs(own)) => all.extend(own),
            (Releases::Scalars(all), Releases::Scalars(own)) => all.extend(own),
            _ => unreachable!("releases are of the kind the settings name"),
        }
        self.done += 1;
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
        let Some(last) = self.done.checked_sub(1) else { return Ok(()) };
        let so_far = Transcript {
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: None,
            settings: self.settings.clone(),
            steps_run: self.fires[last] + 1,
            releases: self.releases.clone(),
        };
        state::save(root, so_far.steps_run, FILE, |path| crate::fsio::write(path, so_far.to_json()?.as_bytes()))
    }

    fn finish(self: Box<Self>) -> Result<Finished<B>> {
        let (weights, transcript, backend) = self.conclude()?;
        Ok(Finished { weights, record: Record::FerretK(transcript), backend })
    }
}
