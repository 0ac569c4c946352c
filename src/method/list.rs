//! The list of methods, with the settings of each; and what a finished run of each leaves beside its model.
//!
//! A method is an entry of [`Method`], an implementation of [`Run`], and what it leaves, an entry of [`Record`]. Whoever trains (the program,
//! studies, shadow models, audits) names an entry and asks it here; nobody else tells methods apart.

use super::common::Common;
use super::groups::Grouping;
use super::run::{Run, Task};
use super::{Tune, dense, ferret, ferret_k, transcript};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::Scalars;
use crate::model::checkpoint::{self, Checkpoint, Dtype, adapter};
use crate::model::{Adapter, Config, Layout, Weights};
use crate::privacy::statement::{Circumstances, Statement};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The version of statements that began with FERRET-k, subsets and adapters: there are none of theirs before.
const YOUNG: u32 = 3;

/// A method with everything it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Bits along public directions.
    Ferret(ferret::Settings),
    /// Signs of sketched sums.
    FerretK(ferret_k::Settings),
    /// Whole updates: nonprivate, dpsgd, dp-signsgd, signsgd, qsgd.
    Dense(dense::Settings),
}

/// The names of all methods; `ferret` alone leaves its groups open.
pub const NAMES: [&str; 12] = [
    "ferret-max",
    "ferret-half",
    "ferret-quarter",
    "ferret-eighth",
    "ferret-2",
    "ferret",
    ferret_k::NAME,
    "dpsgd",
    "dp-signsgd",
    "nonprivate",
    "signsgd",
    "qsgd",
];

/// Whether `name` is of FERRET, one bit a fired group.
pub fn is_ferret(name: &str) -> bool {
    name == "ferret" || Grouping::of_method(name).is_some()
}

impl Method {
    /// How it is called on the command line and in statements.
    pub fn name(&self) -> &str {
        match self {
            Self::Ferret(s) => &s.method,
            Self::FerretK(_) => ferret_k::NAME,
            Self::Dense(s) => s.method.name(),
        }
    }

    /// What every method is told.
    pub fn common(&self) -> Common {
        match self {
            Self::Ferret(s) => s.common(),
            Self::FerretK(s) => s.common(),
            Self::Dense(s) => s.common(),
        }
    }

    /// Which tensors it tunes.
    pub fn tune(&self) -> &Tune {
        match self {
            Self::Ferret(s) => &s.tune,
            Self::FerretK(s) => &s.tune,
            Self::Dense(s) => &s.tune,
        }
    }

    /// The adapter that it begins with, drawn from the public seed; none where the base model is tuned, or its own adapter.
    pub fn adapter(&self) -> Option<&Adapter> {
        match self {
            Self::Ferret(s) => s.adapter.as_ref(),
            Self::FerretK(s) => s.adapter.as_ref(),
            Self::Dense(s) => s.adapter.as_ref(),
        }
    }

    /// The parameters of a model of `config` as the run has them.
    pub fn layout(&self, config: &Config) -> Result<Layout> {
        Ok(match self.adapter() {
            Some(adapter) => Layout::new(&adapter.on(config)?),
            None => Layout::new(config),
        })
    }

    /// Steps T that it plans.
    pub fn steps(&self) -> u32 {
        self.common().steps()
    }

