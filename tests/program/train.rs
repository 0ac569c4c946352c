//! `ferret train`, `replay` and `verify` as their users run them.

use crate::io_support::{TINY, ok, records, says, verb};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// `ferret train` with the arguments that every test shares.
pub fn train(data: &Path, out: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.args(["train", "-e1", "--method", "ferret-max", "--model", TINY, "--data", data.to_str().unwrap()]);
    command.args(["--out", out.to_str().unwrap(), "--epsilon", "20", "--epochs", "5", "--batch", "10"]);
    command.args(["--learning-rate", "1e-3", "--threads", "1", "--json"]).args(extra);
    command
}

pub fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

#[test]
fn a_run_is_its_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out, again) =
        (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"), dir.path().join("again"));
    let summary = ok(run(train(&data, &out, &["--insecure-seed", "1"])));
    let transcript: Value = serde_json::from_slice(&std::fs::read(out.join("transcript.json")).unwrap()).unwrap();
    let bits = transcript["bits"].as_str().unwrap();
    assert_eq!(bits.len() as u64, summary["bits"].as_u64().unwrap());
    assert!(bits.len() > 100 && bits.contains('+') && bits.contains('-'));
    let privacy: Value = serde_json::from_slice(&std::fs::read(out.join("privacy.json")).unwrap()).unwrap();
    let nats = |name: &str| privacy[name].as_f64().unwrap();
    assert!((nats("nats_paper") - 0.05 * bits.len() as f64 * std::f64::consts::LN_2).abs() < 1e-9);
    assert!(nats("nats_charged") > 0.0 && nats("nats_charged") < nats("nats_paper"));
    let statement = std::fs::read_to_string(out.join("PRIVACY.md")).unwrap();
    assert!(statement.contains("not private: sampling and noise are known"), "{statement}");
    assert!(!out.join("state").exists());
    // The log tells steps and groups, nothing that depends on the realised batch.
    for line in std::fs::read_to_string(out.join("log.jsonl")).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<_> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["step", "groups"]);
    }
    let (out, again) = (out.to_str().unwrap(), again.to_str().unwrap());
    let file = format!("{out}/transcript.json");
    assert!(verb(&["replay", "--base", TINY, "--transcript", &file, "--out", again]).status.success());
    for name in ["model.safetensors", "config.json", "transcript.json"] {
        let read = |dir: &str| std::fs::read(Path::new(dir).join(name)).unwrap();
        assert_eq!(read(out), read(again), "{name}");
    }
    assert!(verb(&["verify", out, "--base", TINY]).status.success());
    // One bit turned, one added, one left out: refused.
    let text = std::fs::read_to_string(&file).unwrap();
    let turned: String =
        bits.chars().enumerate().map(|(i, c)| if i == 7 { if c == '+' { '-' } else { '+' } } else { c }).collect();
    for changed in [turned, format!("{bits}+"), bits[1..].to_owned()] {
        let path = dir.path().join("tampered.json");
        std::fs::write(&path, text.replace(bits, &changed)).unwrap();
        let out = verb(&["replay", "--base", TINY, "--transcript", path.to_str().unwrap(), "--out", "/nonexistent/x"]);
        assert!(!out.status.success());
    }
}

#[test]
fn without_insecure_seed_two_runs_differ_and_the_statement_promises() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let mut seen = Vec::new();
    for name in ["a", "b"] {
        let out = dir.path().join(name);
        let summary = ok(run(train(&data, &out, &[])));
        assert!(summary["guarantees"][0].as_str().unwrap().contains("nats of mutual information"));
        seen.push(std::fs::read(out.join("model.safetensors")).unwrap());
    }
    assert_ne!(seen[0], seen[1], "the samples of two runs must be independent");
}

#[test]
fn private_logs_are_declared() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    ok(run(train(&data, &out, &["--log-private", "--max-steps", "20"])));
    assert!(std::fs::read_to_string(out.join("log.jsonl")).unwrap().contains("\"loss\""));
    assert!(std::fs::read_to_string(out.join("PRIVACY.md")).unwrap().contains("--log-private"));
}

#[test]
fn the_default_mask_never_exceeds_the_budget_and_the_papers_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let mut over = 0;
    for seed in 0..4 {
        for mask in ["exact", "bernoulli"] {
            let out = dir.path().join(format!("{mask}-{seed}"));
            let seed = seed.to_string();
            let mut extra = vec!["--seed", &seed, "--epsilon", "1", "--epochs", "1"];
            if mask != "exact" {
                extra.extend(["--mask", mask]);
            }
            let summary = ok(run(train(&data, &out, &extra)));
            let exceeded = summary["nats_paper"].as_f64().unwrap() > 1.0;
            assert!(summary["nats_charged"].as_f64().unwrap() < 1.0, "{summary}");
            assert!(mask == "bernoulli" || !exceeded, "{summary}");
            let told = summary["not_met"].as_array().unwrap().iter().any(|n| n.as_str().unwrap().contains("exceeded"));
            assert_eq!(told, exceeded, "{summary}");
            over += usize::from(exceeded);
            assert!(verb(&["verify", out.to_str().unwrap(), "--base", TINY]).status.success());
        }
    }
    assert!(over > 0, "the test needs a mask that exceeds its budget");
}

