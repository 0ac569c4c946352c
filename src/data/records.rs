//! JSON lines to token sequences. This is the one place that says how a record is put together.
//!
//! | record | tokens | counts in the loss |
//! |---|---|---|
//! | `{"tokens": [..], "learn": [..]}` | as given | as `learn` says (true or false a token); without it, all |
//! | `{"messages": [{"role", "content"}, ..]}` | what the model's chat template makes of them ([`ChatTemplate`](crate::model::tokenizer::ChatTemplate)); without one `system: ..⏎user: ..⏎assistant: ..`, end-of-text after each reply | the assistant's replies, with what ends them |
//! | `{"prompt", "response"}` | prompt, response, end-of-text; nothing between them | response and end-of-text |
//! | `{"instruction", "input", "output"}` | the headings of Alpaca ([`instruction`]), output, end-of-text | output and end-of-text |
//! | `{"text"}` | the text and nothing else | all |
//!
//! Beside these a record may name its `"user"`, a string or a whole number; see [`super::users`].
//!
//! A record is read as the first kind in this table whose keys it has; other keys are ignored. The first token of a
//! record never counts: nothing precedes it. With [`Loss::Everything`], every other token counts.
//!
//! Where the tokenizer puts tokens before every text (Llama's `<s>`), they come first; a chat template and a list of tokens say
//! all of it themselves. Prompt and response are tokenised apart, so that the boundary falls between tokens and the prompt's tokens are those
//! that generation would see. End-of-text is the model's `eos_token_id`, added to a response unless it ends with it;
//! without one nothing is added. A `{"text"}` gets none, so that its loss is what every other program gives for it.
//!
//! Records are private, and errors end in logs: a message names the line, the key that is read and what kind of value is there,
//! and repeats nothing that the line itself says.

use super::chat;
use super::users::{Unit, pack};
use super::{Dataset, Example, LoadOptions, Loss, no_tokenizer};
use crate::error::{Error, Result};
use crate::model::tokenizer::{Message, Tokenizer};
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::path::Path;

/// A stretch of a record before tokenisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    /// Counts in the loss when only responses do.
    pub(super) response: bool,
    /// End-of-text follows.
    pub(super) end: bool,
}

/// What a line holds.
enum Record {
    Tokens(Example),
    Chat(Vec<Message>),
    Pieces(Vec<Piece>),
}

/// Read the lines of `content`; `path` is for messages.
pub(crate) fn load(
    path: &Path,
    content: &str,
    tokenizer: Option<&Tokenizer>,
    options: &LoadOptions,
) -> Result<Dataset> {
    load_counted(path, content, "line", tokenizer, options)
}

/// As [`load`], where messages count by `what`: lines, or the records of an array.
pub(super) fn load_counted(
    path: &Path,
    content: &str,
    what: &str,
    tokenizer: Option<&Tokenizer>,
    options: &LoadOptions,
) -> Result<Dataset> {
    let lines: Vec<&str> = content.trim_end().lines().collect();
    let results: Vec<Result<Line, String>> = lines
        .par_iter()
        .map(|line| {
            let mut line = example(line, tokenizer, options)?;
            line.cut = line.example.ids.len().saturating_sub(options.context);
            line.example.ids.truncate(options.context);
            line.example.learn.truncate(options.context);
            Ok(line)
        })
        .collect();
    let mut dataset = Dataset::default();
    let mut by_user = Vec::new();
    for (i, result) in results.into_iter().enumerate() {
        let refuse = |why: &str| Error::file(path, format!("{what} {}: {why}", i + 1));
        let Line { example, cut, user, plain, other_end } = result.map_err(|what| refuse(&what))?;
        dataset.truncated += usize::from(cut > 0);
        dataset.tokens_cut += cut;
        dataset.plain_chat |= plain;
        dataset.other_ends += usize::from(other_end);
        match options.unit {
            Unit::Record => {
                dataset.names_users |= user.is_some();
                dataset.examples.push(example);
            }
            Unit::User { .. } => {
                let user =
                    user.ok_or_else(|| refuse("has no \"user\", and the unit is the user: every record names one"))?;
                dataset.lines.push(example.clone());
                by_user.push((user, example));
            }
        }
    }
    if let Unit::User { most } = options.unit {
        let packed = pack(by_user, most, options.context, options.eos);
        dataset.examples = packed.examples;
        dataset.names = packed.names;
        dataset.users = true;
        dataset.left_out = packed.left_out;
        dataset.tokens_cut += packed.tokens_cut;
    }
    dataset.without_target = dataset.examples.iter().filter(|e| e.targets() == 0).count();
    Ok(dataset)
}

