//! One error type for the whole program.
//!
//! Every message is a sentence for the person at the keyboard: it names the thing, what was expected, what was found
//! and, where there is one, what to do. Panics are kept for bugs of our own.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// What can go wrong, by what the reader can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused to read or write a path.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file was read but its content cannot be used: checkpoint, config, tokenizer, data, transcript.
    #[error("{}: {what}", path.display())]
    File {
        /// The offending file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        what: String,
    },
    /// Arguments that contradict each other or lie outside their range.
    #[error("{0}")]
    Usage(String),
    /// No adapter, a lost device, a limit exceeded.
    #[error("{0}")]
    Device(String),
    /// A run whose numbers have left the range of floats.
    #[error("{0}")]
    Diverged(String),
    /// A privacy claim that would not be true.
    #[error("{0}")]
    Privacy(String),
    /// Processes that work on one run do not agree, or one of them failed: see [`crate::ranks`].
    #[error("{0}")]
    Rank(String),
    /// The model hub could not be reached or has no such file.
    #[error("{0}")]
    Hub(String),
    /// Stopped by Ctrl-C; the message says where the work so far lies.
    #[error("{0}")]
    Interrupted(String),
}

/// [`std::result::Result`] with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Io`] at `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// An [`Error::File`] at `path`.
    pub fn file(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::File { path: path.as_ref().to_owned(), what: what.into() }
    }

    /// An [`Error::Usage`].
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }
}

/// Longest value that a message repeats.
const QUOTED: usize = 80;

/// `value` as a message may repeat it: at most 80 characters on one line. Of what is longer the middle is left out, because
/// parsers say at the end where they stopped; control characters, which could move a terminal's cursor, are blanks.
///
/// For names and settings. The content of a record is never repeated, however short.
pub fn quoted(value: impl Display) -> String {
    const END: usize = 32;
    let text: Vec<char> = value.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() <= QUOTED {
        return text.into_iter().collect();
    }
    let (start, end) = (&text[..QUOTED - END - 5], &text[text.len() - END..]);
    start.iter().chain(&[' ', '.', '.', '.', ' ']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_to_80_characters_on_one_line() {
        assert_eq!(quoted("as it is"), "as it is");
        assert_eq!(quoted("a\nb\u{1b}[2J"), "a b [2J");
        assert_eq!(quoted("é".repeat(80)), "é".repeat(80));
        for n in [81, 1000, 123_456] {
            let text = quoted("é".repeat(n));
            assert_eq!(text.chars().count(), 80);
            assert!(text.starts_with("ééé") && text.contains(" ... "), "{text}");
        }
        let told = quoted(format!("invalid type: string \"{}\" at line 3 column 5", "x".repeat(500)));
        assert!(told.starts_with("invalid type: string") && told.ends_with("at line 3 column 5"), "{told}");
    }
}
