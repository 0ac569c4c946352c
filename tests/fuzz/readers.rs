//! One test a reader.

use super::mutate;
use super::{CASES, fuzz, shown};
use crate::common::byte_vocabulary;
use ferret::backend::Cpu;
use ferret::data::{Example, LoadOptions, Loss, Unit, load_examples};
use ferret::measure::canary::Planting;
use ferret::method::dense;
use ferret::method::{Run, Task};
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::model::init::{self, Preset};
use ferret::model::tokenizer::Tokenizer;
use ferret::model::{Config, Weights};
use ferret::rng::Secret;
use ferret::study::grid::Grid;
use serde_json::{Value, json};
use std::path::Path;

fn small() -> Config {
    let (heads, kv_heads, head_width) = (2, 2, 4);
    Config {
        vocab: 23,
        positions: 16,
        width: 8,
        layers: 2,
        heads,
        kv_heads,
        head_width,
        inner: 16,
        ..Preset::Tiny.config()
    }
}

pub fn model() -> Weights {
    init::random(small(), 1).unwrap()
}

fn folder(weights: &Weights) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    checkpoint::save(&home.path().join("model"), weights, &SaveOptions::fresh(Dtype::F32)).unwrap();
    home
}

/// Every other case blind, the rest of a document's values.
pub fn document(seed: &str, case: u64) -> Vec<u8> {
    match case % 2 {
        0 => mutate::bytes(seed.as_bytes(), case),
        _ => mutate::json(&serde_json::from_str(seed).unwrap(), case).to_string().into_bytes(),
    }
}

#[test]
fn configs() {
    let home = folder(&model());
    let dir = home.path().join("model");
    let path = dir.join("config.json");
    let seed = std::fs::read_to_string(&path).unwrap();
    let taken = fuzz(
        "config.json",
        CASES,
        |case| document(&seed, case),
        |bytes| shown(bytes),
        |bytes| {
            std::fs::write(&path, bytes).unwrap();
            let Ok(config) = checkpoint::read_config(dir.to_str().unwrap()) else { return Ok(false) };
            let Config { vocab, positions, width, layers, heads, inner, .. } = config;
            if [vocab, positions, width, layers, heads, inner].contains(&0) {
                return Err("a size of 0".into());
            }
            if !(config.norm_epsilon > 0.0 && config.norm_epsilon.is_finite() && config.init_std.is_finite()) {
                return Err("a number that is none".into());
            }
            // A model whose shapes are the file's is taken, any other refused before its size is believed.
            let same = [vocab, positions, width, layers, inner] == [23, 16, 8, 2, 16] && config.tied;
            match checkpoint::load_folder(&dir) {
                Ok(found) if found.weights.config == config && same => Ok(true),
                Ok(_) => Err("weights of other shapes were taken".into()),
                Err(_) if same => Err("the right shapes were refused".into()),
                Err(_) => Ok(true),
            }
        },
    );
    assert!(taken > 50, "{taken}: the mutations are too wild to say anything");
}

#[test]
fn safetensors_headers() {
    let weights = model();
    let home = folder(&weights);
    let dir = home.path().join("model");
    let path = dir.join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let (header, data) = (std::str::from_utf8(&whole[8..8 + length]).unwrap(), &whole[8 + length..]);
    let hash = checkpoint::tensors_sha256(&weights);
    let taken = fuzz(
        "model.safetensors",
        CASES,
        |case| {
            // The announced length as it was, as it should be, or damaged too.
            let changed = document(header, case);
            let announced = if case % 3 == 0 { length } else { changed.len() };
            let mut bytes = (announced as u64).to_le_bytes().to_vec();
            if case % 17 == 0 {
                bytes[(case / 17 % 8) as usize] ^= 1 << (case % 8);
            }
            bytes.extend(changed);
            bytes.extend(data);
            bytes
        },
        |bytes| shown(bytes),
        |bytes| {
            std::fs::write(&path, bytes).unwrap();
            match checkpoint::load_folder(&dir) {
                Err(_) => Ok(false),
                Ok(found) if checkpoint::tensors_sha256(&found.weights) == hash => Ok(true),
                Ok(_) => Err("other tensors were read out of the same data".into()),
            }
        },
    );
    assert!(taken > 10, "{taken}");
}

