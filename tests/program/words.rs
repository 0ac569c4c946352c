//! What users of other programs expect of the command line: help that fits, completions, manual pages, versions, aliases, defaults.

use crate::io_support::{assert_refused, ferret, stderr, tiny};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const VERBS: [&str; 18] = [
    "train",
    "devices",
    "generate",
    "eval",
    "grad",
    "init",
    "inspect",
    "replay",
    "verify",
    "plan",
    "account",
    "study",
    "world",
    "audit",
    "completions",
    "man",
    "explain",
    "merge",
];

fn said(args: &[&str]) -> String {
    let output = ferret(Path::new(".")).args(args).env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn short_help_fits_a_screen_and_long_help_has_the_examples() {
    for verb in VERBS {
        let (short, long) = (said(&[verb, "-h"]), said(&[verb, "--help"]));
        assert!(short.lines().count() <= 40, "{verb} -h has {} lines", short.lines().count());
        assert!(long.contains("Example"), "{verb} --help shows no example");
        assert!(!short.contains("Examples:") && long.len() > short.len(), "{verb}");
        for text in [&short, &long] {
            let wide = text.lines().filter(|l| !l.contains("ferret ")).find(|l| l.chars().count() > 100);
            assert_eq!(wide, None, "{verb}");
        }
    }
    // What is hidden from the one is in the other, under its heading.
    let (short, long) = (said(&["train", "-h"]), said(&["train", "--help"]));
    assert!(
        !short.contains("--restart-diverged") && long.contains("--restart-diverged") && long.contains("Randomness:")
    );
    assert!(short.contains("--epsilon") && short.contains("--learning-rate"));
}

#[test]
fn completions_and_manual_pages_know_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&["completions", shell]);
        for verb in VERBS {
            assert!(script.contains(verb), "{shell}: {verb}");
        }
        assert!(script.contains("dp-epsilon"), "{shell}");
        if shell == "bash"
            && let Ok(mut bash) = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn()
        {
            std::io::Write::write_all(bash.stdin.as_mut().unwrap(), script.as_bytes()).unwrap();
            drop(bash.stdin.take());
            assert!(bash.wait().unwrap().success(), "bash cannot read its completions");
        }
    }
    let page = said(&["man"]);
    assert!(page.contains(".TH ferret 1") && page.contains("ferret\\-train"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    said(&["man", "--out", dir.path().to_str().unwrap()]);
    for verb in VERBS {
        let page = std::fs::read_to_string(dir.path().join(format!("ferret-{verb}.1"))).unwrap();
        assert!(page.contains(&format!(".TH ferret-{verb} 1")), "{verb}");
    }
}

#[test]
fn the_version_tells_its_features() {
    let (short, long) = (said(&["-V"]), said(&["--version"]));
    assert!(short.starts_with(&format!("ferret {}", env!("CARGO_PKG_VERSION"))), "{short}");
    assert!(long.contains("features: ") && long.contains(std::env::consts::ARCH), "{long}");
    assert_eq!(long.contains("gpu"), cfg!(feature = "gpu"), "{long}");
}

#[test]
fn colours_are_asked_for() {
    let help = |args: &[&str], no_color: bool| {
        let mut command = ferret(Path::new("."));
        command.args(args).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        if no_color {
            command.env("NO_COLOR", "1");
        }
        command.output().unwrap().stdout
    };
    let escape = |text: &[u8]| text.contains(&0x1b);
    assert!(escape(&help(&["--color", "always", "train", "-h"], false)));
    assert!(escape(&help(&["train", "--color=always", "-h"], false)));
    assert!(!escape(&help(&["--color", "never", "-h"], false)) && !escape(&help(&["-h"], false)));
    assert!(!escape(&help(&["-h"], true)));
    let output = ferret(Path::new(".")).args(["--color", "sometimes", "devices"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Records that the tiny model can read.
fn records(dir: &Path) {
    let line = |i: u32| format!("{{\"tokens\": [{}, {}, {}, {}]}}\n", 1 + i % 7, 2 + i % 5, 3 + i % 3, 4 + i % 11);
    std::fs::write(dir.join("records.jsonl"), (0..60).map(line).collect::<String>()).unwrap();
}

fn train(dir: &Path, out: &str, more: &str) -> Value {
    let mut command = ferret(dir);
    command.args(["train", "-e1", "-m"]).arg(tiny()).args(["-d", "records.jsonl", "-o", out, "-q", "--json"]);
    let output = command.args(more.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{more}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn names_of_other_programs_mean_the_same() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let ours = "--method dpsgd --dp-epsilon 2 --delta 1e-4 --epochs 2 --batch 6 --clip 0.5";
    let theirs = "--method dpsgd --target-epsilon 2 --target-delta 1e-4 --num-train-epochs 2 --per-device-train-batch-size 6 --max-grad-norm 0.5";
    let (a, b) = (train(dir.path(), "a", ours), train(dir.path(), "b", theirs));
    for key in ["noise_multiplier", "steps", "guarantees", "learning_rate"] {
        assert_eq!(a[key], b[key], "{key}");
    }
    let settings = |out: &str| -> Value {
        serde_json::from_slice(&std::fs::read(dir.path().join(out).join("run.json")).unwrap()).unwrap()
    };
    assert_eq!(settings("a")["settings"], settings("b")["settings"]);
}

#[test]
fn flips_for_an_epsilon_are_found_by_the_exact_count_too() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let asked = "--method ferret-2 --epsilon 0.4 --batch 1 --epochs 3 --release rr --dp-epsilon 2 --delta 1e-4";
    let exact = train(dir.path(), "exact", &format!("{asked} --accounting exact"));
    let paper = train(dir.path(), "paper", asked);
    assert!(exact["bits"].as_u64() > paper["bits"].as_u64(), "{exact} {paper}");
    let statement: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("exact/privacy.json")).unwrap()).unwrap();
    let (mut nats, mut eps) = (None, None);
    for claim in statement["claims"].as_array().unwrap() {
        let guarantee = &claim["guarantee"];
        match guarantee["kind"].as_str().unwrap() {
            "mutual-information" => nats = nats.or(guarantee["nats"].as_f64()),
            "eps-delta" if guarantee["eps"].as_f64() > Some(0.0) => eps = eps.or(guarantee["eps"].as_f64()),
            _ => {}
        }
    }
    let (nats, eps) = (nats.unwrap(), eps.unwrap());
    // Both budgets hold, and the second is used.
    assert!(nats <= 0.4, "{nats}");
    assert!(eps <= 2.0 && eps > 1.9, "{eps}");
}

#[test]
fn the_learning_rate_of_a_run_is_told() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let by_default = train(dir.path(), "a", "--method ferret-2 --epsilon 1 --batch 6");
    let rate = by_default["learning_rate"].as_f64().unwrap();
    assert!((5e-4..2e-2).contains(&rate), "{rate}");
    assert_eq!(train(dir.path(), "b", "--method nonprivate --learning-rate 3e-4")["learning_rate"], 3e-4);
    let mut command = ferret(dir.path());
    command.args(["train", "-e1", "-m"]).arg(tiny()).args([
        "-d",
        "records.jsonl",
        "-o",
        "c",
        "-q",
        "--method",
        "nonprivate",
    ]);
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("learning rate 2e-3"), "{output:?}");
}

