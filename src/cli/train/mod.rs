//! `ferret train`: fine-tune a model by any method, with a statement of what that gives away.

mod dense;
mod ferret;

use super::audit::{OwnArgs, OwnRun};
use super::common::{Compute, DataArg, ModelArg, open_records, progress, working};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::eval;
use crate::measure::examples_sha256;
use crate::method::dense::{ClipRule, ClipStyle, Variant};
use crate::method::ferret::{BatchPer, Engine, MaskKind, Payload, Route};
use crate::method::folder::Folder;
use crate::method::groups::Grouping;
use crate::model::checkpoint::{self, Checkpoint};
use crate::optim::{Schedule, Silent};
use crate::privacy::mi::Accounting;
use crate::privacy::statement::{Circumstances, Sampler, Statement};
use crate::rng::{Direction, Secret};
use crate::{backend::Backend, fsio, model::Config, model::Decoder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Fine-tune a model, privately or not, and state what the result gives away.
///
/// The folder gets the tuned model, privacy.json and PRIVACY.md, log.jsonl and, for FERRET, transcript.json, from which
/// `ferret replay` rebuilds the model. Ctrl-C saves; the same command with --resume goes on to the same bits.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret train --method ferret-max --model base --data records.jsonl --epsilon 0.5 --epochs 5 --batch 50 --out tuned
  ferret train --method ferret-max --model base --data records.jsonl --epsilon 0.5 --batch 1 --release rr --flip 0.02 --out tuned
  ferret train --method dpsgd --model base --data records.jsonl --dp-epsilon 0.5 --delta 1e-5 --epochs 5 --batch 50 --out tuned
  ferret train --method nonprivate --model base --data records.jsonl --eval-data held-out.jsonl --out tuned")]
pub struct Args {
    /// ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, or ferret with --groups or --bucket; dpsgd, dp-signsgd;
    /// not private: nonprivate, signsgd, qsgd
    #[arg(long)]
    method: String,
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    data: DataArg,
    /// Records to report loss and perplexity on, before and after
    #[arg(long, value_name = "FILE")]
    eval_data: Option<PathBuf>,
    /// A new folder for the tuned model
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,

    /// FERRET: budget of the whole run in nats of mutual information (not an epsilon of differential privacy)
    #[arg(long, value_name = "NATS", help_heading = "Budget")]
    epsilon: Option<f64>,
    /// dpsgd, dp-signsgd: find the noise that makes the planned run (E, delta)-DP; FERRET with --release rr or gaussian: the flip or
    /// dither
    #[arg(long, value_name = "E", help_heading = "Budget")]
    dp_epsilon: Option<f64>,
    /// The delta of (eps, delta)
    #[arg(long, default_value_t = 1e-5, help_heading = "Budget")]
    delta: f64,
    /// Passes over the records
    #[arg(long, default_value_t = 1, help_heading = "Budget")]
    epochs: u32,
    /// Expected records in a batch
    #[arg(long, default_value_t = 50, help_heading = "Budget")]
    batch: u64,
    /// Records computed on at once: sets the memory; for signsgd's majority vote, the workers
    #[arg(long, default_value_t = 8, help_heading = "Budget")]
    micro_batch: usize,
    /// Run each block again in backward instead of keeping its activations: for long contexts; slower, the same bits
    #[arg(long, help_heading = "Budget")]
    recompute: bool,
    /// How batches are drawn
    #[arg(long, value_enum, default_value = "poisson", help_heading = "Budget")]
    sampler: Sampler,
    /// Stop after this many steps
    #[arg(long, value_name = "N", help_heading = "Budget")]
    max_steps: Option<u32>,

    /// Seed of the public randomness: mask, directions, coins, rounding
    #[arg(long, default_value_t = 0, help_heading = "Randomness")]
    seed: u64,
    /// Fix sampling and noise, for runs that can be repeated: the result is then NOT private
    #[arg(long, value_name = "SEED", help_heading = "Randomness")]
    insecure_seed: Option<u64>,

    /// Peak learning rate [default: 2e-4; nonprivate: 1e-4, the paper's recipe]
    #[arg(long, help_heading = "Updates")]
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
    /// C: the length of a fired group's update, or the clipping bound of dpsgd and dp-signsgd
    #[arg(long, short = 'C', default_value_t = 1.0, help_heading = "Updates")]
    clip: f64,
    /// How updates reach the weights
    #[arg(long, value_enum, default_value = "adamw", help_heading = "Updates")]
    route: Route,

    #[command(flatten, next_help_heading = "FERRET")]
    ferret: FerretArgs,
    #[command(flatten, next_help_heading = "DPSGD and other whole updates")]
    dense: DenseArgs,
    #[command(flatten, next_help_heading = "Audit")]
    audit: OwnArgs,

    /// Also log tokens, seconds and loss of each step, which depend on the realised batch; the statement then says so
    #[arg(long, help_heading = "Running")]
    log_private: bool,
    /// Save what resuming needs after every N computed steps
    #[arg(long, value_name = "N", default_value_t = 25, help_heading = "Running")]
    checkpoint_every: usize,
    /// Continue the unfinished run in --out; all other arguments must be the same
    #[arg(long, help_heading = "Running")]
    resume: bool,
    /// Print one JSON object at the end
    #[arg(long, help_heading = "Running")]
    json: bool,
    /// No progress, and no notes on the run (those on the model and the records stay)
    #[arg(long, help_heading = "Running")]
    quiet: bool,
    #[command(flatten, next_help_heading = "Running")]
    compute: Compute,
}

/// What only FERRET has.
#[derive(clap::Args, Debug)]
struct FerretArgs {
    /// Cut the tensors into N groups
    #[arg(long, value_name = "N", conflicts_with = "bucket")]
    groups: Option<usize>,
    /// N consecutive tensors a group
    #[arg(long, value_name = "N")]
    bucket: Option<usize>,
    /// Whether fired groups share a step's batch or each bit draws its own [default: step; bit with --release rr or gaussian]
    #[arg(long, value_enum)]
    batch_per: Option<BatchPer>,
    /// Count the budget as the paper does, s ln 2 nats a bit, or by what the bits of a batch can really tell, flips and noise included
    #[arg(long, value_enum, default_value = "paper")]
    accounting: Accounting,
    /// What AdamW does to a group that did not fire: run on with a zero gradient, or stand still
    #[arg(long, value_enum, default_value = "zero")]
    silent: Silent,
    /// How directions are distributed
    #[arg(long, value_enum, default_value = "sphere")]
    direction: Direction,
    /// What a fired group sends; true-gradient is not private, for comparison
    #[arg(long, value_enum, default_value = "sign")]
    payload: Payload,
    /// Each group fires by itself, or exactly floor(nats / (s ln 2)) slots fire so that the budget is never exceeded
    #[arg(long, value_enum, default_value = "bernoulli")]
    mask: MaskKind,
    /// Backward, or forward mode in the memory of inference
    #[arg(long, value_enum, default_value = "backward")]
    engine: Engine,
    /// The bit itself (bounded mutual information), the bit by randomised response, or a scalar with Gaussian noise (both also
    /// (eps, delta)-DP)
    #[arg(long, value_enum, default_value = "bit")]
    release: ReleaseKind,
    /// rr: probability of a flip
    #[arg(long, value_name = "P", conflicts_with = "dp_epsilon")]
    flip: Option<f64>,
    /// rr: use the known flip rate to make the update unbiased
    #[arg(long)]
    unbiased: bool,
    /// gaussian: standard deviation of the noise in units of C
    #[arg(long, value_name = "S", conflicts_with = "dp_epsilon")]
    dither: Option<f64>,
}

/// What only the methods with whole updates have.
#[derive(clap::Args, Debug)]
struct DenseArgs {
    /// dpsgd, dp-signsgd: standard deviation of the noise in units of C, instead of --dp-epsilon; 0 is not private
    #[arg(long, value_name = "S", conflicts_with = "dp_epsilon")]
    noise_multiplier: Option<f64>,
    /// Which accountant finds the noise for --dp-epsilon [default: pld]
    #[arg(long, value_enum)]
    accountant: Option<AccountantKind>,
    /// dpsgd, dp-signsgd: which norms of a record's gradient are clipped together [default: flat]
    #[arg(long, value_enum)]
    clipping: Option<ClipStyle>,
    /// dpsgd, dp-signsgd: the factor on a record's gradient of norm n [default: automatic]
    #[arg(long, value_enum)]
    clip_function: Option<ClipRule>,
    /// signsgd: which of the algorithms of this name [default: plain]
    #[arg(long, value_enum)]
    variant: Option<Variant>,
    /// qsgd: bits a coordinate, 2 to 8, its sign included [default: 8]
    #[arg(long, value_name = "N")]
    bits: Option<u32>,
}

/// Who finds the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AccountantKind {
    /// Privacy-loss distributions: the least noise that is proven to suffice
    Pld,
    /// Rényi divergences: the classical bound, more noise
    Rdp,
}

