//! Many processes that work on one run: what a run asks of them, whoever carries the messages.
//!
//! A rank is one process of a run, and all of them make the same calls in the same order. [`Ranks`] is the whole of what a run needs of the others:
//!
//! ```text
//! rank, size      who this is, of how many
//! gather          what each rank gave, to all, in the order of ranks
//! sum, add        the sums of all ranks' numbers, added in the order of ranks: the same bits on every rank
//! stop            whether any rank was asked to stop, as all ranks know it at this point
//! fail, close     the end, by a sentence that every rank gets, or in peace
//! ```
//! [`Alone`] is a process by itself: nothing travels. `ranks::mpi` (feature `mpi`) is the system's MPI.
//!
//! What travels, and what does not. FERRET: one f64 a fired group and micro-batch, summed on every rank in the order in which one process adds
//! them, so that bits and tuned weights are those of one process, to the byte, at any number of ranks. FERRET-k: the whole numbers of a step's sum, which have no order.
//! Whole updates: the sum of clipped gradients. Weights never travel: every rank applies the same releases. Noise is drawn by every rank
//! from one key, which the first rank draws and sends once.
//!
//! Whom that trusts. Ranks are one holder of the records: every rank has the key, and sees the sums of every step without their noise. Messages are not
//! encrypted, and nothing hides one rank's sum from another. Where every rank has a shard that no other may see, the key of sampling is each one's own: see `method::shards`.
//!
//! Faults. Every exchange begins with a word from each rank: all is well, or a sentence of what is not. So an error of one ends all, by that sentence. A process that dies
//! says nothing: others on its machine see that it is gone, those on other machines are ended by the launcher; whoever waits longer than the
//! patience that `FERRET_MPI_PATIENCE` gives in seconds (1800) gives up.

#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "mpi")]
mod neighbours;
pub mod pieces;
#[cfg(test)]
pub(crate) mod threads;
pub mod wire;

use crate::error::{Error, Result};

/// All processes of a run, as one of them sees them.
pub trait Ranks: Send + Sync {
    /// Which of them this is, from 0. The first is the one that writes.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// What every rank gave, in the order of ranks. `what` names the exchange: ranks that are at different ones end with an error.
    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Replace the numbers of `parts` by their sums over all ranks, added in the order of ranks. Every rank has as many.
    fn sum(&self, what: &str, parts: &mut [&mut [f32]]) -> Result<()>;

    /// [`Ranks::sum`] of whole numbers. What is beyond them stays at their end; short of that their sum has no order.
    fn add(&self, what: &str, numbers: &mut [i64]) -> Result<()>;

    /// Whether to stop: once any rank was `asked` to and the others have heard of it, which takes one exchange. All ranks get the same
    /// answer at the same place.
    fn stop(&self, asked: bool) -> bool;

    /// End all ranks by this sentence.
    fn fail(&self, sentence: &str) {
        let _ = sentence;
    }

    /// Wait until all are done; the sentence of whoever is not.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Whether this one writes.
    fn is_first(&self) -> bool {
        self.rank() == 0
    }
}

/// A process by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn gather(&self, _what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![own.to_vec()])
    }

    fn sum(&self, _what: &str, _parts: &mut [&mut [f32]]) -> Result<()> {
        Ok(())
    }

    fn add(&self, _what: &str, _numbers: &mut [i64]) -> Result<()> {
        Ok(())
    }

    fn stop(&self, asked: bool) -> bool {
        asked
    }
}

/// What the first rank has, on every rank; what the others give is passed over.
pub fn broadcast(ranks: &dyn Ranks, what: &str, own: &[u8]) -> Result<Vec<u8>> {
    let mut all = ranks.gather(what, if ranks.is_first() { own } else { &[] })?;
    Ok(all.swap_remove(0))
}

/// Numbers of every rank, in the order of ranks.
pub fn gather_numbers(ranks: &dyn Ranks, what: &str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let all = ranks.gather(what, bytemuck::cast_slice(own))?;
    all.into_iter()
        .map(|bytes| {
            let mut numbers = vec![0.0; bytes.len() / 8];
            let whole = bytemuck::cast_slice_mut::<f64, u8>(&mut numbers);
            if whole.len() != bytes.len() {
                return Err(Error::Rank(format!("a rank sent {} bytes as numbers of 8", bytes.len())));
            }
            whole.copy_from_slice(&bytes);
            Ok(numbers)
        })
        .collect()
}

