//! `ferret train --method ferret-k`, `replay`, `verify` and `audit` as their users run them, killed runs included.

use crate::io_support::kills::resume_to_the_same_files;
use crate::io_support::{TINY, ok, records, says, verb};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn train(method: &str, data: &Path, out: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.args(["train", "-e1", "--method", method, "--model", TINY, "--data", data.to_str().unwrap()]);
    command.args(["--out", out.to_str().unwrap(), "--epochs", "2", "--batch", "10", "--threads", "1", "--json"]);
    command.args(extra);
    command
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_run_is_its_transcript_and_promises_what_dpsgd_promises() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let dpsgd = dir.path().join("dpsgd");
    ok(train("dpsgd", &data, &dpsgd, &["--noise-multiplier", "1.3"]).output().unwrap());
    let eps = |dir: &Path| -> Vec<Value> {
        let statement = json_of(&dir.join("privacy.json"));
        let claims = statement["claims"].as_array().unwrap().clone();
        claims
            .into_iter()
            .filter(|c| c["guarantee"].get("eps_delta").is_some() || c.to_string().contains("eps"))
            .collect()
    };
    for extra in [
        &["--bits-per-step", "100"][..],
        &["--release", "scalar", "--sketch", "count"],
        &["--route", "adamw", "--learning-rate", "1e-3", "--sketch", "grid"],
        &["--momentum", "0", "--schedule", "linear"],
        &["--tune", "last:1"],
        &["--release", "sign"],
        &["--bits-per-step", "101", "--fire", "1"],
    ] {
        let name = extra.join("");
        let (out, again) = (dir.path().join(&name), dir.path().join(format!("{name}-again")));
        let with = [&["--noise-multiplier", "1.3"], extra].concat();
        let summary = ok(train("ferret-k", &data, &out, &with).output().unwrap());
        assert_eq!(eps(&out), eps(&dpsgd), "{name}");
        assert_eq!(eps(&out).len(), 4);
        let transcript = json_of(&out.join("transcript.json"));
        let k = transcript["settings"]["bits_per_step"].as_u64().unwrap();
        // B = 10: 32 B = 320 signs, more than the 4 x 100 x 1.3 / (1.69 x 4) = 76.9 that z = 1.3 asks for; levels in as many bits.
        let given = extra.iter().position(|arg| *arg == "--bits-per-step").map(|at| extra[at + 1].parse().unwrap());
        assert_eq!(k, given.unwrap_or(if extra[0] == "--release" { 256 } else { 128 }));
        let released = ["bits", "levels", "scalars"].iter().find_map(|what| summary[what].as_u64());
        assert_eq!((released, &summary["computed_steps"]), (Some(40 * k), &json!(40)));
        assert_eq!(summary["private"], true);
        let file = out.join("transcript.json");
        let replayed =
            ["replay", "--base", TINY, "--transcript", file.to_str().unwrap(), "--out", again.to_str().unwrap()];
        assert!(verb(&replayed).status.success());
        for name in ["model.safetensors", "config.json", "transcript.json"] {
            assert_eq!(std::fs::read(out.join(name)).unwrap(), std::fs::read(again.join(name)).unwrap(), "{name}");
        }
        let verified = ok(verb(&["verify", out.to_str().unwrap(), "--base", TINY, "--json"]));
        assert_eq!(
            (&verified["verified"], &verified["replayed"], verified["releases"].as_u64()),
            (&json!(true), &json!(true), released)
        );
        assert_eq!(verified["not_bound"], json!(["log.jsonl is not the base model's, and nothing says what it holds"]));
        // The log tells steps and nothing that depends on the realised batch.
        for line in std::fs::read_to_string(out.join("log.jsonl")).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), ["step"]);
        }
    }
    // A statement that claims less noise spent, or more signs, is not the run's.
    let out = dir.path().join("--momentum0--schedulelinear");
    let path = out.join("privacy.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let less = text.replace("\"numbers\": 128", "\"numbers\": 127");
    assert_ne!(less, text);
    std::fs::write(&path, less).unwrap();
    says(&verb(&["verify", out.to_str().unwrap(), "--base", TINY]), "is not the statement of this run");
    std::fs::write(&path, text).unwrap();
    let mut bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(out.join("model.safetensors"), bytes).unwrap();
    says(&verb(&["verify", out.to_str().unwrap(), "--base", TINY]), "differs in 1 of");
}

