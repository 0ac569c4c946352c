//! `ferret train`, `replay` and `verify` as their users run them, interrupted and killed included.
#![cfg(feature = "cli")]
#![cfg(unix)]

mod common;

use common::Random;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn base() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2_tiny").to_str().unwrap().to_owned()
}

fn records(dir: &Path) -> PathBuf {
    let mut random = Random::new(3);
    let lines: Vec<String> = (0..200)
        .map(|_| {
            let (first, len) = (random.below(100), 2 + random.below(20));
            json!({"tokens": (0..len).map(|i| (first + 3 * i) % 101).collect::<Vec<_>>()}).to_string()
        })
        .collect();
    let path = dir.join("records.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

/// `ferret train` with the arguments that every test shares.
fn train(data: &Path, out: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.args(["train", "--method", "ferret-max", "--model", &base(), "--data", data.to_str().unwrap()]);
    command.args(["--out", out.to_str().unwrap(), "--epsilon", "20", "--epochs", "5", "--batch", "10"]);
    command.args(["--learning-rate", "1e-3", "--threads", "1", "--json"]).args(extra);
    command
}

fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

fn ok(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn says(output: &Output, sentence: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(sentence), "expected {sentence:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn ferret(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferret")).args(args).output().unwrap()
}

#[test]
fn a_run_is_its_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out, again) = (records(dir.path()), dir.path().join("tuned"), dir.path().join("again"));
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
    assert!(ferret(&["replay", "--base", &base(), "--transcript", &file, "--out", again]).status.success());
    for name in ["model.safetensors", "config.json", "transcript.json"] {
        let read = |dir: &str| std::fs::read(Path::new(dir).join(name)).unwrap();
        assert_eq!(read(out), read(again), "{name}");
    }
    assert!(ferret(&["verify", out, "--base", &base()]).status.success());
    // One bit turned, one added, one left out: refused.
    let text = std::fs::read_to_string(&file).unwrap();
    let turned: String =
        bits.chars().enumerate().map(|(i, c)| if i == 7 { if c == '+' { '-' } else { '+' } } else { c }).collect();
    for changed in [turned, format!("{bits}+"), bits[1..].to_owned()] {
        let path = dir.path().join("tampered.json");
        std::fs::write(&path, text.replace(bits, &changed)).unwrap();
        let out =
            ferret(&["replay", "--base", &base(), "--transcript", path.to_str().unwrap(), "--out", "/nonexistent/x"]);
        assert!(!out.status.success());
    }
}

#[test]
fn without_insecure_seed_two_runs_differ_and_the_statement_promises() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path());
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
    let (data, out) = (records(dir.path()), dir.path().join("tuned"));
    ok(run(train(&data, &out, &["--log-private", "--max-steps", "20"])));
    assert!(std::fs::read_to_string(out.join("log.jsonl")).unwrap().contains("\"loss\""));
    assert!(std::fs::read_to_string(out.join("PRIVACY.md")).unwrap().contains("--log-private"));
}

#[test]
fn killed_at_any_moment_a_run_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (data, whole) = (records(dir.path()), dir.path().join("whole"));
    let fixed = ["--insecure-seed", "1", "--checkpoint-every", "1"];
    let clock = Instant::now();
    ok(run(train(&data, &whole, &fixed)));
    let mut length = clock.elapsed();
    let read = |dir: &Path, name: &str| std::fs::read(dir.join(name)).unwrap();
    let mut random = Random::new(std::process::id().into());
    let mut killed = 0;
    for i in 0.. {
        assert!(i < 200, "only {killed} of {i} runs were cut short");
        let out = dir.path().join(format!("killed-{i}"));
        let clock = Instant::now();
        let mut child = train(&data, &out, &fixed).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(length.mul_f64((random.signed() + 1.0) / 2.0));
        if child.try_wait().unwrap().is_some() {
            // The first run was slower than usual, or the moment lay at the end: aim earlier.
            length = length.min(clock.elapsed()).mul_f64(0.9);
        }
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        let (begun, key) = (out.join("state").exists(), out.join("state/key.json").exists());
        if !out.join("transcript.json").exists() {
            let extra: Vec<&str> = fixed.iter().copied().chain(begun.then_some("--resume")).collect();
            ok(run(train(&data, &out, &extra)));
        } else if key {
            ok(run(train(&data, &out, &[&fixed[..], &["--resume"]].concat())));
        } else if begun {
            says(&run(train(&data, &out, &[&fixed[..], &["--resume"]].concat())), "finished");
        }
        for name in ["model.safetensors", "transcript.json", "log.jsonl", "privacy.json"] {
            assert!(read(&out, name) == read(&whole, name), "{name} after kill {i}");
        }
        assert!(!out.join("state").exists());
        std::fs::remove_dir_all(&out).unwrap();
        if killed == 20 {
            break;
        }
    }
}

