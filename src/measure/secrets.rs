//! An audit by planted secrets: exposure by rank, extraction by decoding, and the one-run audit of epsilon.

use super::Cache;
use super::canary::{Candidates, Planting};
use super::extract::{Decoding, attempts};
use super::pair::{OnDecoder, Pair, with_decoder};
use super::provenance::Provenance;
use crate::audit::canary::{Attempts, Canary, Exposure, Extraction, extraction};
use crate::audit::columns::{align, wrap};
use crate::audit::one_run::{self, OneRun};
use crate::backend::{Backend, Device};
use crate::error::{Error, Result};
use crate::hash::sha256;
use crate::model::Decoder;
use crate::progress::Progress;
use crate::ranks::{Ranks, agree};
use serde_json::{Value, json};
use std::sync::Arc;

/// What is looked for, and how.
pub struct CanaryAudit<'a> {
    /// The base model and the tuned one.
    pub pair: Pair,
    /// What the tuned one was charged for.
    pub provenance: Provenance,
    /// Which secrets were planted, and which were held back.
    pub planting: &'a Planting,
    /// Secrets of the same format that each canary is ranked among.
    pub competitors: usize,
    /// Sampled continuations of each prompt.
    pub samples: usize,
    /// Temperature of the sampled continuations.
    pub temperature: f64,
    /// Seed of the sampled continuations.
    pub seed: u64,
    /// The one-run audit's lower limit of epsilon holds with this probability.
    pub confidence: f64,
    /// Scores that were computed before.
    pub cache: Cache,
    /// Where to compute.
    pub device: Device,
    /// Who computes: every one of them runs the same audit and finds the same, and the first keeps scores.
    pub ranks: Arc<dyn Ranks>,
}

/// What was found of planted secrets.
pub struct CanaryFinding {
    /// The secrets.
    pub canaries: Vec<Canary>,
    /// What the tuned model says of each.
    pub tuned: Vec<Exposure>,
    /// What the base model says of each.
    pub base: Vec<Exposure>,
    /// What decoding gave away, by frequency.
    pub extraction: Vec<Extraction>,
    /// The one-run audit, where coins decided who is in.
    pub one_run: Option<OneRun>,
    /// The accountant's (eps, delta), where it has one that leaving a record out is covered by.
    pub eps_delta: Option<(f64, f64)>,
    /// Bits that were charged for.
    pub bits: Option<u64>,
    /// Sentences that a reader should see.
    pub notes: Vec<String>,
    competitors: usize,
}

