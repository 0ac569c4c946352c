//! Files from a stranger, and files for nobody else: tokenizers that make their library panic, links out of a model's folder, who may
//! read what is private, and audits that must not pass for want of a bound.

use crate::io_support::*;
use serde_json::{Value, json};
use std::path::Path;

/// Byte-level BPE as `tokenizer.json`, keys in the order that the tokenizers library writes.
fn tokenizer_json(change: impl FnOnce(&mut Value)) -> String {
    let folder = tempfile::tempdir().unwrap();
    byte_tokenizer(folder.path());
    let vocab: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("vocab.json")).unwrap()).unwrap();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let mut all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["h", "e"], ["he", "l"]]},
    });
    change(&mut all);
    all.to_string()
}

/// A model that has the tokenizer's 259 tokens.
fn model(dir: &Path) {
    std::fs::write(
        dir.join("shape.json"),
        r#"{"model_type":"gpt2","n_embd":8,"n_head":2,"n_layer":1,"n_positions":32,"vocab_size":259}"#,
    )
    .unwrap();
    let made = ferret(dir).args(["init", "--config", "shape.json", "--out", "model"]).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
}

#[test]
fn a_tokenizer_that_makes_its_library_panic_is_refused_in_a_sentence() {
    let whole = tokenizer_json(|_| ());
    let at = whole.find("\"decoder\"").unwrap();
    let precompiled = |map: &str| {
        let normalizer = json!({"type": "Precompiled", "precompiled_charsmap": map});
        tokenizer_json(|t| t["normalizer"] = normalizer)
    };
    let prefix = tokenizer_json(|t| t["model"]["continuing_subword_prefix"] = json!("##"));
    let mut cases = vec![("a prefix on byte-level BPE".to_owned(), prefix)];
    cases.extend(
        (9..90).step_by(3).map(|cut| (format!("cut {cut} bytes into its decoder"), whole[..at + cut].to_owned())),
    );
    // Base64 of lengths that are none, of nothing and of a trie that is cut off.
    for map in ["", "AA==", "AAAAAA==", "/////w==", "BAAAAAEAAAA=", "AAQAAAAAAAAAAAAAAAAAAAAA"] {
        cases.push((format!("a normaliser of {map:?}"), precompiled(map)));
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    model(dir);
    std::fs::write(dir.join("good.jsonl"), "{\"text\":\"hello SECRET\"}\n").unwrap();
    for (what, text) in cases {
        std::fs::write(dir.join("model/tokenizer.json"), text).unwrap();
        let output =
            ferret(dir).args(["eval", "--model", "model", "--data", "good.jsonl", "--quiet"]).output().unwrap();
        let told = stderr(&output);
        assert!(!told.contains("panicked") && !told.contains("SECRET"), "{what}: {told}");
        // What the library takes it for is its business; what it cannot use is refused.
        if !output.status.success() {
            assert_refused(&what, &output, &["tokenizer.json"]);
        } else {
            assert!(!what.starts_with("cut"), "{what}: was read");
        }
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_a_models_folder_are_not_followed() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    copy_tiny(&dir.join("model"));
    std::fs::write(dir.join("good.jsonl"), "{\"tokens\":[1,2,3]}\n").unwrap();
    std::fs::write(dir.join("secret"), "a private file").unwrap();
    let eval = ["eval", "--model", "model", "--data", "good.jsonl", "--quiet"];
    let train =
        ["train", "--method", "nonprivate", "--model", "model", "--data", "good.jsonl", "--batch", "1", "--out", "run"];
    for name in ["tokenizer.json", "special_tokens_map.json", "merges.txt"] {
        symlink("../secret", dir.join("model").join(name)).unwrap();
        for args in [&eval[..], &train] {
            let output = ferret(dir).args(args).output().unwrap();
            assert_refused(name, &output, &[name, "link out of the model's folder"]);
        }
        std::fs::remove_file(dir.join("model").join(name)).unwrap();
    }
    // The weights themselves, moved away and linked to.
    std::fs::rename(dir.join("model/model.safetensors"), dir.join("weights")).unwrap();
    symlink("../weights", dir.join("model/model.safetensors")).unwrap();
    assert_refused("weights", &ferret(dir).args(eval).output().unwrap(), &["model.safetensors", "link out of"]);
    // As the hub's cache has them they are fine.
    let repo = dir.join("models--a--b");
    std::fs::create_dir_all(repo.join("snapshots/c0ffee")).unwrap();
    std::fs::create_dir_all(repo.join("blobs")).unwrap();
    for (name, blob, from) in [("config.json", "1", "model/config.json"), ("model.safetensors", "2", "weights")] {
        std::fs::copy(dir.join(from), repo.join("blobs").join(blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), repo.join("snapshots/c0ffee").join(name)).unwrap();
    }
    let mut cached = eval;
    cached[2] = "models--a--b/snapshots/c0ffee";
    let output = ferret(dir).args(cached).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[cfg(unix)]
#[test]
fn what_is_computed_from_records_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    copy_tiny(&dir.join("model"));
    std::fs::write(dir.join("in.jsonl"), "{\"tokens\":[1,2,3]}\n{\"tokens\":[4,5,6]}\n").unwrap();
    std::fs::write(dir.join("out.jsonl"), "{\"tokens\":[7,8,9]}\n{\"tokens\":[3,5,7]}\n").unwrap();
    let run = |args: &str| {
        let output = ferret(dir).args(args.split(' ')).output().unwrap();
        assert!(output.status.success(), "{args}: {}", stderr(&output));
    };
    run("grad --model model --data in.jsonl --out grads.safetensors --quiet");
    run("audit plant --data in.jsonl --format Key#### --frequencies 1 --out planted.jsonl --canaries canaries.json");
    run("audit --base model --tuned model --members in.jsonl --nonmembers out.jsonl --out deep/report --quiet");
    for file in ["grads.safetensors", "planted.jsonl", "canaries.json"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
    let mut files = 0;
    let mut folders = vec![dir.join("deep")];
    while let Some(folder) = folders.pop() {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files >= 6, "{files}");
}

#[test]
fn planting_refuses_broken_lines_and_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ask =
        ["audit", "plant", "--data", "a.jsonl", "--format", "Key ####", "--out", "p.jsonl", "--canaries", "c.json"];
    for (content, says) in [
        ("{\"text\":\"a\"}\n{\"text\": SECRET\n", "line 2: is not valid JSON"),
        ("{\"text\":\"a\"}\n{\"SECRET\":1}\n", "line 2: has none of the keys"),
        ("{\"text\":\"a\"}\n\n{\"text\":\"b\"}\n", "line 2: is blank"),
        ("{\"text\":\"a\"}\nSECRET\n", "line 2: is not valid JSON"),
    ] {
        std::fs::write(dir.join("a.jsonl"), content).unwrap();
        let output = ferret(dir).args(ask).args(["--frequencies", "1"]).output().unwrap();
        assert_refused(content, &output, &["a.jsonl", says]);
        assert!(!stderr(&output).contains("SECRET"));
        assert!(!dir.join("p.jsonl").exists() && !dir.join("c.json").exists());
    }
    // A mark at the start of the file does not end up in the middle of it.
    std::fs::write(dir.join("a.jsonl"), "\u{FEFF}{\"text\":\"a\",\"user\":\"x\"}\n").unwrap();
    let output = ferret(dir).args(ask).args(["--coin-flip", "9"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let planted = std::fs::read_to_string(dir.join("p.jsonl")).unwrap();
    assert!(!planted.contains('\u{FEFF}'));
    assert_eq!(planted.lines().count(), 10, "in or out, a line each: {planted}");
    assert!(planted.lines().all(|l| l.contains("\"user\"")), "{planted}");
}

/// Numbers that are none, and a flag that must not be satisfied by nothing.
#[test]
fn an_audit_that_could_not_judge_does_not_pass() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    copy_tiny(&dir.join("model"));
    std::fs::write(dir.join("in.jsonl"), "{\"tokens\":[1,2,3]}\n{\"tokens\":[4,5,6]}\n").unwrap();
    std::fs::write(dir.join("out.jsonl"), "{\"tokens\":[7,8,9]}\n{\"tokens\":[3,5,7]}\n").unwrap();
    let audit = |more: &str| {
        let pair = "audit --base model --tuned model --members in.jsonl --nonmembers out.jsonl --quiet --fail-on-alarm";
        ferret(dir).args(pair.split(' ')).args(more.split(' ').filter(|w| !w.is_empty())).output().unwrap()
    };
    for (more, why) in [
        ("", "no guarantee was given"),
        ("--dp-epsilon 1", "membership was not drawn at random"),
        ("--bits 8", "membership was not drawn at random"),
        ("--membership coin-flip", "no guarantee was given"),
        ("--membership coin-flip --dp-epsilon 1 --dp-neighbours replace-one", "exchanging"),
    ] {
        let output = audit(more);
        assert_eq!(output.status.code(), Some(1), "{more}: {}", stderr(&output));
        let told = stderr(&output);
        assert!(told.contains("nothing could be judged") && told.contains(why), "{more}: {told}");
    }
    let judged = audit("--membership coin-flip --dp-epsilon 1");
    assert!(judged.status.success(), "{}", stderr(&judged));
    // The relation of the guarantee decides the bound: against an empty record, in or out is two steps.
    let bound = |more: &str| {
        let output = audit(&format!("--membership coin-flip --json --dp-epsilon 0.5 {more}"));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found["attacks"][0]["verdicts"][1]["bound"].as_f64().unwrap()
    };
    assert!(bound("") > 1.5 * bound("--dp-neighbours add-remove"));
    for more in [
        "--dp-epsilon nan",
        "--dp-epsilon inf",
        "--dp-epsilon 1 --delta inf",
        "--dp-epsilon 1 --delta nan",
        "--delta 0.1",
    ] {
        let output = audit(&format!("--membership coin-flip {more}"));
        assert_eq!(output.status.code(), Some(2), "{more}: {}", stderr(&output));
    }
}
