//! A membership audit: score, attack, judge, report.
//!
//! Two models ([`Pair`]), records that the tuned one learnt from and others that it did not, and what its training was charged for
//! ([`Provenance`]): [`Audit::run`] scores every record under both models, makes every attack of the scores, and judges the attacks by
//! what the charge permits.

use super::pair::{OnDecoder, Pair, with_decoder};
use super::provenance::Provenance;
use super::shadow::Plan;
use super::{
    Cache, Scores, compressed_bytes, gradient_norms, mean_log_probs, shadow_attacks, threshold_attacks, token_stats,
};
use crate::audit::attack::held_out_threshold;
use crate::audit::bound::{Bound, Design};
use crate::audit::report::{Report, quote};
use crate::audit::roc::Roc;
use crate::audit::score::{RecordStats, TokenStats};
use crate::backend::{Backend, Device};
use crate::data::{Example, examples_sha256};
use crate::error::Result;
use crate::model::Decoder;
use crate::progress::Progress;
use crate::ranks::{Alone, Ranks, agree};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What is judged, and how.
pub struct Audit {
    /// The base model and the tuned one.
    pub pair: Pair,
    /// What the tuned one was charged for.
    pub provenance: Provenance,
    /// Records that it was tuned on.
    pub members: Vec<Example>,
    /// Records of the same source that it was not tuned on.
    pub nonmembers: Vec<Example>,
    /// How it was decided who is a member.
    pub design: Design,
    /// Members and non-members in all, where only a part is scored.
    pub candidates: (u64, u64),
    /// Shadow models for LiRA and RMIA, where they are wanted.
    pub shadows: Option<Plan>,
    /// Also score by the norm of each record's gradient: about three times the work.
    pub gradient_norm: bool,
    /// The fraction of a record's tokens that min-k averages.
    pub min_k: f64,
    /// Scores that were computed before.
    pub cache: Cache,
    /// Where to compute.
    pub device: Device,
    /// Who computes: every one of them runs the same audit and finds the same, and the first keeps scores and models.
    pub ranks: Arc<dyn Ranks>,
}

/// What an audit found.
pub struct Finding {
    /// Every attack beside its bound.
    pub report: Report,
    /// Every record's score by every attack. As secret as the membership itself.
    pub attacks: Vec<Scores>,
    /// Every attack's curve, by name.
    pub curves: Vec<(String, Roc)>,
    /// What the charge permits.
    pub bound: Bound,
    /// Sentences that a reader should see.
    pub notes: Vec<String>,
    base_sha256: String,
    tuned_sha256: String,
    scored: (usize, usize),
    candidates: (u64, u64),
    shadows: Option<Value>,
    seconds: f64,
}

impl Audit {
    /// Threshold attacks on these records, on the processor, every candidate being scored.
    pub fn new(
        pair: Pair,
        provenance: Provenance,
        members: Vec<Example>,
        nonmembers: Vec<Example>,
        design: Design,
    ) -> Self {
        let candidates = (members.len() as u64, nonmembers.len() as u64);
        Self {
            pair,
            provenance,
            members,
            nonmembers,
            design,
            candidates,
            shadows: None,
            gradient_norm: false,
            min_k: 0.2,
            cache: Cache::none(),
            device: Device::Cpu,
            ranks: Arc::new(Alone),
        }
    }

    /// Score, attack, judge.
    pub fn run(self, progress: &dyn Progress) -> Result<Finding> {
        let begun = Instant::now();
        let Audit { mut pair, provenance, members, nonmembers, design, candidates, .. } = self;
        let Audit { shadows, gradient_norm, min_k, cache, device, ranks, .. } = self;
        agree(
            &*ranks,
            "what the audit is told",
            &[
                ("base model, by its SHA-256,", pair.base_sha256.clone()),
                ("tuned model, by its SHA-256,", pair.tuned_sha256.clone()),
                ("set of members, by its SHA-256,", examples_sha256(&members)),
                ("set of non-members, by its SHA-256,", examples_sha256(&nonmembers)),
                ("choice of scores", format!("gradient norms {gradient_norm}, {min_k}")),
                ("plan of shadow models", shadows.as_ref().map_or_else(String::new, Plan::identity)),
            ],
        )?;
        let cache = cache.over(ranks.clone());
        note_overlap(&mut pair, &members, &nonmembers);
        // One list: members, non-members, and RMIA's population, each scored once under each model.
        let population = shadows.as_ref().map_or(&[][..], |p| &p.population);
        let all: Vec<Example> = [&members[..], &nonmembers, population].concat();
        let scored = members.len() + nonmembers.len();
        let score = |examples, norms, hash, what| Score { examples, norms, hash, cache: &cache, what, progress };
        let (tuned, base) = (pair.take_tuned(), pair.take_base());
        let work = score(&all[..], gradient_norm.then_some(scored), &pair.tuned_sha256, "tuned");
        let tuned_stats = with_decoder(device, tuned, work, progress)?;
        let kept = shadows.as_ref().map(|_| base.clone());
        let work = score(&all[..scored], None, &pair.base_sha256, "base");
        let base_stats = with_decoder(device, base, work, progress)?;
        let log_probs = mean_log_probs(&tuned_stats.tokens);
        let records = record_stats(&pair, &all[..scored], tuned_stats, base_stats)?;
        let (m, n) = records.split_at(members.len());
        let mut attacks = threshold_attacks(m, n, min_k)?;
        if let (Some(plan), Some(base)) = (&shadows, kept) {
            let scores = plan.scores(
                &*ranks,
                base,
                &pair.base_sha256,
                &all,
                (members.len(), scored),
                log_probs,
                &cache,
                device,
                progress,
            )?;
            attacks.extend(shadow_attacks(scores)?);
        }

        let charge = provenance.tightest(design, candidates);
        let curves: Vec<(String, Roc)> =
            attacks.iter().map(|a| Ok((a.name.clone(), a.roc()?))).collect::<Result<_>>()?;
        let bound = Bound::new(&charge, design, candidates.0, candidates.1);
        let mut report = Report::new(&curves, charge, design, candidates);
        for (row, attack) in report.attacks.iter_mut().zip(&attacks) {
            row.held_out = held_out_threshold(&attack.members, &attack.nonmembers, 0).ok();
        }
        pair.notes.iter().for_each(|note| progress.note(note));
        Ok(Finding {
            report,
            attacks,
            curves,
            bound,
            notes: pair.notes,
            base_sha256: pair.base_sha256,
            tuned_sha256: pair.tuned_sha256,
            scored: (members.len(), nonmembers.len()),
            candidates,
            shadows: shadows.map(|p| p.describe()),
            seconds: begun.elapsed().as_secs_f64(),
        })
    }
}

