//! The f32 product: the blocked algorithm of Goto and van de Geijn, one packing and one blocking, and a micro-kernel for each set of instructions.
//!
//! ```text
//! for each 4096 columns of C            (packed B: 256 x 4096, streams through the last cache)
//!   for each 256 of k                   pack B into panels of NR columns
//!     for each MC rows of C, at most    pack A by rows, unless it can be read where it lies: stays in the second cache
//!       for each panel of B             NR x 256: stays near the first cache
//!         for each 6 rows of A          6 x NR accumulators in registers
//! ```
//!
//! | | lanes | a tile | MC | multiply-adds a load |
//! |---|---|---|---|---|
//! | AVX-512 | 16 | 6 x 64: 24 accumulators of 32 registers | 516 | 24 for 10 |
//! | AVX2 and FMA | 8 | 6 x 16: 12 of 16 | 258 | 12 for 8 |
//! | NEON | 4 | 6 x 16: 24 of 32 | 258 | 24 for 10 |
//!
//! matrixmultiply's AVX-512 kernel reaches two fifths of a Xeon's peak, this one up to four fifths (`cargo bench --bench roofline`). In GFLOP/s on two
//! threads of a Xeon at 2.8 GHz (registers alone: 330 to 350), medians of runs taken in turn:
//!
//! | m x k x n | matrixmultiply, columns split by rayon | tiles of 12 x 32 | 8 x 48 | 6 x 64 |
//! |---|---|---|---|---|
//! | 1024 x 1024 x 1024 | 147 | 230 | 267 | 279 |
//! | 512 x 768 x 3072 | 150 | 237 | 254 | 264 |
//! | 512 x 3072 x 768 | 145 | 260 | 267 | 282 |
//! | 768 x 512 x 3072 | 142 | 226 | 246 | 259 |
//!
//! The `gemm` crate (0.19) lay between: 91 to 175 where matrixmultiply reached 102 to 148. matrixmultiply's own threading reached 100 to 141
//! where columns split by rayon reached 113 to 139, and one thread 65 to 77. Packed weights are not kept: a step multiplies by W and by
//! its transpose, which would be two more copies of the weights in memory to save the 5 to 9 % of a step that packing costs.
//!
//! An element is summed over k in order, in blocks of 256, by fused multiply-adds: the same bits on every one of them, and those of matrixmultiply where
//! its kernel is fused too (tested), and where the element lies in C does not matter.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod rows;
#[cfg(test)]
mod tests;

use self::lanes::{Lanes, Tile, compiled};
use self::pack::{pack_panels, pack_rows};
use self::rows::few;
use super::gemm::{FEW_ROWS, KC, Onto, Part};
use crate::isa::{Isa, isa};
use std::cell::RefCell;

/// Rows of a tile, and the block of n.
const MR: usize = 6;
const NC: usize = 4096;
/// Numbers in a cache line.
const LINE: usize = 16;

/// A matrix in memory: first element, stride of rows, stride of columns.
pub type Matrix = (*const f32, isize, isize);

/// Whether this process has a micro-kernel for [`sgemm`].
pub fn supported() -> bool {
    isa() != Isa::Portable
}

/// A cache line, so that packed panels begin on one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [f32; LINE]);

thread_local! {
    /// Packed A and packed B, kept from product to product.
    static PACKED: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// `C <- alpha A B + onto`, or `part` of it, on the calling thread. Columns of C are adjacent, its rows `stride` apart.
///
/// # Safety
/// The machine must be [`supported`]; pointers and strides must describe valid matrices of sizes m x k, k x n and m x n, `c` unaliased,
/// a row to add as long as C's.
pub unsafe fn sgemm(
    size: (usize, usize, usize),
    part: Part,
    alpha: f32,
    a: Matrix,
    b: Matrix,
    onto: Onto<f32>,
    c: (*mut f32, isize),
) {
    // SAFETY: the processor was asked for these instructions; the rest is the caller's promise.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::sgemm(size, part, alpha, a, b, onto, c),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::sgemm(size, part, alpha, a, b, onto, c),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::sgemm(size, part, alpha, a, b, onto, c),
            other => unreachable!("no product of our own by {}", other.name()),
        }
    }
}

/// [`sgemm`] of 1 to 4 rows, not empty, with a B stored as bf16, its columns contiguous and so far apart: the bits of [`sgemm`] with B widened.
///
/// # Safety
/// As [`sgemm`].
pub unsafe fn sgemm_bf16(
    size: (usize, usize, usize),
    a: Matrix,
    b: (*const u16, isize),
    onto: Onto<f32>,
    c: (*mut f32, isize),
) {
    assert!((1..=FEW_ROWS).contains(&size.0) && size.1 > 0, "a few rows of some numbers");
    // SAFETY: the processor was asked for these instructions; the rest is the caller's promise.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::sgemm_bf16(size, a, b, onto, c),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::sgemm_bf16(size, a, b, onto, c),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::sgemm_bf16(size, a, b, onto, c),
            other => unreachable!("no product of our own by {}", other.name()),
        }
    }
}

