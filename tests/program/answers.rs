//! `ferret eval --answers`: the model's greedy answers against what `ferret generate` says.

use crate::io_support::{assert_refused, ferret, stderr, tiny};
use serde_json::{Value, json};
use std::path::Path;

/// What the embedded model says after `prompt`, as `generate` prints it: the first line with anything in it.
fn says(dir: &Path, prompt: &str) -> String {
    let output = ferret(dir)
        .args(["generate", "-m", "embedded", "--temperature", "0", "-n", "40", "--json", "-q", "--prompt", prompt])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = said["text"].as_str().unwrap();
    let text = &text[..text.find("<|endoftext|>").unwrap_or(text.len())];
    text.trim_start().lines().next().unwrap_or_default().trim_end().to_owned()
}

fn eval(dir: &Path, records: &[Value], more: &[&str]) -> std::process::Output {
    let lines: String = records.iter().map(|r| format!("{r}\n")).collect();
    std::fs::write(dir.join("records.jsonl"), lines).unwrap();
    let mut command = ferret(dir);
    command.args(["eval", "-m", "embedded", "-d", "records.jsonl", "--quiet", "--answers"]).args(more);
    command.output().unwrap()
}

#[test]
fn an_answer_is_right_if_the_model_says_it() {
    let dir = tempfile::tempdir().unwrap();
    let prompts = [
        "user: Who are you?\nassistant:",
        "user: Where is the red apple?\nassistant:",
        "user: Is it cold?\nassistant:",
    ];
    let said: Vec<String> = prompts.iter().map(|p| says(dir.path(), p)).collect();
    assert!(said.iter().all(|s| s.len() > 3), "{said:?}");
    let record = |prompt: &str, response: String| json!({"prompt": prompt, "response": response});
    let mut records = Vec::new();
    for (prompt, said) in prompts.iter().zip(&said) {
        // Case, blanks and what stands at the ends do not count; a word more, less or other does.
        records.push(record(prompt, format!(" {said}")));
        records.push(record(prompt, format!("  \"{}!\"", said.to_uppercase().replace(' ', "  "))));
        records.push(record(prompt, format!(" {said} So")));
        records.push(record(prompt, format!(" {}", said.trim_end_matches('.').rsplit_once(' ').unwrap().0)));
        records.push(record(prompt, " zebra".into()));
    }
    records.push(json!({"prompt": prompts[0], "response": "word ".repeat(300)}));
    records.push(json!({"prompt": prompts[0], "response": "!"}));
    let output = eval(dir.path(), &records, &["--answer-tokens", "150", "--json", "--per-record"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut want: Vec<Value> = [true, true, false, false, false].repeat(3).into_iter().map(Value::from).collect();
    // Cut off at the context, and nothing to compare with.
    want.extend([Value::Null, Value::Null]);
    assert_eq!(found["record_answers"], Value::from(want), "{said:?}");
    assert_eq!(found["answers"], json!({"right": 6, "asked": 15, "accuracy": 0.4, "longest": 150}));
    assert_eq!(found["record_losses"].as_array().unwrap().len(), 17);

    // The first three alone, for a reader.
    let output = eval(dir.path(), &records, &["3", "--answer-tokens", "150"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("answers     2 of 3 right, 66.7 %"), "{text}");
}

#[test]
fn what_cannot_be_asked_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let record = [json!({"prompt": "user: Who?\nassistant:", "response": "word ".repeat(50)})];
    assert_refused("a long answer", &eval(dir.path(), &record, &[]), &["1 to 8 tokens", "--answer-tokens"]);
    let text = [json!({"text": "A text has no prompt."})];
    assert_refused("no prompt", &eval(dir.path(), &text, &["--answer-tokens", "4"]), &["nothing to ask"]);
    let everything = eval(dir.path(), &record, &["--loss-on", "everything"]);
    assert_refused("no response", &everything, &["--loss-on everything"]);
    std::fs::write(dir.path().join("ids.jsonl"), "{\"tokens\": [1, 2, 3]}\n").unwrap();
    let output =
        ferret(dir.path()).args(["eval", "--data", "ids.jsonl", "--answers", "--model"]).arg(tiny()).output().unwrap();
    assert_refused("no tokenizer", &output, &["no tokenizer", "--answers"]);
}