/// The learning rate over the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ScheduleKind {
    /// The same at every step
    Constant,
    /// Up over the warm-up, then down to zero
    Linear,
}

/// What a fire releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ReleaseKind {
    /// The bit
    Bit,
    /// The bit, flipped with a known probability
    Rr,
    /// Sign times C plus Gaussian noise
    Gaussian,
}

/// What every method starts from.
struct Start {
    checkpoint: Checkpoint,
    records: Dataset,
    held_out: Option<Dataset>,
}

/// Run the verb.
pub fn run(args: Args) -> Result<()> {
    let method = args.method.as_str();
    let (ferret, dense) =
        (method == "ferret" || Grouping::of_method(method).is_some(), dense::METHODS.contains(&method));
    if (ferret || dense) && args.resume && args.audit.asked() && finished(&args.out) {
        // Only the audit is left to do, or to go on with.
        super::interrupt::listen();
        args.is_of(&args.out)?;
        return conclude(&args, json!({"method": method, "out": args.out}), text_tail);
    }
    if ferret {
        return ferret::run(&args);
    }
    if dense {
        return dense::run(&args);
    }
    Err(Error::usage(format!(
        "--method {method} is not known: ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, ferret with \
         --groups or --bucket, {}",
        dense::METHODS.join(", ")
    )))
}

