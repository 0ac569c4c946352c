//! `--tune` in the program: training, replay, verify, plan and inspect of a tuned subset, and what is refused.

use crate::io_support::{assert_refused, ferret, stderr, tiny};
use ferret::model::checkpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn call(home: &Path, args: &[&str]) -> std::process::Output {
    ferret(home).args(args).output().unwrap()
}

fn told(home: &Path, args: &[&str]) -> Value {
    let output = call(home, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn begin<'a>(home: &Path, out: &'a str, extra: &[&'a str]) -> Vec<String> {
    let lines: Vec<String> = (0..40)
        .map(|i| json!({"tokens": (0..6).map(|j| (7 * i + 3 * j) % 101).collect::<Vec<_>>()}).to_string())
        .collect();
    std::fs::write(home.join("records.jsonl"), lines.join("\n")).unwrap();
    let mut args = vec!["train", "-e1", "--model", tiny().to_str().unwrap(), "--data", "records.jsonl", "--out", out]
        .into_iter()
        .map(String::from)
        .collect::<Vec<_>>();
    args.extend(["--batch", "6", "--learning-rate", "1e-2", "--threads", "1", "--quiet", "--json"].map(String::from));
    args.extend(extra.iter().map(|s| s.to_string()));
    args
}

fn train(home: &Path, out: &str, extra: &[&str]) -> PathBuf {
    let args = begin(home, out, extra);
    told(home, &args.iter().map(String::as_str).collect::<Vec<_>>());
    home.join(out)
}

fn verify(home: &Path, dir: &Path) -> std::process::Output {
    call(home, &["verify", dir.to_str().unwrap(), "--base", tiny().to_str().unwrap(), "--quiet", "--json"])
}

#[test]
fn a_tuned_subset_trains_replays_and_verifies() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let out = train(home, "bits", &["--method", "ferret-max", "--epsilon", "20", "--tune", "bias"]);
    let transcript: Value = serde_json::from_slice(&std::fs::read(out.join("transcript.json")).unwrap()).unwrap();
    assert_eq!(transcript["settings"]["tune"], "bias");
    let page = std::fs::read_to_string(out.join("PRIVACY.md")).unwrap();
    assert!(page.contains("Tuned: `bias`"), "{page}");
    let base = checkpoint::load_folder(&tiny()).unwrap().weights;
    let tuned = checkpoint::load_folder(&out).unwrap().weights;
    for (p, spec) in base.layout.specs().iter().enumerate() {
        assert_eq!(base.tensors[p] != tuned.tensors[p], spec.bias, "{}", spec.name);
    }
    let replayed = home.join("replayed");
    let args =
        ["replay", "--base", tiny().to_str().unwrap(), "--transcript", "bits/transcript.json", "--out", "replayed"]
            .map(String::from);
    let output = ferret(home).args(args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let weights = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert_eq!(weights(&out), weights(&replayed));
    assert!(verify(home, &out).status.success());
    // A statement that does not name the set is not the run's.
    let path = out.join("privacy.json");
    let mut statement: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    statement.as_object_mut().unwrap().remove("tune");
    std::fs::write(&path, statement.to_string()).unwrap();
    let refused = verify(home, &out);
    assert!(!refused.status.success() && stderr(&refused).contains("tune"), "{}", stderr(&refused));
}

/// Whoever changes a frozen tensor, and every hash with it, is found out without a replay.
#[test]
fn a_frozen_tensor_that_is_not_the_bases_is_found() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    for method in [&["--method", "nonprivate"][..], &["--method", "dpsgd", "--noise-multiplier", "1"]] {
        let name = method[1];
        let out = train(home, name, &[method, &["--tune", "h.1.mlp", "--max-steps", "2"]].concat());
        assert!(verify(home, &out).status.success(), "{}", stderr(&verify(home, &out)));
        let mut found = checkpoint::load_folder(&out).unwrap();
        let (p, _) = found.weights.layout.specs().iter().enumerate().find(|(_, s)| s.name == "ln_f.bias").unwrap();
        found.weights.tensors[p][0] += 0.5;
        let (before, after) = {
            let record: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
            (record["tuned_sha256"].as_str().unwrap().to_owned(), checkpoint::tensors_sha256(&found.weights))
        };
        checkpoint::save(&out, &found.weights, &found.save_options()).unwrap();
        for file in ["run.json", "privacy.json", "PRIVACY.md"] {
            let text = std::fs::read_to_string(out.join(file)).unwrap();
            std::fs::write(out.join(file), text.replace(&before, &after)).unwrap();
        }
        let refused = verify(home, &out);
        assert!(stderr(&refused).contains("ln_f.bias is not the base model's"), "{name}: {}", stderr(&refused));
    }
}

#[test]
fn plan_and_inspect_know_the_set() {
    let home = tempfile::tempdir().unwrap();
    let model = tiny();
    let plan = |extra: &[&str]| {
        let mut args = vec!["plan", "--method", "ferret-max", "--epsilon", "0.5", "--records", "1000", "--batch", "10"];
        args.extend(["--epochs", "1", "--json", "--quiet", "--model", model.to_str().unwrap()]);
        args.extend(extra);
        told(home.path(), &args)["groups"].as_u64().unwrap()
    };
    let layout = checkpoint::load_folder(&model).unwrap().weights.layout;
    assert_eq!(plan(&[]), layout.len() as u64);
    assert_eq!(plan(&["--tune", "bias"]), layout.specs().iter().filter(|s| s.bias).count() as u64);
    let inspect = |tune: &str| {
        told(
            home.path(),
            &["inspect", "--model", model.to_str().unwrap(), "--tune", tune, "--show-groups", "--json", "--quiet"],
        )
    };
    let (all, norms) = (inspect("all"), inspect("norms"));
    assert_eq!(norms["groups"].as_array().unwrap().len() as u64, norms["tuned"]["tensors"].as_u64().unwrap());
    assert_eq!(norms["groups"][0][0], "h.0.ln_1.weight");
    let need = |of: &Value, what: &str| of["memory_estimate_bytes"]["kinds"][5][what].as_u64().unwrap();
    for what in ["gradients", "optimizer", "activations"] {
        assert!(need(&norms, what) < need(&all, what), "{what}");
    }
}

#[test]
fn what_cannot_be_tuned_is_refused_in_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    for (words, says) in [
        ("c_atnn", &["--tune c_atnn names no tensor of the model", "h.*.attn.c_attn.weight"][..]),
        ("last:9", &["--tune last:9 asks for more blocks than the model has"]),
    ] {
        for method in [&["--method", "ferret-max", "--epsilon", "1"][..], &["--method", "nonprivate"]] {
            let args = begin(home, "never", &[method, &["--tune", words]].concat());
            assert_refused(words, &ferret(home).args(&args).output().unwrap(), says);
        }
        assert!(!home.join("never").exists());
    }
    for words in ["last:0", "all,bias", "two words", ""] {
        let args = begin(home, "never", &["--method", "nonprivate", "--tune", words]);
        let output = ferret(home).args(&args).output().unwrap();
        assert!(!output.status.success() && !stderr(&output).contains("panicked"), "{words}");
    }
    let args =
        ["plan", "--method", "ferret-max", "--epsilon", "1", "--records", "100", "--batch", "1", "--epochs", "1"];
    let output = ferret(home).args(args).args(["--group-count", "5", "--tune", "bias"]).output().unwrap();
    assert_refused("a plan without a model", &output, &["--tune names tensors of a model"]);
}
