//! `ferret replay`: the tuned checkpoint of a run of FERRET or FERRET-k, from its base model and transcript.

use super::bars::Bars;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::Record;
use crate::method::verify::rebuild;
use crate::model::checkpoint;
use serde_json::json;
use std::path::PathBuf;

/// Rebuild a tuned checkpoint from its base model and transcript.
///
/// Needs no data and multiplies no matrices: the same bytes come out on every machine. A transcript that was tampered with and a base
/// model other than the run's are refused, and nothing is written.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ferret replay --base openai-community/gpt2 --transcript tuned/transcript.json --out rebuilt"
)]
pub struct Args {
    /// The model the run began at: a folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// The run's transcript.json
    #[arg(long, value_name = "FILE")]
    transcript: PathBuf,
    /// A new folder for the tuned checkpoint
    #[arg(long, short = 'o', value_name = "FOLDER")]
    out: PathBuf,
    /// Show no progress
    #[arg(long, short = 'q')]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Rebuild the tuned weights from a transcript and write them, as training would have.
pub fn run(args: Args) -> Result<()> {
    fsio::must_be_new(&args.out)?;
    let path = &args.transcript;
    let record = Record::from_transcript(&fsio::read_text(path)?, path)?;
    let mut base = checkpoint::load_stored(&args.base)?;
    // What is refused is the transcript's fault, so the message names its file.
    let refused = |e: Error| Error::file(path, e.to_string());
    let tuned = match rebuild(&mut base, &record, &Bars::new(args.quiet, "stopped")) {
        Some(tuned) => tuned.map_err(refused)?,
        None => {
            let what = "the run sent true gradients (--payload true-gradient), which no transcript holds: it cannot be replayed";
            return Err(Error::file(path, what));
        }
    };
    record.save(&args.out, &base, &tuned)?;
    let hash = record.tuned_sha256().unwrap_or_default();
    let (steps, releases) = (record.steps_run(), record.releases());
    if args.json {
        let summary = json!({
            "out": args.out, "steps": steps, "releases": releases, "base_sha256": record.base_sha256(), "tuned_sha256": hash,
        });
        return fsio::print(&format!("{summary}\n"));
    }
    let out = args.out.display();
    fsio::print(&format!("{out}: {releases} releases in {steps} steps replayed; tensors' SHA-256 {hash}\n"))
}
