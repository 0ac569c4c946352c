//! The two models of an audit, and records for both.

use crate::cli::common::{Compute, Job, progress};
use crate::cli::interrupt;
use crate::data::{self, Example, LoadOptions, Loss, Unit};
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::dense;
use crate::method::ferret::{Transcript, transcript};
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Config, Decoder, Weights};
use crate::privacy::statement::{self, Statement};
use crate::{backend::Backend, fsio::read_text};
use indicatif::ProgressBar;
use std::path::Path;

/// A base and a tuned model that speak of the same tokens.
pub(super) struct Pair {
    pub base: Checkpoint,
    pub tuned: Checkpoint,
    pub base_sha256: String,
    pub tuned_sha256: String,
    pub tokenizer: Option<Tokenizer>,
    pub notes: Vec<String>,
}

/// How a file becomes the records that are scored: as the audited run read it.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub loss: Loss,
    pub unit: Unit,
}

/// Read both models; refuse two that cannot be compared before any large file is read.
pub(super) fn open(base: &str, tuned: &str) -> Result<Pair> {
    let (a, b) = (checkpoint::read_config(base)?, checkpoint::read_config(tuned)?);
    if a.vocab != b.vocab {
        return Err(Error::usage(format!(
            "{base} has a vocabulary of {}, {tuned} one of {}: an audit compares what both say about the same tokens",
            a.vocab, b.vocab
        )));
    }
    let (base, tuned) = (checkpoint::load(base)?, checkpoint::load(tuned)?);
    let (own, other) = (Tokenizer::from_folder(&tuned.folder)?, Tokenizer::from_folder(&base.folder)?);
    if let (Some(own), Some(other)) = (&own, &other)
        && (own.len(), own.max_id()) != (other.len(), other.max_id())
    {
        return Err(Error::usage(format!(
            "{} has {} entries, {} has {}: the two models were made for different tokens",
            own.path().display(),
            own.len(),
            other.path().display(),
            other.len()
        )));
    }
    let tokenizer = own.or(other);
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check(&tuned.weights.config)?;
    }
    let hash = |c: &Checkpoint| checkpoint::tensors_sha256(&c.weights);
    let (base_sha256, tuned_sha256) = (hash(&base), hash(&tuned));
    let mut notes: Vec<String> = tuned.notes.clone();
    if base_sha256 == tuned_sha256 {
        notes.push("base and tuned are the same model".into());
    }
    Ok(Pair { base, tuned, base_sha256, tuned_sha256, tokenizer, notes })
}

/// A model that was trained by FERRET, as its folder tells.
pub(super) fn transcript_of(tuned: &Checkpoint, tuned_sha256: &str) -> Result<Option<Transcript>> {
    let path = tuned.folder.join(transcript::FILE);
    if !path.exists() {
        return Ok(None);
    }
    let found = Transcript::from_json(&read_text(&path)?, &path)?;
    if found.tuned_sha256.as_deref() != Some(tuned_sha256) {
        return Err(Error::file(
            path,
            "is not of the model beside it: its tuned_sha256 names other tensors, so what it charges says nothing about them; \
             remove it, or audit the model that it belongs to",
        ));
    }
    Ok(Some(found))
}

/// What a model was told that was trained with whole updates, as its folder tells.
pub(super) fn record_of(tuned: &Checkpoint, tuned_sha256: &str) -> Result<Option<dense::Record>> {
    let path = tuned.folder.join(dense::RECORD);
    if !path.exists() {
        return Ok(None);
    }
    let found = dense::Record::from_json(&read_text(&path)?).map_err(|e| Error::file(&path, e.to_string()))?;
    if found.tuned_sha256 != tuned_sha256 {
        return Err(Error::file(
            path,
            "is not of the model beside it: its tuned_sha256 names other tensors; remove it, or audit the model that it belongs to",
        ));
    }
    Ok(Some(found))
}

/// The privacy statement in a model's folder. One of version 1 names no model, and is taken for that of the one it lies beside.
pub(super) fn statement_of(tuned: &Checkpoint, tuned_sha256: &str) -> Result<Option<Statement>> {
    let path = tuned.folder.join(statement::FILE);
    if !path.exists() {
        return Ok(None);
    }
    let found = Statement::from_json(&read_text(&path)?).map_err(|e| Error::file(&path, e.to_string()))?;
    if found.version > 1 && found.tuned_sha256.as_deref() != Some(tuned_sha256) {
        return Err(Error::file(
            path,
            "is not of the model beside it: its tuned_sha256 names other tensors, so what it promises says nothing about them; remove \
             it, or audit the model that it belongs to",
        ));
    }
    Ok(Some(found))
}

impl Pair {
    /// The context that both have.
    pub fn context(&self) -> usize {
        self.base.weights.config.positions.min(self.tuned.weights.config.positions)
    }

    /// The tokenizer, where text must be read.
    pub fn text_tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Error::file(&self.tuned.folder, "has no tokenizer, and canaries are text: add tokenizer.json there")
        })
    }

    /// The records of `path` in which some token counts, and what should be said about the others.
    pub fn records(&mut self, path: &Path, Reading { loss, unit }: Reading) -> Result<Vec<Example>> {
        let config: &Config = &self.tuned.weights.config;
        let options = LoadOptions { loss, unit, context: self.context(), ..LoadOptions::new(config) };
        let dataset = data::load_examples(path, self.tokenizer.as_ref(), &options)?;
        let notes = dataset.notes();
        self.notes.extend(notes.into_iter().map(|note| format!("{}: {note}", path.display())));
        Ok(dataset.examples.into_iter().filter(|e| e.targets() > 0).collect())
    }

    /// The tuned weights, leaving nothing of them behind.
    pub fn take_tuned(&mut self) -> Weights {
        take(&mut self.tuned.weights)
    }

    /// The base model's weights, leaving nothing of them behind.
    pub fn take_base(&mut self) -> Weights {
        take(&mut self.base.weights)
    }
}

/// Config and layout stay.
fn take(weights: &mut Weights) -> Weights {
    let Weights { config, layout, tensors } = weights;
    Weights { config: config.clone(), layout: layout.clone(), tensors: std::mem::take(tensors) }
}

/// Run `f` on a decoder of `weights`, on the chosen device.
pub(super) fn with_decoder<T>(compute: &Compute, weights: Weights, f: impl OnDecoder<Output = T>) -> Result<T> {
    struct Work<F>(Weights, F);
    impl<F: OnDecoder> Job for Work<F> {
        type Output = F::Output;
        fn run<B: Backend>(self, backend: B) -> Result<F::Output> {
            self.1.run(&Decoder::new(backend, self.0)?)
        }
    }
    compute.run(Work(weights, f))
}

/// Work on a decoder of any backend.
pub(super) trait OnDecoder {
    type Output;
    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Self::Output>;
}

/// A bar, and what moves it: stops the work when Ctrl-C was pressed.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub fn new(len: usize, what: &'static str, quiet: bool) -> Self {
        Self(progress(len as u64, what, quiet))
    }

    pub fn step(&self, n: usize) -> Result<()> {
        self.0.inc(n as u64);
        go_on()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// An error once Ctrl-C was pressed.
pub(super) fn go_on() -> Result<()> {
    if interrupt::asked() {
        let what = "stopped; with --out or --cache the same command goes on from what is kept there";
        return Err(Error::Interrupted(what.into()));
    }
    Ok(())
}

/// Write a file of the report's folder, for its owner alone: an audit is computed from private records.
pub(super) fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    fsio::private_folder(dir)?;
    fsio::write_private(&dir.join(name), text.as_bytes())
}
