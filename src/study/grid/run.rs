//! Runs, several at a time, each stored whole under its hash: what is there is never run again.

use super::place::{Place, Where};
use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::eval;
use crate::fsio;
use crate::model::Decoder;
use crate::ranks::pieces::{StopCheck, spread};
use crate::ranks::{Alone, Ranks, broadcast};
use crate::rng::Secret;
use crate::study::arm::Outcome;
use crate::study::outcome::StoredOutcome;
use crate::study::real::{ProbePlan, Source};
use crate::study::spec::{Part, Spec};
use crate::study::world::World;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Held-out records that are timed for an estimate.
const TIMED: usize = 24;

/// A run that is over.
pub struct FinishedRun {
    /// What was run.
    pub spec: Spec,
    /// What it gave; the sentence of what went wrong where the weights diverged.
    pub outcome: Result<Outcome, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    spec: Spec,
    outcome: Option<StoredOutcome>,
    diverged: Option<String>,
}

/// The folder that results lie in, held by one process at a time.
pub struct Store {
    runs: PathBuf,
    _lock: File,
}

impl Store {
    /// Open `dir`, made if it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        let runs = dir.join("runs");
        // Runs hold every record's score.
        fsio::private_folder(&runs)?;
        let path = dir.join(".lock");
        let lock = File::create(&path).map_err(|e| Error::io(&path, e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { runs, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(Error::file(dir, "another study is running there: wait for it, or give another `out`"))
            }
            Err(TryLockError::Error(e)) => Err(Error::io(path, e)),
        }
    }

    fn path(&self, spec: &Spec) -> PathBuf {
        self.runs.join(spec.hash() + ".json")
    }

    /// Whether `spec` is over.
    pub fn has(&self, spec: &Spec) -> bool {
        self.path(spec).is_file()
    }

    /// A run that is over; none where it is not.
    pub fn read(&self, spec: &Spec) -> Result<Option<FinishedRun>> {
        let path = self.path(spec);
        if !path.is_file() {
            return Ok(None);
        }
        let broken = |what: String| Error::file(&path, format!("{what}: delete it, and the run is done again"));
        let found: OnDisk =
            serde_json::from_str(&fsio::read_text(&path)?).map_err(|e| broken(format!("is no stored run ({e})")))?;
        if found.spec != *spec {
            return Err(broken("holds another run than its name says".into()));
        }
        let outcome = match (found.outcome, found.diverged) {
            (Some(stored), None) => Ok(stored.restore(&spec.row)?),
            (None, Some(why)) => Err(why),
            _ => return Err(broken("holds neither a result nor a reason".into())),
        };
        Ok(Some(FinishedRun { spec: found.spec, outcome }))
    }

    /// Keep what [`FinishedRun::to_text`] made, and read it.
    fn write(&self, spec: &Spec, text: &[u8]) -> Result<FinishedRun> {
        fsio::write_private(&self.path(spec), text)?;
        self.read(spec)?.ok_or_else(vanished)
    }
}

impl FinishedRun {
    /// The run as it is stored.
    fn to_text(&self) -> Result<Vec<u8>> {
        let (outcome, diverged) = match &self.outcome {
            Ok(outcome) => (Some(outcome.stored.clone()), None),
            Err(why) => (None, Some(why.clone())),
        };
        let text = serde_json::to_string(&OnDisk { spec: self.spec.clone(), outcome, diverged });
        Ok((text.map_err(|e| Error::usage(format!("a result cannot be stored: {e}")))? + "\n").into_bytes())
    }
}

fn vanished() -> Error {
    Error::usage("a run vanished from the study's folder: run again")
}

/// What the runner tells while it works.
pub enum Progress<'a> {
    /// So much of all the work is done, in seconds of one job.
    Work(f64),
    /// A run is over.
    Done(&'a FinishedRun),
}

