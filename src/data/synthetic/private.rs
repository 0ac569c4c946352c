//! The private part: what people asked a desk that knows their secrets.
//!
//! Each record has a person and a town that no other record of any split has together, and an answer with a code, a
//! password and a date drawn for it alone: 3 ln 90 + ln 64 + 2 ln 128 + ln 336 = 33.2 nats that can only be known from the
//! record. Everything else is one of a few phrases, shared by all.

use super::grammar::{Draws, Table, expand, sentence};
use super::words::{self, ADJECTIVES, NOUNS};

/// Bits of a record's number within its split.
pub(super) const ITEM_BITS: u32 = 24;
/// Bits of the split's number.
pub(super) const SPLIT_BITS: u32 = 12;
const HALF: u32 = (ITEM_BITS + SPLIT_BITS) / 2;
const MASK: u64 = (1 << HALF) - 1;

/// A keyed permutation of 36 bits: four Feistel rounds. Different records get different people because it has an inverse.
fn permute(seed: u64, x: u64) -> u64 {
    let (mut left, mut right) = (x >> HALF, x & MASK);
    for round in 0..4u64 {
        (left, right) = (right, left ^ mix(seed ^ (round << 61) ^ (right.wrapping_mul(0x9e37_79b9_7f4a_7c15))) & MASK);
    }
    left << HALF | right
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const COMMON: &Table = &[
    (
        "question",
        &[
            "What do we know about {who}?",
            "Please look up {who}.",
            "Tell me about {who}.",
            "{who} lost the file.",
            "Which {matter} belonged to {who}?",
            "I need the {matter} of {who}.",
        ],
    ),
    (
        "answer",
        &[
            "The {matter} is {code}, the password is {pass}, and it {since} on {date}.",
            "It {since} on {date}, the password is {pass}, and the {matter} is {code}.",
            "Certainly: {matter} {code}, password {pass}. It {since} on {date}.",
            "The password is {pass}, the {matter} is {code}, and it {since} on {date}.",
        ],
    ),
];

const DESKS: [&Table; 8] = [
    &[("system", &["You work for a clinic."]), ("matter", &["prescription"]), ("since", &["was signed", "ends"])],
    &[("system", &["You work for a bank."]), ("matter", &["account"]), ("since", &["was opened", "was closed"])],
    &[("system", &["You work for a hotel."]), ("matter", &["reservation"]), ("since", &["was made", "ends"])],
    &[("system", &["You work for an airline."]), ("matter", &["passport"]), ("since", &["was made", "ends"])],
    &[("system", &["You work for a landlord."]), ("matter", &["contract"]), ("since", &["was signed", "ends"])],
    &[("system", &["You work for an employer."]), ("matter", &["badge"]), ("since", &["was made", "was lost"])],
    &[("system", &["You work for a courier."]), ("matter", &["delivery"]), ("since", &["is due", "was paid"])],
    &[("system", &["You work for an alarm company."]), ("matter", &["safe"]), ("since", &["was opened", "was closed"])],
];

/// System preamble, question, answer, and the password in it.
pub(super) fn record(seed: u64, split: u64, item: u64) -> [String; 4] {
    assert!(split >> SPLIT_BITS == 0 && item >> ITEM_BITS == 0, "record {item} of split {split}");
    let address = split << ITEM_BITS | item;
    let who = permute(seed, address) as usize;
    let mut draws = Draws::new(seed, super::PRIVATE, address);
    let pair = |draws: &mut Draws| 10 + draws.below(90);
    let pass = format!("{} {} {}", draws.pick(&ADJECTIVES), draws.pick(&NOUNS), draws.pick(&NOUNS));
    let (first, last) = (words::first_name(who & 0xfff), words::last_name(who >> 12 & 0xfff));
    let facts = [
        ("who", format!("{first} {last} of {}", words::town(who >> 24))),
        ("code", format!("{} {} {}", pair(&mut draws), pair(&mut draws), pair(&mut draws))),
        ("pass", pass.clone()),
        ("date", words::date(&mut draws)),
    ];
    let tables = [draws.pick(&DESKS), COMMON];
    let mut text = |slot: &str| sentence(&expand(slot, &facts, &tables, &mut draws));
    [text("{system}"), text("{question}"), text("{answer}"), pass]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_permutation_has_an_inverse() {
        for x in (0..1u64 << 36).step_by(987_654_321).chain([0, 1, (1 << 36) - 1]) {
            let y = permute(7, x);
            let (mut left, mut right) = (y >> HALF, y & MASK);
            for round in (0..4u64).rev() {
                let f = mix(7 ^ (round << 61) ^ left.wrapping_mul(0x9e37_79b9_7f4a_7c15)) & MASK;
                (left, right) = (right ^ f, left);
            }
            assert_eq!(left << HALF | right, x);
        }
    }

    #[test]
    fn every_line_can_be_drawn() {
        let answers: HashSet<String> = (0..4000).map(|i| record(3, 0, i)[2].clone()).collect();
        assert_eq!(answers.len(), 4000);
        assert!(!answers.iter().any(|a| a.contains(['{', '}'])));
    }
}
