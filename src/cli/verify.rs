//! `ferret verify`: is a checkpoint the replay of its transcript?

use super::replay::{read, rebuild};
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::ferret::transcript::FILE;
use crate::model::checkpoint;
use serde_json::json;
use std::path::PathBuf;

/// Check that a tuned checkpoint is the replay of its transcript, bit for bit.
///
/// Then nothing about the private records is in the weights but what the transcript's bits say.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ferret verify tuned --base openai-community/gpt2")]
pub struct Args {
    /// The tuned checkpoint, with its transcript.json
    #[arg(value_name = "FOLDER")]
    dir: PathBuf,
    /// The model the run began at: a folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Run the verb.
pub fn run(args: Args) -> Result<()> {
    let path = args.dir.join(FILE);
    let transcript = read(&path)?;
    let mut base = checkpoint::load(&args.base)?;
    let found = checkpoint::load_folder(&args.dir)?.weights;
    if found.config != base.weights.config {
        let what =
            format!("its config.json describes another decoder than {}'s: is this the base of the run?", args.base);
        return Err(Error::file(&args.dir, what));
    }
    let replayed = rebuild(&mut base, &transcript, &path, args.quiet)?;
    for (spec, (a, b)) in found.layout.specs().iter().zip(found.tensors.iter().zip(&replayed.tensors)) {
        if let Some(i) = a.iter().zip(b).position(|(x, y)| x.to_bits() != y.to_bits()) {
            let differ = a.iter().zip(b).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
            let what = format!(
                "is not its transcript's replay: {} differs in {differ} of {} scalars, first at {i} ({:e}, replayed {:e}); `ferret \
                 replay` writes the checkpoint that the transcript leads to",
                spec.name,
                a.len(),
                a[i],
                b[i]
            );
            return Err(Error::file(&args.dir, what));
        }
    }
    let (steps, releases) = (transcript.steps_run, transcript.releases.len());
    if args.json {
        let summary = json!({
            "verified": true, "steps": steps, "releases": releases, "scalars": found.layout.scalars(),
            "base_sha256": transcript.base_sha256, "tuned_sha256": transcript.tuned_sha256,
        });
        fsio::print(&format!("{summary}\n"))
    } else {
        let (dir, scalars) = (args.dir.display(), found.layout.scalars());
        fsio::print(&format!(
            "{dir}: all {scalars} scalars are the replay of {releases} releases in {steps} steps from {}\n",
            args.base
        ))
    }
}
