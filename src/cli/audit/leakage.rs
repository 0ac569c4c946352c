//! `ferret audit leakage`: what FERRET's bits said about the records that made them.

use super::members::bars;
use crate::backend::Backend;
use crate::cli::common::{Compute, Job, UnitArgs};
use crate::cli::ranks;
use crate::data::{self, Example, LoadOptions, Loss};
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::{Metering, Pair, Reading, leakage};
use crate::method::ferret::{Transcript, transcript};
use crate::model::Weights;
use crate::progress::Progress;
use crate::rng::Secret;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Meter what the bits of a FERRET run gave away about its records, beside the ln 2 that was charged.
///
/// Reruns the fired steps from the transcript and takes every drawn record's share of each bit: had the bit been another without it?
/// The run's own samples are secret and gone, so fresh ones are drawn at the same rate: the reading is of runs like this one. It
/// depends on the records and is for whoever holds them.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ferret audit leakage --base base --tuned tuned --data records.jsonl")]
pub(super) struct Args {
    /// The model that the run began at
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// The run's folder, with its transcript.json
    #[arg(long, value_name = "FOLDER")]
    tuned: PathBuf,
    /// The records that the run was trained on
    #[arg(long, short = 'd', value_name = "FILE")]
    data: PathBuf,
    /// Which tokens counted in the loss
    #[arg(long, value_enum, default_value = "response")]
    loss_on: Loss,
    #[command(flatten)]
    unit: UnitArgs,
    /// Draw the samples from this seed, for a reading that can be repeated [default: from the operating system]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Records computed on at once
    #[arg(long, default_value_t = 8)]
    micro_batch: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress, no notes
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

struct Work<'a> {
    base: Weights,
    transcript: &'a Transcript,
    examples: &'a [Example],
    args: &'a Args,
    secret: Secret,
}

impl Job for Work<'_> {
    type Output = Reading;

    fn run<B: Backend>(self, backend: B) -> Result<Reading> {
        let Work { base, transcript, examples, args, secret } = self;
        let progress = bars(args.quiet);
        progress.begin("bits", transcript.releases.len() as u64);
        let (ranks, micro_batch) = (ranks::world(), args.micro_batch);
        let metering = Metering { transcript, examples, secret: &secret, micro_batch, ranks: &*ranks };
        leakage(backend, base, &metering, |n| progress.advance(n as u64))
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    if args.micro_batch == 0 {
        return Err(Error::usage("--micro-batch 0 would never finish a batch: give at least 1"));
    }
    let path = args.tuned.join(transcript::FILE);
    if !path.is_file() {
        return Err(Error::file(path, "there is no such file: the leakage meter reads the transcript of a FERRET run"));
    }
    let run = Transcript::from_json(&fsio::read_text(&path)?, &path)?;
    let tuned = args.tuned.to_string_lossy();
    let mut pair = Pair::open(&args.base, &tuned)?;
    // Every record, those without a token to predict included: the run drew among all of them.
    let unit = args.unit.unit()?;
    let options = LoadOptions { loss: args.loss_on, unit, ..LoadOptions::new(&pair.base.weights.config) };
    let dataset = data::load_examples(&args.data, pair.tokenizer.as_ref(), &options)?;
    let secret = args.seed.map_or_else(Secret::from_system, |seed| Ok(Secret::insecure(seed)))?;
    let base = pair.take_base();
    let work = Work { base, transcript: &run, examples: &dataset.examples, args: &args, secret };
    let reading = args.compute.run(work)?;
    if !ranks::is_first() {
        return Ok(());
    }
    let mut summary = json!({
        "base": args.base, "tuned": args.tuned, "method": run.settings.method, "samples": "fresh, Poisson at the run's rate",
    });
    if let (Value::Object(summary), Ok(Value::Object(reading))) = (&mut summary, serde_json::to_value(&reading)) {
        summary.extend(reading);
    }
    if args.json {
        return fsio::print(&format!("{summary}\n"));
    }
    let Reading { leakage: l, agreement } = &reading;
    let [low, high] = l.flip_rate_ci.map(|x| 100.0 * x);
    let [known_low, known_high] = l.leaked_nats_batch_known_ci;
    let mut text = format!(
        "bits released                         {}\n\
         records drawn for them                {} (fresh Poisson samples at the run's rate: the run's own are secret and gone)\n\
         fresh samples that say the same bit   {:.1} %\n\
         a drawn record was decisive           {:.3} % of the time (95 %: {low:.3} to {high:.3})\n\
         bits with a decisive record           {:.1} %\n\
         charged, nats a record                {:.6}\n\
         leaked if the batches were known      {:.6} (95 %: {known_low:.6} to {known_high:.6})\n\
         leaked with the batches secret        {:.6}\n",
        l.bits,
        l.drawn,
        100.0 * agreement,
        100.0 * l.flip_rate,
        100.0 * l.bits_with_a_decisive_record,
        l.charged_nats,
        l.leaked_nats_batch_known,
        l.leaked_nats_batch_secret,
    );
    if let Some((id, times)) = l.most_decisive {
        text += &format!(
            "most decisive record                  {} ({times} times, {:.4} nats in these draws)\n",
            id + 1,
            l.most_decisive_nats
        );
    }
    fsio::print(&text)
}
