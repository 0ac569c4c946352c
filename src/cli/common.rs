//! What the verbs share: the model, the data, the device, threads.

use super::bars::Bars;
pub use super::bars::{progress, progress_by_share, working};
use super::{flags, ranks};
pub use crate::backend::{Device, Job};
use crate::data::{self, Dataset, LoadOptions, Loss, Unit};
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::Stored;
use crate::method::Tune;
use crate::method::groups::Grouping;
use crate::model::checkpoint::{self, Checkpoint, OpenCheckpoint};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Adapter, Config, Layout};
use std::path::{Path, PathBuf};

/// Where to compute.
#[derive(clap::Args, Debug, Clone)]
pub struct Compute {
    /// Where to compute
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: Device,
}

impl Compute {
    /// Run `job` on the chosen device, and say on stderr which it is where that is no matter of course.
    pub fn run<J: Job>(&self, job: J) -> Result<J::Output> {
        self.device.run(job, &Bars::new(false, "stopped"))
    }
}

/// Columns of the terminal, or of `COLUMNS`; as in files where neither tells.
pub fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let seen =
        terminal_size::terminal_size_of(std::io::stdout()).map(|(terminal_size::Width(columns), _)| columns.into());
    seen.or(told).filter(|columns| *columns > 0).unwrap_or(crate::audit::columns::WIDTH).max(30)
}

/// Fix the number of threads of this process, before any work.
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 || threads > 1024 {
        return Err(Error::usage(format!("--threads {threads}: give a number from 1 to 1024")));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|e| Error::usage(format!("--threads {threads}: {e}")))
}

/// A model by its name.
#[derive(clap::Args, Debug, Clone)]
pub struct ModelArg {
    /// `embedded`, a folder in the Hugging Face layout, or a hub name
    ///
    /// A hub name is of the kind openai-community/gpt2.
    #[arg(long, short = 'm', value_name = "FOLDER|NAME")]
    pub model: String,
    /// The model's adapter: a folder in PEFT's layout
    #[arg(long, value_name = "FOLDER")]
    pub adapter: Option<PathBuf>,
}

/// Which tensors are tuned.
#[derive(clap::Args, Debug, Clone)]
pub struct TuneArgs {
    /// What is tuned: all, bias, norms, last:N, tensors' names, or lora
    #[arg(
        long,
        value_name = "SET",
        default_value = "all",
        long_help = "What is tuned: all, bias, norms, last:N blocks, words of tensors' names (h.11.mlp,q_proj; * stands for any characters), several \
                     by commas; or lora, an adapter, which is then the result"
    )]
    pub tune: Tune,
    /// lora: rank of a fresh adapter [default: 8]
    #[arg(long, value_name = "R", hide_short_help = true)]
    lora_rank: Option<u32>,
    /// lora: a fresh adapter counts alpha / rank times [default: 8]
    #[arg(long, value_name = "A", hide_short_help = true)]
    lora_alpha: Option<f64>,
    /// lora: the layers with a fresh adapter, by the ends of their names [default: queries, keys and values where they are one layer, else queries
    /// and values]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    lora_targets: Vec<String>,
}

impl TuneArgs {
    /// The fresh adapter that is asked for on a model of `config`; none where the model itself is tuned, or the adapter that it has.
    pub fn adapter(&self, config: &Config) -> Result<Option<Adapter>> {
        let given = self.lora_rank.is_some() || self.lora_alpha.is_some() || !self.lora_targets.is_empty();
        if given && !self.tune.is_lora() {
            return Err(Error::usage("--lora-rank, --lora-alpha and --lora-targets belong to --tune lora"));
        }
        if given && config.adapter.is_some() {
            return Err(Error::usage(
                "--lora-rank, --lora-alpha and --lora-targets are of a fresh adapter, and --adapter gives one",
            ));
        }
        if !self.tune.is_lora() || config.adapter.is_some() {
            return Ok(None);
        }
        let usual = Adapter::default();
        let adapter = Adapter {
            rank: self.lora_rank.unwrap_or(usual.rank),
            alpha: self.lora_alpha.unwrap_or(usual.alpha),
            targets: self.lora_targets.clone(),
        };
        adapter.check()?;
        Ok(Some(adapter))
    }

    /// The parameters of a model of `config`, a fresh adapter's included.
    pub fn layout(&self, config: &Config) -> Result<Layout> {
        Ok(match self.adapter(config)? {
            Some(adapter) => Layout::new(&adapter.on(config)?),
            None => Layout::new(config),
        })
    }
}

impl ModelArg {
    /// Read the checkpoint and, if it has one, the tokenizer; tell what the reader should know on stderr.
    pub fn open(&self) -> Result<(Checkpoint, Option<Tokenizer>)> {
        let (stored, tokenizer) = self.open_stored()?;
        let Checkpoint { weights, dtype, prefixed, notes, config_json, folder } = stored;
        Ok((Checkpoint { weights: weights.into_form(), dtype, prefixed, notes, config_json, folder }, tokenizer))
    }

    /// As [`ModelArg::open`], each tensor as it is stored.
    pub fn open_stored(&self) -> Result<(Checkpoint<Stored>, Option<Tokenizer>)> {
        let (opened, tokenizer) = self.open_files()?;
        Ok((checkpoint::load_opened(opened)?, tokenizer))
    }

