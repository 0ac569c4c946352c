//! One arm of a comparison: a method with its settings, trained, measured and attacked.

use super::world::World;
use crate::audit::bound::{Bound, Charge, Design, Neighbours, judge};
use crate::audit::roc::{Roc, Summary};
use crate::backend::{Backend, Cpu};
use crate::data::Example;
use crate::error::Result;
use crate::eval;
use crate::method::ferret::{self, Releases};
use crate::method::{Sensitive, dense};
use crate::model::{Decoder, Weights};
use crate::privacy::Accountant;
use crate::privacy::event::{Event, Fires};
use crate::privacy::guarantee::Guarantee;
use crate::privacy::mi;
use crate::privacy::pld::Pld;
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

/// What an arm gave.
pub struct Outcome {
    /// How tables call it.
    pub name: String,
    /// What is promised about a record, in its own unit.
    pub guarantees: Vec<Guarantee>,
    /// Bits released; none for methods that release more than bits.
    pub bits: Option<u64>,
    /// Records whose gradient was computed, over the whole run.
    pub sample_gradients: u64,
    /// Steps in which anything was computed, and all steps.
    pub steps: (u64, u64),
    /// Seconds of training.
    pub seconds: f64,
    /// Mean loss of a token on members and on non-members.
    pub train_loss: f64,
    /// See `train_loss`.
    pub test_loss: f64,
    /// The attack by loss relative to the base model's.
    pub roc: Roc,
    /// Its figures.
    pub attack: Summary,
    /// What the charge permits.
    pub bound: Bound,
    /// Whether the attack exceeds it.
    pub alarm: bool,
    /// (share of the run, mean token loss on held-out records).
    pub curve: Vec<(f64, f64)>,
    /// FERRET's releases.
    pub fired: Option<Raster>,
}

/// Which group fired when.
pub struct Raster {
    /// Step, group, and whether the released sign is plus.
    pub fired: Vec<(u32, u32, bool)>,
    /// Number of groups.
    pub groups: u64,
}

/// How many points a loss curve has.
const CURVE: u64 = 8;

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
    guarantees: Vec<Guarantee>,
    charge: Charge,
    bits: Option<u64>,
    sample_gradients: u64,
    steps: (u64, u64),
    fired: Option<Raster>,
}

