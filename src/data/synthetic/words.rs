//! Word lists, and names that nobody has.

use super::grammar::Draws;

/// Concrete things: subjects of public sentences, and words of private passwords.
pub(super) const NOUNS: [&str; 128] = [
    "kettle", "basket", "ladder", "lantern", "bucket", "hammer", "mirror", "candle", "blanket", "pillow", "bottle",
    "button", "carpet", "cushion", "drawer", "feather", "garden", "hedge", "island", "jacket", "kitchen", "letter",
    "marble", "needle", "orchard", "paddle", "quilt", "ribbon", "saddle", "table", "umbrella", "violin", "wagon",
    "anchor", "barrel", "cabin", "desk", "engine", "fence", "glove", "harbour", "iron", "jar", "key", "lemon", "melon",
    "nest", "onion", "pear", "quarry", "river", "sail", "tower", "valley", "window", "acorn", "bridge", "clock",
    "door", "easel", "flute", "gate", "hill", "inn", "jug", "kite", "lamp", "meadow", "notebook", "oar", "pebble",
    "quill", "rope", "shovel", "tunnel", "urn", "vase", "wheel", "apron", "bell", "coat", "drum", "elbow", "field",
    "grape", "honey", "ink", "jewel", "knot", "leaf", "mill", "nail", "oven", "plum", "queue", "roof", "stone", "tent",
    "vine", "well", "almond", "bread", "cloud", "dish", "ember", "fork", "glass", "horn", "ivy", "joint", "ladle",
    "moss", "nut", "olive", "plate", "reed", "sand", "thread", "turnip", "velvet", "wool", "brush", "crate", "dune",
    "fern", "goose", "heron", "otter",
];

/// Qualities, for the same two uses.
pub(super) const ADJECTIVES: [&str; 64] = [
    "amber", "brave", "calm", "dusty", "early", "fresh", "gentle", "heavy", "idle", "jolly", "keen", "little", "mild",
    "narrow", "old", "pale", "quiet", "round", "silver", "tall", "upper", "vivid", "warm", "young", "bright", "clean",
    "dark", "empty", "flat", "green", "hollow", "inner", "large", "modest", "neat", "open", "plain", "quick", "rough",
    "small", "thin", "useful", "wide", "yellow", "bitter", "crooked", "damp", "eager", "faint", "golden", "honest",
    "late", "lonely", "new", "proud", "red", "sharp", "smooth", "steep", "sweet", "tidy", "white", "wild", "blue",
];

/// Months.
pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const CONSONANTS: [&str; 16] = ["B", "D", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "V", "W", "Z"];
const VOWELS: [&str; 4] = ["a", "e", "i", "o"];
const MIDDLES: [&str; 16] = ["b", "br", "c", "d", "f", "h", "j", "l", "m", "n", "r", "s", "t", "v", "w", "y"];
const FIRST: [&str; 4] = ["ael", "ira", "ovan", "une"];
const LAST: [&str; 4] = ["ambel", "estrin", "ondar", "uvell"];
const TOWN: [&str; 4] = ["amere", "oford", "ewick", "unholm"];

/// Distinct names of each kind.
pub(super) const NAMES: usize = 1 << 12;

/// A consonant and a vowel, then an ending: `index` below [`NAMES`] and name determine each other, for the first part
/// always has two letters, and no two endings are the same.
fn name(index: usize, endings: [&str; 4]) -> String {
    assert!(index < NAMES);
    let (start, end) = (index & 63, index >> 6);
    [CONSONANTS[start >> 2], VOWELS[start & 3], MIDDLES[end >> 2], endings[end & 3]].concat()
}

/// A first name.
pub(super) fn first_name(index: usize) -> String {
    name(index, FIRST)
}

/// A family name.
pub(super) fn last_name(index: usize) -> String {
    name(index, LAST)
}

/// The town of this number.
pub(super) fn town(index: usize) -> String {
    name(index, TOWN)
}

/// A day of the year, `14 March`.
pub(super) fn date(draws: &mut Draws) -> String {
    format!("{} {}", 1 + draws.below(28), draws.pick(&MONTHS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_words_are_distinct() {
        for make in [first_name, last_name, town] {
            assert_eq!((0..NAMES).map(make).collect::<HashSet<_>>().len(), NAMES);
        }
        assert_eq!(NOUNS.iter().chain(&ADJECTIVES).collect::<HashSet<_>>().len(), 192);
    }
}
