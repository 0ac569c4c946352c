//! Templates, the tables that fill them, and the draws that choose.
//!
//! `{name}` in a template is a fact of the text at hand, or else a line drawn from the first table that has one of that name;
//! what is drawn may hold slots itself. `{a:name}` puts "a" or "an" before it, `{s:name}` makes it plural.

use crate::rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Lines by name.
pub(super) type Table = [(&'static str, &'static [&'static str])];

/// The draws of one item. Every (seed, part, item) has a key stream of its own, so any item can be had without those before it.
pub(super) struct Draws(ChaCha8Rng);

impl Draws {
    pub fn new(seed: u64, part: u32, item: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..12].copy_from_slice(&part.to_le_bytes());
        key[16..].copy_from_slice(b"ferret world v01");
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(item);
        Self(rng)
    }

    /// Uniform on `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        rng::below(n as u64, || self.0.next_u64()) as usize
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Facts of one text by name.
pub(super) type Facts<'a> = [(&'a str, String)];

/// `template` with its slots filled. An unknown slot is a bug in a table, and panics.
pub(super) fn expand(template: &str, facts: &Facts, tables: &[&Table], draws: &mut Draws) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (slot, after) = after.split_once('}').expect("a slot is closed");
        out.push_str(before);
        rest = after;
        let (form, name) = slot.split_once(':').unwrap_or(("", slot));
        let fact = facts.iter().find(|(n, _)| *n == name).map(|(_, text)| text.clone());
        let text = fact.unwrap_or_else(|| {
            let lines = tables.iter().find_map(|t| t.iter().find(|(n, _)| *n == name));
            let (_, lines) = lines.unwrap_or_else(|| panic!("no table has {name:?}"));
            expand(draws.pick(lines), facts, tables, draws)
        });
        out.push_str(match form {
            "a" if text.starts_with(['a', 'e', 'i', 'o', 'u']) => "an ",
            "a" => "a ",
            _ => "",
        });
        match (form, text.strip_suffix('y')) {
            ("s", Some(stem)) => out.extend([stem, "ies"]),
            ("s", None) => out.extend([text.as_str(), if text.ends_with(['s', 'x']) { "es" } else { "s" }]),
            _ => out.push_str(&text),
        }
    }
    out + rest
}

/// `text` with its first letter upper case.
pub(super) fn sentence(text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(at) = text.find(|c: char| c.is_ascii_alphanumeric()) {
        text[at..=at].make_ascii_uppercase();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_filled_from_facts_before_tables() {
        const T: &Table = &[("x", &["{y} b"]), ("y", &["oak"])];
        let mut draws = Draws::new(1, 2, 3);
        let facts = [("z", "apple".to_owned()), ("y", "elm".to_owned())];
        assert_eq!(expand("{a:z}, {x}, {a:x}.", &facts, &[T], &mut draws), "an apple, elm b, an elm b.");
        assert_eq!(expand("{a:x}", &[], &[&[("y", &["fir"])], T], &mut draws), "a fir b");
        assert_eq!(
            expand("{s:a} {s:b} {s:c}", &[], &[&[("a", &["boat"]), ("b", &["box"]), ("c", &["story"])]], &mut draws),
            "boats boxes stories"
        );
        assert_eq!((sentence("a b"), sentence("\"a b")), ("A b".into(), "\"A b".into()));
    }

    #[test]
    fn items_have_streams_of_their_own() {
        let first =
            |seed, part, item| (0..8).scan(Draws::new(seed, part, item), |d, _| Some(d.below(1 << 30))).collect();
        let base: Vec<usize> = first(1, 1, 1);
        assert_eq!(base, first(1, 1, 1));
        for other in [first(2, 1, 1), first(1, 2, 1), first(1, 1, 2)] {
            assert_ne!(base, other);
        }
    }
}