#[test]
fn inspect_takes_a_folder_as_verify_does() {
    let folder = tiny();
    let folder = folder.to_str().unwrap();
    assert_eq!(said(&["inspect", folder]), said(&["inspect", "--model", folder]));
    let output = ferret(Path::new(".")).args(["inspect", folder, "-m", folder]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn arrays_and_compressed_records_are_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let lines = std::fs::read_to_string(dir.path().join("records.jsonl")).unwrap();
    let array = format!("[\n{}\n]\n", lines.trim_end().replace('\n', ",\n"));
    std::fs::write(dir.path().join("array.json"), &array).unwrap();
    let packed = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    std::fs::write(dir.path().join("lines.jsonl.gz"), packed(&lines)).unwrap();
    std::fs::write(dir.path().join("array.json.gz"), packed(&array)).unwrap();
    let cut = packed(&lines);
    std::fs::write(dir.path().join("cut.jsonl.gz"), &cut[..cut.len() / 2]).unwrap();
    std::fs::write(dir.path().join("wrong.json"), "[{\"tokens\": [1, 2]}, {\"secret\": 7}]").unwrap();
    let eval =
        |name: &str| ferret(dir.path()).args(["eval", "--json", "-m"]).arg(tiny()).args(["-d", name]).output().unwrap();
    let loss = |name: &str| {
        let output = eval(name);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (found["loss"].as_f64().unwrap(), found["records"].as_u64().unwrap())
    };
    let want = loss("records.jsonl");
    for name in ["array.json", "lines.jsonl.gz", "array.json.gz"] {
        assert_eq!(loss(name), want, "{name}");
    }
    assert_refused("cut off", &eval("cut.jsonl.gz"), &["cut.jsonl.gz", "gzip"]);
    let refused = eval("wrong.json");
    assert_refused("no record", &refused, &["wrong.json", "record 2"]);
    assert!(!stderr(&refused).contains("secret") && !stderr(&refused).contains('7'), "{}", stderr(&refused));
}

#[cfg(not(feature = "formats"))]
#[test]
fn a_build_without_a_format_names_the_feature_that_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.jsonl.zst", "a.parquet"] {
        let eval = || ferret(dir.path()).args(["eval", "-m"]).arg(tiny()).args(["-d", name]).output().unwrap();
        assert_refused("not there", &eval(), &[name, "no such file"]);
        std::fs::write(dir.path().join(name), "PAR1").unwrap();
        assert_refused("without", &eval(), &[name, "the feature `formats`"]);
    }
}

