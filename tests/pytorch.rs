//! Against PyTorch's word on a tiny checkpoint (tests/fixtures, made by make_fixtures.py).

mod common;

use ferret::backend::{Backend, Cpu};
use ferret::grad::{PerSample, Sum};
use ferret::model::{Batch, Decoder, Layout, Reduction, checkpoint};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2_tiny").join(file)
}

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(fixture(file)).unwrap()
}

fn f32s(file: &SafeTensors, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn i64s(file: &SafeTensors, name: &str) -> Vec<i64> {
    file.tensor(name).unwrap().data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn expected() -> serde_json::Value {
    serde_json::from_slice(&bytes("expected.json")).unwrap()
}

fn decoder() -> Decoder<Cpu<f32>> {
    let checkpoint = checkpoint::load(fixture("").to_str().unwrap()).unwrap();
    Decoder::new(Cpu::new(), checkpoint.weights).unwrap()
}

/// The fixture's padded batch as ragged rows: padding dropped, row t predicting label t + 1 where it counts.
fn batch() -> Batch {
    let bytes = bytes("io.safetensors");
    let io = SafeTensors::deserialize(&bytes).unwrap();
    let (ids, mask, labels) = (i64s(&io, "input_ids"), i64s(&io, "attention_mask"), i64s(&io, "labels"));
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
fn relative(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let diff: f64 = got.iter().zip(want).map(|(g, w)| (*g as f64 - *w as f64).powi(2)).sum();
    let size: f64 = want.iter().map(|w| (*w as f64).powi(2)).sum();
    (diff / size).sqrt()
}

fn assert_gradients(layout: &Layout, sum: &Sum<Cpu<f32>>, file: &str, prefix: &str) {
    let bytes = bytes(file);
    let grads = SafeTensors::deserialize(&bytes).unwrap();
    for p in layout.ids() {
        let name = format!("{prefix}transformer.{}", layout.spec(p).name);
        let error = relative(sum.get(p).unwrap().as_slice(), &f32s(&grads, &name));
        assert!(error <= 1e-5, "{file}, {name}: {error:e}");
    }
}

#[test]
fn logits_match() {
    let (decoder, batch) = (decoder(), batch());
    let bytes = bytes("io.safetensors");
    let want = f32s(&SafeTensors::deserialize(&bytes).unwrap(), "logits");
    let v = decoder.config.vocab;
    let got = decoder.backend.download(&decoder.logits(&batch, 0..batch.rows())).unwrap();
    for (b, range) in batch.segments.iter().enumerate() {
        for (t, row) in range.enumerate() {
            for j in 0..v {
                let (g, w) = (got[row * v + j], want[(b * 16 + t) * v + j]);
                assert!((g - w).abs() <= 1e-5, "sample {b}, position {t}, token {j}: {g}, not {w}");
            }
        }
    }
}

#[test]
fn loss_and_gradient_of_the_token_mean_match() {
    let (decoder, batch) = (decoder(), batch());
    let w = batch.weights(Reduction::TokenMean);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let losses = decoder.backward(&batch, &w, &mut sum);
    let loss: f64 = losses.as_slice().iter().zip(&w).map(|(l, w)| *l as f64 * *w as f64).sum();
    let want = expected()["loss_f64"].as_f64().unwrap();
    assert!((loss - want).abs() <= 1e-6, "loss {loss}, not {want}");
    assert_gradients(&decoder.layout, &sum, "grads.safetensors", "grad.");
}

#[test]
fn gradient_of_the_sample_mean_matches() {
    let (decoder, batch) = (decoder(), batch());
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    decoder.backward(&batch, &batch.weights(Reduction::SampleMean), &mut sum);
    assert_gradients(&decoder.layout, &sum, "grads.safetensors", "mean_of_samples.");
}

#[test]
fn per_sample_losses_gradients_and_norms_match() {
    let (decoder, batch) = (decoder(), batch());
    let mut samples = PerSample::new(&decoder.backend, &decoder.layout, 3);
    let losses = decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut samples);
    let expected = expected();
    for (i, loss) in batch.sample_means(losses.as_slice()).into_iter().enumerate() {
        assert!((loss - expected["per_sample_loss"][i].as_f64().unwrap()).abs() <= 1e-6);
        assert_gradients(&decoder.layout, samples.sample(i), &format!("grads_sample{i}.safetensors"), "");
        let square: f64 = decoder
            .layout
            .ids()
            .flat_map(|p| samples.sample(i).get(p).unwrap().as_slice())
            .map(|&g| g as f64 * g as f64)
            .sum();
        let want = expected["per_sample_grad_norm"][i].as_f64().unwrap();
        assert!((square.sqrt() - want).abs() <= 1e-5 * want, "sample {i}: norm {}, not {want}", square.sqrt());
    }
}