/// Runs what a grid asks for: one world a seed, as many runs at once as jobs.
pub struct Runner<'a> {
    /// The model: `embedded`, a folder or a hub name.
    pub model: String,
    /// A file of records; none: embedded ones.
    pub data: Option<PathBuf>,
    /// Runs at a time.
    pub jobs: usize,
    /// Threads of each.
    pub threads: usize,
    /// Whether to stop, asked between steps.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// Who runs: the first calls [`Runner::run`] and keeps what is found, the others [`Runner::serve`].
    pub ranks: Arc<dyn Ranks>,
    worlds: Mutex<HashMap<Where, Arc<Place>>>,
    source: Mutex<Option<(usize, Arc<Source>)>>,
    paces: Mutex<HashMap<String, f64>>,
    /// Seconds that a row of a batch takes without backward.
    row: OnceLock<f64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left behind is still whole: maps are only inserted into.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Runner<'a> {
    /// A runner of `jobs` jobs that share the processor's `threads` threads.
    pub fn new(
        model: &str,
        data: Option<&Path>,
        (jobs, threads): (usize, usize),
        stop: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        let threads = (threads / jobs.max(1)).max(1);
        Self {
            model: model.to_owned(),
            data: data.map(Path::to_owned),
            jobs: jobs.max(1),
            threads,
            stop,
            ranks: Arc::new(Alone),
            worlds: Mutex::default(),
            source: Mutex::default(),
            paces: Mutex::default(),
            row: OnceLock::new(),
        }
    }

    fn pool(&self) -> Result<rayon::ThreadPool> {
        rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .build()
            .map_err(|e| Error::usage(format!("{} threads: {e}", self.threads)))
    }

    fn place(&self, spec: &Spec) -> Result<Arc<Place>> {
        let key = (spec.seed, spec.part == Part::Tuning, spec.candidates, spec.audited, spec.asked);
        // Held while a world is made: two jobs must not make it twice.
        let mut worlds = lock(&self.worlds);
        if let Some(place) = worlds.get(&key) {
            return Ok(place.clone());
        }
        let (mut world, mut probe) = match spec.asked {
            None => (World::load(&self.model, self.data.as_deref(), spec.seed, spec.candidates)?, None),
            Some(asked) => {
                let source = self.source(asked.longest)?;
                let world = source.world(spec.seed, spec.candidates, asked)?;
                let probe = source.probe(&world, spec.seed, asked)?;
                (world, probe)
            }
        };
        if spec.part == Part::Tuning {
            (world, probe) = (world.for_tuning()?, None);
        }
        if world.own_members().is_empty() || world.nonmembers.is_empty() {
            return Err(Error::usage("the coins left no member or no non-member: give more candidates"));
        }
        let place = Arc::new(Place::new(world, probe));
        worlds.insert(key, place.clone());
        Ok(place)
    }

    /// Model and records of a real study, read once.
    fn source(&self, longest: usize) -> Result<Arc<Source>> {
        let mut source = lock(&self.source);
        if let Some((_, found)) = source.as_ref().filter(|s| s.0 == longest) {
            return Ok(found.clone());
        }
        let Some(data) = &self.data else {
            return Err(Error::usage("a study of a real model needs records: name the file in `data`"));
        };
        let found = Arc::new(Source::open(&self.model, data, longest)?);
        *source = Some((longest, found.clone()));
        Ok(found)
    }

    /// What whoever holds the records of a real study should know of them.
    pub fn note(&self, asked: ProbePlan) -> Result<Option<String>> {
        Ok(self.source(asked.longest)?.note().map(str::to_owned))
    }

    /// SHA-256 of the base model's tensors.
    pub fn base_sha256(&self) -> Result<String> {
        let base = crate::model::checkpoint::load(&self.model)?;
        Ok(crate::model::checkpoint::tensors_sha256(&base.weights))
    }

    /// Seconds that each run will take by itself: a few steps of each kind are timed, `seconds` a kind.
    pub fn estimate(&self, specs: &[Spec], seconds: f64) -> Result<Vec<f64>> {
        let pool = self.pool()?;
        specs.iter().map(|spec| pool.install(|| self.estimate_one(spec, seconds))).collect()
    }

    fn estimate_one(&self, spec: &Spec, seconds: f64) -> Result<f64> {
        if (self.stop)() {
            return Err(stopped());
        }
        let place = self.place(spec)?;
        let row = self.row(&place)?;
        let key = spec.kind();
        let known = lock(&self.paces).get(&key).copied();
        let arm = spec.sketch(&place.world)?;
        let pace = match known {
            Some(pace) => pace,
            None => {
                let pace = arm.pace(&place.world, &Secret::from_system()?, seconds)?;
                lock(&self.paces).insert(key, pace);
                pace
            }
        };
        Ok(pace * arm.computed_steps() as f64 + row * place.rows(spec) as f64)
    }

    /// Seconds a row that the base model takes on a few records.
    fn row(&self, place: &Place) -> Result<f64> {
        if let Some(row) = self.row.get() {
            return Ok(*row);
        }
        let some = &place.world.nonmembers[..place.world.nonmembers.len().min(TIMED)];
        let decoder = Decoder::new(Cpu::<f32>::new(), place.world.base.weights.clone())?;
        let clock = Instant::now();
        eval::losses(&decoder, some, |_| ())?;
        let rows: usize = some.iter().map(|e| e.ids.len()).sum();
        Ok(*self.row.get_or_init(|| clock.elapsed().as_secs_f64() / rows.max(1) as f64))
    }

    /// Run what `store` does not have yet, and give all. `costs` weighs the runs for `tell`.
    pub fn run(
        &self,
        store: &Store,
        specs: &[Spec],
        costs: &[f64],
        tell: &(dyn Fn(Progress) + Sync),
    ) -> Result<Vec<FinishedRun>> {
        let missing: Vec<Spec> = specs.iter().filter(|spec| !store.has(spec)).cloned().collect();
        let costs: Vec<f64> = specs
            .iter()
            .enumerate()
            .filter(|s| !store.has(s.1))
            .map(|(i, _)| costs.get(i).copied().unwrap_or(1.0))
            .collect();
        let shares = Mutex::new(vec![0.0f64; missing.len()]);
        let told = |at: usize, share: f64| {
            let mut shares = lock(&shares);
            shares[at] = share;
            tell(Progress::Work(shares.iter().zip(&costs).map(|(share, cost)| share * cost).sum()));
        };
        if !missing.is_empty() {
            self.call(&missing)?;
        }
        self.share(&missing, &told, |at, text| {
            let finished = store.write(&missing[at], &text)?;
            told(at, 1.0);
            tell(Progress::Done(&finished));
            Ok(())
        })?;
        specs.iter().map(|spec| store.read(spec)?.ok_or_else(vanished)).collect()
    }

    /// Work for the first rank, which calls [`Runner::run`], until it calls [`Runner::dismiss`].
    pub fn serve(&self) -> Result<()> {
        loop {
            let specs = broadcast(&*self.ranks, "what to run", &[])?;
            let specs: Vec<Spec> = serde_json::from_slice(&specs)
                .map_err(|e| Error::Rank(format!("the first rank named no runs ({e})")))?;
            if specs.is_empty() {
                return Ok(());
            }
            self.share(&specs, &|_, _| (), |_, _| Ok(()))?;
        }
    }

    /// There is nothing left to run for those who [`Runner::serve`].
    pub fn dismiss(&self) -> Result<()> {
        self.call(&[])
    }

    fn call(&self, specs: &[Spec]) -> Result<()> {
        match self.ranks.size() {
            1 => Ok(()),
            _ => broadcast(&*self.ranks, "what to run", &serde_json::to_vec(specs).expect("plain values")).map(drop),
        }
    }

    /// Run `specs` on all ranks; `told` hears how far those of this one are, `done` gets each as it is stored.
    fn share(
        &self,
        specs: &[Spec],
        told: &(dyn Fn(usize, f64) + Sync),
        done: impl FnMut(usize, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let work = |at: usize, halted: StopCheck| {
            let finished = self.one(&specs[at], |share| {
                told(at, share);
                // Another's failure ends this one too.
                if (self.stop)() || halted() { Err(stopped()) } else { Ok(()) }
            })?;
            finished.to_text()
        };
        spread(&*self.ranks, "runs", specs.len(), self.jobs, work, done)
    }

    fn one(&self, spec: &Spec, tell: impl FnMut(f64) -> Result<()>) -> Result<FinishedRun> {
        let place = self.place(spec)?;
        let arm = spec.arm(&place.world)?;
        let secret = match spec.insecure_seed {
            // Of its own for every run: two runs must not share a sample or a noise.
            Some(seed) => {
                let hash = u64::from_str_radix(&spec.hash()[..16], 16).expect("hexadecimal digits");
                Secret::insecure(hash ^ seed)
            }
            None => Secret::from_system()?,
        };
        let measure = place.measure(spec, self.jobs == 1);
        let reference = place.reference(&measure)?;
        let outcome = match arm.run(&measure, reference, &secret, tell) {
            // Weights that overflow are a result of their learning rate.
            Err(Error::Diverged(why)) => Err(why),
            other => Ok(other?),
        };
        Ok(FinishedRun { spec: spec.clone(), outcome })
    }
}

fn stopped() -> Error {
    Error::Interrupted("stopped; what is finished is kept, and the same command continues".into())
}

/// What the tuning runs of a key led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The learning rate with the lowest held-out loss, and that loss; none where all runs diverged.
    pub best: Option<(f64, f64)>,
    /// All rates that were tried, the lowest first.
    pub tried: Vec<f64>,
}

/// The choice of every key of the tuning runs.
pub fn choose(finished: &[FinishedRun], key: impl Fn(&Spec) -> String) -> HashMap<String, Choice> {
    let mut choices: HashMap<String, Choice> = HashMap::new();
    for run in finished {
        let choice = choices.entry(key(&run.spec)).or_default();
        let rate = run.spec.learning_rate;
        choice.tried.push(rate);
        choice.tried.sort_by(f64::total_cmp);
        if let Ok(outcome) = &run.outcome
            && choice.best.is_none_or(|(_, loss)| outcome.test_loss < loss)
        {
            choice.best = Some((rate, outcome.test_loss));
        }
    }
    choices
}
