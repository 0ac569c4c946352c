//! One arm of a comparison: a method with its settings, trained, measured and attacked.

pub use super::outcome::{Outcome, Raster};

use super::outcome::StoredOutcome;
use super::peak;
use super::real::{Probe, ProbeResult};
use super::world::World;
use crate::audit::bound::Charge;
use crate::backend::{Backend, Cpu};
use crate::data::Example;
use crate::error::Result;
use crate::eval::{self, RecordLoss};
use crate::method::ferret::{Releases, Transcript};
use crate::method::run::{Conclusion, Run, Step, Watch, drive};
use crate::method::{Method, Record, Sensitive, Task};
use crate::model::layout::Place;
use crate::model::tokenizer::Tokenizer;
use crate::model::{Decoder, Layout, ParamId, Weights};
use crate::privacy::guarantee::Guarantee;
use crate::privacy::statement::{Circumstances, Statement};
use crate::rng::Secret;
use std::time::Instant;

/// An arm to be run.
pub struct Arm {
    /// How tables call it.
    pub name: String,
    /// How it trains; none: not at all, the base model as it is.
    pub method: Option<Method>,
    /// The delta at which (eps, delta) is stated.
    pub delta: f64,
}

/// How many points a loss curve has.
const CURVE: u64 = 8;

/// Tokens that a model says after a prompt, at most.
const SAID: usize = 24;

/// Records computed on at once.
pub(super) const MICRO_BATCH: u32 = 16;

/// Losses of the base model on the audited records, to calibrate by.
#[derive(Clone)]
pub struct Reference {
    members: Vec<RecordLoss>,
    nonmembers: Vec<RecordLoss>,
}

impl Reference {
    /// That of a world which has the first `members` members alone.
    pub fn of_first(&self, members: usize) -> Self {
        Self { members: self.members[..members.min(self.members.len())].to_vec(), nonmembers: self.nonmembers.clone() }
    }
}

/// How many records of each side are attacked.
pub struct Measure<'a> {
    /// The comparison's records.
    pub world: &'a World,
    /// Non-members that are scored.
    pub audited: usize,
    /// Members that are scored, at most `audited`.
    pub audited_members: usize,
    /// Held-out records on the loss curves; 0: no curve.
    pub on_curve: usize,
    /// Measure after every computed step, not eight times a run.
    pub every_step: bool,
    /// Prompts of held-out records after which the tuned model is asked to go on.
    pub prompts: &'a [Vec<u32>],
    /// What the model is asked beside losses.
    pub probe: Option<&'a Probe>,
    /// Nothing else runs in this process: its peak of memory is the run's.
    pub alone: bool,
}

