//! `ferret train` by the methods with whole updates: the binary end to end, its statements, its key, stopping and resuming.

use crate::common::Random;
use crate::io_support::{TINY, verb};
use ferret::model::{Layout, checkpoint};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Records of tokens with something to learn.
fn records(dir: &Path, count: usize) -> PathBuf {
    some_records(dir, "records.jsonl", count, 5)
}

fn some_records(dir: &Path, name: &str, count: usize, seed: u64) -> PathBuf {
    // Held-out records go by another stride, so that none is among those trained on.
    let (mut random, stride) = (Random::new(seed), if seed == 5 { 7 } else { 9 });
    let line = |_| {
        let (start, len) = (random.below(100), 4 + random.below(26));
        serde_json::json!({"tokens": (0..len).map(|t| (start + stride * t) % 100).collect::<Vec<_>>()}).to_string()
    };
    let path = dir.join(name);
    std::fs::write(&path, (0..count).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    path
}

/// Arguments for a run into `out`, with others after them.
fn args(data: &Path, out: &Path, method: &str, more: &str) -> Vec<String> {
    let mut all: Vec<String> =
        ["train", "-e1", "--method", method, "--model", TINY, "--data", data.to_str().unwrap(), "--json"]
            .map(String::from)
            .to_vec();
    all.extend(["--out".into(), out.to_str().unwrap().into()]);
    all.extend(more.split_whitespace().map(String::from));
    all
}

fn train(data: &Path, out: &Path, method: &str, more: &str) -> Output {
    let args = args(data, out, method, more);
    verb(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn trained(data: &Path, out: &Path, method: &str, more: &str) -> Value {
    let output = train(data, out, method, more);
    assert!(output.status.success(), "{method} {more}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn statement(out: &Path) -> (Value, String) {
    let json = serde_json::from_slice(&std::fs::read(out.join("privacy.json")).unwrap()).unwrap();
    (json, std::fs::read_to_string(out.join("PRIVACY.md")).unwrap())
}

fn log(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn every_method_trains_states_and_leaves_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), 30);
    let held_out = some_records(dir.path(), "held-out.jsonl", 20, 6);
    let eval = format!("--epochs 2 --batch 6 --eval-data {}", held_out.to_str().unwrap());
    let layout = Layout::new(&checkpoint::read_config(TINY).unwrap());
    let scalars = layout.scalars();
    let norms: usize = layout.specs().iter().map(|s| s.len().div_ceil(512)).sum();
    for (method, more, private, bits) in [
        ("dpsgd", "--dp-epsilon 2 --delta 1e-5", true, 32 * scalars),
        (
            "dpsgd",
            "--noise-multiplier 1 --clipping per-group --clip-function abadi -C 0.5 --log-private",
            true,
            32 * scalars,
        ),
        ("dp-signsgd", "--noise-multiplier 1 --clipping per-layer", true, scalars),
        ("dpsgd", "--noise-multiplier 1 --clip-function none", false, 32 * scalars),
        ("dpsgd", "--noise-multiplier 0", false, 32 * scalars),
        ("dpsgd", "--noise-multiplier 1 --sampler shuffle", true, 32 * scalars),
        ("dpsgd", "--noise-multiplier 1 --insecure-seed 3", false, 32 * scalars),
        ("nonprivate", "", false, 32 * scalars),
        ("signsgd", "--variant majority-vote --micro-batch 2", false, scalars),
        ("qsgd", "--bits 4", false, 4 * scalars + 32 * norms),
    ] {
        let out = dir.path().join("out");
        let summary = trained(&data, &out, method, &format!("{eval} {more}"));
        let (json, text) = statement(&out);
        assert_eq!(summary["private"], private, "{method} {more}");
        assert_eq!(text.contains("This model is not private"), !private, "{method} {more}");
        let kinds: Vec<&str> =
            json["claims"].as_array().unwrap().iter().map(|c| c["guarantee"]["kind"].as_str().unwrap()).collect();
        let promised: &[&str] = match (private, more.contains("shuffle")) {
            (false, _) => &["non-private"],
            (true, true) => &["mutual-information"],
            (true, false) => &["eps-delta", "mutual-information"],
        };
        assert!(kinds.iter().all(|k| promised.contains(k)), "{method}: {kinds:?}");
        assert!(promised.iter().all(|k| kinds.contains(k)), "{method}: {kinds:?}");
        assert_eq!((summary["steps"].as_u64(), json["released"]["count"].as_u64()), (Some(10), Some(10)));
        assert_eq!(summary["bits_per_update"], bits, "{method} {more}");
        if bits < 32 * scalars {
            assert_eq!(json["released"]["bits_per_update"].as_f64(), Some(bits as f64));
        }
        // The tuned model loads, and nothing of the run's state is left.
        let model = out.to_str().unwrap();
        let again = verb(&["eval", "--model", model, "--data", held_out.to_str().unwrap(), "--json"]);
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        let (a, b) = (again["loss"].as_f64().unwrap(), summary["eval_after"]["loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-9 && summary["eval_before"]["loss"] != summary["eval_after"]["loss"]);
        assert!(!out.join("state").exists());
        let log = log(&out);
        assert_eq!(log.len(), 10);
        // A Poisson batch may be empty, and then has no loss.
        let loss = |l: &Value| l["loss"].is_number() || l["records"] == 0;
        let told = log.iter().all(|l| loss(l) && l["tokens"].is_number() && l["seconds"].is_number());
        let says = !matches!(method, "dpsgd" | "dp-signsgd") || more.contains("--log-private");
        assert_eq!(told, says, "{method}: {:?}", log[0]);
        assert!(says || log.iter().all(|l| l.as_object().unwrap().len() == 1), "steps alone: {:?}", log[0]);
        if more.contains("--insecure-seed") {
            assert!(text.contains("not private: sampling and noise are known"), "{text}");
        }
        if more.contains("--dp-epsilon") {
            let (spent, planned) = (&summary["epsilon_spent"], &summary["epsilon_planned"]);
            let pld = spent["pld"].as_f64().unwrap();
            assert!(pld <= 2.0 && pld > 1.99 && spent == planned, "{spent}");
            assert!(spent["rdp"].as_f64().unwrap() > pld);
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn stopping_early_spends_less_than_planned() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), 30);
    let out = dir.path().join("out");
    let summary = trained(&data, &out, "dpsgd", "--epochs 4 --batch 6 --noise-multiplier 1.5 --max-steps 3");
    assert_eq!((summary["steps"].as_u64(), summary["steps_planned"].as_u64()), (Some(3), Some(20)));
    let of = |key: &str| summary[key]["pld"].as_f64().unwrap();
    assert!(of("epsilon_spent") < 0.7 * of("epsilon_planned"));
    let event = |steps| ferret::privacy::Event::SubsampledGaussian { noise_multiplier: 1.5, sampling_rate: 0.2, steps };
    let pld = |steps| {
        ferret::privacy::Accountant::epsilon(&ferret::privacy::Pld::default(), &event(steps), 1e-5).unwrap().upper
    };
    assert_eq!((of("epsilon_spent"), of("epsilon_planned")), (pld(3), pld(20)));
}

#[test]
fn arguments_of_other_methods_get_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), 10);
    for (method, more, says) in [
        ("dpsgd", "--epsilon 0.5", "--dp-epsilon"),
        ("dpsgd", "--batch 5", "needs --dp-epsilon E"),
        ("dpsgd", "--batch 5 --noise-multiplier 1 --variant plain", "--variant"),
        ("dpsgd", "--batch 5 --noise-multiplier 1 --groups 3", "--clipping per-group"),
        ("dpsgd", "--batch 5 --noise-multiplier 1 --clipping per-group --groups 300", "at most"),
        ("dpsgd", "--batch 5 --noise-multiplier 1 --release rr", "FERRET"),
        ("dpsgd", "--batch 5 --noise-multiplier 1 --delta 0", "delta"),
        ("nonprivate", "--epsilon 0.5", "not private"),
        ("nonprivate", "--batch 5 --dp-epsilon 1", "--dp-epsilon"),
        ("qsgd", "--batch 5 --bits 9", "2 to 8"),
        ("ferret-max", "--batch 5 --epsilon 0.5 --noise-multiplier 1", "--noise-multiplier"),
        ("sgd", "", "dp-signsgd"),
    ] {
        let out = dir.path().join("out");
        let output = train(&data, &out, method, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(says), "{method} {more}: {stderr}");
        assert!(!out.exists(), "{method} {more} left a folder");
    }
}

#[cfg(unix)]
#[test]
fn killed_and_stopped_runs_resume_to_the_same_bits_and_the_key_goes_last() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), 24);
    let more = "--epochs 90 --batch 12 --noise-multiplier 1 --insecure-seed 7 --checkpoint-every 10 --quiet";
    let (whole, out) = (dir.path().join("whole"), dir.path().join("out"));
    trained(&data, &whole, "dpsgd", more);

    let key = out.join("state/key.json");
    let lines = || std::fs::read_to_string(out.join("log.jsonl")).map_or(0, |t| t.lines().count());
    let start = |resume: &str| {
        let args = args(&data, &out, "dpsgd", &format!("{more} {resume}"));
        Command::new(env!("CARGO_BIN_EXE_ferret"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut child = start("");
    while lines() < 25 {
        std::thread::sleep(Duration::from_millis(2));
        assert!(child.try_wait().unwrap().is_none(), "finished too early for this test");
    }
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&key), mode(&out.join("state/told.json"))), (0o600, 0o600));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(mode(&key), 0o600);

    // Nobody goes on from steps of which it is not known how they were made.
    let (begun, away) = (out.join("state/told.json"), dir.path().join("away.json"));
    std::fs::rename(&begun, &away).unwrap();
    let lost = train(&data, &out, "dpsgd", &format!("{more} --resume"));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("not whole"), "{}", String::from_utf8_lossy(&lost.stderr));
    std::fs::rename(&away, &begun).unwrap();

    // Other arguments or records would be another run.
    let other = train(&data, &out, "dpsgd", &format!("{} --resume", more.replace("--batch 12", "--batch 8")));
    assert!(String::from_utf8_lossy(&other.stderr).contains("batch 12"), "{}", String::from_utf8_lossy(&other.stderr));
    let fewer = dir.path().join("fewer.jsonl");
    let text = std::fs::read_to_string(&data).unwrap();
    std::fs::write(&fewer, text.replacen("[", "[1,", 1)).unwrap();
    let other = train(&fewer, &out, "dpsgd", &format!("{more} --resume"));
    assert!(String::from_utf8_lossy(&other.stderr).contains("other records"));
    let other = train(&data, &out, "ferret-max", "--epsilon 0.5 --batch 5 --insecure-seed 7 --resume");
    assert!(String::from_utf8_lossy(&other.stderr).contains("another method"));

    let mut child = start("--resume");
    while lines() < 60 {
        std::thread::sleep(Duration::from_millis(2));
        assert!(child.try_wait().unwrap().is_none(), "finished too early for this test");
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let stopped = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stopped.stderr);
    assert!(stopped.status.code() == Some(130) && stderr.contains("--resume continues"), "{stderr}");
    assert_eq!(mode(&key), 0o600);
    assert!(!out.join("model.safetensors").exists());

    // Steps that were planned cannot be left out of the statement, over or not; and one flipped bit would give another model.
    for steps in [3, 100] {
        let fewer = train(&data, &out, "dpsgd", &format!("{more} --resume --max-steps {steps}"));
        let stderr = String::from_utf8_lossy(&fewer.stderr);
        assert!(!fewer.status.success() && stderr.contains("part of its plan"), "{stderr}");
    }
    let saved: Vec<PathBuf> = std::fs::read_dir(out.join("state/saved")).unwrap().map(|e| e.unwrap().path()).collect();
    let tensors = saved.iter().find(|p| p.to_str().unwrap().ends_with(".safetensors")).unwrap();
    let bytes = std::fs::read(tensors).unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(tensors, flipped).unwrap();
    let damaged = train(&data, &out, "dpsgd", &format!("{more} --resume"));
    let stderr = String::from_utf8_lossy(&damaged.stderr);
    assert!(!damaged.status.success() && stderr.contains("its SHA-256 differs"), "{stderr}");
    std::fs::write(tensors, bytes).unwrap();
    assert!(!out.join("privacy.json").exists());

    let summary = trained(&data, &out, "dpsgd", &format!("{more} --resume"));
    assert!(!out.join("state").exists());
    for file in ["model.safetensors", "privacy.json", "log.jsonl"] {
        assert!(std::fs::read(out.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap(), "{file} differs");
    }
    assert_eq!((summary["steps"].as_u64(), log(&out).len()), (Some(180), 180));
    let again = train(&data, &out, "dpsgd", &format!("{more} --resume"));
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to resume"));
}
