//! Membership attacks: `ferret audit` without a further verb.

use super::charge::{ChargeArgs, Membership};
use super::pair::{self, Bar, OnDecoder, Pair};
use super::shadows::{self, ShadowArgs};
use crate::audit::attack::held_out_threshold;
use crate::audit::bound::{Bound, Design};
use crate::audit::report::{Report, quote};
use crate::audit::roc::Roc;
use crate::audit::score::{RecordStats, TokenStats};
use crate::backend::Backend;
use crate::cli::common::Compute;
use crate::cli::interrupt;
use crate::data::{Example, Loss};
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::{
    Cache, Scored, compressed_bytes, gradient_norms, mean_log_probs, shadow_attacks, threshold_attacks, token_stats,
};
use crate::model::Decoder;
use crate::study::plot;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What membership attacks need.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The model before tuning: a folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME", required = true)]
    base: Option<String>,
    /// The model to audit
    #[arg(long, value_name = "FOLDER|NAME", required = true)]
    tuned: Option<String>,
    /// Records that the model was tuned on
    #[arg(long, value_name = "FILE", required = true)]
    members: Option<PathBuf>,
    /// Records of the same source that it was not tuned on
    #[arg(long, value_name = "FILE", required = true)]
    nonmembers: Option<PathBuf>,
    /// Which tokens of a record with a prompt are scored
    #[arg(long, value_enum, default_value = "response")]
    loss_on: Loss,
    /// A folder for tables (text, CSV, JSON), ROC curves (SVG) and every record's scores
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Also score by the norm of each record's gradient (about three times the work)
    #[arg(long)]
    gradient_norm: bool,
    /// Fraction of a record's tokens that min-k averages
    #[arg(long, value_name = "FRACTION", default_value_t = 0.2)]
    min_k: f64,
    /// How it was decided who is a member; the bounds are about this choice
    #[arg(long, value_enum, default_value = "given", help_heading = "Bound")]
    membership: Membership,
    #[command(flatten)]
    charge: ChargeArgs,
    /// How many members and non-members there were in all, where only a part of them is scored
    #[arg(long, value_name = "M,N", value_delimiter = ',', help_heading = "Bound")]
    candidates: Option<Vec<u64>>,
    /// End with exit code 1 on an alarm
    #[arg(long, help_heading = "Bound")]
    fail_on_alarm: bool,
    #[command(flatten)]
    shadows: ShadowArgs,
    /// A folder that keeps scores, so that a stopped audit goes on [default: OUT/cache; without --out none]
    #[arg(long, value_name = "FOLDER", help_heading = "Running")]
    cache: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, help_heading = "Running")]
    json: bool,
    /// No progress, no notes
    #[arg(long, help_heading = "Running")]
    quiet: bool,
    #[command(flatten, next_help_heading = "Running")]
    compute: Compute,
}

