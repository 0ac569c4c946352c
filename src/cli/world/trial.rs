//! Does training without privacy learn from the private records, and does it leak them?

use super::Args;
use super::fit::{self, Settings};
use crate::audit::roc::Roc;
use crate::backend::Cpu;
use crate::cli::common::progress;
use crate::data::synthetic::{self, Split};
use crate::data::{Example, LoadOptions, records};
use crate::error::{Error, Result};
use crate::eval::{self, RecordLoss};
use crate::fsio;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Decoder, Reduction, Weights, checkpoint, embedded};
use crate::optim::{Hyper, Schedule};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// The first `n` records of a split, tokenised.
pub(super) fn examples(
    tokenizer: &Tokenizer,
    weights: &Weights,
    seed: u64,
    split: Split,
    n: u64,
) -> Result<Vec<Example>> {
    let lines = synthetic::to_jsonl(&synthetic::private_records(seed, split, n)?);
    let dataset =
        records::load(Path::new(embedded::NAME), &lines, Some(tokenizer), &LoadOptions::new(&weights.config))?;
    Ok(dataset.examples)
}

/// Fine-tune, and after each pass tell perplexities and the AUC of telling members by their loss.
pub(super) fn run(args: &Args) -> Result<Value> {
    if args.records == 0 || args.batch == 0 || args.epochs == 0 {
        return Err(Error::usage("--records, --batch and --epochs must be at least 1"));
    }
    if !(args.learning_rate >= 0.0 && args.learning_rate.is_finite()) {
        return Err(Error::usage(format!("--learning-rate {}: a number from 0 up is expected", args.learning_rate)));
    }
    let base = checkpoint::load(embedded::NAME)?;
    let tokenizer = Tokenizer::from_folder(&base.folder)?.expect("the embedded model has a tokenizer");
    let load = |split| examples(&tokenizer, &base.weights, args.seed, split, args.records);
    let (members, others) = (load(Split::Train)?, load(Split::Test)?);
    let settings = Settings {
        epochs: args.epochs,
        batch: args.batch,
        hyper: Hyper::new(args.learning_rate, 1e-3),
        schedule: Schedule::Constant,
        reduction: Reduction::SampleMean,
        seed: args.seed,
    };
    let steps = settings.steps(members.len())?;
    let mut rows = Vec::new();
    let begun = Instant::now();
    let mut show = |epoch: u32, decoder: &Decoder<Cpu<f32>>| -> Result<()> {
        let bar = progress((members.len() + others.len()) as u64, "measuring records", args.quiet);
        let inside = eval::losses(decoder, &members, |n| bar.inc(n as u64))?;
        let outside = eval::losses(decoder, &others, |n| bar.inc(n as u64))?;
        bar.finish_and_clear();
        let perplexity = |losses: &[RecordLoss]| eval::token_mean(losses).0.exp();
        let score = |l: &[RecordLoss]| l.iter().map(|l| -l.mean().unwrap_or_default()).collect::<Vec<_>>();
        let (train, test) = (perplexity(&inside), perplexity(&outside));
        if !(train.is_finite() && test.is_finite()) {
            return Err(Error::Diverged(format!(
                "the perplexity after {epoch} passes is infinite: training has diverged"
            )));
        }
        let auc = Roc::new(&score(&inside), &score(&outside))?.auc();
        if !args.json {
            let seconds = begun.elapsed().as_secs_f64();
            let head = if epoch == 0 { "epoch  train perplexity  test perplexity  AUC by loss  seconds\n" } else { "" };
            fsio::print(&format!("{head}{epoch:5}{train:18.3}{test:17.3}{auc:13.3}{seconds:9.1}\n"))?;
        }
        rows.push(json!({"epoch": epoch, "train_perplexity": train, "test_perplexity": test, "auc": auc}));
        Ok(())
    };
    show(0, &Decoder::new(Cpu::<f32>::new(), base.weights.clone())?)?;
    let bar = progress(steps.into(), "steps", args.quiet);
    fit::fit(base.weights.clone(), &members, &settings, |_| bar.inc(1), |e, d| bar.suspend(|| show(e, d)))?;
    bar.finish_and_clear();
    Ok(json!({"records": args.records, "batch": args.batch, "learning_rate": args.learning_rate, "epochs": rows}))
}
