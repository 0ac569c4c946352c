//! Against PyTorch's word on a tiny checkpoint (tests/fixtures, made by make_fixtures.py).

use crate::common::fixture::{batch, decoder, expected, gradient, relative};
use ferret::backend::{Cpu, Memory};
use ferret::grad::{PerSample, Sum};
use ferret::model::{Layout, Reduction};

fn assert_gradients(layout: &Layout, sum: &Sum<Cpu<f32>>, file: &str, prefix: &str) {
    for p in layout.ids() {
        let name = format!("{prefix}transformer.{}", layout.spec(p).name);
        let error = relative(sum.get(p).unwrap().as_slice(), &gradient(file, &name));
        assert!(error <= 1e-5, "{file}, {name}: {error:e}");
    }
}

#[test]
fn logits_match() {
    let (decoder, batch) = (decoder(), batch());
    let want = gradient("io.safetensors", "logits");
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
