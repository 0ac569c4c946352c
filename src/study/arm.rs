//! One arm of a comparison: a method with its settings, trained, measured and attacked.

pub use super::outcome::{Outcome, Raster};

use super::outcome::Stored;
use super::world::World;
use crate::audit::bound::Charge;
use crate::backend::{Backend, Cpu};
use crate::data::Example;
use crate::error::Result;
use crate::eval;
use crate::method::ferret::{self, Payload, Release, Releases};
use crate::method::{Sensitive, dense};
use crate::model::{Decoder, Weights};
use crate::privacy::guarantee::Guarantee;
use crate::privacy::statement::{Circumstances, Statement};
use crate::rng::Secret;
use std::time::Instant;

/// What an arm trains by.
pub enum Plan {
    /// Nothing: the base model as it is.
    Base,
    /// FERRET.
    Ferret(Box<ferret::Settings>),
    /// A method that updates every parameter at every step.
    Dense(Box<dense::Settings>),
}

/// An arm to be run.
pub struct Arm {
    /// How tables call it.
    pub name: String,
    /// What it does.
    pub plan: Plan,
    /// The delta at which (eps, delta) is stated.
    pub delta: f64,
}

/// How many points a loss curve has.
const CURVE: u64 = 8;

/// Records computed on at once.
pub(super) const MICRO_BATCH: u32 = 16;

/// Losses of the base model on the audited records, to calibrate by.
pub struct Reference {
    members: Vec<f64>,
    nonmembers: Vec<f64>,
}

/// How many records of each side are attacked.
pub struct Measure<'a> {
    /// The comparison's records.
    pub world: &'a World,
    /// Records a side that are scored.
    pub audited: usize,
    /// Held-out records on the loss curves.
    pub on_curve: usize,
}

impl Measure<'_> {
    fn sides(&self) -> (&[Example], &[Example]) {
        let take = |x: &'_ [Example]| x.len().min(self.audited);
        let World { members, nonmembers, .. } = self.world;
        (&members[..take(members)], &nonmembers[..take(nonmembers)])
    }

    /// The base model's losses.
    pub fn reference(&self) -> Result<Reference> {
        let decoder = Decoder::new(Cpu::<f32>::new(), self.world.base.weights.clone())?;
        let (members, nonmembers) = self.sides();
        Ok(Reference { members: means(&decoder, members)?, nonmembers: means(&decoder, nonmembers)? })
    }

    /// Mean token loss on the records of the curves.
    fn held_out<B: Backend>(&self, decoder: &Decoder<B>) -> Result<f64> {
        let records = &self.world.nonmembers;
        Ok(eval::token_mean(&eval::losses(decoder, &records[..records.len().min(self.on_curve)], |_| ())?).0)
    }
}

/// Each record's mean loss; 0 where nothing counts.
fn means<B: Backend>(decoder: &Decoder<B>, examples: &[Example]) -> Result<Vec<f64>> {
    Ok(eval::losses(decoder, examples, |_| ())?.iter().map(|l| l.mean().unwrap_or(0.0)).collect())
}

/// What training leaves behind, before it is measured.
struct Trained {
    weights: Weights,
    seconds: f64,
    curve: Vec<(f64, f64)>,
    statement: Option<Statement>,
    charge: Charge,
    bits: Option<u64>,
    sample_gradients: u64,
    steps: (u64, u64),
    fired: Option<Raster>,
}

