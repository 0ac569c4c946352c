//! What every method is told, and what follows from it: steps, sampling rate, the optimizer.
//!
//! Only what was chosen is stored. Files of earlier versions also hold what follows; it must agree, and is then passed over.

use super::MOST_STEPS;
use super::sampler::Samples;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::optim::{Hyper, Route, Schedule, Silent, Updates};
use crate::privacy::Sampler;
use crate::rng::Secret;
use serde_json::Value;

/// What all methods share of their settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Number of records N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// Steps T, where they are not those of the passes.
    pub steps: Option<u32>,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Records computed on at once; decides how sums are rounded.
    pub micro_batch: u32,
    /// How releases reach the weights.
    pub route: Route,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// AdamW's weight decay.
    pub weight_decay: f64,
    /// Seed of the public randomness.
    pub seed: u64,
}

/// The [`Common`] of a method's settings, which have its fields under its names, and what follows from it.
macro_rules! told {
    ($settings:ty) => {
        impl $settings {
            /// What every method is told.
            pub fn common(&self) -> $crate::method::common::Common {
                $crate::method::common::Common {
                    records: self.records,
                    batch: self.batch,
                    epochs: self.epochs,
                    steps: self.steps,
                    sampler: self.sampler,
                    micro_batch: self.micro_batch,
                    route: self.route,
                    learning_rate: self.learning_rate,
                    schedule: self.schedule,
                    weight_decay: self.weight_decay,
                    seed: self.seed,
                }
            }

            /// Steps T that the run was planned for.
            pub fn steps(&self) -> u32 {
                self.common().steps()
            }

            /// s = B / N.
            pub fn sampling_rate(&self) -> f64 {
                self.common().sampling_rate()
            }
        }
    };
}
pub(super) use told;

/// Files of a method's settings, which are `serde(remote = "Self")`: those of earlier versions also hold the numbers named here, which must be what
/// the settings make.
macro_rules! stored {
    ($settings:ty, $($name:ident),+) => {
        impl serde::Serialize for $settings {
            fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
                Self::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $settings {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
                use serde::de::Error as _;
                let mut value = serde_json::Value::deserialize(from)?;
                let stored = $crate::method::common::Surplus::take(&mut value);
                let mut settings = Self::deserialize(value).map_err(D::Error::custom)?;
                settings.steps = settings.steps.filter(|&t| t != Self { steps: None, ..settings.clone() }.steps());
                stored.agrees(&[$((stringify!($name), settings.$name())),+]).map_err(D::Error::custom)?;
                Ok(settings)
            }
        }
    };
}
pub(super) use stored;

impl Common {
    /// Steps T that the run is planned for: those given, else epochs times ceil(N / B). A number that no run has where there are more
    /// than any may have.
    pub fn steps(&self) -> u32 {
        let passes = self.records.div_ceil(self.batch.max(1)).saturating_mul(self.epochs.into());
        self.steps.unwrap_or(passes.try_into().unwrap_or(u32::MAX))
    }

    /// s = B / N.
    pub fn sampling_rate(&self) -> f64 {
        self.batch as f64 / self.records as f64
    }

    /// Whether these make sense.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        for (name, x) in [("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)] {
            if !(x >= 0.0 && x.is_finite()) {
                return refuse(format!("{name} is {x}, expected 0 or a number above it"));
            }
        }
        if self.batch == 0 || self.batch > self.records {
            return refuse(format!(
                "a batch of {} from {} records: expected at least 1 and at most all of them",
                self.batch, self.records
            ));
        }
        if self.steps() == 0 || self.steps() > MOST_STEPS {
            return refuse(format!("steps is {}, expected 1 to {MOST_STEPS}", self.steps()));
        }
        if self.micro_batch == 0 {
            return refuse("micro_batch is 0, which would never finish a batch: expected at least 1".into());
        }
        if let Schedule::Linear { warmup } = self.schedule
            && !(0.0..=1.0).contains(&warmup)
        {
            return refuse(format!("warmup is {warmup}, expected 0 to 1"));
        }
        if self.route == Route::Direct && self.weight_decay != 0.0 {
            return refuse(format!("weight_decay is {}, but the direct route has none: expected 0", self.weight_decay));
        }
        Ok(())
    }

    /// The optimizer of `tensors` tensors.
    pub fn updates<B: Backend>(&self, tensors: usize, silent: Silent) -> Updates<B> {
        let hyper = Hyper::new(self.learning_rate, self.weight_decay);
        Updates::new(self.route, tensors, self.steps(), hyper, self.schedule, silent)
    }

    /// The run's batches.
    pub fn samples<'a>(&self, secret: &'a Secret) -> Result<Samples<'a>> {
        Samples::new(secret, self.sampler, self.records as usize, self.batch as usize)
    }
}

/// What earlier versions stored beside the settings that it follows from.
pub(super) struct Surplus(Vec<(&'static str, Value)>);

impl Surplus {
    /// Take it out of `settings`.
    pub(super) fn take(settings: &mut Value) -> Self {
        let Some(object) = settings.as_object_mut() else { return Self(Vec::new()) };
        let mut take = |name| Some((name, object.shift_remove(name)?));
        Self(["sampling_rate", "p"].into_iter().filter_map(&mut take).collect())
    }

    /// Refuse it where it is not what the settings make: (name, value) of each that they know.
    pub(super) fn agrees(&self, made: &[(&str, f64)]) -> Result<(), String> {
        for (name, stored) in &self.0 {
            let Some((_, x)) = made.iter().find(|m| m.0 == *name) else {
                return Err(format!("unknown field `{name}`"));
            };
            if !stored.as_f64().is_some_and(|s| (s - x).abs() <= 1e-9 * x.abs()) {
                return Err(format!("{name} is {stored}, but the settings beside it make it {x}"));
            }
        }
        Ok(())
    }
}
