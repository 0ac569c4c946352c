//! Tiny checkpoints with PyTorch's word on them (tests/fixtures, made by make_fixtures.py and make_families.py).

use ferret::backend::Cpu;
use ferret::model::{Batch, Decoder, Weights, checkpoint};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

/// Every checkpoint but GPT-2's: one a family, then those that ask for what the families can.
pub const FAMILIES: [&str; 11] = [
    "llama_tiny",
    "qwen2_tiny",
    "bloom_tiny",
    "phi3_tiny",
    "llama_biases",
    "llama_linear",
    "mistral_window",
    "qwen2_window",
    "qwen3_norms",
    "phi3_long",
    "bloom_heads",
];

/// One checkpoint's folder.
#[derive(Clone, Copy)]
pub struct Fixture(pub &'static str);

const GPT2: Fixture = Fixture("gpt2_tiny");

/// One tensor of a file of GPT-2's.
pub fn gradient(file: &str, name: &str) -> Vec<f32> {
    GPT2.tensor(file, name)
}

/// What PyTorch found for GPT-2.
pub fn expected() -> serde_json::Value {
    GPT2.expected()
}

/// GPT-2's checkpoint.
pub fn decoder() -> Decoder<Cpu<f32>> {
    GPT2.decoder()
}

/// GPT-2's batch.
pub fn batch() -> Batch {
    GPT2.batch()
}

impl Fixture {
    /// The folder, or a file in it.
    pub fn path(self, file: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(self.0).join(file)
    }

    fn bytes(self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).unwrap()
    }

    /// One tensor of a file.
    pub fn tensor(self, file: &str, name: &str) -> Vec<f32> {
        let bytes = self.bytes(file);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// What PyTorch found.
    pub fn expected(self) -> serde_json::Value {
        serde_json::from_slice(&self.bytes("expected.json")).unwrap()
    }

    /// The checkpoint's weights.
    pub fn weights(self) -> Weights {
        checkpoint::load(self.path("").to_str().unwrap()).unwrap().weights
    }

    /// The checkpoint.
    pub fn decoder(self) -> Decoder<Cpu<f32>> {
        Decoder::new(Cpu::new(), self.weights()).unwrap()
    }

    /// The padded batch as ragged rows: padding dropped, row t predicting label t + 1 where it counts.
    pub fn batch(self) -> Batch {
        let bytes = self.bytes("io.safetensors");
        let io = SafeTensors::deserialize(&bytes).unwrap();
        let i64s = |name: &str| -> Vec<i64> {
            io.tensor(name).unwrap().data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let (ids, mask, labels) = (i64s("input_ids"), i64s("attention_mask"), i64s("labels"));
        let samples: Vec<(Vec<u32>, Vec<u32>)> = (0..3)
            .map(|b| {
                let real = (0..16).filter(|t| mask[b * 16 + t] == 1).count();
                let target = |t: usize| match labels.get(b * 16 + t + 1) {
                    Some(&label) if t + 1 < 16 && label >= 0 => label as u32,
                    _ => u32::MAX,
                };
                ((0..real).map(|t| ids[b * 16 + t] as u32).collect(), (0..real).map(target).collect())
            })
            .collect();
        Batch::new(samples.iter().map(|(i, t)| (i.as_slice(), t.as_slice())))
    }
}

/// Norm of the difference over the reference's norm.
pub fn relative(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let diff: f64 = got.iter().zip(want).map(|(g, w)| (*g as f64 - *w as f64).powi(2)).sum();
    let size: f64 = want.iter().map(|w| (*w as f64).powi(2)).sum();
    (diff / size).sqrt()
}
