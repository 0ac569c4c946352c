//! Every family against PyTorch's word on tiny checkpoints (tests/fixtures), and what a decoder can do, on each of them.

mod common;

use common::fixture::{FAMILIES, Fixture, relative};
use ferret::backend::Memory;
use ferret::grad::{Norms, PerSample, Sum};
use ferret::model::generate::{Sampling, generate};
use ferret::model::{Decoder, Reduction};

/// A parameter's gradient with its rows as in the file, and its name there.
fn in_file(decoder: &Decoder<ferret::backend::Cpu<f32>>, p: ferret::model::ParamId, grad: &[f32]) -> (String, Vec<f32>) {
    let (config, spec) = (&decoder.config, decoder.layout.spec(p));
    let name = config.family.file_name(&spec.name, true);
    let Some(order) = config.family.row_order(config, spec) else { return (name, grad.to_vec()) };
    let width = grad.len() / order.len();
    let mut file = vec![0.0; grad.len()];
    for (i, &row) in order.iter().enumerate() {
        file[row * width..(row + 1) * width].copy_from_slice(&grad[i * width..(i + 1) * width]);
    }
    (name, file)
}

#[test]
fn logits_match() {
    for fixture in FAMILIES.map(Fixture) {
        let (decoder, batch) = (fixture.decoder(), fixture.batch());
        let want = fixture.tensor("io.safetensors", "logits");
        let v = decoder.config.vocab;
        let got = decoder.backend.download(&decoder.logits(&batch, 0..batch.rows())).unwrap();
        let largest = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        for (b, range) in batch.segments.iter().enumerate() {
            for (t, row) in range.enumerate() {
                for j in 0..v {
                    let (g, w) = (got[row * v + j], want[(b * 16 + t) * v + j]);
                    let what = format!("{}, sample {b}, position {t}, token {j}", fixture.0);
                    assert!((g - w).abs() <= 1e-5 * largest.max(1.0), "{what}: {g}, not {w} (largest {largest})");
                }
            }
        }
    }
}

#[test]
fn loss_and_gradient_of_the_token_mean_match() {
    for fixture in FAMILIES.map(Fixture) {
        let (decoder, batch) = (fixture.decoder(), fixture.batch());
        let w = batch.weights(Reduction::TokenMean);
        let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        let losses = decoder.backward(&batch, &w, &mut sum);
        let loss: f64 = losses.as_slice().iter().zip(&w).map(|(l, w)| *l as f64 * *w as f64).sum();
        let want = fixture.expected()["loss_f64"].as_f64().unwrap();
        assert!((loss - want).abs() <= 1e-6, "{}: loss {loss}, not {want}", fixture.0);
        for p in decoder.layout.ids() {
            let (name, got) = in_file(&decoder, p, sum.get(p).unwrap().as_slice());
            let error = relative(&got, &fixture.tensor("grads.safetensors", &format!("grad.{name}")));
            assert!(error <= 1e-5, "{}, {name}: {error:e}", fixture.0);
        }
    }
}

#[test]
fn per_sample_losses_and_norms_match_and_ghost_norms_are_the_materialised_ones() {
    for fixture in FAMILIES.map(Fixture) {
        let (decoder, batch) = (fixture.decoder(), fixture.batch());
        let b = &decoder.backend;
        let w = batch.weights(Reduction::SampleSum);
        let mut samples = PerSample::new(b, &decoder.layout, 3);
        let losses = decoder.backward(&batch, &w, &mut samples);
        let mut norms = Norms::new(b, &decoder.layout, 3, |_| true);
        decoder.backward(&batch, &w, &mut norms);
        let expected = fixture.expected();
        for (i, loss) in batch.sample_means(losses.as_slice()).into_iter().enumerate() {
            let want = expected["per_sample_loss"][i].as_f64().unwrap();
            assert!((loss - want).abs() <= 2e-6, "{}: loss {loss}, not {want}", fixture.0);
            let mut total = 0.0;
            for p in decoder.layout.ids() {
                let name = decoder.config.family.file_name(&decoder.layout.spec(p).name, true);
                let grad = samples.sample(i).get(p).unwrap().as_slice();
                let square: f64 = grad.iter().map(|&g| g as f64 * g as f64).sum();
                let want = expected["per_param_per_sample_norm"][&name][i].as_f64().unwrap();
                let what = format!("{}, {name}, sample {i}", fixture.0);
                assert!((square.sqrt() - want).abs() <= 1e-5 * want.max(1e-3), "{what}: {}, not {want}", square.sqrt());
                let ghost = norms.squares(p).unwrap().as_slice()[i] as f64;
                assert!((ghost - square).abs() <= 1e-4 * square.max(1e-8), "{what}: ghost {ghost}, materialised {square}");
                total += square;
            }
            let want = expected["per_sample_grad_norm"][i].as_f64().unwrap();
            assert!((total.sqrt() - want).abs() <= 1e-5 * want, "{}: {}, not {want}", fixture.0, total.sqrt());
        }
    }
}

#[test]
fn a_cache_gives_what_the_whole_text_gives() {
    for fixture in FAMILIES.map(Fixture) {
        let decoder = fixture.decoder();
        let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
        let run = |cached| {
            let mut tokens = Vec::new();
            let each = |id| {
                tokens.push(id);
                Ok(true)
            };
            generate(&decoder, &[5, 9, 17], 20, &greedy, 1, cached, each).unwrap();
            tokens
        };
        assert_eq!(run(true), run(false), "{}", fixture.0);
        // Logits too, to the bit, across a window's edge and a change of wavelengths.
        let text: Vec<u32> = (0..24).map(|i| (i * 7 + 3) % decoder.config.vocab as u32).collect();
        let mut cache = decoder.cache(text.len());
        for n in 1..=text.len() {
            let step = decoder.extend(&mut cache, &text[n - 1..n]).unwrap();
            let mut fresh = decoder.cache(text.len());
            assert_eq!(step, decoder.extend(&mut fresh, &text[..n]).unwrap(), "{}, token {n}", fixture.0);
        }
    }
}
