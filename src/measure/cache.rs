//! Scores that were computed before, by what they were computed from.
//!
//! Records are scored in chunks; a chunk's file is named by the SHA-256 of what was measured, the weights' hash and the chunk's
//! tokens, so a file is either right or absent, and an audit that was stopped finds what it had.

use crate::data::Example;
use crate::data::digest::add_examples;
use crate::error::{Error, Result};
use crate::ranks::{Ranks, broadcast};
use crate::{fsio, hash};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Records a file.
pub(super) const CHUNK: usize = 256;

const MAGIC: &[u8] = b"ferret scores 1\n";

/// A folder of scores, or none; and who computes what is not there.
#[derive(Clone, Default)]
pub struct Cache {
    dir: Option<PathBuf>,
    /// Several, all of which ask for the same scores at the same time; none: this process alone.
    ranks: Option<Arc<dyn Ranks>>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Cache {
    /// Remember nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Remember in `dir`, which is made if it is not there.
    pub fn at(dir: &Path) -> Result<Self> {
        fsio::private_folder(dir)?;
        Ok(Self { dir: Some(dir.to_owned()), ranks: None })
    }

    /// Share the work with `ranks`. The first remembers; the others need no folder.
    pub fn over(self, ranks: Arc<dyn Ranks>) -> Self {
        let dir = self.dir.filter(|_| ranks.is_first());
        Self { dir, ranks: Some(ranks).filter(|ranks| ranks.size() > 1) }
    }

    /// The same folder, for work that this process does alone.
    pub(super) fn here(&self) -> Self {
        Self { dir: self.dir.clone(), ranks: None }
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
        if let Some(ranks) = &self.ranks {
            return self.shared(&**ranks, kind, weights_sha256, examples, &mut done, &mut compute);
        }
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

/// Computes a chunk, and tells how many of its records are finished each time some are.
type Compute<'a> = &'a mut dyn FnMut(&[Example], &mut dyn FnMut(usize) -> Result<()>) -> Result<Vec<f32>>;

impl Cache {
    /// [`Cache::chunks`] by all ranks, a chunk each at a time: every rank gets all of them.
    fn shared(
        &self,
        ranks: &dyn Ranks,
        kind: &str,
        weights_sha256: &str,
        examples: &[Example],
        done: &mut dyn FnMut(usize) -> Result<()>,
        compute: Compute,
    ) -> Result<Vec<Vec<f32>>> {
        let chunks: Vec<&[Example]> = examples.chunks(CHUNK).collect();
        let paths: Vec<Option<PathBuf>> =
            chunks.iter().map(|c| self.dir.as_ref().map(|dir| dir.join(name(kind, weights_sha256, c)))).collect();
        let mut all: Vec<Vec<f32>> = Vec::with_capacity(chunks.len());
        let mut missing = Vec::new();
        for (i, (chunk, path)) in chunks.iter().zip(&paths).enumerate() {
            let found = path.as_deref().and_then(load);
            let bytes = found.map_or(Vec::new(), |values| [&[1], bytemuck::cast_slice(&values)].concat());
            let bytes = broadcast(ranks, "scores that are kept", &bytes)?;
            match bytes.split_first() {
                Some((_, values)) => {
                    done(chunk.len())?;
                    all.push(numbers(values)?);
                }
                None => {
                    missing.push(i);
                    all.push(Vec::new());
                }
            }
        }
        for round in missing.chunks(ranks.size()) {
            let own = round.get(ranks.rank()).map(|&i| compute(chunks[i], done)).transpose()?.unwrap_or_default();
            let got = ranks.gather("scores", bytemuck::cast_slice(&own))?;
            for (rank, (&i, bytes)) in round.iter().zip(got).enumerate() {
                all[i] = numbers(&bytes)?;
                if let Some(path) = &paths[i] {
                    store(path, &all[i])?;
                }
                if rank != ranks.rank() {
                    done(chunks[i].len())?;
                }
            }
        }
        Ok(all)
    }

    /// Remember `values`, one a record, which were computed elsewhere, unless they are there.
    pub(super) fn keep(&self, kind: &str, weights_sha256: &str, examples: &[Example], values: &[f32]) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        for (chunk, values) in examples.chunks(CHUNK).zip(values.chunks(CHUNK)) {
            let path = dir.join(name(kind, weights_sha256, chunk));
            if load(&path).is_none() {
                store(&path, values)?;
            }
        }
        Ok(())
    }

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

/// The numbers that another rank sent.
fn numbers(bytes: &[u8]) -> Result<Vec<f32>> {
    match bytes.len() % 4 {
        0 => Ok(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()),
        _ => Err(Error::Rank(format!("a rank sent {} bytes as scores of 4", bytes.len()))),
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
    use crate::ranks::threads::on_threads;
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// Each chunk once, whoever has it; all ranks get all, and the first keeps what one process would.
    #[test]
    fn ranks_share_chunks_and_the_first_keeps_them() {
        let examples: Vec<Example> = (0..1500).map(|i| Example::all(vec![i, i + 1])).collect();
        let expected: Vec<f32> = (0..1500).map(|i| i as f32 + 0.1).collect();
        let dir = tempfile::tempdir().unwrap();
        // The third chunk is there already.
        let alone = Cache::at(dir.path()).unwrap();
        alone.keep("a", "w", &examples[2 * CHUNK..3 * CHUNK], &expected[2 * CHUNK..3 * CHUNK]).unwrap();
        for (size, computed) in [(3, 5), (2, 0)] {
            let calls = AtomicUsize::new(0);
            let all = on_threads(size, |ranks| {
                let cache = Cache::at(dir.path())?.over(ranks.clone());
                assert_eq!(cache.dir().is_some(), ranks.rank() == 0);
                let mut heard = 0;
                let chunks = cache.chunks(
                    "a",
                    "w",
                    &examples,
                    |n| {
                        heard += n;
                        Ok(())
                    },
                    |chunk, done| {
                        calls.fetch_add(1, Ordering::SeqCst);
                        done(chunk.len())?;
                        Ok(chunk.iter().map(|e| e.ids[0] as f32 + 0.1).collect())
                    },
                )?;
                Ok((chunks.concat(), heard))
            });
            assert!(all.into_iter().all(|of| of.unwrap() == (expected.clone(), 1500)));
            assert_eq!(calls.into_inner(), computed);
            assert_eq!(alone.find("a", "w", &examples).unwrap().concat(), expected);
        }
    }
}
