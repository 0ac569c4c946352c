//! Gram matrices `A Aᵀ`: symmetric, so only the tiles on and below the diagonal are computed, and both operands of a tile come
//! out of one packed copy of A.
//!
//! A general product would do twice the work and pack every row several times, which for the short, deep matrices of a
//! sample's factors (a hundred rows, thousands of columns) costs as much as the arithmetic.

use super::{Real, elementwise, multiversion};
use ndarray::{ArrayView2, s};
use std::ops::Range;

/// Rows and columns of a tile.
const SIDE: usize = 16;

/// Columns of A packed at a time: two groups of [`SIDE`] rows fit the first-level cache.
const DEPTH: usize = 256;

/// Rows of a tile whose sums are held at a time: as many as the registers of any vector width hold.
const ROWS: usize = 4;

/// The tiles of `A Aᵀ` on and below the diagonal, row by row, each row-major. Rows beyond A's last are zeros.
pub struct Gram<F> {
    tiles: Vec<F>,
}

impl<F: Real> Gram<F> {
    /// `A Aᵀ` summed over `columns` of A alone, on the calling thread. The rows of A are contiguous.
    pub fn new(a: ArrayView2<F>, columns: Range<usize>) -> Self {
        let groups = a.nrows().div_ceil(SIDE);
        let mut tiles = vec![F::zero(); groups * (groups + 1) / 2 * SIDE * SIDE];
        let mut packed = vec![F::zero(); groups * SIDE * DEPTH.min(columns.len())];
        for start in columns.clone().step_by(DEPTH) {
            let end = (start + DEPTH).min(columns.end);
            for (g, packed) in packed.chunks_exact_mut(SIDE * (end - start)).take(groups).enumerate() {
                let there = g * SIDE..a.nrows().min((g + 1) * SIDE);
                if F::pack_16(a.slice(s![there, start..end]), packed) {
                    continue;
                }
                // The rows of the last group that do not exist stay zero.
                for (r, row) in a.outer_iter().skip(g * SIDE).take(SIDE).enumerate() {
                    let row = &row.to_slice().expect("contiguous rows")[start..end];
                    packed[r..].iter_mut().step_by(SIDE).zip(row).for_each(|(p, &x)| *p = x);
                }
                for r in (a.nrows() - g * SIDE).min(SIDE)..SIDE {
                    packed[r..].iter_mut().step_by(SIDE).for_each(|p| *p = F::zero());
                }
            }
            add_tiles(&packed, groups, end - start, &mut tiles);
        }
        Self { tiles }
    }

    /// `self += other`, of the same size.
    pub fn add(&mut self, other: &Self) {
        elementwise::axpy(F::one(), &other.tiles, &mut self.tiles);
    }

    /// `<A Aᵀ, B Bᵀ>` over the whole matrices, in double precision: tiles below the diagonal count twice.
    pub fn dot(&self, other: &Self) -> f64 {
        assert_eq!(self.tiles.len(), other.tiles.len(), "Gram matrices of the same rows");
        let tiles = self.tiles.chunks_exact(SIDE * SIDE).zip(other.tiles.chunks_exact(SIDE * SIDE));
        let (mut row, mut column, mut total) = (0, 0, 0.0);
        for (a, b) in tiles {
            let part = elementwise::dot_f64(a, b);
            if column == row {
                total += part;
                (row, column) = (row + 1, 0);
            } else {
                total += 2.0 * part;
                column += 1;
            }
        }
        total
    }
}

multiversion! {
    /// Add the products of `depth` packed columns to every tile.
    fn add_tiles<F: Real>(packed: &[F], groups: usize, depth: usize, tiles: &mut [F]) {
        let size = depth * SIDE;
        let mut tile = 0;
        // Plain loops: a closure would be compiled apart, without the vector width of this version.
        for row in 0..groups {
            for column in 0..=row {
                let (a, b) = (&packed[row * size..][..size], &packed[column * size..][..size]);
                let sums = &mut tiles[tile * SIDE * SIDE..][..SIDE * SIDE];
                tile += 1;
                if F::tile_16(a, b, sums) {
                    continue;
                }
                for r in 0..SIDE / ROWS {
                    add_tile_rows(a, b, ROWS * r, sums);
                }
            }
        }
    }
}

/// `tile[first + r, c] += sum_k a[k, first + r] b[k, c]` for [`ROWS`] rows r.
#[inline(always)]
fn add_tile_rows<F: Real>(a: &[F], b: &[F], first: usize, tile: &mut [F]) {
    let mut sums = [[F::zero(); SIDE]; ROWS];
    for (a, b) in a.chunks_exact(SIDE).zip(b.chunks_exact(SIDE)) {
        for r in 0..ROWS {
            let a = a[first + r];
            for c in 0..SIDE {
                sums[r][c] = a.mul_add(b[c], sums[r][c]);
            }
        }
    }
    for r in 0..ROWS {
        for c in 0..SIDE {
            tile[(first + r) * SIDE + c] += sums[r][c];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;

    #[test]
    fn both_kinds_of_tile_give_the_same_sums() {
        for (rows, columns) in [(1, 1), (16, 256), (17, 300), (70, 600)] {
            let a = noise::<f32>(rows, columns, 1);
            let (fast, slow) = (Gram::new(a.view(), 0..columns), Gram::new(a.mapv(f64::from).view(), 0..columns));
            for (x, y) in fast.tiles.iter().zip(&slow.tiles) {
                assert!((f64::from(*x) - y).abs() < 1e-3, "{rows} x {columns}: {x}, not {y}");
            }
        }
    }

    #[test]
    fn dot_equals_the_definition_for_odd_sizes() {
        for (rows, a, b) in [(0, 3, 4), (1, 1, 1), (15, 300, 7), (16, 256, 257), (17, 513, 2), (70, 600, 40)] {
            let (a, b) = (noise::<f64>(rows, a, 1), noise::<f64>(rows, b, 2));
            let cut = a.ncols() / 3;
            let mut whole = Gram::new(a.view(), 0..cut);
            whole.add(&Gram::new(a.view(), cut..a.ncols()));
            let got = whole.dot(&Gram::new(b.view(), 0..b.ncols()));
            let want = (a.dot(&a.t()) * b.dot(&b.t())).sum();
            assert!((got - want).abs() <= 1e-12 * want.abs(), "{rows} rows: {got}, not {want}");
        }
    }
}
