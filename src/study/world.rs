//! The records of a comparison: who is a member was decided by a fair coin per candidate, so that the bounds apply.

use crate::audit::one_run;
use crate::data::{Example, LoadOptions, Loss, records, synthetic};
use crate::error::{Error, Result};
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use std::path::Path;

/// A base model, and candidates of whom some are members.
pub struct World {
    /// The model that every arm starts from.
    pub base: Checkpoint,
    /// SHA-256 of its tensors.
    pub base_sha256: String,
    /// Trained on.
    pub members: Vec<Example>,
    /// Never trained on; the same kind of record.
    pub nonmembers: Vec<Example>,
    /// For choosing settings; no result is taken from them.
    pub tuning: Vec<Example>,
}

impl World {
    /// The embedded model and `candidates` embedded records, each a member if its coin says so.
    pub fn embedded(seed: u64, candidates: usize, tuning: usize) -> Result<Self> {
        let base = checkpoint::load("embedded")?;
        let tokenizer = Tokenizer::load("embedded")?
            .ok_or_else(|| Error::usage("the embedded model has no tokenizer: this is a bug"))?;
        let options = LoadOptions { loss: Loss::Response, ..LoadOptions::new(&base.weights.config) };
        let read = |split, n: usize| -> Result<Vec<Example>> {
            let text = synthetic::to_jsonl(&synthetic::private_records(seed, split, n as u64)?);
            Ok(records::load(Path::new("embedded"), &text, Some(&tokenizer), &options)?.examples)
        };
        let coins = one_run::coins(candidates, seed);
        let (mut members, mut nonmembers) = (Vec::new(), Vec::new());
        for (example, member) in read(synthetic::Split::Train, candidates)?.into_iter().zip(coins) {
            if member { &mut members } else { &mut nonmembers }.push(example);
        }
        let base_sha256 = checkpoint::tensors_sha256(&base.weights);
        Ok(Self { base, base_sha256, members, nonmembers, tuning: read(synthetic::Split::Tuning, tuning)? })
    }
}