    /// As [`ModelArg::open`], for a decoder whose weights stay as they are: no tensor is read yet.
    pub fn open_files(&self) -> Result<(OpenCheckpoint, Option<Tokenizer>)> {
        let mut opened = checkpoint::open(&self.model)?;
        if let Some(adapter) = &self.adapter {
            opened = opened.adapted(adapter)?;
        }
        let tokenizer = tokenizer(&opened.folder, &opened.config, &opened.notes)?;
        Ok((opened, tokenizer))
    }
}

/// A file of records, and how it is read.
#[derive(clap::Args, Debug, Clone)]
pub struct DataArg {
    /// Records: .jsonl, .json, .txt, each also .gz; or embedded:SPLIT:N
    #[arg(
        long,
        short = 'd',
        value_name = "FILE",
        long_help = "Records: JSON lines, or one array, with {\"text\"}, {\"prompt\",\"response\"}, {\"instruction\",\"input\",\"output\"}, \
                     {\"messages\"} or {\"tokens\"}; or plain text (.txt); each also as .gz and, with the feature `formats`, .zst, and Parquet; or \
                     embedded:SPLIT:N, N of the program's own records (train, test, tuning, shadow-0 ..).\n\nFor `train` under mpirun, {rank} in the \
                     name is the rank's number: every rank then reads a shard that no other sees."
    )]
    pub data: PathBuf,
    /// Which tokens of a record with a prompt count in the loss
    #[arg(long, value_enum, default_value = "response")]
    pub loss_on: Loss,
    /// What a promise is about.
    #[command(flatten)]
    pub unit: UnitArgs,
}

/// What a promise is about: a record, or a user.
#[derive(clap::Args, Debug, Clone)]
pub struct UnitArgs {
    /// What is sampled, clipped and promised about as one: a record, or all that one "user" gave (records name theirs by that key; a
    /// user's are put end to end, as many as the context holds)
    #[arg(long, value_enum, default_value = "record")]
    unit: UnitKind,
    /// --unit user: use at most the first N records of each user [default: as many as the context holds]
    #[arg(long, value_name = "N")]
    records_per_user: Option<usize>,
}

/// The names of [`Unit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum UnitKind {
    /// A record
    Record,
    /// Everything a user gave
    User,
}

impl UnitArgs {
    /// The unit that was asked for.
    pub fn unit(&self) -> Result<Unit> {
        match (self.unit, self.records_per_user) {
            (UnitKind::Record, Some(_)) => {
                Err(Error::usage("--records-per-user counts by user: give --unit user with it"))
            }
            (UnitKind::User, Some(0)) => Err(Error::usage("--records-per-user 0 leaves nothing: give at least 1")),
            (UnitKind::Record, None) => Ok(Unit::Record),
            (UnitKind::User, most) => Ok(Unit::User { most }),
        }
    }
}

impl DataArg {
    /// The records of the file that was named.
    pub fn open(&self, config: &Config, tokenizer: Option<&Tokenizer>, stride: Option<usize>) -> Result<Dataset> {
        let options = LoadOptions { stride, unit: self.unit.unit()?, loss: self.loss_on, ..LoadOptions::new(config) };
        read_records(&self.data, tokenizer, &options)
    }
}

/// Read and tokenise the records of `path`, each by itself; tell what was cut on stderr. At least one token counts.
pub fn open_records(path: &Path, loss: Loss, config: &Config, tokenizer: Option<&Tokenizer>) -> Result<Dataset> {
    read_records(path, tokenizer, &LoadOptions { loss, ..LoadOptions::new(config) })
}

fn read_records(path: &Path, tokenizer: Option<&Tokenizer>, options: &LoadOptions) -> Result<Dataset> {
    let dataset = data::load_examples(path, tokenizer, options)?;
    for note in dataset.notes().iter().filter(|_| ranks::is_first()) {
        fsio::tell(&format!("note: {}: {}", path.display(), flags::spell(note)));
    }
    Ok(dataset)
}

/// The grouping that a FERRET method's name, or `--groups` or `--bucket` with the bare name `ferret`, asks for.
pub fn grouping(method: &str, groups: Option<usize>, bucket: Option<usize>) -> Result<Grouping> {
    match (groups, bucket, Grouping::of_method(method)) {
        (_, _, None) if method != "ferret" => Err(Error::usage(format!(
            "--method {method} has no groups that fire: ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, and \
             ferret with --groups or --bucket have"
        ))),
        (Some(n), _, None) => Ok(Grouping::Count(n)),
        (None, Some(n), None) => Ok(Grouping::Bucket(n)),
        (None, None, Some(grouping)) => Ok(grouping),
        (None, None, None) => Err(Error::usage("--method ferret needs --groups N or --bucket N")),
        _ => Err(Error::usage(format!(
            "--method {method} has its groups already: leave out --groups and --bucket, or say --method ferret"
        ))),
    }
}

/// The tokenizer of a checkpoint, if it has one; what the reader should know goes to stderr.
fn tokenizer(folder: &Path, config: &Config, notes: &[String]) -> Result<Option<Tokenizer>> {
    let tokenizer = Tokenizer::from_folder(folder)?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check(config)?;
    }
    tell(notes, false);
    Ok(tokenizer)
}

/// The notes on a model that matter where it is trained, or all others: one who does not train need not hear of dropout.
pub fn tell(notes: &[String], of_training: bool) {
    for note in notes.iter().filter(|note| ranks::is_first() && note.starts_with("dropout ") == of_training) {
        fsio::tell(&format!("note: {note}"));
    }
}
