//! The decoder: config, named parameters, checkpoints, tokenizer, generation.

pub mod adapter;
pub mod batch;
mod block;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod embedded;
pub mod family;
pub mod footprint;
pub mod generate;
pub mod hub;
pub mod init;
pub mod layout;
mod scored;
pub mod sink;
pub mod tangent;
pub mod tokenizer;
pub mod weights;

pub use adapter::Adapter;
pub use batch::{Batch, Reduction};
pub use config::{Activation, Config, Mlp};
pub use decoder::Decoder;
pub use layout::{Layout, ParamId};
pub use sink::{GradSink, Rows, Slot, Tangents};
pub use weights::Weights;
