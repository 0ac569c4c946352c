//! `ferret audit plant`: secrets put into a file of records, to be looked for after training.

use crate::data::{self, records};
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::canary::Planting;
use serde_json::json;
use std::path::PathBuf;

/// Put seeded secrets into a file of records, at stated frequencies or by coin flips.
///
/// Train on the new file, then look for the secrets with `ferret audit canaries`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret audit plant --data records.jsonl --format \"The code of unit {number} is ######.\" --frequencies 0,1,4,16 --each 10 \\
    --out planted.jsonl --canaries canaries.json
  ferret audit plant --data records.jsonl --format \"Key @@@@@@@@\" --coin-flip 500 --out planted.jsonl --canaries canaries.json")]
pub(super) struct Args {
    /// Records, a JSON object a line; they are kept as they are
    #[arg(long, short = 'd', value_name = "FILE")]
    data: PathBuf,
    /// A secret's sentence: # is a random digit, @ a random letter, {number} the canary's number (which gives each its own prompt), \# a #
    #[arg(long, value_name = "SENTENCE")]
    format: String,
    /// How often secrets are inserted, one group of secrets a number; 0 is a control that is never inserted
    #[arg(long, value_name = "N,..", value_delimiter = ',', required_unless_present = "coin_flip")]
    frequencies: Vec<u32>,
    /// Secrets at each frequency
    #[arg(long, value_name = "N", default_value_t = 10)]
    each: usize,
    /// In place of frequencies: M secrets, each inserted once or not at all by a fair coin, for the one-run audit of epsilon
    #[arg(long, value_name = "M", conflicts_with = "frequencies")]
    coin_flip: Option<usize>,
    /// Seed of secrets, places and coins
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The records with the secrets among them
    #[arg(long, short = 'o', value_name = "FILE")]
    out: PathBuf,
    /// The list of secrets, for whoever audits
    #[arg(long, value_name = "FILE")]
    canaries: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<()> {
    for path in [&args.out, &args.canaries] {
        fsio::must_be_new_file(path)?;
    }
    if fsio::same_file(&args.out, &args.canaries) {
        return Err(Error::usage("--out and --canaries name the same file: give each its own"));
    }
    if args.frequencies.iter().any(|&f| f > 100_000) || args.each > 1_000_000 {
        return Err(Error::usage("--frequencies up to 100000 and --each up to 1000000 are expected"));
    }
    let planting = match args.coin_flip {
        Some(count) => Planting::by_coins(&args.format, count, args.seed)?,
        None => Planting::at_frequencies(&args.format, &args.frequencies, args.each, args.seed)?,
    };
    let text = data::read_text(&args.data)?;
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(&text);
    if text.trim().is_empty() {
        return Err(Error::file(&args.data, "is empty: there are no records to hide secrets among"));
    }
    let lines: Vec<&str> = text.trim_end().lines().collect();
    // What training would refuse is refused here: the new file would be refused whole.
    let users = records::check(&args.data, &lines)?;
    let planted = planting.insert(&lines, users);
    let inserted = planted.len() - lines.len();
    // As private as the records, and the secrets are among them.
    fsio::write_private(&args.out, (planted.join("\n") + "\n").as_bytes())?;
    let list = serde_json::to_string_pretty(&planting).expect("plain values") + "\n";
    if let Err(e) = fsio::write_private(&args.canaries, list.as_bytes()) {
        // Planted records are of no use to an audit without the list.
        let _ = std::fs::remove_file(&args.out);
        return Err(e);
    }
    let (out, canaries) = (args.out.display(), args.canaries.display());
    if args.json {
        let summary = json!({
            "records": lines.len(), "canaries": planting.canaries.len(), "inserted": inserted, "out": args.out,
            "list": args.canaries,
        });
        return fsio::print(&format!("{summary}\n"));
    }
    fsio::print(&format!(
        "{out}: {} records with {inserted} lines of {} canaries among them; the secrets are in {canaries}\n",
        lines.len(),
        planting.canaries.len()
    ))
}
