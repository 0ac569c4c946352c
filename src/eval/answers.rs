//! Whether a model's greedy answer is the record's own: exact match on records with a short answer.
//!
//! The answer of a record is what its loss is on (of a conversation, the last reply), without special tokens. The model goes on from what stands
//! before it, the likeliest token each time. What it says ends at a special token and, unless the record's answer has one inside, at a line
//! break after anything was said. Two answers are the same if they are the same text in lower case, runs of blanks being one blank and
//! blanks, quotes and `. , ; : ! ? *` at the ends not counting.
//!
//! A model is heard no further than to where it is wrong: most wrong answers are known by their first token, so that a question costs little
//! more than reading its prompt once.

use crate::backend::Backend;
use crate::data::Example;
use crate::error::Result;
use crate::model::generate::{Sampling, generate};
use crate::model::tokenizer::Tokenizer;
use crate::model::{Config, Decoder};
use serde::{Deserialize, Serialize};

/// Tokens of an answer, at most, where nothing else is said.
pub const SHORT: usize = 8;

/// Tokens that a model may say beyond as many as the record's answer has: it may begin with blanks, or cut words otherwise.
const MORE: usize = 3;

/// A record to ask about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whose: its place in the list of examples.
    pub record: usize,
    /// What stands before the answer.
    pub prompt: Vec<u32>,
    /// The record's answer, as it is compared.
    pub answer: String,
    tokens: usize,
    /// A line break ends what is said.
    one_line: bool,
}

/// How many answers were right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Questions whose greedy answer is the record's.
    pub right: u64,
    /// Questions that were asked.
    pub asked: u64,
}

impl Tally {
    /// Of these answers.
    pub fn of(answers: &[bool]) -> Self {
        Self { right: answers.iter().filter(|r| **r).count() as u64, asked: answers.len() as u64 }
    }

    /// The share that is right; none where nothing was asked.
    pub fn accuracy(&self) -> Option<f64> {
        (self.asked > 0).then(|| self.right as f64 / self.asked as f64)
    }
}

/// The text as it is compared.
fn plain(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || ".,;:!?*\"'`\u{2018}\u{2019}\u{201c}\u{201d}".contains(c);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_matches(ends).to_lowercase()
}

/// Whether a token ends what is said.
fn ends(id: u32, tokenizer: &Tokenizer, eos: Option<u32>) -> bool {
    eos == Some(id) || tokenizer.is_special(id)
}

/// The records whose answer has at most `longest` tokens, is not empty and was not cut off at the context of the model of `config`, in order, each with
/// a prompt.
pub fn questions(
    examples: &[Example],
    tokenizer: &Tokenizer,
    config: &Config,
    longest: usize,
) -> Result<Vec<Question>> {
    let question = |(record, example): (usize, &Example)| -> Result<Option<Question>> {
        let Some(end) = example.learn.iter().rposition(|l| *l).map(|last| last + 1) else { return Ok(None) };
        let start = example.learn[..end].iter().rposition(|l| !*l).map_or(0, |before| before + 1);
        let said = &example.ids[start..end];
        let end = said.iter().position(|&id| ends(id, tokenizer, config.eos));
        let cut = end.is_none() && example.ids.len() >= config.positions;
        let said = &said[..end.unwrap_or(said.len())];
        if start == 0 || cut || said.len() > longest {
            return Ok(None);
        }
        let text = tokenizer.decode(said)?;
        let answer = plain(&text);
        let one_line = !text.trim().contains('\n');
        let prompt = example.ids[..start].to_vec();
        Ok((!answer.is_empty()).then_some(Question { record, prompt, answer, tokens: said.len(), one_line }))
    };
    examples.iter().enumerate().filter_map(|e| question(e).transpose()).collect()
}

/// What has been said after a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Right,
    Wrong,
    /// It may become either.
    Open,
}

/// Judge `said`, which is all that will be said if it has `ended`.
fn judge(question: &Question, said: &str, ended: bool) -> Heard {
    let begun = said.trim_start();
    let line = if question.one_line { begun.find('\n') } else { None };
    let (ended, said) = (ended || line.is_some(), &begun[..line.unwrap_or(begun.len())]);
    if ended {
        return if plain(said) == question.answer { Heard::Right } else { Heard::Wrong };
    }
    // A character may lack its last bytes, and what is an end now may be inside later.
    let so_far = plain(said.trim_end_matches('\u{fffd}'));
    if question.answer.starts_with(&so_far) { Heard::Open } else { Heard::Wrong }
}

/// Ask every question; whether each answer is right. `done` is called after each.
pub fn ask<B: Backend>(
    decoder: &Decoder<B>,
    tokenizer: &Tokenizer,
    questions: &[Question],
    mut done: impl FnMut() -> Result<()>,
) -> Result<Vec<bool>> {
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
    let mut answers = Vec::with_capacity(questions.len());
    for question in questions {
        let (mut said, mut heard) = (Vec::new(), Heard::Open);
        generate(decoder, &question.prompt, question.tokens + MORE, &greedy, 0, true, |id| {
            let ended = ends(id, tokenizer, decoder.config.eos);
            if !ended {
                said.push(id);
            }
            heard = judge(question, &tokenizer.decode(&said)?, ended);
            Ok(heard == Heard::Open)
        })?;
        // Whoever has not ended where there was room to end has not given this answer.
        answers.push(heard == Heard::Right);
        done()?;
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(answer: &str) -> Question {
        Question { record: 0, prompt: vec![1], answer: plain(answer), tokens: 1, one_line: !answer.contains('\n') }
    }

    #[test]
    fn answers_are_compared_as_plain_text() {
        for (a, b) in [
            ("Business", " business."),
            ("Yes", "\"Yes!\""),
            ("New  York", "new\u{a0}york"),
            ("\u{201c}No\u{201d}", "no"),
            ("St. Louis", "st. louis."),
        ] {
            assert_eq!(plain(a), plain(b));
        }
        for (a, b) in [("-3", "3"), ("3.5", "35"), ("$5", "5"), ("a cat", "cat"), ("C", "C++")] {
            assert_ne!(plain(a), plain(b));
        }
    }

    #[test]
    fn an_answer_is_judged_as_soon_as_it_is_known() {
        let q = question("St. Louis");
        // It may still come: blanks before it, a full stop that is inside later, half a character.
        for said in ["", "\n", "St", "St.", " st. l", "St. Louis", "St. Louis.", "St. Lou\u{fffd}"] {
            assert_eq!(judge(&q, said, false), Heard::Open, "{said:?}");
        }
        assert_eq!(judge(&q, "St. Paul", false), Heard::Wrong);
        assert_eq!(judge(&q, "St. Louis is", false), Heard::Wrong);
        assert_eq!(judge(&q, "\nSt. Louis\nis", false), Heard::Right);
        assert_eq!(judge(&q, "St.\nLouis", false), Heard::Wrong);
        assert_eq!(judge(&q, " st. louis. ", true), Heard::Right);
        assert_eq!(judge(&q, "St.", true), Heard::Wrong);
        assert_eq!(judge(&q, "", true), Heard::Wrong);
        // An answer of two lines goes on over the first.
        let two = question("a\nb");
        assert_eq!((judge(&two, "a\n", false), judge(&two, "A\nB", true)), (Heard::Open, Heard::Right));
    }
}
