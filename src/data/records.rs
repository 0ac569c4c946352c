//! JSON lines to token sequences. This is the one place that says how a record is put together.
//!
//! | record | tokens | counts in the loss |
//! |---|---|---|
//! | `{"tokens": [..], "learn": [..]}` | as given | as `learn` says (true or false a token); without it, all |
//! | `{"messages": [{"role", "content"}, ..]}` | `system: ..⏎user: ..⏎assistant: ..`, end-of-text after each reply | the assistant's replies |
//! | `{"prompt", "response"}` | prompt, response, end-of-text; nothing between them | response and end-of-text |
//! | `{"instruction", "input", "output"}` | the headings of Alpaca ([`instruction`]), output, end-of-text | output and end-of-text |
//! | `{"text"}` | the text and nothing else | all |
//!
//! A record is read as the first kind in this table whose keys it has; other keys are ignored. The first token of a
//! record never counts: nothing precedes it. With [`Loss::Everything`], every other token counts.
//!
//! Prompt and response are tokenised apart, so that the boundary falls between tokens and the prompt's tokens are those
//! that generation would see. End-of-text is the model's `eos_token_id`, added to a response unless it ends with it;
//! without one nothing is added. A `{"text"}` gets none, so that its loss is what every other program gives for it.

use super::{Dataset, Example, LoadOptions, Loss, no_tokenizer};
use crate::error::{Error, Result};
use crate::model::tokenizer::Tokenizer;
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::path::Path;

/// A stretch of a record before tokenisation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    text: String,
    /// Counts in the loss when only responses do.
    response: bool,
    /// End-of-text follows.
    end: bool,
}

/// What a line holds.
enum Record {
    Tokens(Example),
    Pieces(Vec<Piece>),
}

/// Read the lines of `content`; `path` is for messages.
pub(crate) fn load(
    path: &Path,
    content: &str,
    tokenizer: Option<&Tokenizer>,
    options: &LoadOptions,
) -> Result<Dataset> {
    let lines: Vec<&str> = content.trim_end().lines().collect();
    let results: Vec<Result<(Example, usize), String>> = lines
        .par_iter()
        .map(|line| {
            let mut example = example(line, tokenizer, options)?;
            let cut = example.ids.len().saturating_sub(options.context);
            example.ids.truncate(options.context);
            example.learn.truncate(options.context);
            Ok((example, cut))
        })
        .collect();
    let mut dataset = Dataset::default();
    for (i, result) in results.into_iter().enumerate() {
        let (example, cut) = result.map_err(|what| Error::file(path, format!("line {}: {what}", i + 1)))?;
        dataset.truncated += usize::from(cut > 0);
        dataset.tokens_cut += cut;
        dataset.without_target += usize::from(example.targets() == 0);
        dataset.examples.push(example);
    }
    Ok(dataset)
}

/// One line to tokens, uncut.
fn example(line: &str, tokenizer: Option<&Tokenizer>, options: &LoadOptions) -> Result<Example, String> {
    let pieces = match parse(line)? {
        Record::Tokens(example) => {
            check_ids(&example.ids, options.vocab)?;
            return Ok(example);
        }
        Record::Pieces(pieces) => pieces,
    };
    let tokenizer = tokenizer.ok_or_else(no_tokenizer)?;
    let mut example = Example::default();
    for piece in pieces {
        let mut ids = tokenizer.encode(&piece.text).map_err(|e| e.to_string())?;
        if let Some(eos) = options.eos
            && piece.end
            && ids.last() != Some(&eos)
        {
            ids.push(eos);
        }
        let counts = piece.response || options.loss == Loss::Everything;
        example.learn.extend(std::iter::repeat_n(counts, ids.len()));
        example.ids.extend(ids);
    }
    if let Some(first) = example.learn.first_mut() {
        *first = false;
    }
    check_ids(&example.ids, options.vocab)?;
    Ok(example)
}