    /// Whether the settings make sense and agree with each other.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Ferret(s) => s.check(),
            Self::FerretK(s) => s.check(),
            Self::Dense(s) => s.check(),
        }
    }

    /// The same for `records` records: as many epochs, batches as large as can be, the same budget.
    pub fn sized(&self, records: usize) -> Result<Self> {
        let mut method = self.clone();
        let (n, batch, steps) = match &mut method {
            Self::Ferret(s) => (&mut s.records, &mut s.batch, &mut s.steps),
            Self::FerretK(s) => (&mut s.records, &mut s.batch, &mut s.steps),
            Self::Dense(s) => (&mut s.records, &mut s.batch, &mut s.steps),
        };
        (*n, *steps) = (records as u64, None);
        *batch = (*batch).min(*n);
        method.check()?;
        Ok(method)
    }

    /// Steps of the first `stop` ones in which anything is computed.
    pub fn computed_steps(&self, stop: u32) -> u64 {
        match self {
            Self::Ferret(s) => s.fires(stop).chunk_by(|a, b| a.0 == b.0).count() as u64,
            Self::FerretK(s) => s.count_fires(stop, u64::MAX),
            Self::Dense(_) => stop.into(),
        }
    }

    /// Record gradients that the first `stop` steps are expected to compute.
    pub fn sample_gradients(&self, stop: u32) -> u64 {
        match self {
            Self::Ferret(s) => s.batch * s.shared(&s.fires(stop)).iter().map(|f| f.steps).sum::<u64>(),
            Self::FerretK(s) => s.batch * s.count_fires(stop, u64::MAX),
            Self::Dense(s) => s.batch * u64::from(stop),
        }
    }

    /// Whether gradients leave as they are, or compressed: its logs have nothing to hide.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Ferret(s) => s.payload == ferret::Payload::TrueGradient,
            Self::FerretK(_) => false,
            Self::Dense(s) => s.method.privacy().is_none(),
        }
    }

    /// The statement of a run that stops after `stop` steps, on a model of `layout`; (eps, delta) is claimed at `delta`. It follows from the
    /// settings, so it is known before the run.
    pub fn statement(&self, layout: &Layout, stop: u32, delta: f64, circumstances: Circumstances) -> Result<Statement> {
        match self {
            Self::Ferret(s) => s.statement(stop, delta, circumstances),
            Self::FerretK(s) => s.statement(stop, delta, circumstances),
            Self::Dense(s) => s.statement(layout, stop, delta, circumstances),
        }
    }

    /// What a summary tells of the first `stop` steps beside the statement.
    pub fn summary(&self, layout: &Layout, stop: u32) -> Result<Value> {
        let tuned = self.tune().ids(layout)?;
        let mut summary = match self {
            Self::Ferret(s) => json!({"groups": s.groups.len(), "bits": s.count_fires(stop, u64::MAX)}),
            Self::FerretK(s) => {
                let numbers = s.count_fires(stop, u64::MAX) * u64::from(s.bits_per_step);
                let what = match s.release {
                    ferret_k::Release::Sign => "bits",
                    ferret_k::Release::Level => "levels",
                    ferret_k::Release::Scalar => "scalars",
                };
                json!({what: numbers, "bits_per_step": s.bits_per_step, "noise_multiplier": s.noise_multiplier})
            }
            Self::Dense(s) => json!({
                "bits_per_update": s.method.bits_per_update(layout, &tuned),
                "noise_multiplier": s.method.privacy().map(|p| p.noise_multiplier),
            }),
        };
        summary["learning_rate"] = json!(self.common().learning_rate);
        if !self.tune().is_all() {
            let scalars = layout.scalars_of(&tuned);
            summary["tuned"] = json!({"tune": self.tune(), "tensors": tuned.len(), "scalars": scalars});
        }
        Ok(summary)
    }

    /// What a user should know before the run.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Self::Ferret(s) => s.notes(),
            Self::FerretK(s) => s.notes(),
            Self::Dense(s) => s.notes(),
        }
    }
}

impl<'a, T: Scalars> Task<'a, Method, T> {
    /// Begin; or continue from what [`Run::save`] left in `saved`, if it left anything there.
    pub fn begin<B: Backend + 'a>(self, backend: B, saved: Option<&Path>) -> Result<Box<dyn Run<B> + 'a>> {
        let mut own = self;
        if let Some(adapter) = own.settings.adapter() {
            own.base = adapter.attach(own.base, own.settings.common().seed)?;
        }
        Ok(match own.settings.clone() {
            Method::Ferret(settings) => ferret::Trainer::begin(backend, own.with(settings), saved)?,
            Method::FerretK(settings) => ferret_k::Trainer::begin(backend, own.with(settings), saved)?,
            Method::Dense(settings) => {
                let mut task = own.with(settings);
                let tune = task.settings.tune.clone();
                let state = saved.map(|root| dense::State::load(root, &tune, &mut task.base)).transpose()?.flatten();
                Box::new(dense::Trainer::new(backend, task, state)?)
            }
        })
    }
}

/// What a finished run was told, and which model it made: the file beside the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// `transcript.json`.
    Ferret(ferret::Transcript),
    /// `transcript.json`.
    FerretK(ferret_k::Transcript),
    /// `run.json`.
    Dense(dense::Record),
}

