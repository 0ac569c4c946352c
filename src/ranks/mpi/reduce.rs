//! Sums over ranks. MPI's own reductions add in an order of their choosing; these add in the order of ranks, so that the same ranks give the same bits.

use super::{Mpi, World};
use crate::error::{Error, Result};
use crate::ranks::wire::{Pieces, goes_to_all};
use ::mpi::collective::CommunicatorCollectives;
use ::mpi::datatype::Equivalence;
use ::mpi::request::scope;
use bytemuck::Pod;

impl Mpi {
    /// Replace the numbers of `parts` by their sums over all ranks.
    ///
    /// A few numbers go to all ranks at once, and each adds up all of them. Many are summed piece by piece: each rank gets everyone's numbers of its own part of a piece
    /// (n / R), adds them up, and gives the sum to all. 2 (R - 1) / R numbers cross the wire for each, as with the best of reductions, and memory stays within
    /// [`Pieces::new`]'s bounds.
    pub(super) fn reduce<T: Equivalence + Pod>(
        &self,
        what: &str,
        parts: &mut [&mut [T]],
        add: fn(T, T) -> T,
    ) -> Result<()> {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let bytes = size_of::<T>() * total;
        self.with(|world| {
            let words = self.meet(world, what, Ok(bytes))?;
            if words.iter().any(|w| w.bytes != bytes) {
                return Err(Error::Rank(format!("the ranks have sums of different lengths ({what})")));
            }
            let at_once = goes_to_all(self.size, bytes);
            let own_part = if at_once { total } else { Pieces::new(self.size, total, size_of::<T>()).part };
            let piece = if at_once { total } else { own_part * self.size };
            let (mut own, mut sum) = (vec![T::zeroed(); piece], vec![T::zeroed(); own_part]);
            let mut theirs = vec![T::zeroed(); own_part * self.size];
            for start in (0..total).step_by(piece.max(1)) {
                let range = start..(start + piece).min(total);
                within(parts, range.clone(), |part, at| own[at..at + part.len()].copy_from_slice(part));
                match at_once {
                    true => self.to_all(world, what, &own, &mut theirs),
                    false => self.to_each(world, what, &own, &mut theirs),
                }
                add_up(&theirs, &mut sum, add);
                if !at_once {
                    self.to_all(world, what, &sum, &mut theirs);
                }
                let sums = if at_once { &sum } else { &theirs };
                within(parts, range, |part, at| part.copy_from_slice(&sums[at..at + part.len()]));
            }
            Ok(())
        })
    }

    /// Everyone's part of `own` that is this rank's, end to end.
    fn to_each<T: Equivalence>(&self, world: &World, what: &str, own: &[T], theirs: &mut [T]) {
        scope(|s| self.wait(world.comm.immediate_all_to_all_into(s, own, theirs), what, Some(self.patience)));
    }

    /// Everyone's `own`, end to end.
    fn to_all<T: Equivalence>(&self, world: &World, what: &str, own: &[T], all: &mut [T]) {
        scope(|s| self.wait(world.comm.immediate_all_gather_into(s, own, all), what, Some(self.patience)));
    }
}

/// The sums of `all`, which has every rank's numbers end to end, as many as `sum`.
fn add_up<T: Copy>(all: &[T], sum: &mut [T], add: fn(T, T) -> T) {
    let mut ranks = all.chunks_exact(sum.len().max(1));
    ranks.next().into_iter().for_each(|first| sum.copy_from_slice(first));
    for of in ranks {
        sum.iter_mut().zip(of).for_each(|(sum, x)| *sum = add(*sum, *x));
    }
}

/// Call `f` with what of `parts`, end to end, lies in `range`, and how far into it each begins.
fn within<T>(parts: &mut [&mut [T]], range: std::ops::Range<usize>, mut f: impl FnMut(&mut [T], usize)) {
    let mut offset = 0;
    for part in parts {
        let (from, to) = (range.start.max(offset), range.end.min(offset + part.len()));
        if from < to {
            f(&mut part[from - offset..to - offset], from - range.start);
        }
        offset += part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_part_once() {
        let (mut a, mut b, mut c) = (vec![1.0; 3], vec![], vec![2.0; 4]);
        let mut seen = Vec::new();
        for start in (0..7).step_by(2) {
            let mut parts = [&mut a[..], &mut b[..], &mut c[..]];
            within(&mut parts, start..(start + 2).min(7), |part, at| seen.push((start + at, part.to_vec())));
        }
        let flat: Vec<f32> = seen.iter().flat_map(|s| s.1.clone()).collect();
        assert_eq!(flat, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 2, 3, 4, 6]);
    }

    /// Numbers whose sum depends on the order of addition: that of ranks.
    #[test]
    fn numbers_are_added_in_the_order_of_ranks() {
        let mut sum = [0.0f32; 2];
        add_up(&[1e8, 1.0, 1.0, 2.0, -1e8, 4.0], &mut sum, |a, b| a + b);
        assert_eq!(sum, [(1e8 + 1.0) - 1e8, 7.0]);
        assert_ne!(sum[0], (1e8 - 1e8) + 1.0);
        add_up::<f32>(&[], &mut [], |a, b| a + b);
    }
}