impl Arm {
    /// Train, measure, attack. `tell` hears the share of the training done.
    pub fn run(
        &self,
        measure: &Measure,
        reference: &Reference,
        secret: &Secret,
        tell: impl FnMut(f64),
    ) -> Result<Outcome> {
        let trained = match &self.plan {
            Plan::Base => Trained {
                weights: measure.world.base.weights.clone(),
                seconds: 0.0,
                curve: Vec::new(),
                guarantees: Vec::new(),
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
        let score = |losses: &[eval::RecordLoss], base: &[f64]| -> Vec<f64> {
            losses.iter().zip(base).map(|(l, b)| b - l.mean().unwrap_or(0.0)).collect()
        };
        let roc = Roc::new(&score(&on_members, &reference.members), &score(&on_nonmembers, &reference.nonmembers))?;
        let world = measure.world;
        let bound =
            Bound::new(&trained.charge, Design::CoinFlip, world.members.len() as u64, world.nonmembers.len() as u64);
        let alarm = judge(&[&roc], &bound, 0.05).iter().flatten().any(|v| v.alarm);
        Ok(Outcome {
            name: self.name.clone(),
            guarantees: trained.guarantees,
            bits: trained.bits,
            sample_gradients: trained.sample_gradients,
            steps: trained.steps,
            seconds: trained.seconds,
            train_loss: eval::token_mean(&on_members).0,
            test_loss: eval::token_mean(&on_nonmembers).0,
            attack: roc.summary(),
            roc,
            bound,
            alarm,
            curve: trained.curve,
            fired: trained.fired,
        })
    }

    fn ferret(
        &self,
        settings: &ferret::Settings,
        measure: &Measure,
        secret: &Secret,
        mut tell: impl FnMut(f64),
    ) -> Result<Trained> {
        let world = measure.world;
        let run = ferret::Run {
            base: world.base.weights.clone(),
            base_sha256: world.base_sha256.clone(),
            settings: settings.clone(),
            releases: None,
            secret,
            records: Sensitive::new(&world.members),
            micro_batch: 16,
        };
        let mut trainer = ferret::Trainer::new(Cpu::<f32>::new(), run)?;
        let mut curve = vec![(0.0, measure.held_out(trainer.decoder())?)];
        let mut seconds = 0.0;
        loop {
            let clock = Instant::now();
            if trainer.step()?.is_none() {
                break;
            }
            seconds += clock.elapsed().as_secs_f64();
            let (done, all) = trainer.progress();
            tell(done as f64 / all as f64);
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
        let nats = mi::charge(settings.sampling_rate, bits);
        let mut guarantees = vec![Guarantee::MutualInformation { nats }];
        let batches = if settings.batch_per == ferret::BatchPer::Bit { bits } else { computed };
        if let ferret::Release::Rr { flip, .. } = settings.release {
            let fires = vec![Fires { steps: bits, bits: 1 }];
            let event = Event::SubsampledRandomisedResponse { flip, sampling_rate: settings.sampling_rate, fires };
            let eps = Pld::default().epsilon(&event, self.delta)?.upper;
            guarantees.push(Guarantee::eps_delta(eps, self.delta));
        }
        let signs: Vec<bool> = match &transcript.releases {
            Releases::Bits(bits) => bits.iter().map(|&b| b == 1).collect(),
            Releases::Scalars(scalars) => scalars.iter().map(|&x| x > 0.0).collect(),
        };
        let fired = fires.iter().zip(signs).map(|(&(step, group), plus)| (step, group, plus)).collect();
        Ok(Trained {
            weights,
            seconds,
            curve,
            guarantees,
            charge: Charge::Bits(bits),
            bits: Some(bits),
            sample_gradients: batches * settings.batch,
            steps: (computed, settings.steps.into()),
            fired: Some(Raster { fired, groups: settings.groups.len() as u64 }),
        })
    }

    fn dense(
        &self,
        settings: &dense::Settings,
        measure: &Measure,
        secret: &Secret,
        mut tell: impl FnMut(f64),
    ) -> Result<Trained> {
        let world = measure.world;
        let run = dense::Run {
            weights: world.base.weights.clone(),
            settings: settings.clone(),
            state: None,
            secret,
            records: Sensitive::new(&world.members),
        };
        let mut trainer = dense::Trainer::new(Cpu::<f32>::new(), run)?;
        let mut curve = vec![(0.0, measure.held_out(trainer.decoder())?)];
        let mut seconds = 0.0;
        loop {
            let clock = Instant::now();
            if trainer.step()?.is_none() {
                break;
            }
            seconds += clock.elapsed().as_secs_f64();
            let done = f64::from(trainer.next_step()) / f64::from(settings.steps);
            tell(done);
            if done * CURVE as f64 >= curve.len() as f64 {
                curve.push((done, measure.held_out(trainer.decoder())?));
            }
        }
        let steps = u64::from(settings.steps);
        let (guarantees, charge) = match settings.event(settings.steps) {
            Some(event) => {
                let eps = Pld::default().epsilon(&event, self.delta)?.upper;
                let charge = Charge::EpsDelta { eps, delta: self.delta, neighbours: Neighbours::AddRemove };
                (vec![Guarantee::eps_delta(eps, self.delta)], charge)
            }
            None => (vec![Guarantee::NonPrivate], Charge::NonPrivate),
        };
        Ok(Trained {
            weights: trainer.finish()?,
            seconds,
            curve,
            guarantees,
            charge,
            bits: None,
            sample_gradients: steps * settings.batch,
            steps: (steps, steps),
            fired: None,
        })
    }
}
