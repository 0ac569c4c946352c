//! The file of a key, for its owner alone.

use super::{Place, Secret};
use crate::error::{Error, Result};
use crate::hash;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const VERSION: u32 = 1;

/// What is in it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFile {
    format: String,
    version: u32,
    insecure: bool,
    key: String,
    /// Of a shard's key: random bytes, and whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) salt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<Place>,
}

impl KeyFile {
    /// Of this key.
    pub(super) fn new(format: &str, secret: &Secret) -> Self {
        let key = hash::hex(&secret.key);
        Self { format: format.into(), version: VERSION, insecure: secret.insecure, key, salt: None, place: None }
    }

    /// As it is written.
    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers")
    }

    /// Read a file of this format, and its text. Refuses one that others could have read.
    pub(super) fn read(path: &Path, format: &str) -> Result<(Self, String)> {
        refuse_open(path)?;
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        // What serde says of a broken file may quote it: say nothing of the content.
        let file = serde_json::from_str(&text).ok().filter(|f: &Self| f.format == format && f.version == VERSION);
        match file {
            Some(file) => Ok((file, text)),
            None => Err(Error::file(path, format!("not a {format} of version {VERSION}: was it cut short?"))),
        }
    }

    /// The generator whose file at `path` this is.
    pub(super) fn secret(&self, path: &Path) -> Result<Secret> {
        let Some(key) = hash::bytes(&self.key) else {
            return Err(Error::file(path, "has no key of 32 bytes: was it cut short?"));
        };
        Ok(Secret { key, insecure: self.insecure, claimed: AtomicBool::new(false) })
    }
}

fn refuse_open(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let what = format!(
                "mode is {mode:03o}, expected 600: others could have read the key of sampling and noise; \
                 start the run anew, or, if you are sure they have not, chmod 600 the file"
            );
            return Err(Error::file(path, what));
        }
    }
    Ok(())
}
