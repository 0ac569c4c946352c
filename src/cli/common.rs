//! What the verbs share: the model, the data, the device, threads, progress.

use crate::backend::{Backend, Cpu};
use crate::data::{self, Dataset, LoadOptions, Loss, Unit};
use crate::error::{Error, Result};
use crate::method::groups::Grouping;
use crate::model::checkpoint::{self, Checkpoint};
use crate::model::tokenizer::Tokenizer;
use crate::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The processor
    Cpu,
    /// A graphics device through wgpu; see `ferret devices`
    Gpu,
    /// A graphics device if there is one that is not software, else the processor
    Auto,
}

/// Which device.
#[derive(clap::Args, Debug, Clone)]
pub struct Compute {
    /// Where to compute
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: Device,
}

/// Work that can run on any backend.
pub trait Job {
    /// What it gives.
    type Output;
    /// Do it.
    fn run<B: Backend>(self, backend: B) -> Result<Self::Output>;
}

impl Compute {
    /// Run `job` on the chosen device.
    pub fn run<J: Job>(&self, job: J) -> Result<J::Output> {
        match self.device {
            Device::Cpu => job.run(Cpu::<f32>::new()),
            Device::Gpu => self.on_gpu(job),
            Device::Auto => self.on_best(job),
        }
    }

