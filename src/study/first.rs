//! The first five minutes: the embedded model fine-tuned on the embedded records by every method, each audited.

use super::arm::{Arm, Measure, Outcome, Plan};
use super::world::World;
use crate::error::Result;
use crate::method::dense;
use crate::method::ferret::{self, BatchPer, Engine, Grouping, MaskKind, Payload, Release, Route};
use crate::method::groups::{self, Groups};
use crate::model::Layout;
use crate::optim::{Schedule, Silent};
use crate::privacy::statement::Sampler;
use crate::privacy::{calibrate, mi};
use crate::rng::{Direction, Secret};

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
    /// Seed of candidates, coins and public randomness.
    pub seed: u64,
    /// Fixes sampling and noise; the result is then not private.
    pub insecure_seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            candidates: 3000,
            audited: 1000,
            nats: 1.0,
            eps: 1.0,
            delta: 1e-5,
            epochs: 3,
            seed: 1,
            insecure_seed: None,
        }
    }
}

/// The arms, in the order in which they are run and shown.
pub fn arms(world: &World, o: &Options) -> Result<Vec<Arm>> {
    let layout = &world.base.weights.layout;
    let n = world.members.len() as u64;
    let arm = |name: &str, plan| Arm { name: name.into(), plan, delta: o.delta };
    let ferret = |grouping, batch, rate| ferret_settings(layout, n, o, grouping, batch, rate);
    let mut response = ferret(groups::Grouping::Bucket(1), 1, 1e-3)?;
    response.release = Release::Rr { flip: 0.02, unbiased: false };
    response.batch_per = BatchPer::Bit;
    response.silent = Silent::None;
    let steps = mi::steps(n, 50, o.epochs.into())?;
    let noise = calibrate::noise_multiplier(o.eps, o.delta, 50.0 / n as f64, steps)?.pld.upper;
    let dense = |method, rate| dense::Settings {
        method,
        records: n,
        batch: 50,
        epochs: o.epochs,
        steps: steps as u32,
        sampling_rate: 50.0 / n as f64,
        sampler: Sampler::Poisson,
        micro_batch: 16,
        route: Route::Adamw,
        learning_rate: rate,
        schedule: Schedule::Constant,
        weight_decay: 1e-3,
        seed: o.seed,
    };
    let privacy = dense::Privacy {
        noise_multiplier: noise,
        clip: 1.0,
        clip_rule: dense::ClipRule::Automatic,
        clip_style: dense::ClipStyle::Flat,
        clip_groups: None,
    };
    Ok(vec![
        arm("base model", Plan::Base),
        arm("FERRET-MAX, B = 50", Plan::Ferret(Box::new(ferret(groups::Grouping::Bucket(1), 50, 2e-3)?))),
        arm("FERRET-EIGHTH, B = 50", Plan::Ferret(Box::new(ferret(groups::Grouping::Bucket(8), 50, 1e-3)?))),
        arm("FERRET-2, B = 50", Plan::Ferret(Box::new(ferret(groups::Grouping::Count(2), 50, 1e-3)?))),
        arm("FERRET-MAX, B = 1, flips 2 %", Plan::Ferret(Box::new(response))),
        arm("DPSGD, B = 50", Plan::Dense(Box::new(dense(dense::Method::Dpsgd(privacy), 1e-3)))),
        arm("non-private, B = 50", Plan::Dense(Box::new(dense(dense::Method::Nonprivate, 1e-3)))),
    ])
}

fn ferret_settings(
    layout: &Layout,
    records: u64,
    o: &Options,
    grouping: groups::Grouping,
    batch: u64,
    learning_rate: f64,
) -> Result<ferret::Settings> {
    let groups = Groups::new(layout, grouping)?;
    let steps = mi::steps(records, batch, o.epochs.into())? as u32;
    let sampling_rate = batch as f64 / records as f64;
    Ok(ferret::Settings {
        method: "ferret".into(),
        p: ferret::Settings::fire_probability(o.nats, groups.len() as u64, steps.into(), sampling_rate),
        groups: Grouping::of(&groups.members)?,
        epsilon: o.nats,
        records,
        batch,
        epochs: o.epochs,
        steps,
        sampling_rate,
        mask: MaskKind::Bernoulli,
        direction: Direction::Sphere,
        release: Release::Bit,
        payload: Payload::Sign,
        clip: 1.0,
        route: Route::Adamw,
        silent: Silent::Zero,
        learning_rate,
        schedule: Schedule::Constant,
        weight_decay: 1e-3,
        sampler: Sampler::Poisson,
        batch_per: BatchPer::Step,
        engine: Engine::Backward,
        seed: o.seed,
    })
}

/// Run every arm. `tell` hears which arm is at which share of its training; `done` sees each outcome as it comes.
pub fn run(
    world: &World,
    o: &Options,
    mut tell: impl FnMut(&str, f64),
    mut done: impl FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let measure = Measure { world, audited: o.audited, on_curve: 100 };
    let reference = measure.reference()?;
    let mut outcomes = Vec::new();
    for arm in arms(world, o)? {
        // A key of its own for every run: two runs must not share a sample or a noise.
        let secret = match o.insecure_seed {
            Some(seed) => Secret::insecure(seed.wrapping_mul(1000).wrapping_add(outcomes.len() as u64)),
            None => Secret::from_system()?,
        };
        tell(&arm.name, 0.0);
        let outcome = arm.run(&measure, &reference, &secret, |share| tell(&arm.name, share))?;
        done(&outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