#[test]
fn an_interrupt_leaves_a_run_to_resume_with_its_key_for_the_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path()), dir.path().join("tuned"));
    let with = ["--log-private", "--eval-data", data.to_str().unwrap()];
    let mut child = train(&data, &out, &with).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(out.join("log.jsonl")).is_ok_and(|l| l.lines().count() > 2) {
        assert!(Instant::now() < deadline, "the run never began");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    if status.success() {
        return eprintln!("skipped: the run was over before the interrupt");
    }
    assert_eq!(status.code(), Some(130));
    let mode = std::fs::metadata(out.join("state/key.json")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    says(&run(train(&data, &out, &["--log-private"])), "--resume");
    says(&run(train(&data, &out, &["--log-private", "--resume", "--seed", "4"])), "seed");
    // What was released cannot be taken back, and its sample and flips are not spent on other records.
    says(&run(train(&data, &out, &["--log-private", "--resume", "--max-steps", "1"])), "cannot be taken back");
    let other = dir.path().join("other.jsonl");
    std::fs::write(&other, std::fs::read_to_string(&data).unwrap().replacen('[', "[1,", 1)).unwrap();
    says(&run(train(&other, &out, &["--log-private", "--resume"])), "other records");
    assert!(!out.join("privacy.json").exists(), "nothing is stated about a run that was refused");
    // What it began with was measured before the interrupt, and is still the base model's.
    let summary = ok(run(train(&data, &out, &[&with[..], &["--resume"]].concat())));
    let model = base();
    let alone = ok(ferret(&["eval", "--model", &model, "--data", data.to_str().unwrap(), "--json"]));
    assert_eq!(summary["eval_before"]["loss"], alone["loss"]);
    assert_ne!(summary["eval_after"]["loss"], alone["loss"]);
    assert!(!out.join("state").exists());
    says(&run(train(&data, &out, &["--resume"])), "finished");
}

#[test]
fn what_cannot_be_trained_gets_a_sentence_and_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path()), dir.path().join("tuned"));
    for (extra, sentence) in [
        (&["--batch", "201"][..], "--batch 201 of 200 records"),
        (&["--batch", "0"], "--batch 0"),
        (&["--epsilon", "0"], "epsilon"),
        (&["--epsilon", "nan"], "epsilon"),
        (&["--flip", "0.1"], "--release rr"),
        (&["--release", "rr"], "--flip"),
        (&["--release", "rr", "--flip", "0.5"], "flip"),
        (&["--mask", "exact", "--epsilon", "0.001"], "does not pay for one bit"),
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
        command.args(["train", "--model", &base(), "--out", out.to_str().unwrap(), "--epochs", "1", "--quiet"]);
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
    let (data, out) = (records(dir.path()), dir.path().join("tuned"));
    let mut command = train(&data, &out, &["--route", "direct", "--clip", "1e39"]);
    command.arg("--quiet");
    let output = run(command);
    says(&output, "diverged");
    assert_eq!(output.status.code(), Some(1));
    assert!(!out.join("model.safetensors").exists() && !out.join("privacy.json").exists());
}

#[test]
fn how_long_a_private_run_took_is_told_only_where_logs_are() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path());
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
    let (data, out) = (records(dir.path()), dir.path().join("tuned"));
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
