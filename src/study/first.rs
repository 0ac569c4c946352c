//! The first five minutes: the embedded model fine-tuned on the embedded records by every method, each audited.

use super::arm::{Arm, Measure, Outcome};
use super::settings::{self, Choices};
use super::world::World;
use crate::error::Result;
use crate::method::ferret::MaskKind;
use crate::method::groups::Grouping;
use crate::method::{Method, dense};
use crate::optim::{Schedule, Silent};
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

/// The paper's batch size.
const BATCH: u64 = 50;

/// Members that the last arm learns by heart, and its passes over them (at most eight for each of the others').
const FEW: (usize, u32) = (150, 24);

/// The arms, in the order in which they are run and shown. Learning rates, and for the small batch the reading, were chosen by trials on
/// the tuning split, which no result is taken from.
pub fn arms(world: &World, o: &Options) -> Result<Vec<Arm>> {
    let layout = &world.base.weights.layout;
    let records = world.members.len() as u64;
    let common = |batch, learning_rate| Choices {
        records,
        batch,
        epochs: o.epochs,
        steps: None,
        learning_rate,
        schedule: Schedule::Constant,
        seed: o.seed,
    };
    let arm = |name: &str, method| Arm { name: name.into(), method, delta: o.delta };
    let ferret = |name: &str, grouping, rate| -> Result<Arm> {
        let mut s = settings::ferret(layout, &common(BATCH, rate), grouping, o.nats)?;
        (s.method, s.mask) = (name.to_lowercase(), MaskKind::default());
        Ok(arm(&format!("{name}, B = {BATCH}"), Some(Method::Ferret(s))))
    };
    let mut small = settings::ferret(layout, &common(2, 1.2e-3), Grouping::Count(2), o.nats)?;
    (small.method, small.mask) = ("ferret-2".into(), MaskKind::default());
    (small.silent, small.direction) = (Silent::None, Direction::Rademacher);
    let small = settings::with_flips(small, o.eps, o.delta)?;
    let dpsgd = settings::dpsgd(&common(BATCH, 3e-3), Some(o.eps), o.delta)?;
    let plain = settings::dense(&common(BATCH, 1e-3), dense::Method::Nonprivate);
    Ok(vec![
        arm("base model", None),
        ferret("FERRET-MAX", Grouping::Bucket(1), 4e-3)?,
        ferret("FERRET-EIGHTH", Grouping::Bucket(8), 3e-3)?,
        ferret("FERRET-2", Grouping::Count(2), 3e-3)?,
        arm("FERRET-2, B = 2, flipped", Some(Method::Ferret(small))),
        arm(&format!("DPSGD, B = {BATCH}"), Some(Method::Dense(dpsgd))),
        arm(&format!("non-private, B = {BATCH}"), Some(Method::Dense(plain))),
    ])
}

/// What a leak looks like: non-private training that learns a few of the members by heart. The world holds those few alone.
pub fn by_heart(world: &World, o: &Options) -> Result<(World, Arm)> {
    let (few, epochs) = (FEW.0.min(world.members.len()), FEW.1.min(8 * o.epochs));
    let small = World { members: world.members[..few].to_vec(), ..world.clone() };
    let common = Choices {
        records: few as u64,
        batch: BATCH.min(few as u64),
        epochs,
        steps: None,
        learning_rate: 3e-3,
        schedule: Schedule::Constant,
        seed: o.seed,
    };
    let settings = settings::dense(&common, dense::Method::Nonprivate);
    let name = format!("non-private, {epochs} passes over {few}");
    Ok((small, Arm { name, method: Some(Method::Dense(settings)), delta: o.delta }))
}

/// What attacking and measuring a result costs beside training, in record gradients: about as much for all.
const MEASURING: u64 = 1500;

/// Run every arm. `tell` hears which arm is at work and which share of the whole job is done, as far as record gradients tell; `done` sees
/// each outcome as it comes.
pub fn run(
    world: &World,
    o: &Options,
    mut tell: impl FnMut(&str, f64) -> Result<()>,
    mut done: impl FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let (few, last) = by_heart(world, o)?;
    let measured = [world, &few].map(|world| Measure { world, audited: o.audited, on_curve: 100 });
    let references = [measured[0].reference()?, measured[1].reference()?];
    let arms: Vec<(Arm, usize)> = arms(world, o)?.into_iter().map(|a| (a, 0)).chain([(last, 1)]).collect();
    let work = |arm: &Arm| (MEASURING + arm.sample_gradients()) as f64;
    let all: f64 = arms.iter().map(|(arm, _)| work(arm)).sum();
    let (mut behind, mut outcomes) = (0.0, Vec::new());
    for (arm, place) in arms {
        // A key of its own for every run: two runs must not share a sample or a noise.
        let secret = match o.insecure_seed {
            Some(seed) => Secret::insecure(seed.wrapping_mul(1000).wrapping_add(outcomes.len() as u64)),
            None => Secret::from_system()?,
        };
        let here = work(&arm);
        let outcome = arm.run(&measured[place], &references[place], &secret, |share| {
            tell(&arm.name, (behind + share * (here - MEASURING as f64)) / all)
        })?;
        behind += here;
        tell(&arm.name, behind / all)?;
        done(&outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
