//! Planting secrets in a file of records, and looking for them in a model: the tensor side of [`crate::audit::canary`].

use super::{Cache, token_stats};
use crate::audit::canary::{Canary, Exposure, Format, exposure, plan};
use crate::audit::one_run;
use crate::audit::stats::SeededRng;
use crate::backend::Backend;
use crate::data::Example;
use crate::error::{Error, Result, quoted};
use crate::model::Decoder;
use crate::model::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// In a pattern, stands for the canary's number, so that every canary has a prompt of its own.
pub const NUMBER: &str = "{number}";

/// A canary with the shape its secret was drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlantedCanary {
    /// The shape; the same for all canaries unless the pattern numbers them.
    pub format: Format,
    /// Its secret, and how often it was planted.
    #[serde(flatten)]
    pub canary: Canary,
}

/// What was planted: the auditor's secret list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planting {
    /// Of this form.
    pub version: u32,
    /// As it was asked for.
    pub pattern: String,
    /// Of secrets, places and coins.
    pub seed: u64,
    /// Whether a fair coin decided for each canary if it is in, once, or out: then a one-run audit can be made.
    pub coin_flip: bool,
    /// All secrets, planted or not.
    pub canaries: Vec<PlantedCanary>,
}

const VERSION: u32 = 1;

impl Planting {
    /// `each` canaries at every frequency.
    pub fn at_frequencies(pattern: &str, frequencies: &[u32], each: usize, seed: u64) -> Result<Self> {
        let repeats: Vec<u32> = frequencies.iter().flat_map(|&f| std::iter::repeat_n(f, each)).collect();
        Self::new(pattern, &repeats, seed, false)
    }

    /// `count` canaries, each in once or out by a fair coin.
    pub fn by_coins(pattern: &str, count: usize, seed: u64) -> Result<Self> {
        // Secrets come from another stream than coins: they must not tell them.
        Self::new(pattern, &coins(count, seed), seed, true)
    }