#[test]
fn records_to_evaluate_on_are_not_those_trained_on_unless_nothing_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let overlap = dir.path().join("overlap.jsonl");
    let (text, other) = (std::fs::read_to_string(&data).unwrap(), records(dir.path(), "held-out.jsonl", 4, 5));
    let one_of_them = text.lines().nth(77).unwrap();
    std::fs::write(&overlap, format!("{}\n{one_of_them}\n", std::fs::read_to_string(&other).unwrap())).unwrap();
    for path in [&data, &overlap] {
        says(&run(train(&data, &out, &["--eval-data", path.to_str().unwrap()])), "are trained on too");
        assert!(!out.exists());
    }
    // Records that are sampled by user are looked at one by one.
    let by_user = dir.path().join("by-user.jsonl");
    let lines = text.lines().enumerate().map(|(i, line)| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        record["user"] = format!("user {}", i / 2).into();
        format!("{record}\n")
    });
    std::fs::write(&by_user, lines.collect::<String>()).unwrap();
    let with = ["--unit", "user", "--eval-data", overlap.to_str().unwrap()];
    says(&run(train(&by_user, &out, &with)), "are trained on too");
    assert!(!out.exists());
    ok(run(train(&data, &out, &["--eval-data", overlap.to_str().unwrap(), "--insecure-seed", "1"])));
    ok(run(train(&data, &dir.path().join("apart"), &["--eval-data", other.to_str().unwrap()])));
}

#[test]
fn what_cannot_be_trained_gets_a_sentence_and_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    for (extra, sentence) in [
        (&["--batch", "201"][..], "--batch 201 of 200 records"),
        (&["--batch", "0"], "--batch 0"),
        (&["--epsilon", "0"], "epsilon"),
        (&["--epsilon", "nan"], "epsilon"),
        (&["--flip", "0.1"], "--release rr"),
        (&["--release", "rr"], "--flip"),
        (&["--release", "rr", "--flip", "0.5"], "flip"),
        (&["--epsilon", "0.001"], "does not pay for one bit"),
        (&["--groups", "3"], "has its groups"),
        (&["--sampler", "shuffle", "--batch-per", "bit"], "shuffle"),
        (&["--delta", "0"], "--delta 0"),
        (&["--delta", "2", "--release", "rr", "--flip", "0.1"], "--delta 2"),
        (&["--checkpoint-every", "0"], "--checkpoint-every"),
        (&["--release", "gaussian", "--dither", "0.001"], "epsilon"),
        (&["--method", "adam"], "--method adam"),
        (&["--data", "/nonexistent.jsonl"], "no such file"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
        command.args(["train", "--model", TINY, "--out", out.to_str().unwrap(), "--epochs", "1", "--quiet"]);
        let has = |flag: &str| extra.contains(&flag);
        for (flag, value) in
            [("--method", "ferret-max"), ("--data", data.to_str().unwrap()), ("--epsilon", "1"), ("--batch", "10")]
        {
            if !has(flag) {
                command.args([flag, value]);
            }
        }
        says(
            &run({
                command.args(extra);
                command
            }),
            sentence,
        );
        assert!(!out.exists(), "{extra:?}");
    }
}

#[test]
fn a_run_that_diverges_leaves_no_model_and_no_promise() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let mut command = train(&data, &out, &["--route", "direct", "--clip", "1e39"]);
    command.arg("--quiet");
    let output = run(command);
    says(&output, "diverged");
    assert_eq!(output.status.code(), Some(1));
    assert!(!out.join("model.safetensors").exists() && !out.join("privacy.json").exists());
    // It would diverge again; with other settings it is another run, and says that it is not the first.
    let wild = ["--route", "direct", "--clip", "1e39"];
    says(&run(train(&data, &out, &[&wild[..], &["--resume"]].concat())), "--restart-diverged");
    says(&verb(&["train", "--resume", out.to_str().unwrap()]), "--restart-diverged");
    says(&run(train(&data, &out, &["--route", "direct"])), "--restart-diverged");
    let summary = ok(run(train(&data, &out, &["--route", "direct", "--restart-diverged"])));
    let told = |n: &Value| n.as_str().unwrap().contains("begun again");
    assert!(summary["not_met"].as_array().unwrap().iter().any(told), "{summary}");
    assert!(verb(&["verify", out.to_str().unwrap(), "--base", TINY]).status.success());
    says(&run(train(&data, &dir.path().join("new"), &["--resume", "--restart-diverged"])), "nothing to begin again");
}

#[test]
fn how_long_a_private_run_took_is_told_only_where_logs_are() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    for (name, extra, told) in
        [("a", &[][..], false), ("b", &["--log-private"], true), ("c", &["--insecure-seed", "1"], true)]
    {
        let summary = ok(run(train(&data, &dir.path().join(name), extra)));
        assert_eq!(summary["seconds"].is_number(), told, "{extra:?}");
    }
}

#[test]
fn the_bits_of_a_noisy_scalar_tell_no_more_than_its_place_on_the_grid() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    ok(run(train(&data, &out, &["--release", "gaussian", "--dither", "1.5", "--clip", "2"])));
    let text = std::fs::read_to_string(out.join("transcript.json")).unwrap();
    let transcript: Value = serde_json::from_str(&text).unwrap();
    let scalars: Vec<f64> =
        transcript["scalars"].as_array().unwrap().iter().map(|x| f64::from(x.as_f64().unwrap() as f32)).collect();
    assert!(scalars.len() > 200 && scalars.iter().any(|x| *x < 0.0) && scalars.iter().any(|x| *x > 0.0));
    let off = scalars.iter().find(|x| (*x / 2.0 * 1024.0).fract() != 0.0);
    assert_eq!(off, None);
    let mean = scalars.iter().map(|x| x.abs()).sum::<f64>() / scalars.len() as f64;
    // E|1 + 1.5 z| = 1.45, in units of C = 2.
    assert!((mean / 2.0 - 1.45).abs() < 6.0 / (scalars.len() as f64).sqrt(), "{mean}");
}
