//! The boundary between records and releases, and the methods that cross it.
//!
//! A method plans with public randomness, computes on [`Sensitive`] records, and releases: [`ferret`] a bit a fired group, [`dense`] a
//! whole update at every step. What comes after a release (updates, checkpoints, logs, reports) sees nothing else.

/// The most steps of a run: far above any, far below what would fill the memory.
pub const MOST_STEPS: u32 = 100_000_000;

pub mod boundary;
pub mod dense;
pub mod ferret;
pub mod folder;
pub mod groups;
pub mod held;
pub mod mechanism;
pub mod sampler;
mod tally;
pub mod verify;

pub use boundary::{Opening, Sensitive};
pub use held::Held;
pub use mechanism::{Crossing, Mechanism};
pub use sampler::Samples;
