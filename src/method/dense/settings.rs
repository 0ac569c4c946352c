//! Everything that a run of a dense method was told.

use super::compress;
use crate::error::{Error, Result};
use crate::grad::{ClipFunction, Clipping, Partition};
use crate::method::Tune;
use crate::method::common::{stored, told};
use crate::method::groups::{Grouping, Groups};
use crate::method::scales::{self, Scales};
use crate::model::layout::Place;
use crate::model::{Adapter, Layout, ParamId};
use crate::optim::{Route, Schedule};
use crate::privacy::Event;
use crate::privacy::Sampler;
use serde::{Deserialize, Serialize};

/// What is done to the gradient before it leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Method {
    /// Nothing: the mean gradient.
    Nonprivate,
    /// Clipped, summed, noised.
    Dpsgd(Privacy),
    /// The sign of what [`Method::Dpsgd`] releases.
    DpSignsgd(Privacy),
    /// The mean gradient's signs.
    Signsgd {
        /// Which of the algorithms of this name.
        variant: Variant,
    },
    /// The mean gradient, rounded at random.
    Qsgd {
        /// Bits a coordinate, its sign included: 2 to 8.
        bits: u32,
    },
}

/// Noise and clipping of the private methods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Privacy {
    /// Standard deviation of the noise on the sum, in units of `clip`.
    pub noise_multiplier: f64,
    /// C: the most one record moves the sum.
    pub clip: f64,
    /// How a record's norm becomes its factor.
    pub clip_rule: ClipFunction,
    /// Which norms are clipped together.
    pub clip_style: ClipStyle,
    /// With [`ClipStyle::PerGroup`]: so many groups of consecutive tensors; none: embeddings, every block and the top.
    pub clip_groups: Option<u32>,
}

/// Which parameters share a norm; L groups are clipped to C / sqrt(L) each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ClipStyle {
    /// All of them
    #[default]
    Flat,
    /// Every tensor has its own
    PerLayer,
    /// The embeddings, every block and the top; or --groups N runs of tensors
    PerGroup,
}

/// The algorithms called signSGD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The sign of the mean gradient
    #[default]
    Plain,
    /// Sign times mean size, tensor by tensor, of the gradient plus what earlier signs left out
    ErrorFeedback,
    /// Every micro-batch is a worker and sends its signs; the majority decides
    MajorityVote,
}

/// The settings of a run. Public, all of them, the number of records included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Settings {
    /// What is released.
    pub method: Method,
    /// Which tensors are tuned.
    #[serde(default, skip_serializing_if = "Tune::is_all")]
    pub tune: Tune,
    /// The adapter that the run begins with, where that is what is tuned: drawn from the public seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// What gradients are multiplied by before they are clipped, and noised sums once more, by tensor; none: 1 everywhere. DPSGD's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<Scales>,
    /// Number of records N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// Steps T that the run was planned for, where they are not those of the passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Records computed on at once; decides how sums are rounded, and who votes.
    pub micro_batch: u32,
    /// How updates reach the weights.
    pub route: Route,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// AdamW's weight decay; 0 for the direct route, which has none.
    pub weight_decay: f64,
    /// Seed of the public randomness: ties of signs, rounding.
    pub seed: u64,
}

/// A finished run's file of this name in its folder holds its [`Record`].
pub const RECORD: &str = "run.json";

/// What a finished run was told and which model it made: what another run, a shadow model's say, needs to go the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Version of this form.
    pub version: u32,
    /// Everything that the run was told.
    pub settings: Settings,
    /// Steps that were made of those planned.
    pub steps_run: u32,
    /// SHA-256 of the tensors it began at.
    pub base_sha256: String,
    /// SHA-256 of the tensors it ended at.
    pub tuned_sha256: String,
}

impl Record {
    /// The newest version of the JSON form. Version 1 also stored what follows from the settings: steps and sampling rate. Files without scales are of version 2,
    /// the bytes that they always were.
    pub const VERSION: u32 = 3;

    /// The version of the file of a run with such settings.
    pub fn version(settings: &Settings) -> u32 {
        if settings.scales.is_some() { Self::VERSION } else { 2 }
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values") + "\n"
    }

    /// Read a file's text.
    pub fn from_json(text: &str) -> Result<Self> {
        let found: Self = serde_json::from_str(text).map_err(|e| Error::usage(e.to_string()))?;
        if !(1..=Self::VERSION).contains(&found.version) || found.steps_run > found.settings.steps() {
            return Err(Error::usage(format!(
                "version {} with {} of {} steps: expected a version up to {} and no more steps than planned",
                found.version,
                found.steps_run,
                found.settings.steps(),
                Self::VERSION
            )));
        }
        found.settings.check()?;
        if (found.version == Self::VERSION) != found.settings.scales.is_some() {
            return Err(Error::usage(format!("version {} is not that of its settings", found.version)));
        }
        Ok(found)
    }
}

