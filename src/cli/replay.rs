//! `ferret replay`: the tuned checkpoint of a FERRET run, from its base model and transcript.

use super::common::progress;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::ferret::transcript::Transcript;
use crate::method::ferret::{replay, replay::save};
use crate::model::Weights;
use crate::model::checkpoint::{self, Checkpoint};
use serde_json::json;
use std::path::{Path, PathBuf};

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
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Rebuild the tuned weights from a transcript and write them, as training would have.
pub fn run(args: Args) -> Result<()> {
    fsio::must_be_new(&args.out)?;
    let transcript = read(&args.transcript)?;
    let mut base = checkpoint::load(&args.base)?;
    let tuned = rebuild(&mut base, &transcript, &args.transcript, args.quiet)?;
    save(&args.out, &base, &tuned, &transcript)?;
    let hash = transcript.tuned_sha256.as_deref().unwrap_or_default();
    if args.json {
        let summary = json!({
            "out": args.out, "steps": transcript.steps_run, "releases": transcript.releases.len(),
            "base_sha256": transcript.base_sha256, "tuned_sha256": hash,
        });
        fsio::print(&format!("{summary}\n"))
    } else {
        let (steps, releases) = (transcript.steps_run, transcript.releases.len());
        let out = args.out.display();
        fsio::print(&format!("{out}: {releases} releases in {steps} steps replayed; tensors' SHA-256 {hash}\n"))
    }
}

/// Read a transcript file.
pub(super) fn read(path: &Path) -> Result<Transcript> {
    Transcript::from_json(&fsio::read_text(path)?, path)
}

/// Replay with a progress bar; what is refused is the transcript's fault, so the message names its file. Takes the base
/// model's tensors: there is one copy of the weights in memory.
pub(super) fn rebuild(base: &mut Checkpoint, transcript: &Transcript, path: &Path, quiet: bool) -> Result<Weights> {
    let bar = progress(transcript.steps_run.into(), "replaying steps", quiet);
    let Weights { config, layout, tensors } = &mut base.weights;
    let weights = Weights { config: config.clone(), layout: layout.clone(), tensors: std::mem::take(tensors) };
    let tuned = replay(weights, transcript, |step| bar.set_position(u64::from(step)));
    bar.finish_and_clear();
    tuned.map_err(|e| Error::file(path, e.to_string()))
}
