//! FERRET: one bit for every group that fires, along a public direction.
//!
//! Which groups fire and along which direction follows from the seed ([`crate::rng`]); the optimizer's steps follow from the released
//! bits ([`crate::optim`]). So a run *is* its [`Transcript`]: base model, [`Settings`], seed and bits. The trainer applies its own
//! releases through the [`Replayer`], and [`replay()`] does nothing else, so that trained and replayed weights cannot differ. A device
//! keeps its own copy up to date by the same rule, to compute bits with; the weights that leave are replayed on the CPU.

pub mod cuts;
mod device;
pub mod replay;
pub mod run;
pub mod settings;
mod spend;
mod statement;
pub mod transcript;

pub use cuts::Cuts;
pub use replay::{Released, Replayer, replay};
pub use run::{Run, Trainer};
pub use settings::{BatchPer, Engine, MaskKind, Payload, Release, Route, Settings};
pub use transcript::{Releases, Transcript};
