//! Products of a few rows, as in decoding: B is read once, from where it lies, and nothing is packed.
//!
//! What bounds them is how fast a core reads memory. A sum waits some cycles for its last term: several are formed side by side, so that others do not. And what
//! is read next must be on its way by then: into the second cache, because the first has room for too few requests at a time to fill the memory's bandwidth.

use super::lanes::{Element, Lanes};
use super::{LINE, Matrix, at, store};
use crate::kernel::gemm::{FEW_ROWS, KC, Onto};

/// Columns of a slab, at most, and numbers of each, at most.
const WIDEST: usize = 16;
const DEEPEST: usize = 8;

/// Bytes of B that are on their way, at most: they must not push each other out of the second cache.
const AHEAD: usize = 1 << 16;

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
            1 if L::SLABS == 4 => few_rows::<L, E, 1, 4>(k, n, alpha, a, b, onto, c),
            1 => few_rows::<L, E, 1, 2>(k, n, alpha, a, b, onto, c),
            2 => few_rows::<L, E, 2, 1>(k, n, alpha, a, b, onto, c),
            3 => few_rows::<L, E, 3, 1>(k, n, alpha, a, b, onto, c),
            _ => few_rows::<L, E, FEW_ROWS, 1>(k, n, alpha, a, b, onto, c),
        }
    }
}

/// [`sgemm`](super::sgemm) of `M` rows with a B whose columns are contiguous and so far apart: `G` slabs at a time, each of as many columns as a vector has
/// lanes, are transposed in registers, where a packed copy would be written and read again. Numbers of two bytes are transposed in pairs.
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
    // Numbers of a slab's column and of a cache line of B, and how far ahead of the sums memory is asked for: in these columns, or in the next ones.
    let (depth, line, together) = (4 * E::EACH, E::EACH * LINE, G * L::WIDTH);
    let ahead = (AHEAD / (together * size_of::<E>())).next_multiple_of(line).min(k);
    let place = |p: usize, j: usize| b.wrapping_offset(p as isize + j as isize * apart);
    // SAFETY: whole slabs lie in B, and of others what does is copied; rows of A have k numbers; sums go to no more than C's columns.
    unsafe {
        let alpha = L::splat(alpha);
        // The first columns have none before them to ask for them.
        for j in 0..n.min(together) {
            for p in (0..ahead).step_by(line) {
                L::prefetch_far(place(p, j).cast());
            }
        }
        for first in (0..n).step_by(together) {
            for start in (0..k).step_by(KC) {
                let end = k.min(start + KC);
                let mut sums = [[L::zero(); G]; M];
                for p in (start..end).step_by(depth) {
                    if p.is_multiple_of(line) {
                        let (later, next) =
                            if p + ahead < k { (p + ahead, first) } else { (p + ahead - k, first + together) };
                        for j in next..n.min(next + together) {
                            L::prefetch_far(place(later, j).cast());
                        }
                    }
                    let a = (a.0.add(p), a.1);
                    let mut slabs = [[L::zero(); 4]; G];
                    // Whole slabs apart: their loops unroll, and they stay in registers.
                    if p + depth <= end && first + together <= n {
                        for (g, slab) in slabs.iter_mut().enumerate() {
                            let bytes = apart * size_of::<E>() as isize;
                            *slab = L::load_slab(place(p, first + g * L::WIDTH).cast(), bytes);
                        }
                        add_slabs::<L, E, M, G>(&mut sums, a, slabs, depth);
                    } else {
                        let deep = depth.min(end - p);
                        for (first, slab) in (first..n).step_by(L::WIDTH).zip(&mut slabs) {
                            let mut numbers = [[E::default(); DEEPEST]; WIDEST];
                            for (j, column) in (first..n).zip(&mut numbers[..L::WIDTH]) {
                                std::ptr::copy_nonoverlapping(place(p, j), column.as_mut_ptr(), deep);
                            }
                            *slab = L::load_slab(numbers.as_ptr().cast(), size_of::<[E; DEEPEST]>() as isize);
                        }
                        add_slabs::<L, E, M, G>(&mut sums, a, slabs, deep);
                    }
                }
                let onto = if start > 0 { Onto::Itself } else { onto };
                for (i, sums) in sums.iter().enumerate() {
                    for (j, &sum) in (first..n).step_by(L::WIDTH).zip(sums) {
                        store::<L>(c.offset(i as isize * stride).add(j), n - j, alpha, sum, onto, j);
                    }
                }
            }
        }
    }
}

/// Add to `M` rows' sums the products of their first `deep` numbers with slabs of B.
///
/// # Safety
/// Rows of A hold as many.
#[inline(always)]
unsafe fn add_slabs<L: Lanes, E: Element<L>, const M: usize, const G: usize>(
    sums: &mut [[L::Vector; G]; M],
    (a, apart): (*const f32, isize),
    slabs: [[L::Vector; 4]; G],
    deep: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for p in 0..deep {
            let mut row = [L::zero(); G];
            for (row, slab) in row.iter_mut().zip(&slabs) {
                *row = E::part(slab[p / E::EACH], p % E::EACH);
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = L::splat(*a.offset(i as isize * apart).add(p));
                for (sum, &y) in sums.iter_mut().zip(&row) {
                    *sum = L::fused(x, y, *sum);
                }
            }
        }
    }
}
