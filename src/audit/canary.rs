//! Planted secrets: how much better a model likes the secret it saw than the ones it might have seen, and whether it
//! can be made to say it (Carlini et al. 2019, 2021).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::stats::{SeededRng, proportion_lower, proportion_upper};
use crate::error::{Error, Result, quoted};

/// A secret's shape inside its sentence: `#` is a digit, `@` a lower-case letter, `\` takes the next character
/// literally, everything else stands for itself. `The code of unit 7 is ####-####.` has 10^8 secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Format {
    pattern: String,
    /// A literal character, or `None` and the alphabet of a slot.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Literal(char),
    Digit,
    Letter,
}

impl Part {
    fn choices(self) -> u64 {
        match self {
            Part::Literal(_) => 1,
            Part::Digit => 10,
            Part::Letter => 26,
        }
    }
}

impl TryFrom<String> for Format {
    type Error = Error;
    fn try_from(pattern: String) -> Result<Self> {
        Format::new(&pattern)
    }
}

impl From<Format> for String {
    fn from(format: Format) -> Self {
        format.pattern
    }
}

impl Format {
    /// Read a pattern. At least one slot, and no more than 2^63 secrets.
    pub fn new(pattern: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut characters = pattern.chars();
        while let Some(c) = characters.next() {
            parts.push(match c {
                '#' => Part::Digit,
                '@' => Part::Letter,
                '\\' => Part::Literal(characters.next().ok_or_else(|| {
                    Error::usage(format!(
                        "canary format `{}` ends in a backslash: write `\\\\` for one",
                        quoted(pattern)
                    ))
                })?),
                c => Part::Literal(c),
            });
        }
        let bits: f64 = parts.iter().map(|p| (p.choices() as f64).log2()).sum();
        if bits == 0.0 || bits > 63.0 {
            return Err(Error::usage(format!(
                "canary format `{}` has {} secrets, expected between 2 and 2^63: use # for digits, @ for letters",
                quoted(pattern),
                if bits == 0.0 { "no".into() } else { format!("2^{bits:.0}") }
            )));
        }
        Ok(Self { pattern: pattern.to_owned(), parts })
    }

    /// How many secrets there are.
    pub fn space(&self) -> u64 {
        self.parts.iter().map(|p| p.choices()).product()
    }

    /// The sentence of secret number `index` (mixed radix, last slot fastest).
    pub fn text(&self, index: u64) -> String {
        self.render(index, true)
    }

    /// The secret alone: from the first slot to the last, with the literals between.
    pub fn secret(&self, index: u64) -> String {
        self.render(index, false)
    }

    /// The sentence up to the first slot: the prompt of an extraction attempt.
    pub fn prompt(&self) -> String {
        let literal = |part: &Part| if let Part::Literal(c) = part { Some(*c) } else { None };
        self.parts.iter().map_while(literal).collect()
    }

    fn render(&self, mut index: u64, whole: bool) -> String {
        let is_slot = |part: &Part| !matches!(part, Part::Literal(_));
        let first = self.parts.iter().position(is_slot).unwrap_or(0);
        let last = self.parts.iter().rposition(is_slot).unwrap_or(0);
        let range = if whole { 0..self.parts.len() } else { first..last + 1 };
        let mut out: Vec<char> = Vec::with_capacity(self.parts.len());
        for (at, part) in self.parts.iter().enumerate().rev() {
            let base = part.choices();
            let digit = (index % base) as u8;
            index /= base;
            if range.contains(&at) {
                out.push(match part {
                    Part::Literal(c) => *c,
                    Part::Digit => (b'0' + digit) as char,
                    Part::Letter => (b'a' + digit) as char,
                });
            }
        }
        out.iter().rev().collect()
    }

    /// `count` distinct secrets outside `taken`, the same for the same seed.
    pub fn draw(&self, count: usize, taken: &BTreeSet<u64>, seed: u64) -> Result<Vec<u64>> {
        let free = self.space() - taken.len() as u64;
        if count as u64 > free {
            return Err(Error::usage(format!(
                "canary format `{}` has {free} secrets left, {count} were asked for: use a longer format",
                quoted(&self.pattern)
            )));
        }
        let mut rng = SeededRng::new(seed);
        if count as u64 > free / 2 {
            let mut all: Vec<u64> = (0..self.space()).filter(|i| !taken.contains(i)).collect();
            rng.shuffle(&mut all);
            all.truncate(count);
            return Ok(all);
        }
        let (mut seen, mut out) = (taken.clone(), Vec::with_capacity(count));
        while out.len() < count {
            let index = rng.below(self.space());
            if seen.insert(index) {
                out.push(index);
            }
        }
        Ok(out)
    }
}

