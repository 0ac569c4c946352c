//! The work of a membership audit: score, attack, judge, write. `ferret audit` and `ferret train --audit` share it.

use super::charge::Found;
use super::pair::{self, Bar, OnDecoder, Pair};
use super::shadows::{self, Plan};
use crate::audit::attack::held_out_threshold;
use crate::audit::bound::{Bound, Design};
use crate::audit::report::{Report, quote};
use crate::audit::roc::Roc;
use crate::audit::score::{RecordStats, TokenStats};
use crate::backend::Backend;
use crate::cli::common::Compute;
use crate::data::Example;
use crate::error::Result;
use crate::measure::{
    Cache, Scored, compressed_bytes, gradient_norms, mean_log_probs, shadow_attacks, threshold_attacks, token_stats,
};
use crate::model::Decoder;
use crate::study::plot;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// What is judged, and how.
pub(super) struct Case<'a> {
    /// The models' names, for the report.
    pub names: [&'a str; 2],
    pub pair: Pair,
    pub found: Found,
    pub inside: Vec<Example>,
    pub outside: Vec<Example>,
    pub design: Design,
    /// Members and non-members in all, where only a part is scored.
    pub candidates: (u64, u64),
    pub shadows: Option<Plan>,
    pub gradient_norm: bool,
    pub min_k: f64,
    pub cache: Cache,
    pub out: Option<&'a Path>,
    pub compute: &'a Compute,
    pub quiet: bool,
}

/// What was found; the files are written.
pub(super) struct Judged {
    pub summary: Value,
    pub text: String,
    pub alarm: bool,
    /// Why nothing could be judged, where nothing could.
    pub unjudged: Option<String>,
}

/// Score, attack, judge, write.
pub(super) fn judge(case: Case) -> Result<Judged> {
    let begun = Instant::now();
    let Case { names, mut pair, found, inside, outside, design, candidates, shadows: plan, .. } = case;
    let Case { gradient_norm, min_k, cache, out, compute, quiet, .. } = case;
    note_overlap(&mut pair, &inside, &outside);
    // One list: members, non-members, and RMIA's population, each scored once under each model.
    let population = plan.as_ref().map_or(&[][..], |p| &p.population);
    let all: Vec<Example> = [&inside[..], &outside, population].concat();
    let scored = inside.len() + outside.len();
    let weights = pair.take_tuned();
    let tuned_stats = pair::with_decoder(
        compute,
        weights,
        Score {
            examples: &all,
            norms: gradient_norm.then_some(scored),
            hash: &pair.tuned_sha256,
            cache: &cache,
            what: "tuned",
            quiet,
        },
    )?;
    let base_weights = pair.take_base();
    let kept = plan.as_ref().map(|_| base_weights.clone());
    let base_stats = pair::with_decoder(
        compute,
        base_weights,
        Score { examples: &all[..scored], norms: None, hash: &pair.base_sha256, cache: &cache, what: "base", quiet },
    )?;
    let log_probs = mean_log_probs(&tuned_stats.tokens);
    let records = record_stats(&pair, &all[..scored], tuned_stats, base_stats)?;
    let (m, n) = records.split_at(inside.len());
    let mut attacks = threshold_attacks(m, n, min_k)?;
    if let (Some(plan), Some(base)) = (&plan, kept) {
        let scores = shadows::scores(plan, &pair, base, &all, scored, inside.len(), log_probs, &cache, compute, quiet)?;
        attacks.extend(shadow_attacks(scores)?);
    }

    let charge = found.tightest(design, candidates);
    let curves: Vec<(String, Roc)> = attacks.iter().map(|a| Ok((a.name.clone(), a.roc()?))).collect::<Result<_>>()?;
    let bound = Bound::new(&charge, design, candidates.0, candidates.1);
    let mut report = Report::new(&curves, charge, design, candidates);
    for (row, attack) in report.attacks.iter_mut().zip(&attacks) {
        row.held_out = held_out_threshold(&attack.members, &attack.nonmembers, 0).ok();
    }
    if !quiet {
        pair.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    let mut summary = json!({
        "base": names[0], "tuned": names[1], "base_sha256": pair.base_sha256, "tuned_sha256": pair.tuned_sha256,
        "members": inside.len(), "nonmembers": outside.len(), "candidates": [candidates.0, candidates.1],
        "shadows": plan.as_ref().map(|p| p.describe()),
        "notes": pair.notes, "seconds": begun.elapsed().as_secs_f64(), "out": out,
    });
    if let (Value::Object(summary), Value::Object(report)) = (&mut summary, report.json()) {
        summary.extend(report);
    }
    let text = report.text();
    if let Some(out) = out {
        pair::write(out, "audit.txt", &text)?;
        pair::write(out, "audit.csv", &report.csv())?;
        pair::write(out, "audit.json", &format!("{summary:#}\n"))?;
        pair::write(out, "scores.csv", &scores_csv(&attacks))?;
        draw(out, &curves, &bound)?;
    }
    let unjudged = (!report.judged)
        .then(|| report.bound_does_not_apply.clone().unwrap_or_else(|| "no attack could be made".into()));
    Ok(Judged { summary, text, alarm: report.alarm, unjudged })
}

/// A record on both sides can be told by no attack, and weakens what the others show.
fn note_overlap(pair: &mut Pair, inside: &[Example], outside: &[Example]) {
    let known: std::collections::HashSet<&[u32]> = inside.iter().map(|e| &e.ids[..]).collect();
    let both = outside.iter().filter(|e| known.contains(&e.ids[..])).count();
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
    quiet: bool,
}

struct Stats {
    tokens: Vec<TokenStats>,
    norms: Option<Vec<f64>>,
}

impl OnDecoder for Score<'_> {
    type Output = Stats;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Stats> {
        let Score { examples, norms, hash, cache, what, quiet } = self;
        let bar = Bar::new(examples.len(), what, quiet);
        let tokens = token_stats(decoder, hash, examples, cache, |n| bar.step(n))?;
        drop(bar);
        let norms = norms.map(|count| {
            let bar = Bar::new(count, "gradient norms", quiet);
            gradient_norms(decoder, hash, &examples[..count], cache, |n| bar.step(n))
        });
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

/// Every record's score by every attack. As secret as the membership itself.
fn scores_csv(attacks: &[Scored]) -> String {
    let mut out = String::from("side,record");
    attacks.iter().for_each(|a| out += &format!(",{}", quote(&a.name)));
    out.push('\n');
    type Side = fn(&Scored) -> &[f64];
    let (members, nonmembers): (Side, Side) = (|a| &a.members, |a| &a.nonmembers);
    for (side, of) in [("member", members), ("nonmember", nonmembers)] {
        for record in 0..attacks.first().map_or(0, |a| of(a).len()) {
            out += &format!("{side},{}", record + 1);
            attacks.iter().for_each(|a| out += &format!(",{}", of(a)[record]));
            out.push('\n');
        }
    }
    out
}

fn draw(out: &Path, curves: &[(String, Roc)], bound: &Bound) -> Result<()> {
    let attacks: Vec<_> = curves.iter().map(|(name, roc)| (name.clone(), roc.curve())).collect();
    let bounds = match bound {
        Bound::DoesNotApply(_) => Vec::new(),
        bound => vec![("bound".to_owned(), bound.curve(400, 1e-4))],
    };
    pair::write(out, "roc.svg", &plot::roc("Membership attacks", &attacks, &bounds, None))?;
    pair::write(
        out,
        "roc-log.svg",
        &plot::roc("Membership attacks at low false-positive rates", &attacks, &bounds, Some(1e-3)),
    )
}