/// The sum of every rank's `own`: of numbers that are public, such as how many records each has.
pub fn total(ranks: &dyn Ranks, what: &str, own: u64) -> Result<u64> {
    let all = ranks.gather(what, &own.to_le_bytes())?;
    all.iter().try_fold(0u64, |sum, bytes| {
        let number = bytes.as_slice().try_into().map(u64::from_le_bytes);
        number.ok().and_then(|x| sum.checked_add(x)).ok_or_else(|| Error::Rank(format!("a rank sent no {what}")))
    })
}

/// What must be the same on every rank: what it is called in a sentence, and its value.
pub type Fact = (&'static str, String);

/// Refuse to go on unless every rank has the same `facts`, by a sentence that names the first that differs and who differs.
pub fn agree(ranks: &dyn Ranks, what: &str, facts: &[Fact]) -> Result<()> {
    let own: Vec<u8> = serde_json::to_vec(&facts.iter().map(|f| &f.1).collect::<Vec<_>>()).expect("strings");
    let all = ranks.gather(what, &own)?;
    let lists: Vec<Vec<String>> = all
        .iter()
        .map(|bytes| serde_json::from_slice(bytes).map_err(|e| Error::Rank(format!("a rank sent no list ({e})"))))
        .collect::<Result<_>>()?;
    match difference(facts, &lists) {
        Some(sentence) => Err(Error::Rank(sentence)),
        None => Ok(()),
    }
}

/// The first fact that is not the first rank's, of the lowest such rank.
fn difference(facts: &[Fact], lists: &[Vec<String>]) -> Option<String> {
    for (i, (name, _)) in facts.iter().enumerate() {
        for (rank, list) in lists.iter().enumerate().skip(1) {
            let of = |list: &Vec<String>| list.get(i).cloned().unwrap_or_default();
            let (then, now) = (of(&lists[0]), of(list));
            if then != now {
                let short = |text: String| crate::error::quoted(text);
                return Some(format!(
                    "rank {rank} has another {name} than rank 0 ({}, not {}): all ranks of a run need the same",
                    short(now),
                    short(then)
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_there_is_nothing_to_wait_for() {
        assert_eq!(Alone.gather("x", b"abc").unwrap(), [b"abc"]);
        assert_eq!(broadcast(&Alone, "x", b"abc").unwrap(), b"abc");
        assert_eq!(gather_numbers(&Alone, "x", &[1.5, -0.0]).unwrap(), [[1.5, -0.0]]);
        let mut numbers = [1.0, 2.0];
        Alone.sum("x", &mut [&mut numbers]).unwrap();
        assert_eq!(numbers, [1.0, 2.0]);
        assert!(Alone.stop(true) && !Alone.stop(false) && Alone.is_first());
        agree(&Alone, "x", &[("seed", "3".into())]).unwrap();
        assert_eq!(total(&Alone, "x", 7).unwrap(), 7);
    }

    #[test]
    fn numbers_add_up_over_ranks_and_an_overflow_is_refused() {
        let sums = threads::on_threads(3, |ranks| total(&*ranks, "count", 5 + ranks.rank() as u64));
        assert!(sums.into_iter().all(|sum| sum.unwrap() == 18));
        let sums = threads::on_threads(2, |ranks| total(&*ranks, "count", u64::MAX - 1));
        assert!(sums.into_iter().all(|sum| sum.is_err()));
    }

    #[test]
    fn the_first_fact_that_differs_is_named_with_whose_it_is() {
        let facts: Vec<Fact> = vec![("base model", "a".into()), ("seed", "3".into())];
        let list = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(difference(&facts, &[list("a", "3"), list("a", "3")]), None);
        let said = difference(&facts, &[list("a", "3"), list("a", "3"), list("a", "4")]).unwrap();
        assert!(said.contains("rank 2 has another seed than rank 0 (4, not 3)"), "{said}");
        let said = difference(&facts, &[list("a", "3"), list("b", "4"), list("c", "3")]).unwrap();
        assert!(said.contains("rank 1 has another base model"), "{said}");
        // A list that is too short is another one.
        assert!(difference(&facts, &[list("a", "3"), vec!["a".into()]]).unwrap().contains("seed"));
    }
}