impl Record {
    /// The record of the run in `dir`; none where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let (transcript, record) = (dir.join(transcript::FILE), dir.join(dense::RECORD));
        if transcript.exists() {
            return Self::from_transcript(&fsio::read_text(&transcript)?, &transcript).map(Some);
        }
        if !record.exists() {
            return Ok(None);
        }
        let found = dense::Record::from_json(&fsio::read_text(&record)?);
        found.map(|found| Some(Self::Dense(found))).map_err(|e| Error::file(&record, e.to_string()))
    }

    /// Read a transcript's text, of either kind. `path` is for messages.
    pub fn from_transcript(text: &str, path: &Path) -> Result<Self> {
        let head: Value = serde_json::from_str(text).unwrap_or_default();
        match head["format"].as_str() {
            Some(ferret_k::transcript::FORMAT) => ferret_k::Transcript::from_json(text, path).map(Self::FerretK),
            _ => ferret::Transcript::from_json(text, path).map(Self::Ferret),
        }
    }

    /// The file's name.
    pub fn file(&self) -> &'static str {
        match self {
            Self::Ferret(_) | Self::FerretK(_) => transcript::FILE,
            Self::Dense(_) => dense::RECORD,
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> Result<String> {
        match self {
            Self::Ferret(transcript) => transcript.to_json(),
            Self::FerretK(transcript) => transcript.to_json(),
            Self::Dense(record) => Ok(record.to_json()),
        }
    }

    /// The method's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Ferret(t) => &t.settings.method,
            Self::FerretK(_) => ferret_k::NAME,
            Self::Dense(r) => r.settings.method.name(),
        }
    }

    /// The method and its settings.
    pub fn method(&self) -> Method {
        match self {
            Self::Ferret(t) => Method::Ferret(t.settings.clone()),
            Self::FerretK(t) => Method::FerretK(t.settings.clone()),
            Self::Dense(r) => Method::Dense(r.settings.clone()),
        }
    }

    /// Steps that were made of those planned.
    pub fn steps_run(&self) -> u32 {
        match self {
            Self::Ferret(t) => t.steps_run,
            Self::FerretK(t) => t.steps_run,
            Self::Dense(r) => r.steps_run,
        }
    }

    /// SHA-256 of the tensors it began at.
    pub fn base_sha256(&self) -> &str {
        match self {
            Self::Ferret(t) => &t.base_sha256,
            Self::FerretK(t) => &t.base_sha256,
            Self::Dense(r) => &r.base_sha256,
        }
    }

    /// SHA-256 of the tensors it ended at; none of an unfinished run.
    pub fn tuned_sha256(&self) -> Option<&str> {
        match self {
            Self::Ferret(t) => t.tuned_sha256.as_deref(),
            Self::FerretK(t) => t.tuned_sha256.as_deref(),
            Self::Dense(r) => Some(&r.tuned_sha256),
        }
    }

    /// The statement that this run makes, by the rules of the version of `stated`, and with its delta and circumstances: what no one can
    /// recompute. `layout` is that of its model.
    pub fn restate(&self, layout: &Layout, stated: &Statement) -> Result<Statement> {
        let (method, version) = (self.method(), stated.version);
        let young = matches!(self, Self::FerretK(_)) || !method.tune().is_all() || method.adapter().is_some();
        if young && version < YOUNG {
            let what = "and of runs of this kind there are none before version 3: something else made it";
            return Err(Error::Privacy(format!("the statement is of version {version}, {what}")));
        }
        match self {
            Self::Ferret(transcript) => transcript.restate(stated),
            Self::FerretK(transcript) => transcript.restate(stated),
            Self::Dense(record) => record.restate(layout, stated),
        }
    }

    /// Whether it holds all that the weights follow from.
    pub fn is_rebuildable(&self) -> bool {
        match self {
            Self::Ferret(t) => t.settings.payload == ferret::Payload::Sign,
            Self::FerretK(_) => true,
            Self::Dense(_) => false,
        }
    }

    /// The tuned weights, from the base model and the record alone.
    pub fn rebuild<T: Scalars>(&self, base: Weights<T>, progress: impl FnMut(u32)) -> Result<Weights<T>> {
        match self {
            Self::Ferret(t) => ferret::replay(base, t, progress),
            Self::FerretK(t) => ferret_k::replay(base, t, progress),
            Self::Dense(_) => {
                Err(Error::usage("whole updates are in no record: the weights cannot be rebuilt from it"))
            }
        }
    }
    /// What was released of the records, where the file lists it: bits, scalars; else updates.
    pub fn releases(&self) -> u64 {
        match self {
            Self::Ferret(t) => t.releases.len() as u64,
            Self::FerretK(t) => t.releases.len() as u64,
            Self::Dense(r) => r.steps_run.into(),
        }
    }

    /// Bits that were released and are all that the weights tell of the records; none where other things were.
    pub fn bits(&self) -> Option<u64> {
        match self {
            Self::Ferret(ferret::Transcript { releases: ferret::Releases::Bits(bits), .. })
                if self.is_rebuildable() =>
            {
                Some(bits.len() as u64)
            }
            Self::FerretK(ferret_k::Transcript { releases, .. })
                if !matches!(releases, ferret_k::Releases::Scalars(_)) =>
            {
                Some(releases.bits())
            }
            _ => None,
        }
    }

    /// Write a tuned model with this record, as training and replay both do: what was changed in f32, the rest as it is; names, config and
    /// tokenizer those of the base model.
    pub fn save<T>(&self, dir: &Path, base: &Checkpoint<T>, tuned: &Weights<impl Scalars>) -> Result<()> {
        let text = self.to_json()?;
        let mut options = base.save_options();
        options.dtype = Dtype::F32;
        if self.method().adapter().is_some() {
            options.metadata.push((adapter::BASE.into(), self.base_sha256().to_owned()));
        }
        fsio::fill_folder(dir, |dir| {
            fsio::write(&dir.join(self.file()), text.as_bytes())?;
            checkpoint::save(dir, tuned, &options)
        })
    }
}
