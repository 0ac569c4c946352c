//! The program on every family: inspect, eval, generate, grad, FERRET by every engine and route, replayed and verified, and DPSGD.

use crate::common::Random;
use crate::common::fixture::{FAMILIES, Fixture};
use crate::io_support::verb;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn ok(args: &[&str]) -> Value {
    let output = verb(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn records(dir: &Path, vocab: usize) -> PathBuf {
    let mut random = Random::new(3);
    let lines: Vec<String> = (0..60)
        .map(|_| {
            let (first, len) = (random.below(vocab), 2 + random.below(16));
            json!({"tokens": (0..len).map(|i| (first + 3 * i) % vocab).collect::<Vec<_>>()}).to_string()
        })
        .collect();
    let path = dir.join("records.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

#[test]
fn every_verb_works_on_every_family() {
    for fixture in FAMILIES.map(Fixture) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let model = fixture.path("");
        let model = model.to_str().unwrap();
        let seen = ok(&["inspect", "--model", model, "--json", "--show-groups"]);
        let tensors = seen["tensors"].as_array().unwrap().len();
        assert_eq!(seen["groups"].as_array().unwrap().len(), tensors, "{}", fixture.0);
        let data = records(dir.path(), seen["config"]["vocab"].as_u64().unwrap() as usize);
        let data = data.to_str().unwrap();

        let before = ok(&["eval", "--model", model, "--data", data, "--json"])["loss"].as_f64().unwrap();
        let made =
            ok(&["generate", "--model", model, "--prompt-tokens", "3,7,9", "-n", "12", "--temperature", "0", "--json"]);
        assert_eq!(made["tokens"].as_array().unwrap().len(), 12);
        let grad = ok(&["grad", "--model", model, "--data", data, "--out", &at("g.safetensors"), "--json"]);
        assert!((grad["loss"].as_f64().unwrap() - before).abs() < 0.5, "{grad} {before}");

        for (i, extra) in [
            ["--route", "direct", "--engine", "jvp"],
            ["--route", "direct", "--engine", "backward"],
            ["--route", "adamw", "--engine", "backward"],
        ]
        .iter()
        .enumerate()
        {
            let (out, again) = (at(&format!("ferret-{i}")), at(&format!("again-{i}")));
            let mut args =
                vec!["train", "-e1", "--method", "ferret-max", "--model", model, "--data", data, "--out", &out];
            args.extend(["--epsilon", "4", "--epochs", "2", "--batch", "6", "--learning-rate", "1e-3", "--json"]);
            args.extend(extra);
            assert!(ok(&args)["bits"].as_u64().unwrap() > 0, "{}, {extra:?}", fixture.0);
            let transcript = format!("{out}/transcript.json");
            ok(&["replay", "--base", model, "--transcript", &transcript, "--out", &again]);
            let file = |dir: &str| std::fs::read(Path::new(dir).join("model.safetensors")).unwrap();
            assert!(file(&out) == file(&again), "{}, {extra:?}: a replay differs", fixture.0);
            assert!(file(&out) != std::fs::read(fixture.path("model.safetensors")).unwrap());
            assert!(verb(&["verify", &out, "--base", model]).status.success(), "{}", fixture.0);
        }
        let out = at("dpsgd");
        let mut args = vec!["train", "-e1", "--method", "dpsgd", "--model", model, "--data", data, "--out", &out];
        args.extend([
            "--dp-epsilon",
            "8",
            "--delta",
            "1e-3",
            "--epochs",
            "1",
            "--batch",
            "6",
            "--learning-rate",
            "1e-3",
            "--json",
        ]);
        ok(&args);
        let after = ok(&["eval", "--model", &out, "--data", data, "--json"]);
        assert!(after["loss"].as_f64().unwrap().is_finite());
    }
}