/// Refuse lines that are no records, tokenizer or not; whether records name their users.
pub fn check(path: &Path, lines: &[&str]) -> Result<bool> {
    let mut users = false;
    for (i, line) in lines.iter().enumerate() {
        let (_, user) = parse(line).map_err(|what| Error::file(path, format!("line {}: {what}", i + 1)))?;
        users |= user.is_some();
    }
    Ok(users)
}

/// What a line gave.
struct Line {
    example: Example,
    /// Tokens beyond the context.
    cut: usize,
    user: Option<String>,
    /// A conversation for which the model has no template.
    plain: bool,
    /// A response ends with a special token that is not the model's end-of-text.
    other_end: bool,
}

impl Line {
    /// Tokens that are as they should be.
    fn of(example: Example, user: Option<String>) -> Self {
        Self { example, cut: 0, user, plain: false, other_end: false }
    }
}

/// One line to tokens, uncut, and the user it names.
fn example(line: &str, tokenizer: Option<&Tokenizer>, options: &LoadOptions) -> Result<Line, String> {
    let (record, user) = parse(line)?;
    let user = match options.unit {
        Unit::User { .. } => user.as_ref().map(user_of).transpose()?,
        // Not asked for, so it may be anything.
        Unit::Record => user.as_ref().and_then(|user| user_of(user).ok()),
    };
    let mut plain = false;
    let pieces = match record {
        Record::Tokens(example) => {
            check_ids(&example.ids, options.vocab)?;
            return Ok(Line::of(example, user));
        }
        Record::Chat(messages) => match tokenizer.and_then(Tokenizer::chat) {
            None => {
                plain = true;
                chat::plain(&messages)
            }
            Some(template) => {
                let tokenizer = tokenizer.ok_or_else(no_tokenizer)?;
                let example = chat::example(template, tokenizer, &messages, options)?;
                return Ok(Line::of(example, user));
            }
        },
        Record::Pieces(pieces) => pieces,
    };
    let tokenizer = tokenizer.ok_or_else(no_tokenizer)?;
    let beginning = tokenizer.beginning().to_vec();
    let mut example = Example { learn: vec![false; beginning.len()], ids: beginning };
    let mut other_end = false;
    for piece in pieces {
        let mut ids = tokenizer.encode(&piece.text).map_err(|e| e.to_string())?;
        if let Some(eos) = options.eos
            && piece.end
            && ids.last() != Some(&eos)
        {
            other_end |= ids.last().is_some_and(|&id| tokenizer.is_special(id));
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
    Ok(Line { plain, other_end, ..Line::of(example, user) })
}

/// Who a record is of. The number 7 and the string "7" are one user: to take two for one promises more, not less.
fn user_of(user: &Value) -> Result<String, String> {
    match user {
        Value::String(name) if !name.is_empty() => Ok(name.clone()),
        Value::Number(number) if number.is_u64() || number.is_i64() => Ok(number.to_string()),
        Value::String(_) => Err("\"user\" is empty, and a name is expected".into()),
        other => Err(format!("\"user\" is {}, and a string or a whole number is expected", kind(other))),
    }
}

/// Refuse a token that the model does not have.
pub(super) fn check_ids(ids: &[u32], vocab: usize) -> Result<(), String> {
    match ids.iter().position(|&id| id as usize >= vocab) {
        None => Ok(()),
        Some(i) => Err(format!(
            "the token at index {i} lies outside the model's vocabulary of {vocab} (ids 0 to {}): was it tokenised for another \
             model?",
            vocab.saturating_sub(1)
        )),
    }
}

/// What a line holds, and its `"user"`.
fn parse(line: &str) -> Result<(Record, Option<Value>), String> {
    if line.trim().is_empty() {
        return Err("is blank: a JSON object a line is expected".into());
    }
    let value: Value = serde_json::from_str(line).map_err(|e| match line.trim_start().starts_with('[') {
        true => format!("a JSON array starts here, and a JSON object a line is expected ({e})"),
        false => format!("is not valid JSON, and a JSON object a line is expected ({e})"),
    })?;
    let Value::Object(mut object) = value else {
        return Err(format!("is {}, and a JSON object a line is expected", kind(&value)));
    };
    let user = object.remove("user").filter(|user| !user.is_null());
    Ok((record_of(&object)?, user))
}

fn record_of(object: &Map<String, Value>) -> Result<Record, String> {
    let text = |key: &str| -> Result<String, String> {
        match object.get(key) {
            Some(Value::String(s)) => Ok(s.clone()),
            Some(other) => Err(format!("\"{key}\" is {}, and a string is expected", kind(other))),
            None => Err(format!("has no \"{key}\", which belongs to the kind of record that its other keys name")),
        }
    };
    let whole = |text: String, response: bool| Piece { text, response, end: response };
    if let Some(tokens) = object.get("tokens") {
        return tokens_of(tokens, object.get("learn")).map(Record::Tokens);
    }
    if let Some(messages) = object.get("messages") {
        return chat::messages(messages).map(Record::Chat);
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
         \"messages\"; \"tokens\" (it has {} other {})",
        object.len(),
        if object.len() == 1 { "key" } else { "keys" }
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
        ids.push(id.ok_or_else(|| {
            let found = if value.is_number() { "a number that is no token id" } else { kind(value) };
            format!("\"tokens\" has {found} at index {i}, and a whole number from 0 to 2^32 - 1 is expected")
        })?);
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

pub(super) fn kind(value: &Value) -> &'static str {
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
        let pieces = match parse(line).unwrap().0 {
            Record::Pieces(p) => p,
            Record::Chat(messages) => chat::plain(&messages),
            Record::Tokens(_) => panic!("tokens"),
        };
        pieces.into_iter().map(|p| (p.text, p.response, p.end)).collect()
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
            ("{}", "0 other keys"),
            (r#"{"text":3}"#, "\"text\" is a number"),
            (r#"{"prompt":"a"}"#, "no \"response\""),
            (r#"{"response":"a"}"#, "no \"prompt\""),
            (r#"{"instruction":"a"}"#, "no \"output\""),
            (r#"{"tokens":"1 2"}"#, "\"tokens\" is a string"),
            (r#"{"tokens":[1,-2]}"#, "no token id at index 1"),
            (r#"{"tokens":[1,4294967296]}"#, "index 1"),
            (r#"{"tokens":[1,2],"learn":[true]}"#, "1 entries for 2 tokens"),
            (r#"{"tokens":[1],"learn":[1]}"#, "true and false"),
            (r#"{"messages":[{"role":"tool","content":""}]}"#, "another role"),
            (r#"{"messages":[{"role":"user"}]}"#, "message 1 has no \"content\""),
        ] {
            let error = parse(line).err().unwrap_or_else(|| panic!("{line} was read"));
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn what_a_line_says_is_never_repeated() {
        for line in [
            r#"{"SECRET":1}"#,
            r#"SECRET"#,
            r#"{"text": SECRET}"#,
            r#"{"text":"SECRET"#,
            r#"{"text":["SECRET"]}"#,
            r#"{"prompt":"SECRET","SECRET":"SECRET"}"#,
            r#"{"tokens":["SECRET"]}"#,
            r#"{"tokens":[54321.5]}"#,
            r#"{"tokens":[54321],"learn":["SECRET"]}"#,
            r#"{"messages":[{"role":"SECRET","content":"SECRET"}]}"#,
        ] {
            let error = parse(line).err().unwrap_or_else(|| panic!("{line} was read"));
            assert!(!error.contains("SECRET") && !error.contains("54321"), "{line}: {error}");
        }
        let error = user_of(&serde_json::json!({"SECRET": 1})).unwrap_err();
        assert!(error.contains("is an object") && !error.contains("SECRET"), "{error}");
        let error = check_ids(&[1, 54321], 100).unwrap_err();
        assert!(error.contains("index 1") && !error.contains("54321"), "{error}");
    }
}
