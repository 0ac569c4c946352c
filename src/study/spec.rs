//! One run of a study, named by everything that decides it.

use super::arm::Arm;
use super::real::ProbePlan;
use super::settings::{self, Choices};
use super::subset::Subset;
use super::world::World;
use crate::error::{Error, Result};
use crate::hash::sha256;
use crate::method::ferret::{self, BatchPer, Payload};
use crate::method::ferret_k::settings::USUAL_MOMENTUM;
use crate::method::groups::Grouping;
use crate::method::{Method, dense, ferret_k};
use crate::model::ParamId;
use crate::optim::{Route, Schedule, Silent};
use crate::rng::Direction;
use serde::{Deserialize, Serialize};

/// Changes whenever the same spec would give another result.
const VERSION: u32 = 1;

/// Which records a run sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The tuning split: to choose a learning rate by.
    Tuning,
    /// The candidates: a result.
    Result,
}

/// What FERRET releases, and what must hold for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Release {
    /// The bit: nats of mutual information.
    Bit,
    /// Flipped so that the run is (eps, delta)-DP.
    Rr {
        /// The eps; delta is the study's.
        eps: f64,
    },
    /// Noised so that the run is (eps, delta)-DP.
    Gaussian {
        /// The eps; delta is the study's.
        eps: f64,
    },
}

/// How FERRET's bits are counted against a budget in nats, where each batch is drawn uniformly and has its bits to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// One clean bit a batch, charged s ln 2 as in the paper.
    Paper,
    /// One clean bit a batch, charged what it can tell.
    Exact,
    /// As many bits a batch as the planner finds best, flipped as little as the budget asks, charged what they can tell together.
    Flipped,
}

/// A reading of Algorithm 1, and its budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// `ferret-max`, `ferret-half`, `ferret-quarter`, `ferret-eighth`, `ferret-2`.
    pub variant: String,
    /// Budget in nats of mutual information: how many bits.
    pub nats: f64,
    /// How a bit reaches the weights.
    pub route: Route,
    /// What AdamW does to silent groups.
    pub silent: Silent,
    /// How directions are distributed.
    pub direction: Direction,
    /// What a fired group sends.
    pub payload: Payload,
    /// What is released of the sign.
    pub release: Release,
}

impl Reading {
    /// The paper's set-up of `variant`.
    pub fn paper(variant: &str, nats: f64) -> Self {
        Self {
            variant: variant.to_owned(),
            nats,
            route: Route::Adamw,
            silent: Silent::Zero,
            direction: Direction::Sphere,
            payload: Payload::Sign,
            release: Release::Bit,
        }
    }

    fn settings(&self, tuned: &[ParamId], common: &Choices) -> Result<ferret::Settings> {
        let grouping = Grouping::of_method(&self.variant).ok_or_else(|| {
            let what = &self.variant;
            Error::usage(format!(
                "{what:?} is no variant of FERRET: ferret-max, ferret-half, ferret-quarter, ferret-eighth or ferret-2"
            ))
        })?;
        let mut s = settings::ferret(tuned, common, grouping, self.nats)?;
        s.method.clone_from(&self.variant);
        (s.route, s.silent, s.direction, s.payload) = (self.route, self.silent, self.direction, self.payload);
        if s.route == Route::Direct {
            s.weight_decay = 0.0;
        }
        Ok(s)
    }
}

/// FERRET-k, and its budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sketches {
    /// The eps; delta is the study's.
    pub eps: f64,
    /// k; none: what batch and noise make of it.
    pub bits: Option<u32>,
    /// What is released of the sums.
    pub release: ferret_k::Release,
    /// How releases reach the weights.
    pub route: Route,
    /// Of the direct route.
    pub momentum: f64,
    /// Whether U has scales from public text, one for each tensor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
}

impl Sketches {
    /// Levels by the direct route.
    pub fn usual(eps: f64, bits: Option<u32>) -> Self {
        let (release, route, momentum) = (ferret_k::Release::default(), Route::Direct, USUAL_MOMENTUM);
        Self { eps, bits, release, route, momentum, scaled: false }
    }
}

