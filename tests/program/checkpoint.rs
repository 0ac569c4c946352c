//! Checkpoints read and written back, and the verbs `init` and `inspect` on good ones.

use crate::io_support::*;
use ferret::model::Weights;
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::path::Path;

fn load(path: &Path) -> checkpoint::Checkpoint {
    checkpoint::load(path.to_str().unwrap()).unwrap()
}

/// The tensors as the `safetensors` crate alone reads them.
fn plainly(file: &Path, strip: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(file).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut found: Vec<_> = all
        .iter()
        .map(|(name, view)| {
            let data = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            (name.strip_prefix(strip).unwrap_or(name).to_owned(), view.shape().to_vec(), data)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn ours(weights: &Weights) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let specs = weights.layout.specs().iter().zip(&weights.tensors);
    let mut found: Vec<_> = specs.map(|(s, t)| (s.name.clone(), s.shape.clone(), t.clone())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn the_fixture_is_read_as_it_is() {
    let read = load(&tiny());
    assert_eq!(ours(&read.weights), plainly(&tiny().join("model.safetensors"), "transformer."));
    assert!(read.prefixed && read.dtype == Dtype::F32 && read.notes.is_empty());
    assert_eq!(read.config_json, std::fs::read_to_string(tiny().join("config.json")).unwrap());
    assert_eq!(checkpoint::read_config(tiny().to_str().unwrap()).unwrap(), read.weights.config);
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    copy_tiny(&source);
    byte_tokenizer(&source);
    let read = load(&source);
    let hash = checkpoint::tensors_sha256(&read.weights);

    let copy = folder.path().join("copy");
    checkpoint::save(&copy, &read.weights, &read.save_options()).unwrap();
    for file in ["config.json", "vocab.json", "merges.txt"] {
        assert_eq!(std::fs::read(copy.join(file)).unwrap(), std::fs::read(source.join(file)).unwrap(), "{file}");
    }
    assert_eq!(plainly(&copy.join("model.safetensors"), ""), plainly(&source.join("model.safetensors"), ""));
    let (header, _) = split(&copy.join("model.safetensors"));
    assert_eq!(header["__metadata__"]["format"], "pt");
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 4, "a temporary file was left");

    // Without the prefix, from a config of our own, over the old one: the same tensors, the same hash.
    let options =
        SaveOptions { metadata: vec![("b".into(), "1".into()), ("a".into(), "2".into())], ..SaveOptions::default() };
    checkpoint::save(&copy, &read.weights, &options).unwrap();
    let again = load(&copy);
    assert!(!again.prefixed);
    assert_eq!(checkpoint::tensors_sha256(&again.weights), hash);
    let first = std::fs::read(copy.join("model.safetensors")).unwrap();
    checkpoint::save(&copy, &read.weights, &options).unwrap();
    assert_eq!(std::fs::read(copy.join("model.safetensors")).unwrap(), first, "same input, same bytes");
    let text = String::from_utf8_lossy(&first[..200]);
    assert!(text.contains(r#"{"format":"pt","b":"1","a":"2"}"#), "{text}");
}

#[test]
fn half_precision_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let read = load(&tiny());
    for (dtype, name, ulp) in [(Dtype::F16, "float16", 2.0f32.powi(-11)), (Dtype::Bf16, "bfloat16", 2.0f32.powi(-8))] {
        let dir = folder.path().join(name);
        checkpoint::save(&dir, &read.weights, &SaveOptions { dtype, ..read.save_options() }).unwrap();
        let back = load(&dir);
        assert_eq!(back.dtype, dtype);
        let config: serde_json::Value = serde_json::from_str(&back.config_json).unwrap();
        assert_eq!(config["dtype"], name, "a loader that trusts the config must not round twice");
        for (a, b) in read.weights.tensors.iter().flatten().zip(back.weights.tensors.iter().flatten()) {
            assert!((a - b).abs() <= ulp * a.abs() + 1e-7, "{name}: {a} became {b}");
        }
        // What was rounded once stays.
        let twice = folder.path().join(format!("{name}-2"));
        checkpoint::save(&twice, &back.weights, &back.save_options()).unwrap();
        assert_eq!(checkpoint::tensors_sha256(&load(&twice).weights), checkpoint::tensors_sha256(&back.weights));
    }
    let mut large = read.weights.clone();
    large.tensors[3][5] = 1e6;
    let dir = folder.path().join("large");
    let error = checkpoint::save(&dir, &large, &SaveOptions::fresh(Dtype::F16)).unwrap_err().to_string();
    assert!(error.contains("h.0.ln_1.bias holds 1000000") && !dir.exists(), "{error}");
}

#[test]
fn shards_masks_tied_heads_and_bare_names() {
    let folder = tempfile::tempdir().unwrap();
    let hash = checkpoint::tensors_sha256(&load(&tiny()).weights);
    let read = load(&tiny());
    let all: Vec<_> = read.weights.layout.specs().iter().zip(&read.weights.tensors).collect();
    let tensor = |i: usize| (all[i].0.name.clone(), all[i].0.shape.clone(), Cow::Borrowed(all[i].1.as_slice()));
    let mut first: Vec<checkpoint::Tensor<'_>> = (0..10).map(tensor).collect();
    let mut second: Vec<checkpoint::Tensor<'_>> = (10..all.len()).map(tensor).collect();
    first.push(("h.0.attn.bias".into(), vec![1, 1, 2, 2], Cow::Owned(vec![1.0, 0.0, 1.0, 1.0])));
    second.push(("h.1.attn.masked_bias".into(), vec![], Cow::Owned(vec![-1e4])));
    second.push(("lm_head.weight".into(), all[0].0.shape.clone(), Cow::Borrowed(all[0].1.as_slice())));
    let dir = folder.path();
    std::fs::copy(tiny().join("config.json"), dir.join("config.json")).unwrap();
    let mut map = serde_json::Map::new();
    for (file, tensors) in [("model-00001-of-00002.safetensors", &first), ("model-00002-of-00002.safetensors", &second)]
    {
        checkpoint::save_tensors(&dir.join(file), tensors.iter().cloned()).unwrap();
        map.extend(tensors.iter().map(|(name, ..)| (name.clone(), file.into())));
    }
    let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let sharded = load(dir);
    assert!(!sharded.prefixed);
    assert_eq!(checkpoint::tensors_sha256(&sharded.weights), hash);
}

#[test]
fn the_hash_is_the_documented_one() {
    let mut weights = load(&tiny()).weights;
    let mut bytes = Vec::new();
    for (name, shape, data) in weights.layout.specs().iter().zip(&weights.tensors).map(|(s, t)| (&s.name, &s.shape, t))
    {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        let sizes = [shape.len()].into_iter().chain(shape.iter().copied());
        bytes.extend(sizes.flat_map(|n| (n as u64).to_le_bytes()));
        bytes.extend(data.iter().flat_map(|x| x.to_le_bytes()));
    }
    let expected: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(checkpoint::tensors_sha256(&weights), expected);
    weights.tensors[4][7] = f32::from_bits(weights.tensors[4][7].to_bits() ^ 1);
    assert_ne!(checkpoint::tensors_sha256(&weights), expected);
}

#[test]
fn init_gives_the_same_bytes_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    byte_tokenizer(&folder.path().join("bytes"));
    let init = |out: &str, seed: &str, threads: &str, more: &[&str]| {
        let args = ["init", "--preset", "tiny", "--seed", seed, "--out", out];
        let run = ferret(folder.path()).args(args).args(more).env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert!(run.status.success(), "{}", stderr(&run));
        std::fs::read(folder.path().join(out).join("model.safetensors")).unwrap()
    };
    std::fs::create_dir(folder.path().join("b")).unwrap();
    let a = init("a", "7", "1", &[]);
    assert_eq!(a, init("b", "7", "2", &[]));
    assert_ne!(a, init("c", "8", "2", &[]));
    init("d", "7", "2", &["--dtype", "bf16", "--tokenizer", "bytes"]);
    let d = load(&folder.path().join("d"));
    assert_eq!((d.dtype, d.weights.config.vocab, d.weights.config.eos), (Dtype::Bf16, 259, Some(258)));
    // Pinned: a change here changes every fresh checkpoint anyone has made.
    let hash = checkpoint::tensors_sha256(&load(&folder.path().join("a")).weights);
    assert_eq!(hash, "eadb49337c77106439ab507a58e4191c8914b76838e1049a756fb359a5c09557");
}

#[test]
fn inspect_counts() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny();
    let run = ferret(folder.path()).args(["inspect", "--json", "--model"]).arg(&model).output().unwrap();
    assert!(run.status.success() && run.stderr.is_empty(), "{}", stderr(&run));
    let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((json["parameters"].as_u64(), json["tensors"].as_array().map(Vec::len)), (Some(29728), Some(28)));
    assert_eq!(json["tensors"][4]["name"], "h.0.attn.c_attn.weight");
    assert_eq!(json["sha256"], checkpoint::tensors_sha256(&load(&model).weights));
    let text = ferret(folder.path()).args(["inspect", "--model"]).arg(&model).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for says in ["29,728 parameters in 28 tensors", "h.1.mlp.c_proj.weight", "estimated for 4 x 32 tokens", "dpsgd"] {
        assert!(text.contains(says), "{says} is not in {text}");
    }
}

#[test]
fn a_trained_checkpoint_from_elsewhere_loads() {
    let Some(shared) = shared() else { return };
    let folder = shared.join("models/nano-sort-gpt2");
    let read = load(&folder);
    assert_eq!(ours(&read.weights), plainly(&folder.join("model.safetensors"), "transformer."));
    assert!(!read.weights.config.tied && read.weights.layout.len() == 41);
    assert!(read.notes[0].contains("resid_pdrop 0.1"), "{:?}", read.notes);
}
