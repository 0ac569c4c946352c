//! Runs, several at a time, each stored whole under its hash: what is there is never run again.

use crate::audit::stats::mean_variance;
use crate::error::{Error, Result};
use crate::fsio;
use crate::rng::Secret;
use crate::study::arm::{Measure, Outcome, Reference};
use crate::study::outcome::Stored;
use crate::study::spec::{Part, Spec};
use crate::study::world::World;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Held-out records on the loss curves.
const ON_CURVE: usize = 100;

/// A run that is over.
pub struct Finished {
    /// What was run.
    pub spec: Spec,
    /// What it gave; the sentence of what went wrong where the weights diverged.
    pub outcome: Result<Outcome, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    spec: Spec,
    outcome: Option<Stored>,
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
    pub fn read(&self, spec: &Spec) -> Result<Option<Finished>> {
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
        Ok(Some(Finished { spec: found.spec, outcome }))
    }

    fn write(&self, finished: &Finished) -> Result<()> {
        let (outcome, diverged) = match &finished.outcome {
            Ok(outcome) => (Some(Stored::from(outcome)), None),
            Err(why) => (None, Some(why.clone())),
        };
        let text = serde_json::to_string(&OnDisk { spec: finished.spec.clone(), outcome, diverged });
        let text = text.map_err(|e| Error::usage(format!("a result cannot be stored: {e}")))?;
        fsio::write_private(&self.path(&finished.spec), (text + "\n").as_bytes())
    }
}

/// What the runner tells while it works.
pub enum Progress<'a> {
    /// So much of all the work is done, in seconds of one job.
    Work(f64),
    /// A run is over.
    Done(&'a Finished),
}

/// Runs what a grid asks for: one world a seed, as many runs at once as jobs.
pub struct Runner<'a> {
    /// The model: `embedded`, a folder or a hub name.
    pub model: String,
    /// A file of records; none: embedded ones.
    pub data: Option<PathBuf>,
    /// Candidates of every world.
    pub candidates: usize,
    /// Runs at a time.
    pub jobs: usize,
    /// Threads of each.
    pub threads: usize,
    /// Whether to stop, asked between steps.
    pub stop: &'a (dyn Fn() -> bool + Sync),
    worlds: Mutex<HashMap<(u64, bool), Arc<Place>>>,
    paces: Mutex<HashMap<String, f64>>,
}