#[test]
fn a_budget_finds_the_noise_and_idle_steps_spend_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let (all, some) = (dir.path().join("all"), dir.path().join("some"));
    let budget = ["--dp-epsilon", "2", "--delta", "1e-5"];
    let whole = ok(train("ferret-k", &data, &all, &budget).output().unwrap());
    let spent = |summary: &Value| summary["epsilon_spent"]["pld"].as_f64().unwrap();
    assert!(spent(&whole) <= 2.0 && spent(&whole) > 1.99, "{whole}");
    let idle = ok(train("ferret-k", &data, &some, &[&budget[..], &["--fire", "0.5"]].concat()).output().unwrap());
    assert!(spent(&idle) <= 2.0 && spent(&idle) > 1.99, "{idle}");
    let noise = |summary: &Value| summary["noise_multiplier"].as_f64().unwrap();
    assert!(noise(&idle) < noise(&whole));
    let steps = |summary: &Value| summary["computed_steps"].as_u64().unwrap();
    assert!(steps(&whole) == 40 && (8..33).contains(&steps(&idle)));
    assert_eq!(std::fs::read_to_string(some.join("log.jsonl")).unwrap().lines().count() as u64, steps(&idle));
    assert!(verb(&["verify", some.to_str().unwrap(), "--base", TINY]).status.success());
}

#[test]
fn killed_at_any_moment_a_run_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let fixed =
        ["--noise-multiplier", "1", "--insecure-seed", "1", "--checkpoint-every", "1", "--bits-per-step", "128"];
    resume_to_the_same_files(dir.path(), 10, |out, more| train("ferret-k", &data, out, &[&fixed[..], more].concat()));
}

#[test]
fn an_audit_with_shadow_models_reads_the_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let (data, others) = (records(dir.path(), "records.jsonl", 3, 3), records(dir.path(), "others.jsonl", 5, 5));
    let (out, cache) = (dir.path().join("tuned"), dir.path().join("shadows"));
    ok(train("ferret-k", &data, &out, &["--noise-multiplier", "1", "--bits-per-step", "16"]).output().unwrap());
    let audit = |extra: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
        command.args(["audit", "--base", TINY, "--tuned", out.to_str().unwrap(), "--members", data.to_str().unwrap()]);
        command.args(["--nonmembers", others.to_str().unwrap(), "--json", "--quiet"]).args(extra);
        ok(command.output().unwrap())
    };
    let plain = audit(&[]);
    assert!(plain.to_string().contains("eps"), "{plain}");
    let shadowed = audit(&["--shadows", "4", "--shadow-cache", cache.to_str().unwrap()]);
    assert!(shadowed["attacks"].to_string().contains("lira"), "{shadowed}");
    let kept: Vec<_> =
        std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(kept.len() == 4 && kept.iter().all(|n| n.ends_with(".transcript.json")), "{kept:?}");
}

#[test]
fn what_cannot_be_trained_gets_a_sentence_and_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let noise = ["--noise-multiplier", "1"];
    for (extra, sentence) in [
        (&[][..], "needs --dp-epsilon"),
        (&["--epsilon", "1"], "--dp-epsilon and --delta"),
        (&["--noise-multiplier=-1"], "noise_multiplier"),
        (&[&noise[..], &["--bits-per-step", "0"]].concat(), "bits_per_step is 0"),
        (&[&noise[..], &["--bits-per-step", "99999999"]].concat(), "bits_per_step"),
        (&[&noise[..], &["--fire", "0"]].concat(), "p is 0"),
        (&[&noise[..], &["--fire", "1e-9"]].concat(), "no step of 40 fires"),
        (&[&noise[..], &["--momentum", "1"]].concat(), "momentum"),
        (&[&noise[..], &["--momentum", "0.5", "--route", "adamw"]].concat(), "AdamW has its own"),
        (&[&noise[..], &["--release", "rr"]].concat(), "sign, level or scalar"),
        (&[&noise[..], &["--groups", "3"]].concat(), "--groups"),
        (&[&noise[..], &["--clipping", "per-layer"]].concat(), "as a whole"),
        (&[&noise[..], &["--batch-per", "bit"]].concat(), "single bits"),
        (&[&noise[..], &["--bits", "4"]].concat(), "--bits-per-step"),
    ] {
        says(&train("ferret-k", &data, &out, extra).output().unwrap(), sentence);
        assert!(!out.exists(), "{extra:?}");
    }
    for (method, extra) in [
        ("dpsgd", &["--noise-multiplier", "1", "--bits-per-step", "4"][..]),
        ("nonprivate", &["--sketch", "count"]),
        ("ferret-max", &["--epsilon", "1", "--momentum", "0.5"]),
    ] {
        says(&train(method, &data, &out, extra).output().unwrap(), "belongs to ferret-k");
    }
    says(
        &train("ferret-max", &data, &out, &["--epsilon", "1", "--release", "sign"]).output().unwrap(),
        "--release sign, level and scalar are ferret-k's",
    );
}
