//! `ferret audit` as its users run it: tables, shadow models, canaries, the leakage meter, and what is refused.

use super::audit::{ferret_run, ferret_settings, fresh, memorise, random_records};
use crate::common::config;
use crate::io_support::{assert_refused, byte_tokenizer, ferret, ok, stderr};
use ferret::data::Example;
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::model::{Config, Weights, init};
use ferret::rng::Secret;
use serde_json::{Value, json};
use std::path::Path;

fn save(dir: &Path, weights: &Weights) {
    checkpoint::save(dir, weights, &SaveOptions::fresh(Dtype::F32)).unwrap();
}

fn write_tokens(path: &Path, records: &[Example]) {
    let lines: Vec<String> = records.iter().map(|r| json!({"tokens": r.ids}).to_string()).collect();
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

fn json_of(dir: &Path, args: &[&str]) -> Value {
    ok(ferret(dir).args(args).output().unwrap())
}

/// base, tuned (knows in.jsonl by heart), in.jsonl, out.jsonl, other.jsonl.
fn world(dir: &Path) {
    let base = fresh(1);
    let members = random_records(40, 10, 1);
    save(&dir.join("base"), &base);
    save(&dir.join("tuned"), &memorise(&base, &members, 40, 10));
    write_tokens(&dir.join("in.jsonl"), &members);
    write_tokens(&dir.join("out.jsonl"), &random_records(40, 10, 2));
    write_tokens(&dir.join("other.jsonl"), &random_records(60, 10, 3));
}

const PAIR: [&str; 9] =
    ["audit", "--base", "base", "--tuned", "tuned", "--members", "in.jsonl", "--nonmembers", "out.jsonl"];

#[test]
fn the_verb_reports_every_attack_with_intervals_bounds_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir);
    let with = |extra: &[&str]| json_of(dir, &[&PAIR[..], &["--json"], extra].concat());
    let charged = ["--membership", "random-subset", "--bits", "8", "--gradient-norm", "--out", "report"];
    let found = with(&charged);
    let attacks = found["attacks"].as_array().unwrap();
    let names: Vec<&str> = attacks.iter().map(|a| a["attack"].as_str().unwrap()).collect();
    assert_eq!(names, ["loss", "perplexity-ratio", "confidence", "min-20%", "min-20%++", "zlib", "gradient-norm"]);
    for attack in attacks {
        for key in ["auc", "advantage", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001"] {
            let value = attack[key].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value), "{key}");
            for suffix in ["_ci", "_null"] {
                assert_eq!(attack[format!("{key}{suffix}")].as_array().unwrap().len(), 2);
            }
        }
        assert_eq!((attack["members"].as_u64(), attack["nonmembers"].as_u64()), (Some(40), Some(40)));
        assert_eq!(attack["verdicts"].as_array().unwrap().len(), 4);
        assert!(attack["held_out"]["advantage"].is_number());
    }
    assert!(attacks[0]["auc"].as_f64().unwrap() > 0.98);
    assert_eq!(found["alarm"], true);
    for file in ["audit.txt", "audit.csv", "audit.json", "roc.svg", "roc-log.svg", "scores.csv"] {
        assert!(!std::fs::read_to_string(dir.join("report").join(file)).unwrap().is_empty(), "{file}");
    }
    assert!(std::fs::read_to_string(dir.join("report/roc-log.svg")).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_to_string(dir.join("report/scores.csv")).unwrap().lines().count(), 81);
    // Cached scores give the same report, and are really read.
    let cached = std::fs::read_dir(dir.join("report/cache")).unwrap().count();
    assert!(cached >= 3);
    assert_eq!(with(&charged)["attacks"], found["attacks"]);
    assert_eq!(std::fs::read_dir(dir.join("report/cache")).unwrap().count(), cached);
    // Without a random choice of members no bound applies, and the table says so.
    let plain = ferret(dir).args(PAIR).args(["--bits", "8"]).output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(text.contains("does not apply: membership was not drawn at random") && !text.contains("ALARM"), "{text}");
    let failed = ferret(dir).args(PAIR).args(["--fail-on-alarm"]).args(charged).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("ALARM"));
    // The base model against itself: nothing to find, nothing charged.
    let mut same = PAIR;
    same[4] = "base";
    let out = json_of(dir, &[&same[..], &["--json"]].concat());
    assert_eq!(out["alarm"], false);
    let row = &out["attacks"][1];
    assert_eq!((row["attack"].as_str(), row["auc"].as_f64()), (Some("perplexity-ratio"), Some(0.5)));
}

