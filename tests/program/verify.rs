//! `ferret verify`: what is believed of a trained checkpoint, and what is not.

use crate::io_support::{tiny as base, verb};
use ferret::method::dense::Record;
use ferret::method::ferret::{Transcript, replay};
use ferret::model::checkpoint;
use ferret::privacy::Statement;
use ferret::privacy::statement::AUDITED;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/1").join(name)
}

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A run on 60 records of a few tokens.
pub fn train(home: &Path, name: &str, extra: &[&str]) -> PathBuf {
    let (data, out) = (home.join("records.jsonl"), home.join(name));
    let lines: Vec<String> = (0..60)
        .map(|i| json!({"tokens": (0..5).map(|j| (7 * i + 3 * j) % 101).collect::<Vec<_>>()}).to_string())
        .collect();
    std::fs::write(&data, lines.join("\n")).unwrap();
    let base = base();
    let mut args = vec!["train", "-e1", "--model", at(&base), "--data", at(&data), "--out", at(&out)];
    args.extend(["--batch", "6", "--epochs", "3", "--learning-rate", "1e-3", "--threads", "1", "--quiet"]);
    args.extend(extra);
    let output = verb(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out
}

pub const BIT: [&str; 4] = ["--method", "ferret-max", "--epsilon", "20"];
const RR: [&str; 8] = ["--method", "ferret-max", "--epsilon", "20", "--release", "rr", "--flip", "0.1"];
pub const DPSGD: [&str; 6] = ["--method", "dpsgd", "--noise-multiplier", "0.9", "--max-steps", "20"];

pub fn verify_against(dir: &Path, base: &Path) -> Result<Value, String> {
    let output = verb(&["verify", at(dir), "--base", at(base), "--quiet", "--json"]);
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap());
    }
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    Err(said)
}

fn verify(dir: &Path) -> Result<Value, String> {
    verify_against(dir, &base())
}

/// Write the statement after `edit`, and the page as its words are then.
fn restate(dir: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dir.join("privacy.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut value);
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    if let Ok(statement) = Statement::from_json(&text) {
        std::fs::write(dir.join("PRIVACY.md"), statement.to_markdown()).unwrap();
    }
    std::fs::write(&path, text).unwrap();
}

/// What a refusal must say, and the edit that it refuses.
type Edit<'a> = (&'a str, fn(&mut Value));

/// Each edit of the run's statement is refused with its sentence.
fn refuses(dir: &Path, edits: &[Edit]) {
    let keep = std::fs::read(dir.join("privacy.json")).unwrap();
    for (sentence, edit) in edits {
        restate(dir, edit);
        let said = verify(dir).expect_err(sentence);
        assert!(said.contains(sentence), "expected {sentence:?}: {said}");
        std::fs::write(dir.join("privacy.json"), &keep).unwrap();
    }
    restate(dir, |_| {});
    verify(dir).unwrap();
}

