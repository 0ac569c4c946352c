//! `ferret study`: a grid of runs, tables beside the paper's, verdicts.

use super::common::{progress_by_share, width};
use super::{interrupt, ranks};
use crate::audit::columns::align;
use crate::error::{Error, Result};
use crate::fsio;
use crate::hash::sha256;
use crate::model::{Layout, checkpoint, footprint};
use crate::ranks::agree;
use crate::study::grid::report::{Report, best_rates, report, tune};
use crate::study::grid::{Basis, FinishedRun, Grid, Kind, Progress, Runner, Store};
use crate::study::spec::{Goal, Part, Spec};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run a grid of methods, budgets, lengths and seeds, and write tables, verdicts and a page.
///
/// Every run is one file, written whole: a study that is killed loses at most the runs in flight, and the same command goes on
/// where it stopped, with nothing run twice. Each row first tries the same number of learning rates on records that no result is
/// taken from (and, if the grid says so, the next beyond while the best is the last in its direction).
///
/// FERRET's budgets are nats of mutual information, DPSGD's the eps of (eps, delta): different units.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret study --grid paper --dry-run
  ferret study --grid paper --seeds 5 --out my-study
  ferret study --grid readings
  ferret study --grid true-dp
  ferret study --grid equal-nats
  ferret study --grid ferret-k
  ferret study --grid tune
  ferret study --grid real --model SmolLM2-135M-Instruct --data records.jsonl --hours 4
  ferret study --grid mine.toml --model my-model --data records.jsonl

