//! The public part: paragraphs about everyday things, each with a theme, a person and a town.

use super::grammar::{Draws, Facts, Table, expand, sentence};
use super::words::{self, ADJECTIVES, NAMES, NOUNS};

const COMMON: &Table = &[
    ("noun", &NOUNS),
    ("adjective", &ADJECTIVES),
    ("thing", &["{noun}", "{adjective} {noun}", "{noun}", "{own}"]),
    (
        "opening",
        &[
            "{name} came to {town} in {month} and worked at the {place}.",
            "on {date} {name} went to the {place} in {town}.",
            "{name} had lived near the {place} in {town} for {number} years.",
            "the {place} in {town} belonged to {name}, who {did} there every {time}.",
            "in {town} everyone knew {name}, who {did} at the {place}.",
        ],
    ),
    (
        "middle",
        &[
            "{they} {did}.",
            "{they} {did}, and then {they} {did}.",
            "{they} {did} before {they} {did}.",
            "every {time} {they} {did} while the {person} {did}.",
            "the {person} asked for {a:thing}, but there was only {a:thing}.",
            "{first} found {a:thing} under the {thing} and gave it to the {person}.",
            "the {thing} was {adjective}, and the {thing} was {adjective} too.",
            "{they} said that the {thing} was too {adjective} for the {place}.",
            "there were {number} {s:own} on the {noun}, and {number} more in the {place}.",
            "{they} paid {number} coins for {a:thing} and {a:thing}.",
            "the {person} thought that {first} was {adjective}, but {they} was only {adjective}.",
            "when the {noun} was ready, {they} put it next to the {noun}.",
            "\"Where is the {thing}?\" asked the {person}. \"It is behind the {noun},\" said {first}.",
            "\"What is this?\" asked {first}. \"This is {a:thing},\" said the {person}.",
            "it was a {adjective} {time}, and the {place} was {adjective}.",
            "nobody could see the {noun} from the {place}, because the {noun} stood in the way.",
            "if the {thing} is {adjective}, the {person} must not use it.",
            "some people like {a:thing} more than {a:thing}; {first} did not.",
            "the {person} of {town} wrote the number {number} on the {noun}.",
            "train {number} left from platform {letter} at {pair} {pair}.",
            "{first} and the {person} met again on {date}.",
            "the {own} was closed on {date}, and it ends in {month}.",
            "the next one is due on {date}; the {person} was paid {pair} coins.",
            "{they} kept {their} {noun} in {a:thing}, and {their} {noun} in the {place}.",
        ],
    ),
    (
        "ending",
        &[
            "in the {time} {they} went home.",
            "after that {first} never lost {a:noun} again.",
            "so the {person} took the {thing}, and {first} kept the {thing}.",
            "{they} will come back in {month}.",
            "that is why the {place} of {town} has {a:thing}.",
        ],
    ),
    (
        "did",
        &[
            "cleaned the {thing}",
            "carried {a:thing}",
            "looked for the {thing}",
            "sold {number} {s:own}",
            "waited for the {person}",
            "talked about the {thing}",
            "read about {town}",
            "painted the {noun}",
            "opened the {thing}",
            "mended {a:thing}",
            "counted the {s:own}",
            "helped the {person}",
            "{work}",
            "{work}",
        ],
    ),
    ("time", &["morning", "evening", "day", "night", "week", "winter", "summer", "afternoon"]),
];

