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
                Error::File { path, what: format!("{what}, or continue the unfinished run there with `resume`") }
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
        let (finished, key) = (dir.join("model.safetensors").exists(), state.join(KEY).exists());
        if finished && !key {
            // Killed between the two removals of `finish`: nothing but the removal is left to do.
            if state.is_dir() {
                std::fs::remove_dir_all(&state).map_err(|e| Error::io(&state, e))?;
            }
            return Err(Error::file(dir, "the run there is finished: there is nothing to resume"));
        }
        if !key {
            let what = if state.is_dir() {
                "the run there stopped before it had begun: remove the folder and leave out `resume`"
            } else {
                "there is no unfinished run to resume: leave out `resume` to begin one"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_at_any_moment_of_the_end_leaves_a_folder_that_resume_understands() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("run");
        let told = |dir: &Path| Folder::resume(dir).err().unwrap().to_string();
        assert!(told(&dir).contains("no unfinished run"));

        Folder::begin(&dir, &Secret::insecure(1)).unwrap();
        assert!(Folder::resume(&dir).is_ok());
        // The model is written, the key still there: resuming computes the end again.
        std::fs::write(dir.join("model.safetensors"), b"").unwrap();
        assert!(Folder::resume(&dir).is_ok());
        // Between the removals of `finish`.
        Secret::remove(&dir.join(STATE).join(KEY)).unwrap();
        assert!(told(&dir).contains("finished"));
        assert!(!dir.join(STATE).exists());
        assert!(told(&dir).contains("finished"));

        let early = home.path().join("early");
        std::fs::create_dir_all(early.join(STATE)).unwrap();
        assert!(told(&early).contains("before it had begun"));
    }
}
