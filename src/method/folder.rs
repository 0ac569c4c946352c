//! A run's folder: what is being written, what resuming needs, what is left at the end.
//!
//! ```text
//! DIR/log.jsonl        a line a computed step; locked by the process that works here
//! DIR/state/           while the run is unfinished, for its owner alone:
//!   told.json            what it was begun with, and how it ended, sealed
//!   key.json             the key of the secret generator
//!   saved/               where it stands: see [`super::state`]
//!   before.json          what was measured before the first step, sealed
//! DIR/model.safetensors, config.json, tokenizer files, privacy.json, PRIVACY.md, transcript.json or run.json   at the end
//! ```
//! `state` appears whole, key included, or not at all; every other file is written whole or not at all; every file of the state is checked by
//! its hash when it is read. At the end come the results, then `told.json` says so, then the key is wiped, then the state goes, that file last.
//! So a run killed at any moment can be continued, or has nothing left to do but to tidy up.

use super::list::Method;
use super::state::{file_sha256, remove, seal, unseal};
use crate::error::{Error, Result};
use crate::fsio;
use crate::rng::Secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const STATE: &str = "state";
const TOLD: &str = "told.json";
const KEY: &str = "key.json";
const LOG: &str = "log.jsonl";

/// What a run was begun with, and must be continued with: its sample, noise and flips are spent on it alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Version of this form.
    pub version: u32,
    /// The method and its settings.
    pub method: Method,
    /// Steps that are made of those planned.
    pub stop: u32,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// SHA-256 of the records: why the file is its owner's alone.
    pub records_sha256: String,
    /// SHA-256 of the file with the key.
    pub key_sha256: String,
    /// Whether any part of the run wrote private logs.
    pub private_logs: bool,
    /// How many runs were begun here before, diverged, and were begun again.
    pub restarts: u32,
    /// What the program was called with, and where: for whoever continues without repeating it.
    pub call: Option<Call>,
    /// Why it cannot go on.
    pub diverged: Option<String>,
    /// The summary of a run whose results are written.
    pub finished: Option<Value>,
}

/// A call of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The folder that relative names start from.
    pub folder: String,
}

impl Terms {
    /// The newest form.
    pub const VERSION: u32 = 1;

    /// What is in `dir`, without working there.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(STATE).join(TOLD);
        if !path.exists() {
            let what = if is_finished(dir) {
                "the run there is finished: there is nothing to resume"
            } else {
                "there is no unfinished run to resume: to begin one, give all of its arguments"
            };
            return Err(Error::file(dir, what));
        }
        unseal(&path)
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is there.
    New,
    /// Begun, perhaps far.
    Begun,
    /// Begun, and its numbers overflowed.
    Diverged,
    /// The results are written; what is left is to tidy up, and whatever comes after training.
    Ending,
    /// Over: the results are whole, and nothing is left to resume.
    Finished,
}

/// The folder of a run that this process, and no other, works in.
pub struct Folder {
    dir: PathBuf,
    log: File,
}

fn is_finished(dir: &Path) -> bool {
    dir.join("model.safetensors").exists() && dir.join("privacy.json").exists()
}

/// What a killed write leaves.
fn is_leftover(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with(".ferret-")
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let found = std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))?;
    found.map(|entry| Ok(entry.map_err(|e| Error::io(dir, e))?.path())).collect()
}

/// How far the run in `dir` is.
pub fn stage(dir: &Path) -> Result<Stage> {
    let state = dir.join(STATE);
    if !dir.is_dir() {
        fsio::must_be_new(dir)?;
        return Ok(Stage::New);
    }
    if state.join(TOLD).exists() {
        return Ok(match Terms::read(dir)? {
            Terms { finished: Some(_), .. } => Stage::Ending,
            Terms { diverged: Some(_), .. } => Stage::Diverged,
            _ => Stage::Begun,
        });
    }
    let empty = !state.exists() || entries(&state)?.is_empty();
    if empty && is_finished(dir) {
        // Killed between the last two removals: nothing but this one is left to do.
        remove(&state)?;
        return Ok(Stage::Finished);
    }
    if !empty {
        let what =
            "the unfinished run there is not whole, or of another version of this program: begin one in another folder";
        return Err(Error::file(dir, what));
    }
    let nothing = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        is_leftover(name) || *path == state || (name == LOG && path.metadata().is_ok_and(|m| m.len() == 0))
    };
    if !entries(dir)?.iter().all(nothing) {
        return Err(Error::file(dir, "is not empty, and nothing there is overwritten: choose a new folder"));
    }
    Ok(Stage::New)
}