impl Arm {
    /// Train, measure, attack. `tell` hears the share of the training done; an error from it ends the run.
    pub fn run(
        &self,
        measure: &Measure,
        reference: &Reference,
        secret: &Secret,
        tell: impl FnMut(f64) -> Result<()>,
    ) -> Result<Outcome> {
        let trained = match &self.plan {
            Plan::Base => Trained {
                weights: measure.world.base.weights.clone(),
                seconds: 0.0,
                curve: Vec::new(),
                statement: None,
                charge: Charge::Bits(0),
                bits: Some(0),
                sample_gradients: 0,
                steps: (0, 0),
                fired: None,
            },
            Plan::Ferret(settings) => self.ferret(settings, measure, secret, tell)?,
            Plan::Dense(settings) => self.dense(settings, measure, secret, tell)?,
        };
        let decoder = Decoder::new(Cpu::<f32>::new(), trained.weights)?;
        let (members, nonmembers) = measure.sides();
        let (on_members, on_nonmembers) =
            (eval::losses(&decoder, members, |_| ())?, eval::losses(&decoder, nonmembers, |_| ())?);
        // A member's loss fell further below the base model's than a non-member's: larger means member.
        let score = |losses: &[eval::RecordLoss], base: &[f64]| -> Vec<f32> {
            losses.iter().zip(base).map(|(l, b)| (b - l.mean().unwrap_or(0.0)) as f32).collect()
        };
        let scores = (score(&on_members, &reference.members), score(&on_nonmembers, &reference.nonmembers));
        let world = measure.world;
        let guarantees = trained.statement.iter().flat_map(|s| &s.claims).map(|c| c.guarantee);
        // One accountant's figure is enough for a table: the first of each unit, which is the tightest.
        let mut unit = Vec::new();
        let guarantees = guarantees.filter(|g| {
            let kind = (std::mem::discriminant(g), matches!(g, Guarantee::EpsDelta { eps: 0.0, .. }));
            let new = !unit.contains(&kind) && !kind.1;
            unit.push(kind);
            new
        });
        let stored = Stored {
            guarantees: guarantees.collect(),
            bits: trained.bits,
            sample_gradients: trained.sample_gradients,
            steps: trained.steps,
            seconds: trained.seconds,
            train_loss: eval::token_mean(&on_members).0,
            test_loss: eval::token_mean(&on_nonmembers).0,
            curve: trained.curve,
            fired: trained.fired,
            statement: trained.statement,
            charge: trained.charge,
            candidates: (world.members.len() as u64, world.nonmembers.len() as u64),
            members: scores.0,
            nonmembers: scores.1,
        };
        stored.restore(&self.name)
    }

    /// Steps that the run computes.
    pub fn computed_steps(&self) -> u64 {
        match &self.plan {
            Plan::Base => 0,
            Plan::Ferret(s) => s.fires(s.steps).chunk_by(|a, b| a.0 == b.0).count() as u64,
            Plan::Dense(s) => s.steps.into(),
        }
    }

    /// Record gradients that the run is expected to compute.
    pub fn sample_gradients(&self) -> u64 {
        match &self.plan {
            Plan::Base => 0,
            Plan::Ferret(s) => s.batch * s.shared(&s.fires(s.steps)).iter().map(|f| f.steps).sum::<u64>(),
            Plan::Dense(s) => s.batch * u64::from(s.steps),
        }
    }

    /// Seconds of training a computed step takes here, measured over `seconds` or so, and at least one step after the first.
    pub fn pace(&self, world: &World, secret: &Secret, seconds: f64) -> Result<f64> {
        match &self.plan {
            Plan::Base => Ok(0.0),
            Plan::Ferret(settings) => {
                let mut trainer = ferret_trainer(settings, world, secret)?;
                paced(seconds, || Ok(trainer.step()?.is_some()))
            }
            Plan::Dense(settings) => {
                let mut trainer = dense_trainer(settings, world, secret)?;
                paced(seconds, || Ok(trainer.step()?.is_some()))
            }
        }
    }

    fn ferret(
        &self,
        settings: &ferret::Settings,
        measure: &Measure,
        secret: &Secret,
        mut tell: impl FnMut(f64) -> Result<()>,
    ) -> Result<Trained> {
        let mut trainer = ferret_trainer(settings, measure.world, secret)?;
        let mut curve = vec![(0.0, measure.held_out(trainer.decoder())?)];
        let mut seconds = 0.0;
        loop {
            let clock = Instant::now();
            if trainer.step()?.is_none() {
                break;
            }
            seconds += clock.elapsed().as_secs_f64();
            let (done, all) = trainer.progress();
            tell(done as f64 / all as f64)?;
            if done as u64 * CURVE >= curve.len() as u64 * all as u64 {
                let at = f64::from(trainer.so_far().steps_run) / f64::from(settings.steps);
                curve.push((at, measure.held_out(trainer.decoder())?));
            }
        }
        let clock = Instant::now();
        let (weights, transcript) = trainer.finish(settings.steps)?;
        seconds += clock.elapsed().as_secs_f64();
        let fires = transcript.fires();
        let computed = fires.chunk_by(|a, b| a.0 == b.0).count() as u64;
        let bits = fires.len() as u64;
        let signs: Vec<bool> = match &transcript.releases {
            Releases::Bits(bits) => bits.iter().map(|&b| b == 1).collect(),
            Releases::Scalars(scalars) => scalars.iter().map(|&x| x > 0.0).collect(),
        };
        let fired = fires.iter().zip(signs).map(|(&(step, group), plus)| (step, group, plus)).collect();
        let statement = settings.statement(&fires, settings.steps, self.delta, circumstances(secret))?;
        let sends_bits = settings.payload == Payload::Sign && !matches!(settings.release, Release::Gaussian { .. });
        let charge = match (settings.payload, settings.release) {
            (Payload::TrueGradient, _) => Charge::NonPrivate,
            (_, Release::Gaussian { .. }) => eps_charge(&statement),
            _ => Charge::Bits(bits),
        };
        Ok(Trained {
            weights,
            seconds,
            curve,
            charge,
            bits: sends_bits.then_some(bits),
            sample_gradients: self.sample_gradients(),
            steps: (computed, settings.steps.into()),
            fired: (settings.payload == Payload::Sign).then(|| Raster { fired, groups: settings.groups.len() as u64 }),
            statement: Some(statement),
        })
    }