/// What a run is asked for: a row of the tables with its budget. The method and its settings follow ([`Spec::arm`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Goal {
    /// Nothing: the base model.
    Base,
    /// FERRET.
    Ferret(Reading),
    /// FERRET that tells no more than so many nats.
    Within {
        /// Budget in nats of mutual information.
        nats: f64,
        /// How bits are counted.
        counted: Counting,
    },
    /// DPSGD that tells no more than so many nats.
    DpsgdWithin {
        /// Budget in nats of mutual information.
        nats: f64,
    },
    /// FERRET-k at (eps, delta).
    FerretK(Sketches),
    /// FERRET-k that tells no more than so many nats.
    FerretKWithin {
        /// Budget in nats of mutual information.
        nats: f64,
    },
    /// DPSGD at (eps, delta).
    Dpsgd {
        /// The eps; delta is the study's.
        eps: f64,
    },
    /// DPSGD at (eps, delta), with scales from public text, one for each tensor.
    DpsgdScaled {
        /// The eps; delta is the study's.
        eps: f64,
    },
    /// The signs of what DPSGD would apply, at (eps, delta).
    DpSignsgd {
        /// The eps; delta is the study's.
        eps: f64,
    },
    /// The mean gradient.
    Nonprivate,
    /// Its signs.
    Signsgd,
    /// The mean gradient rounded at random, 8 bits a coordinate.
    Qsgd,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The row of the tables it belongs to.
    pub row: String,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// `embedded`, or SHA-256 of the file of records.
    pub data: String,
    /// Candidates asked for.
    pub candidates: usize,
    /// Records a side that are attacked.
    pub audited: usize,
    /// Which records.
    pub part: Part,
    /// What is asked for.
    pub method: Goal,
    /// The delta of every (eps, delta).
    pub delta: f64,
    /// Expected batch size.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// What of the model is tuned.
    #[serde(default, skip_serializing_if = "Subset::is_all")]
    pub subset: Subset,
    /// Take only as many steps as this reading computes with the same batch, epochs and seed.
    pub steps_of: Option<Reading>,
    /// A real model: records split by hash, secrets planted, questions asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<ProbePlan>,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// Of records, coins and public randomness.
    pub seed: u64,
    /// Fixes sampling and noise too; the run is then not private.
    pub insecure_seed: Option<u64>,
}

impl Spec {
    /// The name of its file: a hash of everything that decides it.
    pub fn hash(&self) -> String {
        let text = serde_json::to_string(self).expect("plain values");
        sha256(format!("{VERSION} {text}"))[..32].to_owned()
    }

    /// Which runs take the same time a computed step: all but seed, budget, rate, length and number of records.
    pub fn kind(&self) -> String {
        let mut like = self.clone();
        (like.seed, like.epochs, like.learning_rate, like.steps_of) = (0, 0, 0.0, None);
        (like.candidates, like.audited, like.asked) = (0, 0, None);
        (like.part, like.row, like.insecure_seed) = (Part::Result, String::new(), None);
        match &mut like.method {
            Goal::Ferret(reading) => {
                reading.nats = 0.0;
                if let Release::Rr { eps } | Release::Gaussian { eps } = &mut reading.release {
                    *eps = 0.0;
                }
            }
            Goal::FerretK(sketches) => sketches.eps = 0.0,
            Goal::Dpsgd { eps } | Goal::DpsgdScaled { eps } => *eps = 0.0,
            Goal::DpsgdWithin { nats } | Goal::FerretKWithin { nats } => *nats = 0.0,
            // How many bits a batch has depends on the budget.
            Goal::Within { nats, counted } if *counted != Counting::Flipped => *nats = 0.0,
            _ => {}
        }
        serde_json::to_string(&like).expect("plain values")
    }

    /// The arm that this is in `world`.
    pub fn arm(&self, world: &World) -> Result<Arm> {
        self.build(world, true)
    }

    /// An arm that takes as many steps of the same kind, with any noise: to be timed, not run.
    pub fn sketch(&self, world: &World) -> Result<Arm> {
        self.build(world, false)
    }

