//! From releases to weights: the one way, for training and for replay.

use super::settings::{Payload, Release, Route, Settings};
use super::transcript::{Releases, Transcript};
use crate::error::{Error, Result};
use crate::model::checkpoint::{self, Checkpoint, Dtype};
use crate::model::{Layout, ParamId, Weights};
use crate::optim::{AdamW, Gradient, Hyper, direct};
use crate::rng::DirectionStream;
use std::path::Path;

/// What a fired group sends.
#[derive(Clone, Copy, Debug)]
pub enum Released<'a> {
    /// +1 or -1.
    Bit(i8),
    /// A noisy scalar, C included.
    Scalar(f32),
    /// The group's gradient, tensor by tensor, in the order of its members. Not private: the ablation.
    Gradient(&'a [Vec<f32>]),
}

impl Releases {
    /// What fire `i` of the run sent.
    pub(super) fn get(&self, i: usize) -> Released<'static> {
        match self {
            Releases::Bits(bits) => Released::Bit(bits[i]),
            Releases::Scalars(scalars) => Released::Scalar(scalars[i]),
        }
    }
}

/// Applies releases, step by step.
///
/// Steps without a fire need no call. With AdamW and `--silent zero` they still move weights: [`Replayer::catch_up_all`] makes up
/// for them before someone reads the weights, [`Replayer::finish`] at the end; a tensor that gets a gradient is brought up by itself.
#[derive(Clone, Debug)]
pub struct Replayer {
    settings: Settings,
    members: Vec<Vec<ParamId>>,
    /// Number of scalars of every group.
    dims: Vec<usize>,
    /// None for the direct route.
    adamw: Option<AdamW>,
    /// Every step below this is over.
    next: u32,
}

impl Replayer {
    /// At the beginning of a run on weights of this layout.
    pub fn new(layout: &Layout, settings: &Settings) -> Result<Self> {
        settings.check()?;
        let members = settings.groups.members(layout)?;
        let dims = members.iter().map(|g| g.iter().map(|&id| layout.spec(id).len()).sum()).collect();
        let hyper = Hyper::new(settings.learning_rate, settings.weight_decay);
        let adamw = (settings.route == Route::Adamw)
            .then(|| AdamW::new(layout.len(), settings.steps, hyper, settings.schedule, settings.silent));
        Ok(Self { settings: settings.clone(), members, dims, adamw, next: 0 })
    }

    /// The parameters of `group`, in the order in which its direction runs over them.
    pub fn members(&self, group: u32) -> &[ParamId] {
        &self.members[group as usize]
    }

    /// The direction of (step, group).
    pub fn direction(&self, step: u32, group: u32) -> DirectionStream {
        let Settings { seed, direction, .. } = self.settings;
        DirectionStream::new(seed, step, group, direction, self.dims[group as usize])
    }

    /// The factor of the direction that `released` stands for.
    pub(super) fn scale(&self, released: Released) -> Result<f32> {
        let c = self.settings.clip;
        match (released, self.settings.release) {
            (Released::Bit(b @ (1 | -1)), Release::Bit) => Ok((f64::from(b) * c) as f32),
            (Released::Bit(b @ (1 | -1)), Release::Rr { flip, unbiased }) => {
                Ok((if unbiased { f64::from(b) * c / (1.0 - 2.0 * flip) } else { f64::from(b) * c }) as f32)
            }
            (Released::Scalar(x), Release::Gaussian { .. }) if x.is_finite() => Ok(x),
            (released, release) => {
                let found = match released {
                    Released::Bit(bit) => format!("the number {bit} where a sign belongs"),
                    Released::Scalar(x) => format!("the scalar {x}"),
                    Released::Gradient(_) => "a gradient".into(),
                };
                let expected = match release {
                    Release::Bit => "a bit, +1 or -1",
                    Release::Rr { .. } => "a flipped bit, +1 or -1",
                    Release::Gaussian { .. } => "a finite scalar with noise",
                };
                Err(Error::Privacy(format!(
                    "{found} was to be applied, and a fire releases {expected}: nothing was applied"
                )))
            }
        }
    }

