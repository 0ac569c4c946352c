//! Copies of A and B in the order in which tiles read them.

use super::lanes::Lanes;
use super::{KC, LINE, Matrix, at};

/// `rows` rows of `k` numbers, one after the other, [`KC`] apart: a tile reads each of its rows as a stream of its own.
///
/// # Safety
/// `a` must be readable for rows x k, `out` writable for rows x KC.
#[inline(always)]
pub(super) unsafe fn pack_rows<L: Lanes>(rows: usize, k: usize, a: Matrix, out: *mut f32) {
    if a.2 == 1 {
        for i in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(at(a, i, 0), out.add(i * KC), k) };
        }
        return;
    }
    for i in (0..rows).step_by(L::WIDTH) {
        for p in (0..k).step_by(L::WIDTH) {
            let (high, wide) = (L::WIDTH.min(rows - i), L::WIDTH.min(k - p));
            // SAFETY: the square has `wide` rows of `high` numbers of A's transpose, and what is written of it is as large.
            unsafe {
                if high == L::WIDTH && wide == L::WIDTH && a.1 == 1 {
                    turn_whole::<L>((at(a, i, p), a.2, 1), out.add(i * KC + p), KC);
                    continue;
                }
                let square = L::transposed(square::<L>((at(a, i, p), a.2, a.1), wide, high));
                for (r, &row) in square.as_ref().iter().enumerate().take(high) {
                    L::store_part(out.add((i + r) * KC + p), wide, row);
                }
            }
        }
    }
}

/// `k` rows of `columns` numbers into panels of NR columns: panel, row, column. A panel's missing columns are zero.
///
/// # Safety
/// `b` must be readable for k x columns, `out` writable for whole panels.
#[inline(always)]
pub(super) unsafe fn pack_panels<L: Lanes>(k: usize, columns: usize, b: Matrix, out: *mut f32) {
    let place = |p: usize, j: usize| out.wrapping_add(j / L::NR * (L::NR * k) + p * L::NR + j % L::NR);
    if b.2 == 1 {
        // Several panels at a time, so that B is read in runs of a kilobyte.
        const RUN: usize = 256;
        for first in (0..columns).step_by(RUN) {
            for p in 0..k {
                for j in (first..columns.min(first + RUN)).step_by(L::WIDTH) {
                    // SAFETY: no more than B's columns are read, and j's vector lies in one panel.
                    unsafe { L::store(place(p, j), L::load_part(at(b, p, j), columns - j)) };
                }
            }
        }
        return;
    }
    for j in (0..columns).step_by(L::WIDTH) {
        for p in (0..k).step_by(L::WIDTH) {
            let (wide, high) = (L::WIDTH.min(columns - j), L::WIDTH.min(k - p));
            // SAFETY: the square has `wide` rows of `high` numbers of B's transpose; j's vector lies in one panel.
            unsafe {
                if high == L::WIDTH && wide == L::WIDTH && b.1 == 1 {
                    turn_whole::<L>((at(b, p, j), b.2, 1), place(p, j), L::NR);
                    continue;
                }
                let square = L::transposed(square::<L>((at(b, p, j), b.2, b.1), wide, high));
                for (r, &row) in square.as_ref().iter().enumerate().take(high) {
                    L::store(place(p + r, j), row);
                }
            }
        }
    }
}

/// A whole square of rows that are runs, transposed to rows `stride` apart. Apart from [`square`], so that its loops unroll and it stays in registers.
///
/// # Safety
/// `x` must be readable for WIDTH x WIDTH, `out` writable for as many.
#[inline(always)]
unsafe fn turn_whole<L: Lanes>(x: Matrix, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let square = L::load_turned(x.0, x.1 * size_of::<f32>() as isize);
        for (i, &row) in square.as_ref().iter().enumerate() {
            L::store(out.add(i * stride), row);
        }
    }
}

/// `high` rows of `wide` numbers, at most WIDTH each; the rest is zero.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn square<L: Lanes>(x: Matrix, high: usize, wide: usize) -> L::Square {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = L::zeros();
        for (i, row) in rows.as_mut().iter_mut().enumerate().take(high) {
            *row = if x.2 == 1 {
                L::load_part(at(x, i, 0), wide)
            } else {
                let mut numbers = [0.0; LINE];
                for (j, number) in numbers.iter_mut().enumerate().take(wide) {
                    *number = *at(x, i, j);
                }
                L::load(numbers.as_ptr())
            };
        }
        rows
    }
}
