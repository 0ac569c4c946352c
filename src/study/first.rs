//! The first five minutes: the embedded model fine-tuned on the embedded records by every method over a few seeds, each result audited.

use super::arm::{Arm, Measure, Outcome, Reference};
use super::grid::Spread;
use super::settings::{self, Choices};
use super::spec::Sketches;
use super::world::World;
use crate::data::Example;
use crate::error::{Error, Result};
use crate::method::ferret::{MaskKind, Settings};
use crate::method::groups::Grouping;
use crate::method::{Method, dense, rates};
use crate::model::ParamId;
use crate::optim::{Route, Schedule};
use crate::rng::Secret;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Sizes and budgets of the job.
pub struct Options {
    /// Candidates; about half of them become members.
    pub candidates: usize,
    /// Records a side that are attacked.
    pub audited: usize,
    /// Budget in nats of mutual information.
    pub nats: f64,
    /// Budget of DPSGD, as the eps of (eps, delta).
    pub eps: f64,
    /// The delta beside it.
    pub delta: f64,
    /// Passes over the members.
    pub epochs: u32,
    /// How many seeds, from 1 up: each has candidates, coins and public randomness of its own.
    pub seeds: u64,
    /// Fixes sampling and noise; the result is then not private.
    pub insecure_seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            candidates: 3000,
            audited: 600,
            nats: 1.0,
            eps: 1.0,
            delta: 1e-5,
            epochs: 3,
            seeds: 3,
            insecure_seed: None,
        }
    }
}

/// The paper's batch size.
pub const BATCH: u64 = 50;

/// FERRET-k's: as many gradients in half the steps, each with twice the bits.
const SKETCHED: u64 = 100;

/// Members that the last arm learns by heart, and its passes over them (at most eight for each of the others').
const FEW: (usize, u32) = (120, 20);

/// One arm over its seeds.
pub struct Row {
    /// How tables call it.
    pub name: String,
    /// The peak learning rate; none where nothing is trained.
    pub learning_rate: Option<f64>,
    /// One outcome a seed, in order.
    pub outcomes: Vec<Outcome>,
}

impl Row {
    /// The outcome of the seed where the attack had the largest advantage.
    pub fn worst(&self) -> Option<&Outcome> {
        self.outcomes.iter().max_by(|a, b| a.attack.advantage.total_cmp(&b.attack.advantage))
    }

    /// Mean and spread over the seeds.
    pub fn spread(&self, of: impl Fn(&Outcome) -> f64) -> Spread {
        let values: Vec<f64> = self.outcomes.iter().map(of).collect();
        Spread::of(&values).unwrap_or(Spread { mean: f64::NAN, min: f64::NAN, max: f64::NAN, sd: f64::NAN, n: 0 })
    }
}

/// The records of every seed.
pub fn worlds(o: &Options) -> Result<Vec<World>> {
    (1..=o.seeds.max(1)).map(|seed| World::embedded(seed, o.candidates, 0)).collect()
}

/// The arms of one seed, in the order in which they are shown, each with the learning rate that `train` takes where none is given.
pub fn arms(world: &World, o: &Options, seed: u64) -> Result<Vec<Arm>> {
    let layout = &world.base.weights.layout;
    let tensors: Vec<ParamId> = layout.ids().collect();
    let common = |batch, schedule| Choices {
        records: world.members.len() as u64,
        batch,
        epochs: o.epochs,
        steps: None,
        learning_rate: 1.0,
        schedule,
        seed,
    };
    let arm = |name: &str, method| Arm { name: name.into(), method: Some(method), delta: o.delta };
    let ferret = |name: &str, grouping, batch, finish: &dyn Fn(Settings) -> Result<Settings>| -> Result<Arm> {
        let mut s = settings::ferret(&tensors, &common(batch, Schedule::Constant), grouping, o.nats)?;
        (s.method, s.mask) = (name.split(' ').next().unwrap_or_default().to_lowercase(), MaskKind::default());
        s = finish(s)?;
        s.learning_rate = rates::ferret(&s, layout.scalars());
        Ok(arm(name, Method::Ferret(s)))
    };
    let dense = |name: &str, mut s: dense::Settings| {
        s.learning_rate = rates::dense(&s.method, Route::Adamw, s.batch, layout.scalars(), layout.scalars());
        arm(name, Method::Dense(s))
    };
    let sketched = || -> Result<Arm> {
        let usual = Sketches::usual(o.eps, None);
        let mut s = settings::ferret_k(&common(SKETCHED, Schedule::Constant), &usual, true, o.delta)?;
        s.learning_rate = rates::ferret_k(&s, layout.scalars());
        Ok(arm(&format!("FERRET-k, B = {SKETCHED}"), Method::FerretK(s)))
    };
    let linear = Schedule::Linear { warmup: 0.1 };
    Ok(vec![
        Arm { name: "base model".into(), method: None, delta: o.delta },
        ferret("FERRET-MAX", Grouping::Bucket(1), BATCH, &Ok)?,
        ferret("FERRET-EIGHTH", Grouping::Bucket(8), BATCH, &Ok)?,
        ferret("FERRET-2", Grouping::Count(2), BATCH, &Ok)?,
        ferret("FERRET-2 flips, B = 2", Grouping::Count(2), 2, &|s| settings::with_flips(s, o.eps, o.delta))?,
        sketched()?,
        dense("DPSGD", settings::dpsgd(&common(BATCH, Schedule::Constant), Some(o.eps), o.delta)?),
        dense("non-private", settings::dense(&common(BATCH, linear), dense::Method::Nonprivate)),
    ])
}