/// Refuse a token that the model does not have.
pub(super) fn check_ids(ids: &[u32], vocab: usize) -> Result<(), String> {
    match ids.iter().find(|&&id| id as usize >= vocab) {
        None => Ok(()),
        Some(id) => Err(format!(
            "token {id} lies outside the model's vocabulary of {vocab} (ids 0 to {}): was it tokenised for another model?",
            vocab - 1
        )),
    }
}

fn parse(line: &str) -> Result<Record, String> {
    if line.trim().is_empty() {
        return Err("is blank: a JSON object a line is expected".into());
    }
    let value: Value = serde_json::from_str(line).map_err(|e| match line.trim_start().starts_with('[') {
        true => format!("a JSON array starts here, and a JSON object a line is expected ({e})"),
        false => format!("is not valid JSON, and a JSON object a line is expected ({e})"),
    })?;
    let Value::Object(object) = value else {
        return Err(format!("is {}, and a JSON object a line is expected", kind(&value)));
    };
    let text = |key: &str| -> Result<String, String> {
        match object.get(key) {
            Some(Value::String(s)) => Ok(s.clone()),
            Some(other) => Err(format!("\"{key}\" is {}, and a string is expected", kind(other))),
            None => Err(format!("has no \"{key}\" (it has {})", keys(&object))),
        }
    };
    let whole = |text: String, response: bool| Piece { text, response, end: response };
    if let Some(tokens) = object.get("tokens") {
        return tokens_of(tokens, object.get("learn")).map(Record::Tokens);
    }
    if let Some(messages) = object.get("messages") {
        return messages_of(messages).map(Record::Pieces);
    }
    if object.contains_key("prompt") || object.contains_key("response") {
        return Ok(Record::Pieces(vec![whole(text("prompt")?, false), whole(text("response")?, true)]));
    }
    if object.contains_key("instruction") || object.contains_key("output") {
        let input =
            if matches!(object.get("input"), None | Some(Value::Null)) { String::new() } else { text("input")? };
        let prompt = instruction(&text("instruction")?, &input);
        return Ok(Record::Pieces(vec![whole(prompt, false), whole(text("output")?, true)]));
    }
    if object.contains_key("text") {
        return Ok(Record::Pieces(vec![Piece { text: text("text")?, response: true, end: false }]));
    }
    Err(format!(
        "has none of the keys that are read: \"text\"; \"prompt\" and \"response\"; \"instruction\" and \"output\"; \
         \"messages\"; \"tokens\" (it has {})",
        keys(&object)
    ))
}

/// The prompt of an instruction record: the headings of Alpaca, without its preamble; no input, no heading for it.
pub fn instruction(instruction: &str, input: &str) -> String {
    match input.trim().is_empty() {
        true => format!("### Instruction:\n{instruction}\n\n### Response:\n"),
        false => format!("### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"),
    }
}

fn tokens_of(tokens: &Value, learn: Option<&Value>) -> Result<Example, String> {
    let list = tokens.as_array().ok_or_else(|| format!("\"tokens\" is {}, and a list is expected", kind(tokens)))?;
    let mut ids = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        ids.push(id.ok_or_else(|| format!("\"tokens\" has {value} at index {i}, and a token id is expected"))?);
    }
    let mut example = Example::all(ids);
    let Some(learn) = learn else { return Ok(example) };
    let flags: Option<Vec<bool>> =
        learn.as_array().map(|list| list.iter().map(|v| v.as_bool()).collect()).unwrap_or_default();
    match flags {
        Some(flags) if flags.len() == example.ids.len() => example.learn = flags,
        Some(flags) => return Err(format!("\"learn\" has {} entries for {} tokens", flags.len(), example.ids.len())),
        None => return Err("\"learn\" is not a list of true and false, one a token".into()),
    }
    if let Some(first) = example.learn.first_mut() {
        *first = false;
    }
    Ok(example)
}

