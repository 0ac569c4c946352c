//! Every family against PyTorch's word on tiny checkpoints (tests/fixtures), and what a decoder can do, on each of them.

use crate::common::fixture::{FAMILIES, Fixture, relative};
use ferret::backend::Memory;
use ferret::grad::{Norms, PerSample, Sum};
use ferret::model::checkpoint::{self, SaveOptions};
use ferret::model::family;
use ferret::model::generate::{Sampling, generate};
use ferret::model::{Config, Decoder, Reduction};
use ferret::ops::sample_norm::COLUMNS;
use serde_json::{Value, json};
use std::path::Path;

/// A parameter's gradient with its rows as in the file, and its name there.
fn in_file(
    decoder: &Decoder<ferret::backend::Cpu<f32>>,
    p: ferret::model::ParamId,
    grad: &[f32],
) -> (String, Vec<f32>) {
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
                let ghost = norms.squares(p).unwrap().as_slice()[i * COLUMNS] as f64;
                assert!(
                    (ghost - square).abs() <= 1e-4 * square.max(1e-8),
                    "{what}: ghost {ghost}, materialised {square}"
                );
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

#[test]
fn what_is_not_changed_is_written_back_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    for fixture in FAMILIES.map(Fixture) {
        let read = checkpoint::load(fixture.path("").to_str().unwrap()).unwrap();
        assert!(read.prefixed && read.notes.is_empty(), "{}: {:?}", fixture.0, read.notes);
        let out = dir.path().join(fixture.0);
        checkpoint::save(&out, &read.weights, &read.save_options()).unwrap();
        for file in ["model.safetensors", "config.json"] {
            let (got, want) = (std::fs::read(out.join(file)).unwrap(), std::fs::read(fixture.path(file)).unwrap());
            assert!(got == want, "{}: {file} differs", fixture.0);
        }
        // From a config of our own, and without the prefix, the same decoder.
        let again = dir.path().join(format!("{}-again", fixture.0));
        checkpoint::save(&again, &read.weights, &SaveOptions::default()).unwrap();
        let back = checkpoint::load(again.to_str().unwrap()).unwrap();
        assert_eq!(back.weights.config, read.weights.config, "{}", fixture.0);
        assert!(!back.prefixed);
        assert_eq!(checkpoint::tensors_sha256(&back.weights), checkpoint::tensors_sha256(&read.weights));
    }
}

/// Change one key of a fixture's config.json.
fn config_with(fixture: Fixture, key: &str, value: Value) -> Result<Config, String> {
    let text = std::fs::read_to_string(fixture.path("config.json")).unwrap();
    let mut object: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    object.insert(key.into(), value);
    let text = Value::Object(object).to_string();
    family::parse(&text, Path::new("config.json")).map(|parsed| parsed.config).map_err(|e| e.to_string())
}

#[test]
fn every_key_that_changes_numbers_is_honoured_or_refused() {
    for (name, key, value) in [
        ("llama_tiny", "rms_norm_eps", json!(1e-3)),
        ("llama_tiny", "rope_theta", json!(500.0)),
        ("llama_tiny", "rope_scaling", json!({"type": "linear", "factor": 2.0})),
        ("llama_tiny", "rope_parameters", json!({"rope_type": "default", "rope_theta": 77.0})),
        ("llama_tiny", "attention_bias", json!(true)),
        ("llama_tiny", "mlp_bias", json!(true)),
        ("llama_tiny", "head_dim", json!(16)),
        ("llama_tiny", "hidden_act", json!("gelu")),
        ("llama_tiny", "num_key_value_heads", json!(1)),
        ("llama_tiny", "tie_word_embeddings", json!(true)),
        ("mistral_window", "sliding_window", json!(null)),
        ("qwen2_window", "max_window_layers", json!(0)),
        ("qwen2_window", "use_sliding_window", json!(false)),
        ("qwen3_norms", "attention_bias", json!(true)),
        ("phi3_long", "original_max_position_embeddings", json!(8)),
        ("phi3_long", "max_position_embeddings", json!(64)),
        ("bloom_tiny", "layer_norm_epsilon", json!(1e-3)),
        ("bloom_tiny", "tie_word_embeddings", json!(false)),
    ] {
        // A list of layers' kinds that transformers wrote down goes before the keys it was made of.
        if name == "qwen2_window" && key == "max_window_layers" {
            let types = json!(["sliding_attention", "sliding_attention"]);
            let changed = config_with(Fixture(name), "layer_types", types).unwrap();
            assert_ne!(changed, Fixture(name).weights().config, "layer_types");
            continue;
        }
        let changed = config_with(Fixture(name), key, value).unwrap_or_else(|e| panic!("{name}, {key}: {e}"));
        assert_ne!(changed, Fixture(name).weights().config, "{name}: {key} is not honoured");
    }
    for (name, key, value, says) in [
        (
            "llama_tiny",
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 2.0}),
            "\"yarn\", which is not supported: default, linear",
        ),
        ("llama_tiny", "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}), "\"dynamic\""),
        ("llama_tiny", "rope_scaling", json!({"rope_type": "linear"}), "has no factor"),
        ("llama_tiny", "rope_scaling", json!([1]), "no JSON object"),
        ("llama_tiny", "hidden_act", json!("relu2"), "\"relu2\" is not supported"),
        ("llama_tiny", "num_key_value_heads", json!(3), "not a multiple of num_key_value_heads 3"),
        ("llama_tiny", "head_dim", json!(7), "even number"),
        ("llama_tiny", "num_attention_heads", json!(0), "between 1 and"),
        ("llama_tiny", "quantization_config", json!({"bits": 4}), "quantization_config"),
        ("llama_tiny", "model_type", json!("gemma"), "\"gemma\", which cannot be loaded: gpt2, llama, mistral"),
        ("bloom_tiny", "apply_residual_connection_post_layernorm", json!(true), "apply_residual"),
        ("qwen2_window", "layer_types", json!(["sliding_attention", "full_attention"]), "layer_types"),
        (
            "phi3_long",
            "rope_scaling",
            json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
            "a list of 2",
        ),
        (
            "llama_biases",
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
            "must be above",
        ),
    ] {
        let error = config_with(Fixture(name), key, value).unwrap_err();
        assert!(error.contains(says), "{name}, {key}: {error}");
    }
}