    fn new(pattern: &str, repeats: &[u32], seed: u64, coin_flip: bool) -> Result<Self> {
        if repeats.is_empty() {
            return Err(Error::usage("no canaries were asked for: give at least one frequency and one canary"));
        }
        const SECRETS: u64 = 0x7365_6372_6574;
        let numbered = pattern.contains(NUMBER);
        let mut canaries = Vec::with_capacity(repeats.len());
        if numbered {
            for (i, &repeats) in repeats.iter().enumerate() {
                let format = Format::new(&pattern.replace(NUMBER, &(i + 1).to_string()))?;
                let seed = seed ^ SECRETS ^ (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mut canary = plan(&format, &[repeats], 1, seed)?.remove(0);
                canary.repeats = repeats;
                canaries.push(PlantedCanary { format, canary });
            }
        } else {
            let format = Format::new(pattern)?;
            for (mut canary, &repeats) in plan(&format, &[0], repeats.len(), seed ^ SECRETS)?.into_iter().zip(repeats) {
                canary.repeats = repeats;
                canaries.push(PlantedCanary { format: format.clone(), canary });
            }
        }
        Ok(Self { version: VERSION, pattern: pattern.into(), seed, coin_flip, canaries })
    }

    /// Read the list.
    pub fn from_json(text: &str) -> std::result::Result<Self, String> {
        let planting: Self = serde_json::from_str(text)
            .map_err(|e| e.to_string().replace('`', "\""))
            .map_err(|e| format!("is no list of canaries ({e}): give the file that `ferret audit plant` wrote"))?;
        if planting.version != VERSION {
            return Err(format!("has version {}, this program reads {VERSION}", planting.version));
        }
        if planting.canaries.is_empty() {
            return Err("lists no canary".into());
        }
        // Everything but the frequencies follows from pattern, number and seed; the coins do too.
        let repeats = match planting.coin_flip {
            true => coins(planting.canaries.len(), planting.seed),
            false => planting.canaries.iter().map(|p| p.canary.repeats).collect(),
        };
        let planned = Self::new(&planting.pattern, &repeats, planting.seed, planting.coin_flip);
        if planned.map_err(|e| e.to_string())? != planting {
            return Err("was changed: its secrets are not those that its pattern and seed give. Give the file as `ferret audit \
                        plant` wrote it, or plant again"
                .into());
        }
        Ok(planting)
    }

    /// The lines of a file of records with every canary put in as `{"text": ..}` as often as it should be, at random places.
    ///
    /// By coins, a canary that is out leaves an empty record in its place: the number of records is public and must not tell the
    /// coins, and a guarantee is about one record against an empty one. Where records name their `users`, a canary is one of its own.
    pub fn insert(&self, lines: &[&str], users: bool) -> Vec<String> {
        const PLACES: u64 = 0x706c_6163_6573;
        let mut rng = SeededRng::new(self.seed ^ PLACES);
        let mut planted: Vec<String> = self
            .canaries
            .iter()
            .enumerate()
            .flat_map(|(i, p)| {
                let (text, count) = match p.canary.repeats as usize {
                    0 if self.coin_flip => ("", 1),
                    repeats => (p.canary.text.as_str(), repeats),
                };
                let mut line = serde_json::json!({"text": text});
                if users {
                    line["user"] = format!("canary {} of {}", i + 1, self.seed).into();
                }
                std::iter::repeat_n(line.to_string(), count)
            })
            .collect();
        rng.shuffle(&mut planted);
        let mut places: Vec<usize> = (0..lines.len() + planted.len()).collect();
        rng.shuffle(&mut places);
        let places: BTreeSet<usize> = places[..planted.len()].iter().copied().collect();
        let (mut own, mut planted) = (lines.iter(), planted.into_iter());
        (0..lines.len() + places.len())
            .filter_map(|i| if places.contains(&i) { planted.next() } else { own.next().map(|l| (*l).to_owned()) })
            .collect()
    }

    /// Every canary, then for each format `competitors` other secrets of it, as examples; and where each format's competitors lie.
    fn texts(&self, competitors: usize) -> Result<(Vec<String>, Vec<std::ops::Range<usize>>)> {
        let mut texts: Vec<String> = self.canaries.iter().map(|p| p.canary.text.clone()).collect();
        let mut known: BTreeMap<String, std::ops::Range<usize>> = BTreeMap::new();
        let mut ranges = Vec::with_capacity(self.canaries.len());
        for planted in &self.canaries {
            let pattern = String::from(planted.format.clone());
            let range = match known.get(&pattern) {
                Some(range) => range.clone(),
                None => {
                    let taken: BTreeSet<u64> = self
                        .canaries
                        .iter()
                        .filter(|other| other.format == planted.format)
                        .map(|other| other.canary.index)
                        .collect();
                    let free = usize::try_from(planted.format.space() - taken.len() as u64).unwrap_or(usize::MAX);
                    let start = texts.len();
                    let others = planted.format.draw(competitors.min(free), &taken, self.seed ^ start as u64)?;
                    texts.extend(others.into_iter().map(|index| planted.format.text(index)));
                    known.insert(pattern, start..texts.len());
                    start..texts.len()
                }
            };
            ranges.push(range);
        }
        Ok((texts, ranges))
    }

    /// The canaries and their competitors as tokens: every token but the first counts.
    pub fn examples(&self, competitors: usize, tokenizer: &Tokenizer, context: usize) -> Result<Candidates> {
        let (texts, competitors) = self.texts(competitors)?;
        let examples = texts
            .iter()
            .map(|text| {
                let ids = tokenizer.encode(text)?;
                if ids.len() < 2 || ids.len() > context {
                    return Err(Error::usage(format!(
                        "a canary of the format \"{}\" has {} tokens, and 2 to the context of {context} are expected: change the format",
                        quoted(&self.pattern),
                        ids.len()
                    )));
                }
                Ok(Example::all(ids))
            })
            .collect::<Result<_>>()?;
        Ok(Candidates { examples, competitors, canaries: self.canaries.len() })
    }
}

/// How often each of `count` canaries is in, by coins.
fn coins(count: usize, seed: u64) -> Vec<u32> {
    one_run::coins(count, seed).into_iter().map(u32::from).collect()
}

/// Canaries and competitors, tokenised.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// The canaries first.
    pub examples: Vec<Example>,
    /// For every canary, where its competitors lie.
    competitors: Vec<std::ops::Range<usize>>,
    canaries: usize,
}

impl Candidates {
    /// The log-probability of every candidate: the sum over its tokens.
    pub fn log_probs<B: Backend>(
        &self,
        decoder: &Decoder<B>,
        weights_sha256: &str,
        cache: &Cache,
        done: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let stats = token_stats(decoder, weights_sha256, &self.examples, cache, done)?;
        Ok(stats.iter().map(|s| s.log_prob.iter().map(|&x| f64::from(x)).sum()).collect())
    }

    /// Every canary's exposure, from [`Candidates::log_probs`].
    pub fn exposures(&self, log_probs: &[f64]) -> Result<Vec<Exposure>> {
        self.competitors.iter().zip(log_probs).map(|(others, &own)| exposure(own, &log_probs[others.clone()])).collect()
    }

