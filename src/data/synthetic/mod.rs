//! The program's own world: a public corpus to learn a language from, and private records to betray or to keep.
//!
//! Everything is generated from a seed; nothing is stored but word lists and phrases. Any item can be had by its
//! number without those before it. The splits of the private part are disjoint by construction: a record's number, with its split's, goes
//! through a permutation to the person and town that the record is about, so no two records of one seed are about the same.

mod grammar;
mod private;
mod public;
mod words;

use crate::error::{Error, Result, quoted};
use serde_json::{Value, json};

/// The seed of the world that the embedded model knows.
pub const SEED: u64 = 2024;

/// Parts of the world, each with draws of its own.
const PUBLIC_TRAIN: u32 = 1;
const PUBLIC_TEST: u32 = 2;
const PRIVATE: u32 = 3;

/// Which half of the public text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Public {
    /// What the embedded model was trained on.
    Train,
    /// What it was not.
    Test,
}

/// `n` public paragraphs, one a line, with `<|endoftext|>` after every fourth.
pub fn public_text(seed: u64, part: Public, n: u64) -> String {
    let part = if part == Public::Train { PUBLIC_TRAIN } else { PUBLIC_TEST };
    let mut text = String::new();
    for i in 0..n {
        text.push_str(&public::paragraph(seed, part, i));
        text.push('\n');
        if i % public::DOCUMENT == public::DOCUMENT - 1 {
            text.push_str("<|endoftext|>");
        }
    }
    text
}

/// Which private records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Members: trained on.
    Train,
    /// Non-members: measured on.
    Test,
    /// For choosing settings; no result is taken from it.
    Tuning,
    /// Of the attacker: shadow model k's own records, k up to 4092.
    Shadow(u16),
}

impl Split {
    /// Shadow splits that there are.
    pub const SHADOWS: u16 = (1 << private::SPLIT_BITS) - 3;
    /// Records that a split has.
    pub const RECORDS: u64 = 1 << private::ITEM_BITS;

    fn number(self) -> u64 {
        match self {
            Split::Train => 0,
            Split::Test => 1,
            Split::Tuning => 2,
            Split::Shadow(k) => 3 + u64::from(k),
        }
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Split::Train => f.write_str("train"),
            Split::Test => f.write_str("test"),
            Split::Tuning => f.write_str("tuning"),
            Split::Shadow(k) => write!(f, "shadow-{k}"),
        }
    }
}

impl std::str::FromStr for Split {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let shadow = || name.strip_prefix("shadow-")?.parse().ok().filter(|&k| k < Self::SHADOWS);
        Ok(match name {
            "train" => Split::Train,
            "test" => Split::Test,
            "tuning" => Split::Tuning,
            _ => Split::Shadow(shadow().ok_or_else(|| {
                let last = Self::SHADOWS - 1;
                let name = quoted(name);
                Error::usage(format!(
                    "there is no split \"{name}\": train, test, tuning, and shadow-0 to shadow-{last}"
                ))
            })?),
        })
    }
}

/// One private record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its split and number.
    pub id: String,
    /// What the assistant is told to be.
    pub system: String,
    /// About whom it is asked.
    pub question: String,
    /// What it knows.
    pub answer: String,
    /// The password in the answer: what an extraction attack wants.
    pub secret: String,
}

impl Record {
    /// The record as the data loader reads it: `messages`, with `id` and `secret` beside them.
    pub fn to_json(&self) -> Value {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        json!({
            "messages": [
                message("system", &self.system), message("user", &self.question), message("assistant", &self.answer)
            ],
            "id": self.id,
            "secret": self.secret,
        })
    }
}

/// Refuse more records than a split has.
pub fn check_count(n: u64) -> Result<()> {
    if n > Split::RECORDS {
        return Err(Error::usage(format!("{n} records of a split were asked for: there are {}", Split::RECORDS)));
    }
    Ok(())
}

/// The first `n` records of `split`.
pub fn private_records(seed: u64, split: Split, n: u64) -> Result<Vec<Record>> {
    check_count(n)?;
    if split.number() >> private::SPLIT_BITS != 0 {
        let what = format!("there is no split {split}: shadow splits go up to shadow-{}", Split::SHADOWS - 1);
        return Err(Error::usage(what));
    }
    let record = |item| {
        let [system, question, answer, secret] = private::record(seed, split.number(), item);
        Record { id: format!("{split}-{item}"), system, question, answer, secret }
    };
    Ok((0..n).map(record).collect())
}

/// Records as JSON lines.
pub fn to_jsonl(records: &[Record]) -> String {
    records.iter().map(|r| r.to_json().to_string() + "\n").collect()
}

/// What may stand for a file of records: `embedded`, `embedded:SPLIT` or `embedded:SPLIT:N`; without them, the training split
/// and [`RECORDS`] records. A real file of such a name is reached as `./embedded`.
pub struct Request;

/// Records of `embedded`, unless it says how many.
pub const RECORDS: u64 = 1000;

impl Request {
    /// Split and number of records that `name` asks for; none where it means a file.
    pub fn parse(name: &str) -> Option<Result<(Split, u64)>> {
        let mut parts = name.split(':');
        if parts.next() != Some("embedded") {
            return None;
        }
        let split = parts.next().map_or(Ok(Split::Train), str::parse);
        let n = parts.next().map_or(Ok(RECORDS), |n| match n.parse() {
            Ok(n) if parts.next().is_none() => Ok(n),
            _ => Err(Error::usage(format!("{name}: a number of records is expected last, as in embedded:test:500"))),
        });
        Some(split.and_then(|split| Ok((split, n?))))
    }
}
