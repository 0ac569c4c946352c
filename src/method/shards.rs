//! Records that may not leave their machine: every rank of a run has a shard of them.
//!
//! N, the number of all records, is public, and every rank takes each of its own with probability B / N, by a key of its own. Records are taken independently, so the whole
//! sample has the law of Poisson sampling on one machine, and every accountant's word on it holds. A batch of a fixed size cannot be drawn so: how many of it fall into
//! a shard would have to be told.
//!
//! ```text
//! told to all ranks, a step   FERRET: a rank's sum of <g, u> over its whole sample, one f64 a fired group
//!                             FERRET-k: a rank's sum of clipped sketches, k whole numbers; DPSGD, DP-SignSGD: its sum of clipped gradients
//!                             methods that promise nothing: the sum of gradients, of losses, how many records and tokens
//! told to all ranks, once     how many records each has; a salted hash of every record; the hash of the file of each one's key
//! told to nobody              records, which of them are in a batch and how many, their losses, their gradients; the key of sampling
//! ```
//! What is told in a step is as long whatever the sample is. It is not hidden from the other ranks, has no noise yet, and may be of one record or of none, so ranks trust each
//! other with it: nothing here is secure aggregation. Noise and flips come from one key that all ranks have.
//!
//! A record in two shards would be counted twice, so shards that share one are refused. Ranks find out by comparing hashes of records under a fresh salt: they learn which
//! of their own records others have too, and whoever can guess a record of another rank can test the guess.

use super::common::Common;
use super::list::Method;
use super::sampler::Samples;
use crate::data::{Dataset, examples_sha256};
use crate::error::{Error, Result};
use crate::hash;
use crate::privacy::Sampler;
use crate::ranks::{Ranks, broadcast, total};
use crate::rng::{Place, Secret, ShardKey};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a record's hash that are compared: two different records share them with a chance far below anything that happens.
const HASH: usize = 16;

/// A rank's own records, and the key by which it samples them.
pub(super) struct Shard {
    key: ShardKey,
    records: usize,
}

/// A rank's shard while its run is opened: where its key lies, and what binds all shards to the run.
pub(super) struct OpenShard {
    path: PathBuf,
    /// None where nothing is computed any more.
    pub(super) shard: Option<Arc<Shard>>,
    /// What all ranks' keys and shards are, in the order of ranks.
    pub(super) sha256: String,
}

impl Shard {
    /// The rank's part of the run's batches.
    pub(super) fn samples(&self, common: &Common) -> Result<Samples<'_>> {
        if common.sampler != Sampler::Poisson {
            return Err(fixed_size());
        }
        Samples::of_shard(self.key.secret(), self.records, common.records as usize, common.batch as usize)
    }
}

fn fixed_size() -> Error {
    Error::usage(
        "`data` is in shards, and a batch of a fixed size cannot be drawn from them: how many of its records each rank has would have to be told; \
         set `sampler` poisson",
    )
}

/// Refuse what cannot be done in shards, or would tell more than was promised.
pub(super) fn check(method: &Method, log_private: bool) -> Result<()> {
    if method.common().sampler != Sampler::Poisson {
        return Err(fixed_size());
    }
    if log_private {
        return Err(Error::usage(
            "`log_private` would tell the first rank what the others' batches were, and `data` is in shards that no other rank may see: leave it out",
        ));
    }
    if matches!(method, Method::Ferret(_)) && method.is_open() {
        return Err(Error::usage(
            "`payload` true-gradient would send gradients to the other ranks, and `data` is in shards of which only sums of <g, u> may leave: leave it out",
        ));
    }
    Ok(())
}

/// Where the key of a rank's shard lies, on its own machine: beside the run's folder.
fn key_path(out: &Path, rank: usize) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(".rank-{rank}.key.json"));
    out.with_file_name(name)
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// It begins.
    New,
    /// It goes on.
    On,
    /// Its results are written: there is nothing left to draw.
    Ending,
}

