//! Shapes that have a name: GPT-2's, and those of the checkpoints that people have.

use super::{FamilyRef, bloom, gpt2, llama, phi3, qwen2};
use crate::model::config::{Config, Position, Rope, Scaling, Window};
use crate::ops::rope::longrope_attention;

/// A shape that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 124M parameters: 12 blocks, 768 wide.
    Gpt2,
    /// 82M parameters: 6 blocks, 768 wide.
    Distilgpt2,
    /// 355M parameters: 24 blocks, 1024 wide.
    Gpt2Medium,
    /// 125k parameters: 2 blocks, 64 wide, a vocabulary of 256, 128 positions.
    Tiny,
    /// SmolLM-135M: 30 blocks, 576 wide.
    Smollm135m,
    /// SmolLM-360M: 32 blocks, 960 wide.
    Smollm360m,
    /// TinyLlama-1.1B: 22 blocks, 2048 wide.
    Tinyllama,
    /// Qwen2.5-0.5B: 24 blocks, 896 wide.
    Qwen25,
    /// DeepSeek-R1-Distill-Qwen-1.5B: 28 blocks, 1536 wide.
    DeepseekQwen,
    /// BLOOM-560M: 24 blocks, 1024 wide.
    Bloom560m,
    /// Phi-3.5-mini, 3.8B parameters: 32 blocks, 3072 wide.
    Phi35Mini,
}

/// Every preset with its name and what it is.
const ALL: [(Preset, &str, &str); 11] = [
    (Preset::Gpt2, "gpt2", "124M parameters: 12 blocks, 768 wide"),
    (Preset::Distilgpt2, "distilgpt2", "82M parameters: 6 blocks, 768 wide"),
    (Preset::Gpt2Medium, "gpt2-medium", "355M parameters: 24 blocks, 1024 wide"),
    (Preset::Tiny, "tiny", "125k parameters: 2 blocks, 64 wide, a vocabulary of 256, 128 positions"),
    (Preset::Smollm135m, "smollm-135m", "135M parameters: 30 blocks, 576 wide"),
    (Preset::Smollm360m, "smollm-360m", "362M parameters: 32 blocks, 960 wide"),
    (Preset::Tinyllama, "tinyllama-1.1b", "1.1B parameters: 22 blocks, 2048 wide"),
    (Preset::Qwen25, "qwen2.5-0.5b", "494M parameters: 24 blocks, 896 wide"),
    (Preset::DeepseekQwen, "deepseek-r1-distill-qwen-1.5b", "1.8B parameters: 28 blocks, 1536 wide"),
    (Preset::Bloom560m, "bloom-560m", "559M parameters: 24 blocks, 1024 wide"),
    (Preset::Phi35Mini, "phi3.5-mini", "3.8B parameters: 32 blocks, 3072 wide"),
];

