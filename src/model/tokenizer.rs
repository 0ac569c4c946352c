//! Text to tokens and back: `tokenizer.json`, or GPT-2's older pair `vocab.json` and `merges.txt`.

mod chat;
mod stream;

pub use chat::{ChatTemplate, Message};
pub use stream::Stream;

use super::config::Config;
use super::embedded;
use super::hub;
use crate::error::{Error, Result, quoted};
use crate::fsio;
use crate::guard;
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer as Inner};

/// A checkpoint's tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Inner,
    path: PathBuf,
    /// GPT-2's map from the characters of its vocabulary to bytes; none for a tokenizer of another kind.
    bytes: Option<HashMap<char, u8>>,
    len: usize,
    max_id: u32,
    /// Whether text may be cut before a blank without changing its tokens; see [`Tokenizer::encode_long`].
    divisible: bool,
    /// What the file puts before every text; see [`Tokenizer::beginning`].
    beginning: Vec<u32>,
    chat: Option<ChatTemplate>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("path", &self.path).field("len", &self.len).finish()
    }
}

impl Tokenizer {
    /// The tokenizer in `folder`; none where there is none.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>> {
        let [whole, vocab, merges] = ["tokenizer.json", "vocab.json", "merges.txt"].map(|n| folder.join(n));
        if let Some(text) = embedded::text(&whole) {
            return Self::from_text(&text, &whole).map(Some);
        }
        hub::must_stay_inside(folder)?;
        let tokenizer = if whole.exists() {
            Self::from_text(&fsio::read_text(&whole)?, &whole)?
        } else {
            match (vocab.exists(), merges.exists()) {
                (true, true) => Self::from_vocab_and_merges(&vocab, &merges)?,
                (false, false) => return Ok(None),
                (true, false) => {
                    return Err(Error::file(folder, "has vocab.json but no merges.txt: the tokenizer needs both"));
                }
                (false, true) => {
                    return Err(Error::file(folder, "has merges.txt but no vocab.json: the tokenizer needs both"));
                }
            }
        };
        Ok(Some(Self { chat: ChatTemplate::from_folder(folder)?, ..tokenizer }))
    }

    /// The tokenizer that the text of a `tokenizer.json` describes; `path` is for messages.
    pub fn from_text(text: &str, path: &Path) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(Error::file(path, "is empty, and a tokenizer is expected"));
        }
        let unreadable = |why: &str| Error::file(path, format!("is not a tokenizer that can be read ({why})"));
        let read = guard::call(|| {
            let mut inner: Inner = text.parse()?;
            // A file may ask for cutting or padding, which would lose text silently.
            inner.with_padding(None);
            inner.with_truncation(None)?;
            tokenizers::Result::Ok(inner)
        });
        let inner = read
            .ok_or_else(|| unreadable("reading it breaks off: is it damaged?"))?
            .map_err(|e| unreadable(&quoted(e)))?;
        Self::new(inner, path)
    }

    /// Byte-level BPE as GPT-2 does it: no prefix space, `<|endoftext|>` recognised in text.
    fn from_vocab_and_merges(vocab_path: &Path, merges_path: &Path) -> Result<Self> {
        let text = fsio::read_text(vocab_path)?;
        let vocab: HashMap<String, u32> = serde_json::from_str(&text).map_err(|e| {
            Error::file(vocab_path, format!("is not a JSON object from token to id, as a vocabulary is ({e})"))
        })?;
        let mut merges = Vec::new();
        for (i, line) in fsio::read_text(merges_path)?.lines().enumerate() {
            if line.is_empty() || (i == 0 && line.starts_with("#version")) {
                continue;
            }
            let pair = line.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
            let Some((a, b)) = pair else {
                let what = format!("line {}: two pieces with a space between them are expected", i + 1);
                return Err(Error::file(merges_path, what));
            };
            for piece in [a, b, &format!("{a}{b}")] {
                if !vocab.contains_key(piece) {
                    let what = format!(
                        "line {}: \"{}\" is not in vocab.json: do the two files belong together?",
                        i + 1,
                        quoted(piece)
                    );
                    return Err(Error::file(merges_path, what));
                }
            }
            merges.push((a.to_owned(), b.to_owned()));
        }
        let has_end = vocab.contains_key("<|endoftext|>");
        let vocab: Vocab = vocab.into_iter().collect();
        let built = guard::call(|| {
            let mut inner = Inner::new(BPE::builder().vocab_and_merges(vocab, merges).build()?);
            inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
            inner.with_decoder(Some(ByteLevel::new(false, true, true)));
            if has_end {
                inner.add_special_tokens(&[AddedToken::from("<|endoftext|>", true)]);
            }
            tokenizers::Result::Ok(inner)
        });
        let misfit = |why: &str| Error::file(merges_path, format!("does not fit vocab.json ({why})"));
        let inner = built.ok_or_else(|| misfit("joining them breaks off"))?.map_err(|e| misfit(&quoted(e)))?;
        Self::new(inner, vocab_path)
    }

    fn new(inner: Inner, path: &Path) -> Result<Self> {
        let asked = guard::call(|| {
            let vocab = inner.get_vocab(true);
            let byte_level = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
            let beginning = beginning(&inner);
            (vocab.len(), vocab.values().max().copied(), byte_level, is_divisible(&inner), beginning)
        });
        let Some((len, max_id, byte_level, divisible, beginning)) = asked else {
            return Err(Error::file(
                path,
                "is not a tokenizer that can be used (asking it breaks off: is it damaged?)",
            ));
        };
        let Some(max_id) = max_id else {
            return Err(Error::file(path, "has an empty vocabulary"));
        };
        let bytes = byte_level.then(byte_alphabet);
        Ok(Self { len, max_id, inner, path: path.to_owned(), bytes, divisible, beginning, chat: None })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest id in the vocabulary.
    pub fn max_id(&self) -> u32 {
        self.max_id
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The id of a token, spelled as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        guard::call(|| self.inner.token_to_id(token)).flatten()
    }

    /// The tokens that belong before every text, such as Llama's `<s>`; none for GPT-2. [`Tokenizer::encode`] does not add them.
    pub fn beginning(&self) -> &[u32] {
        &self.beginning
    }

    /// How the model was taught to converse, where the folder says it.
    pub fn chat(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Refuse a tokenizer that can name tokens the model does not have.
    pub fn check(&self, config: &Config) -> Result<()> {
        if self.max_id as usize >= config.vocab {
            let what = format!(
                "its largest token id is {}, but the model's vocabulary has {} tokens (ids up to {}): do they belong together?",
                self.max_id,
                config.vocab,
                config.vocab - 1
            );
            return Err(Error::file(&self.path, what));
        }
        Ok(())
    }

    /// Tokens of `text`. Nothing is added; special tokens that the text spells out (`<|endoftext|>`) are recognised.
    ///
    /// The error does not say what the library says: that might quote the text, which may be private.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match guard::call(|| self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec())) {
            Some(Ok(ids)) => Ok(ids),
            Some(Err(_)) => Err(Error::file(&self.path, "a text cannot be tokenised by it: has it an unknown token?")),
            None => Err(Error::file(&self.path, "tokenising a text breaks off in it: is the file damaged?")),
        }
    }

    /// [`Tokenizer::encode`], with the bytes of `text` that each token stands for.
    pub fn encode_with_spans(&self, text: &str) -> Result<Vec<(u32, std::ops::Range<usize>)>> {
        match guard::call(|| self.inner.encode(text, false)) {
            Some(Ok(encoding)) => {
                let spans = encoding.get_offsets().iter().map(|&(start, end)| start..end);
                Ok(encoding.get_ids().iter().copied().zip(spans).collect())
            }
            Some(Err(_)) => Err(Error::file(&self.path, "a text cannot be tokenised by it: has it an unknown token?")),
            None => Err(Error::file(&self.path, "tokenising a text breaks off in it: is the file damaged?")),
        }
    }

    /// [`Tokenizer::encode`] for a whole corpus: the same tokens, made in parallel and in little memory.
    ///
    /// GPT-2 first cuts text into words, `'s|..| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. No alternative goes
    /// from a visible character on to a blank, and the look-ahead concerns runs of blanks alone: between the two there
    /// always is a cut, so the text may be divided there. Other tokenizers get the text whole.
    pub fn encode_long(&self, text: &str) -> Result<Vec<u32>> {
        if !self.divisible {
            return self.encode(text);
        }
        let parts: Vec<Result<Vec<u32>>> = divide(text, 1 << 16).par_iter().map(|part| self.encode(part)).collect();
        let mut ids = Vec::new();
        for part in parts {
            ids.extend(part?);
        }
        Ok(ids)
    }

    /// Whether a token is no text but a sign, such as `<|endoftext|>`.
    pub fn is_special(&self, id: u32) -> bool {
        guard::call(|| self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|t| t.special))
            .unwrap_or(false)
    }

    /// Text of `ids`, special tokens spelled out, incomplete UTF-8 as U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let decoded = guard::call(|| self.inner.decode(ids, false).ok()).flatten();
        decoded.ok_or_else(|| Error::file(&self.path, "tokens cannot be decoded by it: is the file damaged?"))
    }

    /// Decode token by token, for output that appears as it is made.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self)
    }

    /// The bytes of one token; none for a tokenizer that is not byte-level.
    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let alphabet = self.bytes.as_ref()?;
        let token = guard::call(|| self.inner.id_to_token(id)).flatten().unwrap_or_default();
        // As the library's decoder does: a token with other characters (an added one) stands for its own text.
        let mapped: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
        Some(mapped.unwrap_or_else(|| token.into_bytes()))
    }
}

