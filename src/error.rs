//! One error type for the whole program.
//!
//! Every message is a sentence for the person at the keyboard: it names the thing, what was expected, what was found
//! and, where there is one, what to do. Panics are kept for bugs of our own.

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