#[test]
fn a_statement_that_claims_less_or_says_other_words_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = train(home.path(), "run", &BIT);
    let found = verify(&dir).unwrap();
    assert_eq!((&found["replayed"], &found["statement"]), (&json!(true), &json!(3)));
    refuses(
        &dir,
        &[
            ("0.001 is claimed", |s| s["claims"][0]["guarantee"]["nats"] = 0.001.into()),
            ("nats_charged: 0.001 is claimed", |s| s["nats_charged"] = 0.001.into()),
            ("nats_charged", |s| s["nats_charged"] = Value::Null),
            ("0.01 is claimed", |s| s["claims"][1]["guarantee"]["delta"] = 0.01.into()),
            ("perfectly private", |s| s["assumptions"][0] = "perfectly private".into()),
            ("leaves out", |s| drop(s["assumptions"].as_array_mut().unwrap().pop())),
            ("repeats", |s| {
                let again = s["assumptions"][0].clone();
                s["assumptions"].as_array_mut().unwrap().push(again);
            }),
            ("not_met says \"perfectly private\"", |s| s["not_met"] = json!(["perfectly private"])),
            ("does not follow", |s| s["claims"][0]["accountant"] = "perfectly private".into()),
            ("does not follow", |s| s["claims"][1]["guarantee"]["neighbours"] = "replace-one".into()),
            ("does not follow", |s| {
                let promise = json!({"kind": "eps-delta", "eps": 0.1, "delta": 1e-9, "neighbours": "replace-by-empty"});
                let claim = json!({"guarantee": promise, "accountant": "PLD", "of": "spent"});
                s["claims"].as_array_mut().unwrap().push(claim);
            }),
            ("leaves out", |s| drop(s["claims"].as_array_mut().unwrap().pop())),
            ("tuned_sha256", |s| s["tuned_sha256"] = "0".repeat(64).into()),
            ("tuned_sha256", |s| drop(s.as_object_mut().unwrap().remove("tuned_sha256"))),
            ("not the statement", |s| s["version"] = 1.into()),
            ("version 4", |s| s["version"] = 4.into()),
            ("not the statement", |s| s["version"] = 2.into()),
            ("unknown field", |s| s["promise"] = "perfectly private".into()),
            ("unknown field", |s| s["claims"][0]["guarantee"]["truly"] = "perfectly private".into()),
            ("unknown field", |s| s["released"]["truly"] = 1.into()),
            ("method", |s| s["method"] = "perfectly-private".into()),
            ("released", |s| s["released"]["count"] = 1.into()),
            ("records", |s| s["records"] = 1_000_000.into()),
            ("sampling_rate", |s| s["sampling_rate"] = 1e-6.into()),
            ("sampler", |s| s["sampler"] = "shuffle".into()),
            ("steps", |s| s["steps"] = 1.into()),
            ("nats_planned", |s| s["nats_planned"] = 0.1.into()),
            ("nats_paper", |s| s["nats_paper"] = 0.1.into()),
            ("nats_paper", |s| drop(s.as_object_mut().unwrap().remove("nats_paper"))),
            ("accounting", |s| s["accounting"] = "exact".into()),
            ("not the statement", |s| s["private_logs"] = true.into()),
            ("event is", |s| {
                s["event"] =
                    json!({"subsampled-gaussian": {"noise_multiplier": 9.0, "sampling_rate": 0.1, "steps": 1}});
            }),
        ],
    );
    // To say that more was spent is no untruth, and an audit afterwards adds a note.
    restate(&dir, |s| s["claims"][0]["guarantee"]["nats"] = 30.0.into());
    verify(&dir).unwrap();
    restate(&dir, |s| s["not_met"] = json!([AUDITED]));
    verify(&dir).unwrap();
    // The page is what people read.
    let page = std::fs::read_to_string(dir.join("PRIVACY.md")).unwrap();
    std::fs::write(dir.join("PRIVACY.md"), page.replace("at most", "certainly less than")).unwrap();
    assert!(verify(&dir).unwrap_err().contains("does not say what privacy.json states"));
    std::fs::remove_file(dir.join("privacy.json")).unwrap();
    assert!(verify(&dir).unwrap_err().contains("no privacy.json"));
    std::fs::remove_file(dir.join("PRIVACY.md")).unwrap();
    assert!(verify(&dir).unwrap()["not_bound"].to_string().contains("nothing is promised"));
}

#[test]
fn flips_and_noise_are_accounted_for_again() {
    let home = tempfile::tempdir().unwrap();
    let dir = train(home.path(), "rr", &RR);
    assert!(verify(&dir).unwrap()["not_checkable"].to_string().contains("that bits were flipped"));
    refuses(
        &dir,
        &[
            ("eps (PLD, spent): 0.5 is claimed", |s| s["claims"][1]["guarantee"]["eps"] = 0.5.into()),
            ("eps (RDP, spent): 0.5 is claimed", |s| s["claims"][2]["guarantee"]["eps"] = 0.5.into()),
            ("is claimed", |s| {
                s["claims"][1]["guarantee"]["eps"] =
                    Value::from(s["claims"][1]["guarantee"]["eps"].as_f64().unwrap() * 0.999)
            }),
            ("delta", |s| s["claims"][2]["guarantee"]["delta"] = 1e-9.into()),
            ("event is", |s| drop(s.as_object_mut().unwrap().remove("event"))),
            ("event is", |s| s["event"]["subsampled-randomised-response"]["flip"] = 0.4.into()),
            ("released", |s| s["released"]["flip"] = 0.4.into()),
        ],
    );
}