/// [`sgemm`] by the instructions of `L`, to be inlined into a function compiled for them.
///
/// # Safety
/// As [`sgemm`], on a machine with `L`.
#[inline(always)]
unsafe fn product<L: Lanes>(
    (m, k, n): (usize, usize, usize),
    part: Part,
    alpha: f32,
    a: Matrix,
    b: Matrix,
    onto: Onto<f32>,
    (c, stride): (*mut f32, isize),
) {
    if m == 0 {
        return;
    }
    if m <= FEW_ROWS && b.1 == 1 {
        // SAFETY: the caller's promise.
        return unsafe { few::<L, f32>((m, k, n), alpha, a, (b.0, b.2), onto, (c, stride)) };
    }
    // Not in a closure: it might be compiled apart, without these instructions.
    let mut buffers = PACKED.take();
    let [packed_a, packed_b] = &mut buffers;
    // Blocks of rows as long as each other: a short last one would read all of B for a few rows.
    let block = m.div_ceil(m.div_ceil(L::MC)).next_multiple_of(MR);
    let packed_a = room(packed_a, block * KC);
    let packed_b = room(packed_b, NC.min(n.next_multiple_of(L::NR)) * KC.min(k));
    let straight = reads_well(a);
    for j in (0..n).step_by(NC) {
        let nc = NC.min(n - j);
        for p in (0..k).step_by(KC) {
            let kc = KC.min(k - p);
            // SAFETY: the block lies inside B, and `packed_b` has room for its panels.
            unsafe { pack_panels::<L>(kc, nc, (at(b, p, j), b.1, b.2), packed_b) };
            for i in (0..m).step_by(block) {
                let mc = block.min(m - i);
                let rows_of_a = if straight {
                    (at(a, i, p), a.1)
                } else {
                    // SAFETY: the block lies inside A, and `packed_a` has room for its panels.
                    unsafe { pack_rows::<L>(mc, kc, (at(a, i, p), a.1, a.2), packed_a) };
                    (packed_a.cast_const(), KC as isize)
                };
                for jr in (0..nc).step_by(L::NR) {
                    let columns = L::NR.min(nc - jr);
                    let onto = if p > 0 { Onto::Itself } else { onto.columns(j + jr..j + jr + columns) };
                    for ir in (0..mc).step_by(MR) {
                        let rows = MR.min(mc - ir);
                        let (wanted, terms) =
                            (part.wanted(i + ir..i + ir + rows, n), part.terms(i + ir..i + ir + rows, k));
                        if wanted.end <= j + jr || wanted.start >= j + jr + columns {
                            continue;
                        }
                        // Where there are none in this block, the tile still adds what it is to add to.
                        let first = terms.start.clamp(p, p + kc) - p;
                        let depth = (terms.end.clamp(p, p + kc) - p).saturating_sub(first);
                        let tile = L::tile(rows, columns.div_ceil(L::WIDTH));
                        // SAFETY: the panels were just packed, rows of A are there, and the tile lies inside C.
                        unsafe {
                            let a = (rows_of_a.0.offset(ir as isize * rows_of_a.1).add(first), rows_of_a.1);
                            let b = packed_b.add(jr * kc + first * L::NR);
                            let c = c.offset((i + ir) as isize * stride).add(j + jr);
                            tile(depth, alpha, a, b, onto, c, stride, columns);
                        }
                    }
                }
            }
        }
    }
    PACKED.set(buffers);
}

/// Whether a block of A's rows is read from where it lies: they are runs no further apart than packed ones would be. Of longer rows, a kilobyte here and a
/// kilobyte there, a packed copy is read faster.
fn reads_well(a: Matrix) -> bool {
    a.2 == 1 && (0..=KC as isize).contains(&a.1)
}

/// `buffer`, grown to `len` numbers.
fn room(buffer: &mut Vec<Line>, len: usize) -> *mut f32 {
    let lines = len.div_ceil(LINE);
    if buffer.len() < lines {
        buffer.resize(lines, Line([0.0; LINE]));
    }
    buffer.as_mut_ptr().cast()
}

/// Element (i, j)'s place.
#[inline(always)]
fn at((x, rows, columns): Matrix, i: usize, j: usize) -> *const f32 {
    x.wrapping_offset(i as isize * rows + j as isize * columns)
}

/// `c <- alpha sum + onto` for the first `count` lanes, which are columns `j ..` of `onto`.
///
/// # Safety
/// They must be there in C, and in the row to add.
#[inline(always)]
unsafe fn store<L: Lanes>(c: *mut f32, count: usize, alpha: L::Vector, sum: L::Vector, onto: Onto<f32>, j: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let old = match onto {
            Onto::Zero => L::zero(),
            Onto::Itself => L::load_part(c, count),
            Onto::Row(row) => L::load_part(row.as_ptr().add(j), count),
        };
        L::store_part(c, count, L::fused(alpha, sum, old));
    }
}

/// `R` rows and the first `columns` of `V` vectors of C from rows of A, so far apart, and a panel of B.
///
/// # Safety
/// Rows of A hold k numbers, the panel of B k rows of NR; the tile lies inside C.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn tile<L: Lanes, const R: usize, const V: usize>(
    k: usize,
    alpha: f32,
    (a, apart): (*const f32, isize),
    b: *const f32,
    onto: Onto<f32>,
    c: *mut f32,
    stride: isize,
    columns: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        // C is on its way while the sums are formed.
        for i in 0..R {
            for v in (0..V * L::WIDTH).step_by(LINE) {
                L::prefetch(c.wrapping_offset(i as isize * stride).wrapping_add(v));
            }
        }
        let mut sums = [[L::zero(); V]; R];
        for p in 0..k {
            // No closure: compiled apart it would be without these instructions, and a call for every vector.
            let mut row = [L::zero(); V];
            for (v, row) in row.iter_mut().enumerate() {
                *row = L::load(b.add(p * L::NR + v * L::WIDTH));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = L::splat(*a.offset(i as isize * apart).add(p));
                for (sum, &y) in sums.iter_mut().zip(&row) {
                    *sum = L::fused(x, y, *sum);
                }
            }
        }
        let alpha = L::splat(alpha);
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let c = c.offset(i as isize * stride).add(v * L::WIDTH);
                store::<L>(c, columns - v * L::WIDTH, alpha, sum, onto, v * L::WIDTH);
            }
        }
    }
}
