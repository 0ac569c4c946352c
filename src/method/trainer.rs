//! Training by a method whose run is its transcript: what FERRET and FERRET-k do around what they compute.
//!
//! Weights are updated where they lie, by the replayer. In host memory they are those of replay at every step. What a device holds
//! follows the same arithmetic up to how it rounds, and serves to compute the next releases: what is published is then replayed from the
//! base model on the CPU, when the run ends.

use super::crew::Crew;
use super::list::Record;
use super::replayer::{Replayable, Replayer, follow};
use super::run::{Conclusion, Run, Step, Task};
use super::transcript::{FILE, Transcript};
use super::{Sensitive, state};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::{Scalars, Stored};
use crate::model::{Decoder, Weights, checkpoint};
use crate::rng::Secret;
use std::path::Path;

/// The transcript of a run by the plan `P`.
pub type TranscriptOf<P> = Transcript<<P as Replayable>::Settings, <P as Replayable>::Releases>;

/// What a method's plan adds for training.
pub trait Trainable: Replayable {
    /// The fires of the first `stop` steps, in order.
    fn fires(&self, stop: u32) -> Vec<Self::Fire>;
    /// The step of a fire.
    fn step_of(fire: Self::Fire) -> u32;
    /// No release yet.
    fn nothing(&self) -> Self::Releases;
    /// How many fires sent these `releases`; none where the last of them is not whole.
    fn fires_of(&self, releases: &Self::Releases) -> Option<usize>;
    /// Whether the weights follow from the releases.
    fn is_rebuildable(&self) -> bool;
    /// Compute, release and apply `step`, before which the weights are brought up to it.
    fn compute<B: Backend>(run: &mut Trainer<'_, Self, B>, step: u32, fires: &[Self::Fire]) -> Result<Step>;
    /// Read a transcript's text. `path` is for messages.
    fn read(text: &str, path: &Path) -> Result<TranscriptOf<Self>>;
    /// What a run leaves beside its model.
    fn record(transcript: TranscriptOf<Self>) -> Record;
}

/// A run in progress.
pub struct Trainer<'a, P: Replayable, B: Backend> {
    pub(super) decoder: Decoder<B>,
    pub(super) replayer: Replayer<P, B>,
    /// What the published weights are replayed from; none where those of the decoder are already.
    base: Option<Weights<Stored>>,
    pub(super) settings: P::Settings,
    /// Steps that are made of those planned.
    stop: u32,
    /// The fires of the whole run, in order, and how many of them are over.
    fires: Vec<P::Fire>,
    done: usize,
    /// The same, counted by step.
    computed: (u64, u64),
    pub(super) releases: P::Releases,
    base_sha256: String,
    pub(super) secret: &'a Secret,
    pub(super) records: Sensitive<&'a [Example]>,
    pub(super) crew: Crew,
}

impl<'a, P: Trainable, B: Backend> Trainer<'a, P, B> {
    /// Begin, or continue after the `releases` of an earlier part of the same run.
    pub fn new(backend: B, task: Task<'a, P::Settings, impl Scalars>, releases: Option<P::Releases>) -> Result<Self> {
        let Task { base, base_sha256, settings, stop, secret, records } = task;
        secret.claim()?;
        let mut replayer = Replayer::<P, B>::new(&base.layout, &settings)?;
        let plan = replayer.plan();
        let stop = stop.unwrap_or(u32::MAX).min(plan.steps());
        let fires = plan.fires(stop);
        let releases = releases.unwrap_or_else(|| plan.nothing());
        let step = |i: usize| fires.get(i).map(|&f| P::step_of(f));
        // Whole fires, no more than there are, and with the last of them its step.
        let whole = |done: &usize| *done <= fires.len() && (*done == 0 || step(*done - 1) != step(*done));
        let Some(done) = plan.fires_of(&releases).filter(whole) else {
            return Err(Error::usage("the saved releases end in the middle of a step: they are not of this run"));
        };
        let exact = backend.is_exact() || !plan.is_rebuildable();
        let base = base.into_stored();
        let kept = (!exact).then(|| base.clone());
        let mut decoder = Decoder::new(backend, base)?;
        replayer.apply(&decoder.backend, &fires[..done], &releases, &mut decoder.params, |_| ())?;
        let steps = |fires: &[P::Fire]| fires.chunk_by(|&a, &b| P::step_of(a) == P::step_of(b)).count() as u64;
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

    /// Begin; or continue the unfinished run that [`Run::save`] left in `saved`, if it left anything there.
    pub(super) fn begin(
        backend: B,
        task: Task<'a, P::Settings, impl Scalars>,
        saved: Option<&Path>,
    ) -> Result<Box<dyn Run<B> + 'a>>
    where
        Self: 'a,
    {
        let Some((_, path)) = saved.map(state::current).transpose()?.flatten() else {
            return Ok(Box::new(Self::new(backend, task, None)?));
        };
        let so_far = P::read(&fsio::read_text(&path)?, &path)?;
        if so_far.base_sha256 != task.base_sha256 || so_far.settings != task.settings {
            return Err(Error::file(path, "is not of the run that it lies beside"));
        }
        Ok(Box::new(Self::new(backend, task, Some(so_far.releases))?))
    }

    /// What has been released.
    pub fn releases(&self) -> &P::Releases {
        &self.releases
    }

    /// [`Run::finish`] with the weights in f32, and the transcript as such.
    pub fn end(self) -> Result<(Weights, TranscriptOf<P>, B)> {
        let (weights, transcript, backend) = self.conclude()?;
        Ok((weights.into_form(), transcript, backend))
    }

    fn conclude(self) -> Result<(Weights<Stored>, TranscriptOf<P>, B)> {
        let Self { mut decoder, mut replayer, base, settings, stop, fires, done, releases, base_sha256, .. } = self;
        let (weights, backend) = match base {
            Some(base) => {
                let Decoder { backend, params, .. } = decoder;
                drop((params, replayer));
                (follow::<P, _>(base, &settings, &fires[..done], &releases, stop, |_| ())?, backend)
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
}

impl<P: Trainable, B: Backend> Run<B> for Trainer<'_, P, B> {
    fn next(&self) -> Option<u32> {
        self.fires.get(self.done).map(|&f| P::step_of(f))
    }

    fn progress(&self) -> (u64, u64) {
        self.computed
    }

    fn step(&mut self) -> Result<Option<Step>> {
        let Some(step) = self.next() else { return Ok(None) };
        let fires: Vec<_> = self.fires[self.done..].iter().copied().take_while(|&f| P::step_of(f) == step).collect();
        self.replayer.catch_up(&self.decoder.backend, step, &mut self.decoder.params);
        let made = P::compute(self, step, &fires)?;
        self.done += fires.len();
        self.computed.0 += 1;
        Ok(Some(made))
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
        // What is in no transcript cannot be continued: such a run begins again.
        let Some(last) = self.done.checked_sub(1).filter(|_| self.replayer.plan().is_rebuildable()) else {
            return Ok(());
        };
        let steps_run = P::step_of(self.fires[last]) + 1;
        let so_far = P::record(Transcript {
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: None,
            settings: self.settings.clone(),
            steps_run,
            releases: self.releases.clone(),
        });
        state::save(root, steps_run, FILE, |path| fsio::write(path, so_far.to_json()?.as_bytes()))
    }

    fn finish(self: Box<Self>) -> Result<Conclusion<B>> {
        let (weights, transcript, backend) = self.conclude()?;
        Ok(Conclusion { weights, record: P::record(transcript), backend })
    }
}