impl CanaryAudit<'_> {
    /// Score, rank, decode, guess.
    pub fn run(self, progress: &dyn Progress) -> Result<CanaryFinding> {
        if self.competitors == 0 {
            return Err(Error::usage("`competitors` 0: a rank needs at least one other secret"));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            let what = format!("`confidence` {}: a probability between 0 and 1 is expected", self.confidence);
            return Err(Error::usage(what));
        }
        let Self { mut pair, provenance, planting, competitors, samples, temperature, seed, confidence, .. } = self;
        let Self { cache, device, ranks, .. } = self;
        agree(
            &*ranks,
            "what the audit is told",
            &[
                ("base model, by its SHA-256,", pair.base_sha256.clone()),
                ("tuned model, by its SHA-256,", pair.tuned_sha256.clone()),
                (
                    "list of canaries, by its SHA-256,",
                    sha256(serde_json::to_string(planting).expect("strings and numbers")),
                ),
                ("way of looking for them", format!("{competitors}, {samples}, {temperature}, {seed}")),
            ],
        )?;
        let cache = cache.over(ranks.clone());
        let tokenizer = pair.text_tokenizer()?.clone();
        let candidates = planting.examples(competitors, &tokenizer, pair.context())?;
        let decoding = Decoding { planting, tokenizer: &tokenizer, samples, temperature, seed, ranks: &*ranks };
        let look =
            |decoding, hash, what| Look { candidates: &candidates, decoding, hash, cache: &cache, what, progress };
        let (tuned, base) = (pair.take_tuned(), pair.take_base());
        let tuned = with_decoder(device, tuned, look(Some(decoding), &pair.tuned_sha256, "tuned"), progress)?;
        let base = with_decoder(device, base, look(None, &pair.base_sha256, "base"), progress)?;
        let canaries: Vec<Canary> = planting.canaries.iter().map(|p| p.canary.clone()).collect();
        let extraction = extraction(&canaries, &tuned.attempts)?;
        let (eps_delta, bits) = (provenance.eps_delta(), provenance.bits());
        let delta = eps_delta.map_or(1e-5, |c| c.1);
        let one_run = planting.coin_flip.then(|| {
            // Relative to the base model, which knows no canary: what remains is what tuning did.
            let own = candidates.of_canaries(&tuned.log_probs);
            let gain: Vec<f64> = own.iter().zip(&base.log_probs).map(|(t, b)| t - b).collect();
            let included: Vec<bool> = canaries.iter().map(|c| c.repeats > 0).collect();
            let m = canaries.len();
            let mut guesses: Vec<usize> = [m / 8, m / 4, m / 2, m].into_iter().filter(|&r| r >= 2).collect();
            guesses.dedup();
            one_run::audit(&gain, &included, &guesses, delta, 1.0 - confidence)
        });
        Ok(CanaryFinding {
            tuned: candidates.exposures(&tuned.log_probs)?,
            base: candidates.exposures(&base.log_probs)?,
            canaries,
            extraction,
            one_run: one_run.transpose()?,
            eps_delta,
            bits,
            notes: pair.notes,
            competitors,
        })
    }
}

/// What one model says of the candidates, and how it continues prompts, where that is asked.
struct Look<'a> {
    candidates: &'a Candidates,
    decoding: Option<Decoding<'a>>,
    hash: &'a str,
    cache: &'a Cache,
    what: &'static str,
    progress: &'a dyn Progress,
}

/// A model's word on the secrets.
struct Word {
    log_probs: Vec<f64>,
    attempts: Vec<Attempts>,
}

impl OnDecoder for Look<'_> {
    type Output = Word;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Word> {
        let Look { candidates, decoding, hash, cache, what, progress } = self;
        let step = |n| progress.advance(n as u64);
        progress.begin(what, candidates.examples.len() as u64);
        let log_probs = candidates.log_probs(decoder, hash, cache, step)?;
        let attempts = match decoding {
            Some(decoding) => {
                progress.begin("extraction", decoding.planting.canaries.len() as u64);
                attempts(decoder, &decoding, step)?
            }
            None => Vec::new(),
        };
        progress.end();
        Ok(Word { log_probs, attempts })
    }
}

impl CanaryFinding {
    /// Whether more was found than was charged.
    pub fn alarm(&self) -> bool {
        self.one_run.as_ref().is_some_and(|found| {
            self.eps_delta.is_some_and(|(eps, _)| found.eps_lower > eps)
                || self.bits.is_some_and(|bits| found.bits_lower > bits as f64)
        })
    }

