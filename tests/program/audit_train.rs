//! `ferret train --audit`, and shadow models of runs by this program: their settings, stopping and going on.

use crate::common::Random;
use crate::io_support::{ferret, stderr, tiny};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// in.jsonl, out.jsonl and other.jsonl: random tokens, so that only memory tells them apart.
fn world(dir: &Path, count: usize) {
    for (seed, name) in ["in.jsonl", "out.jsonl", "other.jsonl"].into_iter().enumerate() {
        let mut random = Random::new(seed as u64 + 1);
        let line = |_| {
            let len = 6 + random.below(8);
            json!({"tokens": (0..len).map(|_| random.below(100)).collect::<Vec<_>>()}).to_string()
        };
        std::fs::write(dir.join(name), (0..count).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn train(dir: &Path, method: &str, out: &str, more: &str) -> std::process::Output {
    let mut command = ferret(dir);
    command.args(["train", "-e1", "--method", method, "--data", "in.jsonl", "--out", out, "--model"]).arg(tiny());
    command.args(words(more)).output().unwrap()
}

fn json_of(output: std::process::Output) -> Value {
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn audit_args(tuned: &str) -> Vec<String> {
    let (base, args) = (tiny(), ["--members", "in.jsonl", "--nonmembers", "out.jsonl", "--json", "--quiet"]);
    ["audit", "--base", base.to_str().unwrap(), "--tuned", tuned].iter().chain(&args).map(|s| s.to_string()).collect()
}

fn audit(dir: &Path, tuned: &str, more: &str) -> Value {
    json_of(ferret(dir).args(audit_args(tuned)).args(words(more)).output().unwrap())
}

#[test]
fn every_method_audits_its_own_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir, 40);
    let ask = "--batch 8 --epochs 2 --audit out.jsonl --audit-membership random-subset --quiet";
    for (method, more, charge) in [
        ("ferret-2", "--epsilon 2", "bits"),
        ("ferret-2", "--epsilon 2 --release rr --flip 0.2 --audit-records 10", "bits"),
        ("ferret-2", "--epsilon 2 --release gaussian --dither 4", "eps-delta"),
        ("dpsgd", "--noise-multiplier 1 --audit-records 10", "eps-delta"),
        ("nonprivate", "", "non-private"),
        ("signsgd", "", "non-private"),
    ] {
        let what = format!("{method} {more}");
        let found = json_of(train(dir, method, "run", &format!("{ask} --json {more}")));
        let report = &found["audit"];
        let kind = report["charge"].as_object().and_then(|c| c.keys().next().cloned());
        assert_eq!(kind.as_deref().or(report["charge"].as_str()), Some(charge), "{what}: {}", report["charge"]);
        if charge == "bits" && !more.contains("rr") {
            assert_eq!(report["charge"]["bits"], found["bits"], "{what}");
        }
        let scored = if more.contains("--audit-records") { 10 } else { 40 };
        assert_eq!((&report["members"], &report["nonmembers"]), (&json!(scored), &json!(scored)), "{what}");
        assert_eq!(report["candidates"], json!([40, 40]), "{what}");
        for file in ["audit.txt", "audit.csv", "audit.json", "scores.csv", "roc.svg", "roc-log.svg"] {
            assert!(dir.join("run/audit").join(file).is_file(), "{what}: {file}");
        }
        let mode = std::fs::metadata(dir.join("run/audit")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{what}: others may look");
        for file in ["PRIVACY.md", "privacy.json"] {
            let text = std::fs::read_to_string(dir.join("run").join(file)).unwrap();
            assert!(text.contains("An audit was run (--audit)"), "{what}: {text}");
        }
        // The same code as the verb's, with the same charge.
        if scored == 40 {
            let verb = audit(dir, "run", "--membership random-subset");
            assert_eq!((&verb["attacks"], &verb["charge"]), (&report["attacks"], &report["charge"]), "{what}");
        }
        // A run that was stopped in its audit goes on with it.
        let again = json_of(train(dir, method, "run", &format!("{ask} --json --resume {more}")));
        assert_eq!(again["audit"]["attacks"], report["attacks"], "{what}");
        let statement = std::fs::read_to_string(dir.join("run/PRIVACY.md")).unwrap();
        assert_eq!(statement.matches("An audit was run").count(), 1, "{what}");
        std::fs::remove_dir_all(dir.join("run")).unwrap();
    }
    // The table for readers, and no audit unless one is asked for.
    let out = train(dir, "nonprivate", "run", ask);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("nonprivate: ") && text.contains("perplexity-ratio"), "{text}{}", stderr(&out));
    // A finished run is audited as what it was, or not at all.
    let other = train(dir, "signsgd", "run", &format!("{ask} --resume"));
    assert!(!other.status.success() && stderr(&other).contains("--method nonprivate"), "{}", stderr(&other));
    let records = std::fs::read_to_string(dir.join("in.jsonl")).unwrap();
    std::fs::write(dir.join("in.jsonl"), records.split_once('\n').unwrap().1).unwrap();
    let fewer = train(dir, "nonprivate", "run", &format!("{ask} --resume"));
    assert!(!fewer.status.success() && stderr(&fewer).contains("had 40 records"), "{}", stderr(&fewer));
    std::fs::write(dir.join("in.jsonl"), records).unwrap();
    json_of(train(dir, "nonprivate", "plain", "--batch 8 --json"));
    assert!(!dir.join("plain/audit").exists());
    assert!(!std::fs::read_to_string(dir.join("plain/PRIVACY.md")).unwrap().contains("audit"));
    // What cannot be audited is refused before training.
    for (more, says) in
        [("--audit missing.jsonl", "missing.jsonl"), ("--audit out.jsonl --audit-records 0", "--audit-records")]
    {
        let out = train(dir, "nonprivate", "never", &format!("--batch 8 {more}"));
        assert!(!out.status.success() && stderr(&out).contains(says), "{}", stderr(&out));
        assert!(!dir.join("never").exists());
    }
}

#[test]
fn true_gradients_raise_the_alarm_that_bits_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir, 60);
    let ask = "--epsilon 1e6 --batch 20 --epochs 40 --learning-rate 1e-2 --json --quiet";
    let charged = "--membership random-subset --bits 4";
    json_of(train(dir, "ferret-2", "leak", &format!("{ask} --payload true-gradient")));
    assert_eq!(audit(dir, "leak", charged)["alarm"], true);
    let few =
        json_of(train(dir, "ferret-2", "bits", "--epsilon 0.9 --batch 20 --epochs 2 --mask exact --json --quiet"));
    assert!(few["bits"].as_u64().unwrap() <= 4, "{few}");
    assert_eq!(audit(dir, "bits", charged)["alarm"], false);
}

