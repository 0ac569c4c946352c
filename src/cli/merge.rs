//! `ferret merge`: an adapter's product added to the weights beside it.

use super::common::{ModelArg, working};
use crate::error::{Error, Result};
use crate::fsio;
use crate::model::adapter;
use crate::model::checkpoint::{self, Checkpoint, Dtype};
use serde_json::json;
use std::path::PathBuf;

/// Write a checkpoint that computes what a model with an adapter does.
///
/// Weights that had an adapter are written in f32, unless --dtype says otherwise, all others as they are stored.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ferret merge --model base --adapter tuned --out merged")]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// A new folder for the merged model
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
    /// Precision of the weights that had an adapter
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

/// What goes without saying to nobody.
const UNSTATED: &str = "no privacy statement goes with the merged tensors: the adapter's names the adapter on its base, and what it has spent is spent";

/// Merge and write.
pub fn run(args: Args) -> Result<()> {
    fsio::must_be_new(&args.out)?;
    let (mut base, _) = args.model.open_stored()?;
    if base.weights.config.adapter.is_none() {
        return Err(Error::usage("there is no adapter to merge: give --adapter, or an adapter's folder as --model"));
    }
    let shown = working("merging", args.quiet);
    let weights = adapter::merge(base.weights.take())?;
    let options = Checkpoint::save_options(&base);
    checkpoint::save(&args.out, &weights, &checkpoint::SaveOptions { dtype: args.dtype, ..options })?;
    let sha256 = checkpoint::tensors_sha256(&checkpoint::load_folder_stored(&args.out)?.weights);
    drop(shown);
    fsio::print(&match args.json {
        true => format!("{}\n", json!({"out": args.out, "sha256": sha256, "note": UNSTATED})),
        false => format!("{}: tensors' SHA-256 {sha256}\nnote: {UNSTATED}\n", args.out.display()),
    })
}
