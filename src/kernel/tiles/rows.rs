//! Products of a few rows, as in decoding: B is read once, from where it lies, and nothing is packed.

use super::lanes::{Element, Lanes};
use super::{LINE, Matrix, at, store};
use crate::kernel::gemm::{FEW_ROWS, KC, Onto};

/// Numbers at most in a vector.
const WIDEST: usize = 16;

/// [`few_rows`] of 1 to [`FEW_ROWS`] rows.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn few<L: Lanes, E: Element<L>>(
    (m, k, n): (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: (*const E, isize),
    onto: Onto<f32>,
    c: (*mut f32, isize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        // A sum reads its row of A as a run.
        let mut copy = Vec::new();
        let a = if a.2 == 1 {
            (a.0, a.1)
        } else {
            copy.extend((0..m * k).map(|i| *at(a, i / k, i % k)));
            (copy.as_ptr(), k as isize)
        };
        match m {
            // Two bytes a number: memory is ahead of a sum that waits.
            1 if E::EACH == 2 => few_rows::<L, E, 1, 4>(k, n, alpha, a, b, onto, c),
            1 => few_rows::<L, E, 1, 1>(k, n, alpha, a, b, onto, c),
            2 => few_rows::<L, E, 2, 1>(k, n, alpha, a, b, onto, c),
            3 => few_rows::<L, E, 3, 1>(k, n, alpha, a, b, onto, c),
            _ => few_rows::<L, E, FEW_ROWS, 1>(k, n, alpha, a, b, onto, c),
        }
    }
}

/// [`sgemm`](super::sgemm) of `M` rows with a B whose columns are contiguous and so far apart: as many columns as a vector has lanes are transposed in registers at a
/// time, where a packed copy would be written and read again. Numbers of two bytes are transposed in pairs. A sum waits for its own last term: `G` groups
/// of columns are taken in turn, so that others do not.
///
/// # Safety
/// As [`sgemm`](super::sgemm).
#[inline(always)]
unsafe fn few_rows<L: Lanes, E: Element<L>, const M: usize, const G: usize>(
    k: usize,
    n: usize,
    alpha: f32,
    a: (*const f32, isize),
    (b, apart): (*const E, isize),
    onto: Onto<f32>,
    (c, stride): (*mut f32, isize),
) {
    // Numbers of a vector, and of a cache line, of B, and how far ahead of the sum memory is asked for.
    let depth = E::EACH * L::WIDTH;
    let line = E::EACH * LINE;
    let ahead = 6 * line;
    let place = |p: usize, j: usize| b.wrapping_offset(p as isize + j as isize * apart);
    // SAFETY: `columns` columns of `deep` numbers of B, rows of A up to k, and no more than C's columns and the row's.
    unsafe {
        let alpha = L::splat(alpha);
        for first in (0..n).step_by(G * L::WIDTH) {
            for start in (0..k).step_by(KC) {
                let end = k.min(start + KC);
                let mut sums = [[L::zero(); M]; G];
                for p in (start..end).step_by(depth) {
                    let deep = depth.min(end - p);
                    for (g, sums) in sums.iter_mut().enumerate() {
                        let j = first + g * L::WIDTH;
                        let columns = L::WIDTH.min(n.saturating_sub(j));
                        if p.is_multiple_of(line) {
                            // In these columns, or at the top of the next ones.
                            let (later, next) = (p + ahead, j + G * L::WIDTH);
                            let there = if later < k { place(later, j) } else { place(later - k, next) };
                            for i in 0..L::WIDTH {
                                L::prefetch(there.wrapping_offset(i as isize * apart).cast());
                            }
                        }
                        let a = (a.0.add(p), a.1);
                        // Whole squares apart: their loops unroll, and they stay in registers.
                        if deep == depth && columns == L::WIDTH {
                            let square = L::load_turned(place(p, j).cast(), apart * size_of::<E>() as isize);
                            add_square::<L, E, M>(sums, a, square, depth);
                        } else {
                            let mut rows = L::zeros();
                            for (i, row) in rows.as_mut().iter_mut().enumerate().take(columns) {
                                let mut numbers = [E::default(); 2 * WIDEST];
                                std::ptr::copy_nonoverlapping(place(p, j + i), numbers.as_mut_ptr(), deep);
                                *row = L::load(numbers.as_ptr().cast());
                            }
                            add_square::<L, E, M>(sums, a, L::transposed(rows), deep);
                        }
                    }
                }
                let onto = if start > 0 { Onto::Itself } else { onto };
                for (g, sums) in sums.iter().enumerate() {
                    let j = first + g * L::WIDTH;
                    let columns = L::WIDTH.min(n.saturating_sub(j));
                    if columns == 0 {
                        break;
                    }
                    for (i, &sum) in sums.iter().enumerate() {
                        store::<L>(c.offset(i as isize * stride).add(j), columns, alpha, sum, onto, j);
                    }
                }
            }
        }
    }
}

/// Add to `M` rows' sums the products of their first `deep` numbers with a square of B, by its rows.
///
/// # Safety
/// Rows of A hold as many.
#[inline(always)]
unsafe fn add_square<L: Lanes, E: Element<L>, const M: usize>(
    sums: &mut [L::Vector; M],
    (a, apart): (*const f32, isize),
    square: L::Square,
    deep: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for (q, &row) in square.as_ref().iter().enumerate() {
            for e in 0..E::EACH {
                let p = E::EACH * q + e;
                if p >= deep {
                    return;
                }
                let row = E::part(row, e);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = L::fused(L::splat(*a.offset(i as isize * apart).add(p)), row, *sum);
                }
            }
        }
    }
}
