//! Broken checkpoints, configs and tokenizers, given to the program: one helpful sentence, a non-zero exit, no panic,
//! nothing written.

use crate::io_support::*;
use serde_json::{Value, json};
use std::path::Path;

/// The verbs that read a checkpoint, and how each is called on the folder "model" and the records "good.jsonl".
const VERBS: &[(&str, &[&str])] = &[
    ("inspect", &["inspect", "--model", "model"]),
    ("inspect --json", &["inspect", "--model", "model", "--json"]),
    ("eval", &["eval", "--model", "model", "--data", "good.jsonl"]),
    ("grad", &["grad", "--model", "model", "--data", "good.jsonl", "--out", "grads.safetensors"]),
    ("generate", &["generate", "--model", "model", "--prompt-tokens", "1,2", "-n", "2"]),
];

pub const GOOD: &str = "{\"tokens\":[1,2,3]}\n";

type Break = fn(&Path);

fn weights(model: &Path) -> std::path::PathBuf {
    model.join("model.safetensors")
}

/// Change the bytes of the weights.
fn bytes(model: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut all = std::fs::read(weights(model)).unwrap();
    change(&mut all);
    std::fs::write(weights(model), all).unwrap();
}

/// Change the header of the weights.
fn header(model: &Path, change: impl FnOnce(&mut Value)) {
    let (mut head, data) = split(&weights(model));
    change(&mut head);
    join(&weights(model), &head, &data);
}

fn rename(head: &mut Value, from: &str, to: &str) {
    let map = head.as_object_mut().unwrap();
    let entry = map.remove(from).unwrap();
    map.insert(to.into(), entry);
}

/// Put `value` over the first scalar of the tensor `name`.
fn poke(model: &Path, name: &str, value: f32) {
    let (head, mut data) = split(&weights(model));
    let at = head[name]["data_offsets"][0].as_u64().unwrap() as usize;
    data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    join(&weights(model), &head, &data);
}

/// Change `config.json`.
fn config(model: &Path, key: &str, value: Value) {
    let path = model.join("config.json");
    let mut all: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    all[key] = value;
    std::fs::write(path, all.to_string()).unwrap();
}

fn replace(model: &Path, name: &str, content: &[u8]) {
    std::fs::write(model.join(name), content).unwrap();
}

/// `model.safetensors` as the only shard of an index.
fn shard(model: &Path, index: &str) {
    std::fs::rename(weights(model), model.join("a.safetensors")).unwrap();
    replace(model, "model.safetensors.index.json", index.as_bytes());
}

const QKV: &str = "transformer.h.1.attn.c_attn.weight";

