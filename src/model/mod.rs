//! The decoder: config, named parameters, checkpoints, tokenizer, generation.

pub mod checkpoint;
pub mod config;
pub mod family;
pub mod hub;
pub mod init;
pub mod layout;
pub mod memory;
pub mod tokenizer;
pub mod weights;

pub use config::{Activation, Config};
pub use layout::{Layout, ParamId};
pub use weights::Weights;
