//! The program as its users run it: generate, eval and grad.

use crate::common::Random;
use crate::io_support::{TINY, ok, verb};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn json(args: &[&str]) -> Value {
    ok(verb(args))
}

/// The three samples of the fixture as records of tokens.
fn fixture_records(dir: &Path) -> PathBuf {
    let bytes = std::fs::read(Path::new(TINY).join("io.safetensors")).unwrap();
    let io = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids: Vec<i64> = io
        .tensor("input_ids")
        .unwrap()
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let path = dir.join("records.jsonl");
    let line = |ids: &[i64]| serde_json::json!({"tokens": ids}).to_string();
    std::fs::write(&path, [line(&ids[..16]), line(&ids[16..27])].join("\n")).unwrap();
    path
}

#[test]
fn eval_reports_the_mean_over_tokens_and_each_record() {
    let dir = tempfile::tempdir().unwrap();
    let records = fixture_records(dir.path());
    let out = json(&["eval", "--model", TINY, "--data", records.to_str().unwrap(), "--json", "--per-record"]);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(Path::new(TINY).join("expected.json")).unwrap()).unwrap();
    let (first, second) = (out["record_losses"][0].as_f64().unwrap(), out["record_losses"][1].as_f64().unwrap());
    assert!((first - expected["per_sample_loss"][0].as_f64().unwrap()).abs() < 1e-6);
    assert!((second - expected["per_sample_loss"][1].as_f64().unwrap()).abs() < 1e-6);
    let mean = (15.0 * first + 10.0 * second) / 25.0;
    assert!((out["loss"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert!((out["perplexity"].as_f64().unwrap() - mean.exp()).abs() < 1e-6);
    assert_eq!((out["tokens"].as_u64(), out["records"].as_u64()), (Some(25), Some(2)));
}

#[test]
fn grad_writes_the_gradient_of_the_mean_over_records() {
    let dir = tempfile::tempdir().unwrap();
    let (records, out) = (fixture_records(dir.path()), dir.path().join("grads.safetensors"));
    let (records, path) = (records.to_str().unwrap(), out.to_str().unwrap());
    let printed = json(&["grad", "--model", TINY, "--data", records, "--out", path, "--per-sample-norms", "--json"]);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(Path::new(TINY).join("expected.json")).unwrap()).unwrap();
    for i in 0..2 {
        let (got, want) = (&printed["per_sample_norms"][i], &expected["per_sample_grad_norm"][i]);
        assert!((got.as_f64().unwrap() / want.as_f64().unwrap() - 1.0).abs() < 1e-5);
    }
    let bytes = std::fs::read(&out).unwrap();
    let got = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let samples: Vec<Vec<u8>> =
        (0..2).map(|i| std::fs::read(Path::new(TINY).join(format!("grads_sample{i}.safetensors"))).unwrap()).collect();
    let samples: Vec<_> = samples.iter().map(|b| safetensors::SafeTensors::deserialize(b).unwrap()).collect();
    let floats = |data: &[u8]| -> Vec<f64> {
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect()
    };
    for name in samples[0].names() {
        let own = got.tensor(name.strip_prefix("transformer.").unwrap_or(name)).or_else(|_| got.tensor(name)).unwrap();
        let [a, b] = [0, 1].map(|i| floats(samples[i].tensor(name).unwrap().data()));
        let want: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a + b) / 2.0).collect();
        let diff: f64 = floats(own.data()).iter().zip(&want).map(|(g, w)| (g - w).powi(2)).sum();
        let size: f64 = want.iter().map(|w| w * w).sum();
        assert!((diff / size).sqrt() < 1e-5, "{name}");
    }
}

#[test]
fn cached_generation_equals_the_uncached_one() {
    let run = |extra: &[&str]| {
        let model = TINY;
        let mut args = vec!["generate", "--model", model, "--prompt-tokens", "5,9,77", "--max-tokens", "28", "--json"];
        args.extend_from_slice(extra);
        json(&args)["tokens"].clone()
    };
    for sampling in [["--temperature", "0"], ["--seed", "4"], ["--top-k", "7"], ["--top-p", "0.5"]] {
        assert_eq!(run(&sampling), run(&[&sampling[..], &["--no-cache"]].concat()), "{sampling:?}");
    }
    assert_ne!(run(&["--seed", "4"]), run(&["--seed", "5"]));
}

#[test]
fn a_prompt_the_model_cannot_take_gets_a_sentence() {
    let model = TINY;
    for (args, says) in [
        (vec!["--prompt-tokens", "500"], "outside the model's vocabulary of 101"),
        (vec!["--prompt-tokens", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"], "context is 32"),
        (vec!["--prompt", "hello"], "--prompt-tokens"),
        (vec!["--prompt-tokens", "1", "--max-tokens", "2", "--temperature=-1"], "--temperature"),
        (vec!["--prompt-tokens", "1", "--max-tokens", "2", "--top-p", "0"], "--top-p"),
    ] {
        let out = verb(&[&["generate", "--model", model][..], &args].concat());
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && stderr.contains(says), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_trained_checkpoint_from_elsewhere_sorts() {
    let Ok(shared) = std::env::var("FERRET_SHARED") else {
        eprintln!("skipped: FERRET_SHARED is not set");
        return;
    };
    let model = Path::new(&shared).join("models/nano-sort-gpt2");
    let mut random = Random::new(1);
    for _ in 0..500 {
        let digits: Vec<u32> = (0..6).map(|_| random.below(3) as u32).collect();
        let mut sorted = digits.clone();
        sorted.sort();
        let prompt: Vec<String> = digits.iter().map(u32::to_string).collect();
        let out = json(&[
            "generate",
            "--model",
            model.to_str().unwrap(),
            "--prompt-tokens",
            &prompt.join(","),
            "--max-tokens",
            "6",
            "--temperature",
            "0",
            "--json",
            "--threads",
            "1",
        ]);
        let made: Vec<u32> = out["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        assert_eq!(made, sorted, "sorting {digits:?}");
    }
}

#[test]
fn the_tour_lists_every_module_once() {
    let source = include_str!("../../src/lib.rs");
    let tour: String = source.lines().filter(|l| l.starts_with("//! | [`")).collect();
    let modules: Vec<&str> =
        source.lines().filter_map(|l| l.strip_prefix("pub mod ")).map(|l| l.trim_end_matches(';')).collect();
    assert!(modules.len() > 10, "{modules:?}");
    for module in modules {
        assert_eq!(tour.matches(&format!("[`{module}`]")).count(), 1, "{module}");
    }
}