#[test]
fn shadow_models_are_trained_once_and_sharpen_the_attack() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    world(dir);
    let settings = ["--shadow-epochs", "40", "--shadow-batch", "10", "--shadow-learning-rate", "5e-3"];
    let online =
        ["--shadows", "4", "--shadow-data", "other.jsonl", "--shadow-online", "--shadow-cache", "kept", "--json"];
    let run = |extra: &[&str]| json_of(dir, &[&PAIR[..], &settings, extra].concat());
    let found = run(&online);
    let auc = |found: &Value, name: &str| {
        let row = found["attacks"].as_array().unwrap().iter().find(|a| a["attack"] == name);
        row.unwrap_or_else(|| panic!("no {name}"))["auc"].as_f64().unwrap()
    };
    for name in ["lira-online", "lira-offline", "rmia-online", "rmia-offline"] {
        assert!(auc(&found, name) > 0.95, "{name}: {}", auc(&found, name));
    }
    assert_eq!(found["shadows"]["trained_on"], 64, "half of 80 candidates and 48 others");
    assert_eq!(std::fs::read_dir(dir.join("kept")).unwrap().count(), 4);
    let before = std::fs::read_dir(dir.join("kept")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let again = run(&[&online[..], &["--shadow-jobs", "1"]].concat());
    assert_eq!(again["attacks"], found["attacks"], "from the store, one at a time");
    let after = std::fs::read_dir(dir.join("kept")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(before, after);
    // FERRET's shadows are kept as transcripts; offline ones never see a candidate.
    let ferret =
        ["--shadows", "2", "--shadow-data", "other.jsonl", "--shadow-method", "ferret-2", "--shadow-cache", "f"];
    let found = run(&[&ferret[..], &["--json"]].concat());
    assert_eq!((&found["shadows"]["online"], &found["shadows"]["trained_on"]), (&json!(false), &json!(24)));
    let names: Vec<&Value> = found["attacks"].as_array().unwrap().iter().map(|a| &a["attack"]).collect();
    assert!(names.contains(&&json!("lira-offline")) && !names.contains(&&json!("lira-online")));
    let kept: Vec<_> = std::fs::read_dir(dir.join("f")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(kept.iter().all(|n| n.to_string_lossy().ends_with(".transcript.json")) && kept.len() == 2);
    assert_eq!(run(&[&ferret[..], &["--json"]].concat())["attacks"], found["attacks"]);
}

#[test]
fn a_ferret_run_is_charged_by_its_transcript_and_metered() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let base = fresh(1);
    let records = random_records(30, 8, 1);
    save(&dir.join("base"), &base);
    let (tuned, transcript, _) = ferret_run(&base, &ferret_settings(&base), &records, &Secret::insecure(3));
    save(&dir.join("tuned"), &tuned);
    std::fs::write(dir.join("tuned/transcript.json"), transcript.to_json().unwrap()).unwrap();
    write_tokens(&dir.join("in.jsonl"), &records);
    write_tokens(&dir.join("out.jsonl"), &random_records(30, 8, 2));
    let found = json_of(dir, &[&PAIR[..], &["--membership", "coin-flip", "--json"]].concat());
    assert_eq!(found["charge"], json!({"bits": transcript.releases.len()}));
    assert_eq!((&found["alarm"], &found["bound_does_not_apply"]), (&json!(false), &Value::Null));
    let meter = ["audit", "leakage", "--base", "base", "--tuned", "tuned", "--data", "in.jsonl", "--seed", "3"];
    let reading = json_of(dir, &[&meter[..], &["--json"]].concat());
    assert_eq!((&reading["bits"], &reading["agreement"]), (&json!(transcript.releases.len()), &json!(1.0)));
    let text = ferret(dir).args(meter).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("fresh Poisson samples"));
    // Other weights beside the transcript: what it charges says nothing about them.
    save(&dir.join("tuned"), &fresh(2));
    let out = ferret(dir).args(PAIR).output().unwrap();
    assert_refused("foreign transcript", &out, &["transcript.json", "not of the model beside it"]);
    let out =
        ferret(dir).args(["audit", "leakage", "--base", "base", "--tuned", "base", "--data", "in.jsonl"]).output();
    assert_refused("no transcript", &out.unwrap(), &["transcript.json", "no such file"]);
}

