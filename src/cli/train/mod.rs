//! `ferret train`: fine-tune a model by any method, with a statement of what that gives away.

mod dense;
mod ferret;
mod ferret_k;
mod resume;
mod scales;
mod shard;
#[cfg(all(test, feature = "embedded"))]
mod tests;

pub(super) use ferret::ReleaseKind;
pub(super) use resume::expand;

use super::audit::{OwnArgs, OwnRun};
use super::bars::Bars;
use super::common::{Compute, DataArg, Job, ModelArg, TuneArgs, open_records, tell};
use super::ranks;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::ferret_k::NAME;
use crate::method::folder::{Stage, stage};
use crate::method::list::{self, Method};
use crate::method::training::{Request, Training};
use crate::model::Config;
use crate::optim::{Route, Schedule};
use crate::privacy::Sampler;
use crate::privacy::statement::{FILE, Statement};
use crate::progress::Progress;
use crate::study::table::thousands;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Fine-tune a model, privately or not, and state what the result gives away.
///
/// The folder gets the tuned model, privacy.json and PRIVACY.md, log.jsonl and, for FERRET and FERRET-k, transcript.json, from which
/// `ferret replay` rebuilds the model. Ctrl-C saves; `ferret train --resume FOLDER` goes on to the same bits.
#[derive(clap::Args, Debug)]
#[command(args_override_self = true)]
#[command(after_help = "Examples:
  ferret train --method ferret-max --model base --data records.jsonl --epsilon 0.5 --epochs 5 --batch 50 --out tuned
  ferret train --method ferret-max --model base --data records.jsonl --epsilon 0.5 --batch 1 --release rr --flip 0.02 --out tuned
  ferret train --method ferret-k --model base --data records.jsonl --dp-epsilon 1 --delta 1e-5 --epochs 3 --batch 50 --out tuned
  ferret train --method dpsgd --model base --data records.jsonl --dp-epsilon 0.5 --delta 1e-5 --epochs 5 --batch 50 --out tuned
  ferret train --method nonprivate --model base --data records.jsonl --eval-data held-out.jsonl --out tuned
  mpirun -n 4 ferret train --method ferret-max --model base --data shard-{rank}.jsonl --epsilon 0.5 --batch 50 --out tuned
  ferret train --resume tuned")]
