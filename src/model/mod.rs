//! The decoder: config, named parameters, checkpoints, tokenizer, generation.

pub mod config;
pub mod family;
pub mod layout;
pub mod weights;

pub use config::{Activation, Config};
pub use layout::{Layout, ParamId};
pub use weights::Weights;