impl Finding {
    /// Why nothing could be judged, where nothing could.
    pub fn unjudged(&self) -> Option<&str> {
        let why = self.report.bound_does_not_apply.as_deref().unwrap_or("no attack could be made");
        (!self.report.judged).then_some(why)
    }

    /// Everything, for programs: `base` and `tuned` are the models' names, `out` is where files were written.
    pub fn json(&self, base: &str, tuned: &str, out: Option<&Path>) -> Value {
        let mut summary = json!({
            "base": base, "tuned": tuned, "base_sha256": self.base_sha256, "tuned_sha256": self.tuned_sha256,
            "members": self.scored.0, "nonmembers": self.scored.1, "candidates": [self.candidates.0, self.candidates.1],
            "shadows": self.shadows, "notes": self.notes, "seconds": self.seconds, "out": out,
        });
        if let (Value::Object(summary), Value::Object(report)) = (&mut summary, self.report.json()) {
            summary.extend(report);
        }
        summary
    }

    /// Every record's score by every attack, as CSV.
    pub fn scores_csv(&self) -> String {
        let mut out = String::from("side,record");
        self.attacks.iter().for_each(|a| out += &format!(",{}", quote(&a.name)));
        out.push('\n');
        type Side = fn(&Scores) -> &[f64];
        let (members, nonmembers): (Side, Side) = (|a| &a.members, |a| &a.nonmembers);
        for (side, of) in [("member", members), ("nonmember", nonmembers)] {
            for record in 0..self.attacks.first().map_or(0, |a| of(a).len()) {
                out += &format!("{side},{}", record + 1);
                self.attacks.iter().for_each(|a| out += &format!(",{}", of(a)[record]));
                out.push('\n');
            }
        }
        out
    }
}

/// A record on both sides can be told by no attack, and weakens what the others show.
fn note_overlap(pair: &mut Pair, members: &[Example], nonmembers: &[Example]) {
    let known: HashSet<&[u32]> = members.iter().map(|e| &e.ids[..]).collect();
    let both = nonmembers.iter().filter(|e| known.contains(&e.ids[..])).count();
    if both > 0 {
        pair.notes.push(format!("{both} of the non-members are, token for token, members too"));
    }
}

/// A model's word on records.
struct Score<'a> {
    examples: &'a [Example],
    /// Gradient norms of the first so many.
    norms: Option<usize>,
    hash: &'a str,
    cache: &'a Cache,
    what: &'static str,
    progress: &'a dyn Progress,
}

struct Stats {
    tokens: Vec<TokenStats>,
    norms: Option<Vec<f64>>,
}

impl OnDecoder for Score<'_> {
    type Output = Stats;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Stats> {
        let Score { examples, norms, hash, cache, what, progress } = self;
        let step = |n| progress.advance(n as u64);
        progress.begin(what, examples.len() as u64);
        let tokens = token_stats(decoder, hash, examples, cache, step)?;
        let norms = norms.map(|count| {
            progress.begin("gradient norms", count as u64);
            gradient_norms(decoder, hash, &examples[..count], cache, step)
        });
        progress.end();
        Ok(Stats { tokens, norms: norms.transpose()? })
    }
}

fn record_stats(pair: &Pair, examples: &[Example], tuned: Stats, base: Stats) -> Result<Vec<RecordStats>> {
    let compressed = compressed_bytes(examples, pair.tokenizer.as_ref(), pair.tuned.weights.config.vocab)?;
    let norms = tuned.norms.unwrap_or_default();
    let both = tuned.tokens.into_iter().zip(base.tokens).zip(compressed).enumerate();
    Ok(both
        .map(|(i, ((tuned, base), bytes))| RecordStats {
            tuned,
            base: Some(base),
            compressed_bytes: Some(bytes),
            gradient_norm: norms.get(i).copied(),
        })
        .collect())
}