    /// Apply the releases of `step`, groups in rising order. Nothing is applied when one of them is outside the alphabet.
    pub fn step<W: AsMut<[f32]>>(&mut self, step: u32, releases: &[(u32, Released)], weights: &mut [W]) -> Result<()> {
        let sorted = releases.is_sorted_by(|a, b| a.0 < b.0);
        if !sorted || releases.last().is_some_and(|r| r.0 as usize >= self.members.len()) {
            return Err(Error::usage(format!("the releases of step {step} are not one a group in rising order")));
        }
        if step < self.next || step >= self.settings.steps {
            return Err(Error::usage(format!("step {step} is not among {}..{}", self.next, self.settings.steps)));
        }
        for &(group, released) in releases {
            match (released, self.settings.payload) {
                (Released::Gradient(g), Payload::TrueGradient) => {
                    let lens = self.members(group).iter().map(|id| weights[id.0].as_mut().len());
                    if !lens.eq(g.iter().map(Vec::len)) {
                        return Err(Error::usage(format!("the gradient of group {group} does not have its shape")));
                    }
                }
                (Released::Gradient(_), _) => {
                    return Err(Error::Privacy("a gradient is no release of this run".into()));
                }
                _ => self.scale(released).map(drop)?,
            }
        }
        self.next = step + 1;
        let rate = self.settings.schedule.rate(self.settings.learning_rate, step, self.settings.steps);
        for &(group, released) in releases {
            let along = match released {
                Released::Gradient(_) => None,
                _ => Some((self.direction(step, group), self.scale(released)?)),
            };
            let mut offset = 0;
            for (i, &id) in self.members[group as usize].iter().enumerate() {
                let w = weights[id.0].as_mut();
                let gradient = match (&along, released) {
                    (Some((direction, scale)), _) => Gradient::Along { direction, offset, scale: *scale },
                    (None, Released::Gradient(g)) => Gradient::Dense(&g[i]),
                    (None, _) => unreachable!("only gradients have no direction"),
                };
                offset += w.len();
                match &mut self.adamw {
                    Some(adamw) => adamw.step(step, id, w, gradient),
                    None => direct::step(w, gradient, rate),
                }
            }
        }
        Ok(())
    }

    /// Bring all weights to where they stand before `step`.
    pub fn catch_up_all<W: AsMut<[f32]>>(&mut self, step: u32, weights: &mut [W]) {
        if let Some(adamw) = &mut self.adamw {
            adamw.catch_up_all(step.min(self.settings.steps), weights);
        }
    }

    /// The end, after `steps_run` steps: idle steps that are due are taken.
    pub fn finish<W: AsMut<[f32]>>(mut self, steps_run: u32, weights: &mut [W]) {
        self.catch_up_all(steps_run, weights);
    }

    /// Apply recorded releases to their fires; `progress` hears of each step before it is made. For replay, and for resuming a run.
    pub fn apply<W: AsMut<[f32]>>(
        &mut self,
        fires: &[(u32, u32)],
        releases: &Releases,
        weights: &mut [W],
        mut progress: impl FnMut(u32),
    ) -> Result<()> {
        if fires.len() != releases.len() {
            return Err(Error::usage(format!("{} releases for {} fires", releases.len(), fires.len())));
        }
        let mut done = 0;
        for step in fires.chunk_by(|a, b| a.0 == b.0) {
            let now: Vec<_> = step.iter().enumerate().map(|(j, f)| (f.1, releases.get(done + j))).collect();
            progress(step[0].0);
            self.step(step[0].0, &now, weights)?;
            done += step.len();
        }
        Ok(())
    }
}

/// The tuned weights of a finished run, from its base model and its transcript: no data, no matrix product, the same bytes on every
/// machine. Refuses another base, and a result that is not the one the transcript names.
pub fn replay(base: Weights, transcript: &Transcript, progress: impl FnMut(u32)) -> Result<Weights> {
    transcript.check()?;
    if transcript.settings.payload != Payload::Sign {
        return Err(Error::usage(
            "the run sent true gradients (`payload` true-gradient), which no transcript holds: it cannot be replayed",
        ));
    }
    let Some(tuned) = &transcript.tuned_sha256 else {
        return Err(Error::usage("the transcript is of an unfinished run: finish it with `resume` first"));
    };
    let found = checkpoint::tensors_sha256(&base);
    if found != transcript.base_sha256 {
        return Err(Error::usage(format!(
            "the run began at tensors with SHA-256 {}, this base model has {found}: give the one it was trained from",
            transcript.base_sha256
        )));
    }
    let mut weights = base;
    let mut replayer = Replayer::new(&weights.layout, &transcript.settings)?;
    replayer.apply(&transcript.fires(), &transcript.releases, &mut weights.tensors, progress)?;
    replayer.finish(transcript.steps_run, &mut weights.tensors);
    let found = checkpoint::tensors_sha256(&weights);
    if found != *tuned {
        return Err(Error::usage(format!(
            "the transcript leads to tensors with SHA-256 {found}, not to the {tuned} it names: it was tampered with, or written by \
             a program that computed otherwise"
        )));
    }
    Ok(weights)
}

/// Write a tuned model, with its transcript, as training and replay both do: in f32, names, config and tokenizer those of the base model.
pub fn save(dir: &Path, base: &Checkpoint, tuned: &Weights, transcript: &Transcript) -> Result<()> {
    let text = transcript.to_json()?;
    let mut options = base.save_options();
    options.dtype = Dtype::F32;
    crate::fsio::fill_folder(dir, |dir| {
        crate::fsio::write(&dir.join(super::transcript::FILE), text.as_bytes())?;
        checkpoint::save(dir, tuned, &options)
    })
}