    /// Why that could not be asked, where it could not.
    pub fn unjudged(&self) -> Option<&'static str> {
        match (&self.one_run, self.eps_delta, self.bits) {
            (None, ..) => Some("exposure has no bound; plant the secrets with `coin_flip` for one"),
            (Some(_), None, None) => {
                Some("the model states no bits and no (eps, delta) that leaving a record out is covered by")
            }
            _ => None,
        }
    }

    /// Everything, for programs: `base` and `tuned` are the models' names.
    pub fn json(&self, base: &str, tuned: &str) -> Value {
        let each: Vec<Value> = self
            .canaries
            .iter()
            .zip(self.tuned.iter().zip(&self.base))
            .map(|(c, (e, b))| {
                json!({"text": c.text, "secret": c.secret, "repeats": c.repeats, "exposure": e, "base_exposure": b})
            })
            .collect();
        json!({
            "base": base, "tuned": tuned, "canaries": self.canaries.len(), "competitors": self.competitors,
            "frequencies": self.by_frequency(), "extraction": self.extraction, "one_run": self.one_run,
            "accountant": {"eps_delta": self.eps_delta, "bits": self.bits}, "each": each, "notes": self.notes,
            "alarm": self.alarm(), "judged": self.unjudged().is_none(),
        })
    }

    /// Mean exposure, and extraction, by frequency.
    fn by_frequency(&self) -> Vec<Value> {
        let Self { canaries: list, tuned, base, .. } = self;
        self.extraction
            .iter()
            .map(|row| {
                let mean = |of: &[Exposure]| {
                    let bits = list.iter().zip(of).filter(|(c, _)| c.repeats == row.repeats).map(|(_, e)| e.bits);
                    bits.sum::<f64>() / row.canaries.max(1) as f64
                };
                let most = list.iter().zip(tuned).filter(|(c, _)| c.repeats == row.repeats).map(|(_, e)| e.bits);
                json!({
                    "repeats": row.repeats, "canaries": row.canaries, "mean_exposure_bits": mean(tuned),
                    "largest_exposure_bits": most.fold(0.0, f64::max), "base_mean_exposure_bits": mean(base),
                    "extracted_greedily": row.greedy, "extracted_by_sampling": row.sampled, "samples": row.samples,
                })
            })
            .collect()
    }

    /// The table for a terminal of this width, and what the one-run audit says of the charge.
    pub fn text(&self, width: usize) -> String {
        let head =
            ["inserted", "canaries", "mean exposure [bits]", "largest", "base model's mean", "greedy", "sampled"];
        let mut table = vec![head.map(String::from).to_vec()];
        for row in self.by_frequency() {
            let number = |key: &str| format!("{:.2}", row[key].as_f64().unwrap_or_default());
            table.push(vec![
                row["repeats"].to_string(),
                row["canaries"].to_string(),
                number("mean_exposure_bits"),
                number("largest_exposure_bits"),
                number("base_mean_exposure_bits"),
                row["extracted_greedily"].to_string(),
                row["extracted_by_sampling"].to_string(),
            ]);
        }
        let mut out = align(&table, width);
        out += "\nA model that memorised nothing has a mean exposure of about 1.44 bits. greedy, sampled: canaries that it said.\n";
        if let Some(found) = &self.one_run {
            let OneRun { guesses, right, eps_lower, delta, confidence, bits_lower, .. } = found;
            out += &format!(
                "One-run audit: {right} of {guesses} guesses right; epsilon is at least {eps_lower:.3} at delta {delta:e}, and at least \
                 {bits_lower:.1} bits were released, with {:.0} % confidence.\n",
                100.0 * confidence
            );
            match self.eps_delta {
                Some((eps, delta)) => {
                    let word = if *eps_lower > eps { "ALARM: below what was found" } else { "consistent" };
                    out += &format!("The accountant's upper limit: ({eps:.4}, {delta:e}): {word}.\n");
                }
                None => out += "No accountant states an (eps, delta) for this model.\n",
            }
            if let Some(bits) = self.bits {
                let word = if *bits_lower > bits as f64 { "ALARM: fewer than were found" } else { "consistent" };
                out += &format!("Released bits that were charged for: {bits}: {word}.\n");
            }
        }
        wrap(&out, width)
    }

    /// Every canary, as CSV.
    pub fn csv(&self) -> String {
        let mut out =
            String::from("canary,inserted [times],rank,among,exposure [bits],p [probability],base_exposure [bits]\n");
        for (i, (canary, (e, b))) in self.canaries.iter().zip(self.tuned.iter().zip(&self.base)).enumerate() {
            out +=
                &format!("{},{},{},{},{},{},{}\n", i + 1, canary.repeats, e.rank, e.among, e.bits, e.p_value, b.bits);
        }
        out
    }
}
