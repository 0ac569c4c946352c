//! Scores that were computed before, by what they were computed from.
//!
//! Records are scored in chunks; a chunk's file is named by the SHA-256 of what was measured, the weights' hash and the chunk's
//! tokens, so a file is either right or absent, and an audit that was stopped finds what it had.

use crate::data::Example;
use crate::data::digest::add_examples;
use crate::error::Result;
use crate::{fsio, hash};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Records a file.
pub(super) const CHUNK: usize = 256;

const MAGIC: &[u8] = b"ferret scores 1\n";

/// A folder of scores, or none.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    dir: Option<PathBuf>,
}

impl Cache {
    /// Remember nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Remember in `dir`, which is made if it is not there.
    pub fn at(dir: &Path) -> Result<Self> {
        fsio::private_folder(dir)?;
        Ok(Self { dir: Some(dir.to_owned()) })
    }

    /// `compute` for every chunk of `examples` that is not in the cache. `done` hears how many records are finished, and stops the
    /// work by an error.
    pub(super) fn chunks(
        &self,
        kind: &str,
        weights_sha256: &str,
        examples: &[Example],
        mut done: impl FnMut(usize) -> Result<()>,
        mut compute: impl FnMut(&[Example], &mut dyn FnMut(usize) -> Result<()>) -> Result<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>> {
        let mut all = Vec::with_capacity(examples.len().div_ceil(CHUNK));
        for chunk in examples.chunks(CHUNK) {
            let path = self.dir.as_ref().map(|dir| dir.join(name(kind, weights_sha256, chunk)));
            if let Some(found) = path.as_deref().and_then(load) {
                done(chunk.len())?;
                all.push(found);
                continue;
            }
            let values = compute(chunk, &mut done)?;
            if let Some(path) = path {
                store(&path, &values)?;
            }
            all.push(values);
        }
        Ok(all)
    }
}

impl Cache {
    /// What [`Cache::chunks`] would give without computing anything, if that is all there.
    pub(super) fn find(&self, kind: &str, weights_sha256: &str, examples: &[Example]) -> Option<Vec<Vec<f32>>> {
        let dir = self.dir.as_ref()?;
        examples.chunks(CHUNK).map(|chunk| load(&dir.join(name(kind, weights_sha256, chunk)))).collect()
    }

    /// Its folder, if it has one.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}

fn name(kind: &str, weights_sha256: &str, examples: &[Example]) -> String {
    let mut hash = Sha256::new();
    for text in [kind, weights_sha256] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    add_examples(&mut hash, examples);
    format!("{}.scores", hash::finish(hash))
}

/// The file's numbers, unless it is missing or damaged: then they are computed again.
fn load(path: &Path) -> Option<Vec<f32>> {
    let bytes = std::fs::read(path).ok()?;
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    let numbers = content.strip_prefix(MAGIC)?;
    if Sha256::digest(content).as_slice() != digest || numbers.len() % 4 != 0 {
        return None;
    }
    Some(numbers.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn store(path: &Path, values: &[f32]) -> Result<()> {
    let mut bytes = MAGIC.to_vec();
    values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    let digest = Sha256::digest(&bytes);
    bytes.extend(digest.as_slice());
    // Scores tell who is a member.
    fsio::write_private(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_computed_once_and_a_damaged_file_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let examples: Vec<Example> = (0..300).map(|i| Example::all(vec![i, i + 1])).collect();
        let run = |cache: &Cache, kind: &str, weights: &str, examples: &[Example]| {
            let mut calls = 0;
            let chunks = cache
                .chunks(
                    kind,
                    weights,
                    examples,
                    |_| Ok(()),
                    |chunk, _| {
                        calls += 1;
                        Ok(chunk.iter().map(|e| e.ids[0] as f32).collect())
                    },
                )
                .unwrap();
            assert_eq!(chunks.concat(), examples.iter().map(|e| e.ids[0] as f32).collect::<Vec<_>>());
            calls
        };
        assert_eq!(run(&cache, "a", "w", &examples), 2);
        assert_eq!(run(&cache, "a", "w", &examples), 0);
        assert_eq!(cache.find("a", "w", &examples).unwrap().concat().len(), 300);
        assert!(cache.find("a", "v", &examples).is_none() && Cache::none().find("a", "w", &examples).is_none());
        assert_eq!(run(&Cache::none(), "a", "w", &examples), 2);
        assert_eq!(run(&cache, "a", "v", &examples), 2);
        assert_eq!(run(&cache, "b", "w", &examples), 2);
        let mut other = examples.clone();
        other[299].learn[1] = false;
        assert_eq!(run(&cache, "a", "w", &other), 1, "only the chunk that changed");
        let file = dir.path().join(name("a", "w", &examples[..CHUNK]));
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(run(&cache, "a", "w", &examples), 1);
        std::fs::write(&file, b"short").unwrap();
        assert_eq!(run(&cache, "a", "w", &examples), 1);
        assert_eq!(run(&cache, "a", "w", &examples), 0);
    }
}
