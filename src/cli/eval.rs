//! `ferret eval`: loss and perplexity of a model on records.

use super::common::{Compute, DataArg, Job, ModelArg, progress};
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::eval::{self, RecordLoss};
use crate::fsio;
use crate::model::checkpoint::Opened;
use serde_json::json;

/// Loss and perplexity of a model on records.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ferret eval --model openai-community/gpt2 --data wiki.test.txt --stride 512\n  \
                        ferret eval --model my-model --data records.jsonl --per-record --json")]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    data: DataArg,
    /// Plain text: distance between the starts of windows; each later window counts only its last N tokens [default: the
    /// context, windows side by side]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// With --json: each record's mean loss too, in order (null where no token counts)
    #[arg(long, requires = "json")]
    per_record: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar, and no time after the result
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

struct Losses<'a> {
    opened: &'a Opened,
    examples: &'a [Example],
    quiet: bool,
}

impl Job for Losses<'_> {
    type Output = Vec<RecordLoss>;

    fn run<B: Backend>(self, backend: B) -> Result<Vec<RecordLoss>> {
        let decoder = self.opened.decoder(backend)?;
        let bar = progress(self.examples.len() as u64, "records", self.quiet);
        let losses = eval::losses(&decoder, self.examples, |n| bar.inc(n as u64))?;
        bar.finish_and_clear();
        Ok(losses)
    }
}

/// Mean loss and perplexity of a model on records.
pub fn run(args: Args) -> Result<()> {
    if args.stride == Some(0) {
        return Err(Error::usage("--stride 0 would never reach the end of the text: give at least 1"));
    }
    let (opened, tokenizer) = args.model.open_files()?;
    let dataset = args.data.open(&opened.config, tokenizer.as_ref(), args.stride)?;
    let start = std::time::Instant::now();
    let job = Losses { opened: &opened, examples: &dataset.examples, quiet: args.quiet };
    let losses = args.compute.run(job)?;
    let (loss, tokens) = eval::token_mean(&losses);
    if args.json {
        let mut out = json!({"loss": loss, "perplexity": loss.exp(), "tokens": tokens, "records": losses.len()});
        if args.per_record {
            out["record_losses"] = losses.iter().map(RecordLoss::mean).collect();
        }
        fsio::print(&format!("{out}\n"))?;
    } else {
        let what = if dataset.windows { "windows" } else { "records" };
        fsio::print(&format!(
            "loss        {loss:.4} nats a token\nperplexity  {:.4}\ntokens      {tokens} in {} {what}\n",
            loss.exp(),
            losses.len()
        ))?;
        if !args.quiet {
            let (fed, seconds) = (dataset.tokens() as f64, start.elapsed().as_secs_f64());
            eprintln!("{seconds:.1} s, {:.0} tokens/s", fed / seconds);
        }
    }
    Ok(())
}
