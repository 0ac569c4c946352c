//! Records, and the token sequences the decoder learns from.
//!
//! [`load_examples`] reads a file and says what it cut. [`records`] says how each kind of record becomes tokens,
//! [`text`] how a plain text becomes windows, [`users`] how all that a person gave becomes one example.

pub mod batches;
mod chat;
pub mod digest;
mod file;
pub mod records;
pub mod synthetic;
#[cfg(feature = "formats")]
mod table;
pub mod text;
pub mod users;
#[cfg(feature = "formats")]
mod zst;

use crate::error::{Error, Result};
use crate::fsio;
use crate::model::config::Config;
use crate::model::tokenizer::Tokenizer;
use std::collections::{HashMap, HashSet};
use std::path::Path;

pub use digest::examples_sha256;
pub use file::{read as read_text, read_at_most};
pub use users::Unit;

/// One tokenised record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
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
    /// What an example stands for.
    pub unit: Unit,
}

impl LoadOptions {
    /// The model's context, vocabulary and end-of-text token; loss on responses; windows side by side; an example a record.
    pub fn new(config: &Config) -> Self {
        Self {
            context: config.positions,
            vocab: config.vocab,
            eos: config.eos,
            loss: Loss::default(),
            stride: None,
            unit: Unit::Record,
        }
    }
}

/// A file's examples, and what was lost on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// One a record, in the file's order (windows, for plain text; users in the order of their first records). A record without a
    /// target stays, so that example i is record i.
    pub examples: Vec<Example>,
    /// Whether each example is all that a user gave.
    pub users: bool,
    /// Whether the examples are windows of a plain text.
    pub windows: bool,
    /// Records longer than the context.
    pub truncated: usize,
    /// Tokens cut off them.
    pub tokens_cut: usize,
    /// Records in which no token counts in the loss: empty, of one token, or with the response cut off.
    pub without_target: usize,
    /// By user: records of which nothing is used, being beyond the cap or the context.
    pub left_out: usize,
    /// Whether some records name a user although an example is a record.
    pub names_users: bool,
    /// Whether there are conversations, and the model has no chat template to write them by.
    pub plain_chat: bool,
    /// Responses that end with a sign of the tokenizer's that is not the model's end-of-text: both are then learnt, one after the other.
    pub other_ends: usize,
    /// By user: every line by itself, the unused ones too.
    lines: Vec<Example>,
    /// By user: whose each example is.
    names: Vec<String>,
}

impl Dataset {
    /// Every record of the file by itself, whatever the unit: to ask which of them are in another file too.
    pub fn records(&self) -> &[Example] {
        if self.users { &self.lines } else { &self.examples }
    }

    /// What makes example `i` the same as one of another file: the user's name where an example is a user, else its tokens; none where no token
    /// counts, which is then as good as not there. As secret as the records.
    pub(crate) fn identity(&self, i: usize) -> Option<Vec<u8>> {
        match self.users {
            true => Some([&[1], self.names[i].as_bytes()].concat()),
            false => {
                let example = &self.examples[i];
                let ids = example.ids.iter().flat_map(|id| id.to_le_bytes());
                (example.targets() > 0).then(|| std::iter::once(0).chain(ids).collect())
            }
        }
    }

    /// Tokens over all examples (overlapping windows count twice).
    pub fn tokens(&self) -> usize {
        self.examples.iter().map(|e| e.ids.len()).sum()
    }

    /// Tokens that count in the loss.
    pub fn targets(&self) -> usize {
        self.examples.iter().map(Example::targets).sum()
    }

    /// Examples that are copies, token for token, of an earlier one, and how often the most frequent example is there.
    pub fn copies(&self) -> (usize, usize) {
        let mut seen: HashMap<&Example, usize> = HashMap::new();
        self.examples.iter().filter(|e| e.targets() > 0).for_each(|e| *seen.entry(e).or_default() += 1);
        let (all, most) = seen.values().fold((0, 0), |(all, most), &n| (all + n, most.max(n)));
        (all - seen.len(), most)
    }