/// A byte-level model: vocabulary and tokenizer of 259.
fn text_config() -> Config {
    config(|c| (c.vocab, c.positions, c.width, c.heads, c.inner) = (259, 40, 32, 4, 128))
}

/// Train on the text records of a file until they are known by heart.
fn learn_file(dir: &Path, file: &str, epochs: u32) {
    let base = init::random(text_config(), 7).unwrap();
    for name in ["base", "tuned"] {
        byte_tokenizer(&dir.join(name));
    }
    save(&dir.join("base"), &base);
    let records: Vec<Example> = std::fs::read_to_string(dir.join(file))
        .unwrap()
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            let text = record["text"].as_str().unwrap();
            assert!(!text.contains("he"), "merges would make other tokens than bytes");
            Example::all(text.bytes().map(u32::from).collect())
        })
        .collect();
    save(&dir.join("tuned"), &memorise(&base, &records, epochs, 8));
}

fn plant(dir: &Path, extra: &[&str]) {
    let lines: Vec<String> =
        (0..16).map(|i| json!({"text": format!("Note {i}: all quiet at gate {}.", 3 * i)}).to_string()).collect();
    std::fs::write(dir.join("plain.jsonl"), lines.join("\n")).unwrap();
    let args = ["audit", "plant", "--data", "plain.jsonl", "--out", "planted.jsonl", "--canaries", "canaries.json"];
    let out = ferret(dir).args(args).args(extra).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
}

const LOOK: [&str; 9] =
    ["audit", "canaries", "--base", "base", "--tuned", "tuned", "--canaries", "canaries.json", "--json"];

#[test]
fn a_memorised_canary_is_exposed_and_extracted_and_its_control_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(dir, &["--format", "Unit {number} has code ####.", "--frequencies", "0,8", "--each", "2", "--seed", "4"]);
    assert_eq!(std::fs::read_to_string(dir.join("planted.jsonl")).unwrap().lines().count(), 16 + 16);
    learn_file(dir, "planted.jsonl", 100);
    let found = json_of(dir, &[&LOOK[..], &["--samples", "3"]].concat());
    let rows = found["frequencies"].as_array().unwrap();
    let [control, planted] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&control["repeats"], &planted["repeats"]), (&json!(0), &json!(8)));
    assert_eq!(planted["mean_exposure_bits"], 8.0, "first of 256: {found}");
    assert_eq!((&planted["extracted_greedily"], &control["extracted_greedily"]), (&json!(2), &json!(0)));
    assert!(planted["base_mean_exposure_bits"].as_f64().unwrap() < 8.0);
    assert_eq!(found["one_run"], Value::Null);
}