/// GPT-2's way of cutting words, and nothing beside it that looks across a blank.
fn is_divisible(inner: &Inner) -> bool {
    let words = match inner.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::ByteLevel(b)) => !b.add_prefix_space && b.use_regex,
        _ => false,
    };
    let apart = |t: &AddedToken| !t.lstrip && !t.rstrip && !t.content.contains(char::is_whitespace);
    words && inner.get_normalizer().is_none() && inner.get_added_tokens_decoder().values().all(apart)
}

/// What the post-processor puts before a text: the tokens with it end in, or hold, the tokens without it.
fn beginning(inner: &Inner) -> Vec<u32> {
    let ids = |special: bool| inner.encode_fast("a", special).map(|e| e.get_ids().to_vec()).unwrap_or_default();
    let (with, without) = (ids(true), ids(false));
    let at = with.windows(without.len().max(1)).position(|part| part == without);
    at.map(|at| with[..at].to_vec()).unwrap_or_default()
}

/// Parts of about `size` bytes, each but the first beginning with a blank after a visible ASCII character.
fn divide(text: &str, size: usize) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let end = (start + size..bytes.len())
            .find(|&i| matches!(bytes[i], b' ' | b'\n') && bytes[i - 1].is_ascii_graphic())
            .unwrap_or(bytes.len());
        parts.push(&text[start..end]);
        start = end;
    }
    parts
}

/// GPT-2 spells byte b as the character b where that is printable, and the n-th other byte as U+0100 + n.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut others = 0;
    (0..=255u8)
        .map(|b| {
            if matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                (char::from(b), b)
            } else {
                others += 1;
                (char::from_u32(0xFF + others).expect("below the surrogates"), b)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_gpt2s() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!((alphabet[&'Ġ'], alphabet[&'Ċ'], alphabet[&'a']), (b' ', b'\n', b'a'));
        assert!(ByteLevel::alphabet().iter().all(|c| alphabet.contains_key(c)));
    }

    #[test]
    fn parts_make_the_text_and_begin_with_a_blank() {
        let text = "ab  c\n\nd é f, g\u{a0} h\t i  ".repeat(20);
        let parts = divide(&text, 7);
        assert_eq!(parts.concat(), text);
        assert!(parts.len() > 20 && parts[1..].iter().all(|p| p.starts_with([' ', '\n'])));
        assert!(parts[..parts.len() - 1].iter().all(|p| p.ends_with(|c: char| c.is_ascii_graphic())));
        assert!(divide("", 4).is_empty());
    }
}
