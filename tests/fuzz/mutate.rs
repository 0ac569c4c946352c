//! One mutator for every reader: seeded, so that a case is a number; blind (bytes) and informed (the values of a JSON document).

use ferret::audit::stats::SeededRng;
use serde_json::{Map, Value, json};

/// What has broken parsers before.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1e308",
    "1e-310",
    "1e999",
    "-0.0",
    "NaN",
    "null",
    "true",
    "18446744073709551615",
    "18446744073709551616",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "0.1e",
    "[]",
    "{}",
    "[[[[",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "\u{1F600}",
    "\u{202e}",
    "\0",
    ",",
    ":",
    "}",
    "]",
    "{\"a\":",
    "# ",
    "= ",
    "\n",
    "\r\n",
    "'''",
    "[[x]]",
    "inf",
    "é",
];

/// The mutation number `case` of `seed`, a few edits deep.
pub fn bytes(seed: &[u8], case: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(case);
    let mut out = seed.to_vec();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(out.len() as u64 + 1) as usize;
        let span = |rng: &mut SeededRng, from: usize| from + rng.below((out.len() - from).min(40) as u64 + 1) as usize;
        match rng.below(9) {
            0 if at < out.len() => out[at] ^= 1 << rng.below(8),
            1 if at < out.len() => out[at] = rng.below(256) as u8,
            2 => out.truncate(at),
            3 => drop(out.drain(at..span(&mut rng, at))),
            4 => {
                let piece = out[at..span(&mut rng, at)].to_vec();
                let to = rng.below(out.len() as u64 + 1) as usize;
                out.splice(to..to, piece);
            }
            5 => {
                let word = WORDS[rng.below(WORDS.len() as u64) as usize];
                out.splice(at..at, word.bytes());
            }
            6 => number(&mut out, &mut rng),
            7 => {
                let count = 1 + rng.below(300) as usize;
                let byte = *out.get(at).unwrap_or(&b'9');
                out.splice(at..at, std::iter::repeat_n(byte, count));
            }
            _ => {
                let to = rng.below(out.len() as u64 + 1) as usize;
                let (a, b) = (at.min(to), at.max(to));
                out[a..b].reverse();
            }
        }
    }
    out
}

/// Put another number in the place of one that is there.
fn number(out: &mut Vec<u8>, rng: &mut SeededRng) {
    let digit = |b: &u8| b.is_ascii_digit();
    let starts: Vec<usize> = (0..out.len()).filter(|&i| digit(&out[i]) && (i == 0 || !digit(&out[i - 1]))).collect();
    let Some(&start) = starts.get(rng.below(starts.len().max(1) as u64) as usize) else { return };
    let end = start + out[start..].iter().take_while(|b| digit(b)).count();
    let word = WORDS[rng.below(13) as usize];
    out.splice(start..end, word.bytes());
}

/// The mutation number `case` of a JSON document: the same shape but for one or two of its values.
pub fn json(seed: &Value, case: u64) -> Value {
    let mut rng = SeededRng::new(case ^ 0x6a73_6f6e);
    let mut out = seed.clone();
    for _ in 0..1 + rng.below(2) {
        let places = count(&out);
        let mut at = rng.below(places);
        change(&mut out, &mut at, &mut rng);
    }
    out
}

/// How many values a document has, itself included.
fn count(value: &Value) -> u64 {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// Change value number `at`, counted in depth; true once it is done.
fn change(value: &mut Value, at: &mut u64, rng: &mut SeededRng) -> bool {
    if *at == 0 {
        *value = instead(value, rng);
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|v| change(v, at, rng)),
        Value::Object(map) => map.values_mut().any(|v| change(v, at, rng)),
        _ => false,
    }
}

fn instead(value: &Value, rng: &mut SeededRng) -> Value {
    match (value, rng.below(4)) {
        (Value::Number(n), 0..3) => {
            let x = n.as_f64().unwrap_or(1.0);
            match rng.below(10) {
                0 => json!(0),
                1 => json!(-1),
                2 => json!(u64::MAX),
                3 => json!(u32::MAX),
                4 => json!(x + 1.0),
                5 => json!(x * 0.5),
                6 => json!(-x),
                7 => json!(1e308),
                8 => json!(1e-310),
                _ => json!(n.as_u64().unwrap_or(3).wrapping_add(1)),
            }
        }
        (Value::String(s), 0..2) => match rng.below(5) {
            0 => json!(""),
            1 => json!("x".repeat(rng.below(3000) as usize)),
            2 => json!(s.chars().rev().collect::<String>()),
            3 => json!(format!("{s}\u{0}")),
            _ => json!(s.chars().skip(1).collect::<String>()),
        },
        (Value::Array(list), 0..2) => {
            let mut list = list.clone();
            match rng.below(3) {
                0 => drop(list.pop()),
                1 => list.extend(list.first().cloned()),
                _ => list.reverse(),
            }
            Value::Array(list)
        }
        (Value::Object(map), 0..3) => Value::Object(keys(map, rng)),
        (Value::Bool(b), 0..3) => json!(!b),
        _ => [json!(null), json!([]), json!({}), json!("word"), json!(7), json!(true), json!(-0.5)]
            [rng.below(7) as usize]
            .clone(),
    }
}

/// The object with one key gone, renamed or more.
fn keys(map: &Map<String, Value>, rng: &mut SeededRng) -> Map<String, Value> {
    let chosen = rng.below(map.len().max(1) as u64) as usize;
    let how = rng.below(3);
    let mut out = Map::new();
    for (i, (key, value)) in map.iter().enumerate() {
        match (i == chosen, how) {
            (true, 0) => {}
            (true, 1) => drop(out.insert(format!("{key}x"), value.clone())),
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    if how == 2 {
        out.insert("stranger".into(), json!(1));
    }
    out
}
