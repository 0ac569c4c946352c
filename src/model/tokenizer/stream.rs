//! Decoding token by token.

use super::Tokenizer;
use crate::error::Result;

/// Decodes token by token. A character that is spread over several tokens is held back until it is complete.
#[derive(Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// Byte-level: bytes of an incomplete character.
    pending: Vec<u8>,
    /// Other tokenizers: all tokens, and the length of text already given.
    ids: Vec<u32>,
    given: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new(), ids: Vec::new(), given: 0 }
    }

    /// The text that `id` completes, possibly none.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if let Some(bytes) = self.tokenizer.token_bytes(id) {
            self.pending.extend(bytes);
            return Ok(take_utf8(&mut self.pending));
        }
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids)?;
        if text.ends_with('\u{FFFD}') { Ok(String::new()) } else { Ok(self.rest(&text)) }
    }

    /// What is left at the end: bytes that never became a character, as U+FFFD.
    pub fn finish(mut self) -> Result<String> {
        if self.tokenizer.bytes.is_some() {
            return Ok(String::from_utf8_lossy(&self.pending).into_owned());
        }
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(self.rest(&text))
    }

    fn rest(&mut self, text: &str) -> String {
        let rest = text.get(self.given..).unwrap_or("").to_owned();
        self.given = text.len();
        rest
    }
}

/// Remove from `bytes` what is text already, with U+FFFD for what can no longer become any.
fn take_utf8(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut start = 0;
    while start < bytes.len() {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(valid) => {
                text.push_str(valid);
                start = bytes.len();
            }
            Err(e) => {
                let valid = start + e.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[start..valid]));
                start = valid;
                match e.error_len() {
                    Some(n) => {
                        text.push('\u{FFFD}');
                        start += n;
                    }
                    None => break,
                }
            }
        }
    }
    bytes.drain(..start);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_characters_wait_and_broken_ones_do_not() {
        let mut bytes = vec![b'a', 0xE2, 0x82];
        assert_eq!(take_utf8(&mut bytes), "a");
        bytes.push(0xAC);
        assert_eq!(take_utf8(&mut bytes), "€");
        bytes.extend([0xE2, b'b', 0xFF]);
        assert_eq!(take_utf8(&mut bytes), "\u{FFFD}b\u{FFFD}");
        assert!(bytes.is_empty());
    }
}
