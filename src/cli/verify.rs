//! `ferret verify`: is a checkpoint what its files say?

use super::bars::Bars;
use crate::error::Result;
use crate::fsio;
use crate::method::verify::{Verification, verify};
use crate::model::checkpoint;
use std::path::PathBuf;

/// Check that a tuned checkpoint is the replay of its transcript, bit for bit, and that its statement is the one this leads to.
///
/// Then nothing about the private records is in the weights but what the transcript's bits say. Of methods without a transcript the
/// hashes and the statement are checked. Tensors that the model does not use are refused unless the base model has them too. What no
/// one can check afterwards, and what the files do not bind, is listed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ferret verify tuned --base openai-community/gpt2")]
pub struct Args {
    /// The tuned checkpoint, with its transcript.json or run.json
    #[arg(value_name = "FOLDER")]
    dir: PathBuf,
    /// The model the run began at: a folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// Show no progress
    #[arg(long, short = 'q')]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Recompute what a run's folder claims, file by file; an error where one is not true.
pub fn run(args: Args) -> Result<()> {
    let mut base = checkpoint::load_stored(&args.base)?;
    let found = verify(&args.dir, &mut base, &Bars::new(args.quiet, "stopped"))?;
    if args.json {
        return fsio::print(&format!("{}\n", serde_json::to_string(&found).expect("plain values")));
    }
    fsio::print(&text(&args, &found))
}

/// What was found, for a reader.
fn text(args: &Args, found: &Verification) -> String {
    let Verification { scalars, releases, steps, .. } = found;
    let (dir, base) = (args.dir.display(), &args.base);
    let mut out = if found.replayed {
        format!("{dir}: all {scalars} scalars are the replay of {releases} releases in {steps} steps from {base}\n")
    } else {
        format!("{dir}: the hashes of all {scalars} scalars and of {base} are those of a run of {steps} steps\n")
    };
    if let Some(version) = found.statement {
        out += &format!("the statement (version {version}) is the one that settings and releases lead to\n");
    }
    for (title, list) in [
        ("not bound by the run's files:", &found.not_bound),
        ("what no one can check afterwards:", &found.not_checkable),
    ] {
        if !list.is_empty() {
            out += &format!("{title}\n");
        }
        for line in list {
            out += &format!("  {line}\n");
        }
    }
    out
}
