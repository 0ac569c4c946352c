//! `ferret explain`: a FERRET run told step by step.

use super::common::{progress, width};
use super::interrupt;
use crate::audit::columns::{align, wrap};
use crate::data::{self, LoadOptions, Loss};
use crate::error::{Error, Result};
use crate::fsio;
use crate::measure::story::{self, Moment};
use crate::method::ferret::Transcript;
use crate::model::checkpoint;
use crate::model::tokenizer::Tokenizer;
use serde_json::json;
use std::path::PathBuf;

/// Tell a FERRET run step by step: which groups fired, the bit, how far the weights moved and, with --eval-data, what each bit did to the loss.
///
/// The transcript is followed as `ferret replay` does: no record of the run is needed. What is measured on --eval-data is a fact about those records.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret explain tuned/transcript.json --base my-model
  ferret explain tuned --base my-model --eval-data held-out.jsonl")]
pub struct Args {
    /// The run's transcript.json, or its folder
    #[arg(value_name = "TRANSCRIPT")]
    transcript: PathBuf,
    /// The model the run began at: `embedded`, a folder in the Hugging Face layout, or a hub name
    #[arg(long, value_name = "FOLDER|NAME")]
    base: String,
    /// Records to measure the loss on after every step
    #[arg(long, value_name = "FILE")]
    eval_data: Option<PathBuf>,
    /// Which tokens of a record with a prompt count in the loss
    #[arg(long, value_enum, default_value = "response")]
    loss_on: Loss,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Follow the transcript and print what happens.
pub fn run(args: Args) -> Result<()> {
    interrupt::listen();
    let path = if args.transcript.is_dir() { args.transcript.join("transcript.json") } else { args.transcript.clone() };
    let transcript = Transcript::from_json(&fsio::read_text(&path)?, &path)?;
    let base = checkpoint::load(&args.base)?;
    let tokenizer = Tokenizer::from_folder(&base.folder)?;
    let options = LoadOptions { loss: args.loss_on, ..LoadOptions::new(&base.weights.config) };
    let load = |path: &PathBuf| data::load_examples(path, tokenizer.as_ref(), &options);
    let records = args.eval_data.as_ref().map(load).transpose()?;
    let bar = progress(transcript.fires().len() as u64, "replaying", args.quiet);
    let mut moments: Vec<Moment> = Vec::new();
    let held_out = records.as_ref().map(|r| &r.examples[..]);
    let before = story::tell(&base.weights, &transcript, held_out, |moment| {
        bar.inc(moment.fires.len() as u64);
        moments.push(moment.clone());
        if interrupt::asked() { Err(Error::Interrupted("stopped".into())) } else { Ok(()) }
    });
    bar.finish_and_clear();
    let before = before.map_err(|e| match e {
        Error::Interrupted(_) => e,
        e => Error::file(&path, e.to_string()),
    })?;
    if args.json {
        let out = json!({ "transcript": path, "base": args.base, "method": transcript.settings.method, "loss_before": before, "steps": moments });
        return fsio::print(&format!("{out}\n"));
    }
    fsio::print(&text(&transcript, before, &moments, width()))
}

fn text(transcript: &Transcript, before: Option<f64>, moments: &[Moment], width: usize) -> String {
    let mut titles = vec!["step", "group", "released", "tensors", "moved"];
    if before.is_some() {
        titles.extend(["perplexity", "change in loss"]);
    }
    let mut table = vec![titles.into_iter().map(String::from).collect::<Vec<_>>()];
    let mut last = before;
    let mut count = 0;
    for moment in moments {
        for (i, fire) in moment.fires.iter().enumerate() {
            count += 1;
            // What the whole step did stands in the line of its last bit.
            let ends = i + 1 == moment.fires.len();
            let tensors = match &fire.tensors[..] {
                [one] => one.clone(),
                [first, .., end] => format!("{first} to {end}"),
                [] => String::new(),
            };
            let mut row = vec![
                moment.step.to_string(),
                fire.group.to_string(),
                format!("{:+}", fire.released),
                tensors,
                if ends { format!("{:.4}", moment.moved) } else { String::new() },
            ];
            if let (Some(was), Some(now)) = (last, moment.loss) {
                row.extend(if ends {
                    [format!("{:.3}", now.exp()), format!("{:+.4}", now - was)]
                } else {
                    Default::default()
                });
            }
            table.push(row);
        }
        last = moment.loss.or(last);
    }
    let settings = &transcript.settings;
    let mut out = format!(
        "{}, {} groups, {} steps, {} of them with a fire, learning rate {:e}\n\n",
        settings.method,
        settings.groups.len(),
        transcript.steps_run,
        moments.len(),
        settings.learning_rate
    );
    out += &align(&table, width);
    if let (Some(before), Some(after)) = (before, last) {
        out += &format!(
            "\nPerplexity {:.3} before, {:.3} after {count} releases: each lowered the loss by {:.2e}.\n",
            before.exp(),
            after.exp(),
            (before - after) / f64::from(count.max(1))
        );
    }
    wrap(&out, width)
}
