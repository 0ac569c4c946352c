//! The public plan of a run: which groups fire at which steps, what belongs to them, along which directions, and what a release counts.
//!
//! It follows from settings, seed and the model's layout, before any record is touched. The trainer asks it, the replayer asks it, and so
//! does everyone who wants to know what a run will do.

use super::settings::{Release, Settings};
use crate::error::{Error, Result};
use crate::model::{Layout, ParamId};
use crate::rng::DirectionStream;

/// What a fired group sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message {
    /// +1 or -1.
    Bit(i8),
    /// A noisy scalar, C included.
    Scalar(f32),
}

/// The public plan of a run on a model of some layout.
#[derive(Clone, Debug)]
pub struct Plan {
    settings: Settings,
    /// The parameters that may change, in order: those of all groups.
    pub(super) tuned: Vec<ParamId>,
    members: Vec<Vec<ParamId>>,
    /// Number of scalars of every group.
    dims: Vec<usize>,
}

impl Plan {
    /// Of a run on weights of this layout.
    pub fn new(layout: &Layout, settings: &Settings) -> Result<Self> {
        settings.check()?;
        let tuned = settings.tune.ids(layout)?;
        let members = settings.groups.members(&tuned)?;
        let dims = members.iter().map(|group| layout.scalars_of(group)).collect();
        Ok(Self { settings: settings.clone(), tuned, members, dims })
    }

    /// What it follows from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of groups G.
    pub fn groups(&self) -> usize {
        self.members.len()
    }

    /// The parameters of `group`, in the order in which its direction runs over them.
    pub fn members(&self, group: u32) -> &[ParamId] {
        &self.members[group as usize]
    }

    /// The direction of (step, group).
    pub fn direction(&self, step: u32, group: u32) -> DirectionStream {
        let Settings { seed, direction, .. } = self.settings;
        DirectionStream::new(seed, step, group, direction, self.dims[group as usize])
    }

    /// The factor of the direction that `released` stands for. Refuses what is outside the alphabet.
    pub fn scale(&self, released: Message) -> Result<f32> {
        let c = self.settings.clip;
        match (released, self.settings.release) {
            (Message::Bit(b @ (1 | -1)), Release::Bit) => Ok((f64::from(b) * c) as f32),
            (Message::Bit(b @ (1 | -1)), Release::Rr { flip, unbiased }) => {
                Ok((if unbiased { f64::from(b) * c / (1.0 - 2.0 * flip) } else { f64::from(b) * c }) as f32)
            }
            (Message::Scalar(x), Release::Gaussian { .. }) if x.is_finite() => Ok(x),
            (released, release) => {
                let found = match released {
                    Message::Bit(bit) => format!("the number {bit} where a sign belongs"),
                    Message::Scalar(x) => format!("the scalar {x}"),
                };
                let expected = match release {
                    Release::Bit => "a bit, +1 or -1",
                    Release::Rr { .. } => "a flipped bit, +1 or -1",
                    Release::Gaussian { .. } => "a finite scalar with noise",
                };
                Err(Error::Privacy(format!(
                    "{found} was to be applied, and a fire releases {expected}: nothing was applied"
                )))
            }
        }
    }
}
