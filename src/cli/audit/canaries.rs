//! `ferret audit canaries`: planted secrets, looked for in a tuned model.

use super::charge::ChargeArgs;
use super::members::{cache, fail};
use super::pair::{self, Bar, OnDecoder};
use crate::audit::canary::{Attempts, Canary, Exposure, Extraction, extraction};
use crate::audit::one_run::{self, OneRun};
use crate::audit::report::align;
use crate::backend::Backend;
use crate::cli::common::Compute;
use crate::cli::interrupt;
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::Cache;
use crate::measure::canary::{Candidates, Planting, attempts};
use crate::model::Decoder;
use crate::model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Look for planted secrets: exposure by rank, extraction by decoding, and the one-run audit of epsilon.
///
/// Exposure is log2(competitors / rank) among secrets of the same format that were not planted: about 1.44 bits on average in a
/// model that memorised nothing, and as the base model says of them.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ferret audit canaries --base base --tuned tuned --canaries canaries.json --samples 50"
)]
pub(super) struct Args {
    /// The model before tuning
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// The model to audit
    #[arg(long, value_name = "FOLDER|NAME")]
    tuned: String,
    /// The list that `ferret audit plant` wrote
    #[arg(long, value_name = "FILE")]
    canaries: PathBuf,
    /// Secrets of the same format that each canary is ranked among
    #[arg(long, value_name = "N", default_value_t = 255)]
    competitors: usize,
    /// Sampled continuations of each prompt
    #[arg(long, value_name = "N", default_value_t = 10)]
    samples: usize,
    /// Temperature of the sampled continuations
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Seed of the sampled continuations
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The one-run audit's lower limit of epsilon holds with this probability
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    confidence: f64,
    #[command(flatten)]
    charge: ChargeArgs,
    /// End with exit code 1 where more was found than was charged, and also where nothing could be judged: without --coin-flip in
    /// `audit plant`, or where nothing was charged
    #[arg(long, help_heading = "Bound")]
    fail_on_alarm: bool,
    /// A folder for canaries.json and canaries.csv
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// A folder that keeps scores, so that a stopped audit goes on [default: OUT/cache; without --out none]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress, no notes
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

pub(super) fn run(args: Args) -> Result<()> {
    interrupt::listen();
    if args.competitors == 0 {
        return Err(Error::usage("--competitors 0: a rank needs at least one other secret"));
    }
    if !(args.confidence > 0.0 && args.confidence < 1.0) {
        return Err(Error::usage(format!(
            "--confidence {}: a probability between 0 and 1 is expected",
            args.confidence
        )));
    }
    let planting =
        Planting::from_json(&fsio::read_text(&args.canaries)?).map_err(|e| Error::file(&args.canaries, e))?;
    let mut pair = pair::open(&args.base, &args.tuned)?;
    let found = args.charge.find(&pair)?;
    let tokenizer = pair.text_tokenizer()?.clone();
    let candidates = planting.examples(args.competitors, &tokenizer, pair.context())?;
    let cache = cache(args.cache.as_deref(), args.out.as_deref())?;
    let tuned_weights = pair.take_tuned();
    let tuned_hash = pair.tuned_sha256.clone();
    let tuned = pair::with_decoder(
        &args.compute,
        tuned_weights,
        Look {
            args: &args,
            planting: &planting,
            candidates: &candidates,
            tokenizer: Some(&tokenizer),
            hash: &tuned_hash,
            cache: &cache,
            what: "tuned",
        },
    )?;
    let base_weights = pair.take_base();
    let base = pair::with_decoder(
        &args.compute,
        base_weights,
        Look {
            args: &args,
            planting: &planting,
            candidates: &candidates,
            tokenizer: None,
            hash: &pair.base_sha256,
            cache: &cache,
            what: "base",
        },
    )?;
    let (exposures, before) = (candidates.exposures(&tuned.log_probs)?, candidates.exposures(&base.log_probs)?);
    let list: Vec<Canary> = planting.canaries.iter().map(|p| p.canary.clone()).collect();
    let extracted = extraction(&list, &tuned.attempts)?;
    let delta = found.eps_delta().map_or(1e-5, |c| c.1);
    let one_run = planting.coin_flip.then(|| {
        // Relative to the base model, which knows no canary: what remains is what tuning did.
        let own = candidates.of_canaries(&tuned.log_probs);
        let gain: Vec<f64> = own.iter().zip(&base.log_probs).map(|(t, b)| t - b).collect();
        let included: Vec<bool> = list.iter().map(|c| c.repeats > 0).collect();
        let m = list.len();
        let mut guesses: Vec<usize> = [m / 8, m / 4, m / 2, m].into_iter().filter(|&r| r >= 2).collect();
        guesses.dedup();
        one_run::audit(&gain, &included, &guesses, delta, 1.0 - args.confidence)
    });
    let one_run = one_run.transpose()?;

    let frequencies = by_frequency(&list, &exposures, &before, &extracted);
    let rows: Vec<Value> = list
        .iter()
        .zip(exposures.iter().zip(&before))
        .map(|(c, (e, b))| {
            json!({"text": c.text, "secret": c.secret, "repeats": c.repeats, "exposure": e, "base_exposure": b})
        })
        .collect();
    let summary = json!({
        "base": args.base, "tuned": args.tuned, "canaries": list.len(), "competitors": args.competitors,
        "frequencies": frequencies, "extraction": extracted, "one_run": one_run,
        "accountant": {"eps_delta": found.eps_delta(), "bits": found.bits()}, "each": rows, "notes": pair.notes,
    });
    let text = text(&frequencies, one_run.as_ref(), found.eps_delta(), found.bits());
    let (alarm, unjudged) = verdict(one_run.as_ref(), found.eps_delta(), found.bits());
    let mut summary = summary;
    summary["alarm"] = json!(alarm);
    summary["judged"] = json!(unjudged.is_none());
    if let Some(out) = &args.out {
        pair::write(out, "canaries.json", &format!("{summary:#}\n"))?;
        pair::write(out, "canaries.csv", &csv(&list, &exposures, &before))?;
        pair::write(out, "canaries.txt", &text)?;
    }
    fsio::print(&if args.json { format!("{summary}\n") } else { text })?;
    if args.fail_on_alarm { fail(alarm, unjudged) } else { Ok(()) }
}

/// Whether more was found than was charged, and why that could not be asked where it could not.
fn verdict(one_run: Option<&OneRun>, eps_delta: Option<(f64, f64)>, bits: Option<u64>) -> (bool, Option<&'static str>) {
    let Some(found) = one_run else {
        return (false, Some("exposure has no bound; plant the secrets with --coin-flip for one"));
    };
    let alarm = eps_delta.is_some_and(|(eps, _)| found.eps_lower > eps)
        || bits.is_some_and(|bits| found.bits_lower > bits as f64);
    let charged = eps_delta.is_some() || bits.is_some();
    (
        alarm,
        (!charged).then_some("the model states no bits and no (eps, delta) that leaving a record out is covered by"),
    )
}

/// What one model says of the candidates, and, with a tokenizer, how it continues prompts.
struct Look<'a> {
    args: &'a Args,
    planting: &'a Planting,
    candidates: &'a Candidates,
    tokenizer: Option<&'a Tokenizer>,
    hash: &'a str,
    cache: &'a Cache,
    what: &'static str,
}

