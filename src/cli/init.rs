//! `ferret init`: a fresh random checkpoint.

use super::common::working;
use crate::error::{Error, Result};
use crate::fsio;
use crate::model::Layout;
use crate::model::checkpoint::{self, Dtype, OpenCheckpoint, SaveOptions};
use crate::model::config::Config;
use crate::model::family;
use crate::model::init::{self, Preset};
use crate::model::tokenizer::Tokenizer;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Write a fresh random checkpoint.
///
/// Weights are normal with the config's standard deviation (0.02), GPT-2's residual projections narrower by 1/sqrt(2 L), gains 1, biases 0.
/// The same seed gives the same bytes on every machine. Transformers loads the folder as it is.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ferret init --preset gpt2 --seed 1 --out runs/fresh --tokenizer path/to/gpt2")]
pub struct Args {
    /// A shape by name
    #[arg(long, value_parser = presets(), required_unless_present = "config", conflicts_with = "config")]
    preset: Option<Preset>,
    /// A shape by its config.json
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder to write: new, or there and empty
    #[arg(long, short = 'o', value_name = "DIR")]
    out: PathBuf,
    /// Precision of the file
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// A folder whose tokenizer is copied; the tiny preset takes its vocabulary size from it
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Write a fresh checkpoint.
pub fn run(args: Args) -> Result<()> {
    let (mut config, text) = match (&args.preset, &args.config) {
        (Some(preset), _) => (preset.config(), None),
        (None, Some(path)) => {
            let text = fsio::read_text(path)?;
            (family::parse(&text, path)?.config, Some(text))
        }
        (None, None) => return Err(Error::usage("give --preset or --config")),
    };
    if let Some(folder) = &args.tokenizer {
        use_tokenizer(&mut config, folder, args.preset == Some(Preset::Tiny))?;
    }
    fsio::must_be_new(&args.out)?;
    let shown = working("drawing, writing and hashing the weights", args.quiet);
    let layout = Layout::new(&config);
    let options =
        SaveOptions { config_json: text, tokenizer_from: args.tokenizer.clone(), ..SaveOptions::fresh(args.dtype) };
    // One tensor at a time: the largest model needs no more memory than its largest tensor.
    checkpoint::save_made(&args.out, &config, &layout, &options, |i| init::draw(&config, &layout, i, args.seed))?;
    let (scalars, hash) = (layout.scalars(), OpenCheckpoint::folder(&args.out)?.sha256()?);
    drop(shown);
    let out = args.out.display().to_string();
    fsio::print(&if args.json {
        format!("{}\n", json!({"out": out, "parameters": scalars, "seed": args.seed, "sha256": hash}))
    } else {
        let tensors = layout.len();
        format!("{out}: {tensors} tensors, {scalars} parameters, seed {}\ntensors' SHA-256 {hash}\n", args.seed)
    })
}

fn use_tokenizer(config: &mut Config, folder: &Path, adapt: bool) -> Result<()> {
    let Some(tokenizer) = Tokenizer::from_folder(folder)? else {
        return Err(Error::file(folder, "has no tokenizer.json, and no vocab.json and merges.txt"));
    };
    if adapt {
        config.vocab = tokenizer.max_id() as usize + 1;
        config.eos = tokenizer.id("<|endoftext|>");
    }
    tokenizer.check(config)
}

/// The presets by their names.
fn presets() -> impl TypedValueParser<Value = Preset> {
    let all = Preset::all().map(|preset| PossibleValue::new(preset.name()).help(preset.about()));
    PossibleValuesParser::new(all).map(|name| Preset::find(&name).expect("a name of the list"))
}
