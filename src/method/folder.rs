//! A run's folder: what is being written, what resuming needs, what is left at the end.
//!
//! ```text
//! DIR/log.jsonl        a line a computed step
//! DIR/state/           while the run is unfinished: settings and progress, and the key of the secret generator
//! DIR/model.safetensors, config.json, tokenizer files, privacy.json, PRIVACY.md, transcript.json   at the end
//! ```
//! Every file is written whole or not at all. `state` goes last, so a run that was killed at any moment can be continued.

use crate::error::{Error, Result};
use crate::fsio;
use crate::rng::Secret;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const STATE: &str = "state";
const KEY: &str = "key.json";

/// The folder of an unfinished run.
pub struct Folder {
    dir: PathBuf,
    log: File,
}

impl Folder {
    /// A new folder, with the key of its run.
    pub fn begin(dir: &Path, secret: &Secret) -> Result<Self> {
        fsio::must_be_new(dir).map_err(|e| match e {
            Error::File { path, what } if path.join(STATE).is_dir() => {
                Error::File { path, what: format!("{what}, or continue the unfinished run there with --resume") }
            }
            e => e,
        })?;
        let state = dir.join(STATE);
        std::fs::create_dir_all(&state).map_err(|e| Error::io(&state, e))?;
        secret.save(&state.join(KEY))?;
        Self::open(dir)
    }

    /// The folder of an unfinished run, and its key.
    pub fn resume(dir: &Path) -> Result<(Self, Secret)> {
        let state = dir.join(STATE);
        if !state.is_dir() {
            let what = if dir.join("model.safetensors").exists() {
                "the run there is finished: there is nothing to resume"
            } else {
                "there is no unfinished run to resume: leave out --resume to begin one"
            };
            return Err(Error::file(dir, what));
        }
        let secret = Secret::load(&state.join(KEY))?;
        Ok((Self::open(dir)?, secret))
    }

    fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("log.jsonl");
        let log = File::options().create(true).append(true).open(&path).map_err(|e| Error::io(&path, e))?;
        Ok(Self { dir: dir.to_owned(), log })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// A file of the unfinished run's state.
    pub fn state(&self, name: &str) -> PathBuf {
        self.dir.join(STATE).join(name)
    }

    /// Append a line to the log.
    pub fn log(&mut self, line: &Value) -> Result<()> {
        let path = self.dir.join("log.jsonl");
        writeln!(self.log, "{line}").map_err(|e| Error::io(path, e))
    }

    /// Drop the log's lines of steps from `next` on, and a line that was cut short: resuming computes them again.
    pub fn rewind_log(&mut self, next: u64) -> Result<()> {
        let path = self.dir.join("log.jsonl");
        let text = fsio::read_text(&path)?;
        let keep = |line: &&str| {
            serde_json::from_str::<Value>(line).is_ok_and(|v| v["step"].as_u64().is_some_and(|s| s < next))
        };
        let kept: String = text.lines().filter(keep).map(|l| format!("{l}\n")).collect();
        fsio::write(&path, kept.as_bytes())?;
        self.log = File::options().append(true).open(&path).map_err(|e| Error::io(&path, e))?;
        Ok(())
    }

    /// The run is over and its results are written: remove the key, then the state.
    pub fn finish(self) -> Result<()> {
        Secret::remove(&self.state(KEY))?;
        let state = self.dir.join(STATE);
        std::fs::remove_dir_all(&state).map_err(|e| Error::io(&state, e))
    }
}
