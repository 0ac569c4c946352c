//! A study of a real model on records of the user's: who is a member by hash, secrets planted among the members, questions to the held-out
//! records.
//!
//! Where a record goes is decided by SHA-256 of its tokens and a seed, not by its place in the file: copies fall to one side, and a record added
//! to the file moves no other.

use super::world::World;
use crate::audit::canary::extraction;
use crate::backend::Backend;
use crate::data::{self, Example, LoadOptions};
use crate::error::{Error, Result};
use crate::eval::answers::{self, Question, Tally};
use crate::measure::Cache;
use crate::measure::canary::{Candidates, Planting};
use crate::measure::extract::{Decoding, attempts};
use crate::model::Decoder;
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use crate::ranks::Alone;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// What is looked at beside losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbePlan {
    /// Records of more tokens are left out.
    pub longest: usize,
    /// Held-out records with a short answer that are asked.
    pub answers: usize,
    /// Secrets at each of [`FREQUENCIES`].
    pub canaries: usize,
}

impl Default for ProbePlan {
    fn default() -> Self {
        Self { longest: 128, answers: 200, canaries: 4 }
    }
}

/// How often a planted secret is among the members; those at 0 are controls.
pub const FREQUENCIES: [u32; 4] = [0, 1, 4, 16];

/// Every secret has a prompt of its own, so that a model can be asked for each.
const PATTERN: &str = "The access code of locker {number} is ######.";

/// Other secrets that each is ranked among: exposure goes up to log2 of one more.
const COMPETITORS: usize = 31;

/// Fewest records that can be split.
const FEWEST: usize = 24;

/// Model and records, read once.
pub struct Source {
    base: Arc<Checkpoint>,
    base_sha256: String,
    tokenizer: Option<Tokenizer>,
    examples: Vec<Example>,
    note: Option<String>,
}

impl Source {
    /// `model`, and those records of `data` with a token to predict and at most `longest` tokens, copies once.
    pub fn open(model: &str, data: &Path, longest: usize) -> Result<Self> {
        let base = checkpoint::load(model)?;
        let tokenizer = Tokenizer::from_folder(&base.folder)?;
        let options = LoadOptions::new(&base.weights.config);
        let longest = longest.min(options.context);
        // One token more than is kept: what is cut there is too long.
        let options = LoadOptions { context: options.context.min(longest + 1), ..options };
        let dataset = data::load_examples(data, tokenizer.as_ref(), &options)?;
        let (all, note) = (dataset.examples.len(), dataset.note_of_ends());
        let mut seen = HashSet::new();
        let examples: Vec<Example> = dataset
            .examples
            .into_iter()
            .filter(|e| e.targets() > 0 && e.ids.len() <= longest && seen.insert(hash("record", 0, e)))
            .collect();
        if examples.len() < FEWEST {
            return Err(Error::file(
                data,
                format!(
                    "{} of its {all} records differ, have a token to predict and at most {longest} tokens: a study needs at least {FEWEST}; \
                     give more, or a larger `longest`",
                    examples.len()
                ),
            ));
        }
        let base_sha256 = checkpoint::tensors_sha256(&base.weights);
        Ok(Self { base: Arc::new(base), base_sha256, tokenizer, examples, note })
    }

    /// What whoever holds the records should know of them.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The world of `seed`: a third of the records to tune on, the same for every seed; of the others, in the order of their hashes, at most
    /// `candidates`, each a member if a bit of its hash says so.
    pub fn world(&self, seed: u64, candidates: usize, asked: ProbePlan) -> Result<World> {
        let third = |e: &&Example| hash("split", 0, e).is_multiple_of(3);
        let tuning = self.examples.iter().filter(third).cloned().collect();
        let mut pool: Vec<(u64, &Example)> =
            self.examples.iter().filter(|e| !third(e)).map(|e| (hash("order", seed, e), e)).collect();
        pool.sort_by_key(|p| p.0);
        pool.truncate(candidates);
        let member = |p: &&(u64, &Example)| hash("coin", seed, p.1) % 2 == 1;
        let side = |is: bool| pool.iter().filter(|p| member(p) == is).map(|p| p.1.clone()).collect::<Vec<_>>();
        let (mut members, nonmembers) = (side(true), side(false));
        let planted = self.planted(seed, asked)?;
        let count = planted.len();
        members.extend(planted);
        Ok(World {
            base: self.base.clone(),
            base_sha256: self.base_sha256.clone(),
            members,
            planted: count,
            nonmembers,
            tuning,
        })
    }

