//! Which tensors are tuned: all of them, or those that a few words name. The others are frozen: they get no gradient, no moment, no decay and
//! no part in a norm, never fire, and are not counted among the groups.
//!
//! ```text
//! all                          every tensor
//! bias                         every bias, those of norms too
//! norms                        every norm, gain and bias
//! last:N                       the last N blocks
//! lora                         the adapter beside the model, and nothing else
//! h.11.mlp, q_proj, h.*.attn   tensors by name, as `inspect` shows it: whole words, side by side; * stands for any characters
//! ```
//! Words are joined by commas: `last:1,ln_f,bias`. A tied embedding is one tensor, so it is tuned in both its places or in none. What a word
//! means is part of every transcript that has it, and never changes.

use crate::error::{Error, Result};
use crate::model::layout::{Module, ParamSpec, Place};
use crate::model::{Adapter, Layout, ParamId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The tensors that a run changes, by name. Nothing is named by default: all are tuned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tune(Vec<Word>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Bias,
    Norms,
    Last(usize),
    Lora,
    Named(String),
}

/// Characters of a whole list, far above any.
const MOST: usize = 1000;

impl Tune {
    /// Whether every tensor is tuned.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it goes with a fresh `adapter`, where there is to be one.
    pub fn check(&self, adapter: Option<&Adapter>) -> Result<()> {
        match adapter {
            Some(_) if !self.is_lora() => Err(Error::usage(format!(
                "`tune` {self} does not tune the adapter that the run begins with: give lora"
            ))),
            Some(adapter) => adapter.check(),
            None => Ok(()),
        }
    }

    /// Whether an adapter is what is tuned.
    pub fn is_lora(&self) -> bool {
        self.0 == [Word::Lora]
    }

    /// The tuned tensors of `layout`, in its order: at least one. Refuses a word that names none.
    pub fn ids(&self, layout: &Layout) -> Result<Vec<ParamId>> {
        if layout.specs().iter().any(|s| s.adapter.is_some()) && self.0 != [Word::Lora] {
            return Err(Error::usage(format!(
                "`tune` {self} on a model with an adapter: give lora, which tunes the adapter alone, or merge the adapter first"
            )));
        }
        if self.is_all() {
            return Ok(layout.ids().collect());
        }
        let blocks = layout.blocks.len();
        for word in &self.0 {
            match word {
                Word::Last(n) if *n > blocks => {
                    return Err(Error::usage(format!(
                        "`tune` {word} asks for more blocks than the model has: give last:1 to last:{blocks}"
                    )));
                }
                Word::Lora if layout.specs().iter().all(|s| s.adapter.is_none()) => {
                    return Err(Error::usage(
                        "`tune` lora on a model without an adapter: give the adapter, or its rank",
                    ));
                }
                word if layout.specs().iter().any(|s| word.names(s, blocks)) => {}
                word => {
                    return Err(Error::usage(format!(
                        "`tune` {word} names no tensor of the model: it has {}",
                        names(layout).join(", ")
                    )));
                }
            }
        }
        Ok(layout.ids().filter(|&p| self.0.iter().any(|w| w.names(layout.spec(p), blocks))).collect())
    }
}

impl Word {
    /// Whether it names this tensor of a decoder of so many blocks.
    fn names(&self, spec: &ParamSpec, blocks: usize) -> bool {
        match self {
            Word::Bias => spec.bias,
            Word::Norms => matches!(
                spec.module,
                Module::EmbeddingNorm
                    | Module::Norm1
                    | Module::QueryNorm
                    | Module::KeyNorm
                    | Module::Norm2
                    | Module::FinalNorm
            ),
            Word::Lora => spec.adapter.is_some(),
            Word::Last(n) => matches!(spec.place, Place::Block(l) if l + n >= blocks),
            Word::Named(pattern) => {
                let name = spec.name.as_str();
                let dots = || name.match_indices('.').map(|(at, _)| at);
                let ends = || dots().chain([name.len()]);
                let mut begins = std::iter::once(0).chain(dots().map(|at| at + 1));
                begins.any(|begin| ends().any(|end| begin < end && fits(pattern, &name[begin..end])))
            }
        }
    }
}

/// Whether `pattern`, in which * stands for any characters, is `text`.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The first place is as good as any: what follows has the more left to look in.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The tensors' names, those of all blocks as one.
fn names(layout: &Layout) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for spec in layout.specs() {
        let name = match spec.place {
            Place::Block(l) => spec.name.replacen(&format!(".{l}."), ".*.", 1),
            _ => spec.name.clone(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Word::Bias => f.write_str("bias"),
            Word::Norms => f.write_str("norms"),
            Word::Lora => f.write_str("lora"),
            Word::Last(n) => write!(f, "last:{n}"),
            Word::Named(pattern) => f.write_str(pattern),
        }
    }
}

impl fmt::Display for Tune {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.is_all() {
            return f.write_str("all");
        }
        let words: Vec<String> = self.0.iter().map(Word::to_string).collect();
        f.write_str(&words.join(","))
    }
}