struct Seen {
    log_probs: Vec<f64>,
    attempts: Vec<Attempts>,
}

impl OnDecoder for Look<'_> {
    type Output = Seen;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Seen> {
        let Look { args, planting, candidates, tokenizer, hash, cache, what } = self;
        let bar = Bar::new(candidates.examples.len(), what, args.quiet);
        let log_probs = candidates.log_probs(decoder, hash, cache, |n| bar.step(n))?;
        drop(bar);
        let Some(tokenizer) = tokenizer else { return Ok(Seen { log_probs, attempts: Vec::new() }) };
        let bar = Bar::new(planting.canaries.len(), "extraction", args.quiet);
        let step = |n| bar.step(n);
        let attempts = attempts(decoder, tokenizer, planting, args.samples, args.temperature, args.seed, step)?;
        Ok(Seen { log_probs, attempts })
    }
}

/// Mean exposure, and extraction, by frequency.
fn by_frequency(list: &[Canary], tuned: &[Exposure], base: &[Exposure], extracted: &[Extraction]) -> Vec<Value> {
    extracted
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

fn text(frequencies: &[Value], one_run: Option<&OneRun>, eps_delta: Option<(f64, f64)>, bits: Option<u64>) -> String {
    let head = ["inserted", "canaries", "mean exposure [bits]", "largest", "base model's mean", "greedy", "sampled"];
    let mut table = vec![head.map(String::from).to_vec()];
    for row in frequencies {
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
    let mut out = align(&table);
    out += "\nA model that memorised nothing has a mean exposure of about 1.44 bits. greedy, sampled: canaries that it said.\n";
    if let Some(found) = one_run {
        let OneRun { guesses, right, eps_lower, delta, confidence, bits_lower, .. } = found;
        out += &format!(
            "One-run audit: {right} of {guesses} guesses right; epsilon is at least {eps_lower:.3} at delta {delta:e}, and at least \
             {bits_lower:.1} bits were released, with {:.0} % confidence.\n",
            100.0 * confidence
        );
        match eps_delta {
            Some((eps, delta)) => {
                let word = if *eps_lower > eps { "ALARM: below what was found" } else { "consistent" };
                out += &format!("The accountant's upper limit: ({eps:.4}, {delta:e}): {word}.\n");
            }
            None => out += "No accountant states an (eps, delta) for this model.\n",
        }
        if let Some(bits) = bits {
            let word = if *bits_lower > bits as f64 { "ALARM: fewer than were found" } else { "consistent" };
            out += &format!("Released bits that were charged for: {bits}: {word}.\n");
        }
    }
    out
}

fn csv(list: &[Canary], tuned: &[Exposure], base: &[Exposure]) -> String {
    let mut out =
        String::from("canary,inserted [times],rank,among,exposure [bits],p [probability],base_exposure [bits]\n");
    for (i, (canary, (e, b))) in list.iter().zip(tuned.iter().zip(base)).enumerate() {
        out += &format!("{},{},{},{},{},{},{}\n", i + 1, canary.repeats, e.rank, e.among, e.bits, e.p_value, b.bits);
    }
    out
}