    fn build(&self, world: &World, calibrated: bool) -> Result<Arm> {
        let tuned = &self.subset.tensors(&world.base.weights.config)?;
        let passes = Choices {
            records: world.members.len() as u64,
            batch: self.batch,
            epochs: self.epochs,
            steps: None,
            learning_rate: self.learning_rate,
            schedule: self.schedule,
            seed: self.seed,
        };
        let like = self.steps_of.as_ref().map(|reading| reading.settings(tuned, &passes)).transpose()?;
        let steps = like.map(|s| (Method::Ferret(s.clone()).computed_steps(s.steps()) as u32).max(1));
        let matched = Choices { steps, ..passes };
        let method = match &self.method {
            Goal::Base => None,
            Goal::Ferret(reading) => {
                let mut s = reading.settings(tuned, &passes)?;
                s.check()?;
                match reading.release {
                    Release::Bit => {}
                    Release::Rr { eps } if calibrated => s = settings::with_flips(s, eps, self.delta)?,
                    Release::Gaussian { eps } if calibrated => s = settings::with_dither(s, eps, self.delta)?,
                    Release::Rr { .. } | Release::Gaussian { .. } => s.batch_per = BatchPer::Bit,
                }
                Some(Method::Ferret(s))
            }
            Goal::Within { nats, counted } => Some(Method::Ferret(settings::within(tuned, &passes, *nats, *counted)?)),
            Goal::DpsgdWithin { nats } => Some(Method::Dense(settings::dpsgd_within(&passes, *nats)?)),
            Goal::FerretKWithin { nats } => Some(Method::FerretK(settings::ferret_k_within(&passes, *nats)?)),
            Goal::FerretK(sketches) => {
                Some(Method::FerretK(settings::ferret_k(&passes, sketches, calibrated, self.delta)?))
            }
            Goal::Dpsgd { eps } | Goal::DpsgdScaled { eps } => {
                Some(Method::Dense(settings::dpsgd(&matched, calibrated.then_some(*eps), self.delta)?))
            }
            Goal::DpSignsgd { eps } => {
                Some(Method::Dense(settings::dp_signsgd(&matched, calibrated.then_some(*eps), self.delta)?))
            }
            Goal::Nonprivate => Some(Method::Dense(settings::dense(&matched, dense::Method::Nonprivate))),
            Goal::Signsgd => {
                let method = dense::Method::Signsgd { variant: dense::Variant::Plain };
                Some(Method::Dense(settings::dense(&matched, method)))
            }
            Goal::Qsgd => Some(Method::Dense(settings::dense(&matched, dense::Method::Qsgd { bits: 8 }))),
        };
        let mut method = method.map(|m| self.subset.of(m)).transpose()?;
        if matches!(self.method, Goal::FerretK(Sketches { scaled: true, .. }) | Goal::DpsgdScaled { .. }) {
            let scaled = |m: Method| world.scales(&m).and_then(|scales| m.with_scales(scales));
            method = method.map(scaled).transpose()?;
        }
        Ok(Arm { name: self.row.clone(), method, delta: self.delta })
    }

    /// The column of the paper's tables: the budget, or that of the reading whose steps are matched.
    pub fn column(&self) -> f64 {
        self.steps_of.as_ref().map_or(self.budget().0, |reading| reading.nats)
    }

    /// The budget and its unit, as tables write it.
    pub fn budget(&self) -> (f64, &'static str) {
        match &self.method {
            Goal::Base => (0.0, "saw no record"),
            Goal::Ferret(Reading { payload: Payload::TrueGradient, .. })
            | Goal::Nonprivate
            | Goal::Signsgd
            | Goal::Qsgd => (f64::INFINITY, "not private"),
            Goal::Ferret(Reading { release: Release::Rr { eps } | Release::Gaussian { eps }, .. }) => {
                (*eps, "eps at delta")
            }
            Goal::Ferret(reading) => (reading.nats, "nats"),
            Goal::Within { nats, .. } | Goal::DpsgdWithin { nats } | Goal::FerretKWithin { nats } => (*nats, "nats"),
            Goal::FerretK(Sketches { eps, .. })
            | Goal::Dpsgd { eps }
            | Goal::DpsgdScaled { eps }
            | Goal::DpSignsgd { eps } => (*eps, "eps at delta"),
        }
    }
}
