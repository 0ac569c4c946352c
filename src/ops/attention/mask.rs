//! Which keys a block of query rows sees, and what is added to their scores.

use crate::kernel::gemm::{KC, Onto, Part, Triangle, matmul_part};
use crate::kernel::{Real, multiversion};
use crate::ops::heads::Heads;
use ndarray::{ArrayView2, ArrayViewMut2};
use std::ops::Range;

/// What the query rows of a head see. Query row i is at position `past + i`.
pub(super) struct Mask<F> {
    heads: Heads,
    pub(super) scale: F,
    slope: F,
    past: usize,
}

impl<F: Real> Mask<F> {
    pub(super) fn new(heads: &Heads, slope: f64, past: usize) -> Self {
        Self { heads: *heads, scale: F::of(heads.scale), slope: F::of(slope), past }
    }

    /// The keys that some row of a block of queries sees. They begin where a block of a product's sum does, so that a row's bits
    /// do not depend on the rows that it shares a block with.
    pub(super) fn keys(&self, rows: &Range<usize>) -> Range<usize> {
        self.heads.first_key(self.past + rows.start) / KC * KC..self.past + rows.end
    }

    /// How many of a block's `keys` come before the position of its first row, and so where the diagonal lies.
    pub(super) fn before(&self, rows: &Range<usize>, keys: &Range<usize>) -> usize {
        self.past + rows.start - keys.start
    }

    /// `scores <- scale q kᵀ + onto` for a block of query rows, `before` keys after the first, where a row is not before the key.
    pub(super) fn scores(
        &self,
        q: ArrayView2<F>,
        k: ArrayView2<F>,
        before: usize,
        onto: Onto<F>,
        scores: ArrayViewMut2<F>,
    ) {
        matmul_part(Part::Out(Triangle::Lower(before)), self.scale, q, k.reversed_axes(), onto, scores);
    }

    /// What query row `i` sees of its scores against the keys from `first` on, with the distance added; the rest becomes zero.
    pub(super) fn seen<'a>(&self, i: usize, first: usize, scores: &'a mut [F]) -> &'a mut [F] {
        let seen = self.only(i, first, scores);
        if self.heads.alibi {
            let last = seen.len() as i32 - 1;
            add_distance(seen, self.slope, -last, 1);
        }
        seen
    }

    /// What query row `i` sees of numbers for the keys from `first` on; the rest becomes zero.
    pub(super) fn only<'a>(&self, i: usize, first: usize, row: &'a mut [F]) -> &'a mut [F] {
        let position = self.past + i;
        within(self.heads.first_key(position) - first..position + 1 - first, row)
    }

    /// The other way round: those of the query `rows` that see key `j`, counted from the first of them.
    pub(super) fn seers(&self, j: usize, rows: &Range<usize>) -> Range<usize> {
        let last = self.heads.window.map_or(rows.end, |window| rows.end.min((j + window).saturating_sub(self.past)));
        let first = j.saturating_sub(self.past).max(rows.start);
        first - rows.start..last.max(first) - rows.start
    }

    /// Add the distance to the scores of key `j` for queries from row `i` on.
    pub(super) fn add_distances(&self, j: usize, i: usize, scores: &mut [F]) {
        if self.heads.alibi {
            add_distance(scores, self.slope, j as i32 - (self.past + i) as i32, -1);
        }
    }
}

/// `range` of a row; the rest becomes zero.
pub(super) fn within<F: Real>(range: Range<usize>, row: &mut [F]) -> &mut [F] {
    let (kept, after) = row.split_at_mut(range.end);
    let (before, kept) = kept.split_at_mut(range.start);
    after.fill(F::zero());
    before.fill(F::zero());
    kept
}

multiversion! {
    /// `score_n += slope (first + n step)`, the distance from a query back to a key.
    fn add_distance<F: Real>(scores: &mut [F], slope: F, first: i32, step: i32) {
        for (n, score) in scores.iter_mut().enumerate() {
            *score += slope * F::of((first + n as i32 * step) as f64);
        }
    }
}