#[test]
fn of_a_run_without_a_transcript_hashes_and_statement_are_checked() {
    let home = tempfile::tempdir().unwrap();
    let dir = train(home.path(), "dpsgd", &DPSGD);
    let found = verify(&dir).unwrap();
    assert_eq!((&found["replayed"], &found["statement"], &found["steps"]), (&json!(false), &json!(3), &json!(20)));
    assert!(found["not_checkable"].to_string().contains("clipped, noised and sampled"), "{found}");
    refuses(
        &dir,
        &[
            ("nats (mutual information, spent): 0.001 is claimed", |s| {
                s["claims"][0]["guarantee"]["nats"] = 1e-3.into()
            }),
            ("nats_charged", |s| s["nats_charged"] = 1e-3.into()),
            ("eps (PLD, spent)", |s| s["claims"][1]["guarantee"]["eps"] = 0.1.into()),
            ("nats (mutual information, planned)", |s| s["claims"][3]["guarantee"]["nats"] = 1e-3.into()),
            ("eps (RDP, planned)", |s| s["claims"][5]["guarantee"]["eps"] = 0.1.into()),
            ("released", |s| s["released"]["noise_multiplier"] = 9.0.into()),
            ("does not follow", |s| s["claims"][1]["guarantee"] = json!({"kind": "mutual-information", "nats": 1e-3})),
            ("perfectly private", |s| s["not_met"] = json!(["perfectly private"])),
        ],
    );
    let other = home.path().join("other");
    let mut weights = checkpoint::load(at(&base())).unwrap();
    weights.weights.tensors[3][2] += 1e-3;
    checkpoint::save(&other, &weights.weights, &weights.save_options()).unwrap();
    assert!(verify_against(&dir, &other).unwrap_err().contains("give the one it was trained from"));
    let file = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(verify(&dir).unwrap_err().contains("names other tensors"));
    std::fs::remove_file(dir.join("run.json")).unwrap();
    assert!(verify(&dir).unwrap_err().contains("nothing to verify it by"));
}

/// Sign a transcript anew after `edit`, as whoever forges one would.
fn forge(dir: &Path, edit: impl FnOnce(&mut Value)) {
    use sha2::{Digest, Sha256};
    let path = dir.join("transcript.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut value);
    value["checksum"] = "".into();
    let sum: String = Sha256::digest(value.to_string()).iter().map(|b| format!("{b:02x}")).collect();
    value["checksum"] = sum.into();
    std::fs::write(path, serde_json::to_string_pretty(&value).unwrap()).unwrap();
}

#[test]
fn a_promise_in_the_place_of_the_methods_name_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dir = train(home.path(), "run", &BIT);
    let promise = "ferret-max`, proven to be (0.001, 1e-9)-private by `an audit";
    forge(&dir, |t| t["settings"]["method"] = promise.into());
    restate(&dir, |s| s["method"] = promise.into());
    let said = verify(&dir).expect_err("a page with a promise that no one made");
    assert!(said.contains("method is no name"), "{said}");
    assert!(!said.contains("0.001"), "{said}");
    // The forger's checksum is right: with an honest name all is well.
    forge(&dir, |t| t["settings"]["method"] = "ferret-max".into());
    restate(&dir, |s| s["method"] = "ferret-max".into());
    verify(&dir).unwrap();
}