/// Score, attack, judge, print.
pub(super) fn run(args: Args) -> Result<()> {
    interrupt::listen();
    let (Some(base), Some(tuned), Some(members), Some(nonmembers)) =
        (&args.base, &args.tuned, &args.members, &args.nonmembers)
    else {
        return Err(Error::usage("--base, --tuned, --members and --nonmembers are needed"));
    };
    let begun = Instant::now();
    if !(args.min_k > 0.0 && args.min_k <= 1.0) {
        return Err(Error::usage(format!("--min-k {}: a fraction above 0 and up to 1 is expected", args.min_k)));
    }
    for path in [members, nonmembers] {
        fsio::must_be_file(path)?;
    }
    let mut pair = pair::open(base, tuned)?;
    let found = args.charge.find(&pair)?;
    let (inside, outside) = (pair.records(members, args.loss_on)?, pair.records(nonmembers, args.loss_on)?);
    note_overlap(&mut pair, &inside, &outside);
    let cache = cache(args.cache.as_deref(), args.out.as_deref())?;
    let candidates = match args.candidates.as_deref() {
        Some([m, n]) if *m >= inside.len() as u64 && *n >= outside.len() as u64 => (*m, *n),
        Some(_) => {
            return Err(Error::usage(format!(
                "--candidates counts all from whom members were drawn: at least the {} and {} that are scored",
                inside.len(),
                outside.len()
            )));
        }
        None => (inside.len() as u64, outside.len() as u64),
    };
    let shadow_plan = args.shadows.plan(&mut pair, &inside, &outside, args.loss_on, found.known())?;

    // One list: members, non-members, and RMIA's population, each scored once under each model.
    let population = shadow_plan.as_ref().map_or(&[][..], |p| &p.population);
    let all: Vec<Example> = [&inside[..], &outside, population].concat();
    let scored = inside.len() + outside.len();
    let weights = pair.take_tuned();
    let tuned_stats = pair::with_decoder(
        &args.compute,
        weights,
        Score {
            examples: &all,
            norms: args.gradient_norm.then_some(scored),
            hash: &pair.tuned_sha256,
            cache: &cache,
            what: "tuned",
            quiet: args.quiet,
        },
    )?;
    let base_weights = pair.take_base();
    let kept = shadow_plan.as_ref().map(|_| base_weights.clone());
    let base_stats = pair::with_decoder(
        &args.compute,
        base_weights,
        Score {
            examples: &all[..scored],
            norms: None,
            hash: &pair.base_sha256,
            cache: &cache,
            what: "base",
            quiet: args.quiet,
        },
    )?;
    let log_probs = mean_log_probs(&tuned_stats.tokens);
    let records = record_stats(&pair, &all[..scored], tuned_stats, base_stats)?;
    let (m, n) = records.split_at(inside.len());
    let mut attacks = threshold_attacks(m, n, args.min_k)?;
    if let (Some(plan), Some(base)) = (&shadow_plan, kept) {
        let scores = shadows::scores(
            plan,
            &pair,
            base,
            &all,
            scored,
            inside.len(),
            log_probs,
            &cache,
            &args.compute,
            args.quiet,
        )?;
        attacks.extend(shadow_attacks(scores)?);
    }

    let design = Design::from(args.membership);
    let charge = found.tightest(design, candidates);
    let curves: Vec<(String, Roc)> = attacks.iter().map(|a| Ok((a.name.clone(), a.roc()?))).collect::<Result<_>>()?;
    let bound = Bound::new(&charge, design, candidates.0, candidates.1);
    let mut report = Report::new(&curves, charge, design, candidates);
    for (row, attack) in report.attacks.iter_mut().zip(&attacks) {
        row.held_out = held_out_threshold(&attack.members, &attack.nonmembers, 0).ok();
    }
    if !args.quiet {
        pair.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    let mut summary = json!({
        "base": base, "tuned": tuned, "base_sha256": pair.base_sha256, "tuned_sha256": pair.tuned_sha256,
        "members": inside.len(), "nonmembers": outside.len(), "candidates": [candidates.0, candidates.1],
        "shadows": shadow_plan.as_ref().map(|p| p.describe()),
        "notes": pair.notes, "seconds": begun.elapsed().as_secs_f64(), "out": args.out,
    });
    if let (Value::Object(summary), Value::Object(report)) = (&mut summary, report.json()) {
        summary.extend(report);
    }
    let text = report.text();
    if let Some(out) = &args.out {
        pair::write(out, "audit.txt", &text)?;
        pair::write(out, "audit.csv", &report.csv())?;
        pair::write(out, "audit.json", &format!("{summary:#}\n"))?;
        pair::write(out, "scores.csv", &scores_csv(&attacks))?;
        draw(out, &curves, &bound)?;
    }
    if args.json {
        fsio::print(&format!("{summary}\n"))?;
    } else {
        let written = args.out.as_ref().map_or(String::new(), |out| format!("{}\n", out.display()));
        fsio::print(&format!("{text}{written}"))?;
    }
    if report.alarm && args.fail_on_alarm {
        return Err(Error::Privacy("alarm: the model gives away more than was charged (--fail-on-alarm)".into()));
    }
    Ok(())
}

/// The folder of scores.
pub(super) fn cache(cache: Option<&Path>, out: Option<&Path>) -> Result<Cache> {
    match (cache, out) {
        (Some(dir), _) => Cache::at(dir),
        (None, Some(out)) => Cache::at(&out.join("cache")),
        (None, None) => Ok(Cache::none()),
    }
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