#[test]
fn the_one_run_audit_bounds_epsilon_from_below() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    plant(dir, &["--format", "Key @@@@@@@@", "--coin-flip", "48", "--seed", "2"]);
    learn_file(dir, "planted.jsonl", 60);
    let found = json_of(dir, &[&LOOK[..], &["--samples", "0", "--competitors", "20", "--dp-epsilon", "0.1"]].concat());
    let one_run = &found["one_run"];
    assert_eq!(one_run["canaries"], 48);
    assert!(one_run["eps_lower"].as_f64().unwrap() > 1.0, "{one_run}");
    assert_eq!(found["accountant"]["eps_delta"], json!([0.1, 1e-5]));
    let text = ferret(dir).args(&LOOK[..8]).args(["--samples", "0", "--dp-epsilon", "0.1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("ALARM"), "{}", stderr(&text));
    // The flag turns that into an exit code, and passes nothing that it could not judge.
    let ask = |more: &[&str]| {
        let output =
            ferret(dir).args(&LOOK[..8]).args(["--samples", "0", "--fail-on-alarm"]).args(more).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    assert!(matches!(ask(&["--dp-epsilon", "0.1"]), (Some(1), told) if told.contains("gives away more")));
    assert!(matches!(ask(&["--dp-epsilon", "50"]), (Some(0), _)));
    let exchanged = ["--dp-epsilon", "50", "--dp-neighbours", "replace-one"];
    for more in [&[][..], &exchanged] {
        assert!(matches!(ask(more), (Some(1), told) if told.contains("nothing could be judged")), "{more:?}");
    }
    // The base model knows no coin.
    let mut same = LOOK;
    same[5] = "base";
    assert_eq!(json_of(dir, &[&same[..], &["--samples", "0"]].concat())["one_run"]["eps_lower"], 0.0);
}

#[test]
fn broken_input_gets_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let records = random_records(6, 6, 1);
    save(&dir.join("base"), &fresh(1));
    save(&dir.join("tuned"), &fresh(2));
    save(&dir.join("foreign"), &init::random(config(|c| c.vocab = 24), 1).unwrap());
    write_tokens(&dir.join("in.jsonl"), &records);
    write_tokens(&dir.join("out.jsonl"), &random_records(6, 6, 2));
    write_tokens(&dir.join("beyond.jsonl"), &[Example::all(vec![1, 23])]);
    std::fs::write(dir.join("empty.jsonl"), "").unwrap();
    std::fs::write(dir.join("one.jsonl"), "{\"tokens\": [1]}\n").unwrap();
    let change = |at: usize, to: &'static str| {
        let mut args = PAIR.to_vec();
        args[at] = to;
        args
    };
    let more = |extra: &[&'static str]| [&PAIR[..], extra].concat();
    let cases: Vec<(Vec<&str>, &[&str])> = vec![
        (change(2, "nowhere/at/all"), &["nowhere"]),
        (change(4, "foreign"), &["vocabulary of 23", "24"]),
        (change(6, "missing.jsonl"), &["missing.jsonl", "no such file"]),
        (change(8, "empty.jsonl"), &["empty.jsonl", "empty"]),
        (change(8, "one.jsonl"), &["one.jsonl", "token to predict"]),
        (change(6, "beyond.jsonl"), &["beyond.jsonl", "outside the model's vocabulary"]),
        (more(&["--min-k", "0"]), &["--min-k"]),
        (more(&["--dp-epsilon=-1"]), &["--dp-epsilon"]),
        (more(&["--candidates", "2,2"]), &["--candidates"]),
        (more(&["--shadows", "1"]), &["--shadows 1"]),
        (more(&["--shadows", "3"]), &["--shadows 3", "at least 4"]),
        (more(&["--shadows", "4", "--shadow-batch", "0"]), &["--shadow-batch 0", "at least 1"]),
        (more(&["--shadows", "2", "--shadow-method", "magic"]), &["magic", "ferret-max"]),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "in.jsonl",
                "--format",
                "no slot",
                "--frequencies",
                "1",
                "--out",
                "p.jsonl",
                "--canaries",
                "c.json",
            ],
            &["no slot"],
        ),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "in.jsonl",
                "--format",
                "# #",
                "--frequencies",
                "1",
                "--out",
                "out.jsonl",
                "--canaries",
                "c.json",
            ],
            &["out.jsonl", "exists"],
        ),
        (
            vec![
                "audit",
                "plant",
                "--data",
                "empty.jsonl",
                "--format",
                "# ####",
                "--frequencies",
                "1",
                "--out",
                "p.jsonl",
                "--canaries",
                "c.json",
            ],
            &["empty.jsonl"],
        ),
        (vec!["audit", "canaries", "--base", "base", "--tuned", "tuned", "--canaries", "in.jsonl"], &["audit plant"]),
    ];
    for (args, says) in cases {
        let what = args.join(" ");
        assert_refused(&what, &ferret(dir).args(&args).output().unwrap(), says);
    }
    // Missing arguments are clap's business: a usage message, and nothing on stdout.
    let out = ferret(dir).args(["audit", "--base", "base"]).output().unwrap();
    assert!(out.status.code() == Some(2) && stderr(&out).contains("--tuned"), "{}", stderr(&out));
    // A model without a tokenizer cannot read secrets.
    plant(dir, &["--format", "Key ####", "--frequencies", "1"]);
    let out = ferret(dir).args(&LOOK[..8]).output().unwrap();
    assert_refused("no tokenizer", &out, &["tokenizer"]);
}
