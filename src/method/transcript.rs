//! What the transcripts of FERRET and FERRET-k share.

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

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
    /// Refuse hashes that are none.
    pub(super) fn check_hashes(&self) -> Result<()> {
        let is_sha256 = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        for (name, hash) in [("base_sha256", Some(&self.base_sha256)), ("tuned_sha256", self.tuned_sha256.as_ref())] {
            if let Some(hash) = hash.filter(|h| !is_sha256(h)) {
                return Err(Error::usage(format!("{name} is \"{hash}\", expected 64 hexadecimal digits")));
            }
        }
        Ok(())
    }
}

/// The JSON of a transcript of `format`, in one of the versions up to `newest`. The version is looked at first: a later one may have fields that
/// this program does not know.
pub(super) fn head(text: &str, path: &Path, format: &str, newest: u32) -> Result<Value> {
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
    Ok(head)
}