/// A byte-level tokenizer of 260 entries, as `tokenizer.json`.
fn tokenizer() -> String {
    let mut vocab = byte_vocabulary();
    vocab.insert("he".into(), 256.into());
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let added = json!({"id": 257, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true});
    let mut all = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [added]});
    all["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]});
    all["pre_tokenizer"] = byte_level.clone();
    all["post_processor"] = byte_level.clone();
    all["decoder"] = byte_level;
    all["model"] = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                          "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                          "vocab": vocab, "merges": [["h", "e"]]});
    all.to_string()
}

#[test]
fn tokenizers() {
    let seed = tokenizer();
    let text = "hello, he said: <|end|> é 12 \u{1F600}";
    assert_eq!(Tokenizer::from_text(&seed, Path::new("t")).unwrap().encode("he<|end|>").unwrap(), [256, 257]);
    let taken = fuzz(
        "tokenizer.json",
        CASES,
        |case| document(&seed, case),
        |bytes| shown(bytes),
        |bytes| {
            let Ok(content) = std::str::from_utf8(bytes) else { return Ok(false) };
            let Ok(found) = Tokenizer::from_text(content, Path::new("t")) else { return Ok(false) };
            if let Ok(ids) = found.encode(text) {
                if let Some(id) = ids.iter().find(|&&id| id > found.max_id()) {
                    return Err(format!("token {id} lies above the largest id {}", found.max_id()));
                }
                let _ = found.decode(&ids);
                let mut stream = found.stream();
                if ids.iter().all(|&id| stream.push(id).is_ok()) {
                    let _ = stream.finish();
                }
            }
            Ok(true)
        },
    );
    assert!(taken > 50, "{taken}");
}

#[test]
fn records() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.jsonl");
    let tokenizer = Tokenizer::from_text(&tokenizer(), Path::new("t")).unwrap();
    let seed = [
        r#"{"tokens":[1,2,3],"learn":[false,true,true],"user":"a"}"#,
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}],"user":2}"#,
        r#"{"prompt":"ab","response":"cd","user":"a"}"#,
        r#"{"instruction":"do","input":"it","output":"done","user":"b"}"#,
        r#"{"text":"hello","user":"\u00e9"}"#,
    ]
    .join("\n");
    let taken = fuzz(
        "records",
        CASES,
        |case| match case % 2 {
            0 => mutate::bytes(seed.as_bytes(), case),
            _ => {
                let lines: Vec<Value> = seed.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
                let at = (case / 2) as usize % lines.len();
                let change = |(i, line)| if i == at { mutate::json(line, case) } else { Value::clone(line) };
                lines.iter().enumerate().map(change).map(|l| l.to_string() + "\n").collect::<String>().into_bytes()
            }
        },
        |bytes| shown(bytes),
        |bytes| {
            std::fs::write(&path, bytes).unwrap();
            let unit = if bytes.len() % 2 == 0 { Unit::Record } else { Unit::User { most: Some(2) } };
            let options =
                LoadOptions { context: 12, vocab: 258, eos: Some(257), loss: Loss::Response, stride: None, unit };
            let Ok(found) = load_examples(&path, Some(&tokenizer), &options) else { return Ok(false) };
            for Example { ids, learn } in &found.examples {
                if ids.len() != learn.len() || ids.len() > 12 || learn.first() == Some(&true) {
                    return Err(format!("a malformed example: {ids:?} {learn:?}"));
                }
                if ids.iter().any(|&id| id >= 258) {
                    return Err("a token that the model does not have".into());
                }
            }
            // No line is passed over.
            let text = std::str::from_utf8(bytes).map_err(|_| "no UTF-8 was read")?;
            let lines = text.strip_prefix('\u{FEFF}').unwrap_or(text).trim_end().lines().count();
            if found.records().len() != lines {
                return Err(format!("{} records of {lines} lines", found.records().len()));
            }
            Ok(true)
        },
    );
    assert!(taken > 100, "{taken}");
}

