//! Shapes that have a name.

use super::gpt2;
use crate::model::config::Config;

/// A shape that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 124M parameters: 12 blocks, 768 wide.
    Gpt2,
    /// 82M parameters: 6 blocks, 768 wide.
    Distilgpt2,
    /// 355M parameters: 24 blocks, 1024 wide.
    Gpt2Medium,
    /// 125k parameters: 2 blocks, 64 wide, a vocabulary of 256, 128 positions.
    Tiny,
}

impl Preset {
    /// The shape.
    pub fn config(self) -> Config {
        match self {
            Self::Gpt2 => gpt2::shape(12, 12, 768),
            Self::Distilgpt2 => gpt2::shape(6, 12, 768),
            Self::Gpt2Medium => gpt2::shape(24, 16, 1024),
            Self::Tiny => Config { vocab: 256, positions: 128, eos: None, ..gpt2::shape(2, 4, 64) },
        }
    }
}
