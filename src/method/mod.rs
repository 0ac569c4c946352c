//! The boundary between records and releases, and the methods that cross it.
//!
//! A method plans with public randomness, computes on [`Sensitive`] records, and releases: [`ferret`] a bit a fired group, [`ferret_k`] the
//! signs of a few sums, [`dense`] a whole update at every step. What comes after a release (updates, checkpoints, logs, reports) sees nothing else.
//!
//! In reading order: [`boundary`], [`list`] (the methods and their settings), [`run`] (what a run is, and the loop that drives it), a method's
//! folder, [`training`] (a run in a folder that can be killed and resumed).

/// The most steps of a run: far above any, far below what would fill the memory.
pub const MOST_STEPS: u32 = 100_000_000;

pub mod boundary;
mod claims;
pub mod common;
pub mod crew;
pub mod dense;
pub mod ferret;
pub mod ferret_k;
pub mod folder;
pub mod groups;
pub mod list;
pub mod mechanism;
pub mod rates;
mod rebuild;
mod replayer;
pub mod run;
pub mod sampler;
pub mod scales;
mod shards;
pub(crate) mod state;
mod tally;
mod trainer;
pub mod training;
pub mod transcript;
pub mod tune;
pub mod verify;

pub use boundary::{Opening, Sensitive};
pub use list::{Method, Record};
pub use mechanism::{Crossing, Mechanism};
pub use run::{Run, Task, drive};
pub use sampler::Samples;
pub use scales::Scales;
pub use tally::Private;
pub use tune::Tune;