/// Open every rank's shard for a run of `method` into `out`: all ranks call this. The first one's word on how the run stands counts.
pub(super) fn open(
    ranks: &dyn Ranks,
    records: &Dataset,
    method: &Method,
    out: &Path,
    insecure_seed: Option<u64>,
    begin: Begin,
) -> Result<OpenShard> {
    let own = records.examples.len();
    let all = total(ranks, "number of records", own as u64)?;
    if all != method.common().records {
        let what = format!("the shards have {all} records together, and the settings say {}", method.common().records);
        return Err(Error::usage(what));
    }
    let stands = broadcast(ranks, "how the run stands", &[begin as u8])?;
    let path = key_path(out, ranks.rank());
    if stands == [Begin::Ending as u8] {
        return Ok(OpenShard { path, shard: None, sha256: String::new() });
    }
    apart(ranks, records)?;
    let records_sha256 = examples_sha256(&records.examples);
    let place = Place { rank: ranks.rank(), ranks: ranks.size(), records_sha256 };
    let key = match stands == [Begin::On as u8] {
        true => ShardKey::load(&path, insecure_seed, &place)?,
        false => ShardKey::new(insecure_seed, place)?,
    };
    let commitments = ranks.gather("what binds the shards", key.commitment().as_bytes())?;
    let sha256 = format!("shards {}", hash::sha256(commitments.join(&b'\n')));
    Ok(OpenShard { path, shard: Some(Arc::new(Shard { key, records: own })), sha256 })
}

impl OpenShard {
    /// Keep the key for going on, until the run ends.
    pub(super) fn save(&self) -> Result<()> {
        self.shard.as_ref().map_or(Ok(()), |shard| shard.key.save(&self.path))
    }

    /// Nothing will be drawn any more: the key goes.
    pub(super) fn wipe(&self) -> Result<()> {
        Secret::remove(&self.path)
    }
}

/// Refuse shards that share a record, or a user where a record is a user.
fn apart(ranks: &dyn Ranks, records: &Dataset) -> Result<()> {
    // Of all ranks, so that it is fresh wherever one of them is honest: hashes made before are of no use.
    let drawn = system_bytes()?;
    let salt = Sha256::digest(ranks.gather("salt", &drawn)?.concat());
    let mut own = Vec::with_capacity(HASH * records.examples.len());
    for i in 0..records.examples.len() {
        match records.identity(i) {
            Some(identity) => own.extend(&Sha256::new().chain_update(salt).chain_update(identity).finalize()[..HASH]),
            // It teaches nothing wherever it is; and how many such there are is nobody's business.
            None => own.extend(&system_bytes()?[..HASH]),
        }
    }
    let all = ranks.gather("hashes of records", &own)?;
    let Some((a, b, common)) = shared(&all) else { return Ok(()) };
    let what = if records.users { "users" } else { "records" };
    Err(Error::Rank(format!(
        "the shards of ranks {a} and {b} have {common} {what} in common, and what is in two shards would count twice: take it out of one of them"
    )))
}

fn system_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::Privacy(format!("the operating system gave no random bytes ({e})")))?;
    Ok(bytes)
}

/// The first two ranks that share hashes, and how many different ones.
fn shared(all: &[Vec<u8>]) -> Option<(usize, usize, usize)> {
    let mut owners: HashMap<&[u8], usize> = HashMap::new();
    let mut pairs: HashMap<(usize, usize), std::collections::HashSet<&[u8]>> = HashMap::new();
    for (rank, hashes) in all.iter().enumerate() {
        for hash in hashes.chunks(HASH) {
            // Copies inside one shard are one rank's, and noted where records are read.
            let owner = *owners.entry(hash).or_insert(rank);
            if owner != rank {
                pairs.entry((owner, rank)).or_default().insert(hash);
            }
        }
    }
    pairs.into_iter().map(|((a, b), hashes)| (a, b, hashes.len())).min()
}

#[cfg(test)]
mod tests;