pub struct Args {
    /// ferret-max, ferret-2, ferret-k, dpsgd, nonprivate and others
    ///
    /// The others: ferret-half, ferret-quarter, ferret-eighth, or ferret with --groups or --bucket; dp-signsgd; not private: signsgd, qsgd.
    #[arg(long)]
    method: String,
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    data: DataArg,
    /// Records to report loss and perplexity on, before and after
    #[arg(long, value_name = "FILE")]
    eval_data: Option<PathBuf>,
    #[command(flatten)]
    tune: TuneArgs,
    /// A new folder for the tuned model
    #[arg(
        long,
        short = 'o',
        value_name = "FOLDER",
        required = false,
        required_unless_present = "dry_run",
        default_value_if("dry_run", "true", ".")
    )]
    out: PathBuf,

    /// FERRET: nats of mutual information, no epsilon of DP
    #[arg(long, visible_alias = "nats", value_name = "NATS", help_heading = "Budget")]
    epsilon: Option<f64>,
    /// dpsgd, ferret-k: noise that makes it (E, delta)-DP
    ///
    /// It is found for the planned run: of dpsgd, dp-signsgd and ferret-k; of FERRET with --release rr or gaussian the flip or dither.
    #[arg(long, visible_alias = "target-epsilon", value_name = "E", help_heading = "Budget")]
    dp_epsilon: Option<f64>,
    /// The delta of (eps, delta)
    #[arg(long, visible_alias = "target-delta", default_value_t = 1e-5, help_heading = "Budget")]
    delta: f64,
    /// Passes over the records
    #[arg(long, short = 'e', visible_alias = "num-train-epochs", default_value_t = 3, help_heading = "Budget")]
    epochs: u32,
    /// Expected records in a batch
    #[arg(
        long,
        short = 'b',
        visible_alias = "per-device-train-batch-size",
        default_value_t = 50,
        help_heading = "Budget"
    )]
    batch: u64,
    /// Records computed on at once: sets the memory; for signsgd's majority vote, the workers
    #[arg(long, default_value_t = 8, help_heading = "Budget")]
    micro_batch: u32,
    /// Run each block again in backward instead of keeping its activations: for long contexts; slower, the same bits
    #[arg(long, help_heading = "Budget")]
    recompute: bool,
    /// How batches are drawn
    #[arg(long, value_enum, default_value = "poisson", help_heading = "Budget")]
    sampler: Sampler,
    /// Stop after this many steps: part of the plan, so that a run which is resumed stops where it was begun to
    #[arg(long, value_name = "N", help_heading = "Budget")]
    max_steps: Option<u32>,

    /// Seed of the public randomness: mask, directions, coins, rounding
    #[arg(long, default_value_t = 0, help_heading = "Randomness")]
    seed: u64,
    /// Fix sampling and noise, for runs that can be repeated: the result is then NOT private
    #[arg(long, value_name = "SEED", help_heading = "Randomness")]
    insecure_seed: Option<u64>,

    /// Peak rate; ferret-k: the length of its steps [default: by method and size; the run tells it]
    #[arg(long, value_name = "RATE", help_heading = "Updates")]
    learning_rate: Option<f64>,
    /// Learning rate over the run [default: constant; nonprivate: linear, the paper's recipe]
    #[arg(long, value_enum, help_heading = "Updates")]
    schedule: Option<ScheduleKind>,
    /// Share of the steps over which a linear schedule warms up
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, help_heading = "Updates")]
    warmup: f64,
    /// AdamW's weight decay; --route direct has none
    #[arg(long, default_value_t = 1e-3, help_heading = "Updates")]
    weight_decay: f64,
    /// C: the length of a fired group's update, or the clipping bound of dpsgd, dp-signsgd and ferret-k
    #[arg(long, short = 'C', visible_alias = "max-grad-norm", default_value_t = 1.0, help_heading = "Updates")]
    clip: f64,
    /// How updates reach the weights [default: adamw; ferret-k: direct]
    #[arg(long, value_enum, help_heading = "Updates")]
    route: Option<Route>,

    #[command(flatten, next_help_heading = "FERRET")]
    ferret: ferret::FerretArgs,
    #[command(flatten, next_help_heading = "FERRET-k")]
    ferret_k: ferret_k::FerretKArgs,
    #[command(flatten, next_help_heading = "DPSGD and other whole updates")]
    dense: dense::DenseArgs,
    #[command(flatten, next_help_heading = "Audit")]
    audit: OwnArgs,

    /// Also log tokens, seconds and loss of each step, which depend on the realised batch; the statement then says so
    #[arg(long, help_heading = "Running")]
    log_private: bool,
    /// Save what resuming needs after every N computed steps
    #[arg(long, value_name = "N", default_value_t = 25, help_heading = "Running")]
    checkpoint_every: u32,
    /// Go on with an unfinished run
    ///
    /// `--resume FOLDER` alone goes on with the unfinished run there. Without a folder: go on with the run in --out if there is one, which
    /// must have been begun with the same arguments, else begin it.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, help_heading = "Running")]
    resume: Option<Option<PathBuf>>,
    /// Begin again in --out, where a run has diverged, with another --learning-rate or other settings; the statement says so
    #[arg(long, help_heading = "Running")]
    restart_diverged: bool,
    /// Plan only: what the run would release, spend and promise; nothing is trained or written
    #[arg(long, conflicts_with_all = ["resume", "restart_diverged"], help_heading = "Running")]
    dry_run: bool,
    /// Print one JSON object at the end
    #[arg(long, help_heading = "Running")]
    json: bool,
    /// No progress, and no notes but those on the model and the records
    #[arg(long, short = 'q', help_heading = "Running")]
    quiet: bool,
    #[command(flatten, next_help_heading = "Running")]
    compute: Compute,
}

/// The learning rate over the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ScheduleKind {
    /// The same at every step
    Constant,
    /// Up over the warm-up, then down to zero
    Linear,
}