    /// The planted records of `seed`, each as often as it should be.
    fn planted(&self, seed: u64, asked: ProbePlan) -> Result<Vec<Example>> {
        let Some((planting, candidates)) = self.secrets(seed, asked, 0)? else { return Ok(Vec::new()) };
        let times = planting.canaries.iter().map(|p| p.canary.repeats as usize);
        Ok(candidates.examples.iter().zip(times).flat_map(|(e, n)| std::iter::repeat_n(e.clone(), n)).collect())
    }

    fn secrets(&self, seed: u64, asked: ProbePlan, competitors: usize) -> Result<Option<(Planting, Candidates)>> {
        if asked.canaries == 0 {
            return Ok(None);
        }
        let planting = Planting::at_frequencies(PATTERN, &FREQUENCIES, asked.canaries, seed)?;
        let candidates = planting.examples(competitors, self.text()?, self.base.weights.config.positions)?;
        Ok(Some((planting, candidates)))
    }

    fn text(&self) -> Result<&Tokenizer> {
        let what = "has no tokenizer, which secrets and answers need: set `canaries` and `answers` to 0";
        self.tokenizer.as_ref().ok_or_else(|| Error::file(&self.base.folder, what))
    }

    /// What is asked of the models of `seed`; nothing where nothing is.
    pub fn probe(&self, world: &World, seed: u64, asked: ProbePlan) -> Result<Option<Probe>> {
        if asked.canaries == 0 && asked.answers == 0 {
            return Ok(None);
        }
        let tokenizer = self.text()?.clone();
        let mut questions =
            answers::questions(&world.nonmembers, &tokenizer, &self.base.weights.config, answers::SHORT)?;
        questions.truncate(asked.answers);
        Ok(Some(Probe { tokenizer, questions, secrets: self.secrets(seed, asked, COMPETITORS)?, seed }))
    }
}

/// 64 bits of SHA-256 of a record's tokens, other ones for every purpose and seed. Which of them count is left out: the same text as a prompt with its
/// response and as plain text is one record, which must not be on two sides.
fn hash(purpose: &str, seed: u64, example: &Example) -> u64 {
    let mut hash = Sha256::new();
    hash.update(format!("ferret study {purpose} {seed}\n"));
    example.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    let bytes = hash.finalize();
    u64::from_le_bytes(bytes[..8].try_into().expect("32 bytes"))
}

/// Questions and secrets that a model is asked.
pub struct Probe {
    tokenizer: Tokenizer,
    questions: Vec<Question>,
    secrets: Option<(Planting, Candidates)>,
    seed: u64,
}

/// What a model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeResult {
    /// Short answers of held-out records.
    pub answers: Tally,
    /// Planted secrets, by how often they were planted.
    pub secrets: Vec<Exposures>,
}

/// What a model says of the secrets of one frequency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exposures {
    /// How often each was planted.
    pub repeats: u32,
    /// How many secrets were planted so often.
    pub secrets: u64,
    /// Mean exposure in bits; about 1.44 where nothing was learnt of them.
    pub exposure: f64,
    /// How many greedy decoding said.
    pub extracted: u64,
}

impl Probe {
    /// Rows that a model computes to answer.
    pub fn rows(&self) -> usize {
        let questions: usize = self.questions.iter().map(|q| q.prompt.len()).sum();
        let secrets = self.secrets.as_ref().map_or(0, |s| s.1.examples.iter().map(|e| e.ids.len()).sum());
        questions + secrets
    }

    /// Ask `decoder`, whose weights have this hash or any other name.
    pub fn ask<B: Backend>(&self, decoder: &Decoder<B>) -> Result<ProbeResult> {
        let answers = Tally::of(&answers::ask(decoder, &self.tokenizer, &self.questions, || Ok(()))?);
        let Some((planting, candidates)) = &self.secrets else {
            return Ok(ProbeResult { answers, secrets: Vec::new() });
        };
        let log_probs = candidates.log_probs(decoder, "", &Cache::none(), |_| Ok(()))?;
        let exposures = candidates.exposures(&log_probs)?;
        let (tokenizer, seed) = (&self.tokenizer, self.seed);
        let greedy = Decoding { planting, tokenizer, samples: 0, temperature: 1.0, seed, ranks: &Alone };
        let said = attempts(decoder, &greedy, |_| Ok(()))?;
        let canaries: Vec<_> = planting.canaries.iter().map(|p| p.canary.clone()).collect();
        let row = |found: crate::audit::canary::Extraction| {
            let own = canaries.iter().zip(&exposures).filter(|(c, _)| c.repeats == found.repeats);
            let exposure = own.map(|(_, e)| e.bits).sum::<f64>() / found.canaries.max(1) as f64;
            Exposures { repeats: found.repeats, secrets: found.canaries, exposure, extracted: found.greedy }
        };
        Ok(ProbeResult { answers, secrets: extraction(&canaries, &said)?.into_iter().map(row).collect() })
    }
}
