//! `--data shard-{rank}.jsonl`: a file of its own for every rank.

use crate::cli::common::DataArg;
use crate::cli::ranks;
use crate::error::{Error, Result};

/// What stands for the rank's number in the name of a file.
const RANK: &str = "{rank}";

/// This rank's file, where the name says that every rank has one; refused where an audit is asked for too.
pub(super) fn of(data: &DataArg, audit: bool) -> Result<Option<DataArg>> {
    let Some(name) = data.data.to_str().filter(|name| name.contains(RANK)) else { return Ok(None) };
    let ranks = ranks::world();
    if ranks.size() == 1 {
        return Err(Error::usage(format!(
            "--data {name}: {RANK} is the number of a rank, each of which reads its own shard, and this is one process: start several by \
             mpirun (a build with the feature mpi), or name a file"
        )));
    }
    if audit {
        return Err(Error::usage("--audit scores all records in one place, and --data is in shards: leave it out"));
    }
    let own = name.replace(RANK, &ranks.rank().to_string());
    Ok(Some(DataArg { data: own.into(), ..data.clone() }))
}

/// N: the records that are here, or, in shards, those of all ranks.
pub(super) fn count(shards: bool, own: u64) -> Result<u64> {
    if shards { crate::ranks::total(&*ranks::world(), "number of records", own) } else { Ok(own) }
}