impl Measure<'_> {
    fn sides(&self) -> (&[Example], &[Example]) {
        let (members, nonmembers) = (self.world.own_members(), &self.world.nonmembers);
        let attacked = self.audited_members.min(self.audited);
        (&members[..members.len().min(attacked)], &nonmembers[..nonmembers.len().min(self.audited)])
    }

    /// The base model's losses.
    pub fn reference(&self) -> Result<Reference> {
        let decoder = Decoder::new(Cpu::<f32>::new(), self.world.base.weights.clone())?;
        let (members, nonmembers) = self.sides();
        let losses = |examples| eval::losses(&decoder, examples, |_| ());
        Ok(Reference { members: losses(members)?, nonmembers: losses(nonmembers)? })
    }

    /// What a model says after the prompts.
    fn says<B: Backend>(&self, decoder: &Decoder<B>) -> Result<Vec<String>> {
        if self.prompts.is_empty() {
            return Ok(Vec::new());
        }
        let tokenizer = Tokenizer::from_folder(&self.world.base.folder)?;
        let Some(tokenizer) = tokenizer else { return Ok(Vec::new()) };
        let say = |prompt: &Vec<u32>| {
            let room = decoder.config.positions.saturating_sub(prompt.len()).min(SAID);
            let mut cache = decoder.cache(prompt.len() + room);
            let (mut ids, mut said) = (prompt.clone(), Vec::new());
            for _ in 0..room {
                let logits = decoder.extend(&mut cache, &ids)?;
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0) as u32;
                if Some(best) == decoder.config.eos {
                    break;
                }
                said.push(best);
                ids = vec![best];
            }
            tokenizer.decode(&said)
        };
        self.prompts.iter().map(say).collect()
    }

    /// What the model answers.
    fn ask<B: Backend>(&self, decoder: &Decoder<B>) -> Result<Option<ProbeResult>> {
        self.probe.map(|probe| probe.ask(decoder)).transpose()
    }

    /// Mean token loss on the records of the curves.
    fn held_out<B: Backend>(&self, decoder: &Decoder<B>) -> Result<f64> {
        let records = &self.world.nonmembers;
        Ok(eval::token_mean(&eval::losses(decoder, &records[..records.len().min(self.on_curve)], |_| ())?).0)
    }
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
        let (mut says, mut probed) = (Vec::new(), None);
        let (trained, on_members, on_nonmembers) = match &self.method {
            None => {
                if !measure.prompts.is_empty() || measure.probe.is_some() {
                    let decoder = Decoder::new(Cpu::<f32>::new(), measure.world.base.weights.clone())?;
                    says = measure.says(&decoder)?;
                    probed = measure.ask(&decoder)?;
                }
                let nothing = StoredOutcome { bits: Some(0), charge: Charge::Bits(0), ..StoredOutcome::default() };
                (nothing, reference.members.clone(), reference.nonmembers.clone())
            }
            Some(method) => {
                let (trained, weights) = self.train(method, measure, secret, tell)?;
                let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
                let (members, nonmembers) = measure.sides();
                says = measure.says(&decoder)?;
                probed = measure.ask(&decoder)?;
                let losses = |examples| eval::losses(&decoder, examples, |_| ());
                (trained, losses(members)?, losses(nonmembers)?)
            }
        };
        // A member's loss fell further below the base model's than a non-member's: larger means member.
        let mean = |l: &RecordLoss| l.mean().unwrap_or(0.0);
        let score = |losses: &[RecordLoss], base: &[RecordLoss]| -> Vec<f32> {
            losses.iter().zip(base).map(|(l, b)| (mean(b) - mean(l)) as f32).collect()
        };
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
        let stored = StoredOutcome {
            guarantees: guarantees.collect(),
            train_loss: eval::token_mean(&on_members).0,
            test_loss: eval::token_mean(&on_nonmembers).0,
            candidates: (world.own_members().len() as u64, world.nonmembers.len() as u64),
            members: score(&on_members, &reference.members),
            nonmembers: score(&on_nonmembers, &reference.nonmembers),
            probed,
            ..trained
        };
        Ok(Outcome { says, ..stored.restore(&self.name)? })
    }

    /// Steps that the run computes.
    pub fn computed_steps(&self) -> u64 {
        self.method.as_ref().map_or(0, |m| m.computed_steps(m.steps()))
    }

    /// Record gradients that the run is expected to compute.
    pub fn sample_gradients(&self) -> u64 {
        self.method.as_ref().map_or(0, |m| m.sample_gradients(m.steps()))
    }

    /// Seconds of training a computed step takes here, measured over `seconds` or so, and at least one step after the first.
    pub fn pace(&self, world: &World, secret: &Secret, seconds: f64) -> Result<f64> {
        let Some(method) = &self.method else { return Ok(0.0) };
        let mut run = begin(method, world, secret)?;
        paced(seconds, || Ok(run.step()?.is_some()))
    }

    fn train(
        &self,
        method: &Method,
        measure: &Measure,
        secret: &Secret,
        tell: impl FnMut(f64) -> Result<()>,
    ) -> Result<(StoredOutcome, Weights)> {
        if measure.alone {
            peak::forget();
        }
        let mut run = begin(method, measure.world, secret)?;
        let begin = || -> Result<_> { Ok((0.0, measure.held_out(run.decoder())?)) };
        let curve = if measure.on_curve > 0 { vec![begin()?] } else { Vec::new() };
        let mut watch = Curve { measure, tell, steps: method.steps(), curve, seconds: 0.0, clock: Instant::now() };
        drive(&mut *run, &mut watch)?;
        let (curve, mut seconds, clock) = (watch.curve, watch.seconds, Instant::now());
        let Conclusion { weights, record, .. } = run.finish()?;
        seconds += clock.elapsed().as_secs_f64();
        let peak_bytes = if measure.alone { peak::bytes() } else { None };
        let circumstances = Circumstances { insecure_seed: secret.is_insecure(), ..Circumstances::default() };
        let statement = method.statement(&weights.layout, method.steps(), self.delta, circumstances)?;
        let fired = match &record {
            Record::Ferret(transcript) if record.is_rebuildable() => Some(raster(transcript, &weights.layout)),
            _ => None,
        };
        let bits = record.bits();
        let update_bits = method.summary(&weights.layout, method.steps())?["bits_per_update"].as_u64();
        let tuned = weights.layout.scalars_of(&method.tune().ids(&weights.layout)?) as u64;
        let charge = match (&record, bits) {
            // Bits without noise have no other bound.
            (Record::Ferret(_), Some(bits)) => Charge::Bits(bits),
            _ => claimed(&statement),
        };
        let trained = StoredOutcome {
            seconds,
            curve,
            charge,
            bits,
            update_bits,
            tuned,
            sample_gradients: self.sample_gradients(),
            steps: (self.computed_steps(), method.steps().into()),
            fired,
            peak_bytes,
            statement: Some(statement),
            ..StoredOutcome::default()
        };
        Ok((trained, weights.into_form()))
    }

    /// The peak learning rate; none where nothing is trained.
    pub fn learning_rate(&self) -> Option<f64> {
        self.method.as_ref().map(|m| m.common().learning_rate)
    }
}