/// `role: content`, a line a message; the assistant's content is the response, and ends with end-of-text.
fn messages_of(messages: &Value) -> Result<Vec<Piece>, String> {
    let list =
        messages.as_array().ok_or_else(|| format!("\"messages\" is {}, and a list is expected", kind(messages)))?;
    let mut pieces = Vec::new();
    let mut open = String::new();
    for (i, message) in list.iter().enumerate() {
        let field = |key: &str| {
            let value = message.get(key).and_then(Value::as_str);
            value.ok_or_else(|| format!("message {} has no \"{key}\" that is a string", i + 1))
        };
        let (role, content) = (field("role")?, field("content")?);
        if i > 0 {
            open.push('\n');
        }
        match role {
            "assistant" => {
                open.push_str("assistant:");
                pieces.push(Piece { text: std::mem::take(&mut open), response: false, end: false });
                pieces.push(Piece { text: format!(" {content}"), response: true, end: true });
            }
            "system" | "user" => open.push_str(&format!("{role}: {content}")),
            other => {
                let what = format!("message {} has the role \"{other}\"; system, user and assistant are known", i + 1);
                return Err(what);
            }
        }
    }
    if !open.is_empty() {
        pieces.push(Piece { text: open, response: false, end: false });
    }
    Ok(pieces)
}

fn keys(object: &Map<String, Value>) -> String {
    match object.is_empty() {
        true => "no keys".into(),
        false => object.keys().take(8).map(|k| format!("{k:?}")).collect::<Vec<_>>().join(", "),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(line: &str) -> Vec<(String, bool, bool)> {
        match parse(line).unwrap() {
            Record::Pieces(p) => p.into_iter().map(|p| (p.text, p.response, p.end)).collect(),
            Record::Tokens(_) => panic!("tokens"),
        }
    }

    #[test]
    fn templates() {
        let p = |text: &str, response, end| (text.to_owned(), response, end);
        assert_eq!(pieces(r#"{"text":"a b"}"#), [p("a b", true, false)]);
        assert_eq!(pieces(r#"{"prompt":"a","response":"b","id":3}"#), [p("a", false, false), p("b", true, true)]);
        let alpaca = pieces(r#"{"instruction":"do","input":"","output":"done","text":"other"}"#);
        assert_eq!(alpaca, [p("### Instruction:\ndo\n\n### Response:\n", false, false), p("done", true, true)]);
        let input = pieces(r#"{"instruction":"do","input":"it","output":"done"}"#);
        assert_eq!(input[0].0, "### Instruction:\ndo\n\n### Input:\nit\n\n### Response:\n");
        let chat = pieces(
            r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"},{"role":"user","content":"bye"}]}"#,
        );
        assert_eq!(
            chat,
            [p("user: hi\nassistant:", false, false), p(" ho", true, true), p("\nuser: bye", false, false)]
        );
    }

    #[test]
    fn wrong_lines_are_told_apart() {
        for (line, says) in [
            ("", "blank"),
            ("[{\"text\":", "JSON array"),
            ("{\"text\":", "not valid JSON"),
            ("3", "is a number"),
            ("{}", "no keys"),
            (r#"{"text":3}"#, "\"text\" is a number"),
            (r#"{"prompt":"a"}"#, "no \"response\""),
            (r#"{"response":"a"}"#, "no \"prompt\""),
            (r#"{"instruction":"a"}"#, "no \"output\""),
            (r#"{"tokens":"1 2"}"#, "\"tokens\" is a string"),
            (r#"{"tokens":[1,-2]}"#, "-2 at index 1"),
            (r#"{"tokens":[1,4294967296]}"#, "index 1"),
            (r#"{"tokens":[1,2],"learn":[true]}"#, "1 entries for 2 tokens"),
            (r#"{"tokens":[1],"learn":[1]}"#, "true and false"),
            (r#"{"messages":[{"role":"tool","content":""}]}"#, "\"tool\""),
            (r#"{"messages":[{"role":"user"}]}"#, "message 1 has no \"content\""),
        ] {
            let error = parse(line).err().unwrap_or_else(|| panic!("{line} was read"));
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
