//! Conversations to tokens: by the model's own chat template, or a line a message.

use super::records::{Piece, check_ids, kind};
use super::{Example, LoadOptions, Loss};
use crate::model::tokenizer::{ChatTemplate, Message, Tokenizer};
use serde_json::Value;

/// The turns of a conversation.
pub(super) fn messages(messages: &Value) -> Result<Vec<Message>, String> {
    let list =
        messages.as_array().ok_or_else(|| format!("\"messages\" is {}, and a list is expected", kind(messages)))?;
    let mut turns = Vec::new();
    for (i, message) in list.iter().enumerate() {
        let field = |key: &str| {
            let value = message.get(key).and_then(Value::as_str);
            value.ok_or_else(|| format!("message {} has no \"{key}\" that is a string", i + 1))
        };
        let (role, content) = (field("role")?, field("content")?);
        if !["system", "user", "assistant"].contains(&role) {
            let what = format!("message {} has another role than system, user and assistant, which are known", i + 1);
            return Err(what);
        }
        turns.push(Message { role: role.to_owned(), content: content.to_owned() });
    }
    Ok(turns)
}

/// `role: content`, a line a message; the assistant's content is the response, and ends with end-of-text.
pub(super) fn plain(messages: &[Message]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut open = String::new();
    for (i, Message { role, content }) in messages.iter().enumerate() {
        if i > 0 {
            open.push('\n');
        }
        if role == "assistant" {
            open.push_str("assistant:");
            pieces.push(Piece { text: std::mem::take(&mut open), response: false, end: false });
            pieces.push(Piece { text: format!(" {content}"), response: true, end: true });
        } else {
            open.push_str(&format!("{role}: {content}"));
        }
    }
    if !open.is_empty() {
        pieces.push(Piece { text: open, response: false, end: false });
    }
    pieces
}

/// A conversation as the model was taught to have it. It is tokenised whole, as generation does it, so a token that begins before the
/// assistant's turn and ends in it counts.
pub(super) fn example(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &LoadOptions,
) -> Result<Example, String> {
    let (text, spans) = match options.loss {
        Loss::Response => template.conversation(messages)?,
        Loss::Everything => (template.render(messages, false)?, Vec::new()),
    };
    let mut example = Example::default();
    for (id, span) in tokenizer.encode_with_spans(&text).map_err(|e| e.to_string())? {
        let said = spans.iter().any(|turn| span.start < turn.end && turn.start < span.end);
        example.ids.push(id);
        example.learn.push(said || options.loss == Loss::Everything);
    }
    if let Some(first) = example.learn.first_mut() {
        *first = false;
    }
    check_ids(&example.ids, options.vocab)?;
    Ok(example)
}