impl Folder {
    /// Lock `dir`, which is made if it is not there, and tidy up what killed writes left.
    pub fn lock(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        let path = dir.join(LOG);
        let log = File::options().create(true).append(true).read(true).open(&path).map_err(|e| Error::io(&path, e))?;
        match log.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::file(
                    dir,
                    "another process is at work in this folder: wait for it, or stop it first",
                ));
            }
            Err(TryLockError::Error(e)) => return Err(Error::io(&path, e)),
        }
        let folder = Self { dir: dir.to_owned(), log };
        for path in entries(dir)?.iter().filter(|p| p.file_name().is_some_and(is_leftover)) {
            // It may hold a key.
            for file in if path.is_dir() { entries(path)? } else { Vec::new() } {
                Secret::remove(&file)?;
            }
            remove(path)?;
        }
        Ok(folder)
    }

    /// Begin a run: `told` with the hash of the key.
    pub fn begin(&mut self, secret: &Secret, told: &mut Terms) -> Result<()> {
        let state = self.dir.join(STATE);
        self.log.set_len(0).map_err(|e| Error::io(self.dir.join(LOG), e))?;
        self.wipe_key()?;
        remove(&state)?;
        fsio::fill_folder(&state, |state| {
            secret.save(&state.join(KEY))?;
            told.key_sha256 = file_sha256(&state.join(KEY))?;
            seal(&state.join(TOLD), told)
        })
    }

    /// The key of a run that was begun.
    pub fn key(&self, told: &Terms) -> Result<Secret> {
        let path = self.state(KEY);
        let secret = Secret::load(&path)?;
        if file_sha256(&path)? != told.key_sha256 {
            return Err(Error::file(
                path,
                "is not the key that the run was begun with: it is damaged, begin the run anew",
            ));
        }
        Ok(secret)
    }

    /// Write down what the run was told once more, because something of it changed.
    pub fn tell(&self, told: &Terms) -> Result<()> {
        seal(&self.state(TOLD), told)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where the run's progress is saved.
    pub fn saved(&self) -> PathBuf {
        self.state("saved")
    }

    fn state(&self, name: &str) -> PathBuf {
        self.dir.join(STATE).join(name)
    }

    /// Keep `found`, which was measured before the first step.
    pub fn keep_before(&self, found: &impl Serialize) -> Result<()> {
        seal(&self.state("before.json"), found)
    }

    /// What [`Folder::keep_before`] kept.
    pub fn before<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let path = self.state("before.json");
        path.exists().then(|| unseal(&path)).transpose()
    }

    /// Append a line to the log.
    pub fn log(&mut self, line: &Value) -> Result<()> {
        writeln!(self.log, "{line}").map_err(|e| Error::io(self.dir.join(LOG), e))
    }

    /// Make the log its owner's alone: it will hold what depends on the records.
    pub fn hide_log(&self) -> Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let owner = std::fs::Permissions::from_mode(0o600);
            self.log.set_permissions(owner).map_err(|e| Error::io(self.dir.join(LOG), e))?;
        }
        Ok(())
    }

    /// Drop the log's lines of steps from `next` on, and a line that was cut short: resuming computes them again.
    pub fn rewind_log(&mut self, next: u32) -> Result<()> {
        let path = self.dir.join(LOG);
        let mut bytes = Vec::new();
        let read = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_end(&mut bytes));
        read.map_err(|e| Error::io(&path, e))?;
        let keep = |line: &[u8]| {
            line.ends_with(b"\n")
                && serde_json::from_slice::<Value>(line)
                    .is_ok_and(|v| v["step"].as_u64().is_some_and(|s| s < next.into()))
        };
        let kept: usize = bytes.split_inclusive(|&b| b == b'\n').take_while(|line| keep(line)).map(<[u8]>::len).sum();
        self.log.set_len(kept as u64).map_err(|e| Error::io(&path, e))
    }

    /// Nothing will be computed any more: the key goes.
    pub fn wipe_key(&self) -> Result<()> {
        Secret::remove(&self.state(KEY))
    }

    /// Remove the state, the file that says that the run is over last.
    pub fn close(self) -> Result<()> {
        let state = self.dir.join(STATE);
        if !state.exists() {
            return Ok(());
        }
        for path in entries(&state)?.iter().filter(|p| !p.ends_with(TOLD)) {
            remove(path)?;
        }
        remove(&self.state(TOLD))?;
        remove(&state)
    }
}
