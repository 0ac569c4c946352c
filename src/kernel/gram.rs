//! Gram matrices `A Aᵀ`: symmetric, so only the tiles on and below the diagonal are computed, and both operands of a tile come
//! out of one packed copy of A.
//!
//! A general product would do twice the work and pack every row several times, which for the short, deep matrices of a
//! sample's factors (a hundred rows, thousands of columns) costs as much as the arithmetic.

use super::{Real, lanes, multiversion};
use ndarray::ArrayView2;
use std::ops::Range;

/// Rows and columns of a tile.
const SIDE: usize = 16;

/// Columns of A packed at a time: two groups of [`SIDE`] rows fit the first-level cache.
const DEPTH: usize = 128;

/// The part of a tile whose sums are held at a time: as many as the registers of any vector width hold.
const ROWS: usize = 4;
const COLUMNS: usize = 8;

/// The tiles of `A Aᵀ` on and below the diagonal, row by row, each row-major. Rows beyond A's last are zeros.
///
/// Products and sums are in double precision, in which the product of two f32 is exact.
pub struct Gram {
    rows: usize,
    tiles: Vec<f64>,
}

impl Gram {
    /// `A Aᵀ` summed over `columns` of A alone, on the calling thread. The rows of A are contiguous.
    pub fn new<F: Real>(a: ArrayView2<F>, columns: Range<usize>) -> Self {
        let groups = a.nrows().div_ceil(SIDE);
        let mut tiles = vec![0.0; groups * (groups + 1) / 2 * SIDE * SIDE];
        let mut packed = vec![0.0; groups * SIDE * DEPTH.min(columns.len())];
        let rows: Vec<&[F]> = a.outer_iter().map(|row| row.to_slice().expect("contiguous rows")).collect();
        for start in columns.clone().step_by(DEPTH) {
            let end = (start + DEPTH).min(columns.end);
            for (rows, packed) in rows.chunks(SIDE).zip(packed.chunks_exact_mut(SIDE * (end - start))) {
                pack(rows, start, packed);
            }
            add_tiles(&packed, groups, end - start, &mut tiles);
        }
        Self { rows: a.nrows(), tiles }
    }

    /// `self += other`, of the same size.
    pub fn add(&mut self, other: &Self) {
        lanes::add(&other.tiles, &mut self.tiles);
    }

    /// The diagonal: the square of every row of A.
    pub fn diagonal(&self) -> impl Iterator<Item = f64> {
        (0..self.rows).map(|r| {
            let (group, r) = (r / SIDE, r % SIDE);
            // The last tile of a row of tiles lies on the diagonal.
            self.tiles[((group + 1) * (group + 2) / 2 - 1) * SIDE * SIDE + r * SIDE + r]
        })
    }

    /// `<A Aᵀ, B Bᵀ>` over the whole matrices: tiles below the diagonal count twice.
    pub fn dot(&self, other: &Self) -> f64 {
        assert_eq!(self.tiles.len(), other.tiles.len(), "Gram matrices of the same rows");
        let tiles = self.tiles.chunks_exact(SIDE * SIDE).zip(other.tiles.chunks_exact(SIDE * SIDE));
        let (mut row, mut column, mut total) = (0, 0, 0.0);
        for (a, b) in tiles {
            let part = lanes::dot_f64(a, b);
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

/// Up to [`SIDE`] rows from column `start` on, transposed: `packed[SIDE k + r]` is number `start + k` of row r, 0 for rows that are
/// not there.
fn pack<F: Real>(rows: &[&[F]], start: usize, packed: &mut [f64]) {
    for (r, row) in rows.iter().enumerate() {
        packed[r..].iter_mut().step_by(SIDE).zip(&row[start..]).for_each(|(p, x)| *p = x.f64());
    }
    for r in rows.len()..SIDE {
        packed[r..].iter_mut().step_by(SIDE).for_each(|p| *p = 0.0);
    }
}

multiversion! {
    /// Add the products of `depth` packed columns to every tile.
    fn add_tiles(packed: &[f64], groups: usize, depth: usize, tiles: &mut [f64]) {
        let size = depth * SIDE;
        let mut tile = 0;
        // Plain loops: a closure would be compiled apart, without the vector width of this version.
        for row in 0..groups {
            for column in 0..=row {
                let (a, b) = (&packed[row * size..][..size], &packed[column * size..][..size]);
                let sums = &mut tiles[tile * SIDE * SIDE..][..SIDE * SIDE];
                tile += 1;
                for r in 0..SIDE / ROWS {
                    for c in 0..SIDE / COLUMNS {
                        add_part(a, b, ROWS * r, COLUMNS * c, sums);
                    }
                }
            }
        }
    }
}

/// `tile[first + r, left + c] += sum_k a[k, first + r] b[k, left + c]` for [`ROWS`] rows r and [`COLUMNS`] columns c.
#[inline(always)]
fn add_part(a: &[f64], b: &[f64], first: usize, left: usize, tile: &mut [f64]) {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (a, b) in a.as_chunks::<SIDE>().0.iter().zip(b.as_chunks::<SIDE>().0) {
        for r in 0..ROWS {
            for c in 0..COLUMNS {
                sums[r][c] = a[first + r].mul_add(b[left + c], sums[r][c]);
            }
        }
    }
    for r in 0..ROWS {
        for c in 0..COLUMNS {
            tile[(first + r) * SIDE + left + c] += sums[r][c];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;

    /// Of f32 numbers: to the last places of f64, with squares that f32 would overflow or lose.
    #[test]
    fn entries_are_sums_in_double_precision() {
        for (rows, columns, scale) in [(1, 1, 1.0), (16, 128, 1e25), (17, 300, 1e-30), (70, 600, 1e3)] {
            let a = noise::<f32>(rows, columns, 1) * scale;
            let gram = Gram::new(a.view(), 0..columns);
            let wide = a.mapv(f64::from);
            for (t, got) in gram.diagonal().enumerate() {
                let want = wide.row(t).dot(&wide.row(t));
                assert!((got - want).abs() <= 1e-13 * want, "{rows} x {columns}, row {t}: {got}, not {want}");
            }
            assert_eq!(gram.diagonal().count(), rows);
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
