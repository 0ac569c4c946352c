//! Adapters in the program: train, replay, verify, eval, generate, merge, and what is refused.

use crate::io_support::{assert_refused, ferret, stderr, tiny};
use serde_json::{Value, json};
use std::path::Path;

fn call(home: &Path, args: &str) -> std::process::Output {
    let model = tiny();
    let args = args.split_whitespace().map(|word| if word == "BASE" { model.to_str().unwrap() } else { word });
    ferret(home).args(args).output().unwrap()
}

fn told(home: &Path, args: &str) -> Value {
    let output = call(home, args);
    assert!(output.status.success(), "{args}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..40)
        .map(|i| json!({"tokens": (0..6).map(|j| (7 * i + 3 * j) % 101).collect::<Vec<_>>()}).to_string())
        .collect();
    std::fs::write(home.path().join("records.jsonl"), lines.join("\n")).unwrap();
    home
}

const TRAIN: &str =
    "train -e1 --model BASE --data records.jsonl --batch 6 --learning-rate 1e-2 --threads 1 --quiet --json";

fn loss(home: &Path, model: &str) -> f64 {
    told(home, &format!("eval {model} --data records.jsonl --quiet --json"))["loss"].as_f64().unwrap()
}

#[test]
fn an_adapter_is_trained_used_merged_replayed_and_verified() {
    let home = home();
    let home = home.path();
    for (out, method) in [
        ("bits", "--method ferret-max --epsilon 20 --lora-rank 3 --lora-alpha 9 --lora-targets c_attn,c_fc"),
        ("dpsgd", "--method dpsgd --noise-multiplier 0.5"),
    ] {
        told(home, &format!("{TRAIN} {method} --tune lora --out {out}"));
        let dir = home.join(out);
        assert!(dir.join("adapter_config.json").exists() && !dir.join("model.safetensors").exists());
        assert!(std::fs::read_to_string(dir.join("PRIVACY.md")).unwrap().contains("Tuned: `lora`"));
        let (bare, adapted) = (loss(home, "--model BASE"), loss(home, &format!("--model BASE --adapter {out}")));
        assert_ne!(bare, adapted);
        // The folder alone names its base.
        assert_eq!(loss(home, &format!("--model {out}")), adapted);
        told(home, &format!("merge --model BASE --adapter {out} --out {out}-merged --json --quiet"));
        assert!((loss(home, &format!("--model {out}-merged")) - adapted).abs() < 1e-5);
        let verified = told(home, &format!("verify {out} --base BASE --json --quiet"));
        assert_eq!(verified["replayed"], out == "bits");
        let shown = told(home, &format!("inspect --model {out} --tune lora --show-groups --json --quiet"));
        assert_eq!(shown["groups"].as_array().unwrap().len() as u64, shown["tuned"]["tensors"].as_u64().unwrap());
        // Goes on with the adapter that is there.
        told(home, &format!("{TRAIN} --method nonprivate --adapter {out} --tune lora --out {out}-on"));
        assert!(home.join(format!("{out}-on/adapter_model.safetensors")).exists());
    }
    let output = call(home, "replay --base BASE --transcript bits/transcript.json --out again --quiet");
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = |dir: &str| std::fs::read(home.join(dir).join("adapter_model.safetensors")).unwrap();
    assert_eq!(bytes("bits"), bytes("again"));
    // How much the adapter counts is part of it, and so is the note of its base.
    for dir in ["bits", "dpsgd"] {
        let path = home.join(dir).join("adapter_config.json");
        let whole = std::fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&whole).unwrap();
        config["lora_alpha"] = (config["lora_alpha"].as_f64().unwrap() + 1e-9).into();
        std::fs::write(&path, config.to_string()).unwrap();
        assert_refused("alpha", &call(home, &format!("verify {dir} --base BASE --quiet")), &["lora_alpha"]);
        std::fs::write(&path, whole).unwrap();
        let path = home.join(dir).join("privacy.json");
        let whole = std::fs::read_to_string(&path).unwrap();
        let mut statement: Value = serde_json::from_str(&whole).unwrap();
        statement["version"] = 1.into();
        std::fs::write(&path, statement.to_string()).unwrap();
        let output = call(home, &format!("verify {dir} --base BASE --quiet"));
        assert!(!output.status.success(), "{dir}: a statement of a version that never was");
        std::fs::write(&path, whole).unwrap();
        assert!(call(home, &format!("verify {dir} --base BASE --quiet")).status.success());
    }
    // One flipped bit of the adapter is found.
    let path = home.join("bits/adapter_model.safetensors");
    let mut changed = bytes("bits");
    let last = changed.len() - 2;
    changed[last] ^= 1;
    std::fs::write(&path, changed).unwrap();
    assert!(!call(home, "verify bits --base BASE --json --quiet").status.success());
}

#[test]
fn what_makes_no_adapter_is_refused_in_one_sentence() {
    let home = home();
    let home = home.path();
    for (args, says) in [
        ("--tune lora --lora-rank 0", "rank 0"),
        ("--tune lora --lora-alpha 0", "alpha 0"),
        ("--tune lora --lora-targets c_atnn", "attn.c_attn"),
        ("--tune bias --lora-rank 2", "--tune lora"),
        ("--lora-rank 2", "--tune lora"),
    ] {
        let output = call(home, &format!("{TRAIN} --method nonprivate {args} --out never"));
        assert_refused(args, &output, &[says]);
        assert!(!home.join("never").exists());
    }
    assert_refused("no adapter", &call(home, "merge --model BASE --out never"), &["no adapter to merge"]);
    told(home, &format!("{TRAIN} --method nonprivate --max-steps 1 --tune lora --out one"));
    let output = call(home, &format!("{TRAIN} --method nonprivate --adapter one --out never"));
    assert_refused("the model beside an adapter", &output, &["with an adapter"]);
    let plan =
        "plan --method ferret-max --epsilon 0.5 --records 1000 --batch 10 --epochs 1 --model BASE --json --quiet";
    assert_eq!(told(home, &format!("{plan} --tune lora"))["groups"], 4);
}