A grid's file says which of the grids it is, and what is different (all else is as in that grid):
  kind = \"paper\"                       # or readings, true-dp, equal-nats, ferret-k, tune, real
  methods = [\"ferret-max\", \"dpsgd\", \"nonprivate\"]
  budgets = [0.5, 2.0, inf]            # inf: non-private training
  epochs = [3]
  batches = [50]
  seeds = 5
  candidates = 3000                    # about half become members
  audited = 1000                       # records a side that are attacked
  delta = 1e-5
  nats = [1.0, 4.0]                    # true-dp: how many bits FERRET releases, and so how many flips they need; real: FERRET's budgets
  bits = [1, 1024, 65536]              # ferret-k: bits a step, at eps 1 or the first budget
  tune = [\"all\", \"lora:4\", \"bias\"]    # tune: what of the model is tuned; lora:R is an adapter of rank R
  asked = { longest = 128, answers = 200, canaries = 4 }
                                       # real: the most tokens of a record, held-out records that are asked, secrets planted at each
                                       # of 0, 1, 4 and 16 times
  learning_rates = 3                   # that each row tries; 1: none are tried
  further_rates = 4                    # that a row may try further out while its best is the lowest or the highest
  tune_cells = false                   # true: each budget and length chooses its own
  matched = true                       # paper: also with as many steps as FERRET computes
  rates = { \"DPSGD\" = 3e-3 }           # rates that are known, by row, as in a study's rates.toml: such rows try none")]
pub struct Args {
    /// paper (methods, budgets, lengths), readings (of Algorithm 1), true-dp (FERRET and DPSGD at the same (eps, delta)), equal-nats (at
    /// the same nats), ferret-k (FERRET-k by bits a step and by eps, and DPSGD), tune (all weights, adapters, a few tensors), real (all
    /// methods on a model and records of yours, with answers and planted secrets), or a TOML file
    #[arg(long, value_name = "NAME|FILE.toml")]
    grid: String,
    /// The study's folder [default: ferret-study-KIND]
    #[arg(long, short = 'o', value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only list the runs and estimate their time, by timing a few steps of each kind
    #[arg(long)]
    dry_run: bool,
    /// Take the largest grid that fits into so many hours of this machine, by timing a few steps of each kind, and say what it leaves out. What is
    /// there already costs nothing; rates that turn out to be tried further out come on top
    #[arg(long, value_name = "H")]
    hours: Option<f64>,
    /// Seeds, instead of the grid's
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Runs at a time [default: a core each, as far as memory allows]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// `embedded`, a folder in the Hugging Face layout, or a hub name
    #[arg(long, short = 'm', value_name = "FOLDER|NAME", default_value = "embedded")]
    model: String,
    /// Records to study on, a third of them kept for tuning [default: the embedded ones]. What the study writes is computed from
    /// them and covered by no promise: keep its folder as secret as they are
    #[arg(long, short = 'd', value_name = "FILE")]
    data: Option<PathBuf>,
    /// Fix sampling and noise, to repeat a study to the bit; its runs are then not private
    #[arg(long, value_name = "SEED")]
    insecure_seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar and no notes
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Seconds of timing for each kind of run.
const CALIBRATION: f64 = 0.25;

/// Run a grid, or look at one, and write its report.
pub fn run(args: Args) -> Result<()> {
    interrupt::listen();
    let mut grid = Grid::open(&args.grid)?;
    if let Some(seeds) = args.seeds {
        grid.seeds = seeds;
    }
    if grid.kind == Kind::Real {
        if args.data.is_none() {
            return Err(Error::usage(
                "--grid real is about records of your own: give --data, and their model as --model",
            ));
        }
        let layout = Layout::new(&checkpoint::read_config(&args.model)?);
        grid.parameters = layout.scalars() as u64;
    }
    grid.check().map_err(Error::usage)?;
    if args.hours.is_some_and(|h| h.is_nan() || h <= 0.0) {
        return Err(Error::usage("--hours is the time that the study may take: give a number above 0"));
    }
    let data = match &args.data {
        None => "embedded".to_owned(),
        Some(path) => sha256(fsio::read_bytes(path)?),
    };
    let cores = rayon::current_num_threads();
    let jobs = jobs(&args, &grid, cores)?;
    let mut runner = Runner::new(&args.model, args.data.as_deref(), (jobs, cores), &interrupt::asked);
    runner.ranks = ranks::world();
    let mut fixed =
        Basis { base_sha256: runner.base_sha256()?, data, insecure_seed: args.insecure_seed, rates: HashMap::new() };
    let out = args.out.clone().unwrap_or_else(|| format!("ferret-study-{}", grid.kind.name()).into());
    if !shares(&args, &runner, &fixed)? {
        return Ok(());
    }
    if let (Some(asked), Some(path)) = (grid.asked, &args.data)
        && let Some(what) = runner.note(asked)?
    {
        note(&args, &format!("note: {}: {what}", path.display()));
    }
    if args.dry_run {
        let left = fit(&args, &mut grid, &runner, &fixed, None)?;
        return dry_run(&args, &grid, &runner, &fixed, (&out, &left));
    }
    let store = Store::open(&out)?;
    let left = fit(&args, &mut grid, &runner, &fixed, Some(&store))?;
    fsio::write(&out.join("grid.toml"), grid.to_toml().as_bytes())?;
    let begun = Instant::now();
    let mut what = "tuning";
    let rates = tune(&grid, &fixed, |specs| {
        stage(&args, &runner, &store, specs, std::mem::replace(&mut what, "further rates"))
    })?;
    fixed.rates = best_rates(&rates);
    if !fixed.rates.is_empty() {
        let known: BTreeMap<_, _> = fixed.rates.iter().collect();
        let text = toml::to_string(&BTreeMap::from([("rates", known)])).expect("plain values");
        // Chosen by the records, as what the report says is.
        fsio::write_private(&out.join("rates.toml"), text.as_bytes())?;
    }
    let results = stage(&args, &runner, &store, &grid.results(&fixed), "runs")?;
    runner.dismiss()?;
    let mut report: Report = report(&grid, &results, &rates);
    report.findings.extend(left_out(&args, &left));
    report.write(&out, &grid, &results, &command(&args, &grid, &out))?;
    if args.json {
        let mut summary = report.json(&grid, &results);
        summary["out"] = json!(out);
        return fsio::print(&format!("{summary}\n"));
    }
    fsio::print(&report.text(width()))?;
    fsio::print(&format!(
        "Written to {}: index.html, tables.txt, tables.csv, tables.tex, study.json  ({:.0} s)\n",
        out.display(),
        begun.elapsed().as_secs_f64()
    ))
}

/// Whether this rank is the one that plans, keeps and reports; the others have run what it named once this returns.
fn shares(args: &Args, runner: &Runner, fixed: &Basis) -> Result<bool> {
    let facts = [
        ("base model, by its SHA-256,", fixed.base_sha256.clone()),
        ("set of records, by its SHA-256,", fixed.data.clone()),
        ("--dry-run", args.dry_run.to_string()),
    ];
    agree(&*runner.ranks, "what the study is told", &facts)?;
    if runner.ranks.is_first() {
        return Ok(true);
    }
    // Only looking is done by one.
    if !args.dry_run {
        runner.serve()?;
    }
    Ok(false)
}

/// The command that repeats the study.
fn command(args: &Args, grid: &Grid, out: &Path) -> String {
    let mut command = format!("ferret study --grid {} --seeds {} --out {}", args.grid, grid.seeds, out.display());
    if args.model != "embedded" {
        command += &format!(" --model {}", args.model);
    }
    if let Some(data) = &args.data {
        command += &format!(" --data {}", data.display());
    }
    if let Some(hours) = args.hours {
        command += &format!(" --hours {hours}");
    }
    if let Some(seed) = args.insecure_seed {
        command += &format!(" --insecure-seed {seed}");
    }
    command
}

/// Make `grid` the largest that fits into the hours, where they are limited; what it leaves out.
fn fit(args: &Args, grid: &mut Grid, runner: &Runner, fixed: &Basis, store: Option<&Store>) -> Result<Vec<String>> {
    let Some(hours) = args.hours else { return Ok(Vec::new()) };
    note(args, "timing a few steps of each kind");
    let mut left = Vec::new();
    loop {
        let specs = missing(grid, fixed, store)?;
        let wall = runner.estimate(&specs, CALIBRATION)?.iter().sum::<f64>() / runner.jobs as f64;
        if wall <= 3600.0 * hours {
            return Ok(left);
        }
        let Some((smaller, what)) = grid.smaller() else {
            return Err(Error::usage(format!(
                "--hours {hours}: the smallest grid takes about {}: give it that, or a grid of your own",
                duration(wall)
            )));
        };
        *grid = smaller;
        grid.check().map_err(Error::usage)?;
        left.push(what);
    }
}

/// The runs of `grid` that `store` does not have.
fn missing(grid: &Grid, fixed: &Basis, store: Option<&Store>) -> Result<Vec<Spec>> {
    let Some(store) = store else {
        let mut specs = grid.tuning(fixed);
        specs.extend(grid.results(fixed));
        return Ok(specs);
    };
    let (mut specs, mut whole) = (Vec::new(), true);
    let choices = tune(grid, fixed, |next| {
        specs.extend(next.iter().cloned());
        whole &= next.iter().all(|s| store.has(s));
        if whole { next.iter().filter_map(|s| store.read(s).transpose()).collect() } else { Ok(Vec::new()) }
    })?;
    // Rates that are not chosen yet make results that are not there yet.
    let rates = if whole { best_rates(&choices) } else { HashMap::new() };
    let tuned = Basis { rates, ..fixed.clone() };
    specs.extend(grid.results(&tuned));
    specs.retain(|s| !store.has(s));
    Ok(specs)
}

/// What was left out, in a sentence.
fn left_out(args: &Args, left: &[String]) -> Option<String> {
    let hours = args.hours.filter(|_| !left.is_empty())?;
    Some(format!("Left out to stay within {hours} hours: {}.", left.join("; ")))
}

/// Runs at a time: a core each, unless half of the free memory holds fewer.
fn jobs(args: &Args, grid: &Grid, cores: usize) -> Result<usize> {
    if let Some(jobs) = args.jobs {
        if jobs == 0 || jobs > 256 {
            return Err(Error::usage(format!("--jobs {jobs}: give a number from 1 to 256")));
        }
        return Ok(jobs);
    }
    let config = checkpoint::read_config(&args.model)?;
    // A batch of 16 records of full length, by the hungriest method, and the base weights beside it.
    let tokens = grid.asked.map_or(config.positions, |a| a.longest.min(config.positions));
    let need = footprint::estimate(&config, 16, tokens).iter().map(footprint::Need::total).max().unwrap_or(0);
    let fits = free_memory().map_or(usize::MAX, |free| (free / 2 / need.max(1)) as usize);
    Ok(cores.min(fits).max(1))
}

/// Bytes that can be had without pushing anything out; none where the system does not say.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Run what is missing of `specs` under one bar.
fn stage(args: &Args, runner: &Runner, store: &Store, specs: &[Spec], what: &'static str) -> Result<Vec<FinishedRun>> {
    let missing: Vec<bool> = specs.iter().map(|s| !store.has(s)).collect();
    let left = missing.iter().filter(|m| **m).count();
    let mut costs = vec![0.0; specs.len()];
    if left > 0 {
        note(args, &format!("{what}: {left} of {} to do, {} at a time", specs.len(), runner.jobs));
        let to_do: Vec<Spec> = specs.iter().zip(&missing).filter(|(_, m)| **m).map(|(s, _)| s.clone()).collect();
        // Without a bar nobody asks how long a run takes, and timing a large model's steps takes minutes.
        let estimates = if args.quiet { vec![1.0; left] } else { runner.estimate(&to_do, CALIBRATION)? };
        let to_come = costs.iter_mut().zip(&missing).filter(|(_, m)| **m);
        to_come.zip(estimates).for_each(|((cost, _), estimate)| *cost = estimate);
        let wall = costs.iter().sum::<f64>() / runner.jobs as f64;
        note(args, &format!("{what}: about {} by timing a few steps of each kind", duration(wall)));
    }
    let (bar, all) = (progress_by_share(what, args.quiet), costs.iter().sum::<f64>());
    bar.set_message(format!("0/{left}"));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let finished = runner.run(store, specs, &costs, &|progress| match progress {
        Progress::Work(seconds) => bar.set_position((1000.0 * seconds / all) as u64),
        Progress::Done(run) => {
            let done = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            bar.set_message(format!("{done}/{left}"));
            let said = match &run.outcome {
                Ok(o) => format!("test perplexity {:.2}, AUC {:.3}", o.test_loss.exp(), o.attack.auc),
                Err(_) => "diverged".into(),
            };
            let s = &run.spec;
            let of = match s.method {
                Goal::Base => String::new(),
                _ => format!(", budget {}, {} epochs, rate {:.1e}", s.column(), s.epochs, s.learning_rate),
            };
            let line = format!("{done}/{left} {}{of}, seed {}: {said}", s.row, s.seed);
            bar.suspend(|| note(args, &line));
        }
    });
    bar.finish_and_clear();
    finished
}

fn note(args: &Args, text: &str) {
    if !args.quiet {
        fsio::tell(text);
    }
}

/// The runs, and the time they would take.
fn dry_run(args: &Args, grid: &Grid, runner: &Runner, fixed: &Basis, (out, left): (&Path, &[String])) -> Result<()> {
    let mut specs = grid.tuning(fixed);
    let tuning = specs.len();
    specs.extend(grid.results(fixed));
    note(args, "timing a few steps of each kind");
    let costs = runner.estimate(&specs, CALIBRATION)?;
    let total: f64 = costs.iter().sum();
    let wall = total / runner.jobs as f64;
    if args.json {
        let run = |(s, cost): (&Spec, &f64)| {
            let tuned = s.part == Part::Result && grid.learning_rates > 1;
            json!({
                "part": s.part, "row": s.row, "epochs": s.epochs, "batch": s.batch, "budget": s.column().to_string(),
                "unit": s.budget().1, "seed": s.seed, "learning_rate": (!tuned).then_some(s.learning_rate), "seconds": cost,
            })
        };
        let summary = json!({
            "out": out, "runs": specs.iter().zip(&costs).map(run).collect::<Vec<_>>(), "tuning_runs": tuning,
            "result_runs": specs.len() - tuning, "jobs": runner.jobs, "threads_a_job": runner.threads, "seconds": wall,
            "left_out": left,
        });
        return fsio::print(&format!("{summary}\n"));
    }
    let mut table = vec![["part", "method", "budget", "epochs", "seed", "rate", "seconds"].map(String::from).to_vec()];
    for (s, cost) in specs.iter().zip(&costs) {
        let part = if s.part == Part::Tuning { "tuning" } else { "result" };
        let rate = if s.part == Part::Result && grid.learning_rates > 1 {
            "tuned".into()
        } else {
            format!("{:.2e}", s.learning_rate)
        };
        let (budget, unit) = s.budget();
        let budget = if budget.is_finite() && budget > 0.0 { format!("{budget} {unit}") } else { unit.into() };
        let cells =
            [part.into(), s.row.clone(), budget, s.epochs.to_string(), s.seed.to_string(), rate, format!("{cost:.1}")];
        table.push(cells.to_vec());
    }
    fsio::print(&align(&table, width()))?;
    fsio::print(&format!(
        "\n{} runs: {tuning} to choose learning rates, {} for results. About {} with {} at a time of {} thread(s) each ({} one after \
         the other), by timing a few steps of each kind here and now. Nothing was written.\n",
        specs.len(),
        specs.len() - tuning,
        duration(wall),
        runner.jobs,
        runner.threads,
        duration(total)
    ))?;
    left_out(args, left).map_or(Ok(()), |text| fsio::print(&format!("{text}\n")))
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
