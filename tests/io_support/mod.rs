//! What the tests of files, hub and data share.
#![allow(dead_code)]

pub mod bad_data;
pub mod grid;
pub mod kills;

use crate::common::{Random, byte_vocabulary};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A checkpoint of GPT-2's kind, small enough for anything.
pub const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gpt2_tiny");

pub fn tiny() -> PathBuf {
    TINY.into()
}

/// The folder of real models and data, or none, said aloud.
pub fn shared() -> Option<PathBuf> {
    let found = std::env::var_os("FERRET_SHARED").map(PathBuf::from);
    if found.is_none() {
        println!("skipped: FERRET_SHARED is not set");
    }
    found
}

/// A copy of the tiny checkpoint that may be broken.
pub fn copy_tiny(to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny().join(name), to.join(name)).unwrap();
    }
}

/// 200 records of tokens, of different lengths; those of another stride share none with them.
pub fn records(dir: &Path, name: &str, seed: u64, stride: usize) -> PathBuf {
    let mut random = Random::new(seed);
    let record = |_| {
        let (first, len) = (random.below(100), 2 + random.below(20));
        json!({"tokens": (0..len).map(|i| (first + stride * i) % 101).collect::<Vec<_>>()}).to_string()
    };
    let path = dir.join(name);
    std::fs::write(&path, (0..200).map(record).collect::<Vec<_>>().join("\n")).unwrap();
    path
}

/// The program, in `cwd`, kept away from the network and from the caller's hub settings.
pub fn ferret(cwd: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
    command.current_dir(cwd).env("HF_HUB_OFFLINE", "1").env("HF_HOME", cwd.join("no-such-home"));
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_ENDPOINT"] {
        command.env_remove(name);
    }
    command
}

/// The program, with these arguments.
pub fn verb(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferret")).args(args).output().unwrap()
}

/// The JSON that the program printed.
pub fn ok(output: Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{}", String::from_utf8_lossy(&output.stdout), stderr(&output)))
}

/// That the program refused, with this sentence.
pub fn says(output: &Output, sentence: &str) {
    let text = stderr(output);
    assert!(!output.status.success() && text.contains(sentence), "expected {sentence:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A failure as it should be: one sentence on stderr, nothing on stdout, no panic.
pub fn assert_refused(what: &str, output: &Output, says: &[&str]) {
    let text = stderr(output);
    assert!(!output.status.success(), "{what}: succeeded");
    assert!(output.status.code().is_some_and(|c| c == 1 || c == 2), "{what}: {:?}\n{text}", output.status);
    assert!(!text.contains("panicked"), "{what}: {text}");
    assert!(output.stdout.is_empty(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(text.trim_end().lines().count(), 1, "{what}: not one sentence: {text}");
    assert!(text.starts_with("ferret: "), "{what}: {text}");
    for says in says {
        assert!(text.contains(says), "{what}: {says:?} is not in: {text}");
    }
}

/// Names and contents of a folder, to see that nothing was written.
pub fn listing(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(listing(&path));
            all.push((path, Vec::new()));
        } else {
            let content = std::fs::read(&path).unwrap();
            all.push((path, content));
        }
    }
    all.sort();
    all
}

/// Header (JSON) and data of a safetensors file.
pub fn split(file: &Path) -> (serde_json::Value, Vec<u8>) {
    let bytes = std::fs::read(file).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

pub fn join(file: &Path, header: &serde_json::Value, data: &[u8]) {
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(file, bytes).unwrap();
}

/// Byte-level BPE with one entry a byte (id = byte), two merges ("he" 256, "hel" 257) and `<|endoftext|>` 258, as
/// vocab.json and merges.txt.
pub fn byte_tokenizer(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let mut vocab = byte_vocabulary();
    vocab.insert("he".into(), 256.into());
    vocab.insert("hel".into(), 257.into());
    vocab.insert("<|endoftext|>".into(), 258.into());
    std::fs::write(folder.join("vocab.json"), serde_json::Value::Object(vocab).to_string()).unwrap();
    std::fs::write(folder.join("merges.txt"), "#version: 0.2\nh e\nhe l\n").unwrap();
}