/// Plan, train, write, audit.
pub fn run(args: Args) -> Result<()> {
    let method = args.method.as_str();
    if !list::NAMES.contains(&method) {
        return Err(Error::usage(format!(
            "--method {method} is not known: {}; ferret needs --groups or --bucket",
            list::NAMES.join(", ")
        )));
    }
    if matches!(args.resume, Some(Some(_))) {
        return Err(Error::usage(
            "--resume FOLDER goes on with the run there and needs no other arguments of it: leave out --out, or the folder",
        ));
    }
    super::interrupt::listen();
    let audit = args.resume.is_some() && args.audit.asked();
    if audit && ranks::first_finds("only the audit is left", || Ok(stage(&args.out)? == Stage::Finished))? {
        // Only the audit is left to do, or to go on with.
        if ranks::is_first() {
            args.is_of(&args.out)?;
        }
        return args.conclude(json!({"method": method, "out": args.out}), None);
    }
    let settings = args.settings()?;
    let bars = Bars::new(args.quiet, "stopped");
    let request = args.request(&bars, settings)?;
    let notes = request.method.notes();
    if args.dry_run {
        bars.begin("accounting", 0);
        let plan = request.plan()?;
        bars.end();
        let said = if args.json { format!("{plan}\n") } else { text(&plan) };
        return if ranks::is_first() { fsio::print(&said) } else { Ok(()) };
    }
    let mut training = Training::open(request, &bars)?;
    bars.end();
    for note in notes {
        args.note(&format!("note: {note}"));
    }
    if training.is_insecure() {
        args.note("note: not private: sampling and noise are known (--insecure-seed)");
    }
    let summary = args.compute.device.run(Work { training: &mut training, bars: &bars }, &bars);
    bars.end();
    args.conclude(summary?, Some(training))
}

struct Work<'a> {
    training: &'a mut Training,
    bars: &'a Bars,
}

impl Job for Work<'_> {
    type Output = Value;

    fn run<B: Backend>(self, backend: B) -> Result<Value> {
        self.training.run(backend, self.bars)
    }
}

/// From arguments, a model's config and a number of records to a method with its settings.
type Settings = fn(&Args, &Config, u64, &Bars) -> Result<Method>;

impl Args {
    /// Who makes the settings of this method, once arguments of others are refused.
    fn settings(&self) -> Result<Settings> {
        let (refuse_strangers, settings): (fn(&Args) -> Result<()>, Settings) = match self.method.as_str() {
            NAME => (ferret_k::refuse_strangers, ferret_k::settings),
            name if list::is_ferret(name) => (ferret::refuse_strangers, ferret::settings),
            _ => (dense::refuse_strangers, dense::settings),
        };
        refuse_strangers(self)?;
        Ok(settings)
    }

    /// Read model and records, and plan by `settings`.
    fn request(&self, bars: &Bars, settings: Settings) -> Result<Request> {
        if self.micro_batch == 0 || self.checkpoint_every == 0 {
            return Err(Error::usage("--micro-batch and --checkpoint-every count from 1"));
        }
        if !(self.delta > 0.0 && self.delta < 1.0) {
            return Err(Error::usage(format!("--delta {} is not between 0 and 1", self.delta)));
        }
        let shard = shard::of(&self.data, self.audit.asked())?;
        let (base, tokenizer) = self.model.open_stored()?;
        tell(&base.notes, true);
        let config = &base.weights.config;
        let records = shard.as_ref().unwrap_or(&self.data).open(config, tokenizer.as_ref(), None)?;
        self.audit.check(&self.data, config, tokenizer.as_ref())?;
        let open = |path: &Path| open_records(path, self.data.loss_on, config, tokenizer.as_ref());
        let held_out = self.eval_data.as_deref().map(open).transpose()?;
        let n = shard::count(shard.is_some(), records.examples.len() as u64)?;
        if self.batch == 0 || self.batch > n {
            return Err(Error::usage(format!("--batch {} of {n} records: give 1 to all of them", self.batch)));
        }
        let method = settings(self, config, n, bars)?;
        let method = scales::scaled(self, method, &base.weights, &records, open, bars)?;
        Ok(Request {
            base,
            records,
            shards: shard.is_some(),
            held_out,
            method,
            stop: self.max_steps,
            delta: self.delta,
            out: self.out.clone(),
            insecure_seed: self.insecure_seed,
            log_private: self.log_private,
            recompute: self.recompute,
            save_every: self.checkpoint_every,
            resume: self.resume.is_some(),
            restart_diverged: self.restart_diverged,
            call: resume::call(),
            ranks: ranks::world(),
        })
    }

