//! How the program spells the settings that the library's sentences name: `learning_rate` is --learning-rate.
//!
//! The library names a setting as its field is called, in backquotes, and knows no flag. What is a flag of some verb is spelt as one
//! here; other words in backquotes stay as they are.

use super::Cli;
use clap::{Command, CommandFactory};
use std::collections::HashSet;

/// `sentence` with settings spelt as flags.
pub fn spell(sentence: &str) -> String {
    if !sentence.contains('`') {
        return sentence.to_owned();
    }
    let flags = flags();
    let mut out = String::with_capacity(sentence.len());
    // What stands at odd places was between backquotes, unless the last one was never closed.
    let parts: Vec<&str> = sentence.split('`').collect();
    for (i, part) in parts.iter().enumerate() {
        let (quoted, closed) = (i % 2 == 1, i + 1 < parts.len());
        let flag = part.replace('_', "-");
        match quoted {
            true if closed && flags.contains(&flag) => out.extend(["--", &flag]),
            true if closed => out.extend(["`", part, "`"]),
            true => out.extend(["`", part]),
            false => out.push_str(part),
        }
    }
    out
}

/// The long flags of every verb.
fn flags() -> HashSet<String> {
    fn add(command: &Command, flags: &mut HashSet<String>) {
        flags.extend(command.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned));
        command.get_subcommands().for_each(|c| add(c, flags));
    }
    let mut flags = HashSet::new();
    add(&Cli::command(), &mut flags);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_flags_and_other_words_stay() {
        assert_eq!(spell("lower `learning_rate`, or set `device` cpu"), "lower --learning-rate, or set --device cpu");
        assert_eq!(spell("the feature `gpu`; see `ferret devices`"), "the feature `gpu`; see `ferret devices`");
        for plain in ["nothing to spell", "a ` alone", "`learning_rate", "`x``", "``"] {
            assert_eq!(spell(plain), plain);
        }
        assert_eq!(spell("`top_p` `top_p"), "--top-p `top_p");
    }
}
