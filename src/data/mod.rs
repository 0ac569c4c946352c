//! Records, and the token sequences the decoder learns from.
//!
//! [`load_examples`] reads a file and says what it cut. [`records`] says how each kind of record becomes tokens,
//! [`text`] how a plain text becomes windows.

pub mod batches;
pub mod records;
pub mod synthetic;
pub mod text;

use crate::error::{Error, Result};
use crate::fsio;
use crate::model::config::Config;
use crate::model::tokenizer::Tokenizer;
use std::path::Path;

/// One tokenised record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// The tokens, at most the context long.
    pub ids: Vec<u32>,
    /// Whether `ids[i]` counts in the loss (predicted from the tokens before it). `learn[0]` is never true.
    pub learn: Vec<bool>,
}

impl Example {
    /// A record whose every token but the first counts.
    pub fn all(ids: Vec<u32>) -> Self {
        let learn = (0..ids.len()).map(|i| i > 0).collect();
        Self { ids, learn }
    }

    /// How many tokens count in the loss.
    pub fn targets(&self) -> usize {
        self.learn.iter().filter(|&&l| l).count()
    }
}

/// Which tokens of a record with a prompt count in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Loss {
    /// The response's, and the end-of-text token after it.
    #[default]
    Response,
    /// The prompt's too.
    Everything,
}

/// How a file becomes examples.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Longest example, in tokens; longer records are cut at the end, and counted.
    pub context: usize,
    /// The model's vocabulary: a token id beyond it is refused.
    pub vocab: usize,
    /// Put after a response that does not end with it; none: nothing is ever added.
    pub eos: Option<u32>,
    /// What counts in records with a prompt.
    pub loss: Loss,
    /// Plain text: distance between the starts of windows; none: the context, so that windows do not overlap.
    pub stride: Option<usize>,
}

impl LoadOptions {
    /// The model's context, vocabulary and end-of-text token; loss on responses; windows side by side.
    pub fn new(config: &Config) -> Self {
        Self { context: config.positions, vocab: config.vocab, eos: config.eos, loss: Loss::default(), stride: None }
    }
}

/// A file's examples, and what was lost on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// One a record, in the file's order (windows, for plain text). A record without a target stays, so that example
    /// i is record i.
    pub examples: Vec<Example>,
    /// Whether the examples are windows of a plain text.
    pub windows: bool,
    /// Records longer than the context.
    pub truncated: usize,
    /// Tokens cut off them.
    pub tokens_cut: usize,
    /// Records in which no token counts in the loss: empty, of one token, or with the response cut off.
    pub without_target: usize,
}

impl Dataset {
    /// Tokens over all examples (overlapping windows count twice).
    pub fn tokens(&self) -> usize {
        self.examples.iter().map(|e| e.ids.len()).sum()
    }

    /// Tokens that count in the loss.
    pub fn targets(&self) -> usize {
        self.examples.iter().map(Example::targets).sum()
    }

    /// Sentences about what was cut, for stderr; none where nothing was.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let all = self.examples.len();
        if self.truncated > 0 {
            notes.push(format!(
                "{} of {all} records are longer than the context and were cut: {} tokens are not used",
                self.truncated, self.tokens_cut
            ));
        }
        if self.without_target > 0 {
            notes.push(format!(
                "{} of {all} records have no token to predict, and count for nothing",
                self.without_target
            ));
        }
        notes
    }
}

/// Read `path`: `embedded` ([`synthetic::Request`]), JSON lines (`.jsonl`, `.ndjson`, `.json`; see [`records`]) or plain text (`.txt`, `.text`, `.raw`,
/// `.md`; see [`text`]). Without a tokenizer, only records of tokens can be read. At least one token must count in the loss.
pub fn load_examples(path: &Path, tokenizer: Option<&Tokenizer>, options: &LoadOptions) -> Result<Dataset> {
    if options.context == 0 {
        return Err(Error::usage("a context of 0 tokens leaves nothing to learn from: give at least 2"));
    }
    if let Some(request) = path.to_str().and_then(synthetic::Request::parse) {
        let (split, n) = request?;
        if n == 0 {
            return Err(Error::file(path, "0 records leave nothing to learn from: ask for at least 1"));
        }
        no_stride(path, options)?;
        let records = synthetic::private_records(synthetic::SEED, split, n)?;
        let dataset = records::load(path, &synthetic::to_jsonl(&records), tokenizer, options)?;
        return must_teach(path, dataset, options);
    }
    let lines = match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("jsonl" | "ndjson" | "json") => true,
        Some("txt" | "text" | "raw" | "md") => false,
        _ => {
            fsio::must_be_file(path)?;
            let what =
                "the name does not say what it holds: .jsonl (a JSON object a line) and .txt (plain text) are read";
            return Err(Error::file(path, what));
        }
    };
    let content = fsio::read_text(path)?;
    let content = content.strip_prefix('\u{FEFF}').unwrap_or(&content);
    if content.trim().is_empty() {
        return Err(Error::file(path, "is empty: there is nothing to learn from"));
    }
    let dataset = if lines {
        no_stride(path, options)?;
        records::load(path, content, tokenizer, options)?
    } else {
        text::load(path, content, tokenizer, options)?
    };
    must_teach(path, dataset, options)
}

/// Windows are cut from plain text alone.
fn no_stride(path: &Path, options: &LoadOptions) -> Result<()> {
    match options.stride {
        None => Ok(()),
        Some(_) => Err(Error::usage(format!(
            "--stride belongs to plain text (.txt), and {} holds records, one window each: leave it out",
            path.display()
        ))),
    }
}

/// Refuse data in which no token counts.
fn must_teach(path: &Path, dataset: Dataset, options: &LoadOptions) -> Result<Dataset> {
    if dataset.targets() == 0 {
        let what = format!(
            "none of its {} records has a token to predict within the context of {}: there is nothing to learn from",
            dataset.examples.len(),
            options.context
        );
        return Err(Error::file(path, what));
    }
    Ok(dataset)
}

/// The sentence for data that needs a tokenizer where there is none.
fn no_tokenizer() -> String {
    "text needs a tokenizer, and the model's folder has none: add tokenizer.json (or vocab.json and merges.txt) there, \
     or give records of tokens, {\"tokens\": [1, 2, 3]}"
        .into()
}