#[test]
fn an_audit_refuses_the_statement_of_another_run() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) =
        (train(home.path(), "one", &BIT), train(home.path(), "two", &[&BIT[..], &["--seed", "5"]].concat()));
    let others = home.path().join("others.jsonl");
    std::fs::write(&others, "{\"tokens\":[1,1,1,1]}\n{\"tokens\":[2,2,2,2]}\n").unwrap();
    let (base, members) = (base(), home.path().join("records.jsonl"));
    let audit = |tuned: &Path| {
        let args = [
            "audit",
            "--base",
            at(&base),
            "--tuned",
            at(tuned),
            "--members",
            at(&members),
            "--nonmembers",
            at(&others),
        ];
        verb(&args)
    };
    let output = audit(&one);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::copy(two.join("privacy.json"), one.join("privacy.json")).unwrap();
    let said = String::from_utf8_lossy(&audit(&one).stderr).into_owned();
    assert!(said.contains("privacy.json") && said.contains("is not of the model beside it"), "{said}");
}

#[test]
fn a_statement_of_version_1_is_checked_by_its_own_rules() {
    let home = tempfile::tempdir().unwrap();
    let embedded = Path::new("embedded");
    for name in ["bit", "rr", "gaussian", "exact"] {
        let (from, dir) = (golden(name), home.path().join(name));
        let path = from.join("transcript.json");
        let transcript = Transcript::from_json(&std::fs::read_to_string(&path).unwrap(), &path).unwrap();
        let base = checkpoint::load("embedded").unwrap();
        let tuned = replay(base.weights.clone(), &transcript, |_| {}).unwrap();
        ferret::method::Record::Ferret(transcript.clone()).save(&dir, &base, &tuned).unwrap();
        for file in ["privacy.json", "PRIVACY.md"] {
            std::fs::copy(from.join(file), dir.join(file)).unwrap();
        }
        let found = verify_against(&dir, embedded).unwrap();
        assert_eq!(found["statement"], 1, "{found}");
        assert!(found["not_bound"].to_string().contains("does not name its model"), "{found}");
        for (field, less) in [("nats_charged", json!(0.001)), ("assumptions", json!(["perfectly private"]))] {
            restate(&dir, |s| s[field] = less);
            assert!(verify_against(&dir, embedded).unwrap_err().contains("not the statement of this run"));
            std::fs::copy(from.join("privacy.json"), dir.join("privacy.json")).unwrap();
        }
    }
    let read = |file: &str| std::fs::read_to_string(golden("dpsgd").join(file)).unwrap();
    let (record, stated) =
        (Record::from_json(&read("run.json")).unwrap(), Statement::from_json(&read("privacy.json")).unwrap());
    let layout = checkpoint::load("embedded").unwrap().weights.layout;
    let made = record.restate(&layout, &stated).unwrap();
    assert_eq!(stated.differences(&made, &[]), Vec::<String>::new());
    assert_eq!(stated.to_markdown(), read("PRIVACY.md"));
    let mut less = stated.clone();
    less.claims.truncate(1);
    assert!(!less.differences(&made, &[]).is_empty());
}

#[test]
fn what_no_one_can_check_is_printed() {
    let home = tempfile::tempdir().unwrap();
    let dir = train(home.path(), "run", &RR);
    let output = verb(&["verify", at(&dir), "--base", at(&base()), "--quiet"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for sentence in [
        "what no one can check afterwards",
        "that batches were drawn, and that bits were flipped,",
        "no other run used them",
        "that a record was a line of the data, as privacy.json says",
        "the statement (version 3) is the one that settings and releases lead to",
        "log.jsonl is not the base model's",
    ] {
        assert!(said.contains(sentence), "{sentence:?} is missing: {said}");
    }
    let page = std::fs::read_to_string(dir.join("PRIVACY.md")).unwrap();
    for sentence in [
        "nats of mutual information with a record, given all other records; copies add up",
        "one record replaced by an empty one",
        "This statement covers one run",
        "the number of steps T are public",
        "Form and rules: version 3",
    ] {
        assert!(page.contains(sentence), "{sentence:?} is missing: {page}");
    }
}
