//! The tiny checkpoint with PyTorch's word on it (tests/fixtures, made by make_fixtures.py).

use ferret::backend::Cpu;
use ferret::model::{Batch, Decoder, checkpoint};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2_tiny").join(file)
}

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(path(file)).unwrap()
}

/// One tensor of a file.
pub fn gradient(file: &str, name: &str) -> Vec<f32> {
    let bytes = bytes(file);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// What PyTorch found.
pub fn expected() -> serde_json::Value {
    serde_json::from_slice(&bytes("expected.json")).unwrap()
}

/// The checkpoint.
pub fn decoder() -> Decoder<Cpu<f32>> {
    let checkpoint = checkpoint::load(path("").to_str().unwrap()).unwrap();
    Decoder::new(Cpu::new(), checkpoint.weights).unwrap()
}

/// The padded batch as ragged rows: padding dropped, row t predicting label t + 1 where it counts.
pub fn batch() -> Batch {
    let bytes = bytes("io.safetensors");
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

/// Norm of the difference over the reference's norm.
pub fn relative(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let diff: f64 = got.iter().zip(want).map(|(g, w)| (*g as f64 - *w as f64).powi(2)).sum();
    let size: f64 = want.iter().map(|w| (*w as f64).powi(2)).sum();
    (diff / size).sqrt()
}
