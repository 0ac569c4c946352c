//! The processes that `mpirun` or `srun` started as one program: joined before a verb runs, left after it.
//!
//! `train`, `eval`, `audit` (but for planting) and `study` share their work. Every other verb is run by the first rank alone, while the others wait. Only the first rank prints results and notes; errors are every
//! rank's, with its number.

use crate::error::{Error, Result};
use crate::ranks::{Alone, Ranks};
use std::sync::{Arc, OnceLock};

static WORLD: OnceLock<Arc<dyn Ranks>> = OnceLock::new();

/// Join the other ranks, if a launcher has started any.
#[cfg(feature = "mpi")]
pub fn enter() -> Result<()> {
    if let Some(ranks) = crate::ranks::mpi::Mpi::open(lost)? {
        let ranks = Arc::new(ranks);
        let _ = WORLD.set(ranks.clone());
        return ranks.greet();
    }
    Ok(())
}

/// There are no others.
#[cfg(not(feature = "mpi"))]
pub fn enter() -> Result<()> {
    Ok(())
}

/// The ranks of this run; one, unless [`enter`] found others.
pub fn world() -> Arc<dyn Ranks> {
    WORLD.get_or_init(|| Arc::new(Alone)).clone()
}

/// Whether this process prints and writes.
pub fn is_first() -> bool {
    world().is_first()
}

/// Whose sentence it is; nothing where there is but one process.
pub fn prefix() -> String {
    let ranks = world();
    if ranks.size() == 1 { String::new() } else { format!("rank {} of {}: ", ranks.rank(), ranks.size()) }
}

/// Part from the others: in peace after `Ok`, else by a sentence that ends them too. Their sentence comes back where there is one.
pub fn leave(result: &Result<()>) -> Result<()> {
    let Some(ranks) = WORLD.get() else { return Ok(()) };
    match result {
        Ok(()) => ranks.close(),
        Err(e) => {
            ranks.fail(&super::flags::spell(&e.to_string()));
            Ok(())
        }
    }
}

/// The others are gone and will not answer.
#[cfg(feature = "mpi")]
fn lost(sentence: &str) -> ! {
    say(&super::flags::spell(sentence));
    // A launcher that sees a second process end kills those that are left: they have their sentence to say first.
    std::thread::sleep(std::time::Duration::from_millis(400));
    std::process::exit(1)
}

/// A sentence on stderr.
pub fn say(sentence: &str) {
    crate::fsio::tell(&format!("ferret: {sentence}"));
}

/// Whether the first rank finds that `condition` holds; asked of nobody else, and told to all.
pub fn first_finds(what: &str, condition: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let ranks = world();
    let found = ranks.is_first() && condition()?;
    match crate::ranks::broadcast(&*ranks, what, &[u8::from(found)])?[..] {
        [found] => Ok(found == 1),
        _ => Err(Error::Rank(format!("the first rank did not tell: {what}"))),
    }
}

/// Whether all ranks find the same bytes in the file at `path`: those of another machine may not see the first one's disk.
pub fn all_see(what: &str, path: &std::path::Path) -> Result<bool> {
    // Whoever has nothing to write comes here first: nobody looks before the first rank has written.
    world().gather(what, &[])?;
    let found = std::fs::read(path).map(crate::hash::sha256).unwrap_or_default();
    let all = world().gather(what, found.as_bytes())?;
    Ok(all.iter().all(|of| !of.is_empty() && *of == all[0]))
}
