//! Membership attacks: `ferret audit` without a further verb.

use super::charge::ChargeArgs;
use super::shadows::ShadowArgs;
use crate::audit::bound::Design;
use crate::cli::bars::Bars;
use crate::cli::common::{Compute, UnitArgs, width};
use crate::cli::{interrupt, ranks};
use crate::data::Loss;
use crate::data::synthetic::Request;
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::{Audit, Cache, Pair, ReadAs};
use crate::study;
use std::path::{Path, PathBuf};

/// What membership attacks need.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub(super) struct Args {
    /// The model before tuning: `embedded`, a folder, or a hub name
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
    #[command(flatten)]
    unit: UnitArgs,
    /// A folder for tables, curves and every record's scores
    ///
    /// Tables as text, CSV and JSON, ROC curves as SVG.
    #[arg(long, short = 'o', value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Also score by the norm of each record's gradient (about three times the work)
    #[arg(long)]
    gradient_norm: bool,
    /// Fraction of a record's tokens that min-k averages
    #[arg(long, value_name = "FRACTION", default_value_t = 0.2)]
    min_k: f64,
    /// How it was decided who is a member
    ///
    /// The bounds are about this choice.
    #[arg(long, value_name = "HOW", value_enum, default_value = "given", help_heading = "Bound")]
    membership: Design,
    #[command(flatten)]
    charge: ChargeArgs,
    /// How many members and non-members there were in all, where only a part of them is scored
    #[arg(long, value_name = "M,N", value_delimiter = ',', help_heading = "Bound")]
    candidates: Option<Vec<u64>>,
    /// End with exit code 1 on an alarm, and where no bound applies
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
    #[arg(long, short = 'q', help_heading = "Running")]
    quiet: bool,
    #[command(flatten, next_help_heading = "Running")]
    compute: Compute,
}

/// Score, attack, judge, print.
pub(super) fn run(args: Args) -> Result<()> {
    let (Some(base), Some(tuned), Some(members), Some(nonmembers)) =
        (&args.base, &args.tuned, &args.members, &args.nonmembers)
    else {
        return Err(Error::usage("--base, --tuned, --members and --nonmembers are needed"));
    };
    if !(args.min_k > 0.0 && args.min_k <= 1.0) {
        return Err(Error::usage(format!("--min-k {}: a fraction above 0 and up to 1 is expected", args.min_k)));
    }
    for path in [members, nonmembers] {
        // Before the models are read, unless the program makes the records itself.
        if path.to_str().and_then(Request::parse).is_none() {
            fsio::must_be_file(path)?;
        }
    }
    let mut pair = Pair::open(base, tuned)?;
    let provenance = args.charge.find(&pair)?;
    let read_as = ReadAs { loss: args.loss_on, unit: args.unit.unit()? };
    let (inside, outside) = (pair.records(members, read_as)?, pair.records(nonmembers, read_as)?);
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
    let shadows = args.shadows.plan(&mut pair, &inside, &outside, read_as, provenance.known(), &cache)?;
    let audit = Audit {
        candidates,
        shadows,
        gradient_norm: args.gradient_norm,
        min_k: args.min_k,
        cache,
        device: args.compute.device,
        ranks: ranks::world(),
        ..Audit::new(pair, provenance, inside, outside, args.membership)
    };
    let finding = audit.run(&bars(args.quiet))?;
    if !ranks::is_first() {
        return Ok(());
    }
    let summary = finding.json(base, tuned, args.out.as_deref());
    if let Some(out) = &args.out {
        study::audit::write(out, &finding, &summary)?;
    }
    if args.json {
        fsio::print(&format!("{summary}\n"))?;
    } else {
        let written = args.out.as_ref().map_or(String::new(), |out| format!("{}\n", out.display()));
        fsio::print(&format!("{}{written}", finding.report.text(width())))?;
    }
    if args.fail_on_alarm { fail(finding.report.alarm, finding.unjudged()) } else { Ok(()) }
}

/// The bars of an audit, of which the cache keeps what is done. Listens for Ctrl-C.
pub(super) fn bars(quiet: bool) -> Bars {
    interrupt::listen();
    Bars::new(quiet, "stopped; with --out or --cache the same command goes on from what is kept there")
}

/// What `--fail-on-alarm` makes of an audit: silence is a pass only where an alarm could have been raised.
pub(super) fn fail(alarm: bool, unjudged: Option<&str>) -> Result<()> {
    match unjudged {
        _ if alarm => Err(Error::Privacy("alarm: the model gives away more than was charged (--fail-on-alarm)".into())),
        Some(why) => Err(Error::Privacy(format!("nothing could be judged: {why} (--fail-on-alarm)"))),
        None => Ok(()),
    }
}

/// The folder of scores. One rank writes.
pub(super) fn cache(cache: Option<&Path>, out: Option<&Path>) -> Result<Cache> {
    match (cache, out) {
        _ if !ranks::is_first() => Ok(Cache::none()),
        (Some(dir), _) => Cache::at(dir),
        (None, Some(out)) => Cache::at(&out.join("cache")),
        (None, None) => Ok(Cache::none()),
    }
}