/// Times the steps, tells how far they are, and measures now and then.
struct Curve<'a, F> {
    measure: &'a Measure<'a>,
    tell: F,
    steps: u32,
    curve: Vec<(f64, f64)>,
    seconds: f64,
    clock: Instant,
}

impl<B: Backend, F: FnMut(f64) -> Result<()>> Watch<B> for Curve<'_, F> {
    fn before(&mut self, _run: &mut dyn Run<B>) -> Result<()> {
        self.clock = Instant::now();
        Ok(())
    }

    fn after(&mut self, run: &mut dyn Run<B>, step: Step) -> Result<()> {
        self.seconds += self.clock.elapsed().as_secs_f64();
        let (done, all) = run.progress();
        (self.tell)(done as f64 / all as f64)?;
        if self.measure.on_curve == 0 {
            return Ok(());
        }
        if self.measure.every_step || done * CURVE >= self.curve.len() as u64 * all {
            let at = f64::from(step.step + 1) / f64::from(self.steps);
            self.curve.push((at, self.measure.held_out(run.decoder())?));
        }
        Ok(())
    }
}

fn begin<'a>(method: &Method, world: &'a World, secret: &'a Secret) -> Result<Box<dyn Run<Cpu> + 'a>> {
    let task = Task {
        base: world.base.weights.clone(),
        base_sha256: world.base_sha256.clone(),
        settings: method.clone(),
        stop: None,
        secret,
        records: Sensitive::new(&world.members[..]),
    };
    task.begin(Cpu::<f32>::new(), None)
}

/// Which group fired when, and with which sign.
fn raster(transcript: &Transcript, layout: &Layout) -> Raster {
    let signs: Vec<bool> = match &transcript.releases {
        Releases::Bits(bits) => bits.iter().map(|&b| b == 1).collect(),
        Releases::Scalars(scalars) => scalars.iter().map(|&x| x > 0.0).collect(),
    };
    let fired = transcript.fires().iter().zip(signs).map(|(&(step, group), plus)| (step, group, plus)).collect();
    Raster { fired, groups: transcript.settings.groups.len() as u64, blocks: blocks(transcript, layout) }
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

/// The (eps, delta) that a statement claims as a charge; no charge where it claims none.
fn claimed(statement: &Statement) -> Charge {
    let found = statement.claims.iter().find_map(|c| match c.guarantee {
        Guarantee::EpsDelta { eps, delta, neighbours } => Some(Charge::EpsDelta { eps, delta, neighbours }),
        _ => None,
    });
    found.unwrap_or(Charge::NonPrivate)
}

/// The block of every group's first tensor; none where the groups are not of this layout.
fn blocks(transcript: &Transcript, layout: &Layout) -> Vec<String> {
    let members = transcript.settings.tune.ids(layout).and_then(|ids| transcript.settings.groups.members(&ids));
    let place = |group: &Vec<ParamId>| match group.first().map(|&id| layout.spec(id).place) {
        Some(Place::Block(l)) => format!("block {l}"),
        Some(Place::Top) => "top".to_owned(),
        Some(Place::Embedding) | None => "embeddings".to_owned(),
    };
    members.map_or_else(|_| Vec::new(), |members| members.iter().map(place).collect())
}