    /// The log-probabilities of the canaries alone.
    pub fn of_canaries<'a>(&self, log_probs: &'a [f64]) -> &'a [f64] {
        &log_probs[..self.canaries]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planting_puts_every_canary_in_as_often_as_planned() {
        let planting = Planting::at_frequencies("The code of unit {number} is ####.", &[0, 1, 3], 2, 5).unwrap();
        assert_eq!(planting.canaries.len(), 6);
        assert_eq!(planting.canaries[5].format.prompt(), "The code of unit 6 is ");
        let own: Vec<String> = (0..20).map(|i| format!("{{\"text\": \"record {i}\"}}")).collect();
        let lines: Vec<&str> = own.iter().map(String::as_str).collect();
        let mixed = planting.insert(&lines, false);
        assert_eq!(mixed.len(), 20 + 8);
        let kept: Vec<&str> = mixed.iter().map(String::as_str).filter(|l| l.contains("record")).collect();
        assert_eq!(kept, lines, "verbatim, in order");
        for planted in &planting.canaries {
            let count = mixed.iter().filter(|l| l.contains(&planted.canary.text)).count();
            assert_eq!(count, planted.canary.repeats as usize);
        }
        assert_eq!(mixed, planting.insert(&lines, false));
        let by_user = planting.insert(&lines, true);
        let users: BTreeSet<&str> = by_user.iter().filter_map(|l| l.split("\"user\":\"").nth(1)).collect();
        assert_eq!(users.len(), 4, "one a planted canary, whatever its repeats: {users:?}");
        let text = serde_json::to_string(&planting).unwrap();
        assert_eq!(Planting::from_json(&text).unwrap(), planting);
        assert!(Planting::from_json("{}").unwrap_err().contains("audit plant"));
    }

    #[test]
    fn coins_are_fair_and_secrets_do_not_tell_them() {
        let planting = Planting::by_coins("Code ######", 400, 1).unwrap();
        let inside = planting.canaries.iter().filter(|p| p.canary.repeats == 1).count();
        assert!((160..240).contains(&inside), "{inside}");
        assert!(planting.canaries.iter().all(|p| p.canary.repeats <= 1));
        let indices: BTreeSet<u64> = planting.canaries.iter().map(|p| p.canary.index).collect();
        assert_eq!(indices.len(), 400);
        let (texts, ranges) = planting.texts(50).unwrap();
        assert_eq!(texts.len(), 450, "one set of competitors for one format");
        assert!(ranges.iter().all(|r| *r == (400..450)));
        assert!(texts[400..].iter().all(|t| !texts[..400].contains(t)));
        assert!(Planting::by_coins("Code #", 11, 1).is_err() && Planting::by_coins("Code #", 0, 1).is_err());
        // The number of records does not tell how many coins fell which way.
        let mixed = planting.insert(&["{\"text\": \"a\"}"], false);
        assert_eq!(mixed.len(), 1 + 400);
        assert_eq!(mixed.iter().filter(|l| *l == "{\"text\":\"\"}").count(), 400 - inside);
    }

    #[test]
    fn an_edited_list_is_refused() {
        type Edit = fn(&mut Planting);
        let edits: [(&str, Edit); 7] = [
            ("a secret", |p| p.canaries[0].canary.secret = "0000".into()),
            ("a text", |p| p.canaries[0].canary.text.push('x')),
            ("an index", |p| p.canaries[0].canary.index = u64::MAX),
            ("a format", |p| p.canaries[1].format = Format::new("Other ####").unwrap()),
            ("one twice", |p| p.canaries[0] = p.canaries[1].clone()),
            ("one less", |p| drop(p.canaries.remove(0))),
            ("the seed", |p| p.seed += 1),
        ];
        for planting in [
            Planting::by_coins("Code ####", 40, 3).unwrap(),
            Planting::at_frequencies("Unit {number}: ####", &[0, 2], 20, 3).unwrap(),
            Planting::at_frequencies("Code ####", &[0, 2], 20, 3).unwrap(),
        ] {
            let read = |p: &Planting| Planting::from_json(&serde_json::to_string(p).unwrap());
            assert_eq!(read(&planting).unwrap(), planting);
            for (what, edit) in edits {
                let mut changed = planting.clone();
                edit(&mut changed);
                assert!(read(&changed).is_err_and(|e| e.contains("was changed")), "{what}");
            }
        }
        // Coins that were turned, to make guesses come out right.
        let mut turned = Planting::by_coins("Code ####", 40, 3).unwrap();
        turned.canaries[7].canary.repeats ^= 1;
        assert!(
            Planting::from_json(&serde_json::to_string(&turned).unwrap()).is_err_and(|e| e.contains("was changed"))
        );
    }
}
