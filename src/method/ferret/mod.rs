//! FERRET: one bit for every group that fires, along a public direction.
//!
//! Which groups fire and along which direction follows from the seed ([`crate::rng`]); the optimizer's steps follow from the released
//! bits ([`crate::optim`]). So a run *is* its [`Transcript`]: base model, [`Settings`], seed and bits. [`Plan`] is what follows from the
//! settings alone. The [`Trainer`] applies its own releases through the [`Replayer`], and [`replay()`] does nothing else, so that trained
//! and replayed weights cannot differ. On a device the same rule keeps the weights that bits are computed with; those that leave are
//! replayed on the CPU.

pub mod cuts;
mod noise;
pub mod plan;
pub mod replay;
pub mod settings;
mod spend;
mod statement;
pub mod trainer;
pub mod transcript;

pub use cuts::Cuts;
pub use noise::Noise;
pub use plan::{Message, Plan};
pub use replay::{Replayer, replay};
pub use settings::{BatchPer, Engine, MaskKind, Payload, Release, Settings};
pub use trainer::{Trainer, sign_or_coin};
pub use transcript::{Releases, Transcript};
