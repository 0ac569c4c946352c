//! The records of a comparison: who is a member was decided by a fair coin per candidate, so that the bounds apply.

use crate::audit::one_run;
use crate::audit::stats::SeededRng;
use crate::data::{self, Example, LoadOptions, Loss, records, synthetic};
use crate::error::{Error, Result};
use crate::method::{Method, Scales};
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// A base model, and candidates of whom some are members.
#[derive(Clone)]
pub struct World {
    /// The model that every arm starts from.
    pub base: Arc<Checkpoint>,
    /// SHA-256 of its tensors.
    pub base_sha256: String,
    /// Trained on: those whose coin said so, then what was planted among them.
    pub members: Vec<Example>,
    /// How many were planted.
    pub planted: usize,
    /// Never trained on; the same kind of record.
    pub nonmembers: Vec<Example>,
    /// For choosing settings; no result is taken from them.
    pub tuning: Vec<Example>,
}

/// Records that tuning is measured on.
const HELD_OUT: usize = 400;

/// Public paragraphs that scales come from.
const PARAGRAPHS: u64 = 640;

impl World {
    /// The embedded model and `candidates` embedded records, each a member if its coin says so; `tuning` records more to choose
    /// settings by.
    pub fn embedded(seed: u64, candidates: usize, tuning: usize) -> Result<Self> {
        Self::generated("embedded", seed, candidates, tuning)
    }

    /// `model` and embedded records.
    fn generated(model: &str, seed: u64, candidates: usize, tuning: usize) -> Result<Self> {
        let base = checkpoint::load(model)?;
        let tokenizer = Tokenizer::from_folder(&base.folder)?
            .ok_or_else(|| Error::usage(format!("{model} has no tokenizer, which the embedded records need")))?;
        let options = LoadOptions { loss: Loss::Response, ..LoadOptions::new(&base.weights.config) };
        let read = |split, n: usize| -> Result<Vec<Example>> {
            let text = synthetic::to_jsonl(&synthetic::private_records(seed, split, n as u64)?);
            Ok(records::load(Path::new("embedded"), &text, Some(&tokenizer), &options)?.examples)
        };
        let (candidates, tuning) =
            (read(synthetic::Split::Train, candidates)?, read(synthetic::Split::Tuning, tuning)?);
        Ok(Self::tossed(base, candidates, tuning, seed))
    }

    /// `model` with the records of a file, or with `candidates` embedded records where there is no file.
    ///
    /// Of a file, a third of the records, drawn by `seed`, is kept for choosing settings; at most `candidates` of the others
    /// become candidates.
    pub fn load(model: &str, data: Option<&Path>, seed: u64, candidates: usize) -> Result<Self> {
        let Some(path) = data else {
            // As many to tune on as there will be members, and some to measure on.
            return Self::generated(model, seed, candidates, candidates.div_ceil(2) + HELD_OUT);
        };
        let base = checkpoint::load(model)?;
        let tokenizer = Tokenizer::from_folder(&base.folder)?;
        let dataset = data::load_examples(path, tokenizer.as_ref(), &LoadOptions::new(&base.weights.config))?;
        let mut examples: Vec<Example> = dataset.examples.into_iter().filter(|e| e.targets() > 0).collect();
        if examples.len() < 12 {
            let found = examples.len();
            return Err(Error::file(
                path,
                format!("has {found} records with a token to predict: a study needs at least 12"),
            ));
        }
        // The same cut for every seed of the study: records to tune on never become candidates.
        SeededRng::new(0).shuffle(&mut examples);
        let tuning = examples.split_off(examples.len() - examples.len() / 3);
        SeededRng::new(seed).shuffle(&mut examples);
        examples.truncate(candidates);
        Ok(Self::tossed(base, examples, tuning, seed))
    }

    /// Scales for a run of `method`, from the program's own public text: no record has a part in them.
    pub fn scales(&self, method: &Method) -> Result<Scales> {
        let tokenizer = Tokenizer::from_folder(&self.base.folder)?.ok_or_else(|| {
            Error::usage(
                "the model has no tokenizer, which the public text of rows with scales needs: leave them out by `only`",
            )
        })?;
        let text = synthetic::public_text(synthetic::SEED, synthetic::Public::Train, PARAGRAPHS);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let records: String = lines.map(|line| serde_json::json!({ "text": line }).to_string() + "\n").collect();
        let options = LoadOptions::new(&self.base.weights.config);
        let public = records::load(Path::new("public"), &records, Some(&tokenizer), &options)?;
        Scales::measure(method, &self.base.weights, &public.examples, &self.members)
    }

    /// The members that a coin chose.
    pub fn own_members(&self) -> &[Example] {
        &self.members[..self.members.len() - self.planted]
    }

    fn tossed(base: Checkpoint, candidates: Vec<Example>, tuning: Vec<Example>, seed: u64) -> Self {
        let coins = one_run::coins(candidates.len(), seed);
        let (mut members, mut nonmembers) = (Vec::new(), Vec::new());
        for (example, member) in candidates.into_iter().zip(coins) {
            if member { &mut members } else { &mut nonmembers }.push(example);
        }
        let base_sha256 = checkpoint::tensors_sha256(&base.weights);
        Self { base: Arc::new(base), base_sha256, members, planted: 0, nonmembers, tuning }
    }

    /// A world of the tuning records alone: as many members as here where they suffice, the others to measure on.
    pub fn for_tuning(&self) -> Result<Self> {
        let all = self.tuning.len();
        let train = self.members.len().min(all - (all / 4).clamp(1.min(all), HELD_OUT));
        if train == 0 {
            return Err(Error::usage("there are no records to choose settings by: give more candidates"));
        }
        let (members, nonmembers) = self.tuning.split_at(train);
        Ok(Self {
            base: self.base.clone(),
            base_sha256: self.base_sha256.clone(),
            members: members.to_vec(),
            planted: 0,
            nonmembers: nonmembers.to_vec(),
            tuning: Vec::new(),
        })
    }
}