    fn dense(
        &self,
        settings: &dense::Settings,
        measure: &Measure,
        secret: &Secret,
        mut tell: impl FnMut(f64) -> Result<()>,
    ) -> Result<Trained> {
        let mut trainer = dense_trainer(settings, measure.world, secret)?;
        let mut curve = vec![(0.0, measure.held_out(trainer.decoder())?)];
        let mut seconds = 0.0;
        loop {
            let clock = Instant::now();
            if trainer.step()?.is_none() {
                break;
            }
            seconds += clock.elapsed().as_secs_f64();
            let done = f64::from(trainer.next_step()) / f64::from(settings.steps);
            tell(done)?;
            if done * CURVE as f64 >= curve.len() as f64 {
                curve.push((done, measure.held_out(trainer.decoder())?));
            }
        }
        let steps = u64::from(settings.steps);
        let spent = settings.claims(settings.steps, self.delta)?;
        let layout = &trainer.decoder().layout;
        let statement = settings.statement(layout, settings.steps, &spent, None, circumstances(secret));
        Ok(Trained {
            weights: trainer.finish()?,
            seconds,
            curve,
            charge: eps_charge(&statement),
            bits: None,
            sample_gradients: self.sample_gradients(),
            steps: (steps, steps),
            fired: None,
            statement: Some(statement),
        })
    }
}

fn ferret_trainer<'a>(
    settings: &ferret::Settings,
    world: &'a World,
    secret: &'a Secret,
) -> Result<ferret::Trainer<'a, Cpu<f32>>> {
    let run = ferret::Run {
        base: world.base.weights.clone(),
        base_sha256: world.base_sha256.clone(),
        settings: settings.clone(),
        releases: None,
        secret,
        records: Sensitive::new(&world.members),
        micro_batch: MICRO_BATCH as usize,
    };
    ferret::Trainer::new(Cpu::<f32>::new(), run)
}

fn dense_trainer<'a>(
    settings: &dense::Settings,
    world: &'a World,
    secret: &'a Secret,
) -> Result<dense::Trainer<'a, Cpu<f32>>> {
    let run = dense::Run {
        weights: world.base.weights.clone(),
        settings: settings.clone(),
        state: None,
        secret,
        records: Sensitive::new(&world.members),
    };
    dense::Trainer::new(Cpu::<f32>::new(), run)
}

/// Seconds a call of `step` takes, the first left out (it allocates), over `seconds` or until it says false.
fn paced(seconds: f64, mut step: impl FnMut() -> Result<bool>) -> Result<f64> {
    let first = Instant::now();
    step()?;
    let (mut clock, mut calls) = (Instant::now(), 0u32);
    let mut only = (clock - first).as_secs_f64();
    while calls == 0 || clock.elapsed().as_secs_f64() < seconds {
        let begun = Instant::now();
        if !step()? {
            break;
        }
        if calls == 0 {
            clock = begun;
        }
        calls += 1;
        only = clock.elapsed().as_secs_f64() / f64::from(calls);
    }
    Ok(only)
}

fn circumstances(secret: &Secret) -> Circumstances {
    Circumstances { insecure_seed: secret.is_insecure(), ..Circumstances::default() }
}

/// The (eps, delta) that a statement claims as a charge; no charge where it claims none.
fn eps_charge(statement: &Statement) -> Charge {
    let found = statement.claims.iter().find_map(|c| match c.guarantee {
        Guarantee::EpsDelta { eps, delta, neighbours } => Some(Charge::EpsDelta { eps, delta, neighbours }),
        _ => None,
    });
    found.unwrap_or(Charge::NonPrivate)
}