/// A planted secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canary {
    /// Its number in the format's space.
    pub index: u64,
    /// The sentence to insert.
    pub text: String,
    /// The secret part.
    pub secret: String,
    /// How often the sentence is inserted; 0 is a control that is never inserted.
    pub repeats: u32,
}

/// `each` canaries at every frequency, all distinct.
pub fn plan(format: &Format, frequencies: &[u32], each: usize, seed: u64) -> Result<Vec<Canary>> {
    let secrets = format.draw(frequencies.len() * each, &BTreeSet::new(), seed)?;
    let repeats = frequencies.iter().flat_map(|&f| std::iter::repeat_n(f, each));
    Ok(secrets
        .into_iter()
        .zip(repeats)
        .map(|(index, repeats)| Canary { index, text: format.text(index), secret: format.secret(index), repeats })
        .collect())
}

/// How far up the canary stands among secrets of its own format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exposure {
    /// 1 is the most likely of all. Equal likelihoods count against the canary.
    pub rank: u64,
    /// The canary and its competitors.
    pub among: u64,
    /// `log2(among / rank)`, bits: about 1.44 on average when nothing was memorised, `log2(among)` at most.
    pub bits: f64,
    /// P[a rank at least as good] when nothing was memorised: `rank / among`, exact.
    pub p_value: f64,
}

/// Exposure of a canary with score `canary` (log-probability: larger is more likely) against `others`, random secrets of
/// its format that were not planted. With all other secrets it is Carlini's; with a sample it is cut off at
/// `log2(sample + 1)`.
pub fn exposure(canary: f64, others: &[f64]) -> Result<Exposure> {
    if canary.is_nan() || others.is_empty() || others.iter().any(|s| s.is_nan()) {
        return Err(Error::usage("exposure compares a canary's log-probability with at least one other, all numbers"));
    }
    let rank = 1 + others.iter().filter(|&&s| s >= canary).count() as u64;
    let among = 1 + others.len() as u64;
    let p_value = rank as f64 / among as f64;
    Ok(Exposure { rank, among, bits: -p_value.log2(), p_value })
}

/// Whether a continuation of the prompt says the secret: at its start, or anywhere.
pub fn says(continuation: &str, secret: &str, anywhere: bool) -> bool {
    if anywhere { continuation.contains(secret) } else { continuation.trim_start().starts_with(secret.trim_start()) }
}

/// One row of the extraction table: canaries of one frequency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extraction {
    /// How often they were inserted.
    pub repeats: u32,
    /// How many canaries.
    pub canaries: u64,
    /// Said by greedy decoding.
    pub greedy: u64,
    /// Said by at least one sampled continuation.
    pub sampled: u64,
    /// Sampled continuations a canary.
    pub samples: u64,
    /// 95 % exact interval of the greedy rate.
    pub greedy_ci: [f64; 2],
    /// 95 % exact interval of the sampled rate.
    pub sampled_ci: [f64; 2],
}

/// What decoding made of one canary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// The greedy continuation of the prompt.
    pub greedy: String,
    /// Sampled ones.
    pub sampled: Vec<String>,
}