/// A world with the base model's losses on it.
struct Place {
    world: World,
    reference: Reference,
    /// Seconds that measuring a model takes.
    measuring: f64,
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
        candidates: usize,
        (jobs, threads): (usize, usize),
        stop: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        let threads = (threads / jobs.max(1)).max(1);
        Self {
            model: model.to_owned(),
            data: data.map(Path::to_owned),
            candidates,
            jobs: jobs.max(1),
            threads,
            stop,
            worlds: Mutex::default(),
            paces: Mutex::default(),
        }
    }

    fn pool(&self) -> Result<rayon::ThreadPool> {
        rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .build()
            .map_err(|e| Error::usage(format!("{} threads: {e}", self.threads)))
    }

    fn place(&self, spec: &Spec) -> Result<Arc<Place>> {
        let key = (spec.seed, spec.part == Part::Tuning);
        // Held while a world is made: two jobs must not make it twice.
        let mut worlds = lock(&self.worlds);
        if let Some(place) = worlds.get(&key) {
            return Ok(place.clone());
        }
        let mut world = World::load(&self.model, self.data.as_deref(), spec.seed, self.candidates)?;
        if spec.part == Part::Tuning {
            world = world.for_tuning()?;
        }
        if world.members.is_empty() || world.nonmembers.is_empty() {
            return Err(Error::usage("the coins left no member or no non-member: give more candidates"));
        }
        let clock = Instant::now();
        let reference =
            Measure { world: &world, audited: spec.audited, on_curve: ON_CURVE, every_step: false, prompts: &[] }
                .reference()?;
        let measuring = clock.elapsed().as_secs_f64();
        let place = Arc::new(Place { world, reference, measuring });
        worlds.insert(key, place.clone());
        Ok(place)
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
        // The curve's points are measured on a part of the records.
        let curve = 9.0 * ON_CURVE as f64 / (2 * spec.audited.max(1)) as f64;
        Ok(pace * arm.computed_steps() as f64 + place.measuring * (1.0 + curve.min(9.0)))
    }

    /// Run what `store` does not have yet, and give all. `costs` weighs the runs for `tell`.
    pub fn run(
        &self,
        store: &Store,
        specs: &[Spec],
        costs: &[f64],
        tell: &(dyn Fn(Progress) + Sync),
    ) -> Result<Vec<Finished>> {
        let missing: Vec<usize> = (0..specs.len()).filter(|&i| !store.has(&specs[i])).collect();
        let next = AtomicUsize::new(0);
        let shares = Mutex::new(vec![0.0f64; missing.len()]);
        let told = |at: usize, share: f64| {
            let mut shares = lock(&shares);
            shares[at] = share;
            let done: f64 = shares.iter().zip(&missing).map(|(s, &i)| s * costs.get(i).copied().unwrap_or(1.0)).sum();
            tell(Progress::Work(done));
        };
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let job = || -> Result<()> {
            let pool = self.pool()?;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&index) = missing.get(at) else { return Ok(()) };
                // Another job's failure ends this one too.
                let halted = || (self.stop)() || lock(&failed).is_some();
                let finished = pool.install(|| {
                    self.one(&specs[index], |share| {
                        told(at, share);
                        if halted() { Err(stopped()) } else { Ok(()) }
                    })
                })?;
                store.write(&finished)?;
                told(at, 1.0);
                tell(Progress::Done(&finished));
                if halted() {
                    return Err(stopped());
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.min(missing.len()) {
                scope.spawn(|| {
                    if let Err(e) = job() {
                        lock(&failed).get_or_insert(e);
                    }
                });
            }
        });
        if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(e);
        }
        specs
            .iter()
            .map(|spec| {
                store.read(spec)?.ok_or_else(|| Error::usage("a run vanished from the study's folder: run again"))
            })
            .collect()
    }

    fn one(&self, spec: &Spec, tell: impl FnMut(f64) -> Result<()>) -> Result<Finished> {
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
        let measure =
            Measure { world: &place.world, audited: spec.audited, on_curve: ON_CURVE, every_step: false, prompts: &[] };
        let outcome = match arm.run(&measure, &place.reference, &secret, tell) {
            // Weights that overflow are a result of their learning rate.
            Err(Error::Diverged(why)) => Err(why),
            other => Ok(other?),
        };
        Ok(Finished { spec: spec.clone(), outcome })
    }
}

fn stopped() -> Error {
    Error::Interrupted("stopped; what is finished is kept, and the same command continues".into())
}

/// The learning rate with the lowest held-out loss of the tuning runs of every key; a key whose runs all diverged has none.
pub fn choose(finished: &[Finished], key: impl Fn(&Spec) -> String) -> HashMap<String, (f64, f64)> {
    let mut best: HashMap<String, (f64, f64)> = HashMap::new();
    for run in finished {
        let Ok(outcome) = &run.outcome else { continue };
        let found = (run.spec.learning_rate, outcome.test_loss);
        let entry = best.entry(key(&run.spec)).or_insert(found);
        if found.1 < entry.1 {
            *entry = found;
        }
    }
    best
}

/// Mean, least, largest and standard deviation over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Standard deviation with n - 1; 0 for one value.
    pub sd: f64,
    /// How many values.
    pub n: usize,
}

impl Spread {
    /// Of these values; none where there is none.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let (mean, variance) = mean_variance(values);
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { mean, min, max, sd: variance.sqrt(), n: values.len() })
    }
}
