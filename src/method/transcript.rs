//! What the transcripts of FERRET and FERRET-k share.

use crate::error::{Error, Result};
use crate::hash::sha256;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// The file's name in a trained checkpoint's folder.
pub const FILE: &str = "transcript.json";

/// A run: what it started from, what it was told, what it released.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript<S, R> {
    /// SHA-256 of the base model's tensors, in lower-case hexadecimal.
    pub base_sha256: String,
    /// SHA-256 of the tuned model's tensors; none while the run is unfinished.
    pub tuned_sha256: Option<String>,
    /// What the run was told.
    pub settings: S,
    /// How many of the settings' steps were made.
    pub steps_run: u32,
    /// What it released.
    pub releases: R,
}

impl<S, R> Transcript<S, R> {
    /// Refuse hashes that are none, settings that `check` refuses, and more steps than they plan.
    pub(super) fn check_run(&self, check: fn(&S) -> Result<()>, steps: fn(&S) -> u32) -> Result<()> {
        let is_sha256 = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        for (name, hash) in [("base_sha256", Some(&self.base_sha256)), ("tuned_sha256", self.tuned_sha256.as_ref())] {
            if let Some(hash) = hash.filter(|h| !is_sha256(h)) {
                return Err(Error::usage(format!("{name} is \"{hash}\", expected 64 hexadecimal digits")));
            }
        }
        check(&self.settings)?;
        let planned = steps(&self.settings);
        if self.steps_run > planned {
            return Err(Error::usage(format!("{} steps were run of {planned} planned", self.steps_run)));
        }
        Ok(())
    }
}

/// Refuse what is no sign.
pub(super) fn check_signs(signs: &[i8]) -> Result<()> {
    match signs.iter().find(|s| ![1, -1].contains(*s)) {
        Some(s) => Err(Error::usage(format!("{s} was released, expected +1 or -1 and nothing else"))),
        None => Ok(()),
    }
}

/// The JSON of a transcript of `format`, in one of the versions up to `newest`, as it stands and field by field. The version is looked at first: a
/// later one may have fields that this program does not know.
pub(super) fn read<F: DeserializeOwned>(text: &str, path: &Path, format: &str, newest: u32) -> Result<(Value, F)> {
    let refuse = |what: String| Err(Error::file(path, what));
    let head: Value =
        serde_json::from_str(text).map_err(|e| Error::file(path, format!("is no JSON ({e}): was it cut short?")))?;
    if head["format"] != format {
        return refuse(format!("is no transcript: its format is {}, expected \"{format}\"", head["format"]));
    }
    if !head["version"].as_u64().is_some_and(|v| (1..=u64::from(newest)).contains(&v)) {
        return refuse(format!(
            "has version {}, this program reads versions up to {newest}: use the one that wrote it, or a later one",
            head["version"]
        ));
    }
    let file = serde_json::from_str(text).map_err(|e| Error::file(path, format!("is no valid transcript: {e}")))?;
    Ok((head, file))
}

/// SHA-256 of an object as it stands, with an empty checksum.
pub(super) fn checksum(mut object: Value) -> String {
    object["checksum"] = "".into();
    sha256(object.to_string())
}

/// A transcript whose parts do not agree: `what`.
pub(super) fn contradiction(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::file(path, format!("contradicts itself: {what}"))
}

/// A transcript that is not what it was.
pub(super) fn changed(path: &Path) -> Error {
    Error::file(path, "was changed after it was written: the checksum does not fit its content")
}
