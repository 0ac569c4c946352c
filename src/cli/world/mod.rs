//! `ferret world`: the program's own corpus as files, and how the embedded model came about.

mod build;
mod fit;
mod trial;

use super::common::{progress, working};
use crate::backend::Cpu;
use crate::data::synthetic::{self, Public, Split};
use crate::data::{Example, text};
use crate::error::{Error, Result};
use crate::model::checkpoint::{self, Dtype, SaveOptions};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Decoder, Weights};
use crate::study::table::thousands;
use crate::{eval, fsio};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Write the program's own corpus to a folder, rebuild the embedded model, or try the two out.
///
/// The corpus is made from a seed: public paragraphs, and private records (a preamble, a question, an answer with secrets)
/// about people who do not exist. No two records of any split are about the same person of the same town.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret world --out world --records 2000
  ferret eval --model embedded --data world/private-test.jsonl
  ferret train --method ferret-max --model embedded --data embedded:train:2000 --epsilon 0.5 --out tuned
  ferret world --trial
  ferret world --rebuild-model")]
#[command(group = clap::ArgGroup::new("what").required(true).args(["out", "rebuild_model", "trial"]))]
pub struct Args {
    /// A new folder for the corpus: public-train.txt, public-test.txt, private-SPLIT.jsonl
    #[arg(long, short = 'o', value_name = "DIR")]
    out: Option<PathBuf>,
    /// Train the embedded model from scratch again, to the same bits, and write it to DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "models/ferret-mini")]
    rebuild_model: Option<PathBuf>,
    /// Fine-tune the embedded model without any privacy, and show how it learns and leaks
    #[arg(long)]
    trial: bool,
    /// Seed of the corpus; the embedded model knows the public part of the default's
    #[arg(long, default_value_t = synthetic::SEED, conflicts_with = "rebuild_model")]
    seed: u64,
    /// Records of each private split
    #[arg(long, value_name = "N", default_value_t = synthetic::RECORDS)]
    records: u64,
    /// Shadow splits, with --out
    #[arg(long, value_name = "K", default_value_t = 0, requires = "out")]
    shadows: u16,
    /// Public paragraphs to write, with --out
    #[arg(long, value_name = "N", default_value_t = 4000, requires = "out")]
    paragraphs: u64,
    /// Passes over the records, with --trial
    #[arg(long, short = 'e', value_name = "N", default_value_t = 10, requires = "trial")]
    epochs: u32,
    /// Records a step, with --trial
    #[arg(long, short = 'b', value_name = "N", default_value_t = 25, requires = "trial")]
    batch: usize,
    /// AdamW's learning rate, with --trial
    #[arg(long, value_name = "RATE", default_value_t = 2e-3, requires = "trial")]
    learning_rate: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Build, try or print the world that the embedded model knows.
pub fn run(args: Args) -> Result<()> {
    let summary = if let Some(dir) = &args.rebuild_model {
        rebuild(dir, args.quiet)?
    } else if args.trial {
        trial::run(&args)?
    } else if let Some(dir) = &args.out {
        write(dir, &args)?
    } else {
        return Err(Error::usage("give --out, --rebuild-model or --trial"));
    };
    if args.json {
        return fsio::print(&format!("{summary}\n"));
    }
    Ok(())
}

/// The corpus as files.
fn write(dir: &Path, args: &Args) -> Result<Value> {
    fsio::must_be_new(dir)?;
    if args.records == 0 {
        return Err(Error::usage("--records 0 leaves nothing to learn from: ask for at least 1"));
    }
    let mut splits = vec![Split::Train, Split::Test, Split::Tuning];
    splits.extend((0..args.shadows).map(Split::Shadow));
    let public = [("public-train.txt", Public::Train), ("public-test.txt", Public::Test)];
    // Before anything is written: a split that does not exist is refused.
    synthetic::private_records(args.seed, Split::Shadow(args.shadows.saturating_sub(1)), 0)?;
    synthetic::check_count(args.records)?;
    let bar = progress((public.len() + splits.len()) as u64, "files", args.quiet);
    fsio::fill_folder(dir, |dir| {
        for (name, part) in public {
            fsio::write(&dir.join(name), synthetic::public_text(args.seed, part, args.paragraphs).as_bytes())?;
            bar.inc(1);
        }
        for &split in &splits {
            let records = synthetic::private_records(args.seed, split, args.records)?;
            fsio::write(&dir.join(format!("private-{split}.jsonl")), synthetic::to_jsonl(&records).as_bytes())?;
            bar.inc(1);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let splits: Vec<String> = splits.iter().map(Split::to_string).collect();
    if !args.json {
        let (paragraphs, records) = (thousands(args.paragraphs), thousands(args.records));
        fsio::print(&format!(
            "{}: {paragraphs} public paragraphs each to train and test on, {records} private records each of {}\n",
            dir.display(),
            splits.join(", ")
        ))?;
    }
    Ok(json!({"out": dir, "seed": args.seed, "paragraphs": args.paragraphs, "records": args.records, "splits": splits}))
}

/// Tokenizer, weights, config and README of the embedded model.
fn rebuild(dir: &Path, quiet: bool) -> Result<Value> {
    let json = {
        let _shown = working("learning the tokenizer", quiet);
        build::tokenizer()?
    };
    let tokenizer = Tokenizer::from_text(&json, &dir.join("tokenizer.json"))?;
    let bar = progress(0, "training", quiet);
    let weights = build::model(&tokenizer, |step, steps, _| {
        bar.set_length(steps.into());
        bar.set_position(step.into());
    })?;
    bar.finish_and_clear();
    let sha256 = checkpoint::tensors_sha256(&weights);
    let decoder = Decoder::new(Cpu::<f32>::new(), weights.clone())?;
    let public = perplexity(&decoder, &held_out(&tokenizer, &weights)?, quiet)?;
    let records = trial::examples(&tokenizer, &weights, synthetic::SEED, Split::Test, 1000)?;
    let private = perplexity(&decoder, &records, quiet)?;
    let readme = build::readme(&weights, public, private, &sha256);
    fsio::fill_folder(dir, |dir| {
        fsio::write(&dir.join("tokenizer.json"), json.as_bytes())?;
        fsio::write(&dir.join("README.md"), readme.as_bytes())
    })?;
    checkpoint::save(dir, &weights, &SaveOptions::fresh(Dtype::F32))?;
    let out = dir.display();
    if !quiet {
        fsio::tell(&format!(
            "{out}: perplexity {public:.4} on public text, {private:.4} on private records; build again to embed it"
        ));
    }
    Ok(json!({"out": dir, "perplexity_public": public, "perplexity_private": private, "sha256": sha256}))
}

/// The public text that the embedded model's perplexity is stated on.
fn held_out(tokenizer: &Tokenizer, weights: &Weights) -> Result<Vec<Example>> {
    let text = synthetic::public_text(synthetic::SEED, Public::Test, build::TEST_PARAGRAPHS);
    text::windows(&tokenizer.encode_long(&text)?, weights.config.positions, weights.config.positions)
}

fn perplexity(decoder: &Decoder<Cpu<f32>>, examples: &[Example], quiet: bool) -> Result<f64> {
    let bar = progress(examples.len() as u64, "measuring records", quiet);
    let losses = eval::losses(decoder, examples, |n| bar.inc(n as u64))?;
    bar.finish_and_clear();
    Ok(eval::token_mean(&losses).0.exp())
}