    /// On a GPU if there is one that is not software and can be opened, else on the processor.
    #[cfg(feature = "gpu")]
    fn on_best<J: Job>(&self, job: J) -> Result<J::Output> {
        let Some(info) = crate::backend::gpu::preferred() else { return job.run(Cpu::<f32>::new()) };
        match crate::backend::Gpu::new(Some(&info.index.to_string())) {
            Ok(gpu) => {
                eprintln!("device: {} ({})", info.name, info.backend);
                job.run(gpu)
            }
            Err(e) => {
                eprintln!("note: {e}; the processor is used");
                job.run(Cpu::<f32>::new())
            }
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn on_best<J: Job>(&self, job: J) -> Result<J::Output> {
        job.run(Cpu::<f32>::new())
    }

    #[cfg(feature = "gpu")]
    fn on_gpu<J: Job>(&self, job: J) -> Result<J::Output> {
        let gpu = crate::backend::Gpu::new(None)?;
        eprintln!("device: {} ({})", gpu.info().name, gpu.info().backend);
        job.run(gpu)
    }

    #[cfg(not(feature = "gpu"))]
    fn on_gpu<J: Job>(&self, _: J) -> Result<J::Output> {
        Err(Error::Device("this program was built without the feature `gpu`: use --device cpu".into()))
    }
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

/// Which model.
#[derive(clap::Args, Debug, Clone)]
pub struct ModelArg {
    /// `embedded`, a folder in the Hugging Face layout, or a hub name such as openai-community/gpt2
    #[arg(long, value_name = "FOLDER|NAME")]
    pub model: String,
}

impl ModelArg {
    /// Read the checkpoint and, if it has one, the tokenizer; tell what the reader should know on stderr.
    pub fn open(&self) -> Result<(Checkpoint, Option<Tokenizer>)> {
        let checkpoint = checkpoint::load(&self.model)?;
        let tokenizer = Tokenizer::from_folder(&checkpoint.folder)?;
        if let Some(tokenizer) = &tokenizer {
            tokenizer.check(&checkpoint.weights.config)?;
        }
        for note in &checkpoint.notes {
            eprintln!("note: {note}");
        }
        Ok((checkpoint, tokenizer))
    }
}

/// Which records.
#[derive(clap::Args, Debug, Clone)]
pub struct DataArg {
    /// Records: JSON lines with {"text"}, {"prompt","response"}, {"instruction","input","output"}, {"messages"} or
    /// {"tokens"}; or plain text (.txt); or embedded:SPLIT:N, N of the program's own records (train, test, tuning, shadow-0 ..)
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// Which tokens of a record with a prompt count in the loss
    #[arg(long, value_enum, default_value = "response")]
    pub loss_on: Loss,
    /// What is one.
    #[command(flatten)]
    pub unit: UnitArgs,
}

/// What is one.
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
    /// [`open_records`] of the file that was named.
    pub fn open(
        &self,
        checkpoint: &Checkpoint,
        tokenizer: Option<&Tokenizer>,
        stride: Option<usize>,
    ) -> Result<Dataset> {
        let options = LoadOptions { stride, unit: self.unit.unit()?, ..options(self.loss_on, checkpoint) };
        read_records(&self.data, tokenizer, &options)
    }
}

/// Read and tokenise the records of `path`, each by itself; tell what was cut on stderr. At least one token counts.
pub fn open_records(
    path: &Path,
    loss_on: Loss,
    checkpoint: &Checkpoint,
    tokenizer: Option<&Tokenizer>,
    stride: Option<usize>,
) -> Result<Dataset> {
    read_records(path, tokenizer, &LoadOptions { stride, ..options(loss_on, checkpoint) })
}

fn options(loss: Loss, checkpoint: &Checkpoint) -> LoadOptions {
    LoadOptions { loss, ..LoadOptions::new(&checkpoint.weights.config) }
}

fn read_records(path: &Path, tokenizer: Option<&Tokenizer>, options: &LoadOptions) -> Result<Dataset> {
    let dataset = data::load_examples(path, tokenizer, options)?;
    for note in dataset.notes() {
        eprintln!("note: {}: {note}", path.display());
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

/// A bar with rate and estimate on stderr; nothing where stderr is not a terminal or `quiet` is set.
pub fn progress(len: u64, what: impl Into<Cow<'static, str>>, quiet: bool) -> ProgressBar {
    bar(len, "{prefix} {wide_bar} {pos}/{len} {per_sec}, {eta} left", quiet).with_prefix(what)
}

/// [`progress`] of work whose parts differ, in thousandths of it: a message says which part it is at.
pub fn progress_by_share(what: &'static str, quiet: bool) -> ProgressBar {
    bar(1000, "{prefix} {wide_bar} {percent} % {msg}, {elapsed} gone, {eta} left", quiet).with_prefix(what)
}

fn bar(len: u64, template: &str, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(10) };
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::with_draw_target(Some(len), target).with_style(style)
}

/// The library's progress as bars on stderr; Ctrl-C stops the work.
pub struct Bars {
    quiet: bool,
    shown: Mutex<Shown>,
}

/// What is shown: a bar, or that work of unknown length goes on.
#[derive(Default)]
struct Shown {
    bar: Option<ProgressBar>,
    _working: Option<Working>,
}

impl Bars {
    /// None yet.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, shown: Mutex::default() }
    }

    fn show(&self, next: Shown) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = std::mem::replace(&mut *shown, next).bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn begin(&self, what: &str, length: u64) {
        self.end();
        self.show(match length {
            0 => Shown { _working: Some(working(what.to_owned(), self.quiet)), ..Shown::default() },
            n => Shown { bar: Some(progress(n, what.to_owned(), self.quiet)), ..Shown::default() },
        });
    }

    fn advance(&self, steps: u64) -> Result<()> {
        if let Some(bar) = &self.shown.lock().unwrap_or_else(PoisonError::into_inner).bar {
            bar.inc(steps);
        }
        if super::interrupt::asked() { Err(Error::Interrupted("stopped".into())) } else { Ok(()) }
    }

    fn end(&self) {
        self.show(Shown::default());
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.end();
    }
}

/// Shows on stderr that work whose length is not known goes on, and for how long, until dropped. See [`working`].
#[must_use = "it is shown until it is dropped"]
pub struct Working {
    stop: Option<mpsc::Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

/// Say that `what` is being done once it takes longer than a second; never where [`progress`] would show nothing.
pub fn working(what: impl Into<Cow<'static, str>>, quiet: bool) -> Working {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(10) };
    if target.is_hidden() {
        return Working { stop: None, shown: None };
    }
    let what = what.into();
    let (stop, stopped) = mpsc::channel::<()>();
    let shown = thread::spawn(move || {
        if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let style = ProgressStyle::with_template("{spinner} {prefix}, {elapsed}").expect("a valid template");
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style)
            .with_prefix(what)
            .with_elapsed(Duration::from_secs(1));
        while stopped.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            bar.tick();
        }
        bar.finish_and_clear();
    });
    Working { stop: Some(stop), shown: Some(shown) }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(shown) = self.shown.take() {
            let _ = shown.join();
        }
    }
}