/// Count successes by frequency, rarest first.
pub fn extraction(canaries: &[Canary], attempts: &[Attempts]) -> Result<Vec<Extraction>> {
    if canaries.len() != attempts.len() {
        return Err(Error::usage(format!("{} canaries came with {} attempts", canaries.len(), attempts.len())));
    }
    let mut rows: BTreeMap<u32, [u64; 4]> = BTreeMap::new();
    for (canary, attempt) in canaries.iter().zip(attempts) {
        let row = rows.entry(canary.repeats).or_default();
        row[0] += 1;
        row[1] += u64::from(says(&attempt.greedy, &canary.secret, false));
        row[2] += u64::from(attempt.sampled.iter().any(|s| says(s, &canary.secret, false)));
        row[3] = row[3].max(attempt.sampled.len() as u64);
    }
    let interval = |k: u64, n: u64| {
        let (k, n) = (k as f64, n as f64);
        [proportion_lower(k, n, 0.025), proportion_upper(k, n, 0.025)]
    };
    Ok(rows
        .into_iter()
        .map(|(repeats, [canaries, greedy, sampled, samples])| Extraction {
            repeats,
            canaries,
            greedy,
            sampled,
            samples,
            greedy_ci: interval(greedy, canaries),
            sampled_ci: interval(sampled, canaries),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_enumerate_their_space() {
        let format = Format::new("Gate @: #-#.").unwrap();
        assert_eq!(format.space(), 2600);
        assert_eq!(format.text(0), "Gate a: 0-0.");
        assert_eq!(format.text(2599), "Gate z: 9-9.");
        assert_eq!(format.secret(137), "b: 3-7");
        assert_eq!(format.prompt(), "Gate ");
        let all: BTreeSet<String> = (0..2600).map(|i| format.text(i)).collect();
        assert_eq!(all.len(), 2600);
        assert_eq!(Format::new("\\#1 is #").unwrap().text(4), "#1 is 4");
        for bad in ["no slot", "ends in \\", "####################"] {
            assert!(Format::new(bad).is_err(), "{bad}");
        }
        let json = serde_json::to_string(&format).unwrap();
        assert_eq!(serde_json::from_str::<Format>(&json).unwrap(), format);
    }

    #[test]
    fn plans_are_seeded_and_distinct() {
        let format = Format::new("The code is ###").unwrap();
        let canaries = plan(&format, &[0, 1, 4], 300, 9).unwrap();
        assert_eq!(canaries, plan(&format, &[0, 1, 4], 300, 9).unwrap());
        assert_ne!(canaries, plan(&format, &[0, 1, 4], 300, 10).unwrap());
        let indices: BTreeSet<u64> = canaries.iter().map(|c| c.index).collect();
        assert_eq!(indices.len(), 900);
        assert_eq!(canaries.iter().filter(|c| c.repeats == 4).count(), 300);
        let others = format.draw(100, &indices, 1).unwrap();
        assert!(others.iter().all(|i| !indices.contains(i)));
        assert!(format.draw(101, &indices, 1).is_err());
    }

    #[test]
    fn exposure_by_rank() {
        let others: Vec<f64> = (0..1023).map(|i| -f64::from(i)).collect();
        let top = exposure(1.0, &others).unwrap();
        assert_eq!((top.rank, top.bits), (1, 10.0));
        let tied = exposure(0.0, &others).unwrap();
        assert_eq!((tied.rank, tied.bits), (2, 9.0));
        assert_eq!(exposure(-2000.0, &others).unwrap().bits, 0.0);
        // Nothing memorised: ranks are uniform, and the mean exposure is near log2(e).
        let mut rng = SeededRng::new(5);
        let mut bits = 0.0;
        for _ in 0..2000 {
            let scores: Vec<f64> = (0..255).map(|_| rng.normal()).collect();
            bits += exposure(rng.normal(), &scores).unwrap().bits / 2000.0;
        }
        assert!((bits - std::f64::consts::LOG2_E).abs() < 0.1, "{bits}");
    }

    #[test]
    fn extraction_counts_by_frequency() {
        let format = Format::new("Code ####").unwrap();
        let canaries = plan(&format, &[1, 8], 2, 1).unwrap();
        let right = |c: &Canary| format!(" {} and more", c.secret);
        let attempts = [
            Attempts::default(),
            Attempts { greedy: "nothing".into(), sampled: vec!["no".into(), right(&canaries[1])] },
            Attempts { greedy: right(&canaries[2]), sampled: vec![] },
            Attempts { greedy: right(&canaries[0]), sampled: vec![] },
        ];
        let rows = extraction(&canaries, &attempts).unwrap();
        assert_eq!(rows.iter().map(|r| (r.repeats, r.greedy, r.sampled)).collect::<Vec<_>>(), [(1, 0, 1), (8, 1, 0)]);
        assert!(rows[1].greedy_ci[0] < 0.5 && rows[1].greedy_ci[1] > 0.5);
        assert!(says("well, 1234", "1234", true) && !says("well, 1234", "1234", false));
    }
}