impl FromStr for Tune {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::default());
        }
        if text.len() > MOST {
            return Err(format!("a list of tensors has at most {MOST} characters, not {}", text.len()));
        }
        // Statements repeat the words: a sentence in their place would be a promise that no one made.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*');
        let word = |word: &str| match word {
            "bias" => Ok(Word::Bias),
            "norms" => Ok(Word::Norms),
            "lora" => Ok(Word::Lora),
            word if word.starts_with("last:") => match word["last:".len()..].parse() {
                Ok(n) if n > 0 => Ok(Word::Last(n)),
                _ => Err(format!("\"{word}\" is no number of last blocks: give last:1, last:2 and so on")),
            },
            "all" => Err("\"all\" leaves nothing to add: give it alone".to_owned()),
            word if !word.is_empty() && word.chars().all(plain) => Ok(Word::Named(word.to_owned())),
            word => Err(format!(
                "\"{word}\" does not name tensors: expected all, bias, norms, last:N, lora, or words of tensors' names, with * for any characters"
            )),
        };
        let words: Vec<Word> = text.split(',').map(|w| word(w.trim())).collect::<Result<_, _>>()?;
        if words.len() > 1 && words.contains(&Word::Lora) {
            return Err("\"lora\" freezes the model itself: give it alone".to_owned());
        }
        Ok(Self(words))
    }
}

impl From<Tune> for String {
    fn from(tune: Tune) -> String {
        tune.to_string()
    }
}

impl TryFrom<String> for Tune {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;
    use crate::model::family::Preset;

    fn layout(preset: &str) -> Layout {
        Layout::new(&Config { layers: 12, ..Preset::find(preset).unwrap().config() })
    }

    fn tuned(layout: &Layout, text: &str) -> Vec<String> {
        let ids = text.parse::<Tune>().unwrap().ids(layout).unwrap();
        ids.iter().map(|&p| layout.spec(p).name.clone()).collect()
    }

    #[test]
    fn words_name_what_they_say() {
        let gpt2 = layout("gpt2");
        assert_eq!(tuned(&gpt2, "all").len(), gpt2.len());
        assert!(tuned(&gpt2, "bias").iter().all(|n| n.ends_with(".bias")));
        // Six biases a block and the final norm's.
        assert_eq!(tuned(&gpt2, "bias").len(), 12 * 6 + 1);
        assert_eq!(tuned(&gpt2, "norms").len(), 2 * (12 * 2 + 1));
        assert_eq!(tuned(&gpt2, "last:2"), tuned(&gpt2, "h.10,h.11"));
        assert_eq!(tuned(&gpt2, "last:2").len(), 24);
        // Whole words: block 1 is not blocks 10 and 11.
        assert!(tuned(&gpt2, "h.1").iter().all(|n| n.starts_with("h.1.")));
        assert_eq!(tuned(&gpt2, "h.1*").len(), 3 * 12);
        assert_eq!(tuned(&gpt2, "mlp.c_fc.weight").len(), 12);
        assert_eq!(tuned(&gpt2, "h.*.attn.*.bias").len(), 24);
        assert_eq!(tuned(&gpt2, "wte"), ["wte.weight"]);
        // In the layout's order, each once.
        assert_eq!(tuned(&gpt2, "ln_f, wpe ,ln_f.weight"), ["wpe.weight", "ln_f.weight", "ln_f.bias"]);
        let llama = layout("smollm-135m");
        assert_eq!(tuned(&llama, "q_proj,v_proj").len(), 24);
        assert_eq!(tuned(&llama, "norms").len(), 25);
    }

    #[test]
    fn patterns_are_what_a_search_of_all_ways_finds() {
        fn slow(p: &[u8], t: &[u8]) -> bool {
            match (p.first(), t.first()) {
                (None, None) => true,
                (Some(b'*'), _) if slow(&p[1..], t) => true,
                (Some(b'*'), Some(_)) => slow(p, &t[1..]),
                (Some(a), Some(b)) if a == b => slow(&p[1..], &t[1..]),
                _ => false,
            }
        }
        let all = |letters: &[u8], most: u32| -> Vec<String> {
            let n = letters.len();
            let words = (0..=most).flat_map(move |len| (0..n.pow(len)).map(move |i| (len, i)));
            let word = |(len, i): (u32, usize)| (0..len).map(|d| letters[i / n.pow(d) % n] as char).collect();
            words.map(word).collect()
        };
        for pattern in all(b"ab*", 5) {
            for text in all(b"ab", 5) {
                assert_eq!(fits(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_the_names_there_are() {
        let llama = layout("smollm-135m");
        for (text, part) in [
            ("q_porj", "layers.*.self_attn.q_proj.weight"),
            ("bias", "names no tensor"),
            ("norms,wte", "wte names no tensor"),
            ("last:13", "last:1 to last:12"),
        ] {
            let error = text.parse::<Tune>().unwrap().ids(&llama).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for bad in [
            "",
            ",",
            "bias,",
            "last:0",
            "last:",
            "last:-1",
            "all,bias",
            "lora,bias",
            "a b",
            "x\ny",
            "a:b",
            &"x".repeat(1001),
        ] {
            assert!(bad.parse::<Tune>().is_err(), "{bad}");
        }
    }

    #[test]
    fn text_and_back() {
        for text in ["all", "bias", "norms,last:2", "h.*.attn,wte"] {
            let tune: Tune = text.parse().unwrap();
            assert_eq!(tune.to_string(), text);
            let json = serde_json::to_string(&tune).unwrap();
            assert_eq!(serde_json::from_str::<Tune>(&json).unwrap(), tune);
        }
        assert!(Tune::default().is_all());
    }
}