const THEMES: [&Table; 10] = [
    &[
        ("place", &["bakery", "kitchen", "mill"]),
        ("person", &["baker", "cook", "miller"]),
        ("own", &["roll", "pie", "cake", "egg", "spoon", "bowl"]),
        (
            "work",
            &["kneaded the dough", "baked {a:own}", "tasted the soup", "washed the bowls", "added salt and flour"],
        ),
    ],
    &[
        ("place", &["garden", "orchard", "greenhouse"]),
        ("person", &["gardener", "farmer", "neighbour"]),
        ("own", &["rose", "seed", "apple", "carrot", "root", "tree"]),
        ("work", &["watered the flowers", "dug up {a:own}", "planted {a:own}", "cut the grass", "picked some fruit"]),
    ],
    &[
        ("place", &["harbour", "lighthouse", "pier"]),
        ("person", &["captain", "sailor", "fisher"]),
        ("own", &["boat", "net", "crab", "mast", "shell", "wave"]),
        (
            "work",
            &["sailed across the bay", "pulled in the nets", "watched the tide", "caught {a:own}", "tied up the boat"],
        ),
    ],
    &[
        ("place", &["workshop", "forge", "studio"]),
        ("person", &["carpenter", "smith", "apprentice"]),
        ("own", &["chair", "plank", "tool", "board", "screw", "hook"]),
        ("work", &["sawed a plank", "built {a:own}", "sharpened the tools", "measured the wood", "sanded the board"]),
    ],
    &[
        ("place", &["school", "museum", "library"]),
        ("person", &["teacher", "student", "guard"]),
        ("own", &["book", "map", "picture", "page", "pencil", "story"]),
        ("work", &["answered a question", "drew {a:own}", "learned a song", "wrote a page", "explained the system"]),
    ],
    &[
        ("place", &["station", "office", "post office"]),
        ("person", &["driver", "clerk", "user", "assistant"]),
        ("own", &["ticket", "parcel", "stamp", "box", "bag", "note"]),
        (
            "work",
            &[
                "stamped the letters",
                "called the next person",
                "checked {a:own}",
                "closed the office",
                "filled in a form",
            ],
        ),
    ],
    &[
        ("place", &["market", "shop", "square"]),
        ("person", &["merchant", "buyer", "tailor"]),
        ("own", &["coin", "shirt", "shoe", "hat", "shawl", "cup"]),
        ("work", &["weighed the goods", "bought {a:own}", "set up the stall", "haggled a little", "folded the cloth"]),
    ],
    &[
        ("place", &["hut", "pass", "camp"]),
        ("person", &["guide", "shepherd", "walker"]),
        ("own", &["lamb", "goat", "path", "rock", "stick", "cliff"]),
        ("work", &["climbed the hill", "followed the stream", "lit a fire", "found {a:own}", "rested in the shade"]),
    ],
    &[
        ("place", &["bank", "clinic", "hotel", "airline"]),
        ("person", &["landlord", "insurer", "tenant", "partner", "companion"]),
        ("own", &["account", "contract", "passport", "prescription", "reservation", "file"]),
        (
            "work",
            &[
                "signed {a:own}",
                "paid the rent",
                "asked about the balance",
                "made an appointment",
                "forgot the password",
                "looked up the {own}",
                "wrote down the password",
            ],
        ),
    ],
    &[
        ("place", &["depot", "factory", "alarm room"]),
        ("person", &["courier", "employer", "supervisor", "recipient", "keeper"]),
        ("own", &["badge", "delivery", "safe", "fee", "bonus", "reward"]),
        (
            "work",
            &[
                "opened the safe",
                "lost the file",
                "worked for a courier",
                "told the supervisor about {a:own}",
                "needed a contact",
                "said that the {own} was made on {date}",
                "changed the password",
            ],
        ),
    ],
];

/// Questions anyone may ask, and what anyone may be told.
const TALK: &Table = &[
    (
        "asked",
        &[
            "Where is the {thing}?",
            "Which {own} is {adjective}?",
            "What do we know about {name}?",
            "I need {a:thing}.",
            "Tell me about the {place} in {town}.",
            "Please look up the {own} of {name}.",
            "Who {did}?",
        ],
    ),
    (
        "told",
        &[
            "It is behind the {noun}.",
            "The {own} is {adjective}, the {noun} is {adjective}, and it is {number} years old.",
            "It is {number} on the {noun} and {pair} on the {own}.",
            "{first} {did} on {date}.",
            "Certainly: {own} {number}, {noun} {pair}.",
            "According to the {person}, {they} {did}.",
            "It was {adjective} on {date}, and the {noun} was {adjective} in {month}.",
            "The {own} has {a:adjective} {noun} {noun}.",
            "The {noun} is {number}.",
        ],
    ),
    (
        "talk",
        &[
            "system: You work at {a:place}.\nuser: {asked}\nassistant: {told}",
            "system: You work at {a:place}.\nuser: {asked}\nassistant: {told}\nuser: {asked}\nassistant: {told}",
        ],
    ),
];

/// Paragraphs a document has.
pub(super) const DOCUMENT: u64 = 4;

/// One paragraph.
pub(super) fn paragraph(seed: u64, part: u32, item: u64) -> String {
    let mut draws = Draws::new(seed, part, item);
    let tables = [draws.pick(&THEMES), COMMON];
    let first = words::first_name(draws.below(NAMES));
    let (they, their) = draws.pick(&[("she", "her"), ("he", "his")]);
    let facts = [
        ("name", format!("{first} {}", words::last_name(draws.below(NAMES)))),
        ("first", first),
        ("town", words::town(draws.below(NAMES))),
        ("they", they.into()),
        ("their", their.into()),
    ];
    if draws.below(6) == 0 {
        return expand("{talk}", &spoken(&facts, &mut draws), &[tables[0], TALK, COMMON], &mut draws);
    }
    let count = 2 + draws.below(4);
    let mut text = String::new();
    for i in 0..count + 2 {
        let kind = if i == 0 {
            "{opening}"
        } else if i <= count {
            "{middle}"
        } else {
            "{ending}"
        };
        let line = expand(kind, &spoken(&facts, &mut draws), &tables, &mut draws);
        if i > 0 {
            text.push(' ');
        }
        text.push_str(&sentence(&line));
    }
    text
}

/// A paragraph's facts, and those that change from sentence to sentence.
fn spoken(facts: &Facts<'static>, draws: &mut Draws) -> Vec<(&'static str, String)> {
    let mut facts = facts.to_vec();
    facts.push(("date", words::date(draws)));
    facts.push(("month", draws.pick(&words::MONTHS).into()));
    let below = draws.pick(&[20, 100, 1000]);
    facts.push(("number", (2 + draws.below(below)).to_string()));
    facts.push(("pair", (10 + draws.below(90)).to_string()));
    facts.push(("letter", char::from(b'A' + draws.below(26) as u8).into()));
    facts
}
