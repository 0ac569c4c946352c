//! The two models of an audit, and records for both.

use crate::backend::{Backend, Device, Job};
use crate::data::{self, Example, LoadOptions, Loss, Unit};
use crate::error::{Error, Result};
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Config, Decoder, Weights};
use crate::progress::Progress;
use std::path::Path;

/// A base and a tuned model that speak of the same tokens.
pub struct Pair {
    /// The model before tuning.
    pub base: Checkpoint,
    /// The model that is audited.
    pub tuned: Checkpoint,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// SHA-256 of the tuned model's tensors.
    pub tuned_sha256: String,
    /// The tuned model's, else the base model's.
    pub tokenizer: Option<Tokenizer>,
    /// Sentences that whoever reads the audit should see.
    pub notes: Vec<String>,
}

/// How a file becomes the records that are scored: as the audited run read it.
#[derive(Clone, Copy, Debug)]
pub struct ReadAs {
    /// Which tokens of a record with a prompt are scored.
    pub loss: Loss,
    /// What one candidate is.
    pub unit: Unit,
}

impl Pair {
    /// Read both models; refuse two that cannot be compared before any large file is read.
    pub fn open(base: &str, tuned: &str) -> Result<Self> {
        let (a, b) = (checkpoint::read_config(base)?, checkpoint::read_config(tuned)?);
        if a.vocab != b.vocab {
            return Err(Error::usage(format!(
                "{base} has a vocabulary of {}, {tuned} one of {}: an audit compares what both say about the same tokens",
                a.vocab, b.vocab
            )));
        }
        let folder = Path::new(tuned).to_owned();
        let (base, mut tuned) = (checkpoint::load(base)?, checkpoint::load(tuned)?);
        // An adapter's statement lies beside it; its tokenizer is the base model's.
        if tuned.weights.config.adapter.is_some() {
            tuned.folder = folder;
        }
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
        Ok(Self { base, tuned, base_sha256, tuned_sha256, tokenizer, notes })
    }

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
    pub fn records(&mut self, path: &Path, ReadAs { loss, unit }: ReadAs) -> Result<Vec<Example>> {
        let config: &Config = &self.tuned.weights.config;
        let options = LoadOptions { loss, unit, context: self.context(), ..LoadOptions::new(config) };
        let dataset = data::load_examples(path, self.tokenizer.as_ref(), &options)?;
        let notes = dataset.notes();
        self.notes.extend(notes.into_iter().map(|note| format!("{}: {note}", path.display())));
        Ok(dataset.examples.into_iter().filter(|e| e.targets() > 0).collect())
    }

    /// The tuned weights, leaving nothing of them behind.
    pub fn take_tuned(&mut self) -> Weights {
        self.tuned.weights.take()
    }

    /// The base model's weights, leaving nothing of them behind.
    pub fn take_base(&mut self) -> Weights {
        self.base.weights.take()
    }
}

/// Work on a decoder of any backend.
pub(super) trait OnDecoder {
    /// What it gives.
    type Output;
    /// Compute on this decoder.
    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Self::Output>;
}

/// Run `work` on a decoder of `weights`, on the chosen device.
pub(super) fn with_decoder<W: OnDecoder>(
    device: Device,
    weights: Weights,
    work: W,
    progress: &dyn Progress,
) -> Result<W::Output> {
    struct OnBackend<W>(Weights, W);
    impl<W: OnDecoder> Job for OnBackend<W> {
        type Output = W::Output;
        fn run<B: Backend>(self, backend: B) -> Result<W::Output> {
            self.1.run(&Decoder::new(backend, self.0)?)
        }
    }
    device.run(OnBackend(weights, work), progress)
}