impl Method {
    /// How the method is called on the command line and in statements.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nonprivate => "nonprivate",
            Self::Dpsgd(_) => "dpsgd",
            Self::DpSignsgd(_) => "dp-signsgd",
            Self::Signsgd { .. } => "signsgd",
            Self::Qsgd { .. } => "qsgd",
        }
    }

    /// Noise and clipping, where the method has them.
    pub fn privacy(&self) -> Option<&Privacy> {
        match self {
            Self::Dpsgd(p) | Self::DpSignsgd(p) => Some(p),
            _ => None,
        }
    }

    /// Bits that an update of the parameters `tuned` takes, f32 where it is not compressed.
    pub fn bits_per_update(&self, layout: &Layout, tuned: &[ParamId]) -> u64 {
        let sizes = || tuned.iter().map(|&p| layout.spec(p).len());
        let (scalars, tensors) = (sizes().sum::<usize>() as u64, tuned.len() as u64);
        match self {
            Self::Nonprivate | Self::Dpsgd(_) => 32 * scalars,
            Self::Signsgd { variant: Variant::ErrorFeedback } => scalars + 32 * tensors,
            Self::Signsgd { .. } | Self::DpSignsgd(_) => scalars,
            Self::Qsgd { bits } => {
                let norms: usize = sizes().map(|n| n.div_ceil(compress::BUCKET)).sum();
                u64::from(*bits) * scalars + 32 * norms as u64
            }
        }
    }

    /// Whether updates take less than a float a coordinate.
    pub fn compresses(&self) -> bool {
        !matches!(self, Self::Nonprivate | Self::Dpsgd(_))
    }
}

impl Privacy {
    /// Whether anything is promised: contributions are bounded and noise is added.
    pub fn holds(&self) -> bool {
        self.noise_multiplier > 0.0 && self.clip_rule != ClipFunction::None
    }

    /// How gradients of the parameters `tuned` of a decoder of this layout are clipped.
    pub fn clipping(&self, layout: &Layout, tuned: &[ParamId]) -> Result<Clipping> {
        let partition = match (self.clip_style, self.clip_groups) {
            (ClipStyle::Flat, _) => Partition::Flat,
            (ClipStyle::PerLayer, _) => Partition::PerLayer,
            (ClipStyle::PerGroup, Some(n)) => {
                Partition::Groups(Groups::tuned(tuned, Grouping::Count(n as usize))?.members)
            }
            (ClipStyle::PerGroup, None) => {
                let mut groups: Vec<(Place, Vec<ParamId>)> = Vec::new();
                for &p in tuned {
                    let place = layout.spec(p).place;
                    match groups.iter_mut().find(|g| g.0 == place) {
                        Some(group) => group.1.push(p),
                        None => groups.push((place, vec![p])),
                    }
                }
                Partition::Groups(groups.into_iter().map(|g| g.1).collect())
            }
        };
        Clipping::new(self.clip_rule, partition, self.clip)
    }
}

told!(Settings);
stored!(Settings, sampling_rate);

impl Settings {
    /// A pass of Poisson batches of 50 over all weights, through AdamW at a constant rate. Sizes and rate are the caller's to fill in.
    pub fn usual(method: Method) -> Self {
        Self {
            method,
            tune: Tune::default(),
            adapter: None,
            scales: None,
            records: 1,
            batch: 50,
            epochs: 1,
            steps: None,
            sampler: Sampler::Poisson,
            micro_batch: 8,
            route: Route::Adamw,
            learning_rate: 1e-3,
            schedule: Schedule::Constant,
            weight_decay: 1e-3,
            seed: 0,
        }
    }

    /// What `steps` steps of the run release, for accountants; none where nothing can be promised.
    pub fn event(&self, steps: u32) -> Option<Event> {
        let privacy = self.method.privacy().filter(|p| p.holds())?;
        Some(Event::SubsampledGaussian {
            noise_multiplier: privacy.noise_multiplier,
            sampling_rate: self.sampling_rate(),
            steps: steps.into(),
        })
    }

    /// Whether the settings make sense and agree with each other.
    pub fn check(&self) -> Result<()> {
        self.common().check()?;
        self.tune.check(self.adapter.as_ref())?;
        let refuse = |what: String| Err(Error::usage(what));
        match (&self.scales, &self.method) {
            (Some(scales), Method::Dpsgd(_)) => scales.check()?,
            (Some(_), _) => return refuse(scales::MISPLACED.into()),
            (None, _) => {}
        }
        match &self.method {
            Method::Qsgd { bits } if !(2..=8).contains(bits) => {
                refuse(format!("bits is {bits}, expected 2 to 8: one for the sign and at least one for the size"))
            }
            Method::Dpsgd(p) | Method::DpSignsgd(p) => p.check(),
            _ => Ok(()),
        }
    }
}

impl Privacy {
    fn check(&self) -> Result<()> {
        let (sigma, clip) = (self.noise_multiplier, self.clip);
        if !(sigma >= 0.0 && sigma.is_finite()) {
            return Err(Error::usage(format!("noise_multiplier is {sigma}, expected 0 or a number above it")));
        }
        if !(clip > 0.0 && clip.is_finite() && (sigma * clip).is_finite() && sigma * clip < f64::from(f32::MAX)) {
            return Err(Error::usage(format!("clip is {clip}, expected a number above 0 that noise can be scaled by")));
        }
        if self.clip_groups.is_some() && self.clip_style != ClipStyle::PerGroup {
            return Err(Error::usage("`groups` belongs to `clipping` per-group"));
        }
        Ok(())
    }
}