/// A run's settings as its shadow models have them, sizes apart.
fn same_but_sizes(mut run: Value, mut shadow: Value) {
    for settings in [&mut run, &mut shadow] {
        for size in ["records", "steps", "sampling_rate", "p"] {
            settings.as_object_mut().unwrap().remove(size);
        }
    }
    assert_eq!(run, shadow);
}

#[test]
fn shadow_models_are_trained_as_the_run_was() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir, 24);
    let read = |path: &str| -> Value { serde_json::from_slice(&std::fs::read(dir.join(path)).unwrap()).unwrap() };
    for (method, more, kind) in [
        (
            "dpsgd",
            "--noise-multiplier 0.7 -C 0.3 --clip-function abadi --clipping per-layer --route direct --learning-rate 0.05",
            "dense",
        ),
        ("nonprivate", "--schedule constant --learning-rate 3e-3 --weight-decay 0.2 --sampler shuffle", "dense"),
        ("signsgd", "--variant majority-vote --micro-batch 3", "dense"),
        ("ferret-2", "--epsilon 3 --release rr --flip 0.1 --learning-rate 7e-4 --seed 9", "ferret"),
    ] {
        json_of(train(dir, method, "run", &format!("--batch 6 --epochs 3 --max-steps 6 --json --quiet {more}")));
        let found = audit(dir, "run", "--shadows 4 --out report");
        let file = if kind == "dense" { "run/run.json" } else { "run/transcript.json" };
        let run = read(file);
        assert_eq!((&run["steps_run"], &run["settings"]["epochs"]), (&json!(6), &json!(3)), "{method}");
        let shadow = &found["shadows"]["method"][kind];
        same_but_sizes(run["settings"].clone(), shadow.clone());
        assert_eq!((&shadow["records"], &shadow["epochs"]), (&json!(24), &json!(3)), "{method}: half of 48");
        assert_eq!(found["shadows"]["share_of_steps"], 0.5, "stopped where the run was");
        assert_eq!(found["shadows"]["trained_now"], 4);
        // Asked for otherwise.
        let other = audit(dir, "run", "--shadows 4 --shadow-epochs 1 --shadow-learning-rate 0.5");
        let shadow = &other["shadows"]["method"][kind];
        assert_eq!((&shadow["learning_rate"], &shadow["epochs"]), (&json!(0.5), &json!(1)), "{method}");
        assert_eq!(other["shadows"]["share_of_steps"], 1.0);
        for done in ["run", "report"] {
            std::fs::remove_dir_all(dir.join(done)).unwrap();
        }
    }
    // Settings beside another model say nothing about it.
    json_of(train(dir, "nonprivate", "run", "--batch 6 --json --quiet"));
    std::fs::copy(tiny().join("model.safetensors"), dir.join("run/model.safetensors")).unwrap();
    let out = ferret(dir).args(audit_args("run")).output().unwrap();
    assert!(!out.status.success() && stderr(&out).contains("not of the model beside it"), "{}", stderr(&out));
}

#[test]
fn a_killed_audit_loses_only_the_shadows_in_flight() {
    const SHADOWS: usize = 12;
    const JOBS: usize = 2;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir, 40);
    json_of(train(dir, "nonprivate", "run", "--batch 8 --json --quiet"));
    let more = format!("--shadows {SHADOWS} --shadow-jobs {JOBS} --shadow-epochs 20 --cache kept");
    // Two files are the tuned and the base model's scores; one more for each shadow model that is finished.
    let finished = || -> usize {
        let entries = std::fs::read_dir(dir.join("kept")).into_iter().flatten().flatten();
        entries.filter(|e| e.path().extension().is_some_and(|x| x == "scores")).count().saturating_sub(2)
    };
    let mut child = ferret(dir)
        .args(audit_args("run"))
        .args(words(&more))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while finished() < 3 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = finished();
    assert!((3..SHADOWS).contains(&kept), "killed after {kept}: nothing to see");
    let resumed = audit(dir, "run", &more);
    assert_eq!(resumed["shadows"]["trained_now"], SHADOWS - kept);
    assert_eq!(audit(dir, "run", &more)["shadows"]["trained_now"], 0);
    let whole = audit(dir, "run", &more.replace("kept", "fresh").replace("--shadow-jobs 2", "--shadow-jobs 1"));
    assert_eq!(whole["shadows"]["trained_now"], SHADOWS);
    assert_eq!(whole["attacks"], resumed["attacks"], "one at a time and without a stop");
}
