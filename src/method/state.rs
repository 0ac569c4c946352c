//! Where an unfinished run stands: a file of its progress, the pointer to it, and small files that are sealed.
//!
//! ```text
//! ROOT/at-75-tensors.safetensors   what the method saved before step 75
//! ROOT/current.json                which file that is, and its SHA-256
//! ```
//! A new file appears complete, then the pointer is swapped, then the old file goes: at every moment the pointer names a file that is
//! whole. A file that is not what its hash says is refused: one flipped bit would give other weights. Nothing in it is secret beyond the
//! model itself: weights and moments follow from the releases.

use crate::error::{Error, Result};
use crate::{fsio, hash};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const POINTER: &str = "current.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pointer {
    step: u32,
    file: String,
    sha256: String,
}

/// SHA-256 of a file, in lower-case hexadecimal.
pub(super) fn file_sha256(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    std::io::copy(&mut file, &mut hash).map_err(|e| Error::io(path, e))?;
    Ok(hash::finish(hash))
}

/// Save under `root` what stands before `step`: `write` makes the file, which is called after `name`.
pub(super) fn save(root: &Path, step: u32, name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    std::fs::create_dir_all(root).map_err(|e| Error::io(root, e))?;
    let file = format!("at-{step}-{name}");
    let path = root.join(&file);
    write(&path)?;
    seal(&root.join(POINTER), &Pointer { step, sha256: file_sha256(&path)?, file: file.clone() })?;
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, e))? {
        let entry = entry.map_err(|e| Error::io(root, e))?;
        // What a killed run left is no state: the pointer did not get to name it.
        if ![POINTER, file.as_str()].iter().any(|kept| entry.file_name() == *kept) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// What was [`current`] elsewhere: a `file` of these bytes before `step`, which nothing else is beside.
pub(super) fn put(root: &Path, step: u32, file: &str, bytes: &[u8]) -> Result<()> {
    let path = root.join(file);
    fsio::write_private(&path, bytes)?;
    seal(&root.join(POINTER), &Pointer { step, sha256: file_sha256(&path)?, file: file.to_owned() })
}

/// The step and the file that were saved last under `root`, which is what it was when it was written.
pub(super) fn current(root: &Path) -> Result<Option<(u32, PathBuf)>> {
    let path = root.join(POINTER);
    if !path.exists() {
        return Ok(None);
    }
    let Pointer { step, file, sha256 } = unseal(&path)?;
    let saved = root.join(file);
    if file_sha256(&saved)? != sha256 {
        return Err(Error::file(
            saved,
            "is not what was saved there (its SHA-256 differs): it was damaged, and going on would give another model; begin the run anew",
        ));
    }
    Ok(Some((step, saved)))
}

/// Remove a file or a folder, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    let done = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match done {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, e)),
        _ => Ok(()),
    }
}

const SEAL: &str = "sha256_of_all_above";

/// Write `content`, an object, with its own hash at the end: for its owner alone.
pub(super) fn seal(path: &Path, content: &impl Serialize) -> Result<()> {
    let mut value = serde_json::to_value(content).expect("strings and numbers");
    value[SEAL] = hash::sha256(value.to_string()).into();
    let text = serde_json::to_string_pretty(&value).expect("strings and numbers") + "\n";
    fsio::write_private(path, text.as_bytes())
}

/// Read what [`seal`] wrote; refuse it if anything was changed.
pub(super) fn unseal<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let broken = |what: String| Error::file(path, format!("{what}: it is damaged, begin the run anew"));
    let text = fsio::read_text(path)?;
    let mut value: Value = serde_json::from_str(&text).map_err(|_| broken("is no JSON".into()))?;
    let seal = value.as_object_mut().and_then(|v| v.shift_remove(SEAL));
    if seal != Some(hash::sha256(value.to_string()).into()) {
        return Err(broken("is not what was written there (its SHA-256 differs)".into()));
    }
    serde_json::from_value(value).map_err(|e| broken(format!("has another form than this program's ({e})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, step: u32, content: &[u8]) -> Result<()> {
        save(root, step, "x", |path| fsio::write(path, content))
    }

    fn get(root: &Path) -> Option<(u32, Vec<u8>)> {
        let (step, path) = current(root).unwrap()?;
        Some((step, std::fs::read(path).unwrap()))
    }

    /// Whatever a killed run leaves, the pointer names a state that is whole.
    #[test]
    fn what_a_killed_run_left_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        assert!(get(&root).is_none());
        put(&root, 5, b"five").unwrap();
        assert_eq!(get(&root), Some((5, b"five".to_vec())));
        // Killed while the next file was written: a temporary one, or a whole one that the pointer does not name.
        std::fs::write(root.join(".ferret-x"), b"half").unwrap();
        std::fs::write(root.join("at-10-x"), b"of another try").unwrap();
        assert_eq!(get(&root), Some((5, b"five".to_vec())));
        put(&root, 10, b"ten").unwrap();
        assert_eq!(get(&root), Some((10, b"ten".to_vec())));
        let left: Vec<_> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        // A disk that fills up while saving leaves the old state.
        std::fs::create_dir_all(root.join("at-15-x/in the way")).unwrap();
        assert!(put(&root, 15, b"fifteen").is_err());
        assert_eq!(get(&root), Some((10, b"ten".to_vec())));
    }

    /// One flipped bit anywhere is found, in what was saved and in what points to it.
    #[test]
    fn a_flipped_bit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), 7, b"what was saved").unwrap();
        let mut looked = 0;
        for name in ["at-7-x", POINTER] {
            let path = dir.path().join(name);
            let whole = std::fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1;
                // White space between fields is not content.
                if whole[at].is_ascii_whitespace() {
                    continue;
                }
                std::fs::write(&path, &flipped).unwrap();
                assert!(current(dir.path()).is_err(), "byte {at} of {name}");
                looked += 1;
            }
            std::fs::write(&path, &whole).unwrap();
        }
        assert!(looked > 100 && get(dir.path()).is_some());
    }
}
