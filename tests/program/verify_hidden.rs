//! `ferret verify` on a folder with something hidden in it.

use crate::io_support::tiny as base;
use crate::verify::{BIT, DPSGD, train, verify_against};
use serde_json::{Value, json};
use std::path::Path;

/// Change the header and the data of a safetensors file.
fn rewrite(path: &Path, edit: impl FnOnce(&mut Value, &mut Vec<u8>) -> String) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut data = bytes[8 + length..].to_vec();
    let mut text = edit(&mut header, &mut data);
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    std::fs::write(path, [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat()).unwrap();
}

/// Hide `bytes` in a tensor that GPT-2 does not use.
fn hide(path: &Path, bytes: &[u8]) {
    rewrite(path, |header, data| {
        let (from, to) = (data.len(), data.len() + bytes.len());
        header["h.0.attn.bias"] = json!({"dtype": "U8", "shape": [bytes.len()], "data_offsets": [from, to]});
        data.extend(bytes);
        header.to_string()
    });
}

#[test]
fn a_file_hidden_in_a_tensor_that_the_model_does_not_use_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (base, own) = (home.path().join("base"), base());
    std::fs::create_dir(&base).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(own.join(file), base.join(file)).unwrap();
    }
    let records = vec![b'r'; 18_000];
    for extra in [&BIT[..], &DPSGD] {
        let dir = train(home.path(), extra[1], extra);
        let file = dir.join("model.safetensors");
        let honest = std::fs::read(&file).unwrap();
        hide(&file, &records);
        let said = verify_against(&dir, &base).unwrap_err();
        assert!(said.contains("h.0.attn.bias") && said.contains("does not use"), "{said}");
        // The same bytes in the base model tell nothing of the records; one byte more does.
        let plain = std::fs::read(base.join("model.safetensors")).unwrap();
        hide(&base.join("model.safetensors"), &records);
        verify_against(&dir, &base).unwrap();
        std::fs::write(&file, &honest).unwrap();
        hide(&file, &[&records[..], b"!"].concat());
        assert!(verify_against(&dir, &base).unwrap_err().contains("h.0.attn.bias"));
        std::fs::write(base.join("model.safetensors"), &plain).unwrap();
        // A note in the header, and blanks between its words.
        std::fs::write(&file, &honest).unwrap();
        rewrite(&file, |header, _| {
            header["__metadata__"]["note"] = "records".into();
            header.to_string()
        });
        assert!(verify_against(&dir, &base).unwrap_err().contains("note"));
        std::fs::write(&file, &honest).unwrap();
        rewrite(&file, |header, _| header.to_string().replacen(',', &format!(",{}", " \t".repeat(50)), 1));
        assert!(verify_against(&dir, &base).unwrap_err().contains("say nothing"));
        // Another order of the same tensors changes no scalar, and says something.
        std::fs::write(&file, &honest).unwrap();
        assert!(!verify_against(&dir, &base).unwrap()["not_bound"].to_string().contains("order of the tensors"));
        rewrite(&file, |header, _| {
            let mut entries: Vec<_> = header.as_object().unwrap().clone().into_iter().collect();
            entries.reverse();
            Value::Object(entries.into_iter().collect()).to_string()
        });
        let found = verify_against(&dir, &base).unwrap();
        assert!(found["not_bound"].to_string().contains("order of the tensors"), "{found}");
        std::fs::write(&file, &honest).unwrap();
        std::fs::write(dir.join("extra.bin"), &records).unwrap();
        let found = verify_against(&dir, &base).unwrap();
        assert!(found["not_bound"].to_string().contains("extra.bin"), "{found}");
        assert!(!found["not_bound"].to_string().contains("config.json"), "{found}");
    }
}