    /// Says that responses end otherwise than the model ends them.
    pub fn note_of_ends(&self) -> Option<String> {
        let what = "records have a response that ends with a special token other than this model's end-of-text, which is added behind it: they were \
                    made for another model, and are better without it";
        (self.other_ends > 0).then(|| format!("{} {what}", self.other_ends))
    }

    /// Sentences for whoever holds the records, for stderr: what was cut, and copies. They count and quote nothing.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let all = self.examples.len();
        if self.users {
            notes.push(format!("{all} users, each sampled and clipped as one: what is promised is about a user"));
        } else if self.names_users {
            notes.push(
                "records name their \"user\", and each counts by itself: `unit` user makes a promise about a person"
                    .into(),
            );
        }
        if self.plain_chat {
            notes.push(
                "the model has no chat template: conversations are written as lines, \"user: ..\", \"assistant: ..\", with end-of-text \
                 after each reply"
                    .into(),
            );
        }
        notes.extend(self.note_of_ends());
        if self.left_out > 0 {
            notes.push(format!(
                "{} records are not used: their users have others before them, up to the limit or the context",
                self.left_out
            ));
        }
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
        if let (copies @ 1.., most) = self.copies() {
            let what =
                if self.users { "users gave exactly what another one did" } else { "records are copies of others" };
            notes.push(format!(
                "{copies} of {all} {what} (the most frequent is there {most} times): what is promised about one adds up over its \
                 copies"
            ));
        }
        notes
    }
}

/// How many of `others` are among `records`, token by token. What has no token to predict is as good as not there.
pub fn shared(records: &[Example], others: &[Example]) -> usize {
    let known: HashSet<&[u32]> = records.iter().map(|e| &e.ids[..]).collect();
    others.iter().filter(|e| e.targets() > 0 && known.contains(&e.ids[..])).count()
}

/// Read `path`: `embedded` ([`synthetic::Request`]), JSON lines or a JSON array (`.jsonl`, `.ndjson`, `.json`; see [`records`]) or plain text
/// (`.txt`, `.text`, `.raw`, `.md`; see [`text`]), each also with `.gz` behind it; with the feature `formats` also with `.zst`, and a record a row
/// of a `.parquet`. Without a tokenizer, only records of tokens can be read. At least one token must count in the loss.
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
    let lines = match file::kind(path).as_deref() {
        Some("jsonl" | "ndjson" | "json" | file::TABLE) => true,
        Some("txt" | "text" | "raw" | "md") => false,
        _ => {
            fsio::must_be_file(path)?;
            let what = "the name does not say what it holds: .jsonl (a JSON object a line), .json (an array of them) and .txt (plain text) are read, and \
                        with .gz or .zst behind it; and .parquet";
            return Err(Error::file(path, what));
        }
    };
    let content = file::read(path)?;
    let table = file::kind(path).as_deref() == Some(file::TABLE);
    let content = content.strip_prefix('\u{FEFF}').unwrap_or(&content);
    if content.trim().is_empty() {
        return Err(Error::file(path, "is empty: there is nothing to learn from"));
    }
    let dataset = if lines {
        no_stride(path, options)?;
        match file::array(path, content)? {
            _ if table => records::load_counted(path, content, "row", tokenizer, options)?,
            Some(lines) => records::load_counted(path, &lines, "record", tokenizer, options)?,
            None => records::load(path, content, tokenizer, options)?,
        }
    } else {
        if options.unit != Unit::Record {
            let what =
                "is plain text, which names no users: give records with a \"user\" each, or leave out `unit` user";
            return Err(Error::file(path, what));
        }
        text::load(path, content, tokenizer, options)?
    };
    must_teach(path, dataset, options)
}

/// Windows are cut from plain text alone.
fn no_stride(path: &Path, options: &LoadOptions) -> Result<()> {
    match options.stride {
        None => Ok(()),
        Some(_) => Err(Error::usage(format!(
            "`stride` belongs to plain text (.txt), and {} holds records, one window each: leave it out",
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
