//! Requests that make no sense get a sentence, and nothing is written.

use crate::bad_input::GOOD;
use crate::io_support::*;
#[cfg(target_os = "linux")]
use std::path::Path;

#[test]
fn bad_requests_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    copy_tiny(&folder.path().join("model"));
    std::fs::write(folder.path().join("good.jsonl"), GOOD).unwrap();
    let long = vec!["1"; 33].join(",");
    let before = listing(folder.path());
    for (args, says) in [
        (vec!["generate", "--prompt-tokens", "1,101"], "101"),
        (vec!["generate", "--prompt-tokens", &long], "32"),
        (vec!["generate", "--prompt", "hello"], "no tokenizer"),
        (vec!["generate", "--prompt-tokens", "1", "--temperature=-1"], "temperature"),
        (vec!["generate", "--prompt-tokens", "1", "--temperature", "nan"], "temperature"),
        (vec!["generate", "--prompt-tokens", "1", "--top-p", "0"], "top-p"),
        (vec!["eval", "--data", "good.jsonl", "--stride", "0"], "stride"),
        (vec!["grad", "--data", "good.jsonl", "--out", "no/such/folder/g.safetensors"], "no/such/folder"),
        (vec!["grad", "--data", "good.jsonl", "--out", "model"], "model"),
        (vec!["grad", "--data", "good.jsonl", "--out", "good.jsonl"], "good.jsonl: exists"),
        (vec!["grad", "--data", "good.jsonl", "--out", "model/../good.jsonl"], "nothing is overwritten"),
        (vec!["eval", "--data", "good.jsonl", "--stride", "4"], "plain text"),
        (vec!["inspect", "--show-groups", "--method", "bogus", "--groups", "3"], "--method bogus has no groups"),
        (vec!["inspect", "--show-groups", "--method", "bogus", "--bucket", "3"], "ferret-eighth"),
        (vec!["inspect", "--show-groups", "--method", "dpsgd"], "--method dpsgd has no groups"),
        (vec!["inspect", "--show-groups", "--method", "ferret"], "needs --groups N"),
        (vec!["inspect", "--show-groups", "--method", "ferret-2", "--groups", "3"], "already"),
    ] {
        let output = ferret(folder.path()).args(&args).args(["--model", "model"]).output().unwrap();
        assert_refused(&format!("{args:?}"), &output, &[says]);
    }
    assert!(listing(folder.path()) == before);
}

#[test]
fn the_report_is_refused_before_any_training() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("ferret-report");
    std::fs::write(&report, "mine").unwrap();
    let output = ferret(folder.path()).output().unwrap();
    assert_refused("a file for the report's folder", &output, &["ferret-report: is a file", "out of the way"]);
    assert_eq!(std::fs::read(&report).unwrap(), b"mine");
    std::fs::remove_file(&report).unwrap();
    std::fs::create_dir_all(report.join("index.html")).unwrap();
    let output = ferret(folder.path()).output().unwrap();
    assert_refused("a folder for the report's page", &output, &["index.html: is a folder", "out of the way"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_place_that_cannot_be_written_is_refused_before_any_training() {
    // Nobody makes a folder there, whoever they are.
    let output = ferret(Path::new("/proc")).output().unwrap();
    assert_refused("/proc", &output, &["ferret-report: cannot be written", "work in a folder"]);
}

#[test]
fn planting_writes_both_files_or_none() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.jsonl"), GOOD).unwrap();
    let before = listing(folder.path());
    // Too long for any file system, which is found when it is written.
    let long = "c".repeat(300);
    for (out, canaries, says) in [
        ("p.jsonl", "p.jsonl", "the same file"),
        ("p.jsonl", "./p.jsonl", "the same file"),
        ("good.jsonl", "c.json", "good.jsonl: exists"),
        ("p.jsonl", "good.jsonl", "good.jsonl: exists"),
        ("p.jsonl", "no/folder/c.json", "no folder no/folder"),
        ("p.jsonl", &long, "ccc"),
    ] {
        let output = ferret(folder.path())
            .args(["audit", "plant", "--data", "good.jsonl", "--format", "Key ####", "--frequencies", "1"])
            .args(["--out", out, "--canaries", canaries])
            .output()
            .unwrap();
        assert_refused(&format!("{out}, {canaries}"), &output, &[says]);
        assert!(listing(folder.path()) == before, "{out}, {canaries}: something was written");
    }
}

#[test]
fn init_refuses_bad_requests_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path();
    std::fs::create_dir(cwd.join("full")).unwrap();
    std::fs::write(cwd.join("full/file"), "x").unwrap();
    std::fs::write(cwd.join("mamba.json"), r#"{"model_type":"mamba"}"#).unwrap();
    std::fs::write(
        cwd.join("big.json"),
        r#"{"model_type":"gpt2","n_embd":1048576,"n_head":1,"n_layer":1,"vocab_size":1048576}"#,
    )
    .unwrap();
    byte_tokenizer(&cwd.join("bytes"));
    std::fs::write(
        cwd.join("small.json"),
        r#"{"model_type":"gpt2","n_embd":8,"n_head":2,"n_layer":1,"vocab_size":10}"#,
    )
    .unwrap();
    let before = listing(cwd);
    for (args, says) in [
        (vec!["--preset", "tiny", "--out", "full"], "is not empty"),
        (vec!["--preset", "tiny", "--out", "full/file"], "is a file"),
        (vec!["--config", "mamba.json", "--out", "new"], "\"mamba\""),
        (vec!["--config", "big.json", "--out", "new"], "parameters"),
        (vec!["--config", "gone.json", "--out", "new"], "no such file"),
        (vec!["--preset", "tiny", "--tokenizer", "full", "--out", "new"], "has no tokenizer.json"),
        (vec!["--config", "small.json", "--tokenizer", "bytes", "--out", "new"], "largest token id is 258"),
    ] {
        let output = ferret(cwd).arg("init").args(&args).output().unwrap();
        assert_refused(&format!("{args:?}"), &output, &[says]);
    }
    assert!(listing(cwd) == before);
}