/// Whether a run in `dir` is over.
fn finished(dir: &Path) -> bool {
    dir.join("model.safetensors").exists() && dir.join("privacy.json").exists() && !dir.join("state").exists()
}

/// Print the summary of a finished run, after its audit if one is asked for.
fn conclude(args: &Args, mut summary: Value, text: fn(&Value) -> String) -> Result<()> {
    if !args.json {
        fsio::print(&text(&summary))?;
    }
    let (base, tuned) = (args.model.model.as_str(), args.out.as_path());
    let run = OwnRun { base, tuned, data: &args.data, compute: &args.compute, quiet: args.quiet };
    let audit = args.audit.run(run).map_err(|e| match e {
        Error::Interrupted(_) => Error::Interrupted(
            "stopped in the audit; the model is finished, and the same command with --resume goes on with the audit"
                .into(),
        ),
        e => e,
    })?;
    match (audit, args.json) {
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

impl Args {
    /// Read model and records.
    fn start(&self) -> Result<Start> {
        if self.micro_batch == 0 || self.checkpoint_every == 0 {
            return Err(Error::usage("--micro-batch and --checkpoint-every count from 1"));
        }
        if !(self.delta > 0.0 && self.delta < 1.0) {
            return Err(Error::usage(format!("--delta {} is not between 0 and 1", self.delta)));
        }
        let (checkpoint, tokenizer) = self.model.open()?;
        let records = self.data.open(&checkpoint, tokenizer.as_ref(), None)?;
        self.audit.check(&self.data, &checkpoint, tokenizer.as_ref())?;
        let open = |path| open_records(path, self.data.loss_on, &checkpoint, tokenizer.as_ref(), None);
        let held_out = self.eval_data.as_deref().map(open);
        Ok(Start { checkpoint, records, held_out: held_out.transpose()? })
    }

    /// Refuse to audit the finished run in `dir` as if it were of another method.
    fn is_of(&self, dir: &Path) -> Result<()> {
        let path = dir.join("privacy.json");
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

    /// Steps of the `planned` ones that this run makes.
    fn steps_run(&self, planned: u32) -> u32 {
        self.max_steps.unwrap_or(planned).min(planned)
    }

    /// Refuse to make fewer steps than an earlier part of the run has: what it released cannot be taken back.
    fn check_done(&self, steps_run: u32, done: u32) -> Result<()> {
        if done > steps_run {
            return Err(Error::usage(format!(
                "--max-steps {steps_run}: {done} steps of the run to resume are over, and what they released cannot be taken back; give at \
                 least {done}, or leave it out"
            )));
        }
        Ok(())
    }

    fn circumstances(&self, start: &Start, logged: bool) -> Circumstances {
        Circumstances {
            insecure_seed: self.insecure_seed.is_some(),
            private_logs: logged || self.log_private,
            windows: start.records.windows,
            users: start.records.users,
        }
    }

    /// Seconds of training for the summary. They depend on the sizes of batches, which are as sensitive as what `--log-private` shows.
    fn seconds(&self, seconds: f64, statement: &Statement) -> Option<f64> {
        (self.log_private || !statement.is_private()).then_some(seconds)
    }

    /// The secret generator of a fresh run.
    fn secret(&self) -> Result<Secret> {
        match self.insecure_seed {
            Some(seed) => Ok(Secret::insecure(seed)),
            None => Secret::from_system(),
        }
    }

    /// Loss and perplexity on held-out records, as JSON.
    fn evaluate<B: Backend>(&self, decoder: &Decoder<B>, held_out: &Option<Dataset>) -> Result<Option<Value>> {
        let Some(Dataset { examples, .. }) = held_out else { return Ok(None) };
        let bar = progress(examples.len() as u64, "held-out records", self.quiet);
        let (loss, tokens) = eval::token_mean(&eval::losses(decoder, examples, |n| bar.inc(n as u64))?);
        bar.finish_and_clear();
        Ok(Some(json!({"loss": loss, "perplexity": loss.exp(), "tokens": tokens, "records": examples.len()})))
    }

    /// [`Args::evaluate`] of the base model. A run that continues stands elsewhere, so the answer is kept from its beginning.
    fn evaluate_before<B: Backend>(
        &self,
        folder: &Folder,
        decoder: &Decoder<B>,
        at_base: bool,
        held_out: &Option<Dataset>,
    ) -> Result<Option<Value>> {
        let (path, Some(Dataset { examples, .. })) = (folder.state("eval-before.json"), held_out) else {
            return Ok(None);
        };
        let of = examples_sha256(examples);
        if !at_base {
            let kept = path.exists().then(|| fsio::read_text(&path)).transpose()?;
            let mut kept: Value = kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            return Ok((kept["of"] == of.as_str()).then(|| kept["found"].take()));
        }
        let found = self.evaluate(decoder, held_out)?;
        fsio::write_private(&path, json!({"of": of, "found": found}).to_string().as_bytes())?;
        Ok(found)
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

/// What must be the same when a run is continued. The hash of the records is why the file is its owner's alone.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun<S> {
    settings: S,
    base_sha256: String,
    records_sha256: String,
}

impl<S: Serialize + DeserializeOwned + PartialEq + Clone> Begun<S> {
    fn new(settings: &S, start: &Start, quiet: bool) -> Self {
        let _shown = working("hashing model and records", quiet);
        Self {
            settings: settings.clone(),
            base_sha256: checkpoint::tensors_sha256(&start.checkpoint.weights),
            records_sha256: examples_sha256(&start.records.examples),
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::usage(e.to_string()))?;
        fsio::write_private(path, text.as_bytes())
    }

    /// Refuse to go on with the run that wrote `path` if anything differs: its sample, noise and flips are spent on that run alone.
    fn check(&self, path: &Path) -> Result<()> {
        let then: Self = serde_json::from_str(&fsio::read_text(path)?).map_err(|e| Error::file(path, e.to_string()))?;
        if then.settings != self.settings {
            return Err(Error::file(path, difference(&then.settings, &self.settings)));
        }
        if then.base_sha256 != self.base_sha256 {
            return Err(Error::file(path, "the run to resume began at another model: give the same --model"));
        }
        if then.records_sha256 != self.records_sha256 {
            return Err(Error::file(path, "the run to resume began with other records: give the same --data"));
        }
        Ok(())
    }
}

/// Its presence in the state says that a part of the run wrote private logs.
const PRIVATE_LOG: &str = "private-log";

/// Names the first setting that differs between what a run was begun with and what it is told now.
fn difference(then: &impl Serialize, now: &impl Serialize) -> String {
    let (then, now) = (serde_json::to_value(then), serde_json::to_value(now));
    let (Ok(Value::Object(then)), Ok(Value::Object(now))) = (then, now) else {
        return "the settings differ".into();
    };
    let key = then.keys().find(|k| then.get(*k) != now.get(*k)).cloned().unwrap_or_default();
    let (a, b) = (&then[&key], &now[&key]);
    format!("the run to resume was begun with {key} {a}, now it is {b}: give the same arguments and data")
}

/// The smallest decoder there is: what stays in the checkpoint's place while training owns its weights.
fn tiny() -> Config {
    Config { layers: 0, ..crate::model::init::Preset::Tiny.config() }
}

/// " in 1.2 s", where the summary tells.
fn took(summary: &Value) -> String {
    summary["seconds"].as_f64().map_or(String::new(), |s| format!(" in {s:.1} s"))
}

/// What was promised, what was not met, what it did to the held-out records, and where it lies: the end of a summary for readers.
fn text_tail(summary: &Value) -> String {
    let mut out = String::new();
    for guarantee in summary["guarantees"].as_array().into_iter().flatten() {
        out += &format!("  {}\n", guarantee.as_str().unwrap_or_default());
    }
    for unmet in summary["not_met"].as_array().into_iter().flatten() {
        out += &format!("  not met: {}\n", unmet.as_str().unwrap_or_default());
    }
    if let (Some(before), Some(after)) =
        (summary["eval_before"]["perplexity"].as_f64(), summary["eval_after"]["perplexity"].as_f64())
    {
        out += &format!("held-out perplexity {before:.3} before, {after:.3} after\n");
    }
    out + &format!("{}\n", summary["out"].as_str().unwrap_or_default())
}

/// Write the statement beside the model.
pub(super) fn write_statement(dir: &Path, statement: &Statement) -> Result<()> {
    fsio::write(&dir.join("privacy.json"), statement.to_json().as_bytes())?;
    fsio::write(&dir.join("PRIVACY.md"), statement.to_markdown().as_bytes())
}