impl Preset {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|(preset, ..)| *preset)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(preset, ..)| *preset == self).map_or("", |(_, name, _)| name)
    }

    /// What it is.
    pub fn about(self) -> &'static str {
        ALL.iter().find(|(preset, ..)| *preset == self).map_or("", |(.., about)| about)
    }

    /// The one of this name.
    pub fn find(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, other, _)| *other == name).map(|(preset, ..)| *preset)
    }

    /// The shape.
    pub fn config(self) -> Config {
        let llama = |sizes| llama::shape(FamilyRef(&llama::Llama), sizes);
        let qwen = |sizes| {
            let eos = Some(151_643);
            Config { norm_epsilon: 1e-6, biases: qwen2::BIASES, eos, ..llama::shape(FamilyRef(&qwen2::Qwen2), sizes) }
        };
        match self {
            Self::Gpt2 => gpt2::shape(12, 12, 768),
            Self::Distilgpt2 => gpt2::shape(6, 12, 768),
            Self::Gpt2Medium => gpt2::shape(24, 16, 1024),
            Self::Tiny => Config { vocab: 256, positions: 128, eos: None, ..gpt2::shape(2, 4, 64) },
            Self::Smollm135m => Config { inner: 1536, tied: true, eos: Some(0), ..llama([49152, 576, 30, 9, 3]) },
            Self::Smollm360m => Config { inner: 2560, tied: true, eos: Some(0), ..llama([49152, 960, 32, 15, 5]) },
            Self::Tinyllama => Config { inner: 5632, ..llama([32000, 2048, 22, 32, 4]) },
            Self::Qwen25 => Config {
                inner: 4864,
                positions: 32768,
                tied: true,
                position: turns(1_000_000.0, 64, Scaling::None),
                ..qwen([151_936, 896, 24, 14, 2])
            },
            Self::DeepseekQwen => Config { inner: 8960, positions: 131_072, ..qwen([151_936, 1536, 28, 12, 2]) },
            Self::Bloom560m => bloom::shape(24, 16, 1024),
            Self::Phi35Mini => {
                let (original, positions) = (4096, 131_072);
                let scaling = Scaling::LongRope {
                    short: hundredths(&PHI35_SHORT),
                    long: hundredths(&PHI35_LONG),
                    original,
                    attention: longrope_attention((positions / original) as f64, original),
                };
                phi3::fused(Config {
                    inner: 8192,
                    positions,
                    position: turns(10_000.0, 96, scaling),
                    window: Some(Window { size: 262_144, first_layer: 0 }),
                    eos: Some(32000),
                    adapter: None,
                    ..llama::shape(FamilyRef(&phi3::Phi3), [32064, 3072, 32, 32, 32])
                })
            }
        }
    }
}

fn turns(theta: f64, width: usize, scaling: Scaling) -> Position {
    Position::Rope(Rope { theta, width, scaling })
}

fn hundredths(list: &[u32]) -> Vec<f64> {
    list.iter().map(|&n| n as f64 / 100.0).collect()
}

/// Phi-3.5-mini's divisors of frequencies for texts of up to 4,096 tokens, in hundredths.
const PHI35_SHORT: [u32; 48] = [
    100, 102, 103, 103, 105, 105, 105, 105, 105, 107, 110, 111, 116, 116, 117, 129, 134, 168, 179, 182, 185, 188, 191,
    194, 199, 202, 202, 202, 202, 202, 202, 203, 203, 203, 203, 203, 203, 203, 203, 203, 208, 209, 219, 222, 259, 273,
    275, 284,
];

/// Those for longer texts.
const PHI35_LONG: [u32; 48] = [
    108, 111, 114, 134, 159, 160, 162, 262, 323, 323, 479, 740, 770, 909, 1220, 1767, 2446, 2857, 3042, 3084, 3259,
    3293, 4232, 4496, 5034, 5045, 5755, 5793, 5821, 6014, 6261, 6262, 6271, 6314, 6314, 6377, 6393, 6396, 6397, 6403,
    6407, 6408, 6412, 6441, 6448, 6451, 6453, 6484,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Layout, family};
    use std::path::Path;

    #[test]
    fn sizes_are_those_of_the_checkpoints() {
        for (name, scalars, tensors) in [
            ("gpt2", 124_439_808u128, 148),
            ("smollm-135m", 134_515_008, 272),
            ("smollm-360m", 361_821_120, 290),
            ("tinyllama-1.1b", 1_100_048_384, 201),
            ("qwen2.5-0.5b", 494_032_768, 290),
            ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000, 339),
            ("bloom-560m", 559_214_592, 293),
            ("phi3.5-mini", 3_821_079_552, 195),
        ] {
            let preset = Preset::find(name).unwrap();
            let config = preset.config();
            assert_eq!((preset.name(), config.scalars()), (name, scalars));
            let layout = Layout::new(&config);
            assert_eq!((layout.len(), layout.scalars() as u128), (tensors, scalars), "{name}");
        }
    }

    #[test]
    fn a_config_written_is_read_back() {
        for preset in Preset::all() {
            let config = preset.config();
            let text = config.family.to_json(&config);
            let read = family::parse(&text, Path::new("config.json")).unwrap();
            assert_eq!(read.config, config, "{}", preset.name());
            assert!(read.notes.is_empty(), "{:?}", read.notes);
        }
    }
}