/// What a leak looks like: non-private training that learns a few of the members by heart. The world holds those few alone.
pub fn by_heart(world: &World, o: &Options, seed: u64) -> (World, Arm) {
    let (few, epochs) = (FEW.0.min(world.members.len()), FEW.1.min(8 * o.epochs));
    let small = World { members: world.members[..few].to_vec(), ..world.clone() };
    let common = Choices {
        records: few as u64,
        batch: BATCH.min(few as u64),
        epochs,
        steps: None,
        learning_rate: 3e-3,
        schedule: Schedule::Constant,
        seed,
    };
    let settings = settings::dense(&common, dense::Method::Nonprivate);
    (small, Arm { name: "learnt by heart".into(), method: Some(Method::Dense(settings)), delta: o.delta })
}

/// What attacking and measuring a result costs beside training, in record gradients: about as much for all.
const MEASURING: u64 = 700;

/// Held-out records on the loss curves.
const ON_CURVE: usize = 50;

/// The arm whose first run is measured after every bit.
const WATCHED: &str = "FERRET-MAX";

/// Three held-out records: what stands before their responses, and from there on.
pub fn asked(world: &World) -> Vec<(&[u32], &[u32])> {
    let cut = |e: &'_ Example| e.learn.iter().position(|l| *l).unwrap_or(0);
    world.nonmembers.iter().map(|e| e.ids.split_at(cut(e))).filter(|(prompt, _)| !prompt.is_empty()).take(3).collect()
}

/// A run of one arm on one seed.
struct Job<'a> {
    arm: Arm,
    world: &'a World,
    reference: Reference,
    seed: usize,
    place: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Run every arm on every world, as many at once as there are threads: a run of a small model does not fill two. `tell` hears which share of
/// the whole is done, as far as record gradients tell, and its error ends all; `done` sees each outcome as it comes.
pub fn run(
    worlds: &[World],
    o: &Options,
    tell: &(dyn Fn(f64) -> Result<()> + Sync),
    done: &(dyn Fn(u64, &Outcome) + Sync),
) -> Result<Vec<Row>> {
    let prompts: Vec<Vec<u32>> =
        worlds.first().map_or_else(Vec::new, |world| asked(world).iter().map(|(prompt, _)| prompt.to_vec()).collect());
    let measure = |world, seed: usize, name: &str| Measure {
        world,
        audited: o.audited,
        audited_members: o.audited,
        on_curve: ON_CURVE,
        // One run is watched bit by bit, and the first seed's models are asked to speak.
        every_step: seed == 0 && name == WATCHED,
        prompts: if seed == 0 { &prompts } else { &[] },
        probe: None,
        alone: false,
    };
    let (few, last): (Vec<World>, Vec<Arm>) =
        worlds.iter().zip(1..).map(|(world, seed)| by_heart(world, o, seed)).unzip();
    let mut jobs = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    for (seed, (world, (small, last))) in worlds.iter().zip(few.iter().zip(last)).enumerate() {
        let reference = measure(world, seed, "").reference()?;
        let mut all: Vec<(Arm, &World, Reference)> =
            arms(world, o, seed as u64 + 1)?.into_iter().map(|arm| (arm, world, reference.clone())).collect();
        all.push((last, small, reference.of_first(small.members.len())));
        for (place, (arm, world, reference)) in all.into_iter().enumerate() {
            if seed == 0 {
                rows.push(Row { name: arm.name.clone(), learning_rate: arm.learning_rate(), outcomes: Vec::new() });
            }
            jobs.push(Job { arm, world, reference, seed, place });
        }
    }
    let work = |arm: &Arm| (MEASURING + arm.sample_gradients()) as f64;
    // The longest first, so that none is left alone at the end.
    jobs.sort_by(|a, b| work(&b.arm).total_cmp(&work(&a.arm)));
    let all: f64 = jobs.iter().map(|job| work(&job.arm)).sum();
    let (next, behind, failed) = (AtomicUsize::new(0), Mutex::new(vec![0.0; jobs.len()]), Mutex::new(None));
    let found: Mutex<Vec<(usize, usize, Outcome)>> = Mutex::new(Vec::new());
    let threads = rayon::current_num_threads();
    let at_once = threads.min(jobs.len()).max(1);
    let worker = || -> Result<()> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads((threads / at_once).max(1))
            .build()
            .map_err(|e| Error::usage(format!("{threads} threads: {e}")))?;
        while let Some((at, job)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, jobs.get(at)?)))
        {
            let told = |share: f64| {
                let mut behind = lock(&behind);
                behind[at] = share * work(&job.arm);
                let stopped = || Error::Interrupted("stopped; nothing was written".into());
                if lock(&failed).is_some() { Err(stopped()) } else { tell(behind.iter().sum::<f64>() / all) }
            };
            // A key of its own for every run: two runs must not share a sample or a noise.
            let secret = match o.insecure_seed {
                Some(seed) => Secret::insecure(
                    seed.wrapping_mul(1_000_000).wrapping_add(1000 * job.seed as u64).wrapping_add(job.place as u64),
                ),
                None => Secret::from_system()?,
            };
            let run = || {
                job.arm.run(&measure(job.world, job.seed, &job.arm.name), &job.reference, &secret, |share| {
                    told(0.9 * share)
                })
            };
            let outcome = pool.install(run)?;
            told(1.0)?;
            done(job.seed as u64 + 1, &outcome);
            lock(&found).push((job.place, job.seed, outcome));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                if let Err(e) = worker() {
                    lock(&failed).get_or_insert(e);
                }
            });
        }
    });
    if let Some(e) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(e);
    }
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|f| (f.0, f.1));
    for (place, _, outcome) in found {
        rows[place].outcomes.push(outcome);
    }
    Ok(rows)
}