#[test]
fn a_run_is_told_step_by_step() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let tiny = tiny();
    let tiny = tiny.to_str().unwrap();
    std::fs::write(dir.path().join("other.jsonl"), "{\"tokens\": [9, 8, 7, 6, 5]}\n{\"tokens\": [11, 3, 12, 4]}\n")
        .unwrap();
    let made =
        train(dir.path(), "run", "--method ferret-2 --epsilon 1 --batch 6 --epochs 2 --eval-data other.jsonl --seed 3");
    let told = |more: &[&str]| {
        let mut command = ferret(dir.path());
        command.args(["explain", "run", "-q", "--base", tiny]).args(more);
        command.output().unwrap()
    };
    let output = told(&["--eval-data", "other.jsonl", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let story: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = story["steps"].as_array().unwrap();
    let bits: usize = steps.iter().map(|s| s["fires"].as_array().unwrap().len()).sum();
    assert_eq!(bits as u64, made["bits"].as_u64().unwrap());
    // The loss before and, but for the idle steps after the last bit, at the end are those that training told.
    let near =
        |a: &Value, b: &Value, by: f64| assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < by, "{a} {b}");
    near(&story["loss_before"], &made["eval_before"]["loss"], 1e-6);
    near(&steps.last().unwrap()["loss"], &made["eval_after"]["loss"], 2e-2);
    assert!(steps.iter().all(|s| s["moved"].as_f64().unwrap() > 0.0));
    let text = String::from_utf8(told(&[]).stdout).unwrap();
    assert!(text.contains("ferret-2, 2 groups") && !text.contains("perplexity"), "{text}");
    // Another base is refused.
    let output = ferret(dir.path()).args(["explain", "run", "-q", "--base", "embedded"]).output().unwrap();
    assert_refused("another base", &output, &["transcript.json", "SHA-256"]);
}

#[test]
fn only_one_who_trains_hears_of_dropout() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(tiny()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["resid_pdrop"] = 0.1.into();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let said = |call: &str| {
        let output = ferret(dir.path()).args(call.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{call}: {}", stderr(&output));
        stderr(&output)
    };
    assert!(!said("eval -m model -d records.jsonl").contains("dropout"));
    assert!(
        said("train --method nonprivate -m model -d records.jsonl --dry-run").contains("dropout (resid_pdrop 0.1)")
    );
}

#[test]
fn a_number_below_zero_is_refused_by_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    records(dir.path());
    let mut command = ferret(dir.path());
    command.args(["train", "--method", "dpsgd", "-m"]).arg(tiny()).args(["-d", "records.jsonl", "-b6", "-o", "out"]);
    assert_refused("below zero", &command.args(["--dp-epsilon", "-1"]).output().unwrap(), &["-1"]);
}