const CASES: &[(&str, Break, &[&str])] = &[
    ("no folder", |m| std::fs::remove_dir_all(m).unwrap(), &["model", "HF_HUB_OFFLINE"]),
    (
        "an empty folder",
        |m| {
            std::fs::remove_dir_all(m).unwrap();
            std::fs::create_dir(m).unwrap()
        },
        &["has no config.json"],
    ),
    (
        "a file for a folder",
        |m| {
            std::fs::remove_dir_all(m).unwrap();
            std::fs::write(m, "x").unwrap()
        },
        &["is a file", "folder is expected"],
    ),
    // Weights.
    ("no weights", |m| std::fs::remove_file(weights(m)).unwrap(), &["neither model.safetensors nor"]),
    (
        "PyTorch weights only",
        |m| std::fs::rename(weights(m), m.join("pytorch_model.bin")).unwrap(),
        &["pytorch_model.bin", "safe_serialization"],
    ),
    (
        "a folder for weights",
        |m| {
            std::fs::remove_file(weights(m)).unwrap();
            std::fs::create_dir(weights(m)).unwrap()
        },
        &["model.safetensors: is a folder"],
    ),
    ("empty weights", |m| replace(m, "model.safetensors", b""), &["model.safetensors: is empty"]),
    ("five bytes", |m| replace(m, "model.safetensors", b"12345"), &["has 5 bytes"]),
    (
        "cut in the data",
        |m| bytes(m, |b| b.truncate(b.len() - 1000)),
        &["announces 118912 bytes of tensors, but 117912 follow", "cut off"],
    ),
    ("cut in the header", |m| bytes(m, |b| b.truncate(500)), &["but the file has 500", "cut off"]),
    ("something after the data", |m| bytes(m, |b| b.extend([0; 8])), &["but 118920 follow"]),
    (
        "a header of 2^60 bytes",
        |m| bytes(m, |b| b[..8].copy_from_slice(&(1u64 << 60).to_le_bytes())),
        &["header of 1152921504606846976 bytes"],
    ),
    ("a header of 2^64 - 1 bytes", |m| bytes(m, |b| b[..8].fill(0xFF)), &["header of 18446744073709551615 bytes"]),
    ("a header that is no JSON", |m| bytes(m, |b| b[8] = b'['), &["not a valid safetensors file"]),
    ("a header that is no UTF-8", |m| bytes(m, |b| b[12] = 0xFF), &["not a valid safetensors file", "UTF-8"]),
    (
        "a text file",
        |m| replace(m, "model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        &["cut off, or no safetensors file"],
    ),
    (
        "a wrong dtype",
        |m| header(m, |h| h[QKV]["dtype"] = json!("I32")),
        &["h.1.attn.c_attn.weight is stored as I32", "F32, F16 and BF16"],
    ),
    ("an unknown dtype", |m| header(m, |h| h[QKV]["dtype"] = json!("Q4")), &["not a valid safetensors file"]),
    (
        "a wrong shape",
        |m| header(m, |h| h[QKV]["shape"] = json!([96, 32])),
        &["h.1.attn.c_attn.weight is [96, 32], config.json says [32, 96]: do the two files belong together?"],
    ),
    ("a shape that overflows", |m| header(m, |h| h[QKV]["shape"] = json!([1u64 << 40, 1u64 << 40])), &["overflow"]),
    ("a shape that lies", |m| header(m, |h| h[QKV]["shape"] = json!([32, 97])), &["not a valid safetensors file"]),
    (
        "offsets that overlap",
        |m| header(m, |h| h[QKV]["data_offsets"] = json!([0, 12288])),
        &["not a valid safetensors file"],
    ),
    (
        "a tensor missing",
        |m| header(m, |h| rename(h, QKV, "transformer.h.1.attn.bias")),
        &["has no h.1.attn.c_attn.weight"],
    ),
    (
        "a tensor too many",
        |m| header(m, |h| rename(h, QKV, "transformer.h.1.attn.rotary")),
        &["transformer.h.1.attn.rotary is no tensor of the model"],
    ),
    ("a tensor twice", |m| header(m, |h| rename(h, QKV, "h.0.attn.c_attn.weight")), &["same tensor"]),
    ("a NaN", |m| poke(m, QKV, f32::NAN), &["h.1.attn.c_attn.weight holds NaN at index 0"]),
    ("an infinity", |m| poke(m, QKV, f32::NEG_INFINITY), &["holds -inf at index 0"]),
    (
        "a head for a tied model",
        |m| {
            let (mut head, mut data) = split(&weights(m));
            let end = data.len();
            data.extend(vec![0; 4 * 101 * 32]);
            head["lm_head.weight"] = json!({"dtype": "F32", "shape": [101, 32], "data_offsets": [end, data.len()]});
            join(&weights(m), &head, &data);
        },
        &["lm_head.weight differs from wte.weight", "tie_word_embeddings"],
    ),
    (
        "no head for an untied model",
        |m| config(m, "tie_word_embeddings", json!(false)),
        &["has no lm_head.weight", "tie_word_embeddings"],
    ),
    (
        "a shard missing",
        |m| shard(m, r#"{"weight_map":{"wte.weight":"b.safetensors"}}"#),
        &["b.safetensors", "no such file"],
    ),
    ("an index without a map", |m| shard(m, "{}"), &["weight_map"]),
    ("an index that is no JSON", |m| shard(m, "{"), &["index.json: is not valid JSON"]),
    (
        "an index that leaves the folder",
        |m| shard(m, r#"{"weight_map":{"wte.weight":"../a.safetensors"}}"#),
        &["no file name"],
    ),
    // Config.
    ("no config", |m| std::fs::remove_file(m.join("config.json")).unwrap(), &["has no config.json"]),
    ("an empty config", |m| replace(m, "config.json", b""), &["config.json: is empty"]),
    (
        "a config that is no JSON",
        |m| replace(m, "config.json", b"{\"n_embd\": 32,"),
        &["config.json: is not valid JSON"],
    ),
    ("a config that is a list", |m| replace(m, "config.json", b"[1]"), &["no JSON object"]),
    (
        "a config that is no UTF-8",
        |m| replace(m, "config.json", b"{\"a\":\"\xff\"}"),
        &["config.json: line 1 is not valid UTF-8"],
    ),
    (
        "a folder for the config",
        |m| {
            std::fs::remove_file(m.join("config.json")).unwrap();
            std::fs::create_dir(m.join("config.json")).unwrap()
        },
        &["config.json: is a folder"],
    ),
    (
        "a deeply nested config",
        |m| replace(m, "config.json", "[".repeat(100_000).as_bytes()),
        &["not valid JSON", "recursion"],
    ),
    ("another family", |m| config(m, "model_type", json!("mamba")), &["model_type is \"mamba\"", "gpt2"]),
    ("no family", |m| replace(m, "config.json", b"{}"), &["has no model_type"]),
    ("another activation", |m| config(m, "activation_function", json!("relu")), &["activation_function \"relu\""]),
    ("quantised weights", |m| config(m, "quantization_config", json!({"bits": 4})), &["quantization_config"]),
    ("cross-attention", |m| config(m, "add_cross_attention", json!(true)), &["add_cross_attention"]),
    ("heads that do not divide", |m| config(m, "n_head", json!(5)), &["32 is not a multiple of n_head 5"]),
    ("no heads", |m| config(m, "n_head", json!(0)), &["n_head is 0"]),
    ("a negative size", |m| config(m, "n_embd", json!(-32)), &["n_embd is -32"]),
    ("a size in words", |m| config(m, "n_embd", json!("32")), &["n_embd is \"32\""]),
    ("2^60 layers", |m| config(m, "n_layer", json!(1u64 << 60)), &["n_layer is 1152921504606846976"]),
    (
        "a huge hidden layer",
        |m| config(m, "n_inner", json!(1 << 24)),
        &["c_fc.weight is [32, 128], config.json says [32, 16777216]"],
    ),
    (
        "a huge vocabulary",
        |m| config(m, "vocab_size", json!(1 << 24)),
        &["wte.weight is [101, 32], config.json says [16777216, 32]"],
    ),
    (
        "another width",
        |m| config(m, "n_embd", json!(64)),
        &["is [101, 32], config.json says [101, 64]: do the two files belong together?"],
    ),
    ("another depth", |m| config(m, "n_layer", json!(3)), &["has no h.2.ln_1.weight (and 11 more)"]),
    // Tokenizer.
    ("a tokenizer that is no JSON", |m| replace(m, "tokenizer.json", b"{"), &["tokenizer.json: is not a tokenizer"]),
    (
        "a tokenizer that is no tokenizer",
        |m| replace(m, "tokenizer.json", b"{\"a\":1}"),
        &["tokenizer.json: is not a tokenizer"],
    ),
    ("an empty tokenizer", |m| replace(m, "tokenizer.json", b""), &["tokenizer.json: is empty"]),
    (
        "a tokenizer that is no UTF-8",
        |m| replace(m, "tokenizer.json", b"\xff"),
        &["tokenizer.json: line 1 is not valid UTF-8"],
    ),
    (
        "a folder for the tokenizer",
        |m| std::fs::create_dir(m.join("tokenizer.json")).unwrap(),
        &["tokenizer.json: is a folder"],
    ),
    ("a vocabulary without merges", |m| replace(m, "vocab.json", b"{\"a\":0}"), &["no merges.txt"]),
    ("merges without a vocabulary", |m| replace(m, "merges.txt", b"a b\n"), &["no vocab.json"]),
    (
        "a vocabulary of strings",
        |m| {
            replace(m, "vocab.json", b"{\"a\":\"0\"}");
            replace(m, "merges.txt", b"")
        },
        &["vocab.json: is not a JSON object from token to id"],
    ),
    (
        "an id above 2^32",
        |m| {
            replace(m, "vocab.json", b"{\"a\":4294967296}");
            replace(m, "merges.txt", b"")
        },
        &["vocab.json: is not a JSON object"],
    ),
    (
        "an empty vocabulary",
        |m| {
            replace(m, "vocab.json", b"{}");
            replace(m, "merges.txt", b"")
        },
        &["vocab.json: has an empty vocabulary"],
    ),
    (
        "merges of three",
        |m| {
            replace(m, "vocab.json", b"{\"a\":0}");
            replace(m, "merges.txt", b"a a a\n")
        },
        &["merges.txt: line 1: two pieces"],
    ),
    (
        "merges of strangers",
        |m| {
            replace(m, "vocab.json", b"{\"a\":0}");
            replace(m, "merges.txt", b"#version: 0.2\na b\n")
        },
        &["merges.txt: line 2: \"b\" is not in vocab.json"],
    ),
    ("a tokenizer larger than the model", byte_tokenizer, &["largest token id is 258", "vocabulary has 101 tokens"]),
];

#[test]
fn broken_checkpoints_are_refused_in_a_sentence() {
    for (what, make, says) in CASES {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        copy_tiny(&model);
        make(&model);
        std::fs::write(folder.path().join("good.jsonl"), GOOD).unwrap();
        let before = listing(folder.path());
        for (verb, args) in VERBS {
            let output = ferret(folder.path()).args(*args).output().unwrap();
            assert_refused(&format!("{verb}, {what}"), &output, says);
        }
        assert!(listing(folder.path()) == before, "{what}: something was written");
    }
}

#[test]
fn the_unbroken_checkpoint_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    copy_tiny(&folder.path().join("model"));
    std::fs::write(folder.path().join("good.jsonl"), GOOD).unwrap();
    for (verb, args) in VERBS {
        let output = ferret(folder.path()).args(*args).output().unwrap();
        assert!(output.status.success(), "{verb}: {}", stderr(&output));
    }
}

#[test]
fn bad_data_is_refused_in_a_sentence() {
    for case in bad_data::CASES {
        let folder = tempfile::tempdir().unwrap();
        copy_tiny(&folder.path().join("model"));
        let data = case.write(folder.path());
        let before = listing(folder.path());
        for (verb, more) in [("eval", &[][..]), ("grad", &["--out", "grads.safetensors"])] {
            let output = ferret(folder.path())
                .args([verb, "--model", "model", "--data"])
                .arg(&data)
                .args(more)
                .output()
                .unwrap();
            assert_refused(&format!("{verb}, {}", case.what), &output, case.says);
        }
        assert!(listing(folder.path()) == before, "{}: something was written", case.what);
    }
}

#[test]
fn overflowed_weights_are_a_failure_and_no_misuse() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy_tiny(&model);
    // What the last norm gives, and so every logit, is beyond f32.
    let (head, mut data) = split(&weights(&model));
    let at = |i: usize| head["transformer.ln_f.weight"]["data_offsets"][i].as_u64().unwrap() as usize;
    data[at(0)..at(1)].chunks_exact_mut(4).for_each(|scalar| scalar.copy_from_slice(&3e38f32.to_le_bytes()));
    join(&weights(&model), &head, &data);
    std::fs::write(folder.path().join("good.jsonl"), GOOD).unwrap();
    let before = listing(folder.path());
    for (verb, args) in VERBS.iter().filter(|v| !v.0.starts_with("inspect")) {
        let output = ferret(folder.path()).args(*args).output().unwrap();
        assert_refused(verb, &output, &["overflowed"]);
        assert_eq!(output.status.code(), Some(1), "{verb}");
    }
    assert!(listing(folder.path()) == before);
}
