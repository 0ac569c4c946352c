//! `ferret audit canaries`: planted secrets, looked for in a tuned model.

use super::charge::ChargeArgs;
use super::members::{self, cache, fail};
use crate::cli::common::{Compute, width};
use crate::cli::ranks;
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::canary::Planting;
use crate::measure::{CanaryAudit, Pair};
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
    #[arg(long, short = 'o', value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// A folder that keeps scores, so that a stopped audit goes on [default: OUT/cache; without --out none]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress, no notes
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

pub(super) fn run(args: Args) -> Result<()> {
    let planting =
        Planting::from_json(&fsio::read_text(&args.canaries)?).map_err(|e| Error::file(&args.canaries, e))?;
    let pair = Pair::open(&args.base, &args.tuned)?;
    let audit = CanaryAudit {
        provenance: args.charge.find(&pair)?,
        pair,
        planting: &planting,
        competitors: args.competitors,
        samples: args.samples,
        temperature: args.temperature,
        seed: args.seed,
        confidence: args.confidence,
        cache: cache(args.cache.as_deref(), args.out.as_deref())?,
        device: args.compute.device,
        ranks: ranks::world(),
    };
    let finding = audit.run(&members::bars(args.quiet))?;
    if !ranks::is_first() {
        return Ok(());
    }
    let (summary, text) = (finding.json(&args.base, &args.tuned), finding.text(width()));
    if let Some(out) = &args.out {
        fsio::private_folder(out)?;
        let (json, csv) = (format!("{summary:#}\n"), finding.csv());
        for (name, text) in [("canaries.json", &json), ("canaries.csv", &csv), ("canaries.txt", &text)] {
            fsio::write_private(&out.join(name), text.as_bytes())?;
        }
    }
    fsio::print(&if args.json { format!("{summary}\n") } else { text })?;
    if args.fail_on_alarm { fail(finding.alarm(), finding.unjudged()) } else { Ok(()) }
}