#[test]
fn canary_lists() {
    for planting in
        [Planting::by_coins("Key @@##", 12, 3), Planting::at_frequencies("Unit {number}: ####", &[0, 2], 4, 3)]
    {
        let planting = planting.unwrap();
        let seed = serde_json::to_string_pretty(&planting).unwrap();
        fuzz(
            "canaries.json",
            CASES / 4,
            |case| document(&seed, case),
            |bytes| shown(bytes),
            |bytes| {
                let Ok(text) = std::str::from_utf8(bytes) else { return Ok(false) };
                let Ok(found) = Planting::from_json(text) else { return Ok(false) };
                let secrets = |p: &Planting| p.canaries.iter().map(|c| c.canary.text.clone()).collect::<Vec<_>>();
                let fewer = found.canaries.len() < planting.canaries.len();
                if secrets(&found)[..] != secrets(&planting)[..found.canaries.len().min(planting.canaries.len())] {
                    return Err("other secrets were accepted".into());
                }
                // Whoever says that no coins were flipped has no coins to be judged by.
                if planting.coin_flip && found.coin_flip && !fewer && found != planting {
                    return Err("other coins were accepted".into());
                }
                Ok(true)
            },
        );
    }
}

/// The state of an unfinished run with whole updates: the pointer, and the header of the tensors.
#[test]
fn states() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("dense");
    let weights = model();
    let records: Vec<Example> = (0..20).map(|i| Example::all(vec![i % 23, (i * 7) % 23])).collect();
    let secret = Secret::insecure(1);
    let settings = dense::Settings {
        records: 20,
        batch: 4,
        micro_batch: 4,
        weight_decay: 0.0,
        ..dense::Settings::usual(dense::Method::Nonprivate)
    };
    let task = Task::new(weights.clone(), settings, &secret, &records);
    let mut trainer = dense::Trainer::new(Cpu::<f32>::new(), task, None).unwrap();
    for _ in 0..3 {
        trainer.step().unwrap();
    }
    trainer.save(&root).unwrap();
    let mut saved = weights.clone();
    assert_eq!(dense::State::load(&root, &Default::default(), &mut saved).unwrap().unwrap().step, 3);
    let hash = checkpoint::tensors_sha256(&saved);
    let (pointer, tensors) = (root.join("current.json"), root.join("at-3-tensors.safetensors"));
    let named = std::fs::read_to_string(&pointer).unwrap();
    let whole = std::fs::read(&tensors).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&whole[8..8 + length]).unwrap();
    let secret_file = home.path().join("key.json");
    secret.save(&secret_file).unwrap();
    let key = std::fs::read_to_string(&secret_file).unwrap();
    fuzz(
        "state",
        CASES,
        |case| match case % 8 {
            0 => (&pointer, document(&named, case / 8)),
            1 | 2 => (&secret_file, document(&key, case / 8)),
            _ => {
                let changed = document(header, case);
                let mut bytes = (changed.len() as u64).to_le_bytes().to_vec();
                bytes.extend(changed);
                bytes.extend(&whole[8 + length..]);
                (&tensors, bytes)
            }
        },
        |(path, bytes)| format!("{}: {}", path.display(), shown(bytes)),
        |(path, bytes)| {
            let before = std::fs::read(path).unwrap();
            std::fs::write(path, bytes).unwrap();
            let mut found = weights.clone();
            let state = dense::State::load(&root, &Default::default(), &mut found);
            let loaded = Secret::load(&secret_file);
            std::fs::write(path, before).unwrap();
            match state {
                Ok(Some(state)) if *path != &secret_file => {
                    if state.step != 3 || checkpoint::tensors_sha256(&found) != hash {
                        return Err("another state was accepted".into());
                    }
                    Ok(true)
                }
                _ => Ok(*path == &secret_file && loaded.is_ok()),
            }
        },
    );
}

#[test]
fn grids() {
    let seeds = ["paper", "readings", "true-dp"].map(|name| Grid::open(name).unwrap().to_toml());
    let taken = fuzz(
        "grid.toml",
        CASES,
        |case| mutate::bytes(seeds[case as usize % 3].as_bytes(), case),
        |bytes| shown(bytes),
        |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return Ok(false) };
            let Ok(grid) = Grid::parse(text) else { return Ok(false) };
            if Grid::parse(&grid.to_toml()).as_ref() != Ok(&grid) {
                return Err(format!("it does not survive being written: {}", grid.to_toml()));
            }
            Ok(true)
        },
    );
    assert!(taken > 50, "{taken}");
}
