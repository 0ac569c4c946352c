//! Records in .zst and Parquet files, by the feature `formats`. The files were written by zstd's and Arrow's own libraries (tests/fixtures/make_formats.py).
#![cfg(feature = "formats")]

use ferret::data::{read_at_most, read_text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats").join(name)
}

fn parsed(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn refused(path: &Path, most: u64, says: &str) {
    let error = read_at_most(path, most).unwrap_err().to_string();
    assert!(error.contains(says), "{}: {error}", path.display());
    assert!(!error.contains("Marlow") && error.lines().count() == 1, "{error}");
}

const PLENTY: u64 = 1 << 30;

#[test]
fn packed_lines_are_the_lines() {
    // Two frames with checksums, and one between them that holds nothing of the text.
    assert_eq!(read_text(&file("records.jsonl.zst")).unwrap(), read_text(&file("records.jsonl")).unwrap());
}

#[test]
fn tables_are_the_records() {
    let records = parsed(&read_text(&file("records.jsonl")).unwrap());
    for name in ["snappy", "gzip", "lz4", "none", "pages2"] {
        // The column with pictures is not looked at.
        assert_eq!(parsed(&read_text(&file(&format!("{name}.parquet"))).unwrap()), records, "{name}");
    }
    let mixed = parsed(&read_text(&file("mixed.jsonl")).unwrap());
    assert_eq!(parsed(&read_text(&file("mixed.parquet")).unwrap()), mixed);
}

#[test]
fn what_cannot_be_read_is_told_in_a_sentence_that_quotes_nothing() {
    for (name, says) in [
        ("zstd.parquet", "the column prompt is packed by zstd"),
        ("brotli.parquet", "packed by brotli"),
        ("delta.parquet", "the column prompt is written by deltas"),
        ("strange.parquet", "none of the columns"),
        ("hole.parquet", "row 2 is empty"),
        ("bytes.parquet", "row 1 holds a value"),
    ] {
        refused(&file(name), PLENTY, says);
    }
}

#[test]
fn bombs_are_refused_before_they_are_unfolded() {
    let most = 1 << 20;
    for name in ["bomb.jsonl.zst", "bomb.parquet"] {
        assert!(std::fs::metadata(file(name)).unwrap().len() < 10_000);
        refused(&file(name), most, "unfolds to more than 1048576 bytes");
    }
    // Exactly as much as allowed is allowed.
    let whole = read_text(&file("records.jsonl")).unwrap().len() as u64;
    assert!(read_at_most(&file("records.jsonl.zst"), whole).is_ok());
    refused(&file("records.jsonl.zst"), whole - 1, "unfolds to more than");
}

/// Cut anywhere or with a byte changed, a file is refused by one sentence or read as something: no panic, and nothing of the records is said.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["records.jsonl.zst", "snappy.parquet", "mixed.parquet", "lz4.parquet"] {
        let whole = std::fs::read(file(name)).unwrap();
        let path = dir.path().join(name);
        let mut refusals = 0;
        let mut try_with = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            if let Err(error) = read_at_most(&path, 1 << 24) {
                let error = error.to_string();
                assert!(!error.contains("Marlow") && error.lines().count() == 1, "{name}: {error}");
                refusals += 1;
            }
        };
        for cut in (1..whole.len()).step_by(7) {
            try_with(&whole[..cut]);
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
            try_with(&bytes);
        }
        assert!(refusals > whole.len() / 7, "{name}: only {refusals} of {} were refused", whole.len());
    }
    // A frame cut between its blocks and its checksum, or whose checksum is another's, is not whole.
    let whole = std::fs::read(file("records.jsonl.zst")).unwrap();
    for bytes in
        [whole[..whole.len() - 4].to_vec(), [&whole[..whole.len() - 1], &[whole[whole.len() - 1] ^ 1]].concat()]
    {
        let path = dir.path().join("sum.jsonl.zst");
        std::fs::write(&path, bytes).unwrap();
        refused(&path, PLENTY, "no whole zstd file");
    }
}

#[test]
fn the_program_trains_on_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    for name in ["records.jsonl", "records.jsonl.zst", "snappy.parquet"] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferret"))
            .args(["eval", "--model", "embedded", "--json", "-q", "--data"])
            .arg(file(name))
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        losses.push(serde_json::from_slice::<Value>(&output.stdout).unwrap()["loss"].as_f64().unwrap());
    }
    assert!(losses[1..].iter().all(|loss| *loss == losses[0]), "{losses:?}");
}
