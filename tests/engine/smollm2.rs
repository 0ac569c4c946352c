//! A real chat model, SmolLM2-135M-Instruct, against transformers' word on it.
//!
//! `FERRET_SMOLLM2` names the folder of the checkpoint in f32, with the reference.json that tests/fixtures/make_smollm2_reference.py
//! writes into it; without it these tests say that they skip.

use ferret::backend::Cpu;
use ferret::data::{LoadOptions, load_examples};
use ferret::eval;
use ferret::model::generate::{Draws, Sampling};
use ferret::model::tokenizer::{Message, Tokenizer};
use ferret::model::{Decoder, checkpoint};
use serde_json::{Value, json};
use std::path::PathBuf;

fn folder() -> Option<PathBuf> {
    let found = std::env::var_os("FERRET_SMOLLM2").map(PathBuf::from);
    if found.is_none() {
        println!("skipped: FERRET_SMOLLM2 is not set");
    }
    found
}

fn reference(folder: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn tokens_and_chat_template_are_transformers() {
    let Some(folder) = folder() else { return };
    let reference = reference(&folder);
    let tokenizer = Tokenizer::from_folder(&folder).unwrap().unwrap();
    for case in reference["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let got = [tokenizer.beginning(), &tokenizer.encode(text).unwrap()].concat();
        assert_eq!(got, ids(&case["ids"]), "{text:?}");
    }
    let template = tokenizer.chat().expect("a chat template");
    for case in reference["chats"].as_array().unwrap() {
        let message = |m: &Value| Message {
            role: m["role"].as_str().unwrap().into(),
            content: m["content"].as_str().unwrap().into(),
        };
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let (text, turns) = template.conversation(&messages).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&text).unwrap(), ids(&case["ids"]));
        let spans = tokenizer.encode_with_spans(&text).unwrap();
        assert_eq!(spans.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids(&case["ids"]));
        let last = turns.last().unwrap();
        assert_eq!(&text[..last.start], case["prompt"].as_str().unwrap());
        assert!(text[last.clone()].ends_with("<|im_end|>"));
    }
}

#[test]
fn greedy_continuations_are_transformers() {
    let Some(folder) = folder() else { return };
    let reference = reference(&folder);
    let weights = checkpoint::load(folder.to_str().unwrap()).unwrap().weights;
    let decoder = Decoder::new(Cpu::<f32>::new(), weights).unwrap();
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
    let mut same = 0;
    for case in reference["prompts"].as_array().unwrap() {
        let (prompt, tokens) = (ids(&case["ids"]), ids(&case["tokens"]));
        let mut cache = decoder.cache(prompt.len() + tokens.len());
        let mut feed = prompt;
        let mut first = None;
        for (i, &want) in tokens.iter().enumerate() {
            let logits = decoder.extend(&mut cache, &feed).unwrap();
            let got = greedy.draw(&logits, &mut Draws::new(0));
            if got != want {
                first = Some((i, got));
                break;
            }
            feed = vec![want];
        }
        match first {
            None => same += 1,
            Some((i, got)) => {
                let gap = case["gaps"][i].as_f64().unwrap();
                assert!(gap <= 1e-3, "{}: token {i} is {got}, not {}, and {gap} apart", case["text"], tokens[i]);
            }
        }
    }
    println!("{same} of {} prompts go on with the same 64 tokens", reference["prompts"].as_array().unwrap().len());
    assert!(same >= 15, "{same}");
}

#[test]
fn losses_are_transformers() {
    let Some(folder) = folder() else { return };
    let reference = reference(&folder);
    let records = reference["records"].as_array().unwrap();
    let weights = checkpoint::load(folder.to_str().unwrap()).unwrap().weights;
    let tokenizer = Tokenizer::from_folder(&folder).unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let line = |r: &Value| json!({"prompt": r["prompt"], "response": r["response"]}).to_string();
    std::fs::write(&path, records.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let context = reference["context"].as_u64().unwrap() as usize;
    let options = LoadOptions { context, ..LoadOptions::new(&weights.config) };
    let dataset = load_examples(&path, Some(&tokenizer), &options).unwrap();
    let decoder = Decoder::new(Cpu::<f32>::new(), weights).unwrap();
    for (example, record) in dataset.examples.iter().zip(records) {
        assert_eq!(example.ids, ids(&record["ids"]), "{}", record["prompt"]);
    }
    let losses = eval::losses(&decoder, &dataset.examples, |_| ()).unwrap();
    let mut compared = 0;
    for (i, (loss, record)) in losses.iter().zip(records).enumerate() {
        let (got, want) = (loss.mean(), record["loss"].as_f64());
        if let (Some(got), Some(want)) = (got, want) {
            assert!((got - want).abs() <= 1e-4, "record {i}: {got}, not {want}");
            compared += 1;
        }
    }
    assert!(compared >= 30, "{compared}");
}