    /// Print the summary of a finished run, after its audit if one is asked for; then nothing is left of its state.
    fn conclude(&self, mut summary: Value, training: Option<Training>) -> Result<()> {
        if ranks::is_first() && !self.json {
            fsio::print(&text(&summary))?;
        }
        let (base, tuned) = (self.model.model.as_str(), self.out.as_path());
        let run = OwnRun { base, tuned, data: &self.data, compute: &self.compute, quiet: self.quiet };
        let stopped =
            "stopped in the audit; the model is finished, and the same command with --resume goes on with the audit";
        let audit = self.audit.run(run).map_err(|e| match e {
            Error::Interrupted(_) => Error::Interrupted(stopped.into()),
            e => e,
        })?;
        if let Some(training) = training {
            training.close()?;
        }
        if !ranks::is_first() {
            return Ok(());
        }
        match (audit, self.json) {
            (Some((_, table)), false) => fsio::print(&table),
            (None, false) => Ok(()),
            (audit, true) => {
                if let Some((found, _)) = audit {
                    summary["audit"] = found;
                }
                fsio::print(&format!("{summary}\n"))
            }
        }
    }

    /// Refuse to audit the finished run in `dir` as if it were of another method.
    fn is_of(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let statement = Statement::from_json(&fsio::read_text(&path)?)?;
        if statement.method != self.method {
            return Err(Error::file(path, format!("the run there is of --method {}", statement.method)));
        }
        Ok(())
    }

    fn schedule(&self, default: ScheduleKind) -> Schedule {
        match self.schedule.unwrap_or(default) {
            ScheduleKind::Constant => Schedule::Constant,
            ScheduleKind::Linear => Schedule::Linear { warmup: self.warmup },
        }
    }

    /// AdamW's; the direct route has none.
    fn decay(&self, route: Route) -> f64 {
        if route == Route::Direct { 0.0 } else { self.weight_decay }
    }

    fn note(&self, text: &str) {
        if !self.quiet && ranks::is_first() {
            fsio::tell(&super::flags::spell(text));
        }
    }
}

/// The summary for a reader: what was released, or would be, what is promised, what was not met, what it did to the held-out records, and where
/// it lies.
fn text(summary: &Value) -> String {
    let name = summary["method"].as_str().unwrap_or_default();
    let took = summary["seconds"].as_f64().map_or(String::new(), |s| format!(" in {s:.1} s"));
    let count = |key: &str| thousands(summary[key].as_u64().unwrap_or(0));
    let out_of = |what: &str| {
        let (number, steps, computed) = (count(what), count("steps"), count("computed_steps"));
        format!("{name}: {number} {what} released in {steps} steps, {computed} of them computed{took}\n")
    };
    let mut out = match summary["out"].is_null() {
        true => "planned, and nothing is trained or written:\n".to_owned(),
        false => String::new(),
    };
    if let Some(what) = ["bits", "scalars"].into_iter().find(|what| summary[what].is_u64()) {
        out += &out_of(what);
    } else if summary["bits_per_update"].is_u64() {
        let sigma =
            summary["noise_multiplier"].as_f64().map_or(String::new(), |s| format!(", noise multiplier {s:.4}"));
        out +=
            &format!("{name}: {} updates of {} bits released{took}{sigma}\n", count("steps"), count("bits_per_update"));
    }
    if let Some(gradients) = summary["record_gradients"].as_u64() {
        out += &format!("  {} gradients of a record, on average\n", thousands(gradients));
    }
    if let Some(rate) = summary["learning_rate"].as_f64() {
        out += &format!("  learning rate {rate:e}\n");
    }
    for (list, of) in [("guarantees", ""), ("not_met", "not met: ")] {
        for line in summary[list].as_array().into_iter().flatten() {
            out += &format!("  {of}{}\n", line.as_str().unwrap_or_default());
        }
    }
    if let (Some(before), Some(after)) =
        (summary["eval_before"]["perplexity"].as_f64(), summary["eval_after"]["perplexity"].as_f64())
    {
        out += &format!("held-out perplexity {before:.3} before, {after:.3} after\n");
    }
    out + &summary["out"].as_str().map_or(String::new(), |out| format!("{out}\n"))
}
