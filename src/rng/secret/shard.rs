//! The key that a rank samples its own shard by: drawn by that rank, kept on its machine, told to nobody.
//!
//! Whoever knows which of a rank's records are in a batch sees its sum without the sample's protection. So the key of sampling is each rank's own; the key of
//! noise and flips is the run's, and known to all its ranks. A rank's key is `SHA-256(what was drawn, rank)`: no two ranks have the same, not even where two
//! machines were copied with the state of their generators, or where one known seed serves all.
//!
//! What going on needs lies in a file for its owner alone: the key, and whose it is. Others get the file's hash, which tells nothing of the
//! rest: 32 random bytes are in it too, also where the key comes from a seed.

use super::Secret;
use super::file::KeyFile;
use crate::error::{Error, Result};
use crate::{fsio, hash};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const FORMAT: &str = "ferret shard key";

/// Whose key it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    /// The rank.
    pub(crate) rank: usize,
    /// Of how many.
    pub(crate) ranks: usize,
    /// SHA-256 of its records.
    pub(crate) records_sha256: String,
}

/// The key of a rank's shard, and its file.
pub(crate) struct ShardKey {
    secret: Secret,
    text: String,
}

impl Secret {
    /// The generator of one rank of many: another one for every rank, whatever this one is.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        let mut hash = Sha256::new();
        for part in [&b"the key of a rank's shard"[..], &self.key, &(rank as u64).to_le_bytes()] {
            hash.update(part);
        }
        Self { key: hash.finalize().into(), insecure: self.insecure, claimed: AtomicBool::new(false) }
    }
}

impl ShardKey {
    /// A fresh key, from the operating system or of a known seed.
    pub(crate) fn new(insecure_seed: Option<u64>, place: Place) -> Result<Self> {
        let drawn = match insecure_seed {
            Some(seed) => Secret::insecure(seed),
            None => Secret::from_system()?,
        };
        let secret = drawn.of_rank(place.rank);
        let mut file = KeyFile::new(FORMAT, &secret);
        file.salt = Some(hash::hex(&Secret::from_system()?.key));
        file.place = Some(place);
        let text = file.text();
        Ok(Self { secret, text })
    }

    /// The key that the run was begun with, by the rank and with the records that it was begun with; anything else is refused.
    pub(crate) fn load(path: &Path, insecure_seed: Option<u64>, place: &Place) -> Result<Self> {
        if !path.exists() {
            let what = "is not there, and it is the key by which this rank sampled its shard: go on where the run was begun, with as many ranks, or begin anew";
            return Err(Error::file(path, what));
        }
        let (file, text) = KeyFile::read(path, FORMAT)?;
        let Some(then) = &file.place else {
            return Err(Error::file(path, "does not say whose key it is: was it cut short?"));
        };
        if (then.rank, then.ranks) != (place.rank, place.ranks) {
            return Err(Error::file(
                path,
                format!(
                    "is of rank {} of {}, and this is rank {} of {}: a run in shards goes on with as many ranks, each with the shard that it had",
                    then.rank, then.ranks, place.rank, place.ranks
                ),
            ));
        }
        if then.records_sha256 != place.records_sha256 {
            let what = "is of another shard: a run in shards goes on with the records that it was begun with, each rank with its own";
            return Err(Error::file(path, what));
        }
        let secret = file.secret(path)?;
        let known = insecure_seed.map(|seed| Secret::insecure(seed).of_rank(place.rank));
        if known.is_some() != secret.insecure || known.is_some_and(|known| known.key != secret.key) {
            return Err(Error::file(path, "the run to resume was begun with another `insecure_seed`, or without one"));
        }
        Ok(Self { secret, text })
    }

    /// Write it where [`ShardKey::load`] finds it: whole or not at all, for its owner alone.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        }
        fsio::write_private(path, self.text.as_bytes())
    }

    /// What binds this key to a run, and tells nothing of it: the hash of its file.
    pub(crate) fn commitment(&self) -> String {
        hash::sha256(&self.text)
    }

    /// The generator.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SecretDomain;
    use std::collections::HashSet;

    fn place(rank: usize, ranks: usize, records: &str) -> Place {
        Place { rank, ranks, records_sha256: records.into() }
    }

    /// Not for one seed, not for neighbouring seeds, and not with the key that all ranks share; nor where two machines draw the same.
    #[test]
    fn no_two_ranks_share_a_stream() {
        let mut seen = HashSet::new();
        let mut add = |secret: &Secret| {
            for domain in [SecretDomain::Sampling, SecretDomain::Noise, SecretDomain::Flips] {
                for (step, part) in [(0, 0), (0, 1), (1, 0), (7, 3)] {
                    let mut stream = secret.stream(domain, step, part);
                    let words: [u64; 4] = std::array::from_fn(|_| stream.next_u64());
                    // Not one word at any place, even.
                    words.into_iter().for_each(|word| assert!(seen.insert(word), "two streams share a word"));
                }
            }
        };
        for seed in 0..4 {
            add(&Secret::insecure(seed));
            (0..8).for_each(|rank| add(ShardKey::new(Some(seed), place(rank, 8, "")).unwrap().secret()));
        }
        (0..4).for_each(|rank| add(ShardKey::new(None, place(rank, 4, "")).unwrap().secret()));
        let copied = [0u8; 33];
        (0..4).for_each(|rank| add(&Secret::from_ranks(&copied).unwrap().of_rank(rank)));
    }

    #[test]
    fn a_key_is_its_ranks_and_its_shards_and_goes_on_with_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("tuned.rank-1.key.json");
        let of = |key: &ShardKey| key.secret().stream(SecretDomain::Sampling, 3, 1).next_u64();
        for seed in [None, Some(4)] {
            let key = ShardKey::new(seed, place(1, 3, "abc")).unwrap();
            key.save(&path).unwrap();
            let back = ShardKey::load(&path, seed, &place(1, 3, "abc")).unwrap();
            assert_eq!((of(&back), back.commitment()), (of(&key), key.commitment()));
            let refused = |seed, place: Place, why: &str| {
                let error = ShardKey::load(&path, seed, &place).err().unwrap().to_string();
                assert!(error.contains(why) && !error.contains(&hash::hex(&key.secret.key)), "{error}");
            };
            refused(seed, place(0, 3, "abc"), "is of rank 1 of 3, and this is rank 0 of 3");
            refused(seed, place(1, 2, "abc"), "this is rank 1 of 2");
            refused(seed, place(1, 3, "abd"), "another shard");
            refused(Some(5), place(1, 3, "abc"), "another `insecure_seed`");
            if seed.is_some() {
                refused(None, place(1, 3, "abc"), "another `insecure_seed`");
            }
            // What others get cannot be made by guessing records, though seed and rank are known.
            assert_ne!(key.commitment(), ShardKey::new(seed, place(1, 3, "abc")).unwrap().commitment());
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let error = ShardKey::load(&path, Some(4), &place(1, 3, "abc")).err().unwrap().to_string();
        assert!(error.contains("cut short"), "{error}");
        Secret::remove(&path).unwrap();
        let error = ShardKey::load(&path, Some(4), &place(1, 3, "abc")).err().unwrap().to_string();
        assert!(error.contains("is not there"), "{error}");
    }
}
