//! The f32 product for machines with AVX-512: the blocked algorithm of Goto and van de Geijn, in tiles of 6 rows by 64 columns.
//!
//! ```text
//! for each 4096 columns of C            (packed B: 256 x 4096, streams through the last cache)
//!   for each 256 of k                   pack B into panels of 64 columns
//!     for each 516 rows of C            pack A by rows: stays in the second cache
//!       for each panel of B             64 x 256: stays near the first cache
//!         for each 6 rows of A          24 accumulators of 16 lanes: 24 multiply-adds for 10 loads
//! ```
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
//! An element is summed over k in order, in blocks of 256, by fused multiply-adds: what matrixmultiply does too, so both
//! give the same bits (tested), and where the element lies in C does not matter.

use super::gemm::{FEW_ROWS, KC, Onto};
use ndarray::ArrayView2;
use std::arch::x86_64::*;
use std::cell::RefCell;

/// Rows and columns of a tile, and the blocks of m and n.
const MR: usize = 6;
const NR: usize = 64;
const MC: usize = 516;
const NC: usize = 4096;
/// Lanes of a vector, and vectors of a tile's row.
const LANES: usize = 16;
const VECTORS: usize = NR / LANES;

/// A matrix in memory: first element, stride of rows, stride of columns.
pub type Matrix = (*const f32, isize, isize);

/// Whether this machine has what [`sgemm`] needs.
pub fn supported() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

/// A cache line, so that packed panels begin on one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [f32; LANES]);

thread_local! {
    /// Packed A and packed B, kept from product to product.
    static PACKED: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// `C <- alpha A B + onto` on the calling thread. Columns of C are adjacent, its rows `stride` apart.
///
/// # Safety
/// The machine must be [`supported`]; pointers and strides must describe valid matrices of sizes m x k, k x n and m x n, `c` unaliased,
/// a row to add as long as C's.
#[allow(clippy::too_many_arguments)]
#[target_feature(enable = "avx512f")]
pub unsafe fn sgemm(
    (m, k, n): (usize, usize, usize),
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
        return unsafe {
            match m {
                1 => few_rows::<1>(k, n, alpha, a, b, onto, (c, stride)),
                2 => few_rows::<2>(k, n, alpha, a, b, onto, (c, stride)),
                3 => few_rows::<3>(k, n, alpha, a, b, onto, (c, stride)),
                _ => few_rows::<FEW_ROWS>(k, n, alpha, a, b, onto, (c, stride)),
            }
        };
    }
    PACKED.with_borrow_mut(|[packed_a, packed_b]| {
        let packed_a = room(packed_a, MC.min(m) * KC);
        let packed_b = room(packed_b, NC.min(n.next_multiple_of(NR)) * KC.min(k));
        for j in (0..n).step_by(NC) {
            let nc = NC.min(n - j);
            for p in (0..k).step_by(KC) {
                let kc = KC.min(k - p);
                // SAFETY: the block lies inside B, and `packed_b` has room for its panels.
                unsafe { pack_panels(kc, nc, (at(b, p, j), b.1, b.2), packed_b) };
                for i in (0..m).step_by(MC) {
                    let mc = MC.min(m - i);
                    // SAFETY: the block lies inside A, and `packed_a` has room for its panels.
                    unsafe { pack_rows(mc, kc, (at(a, i, p), a.1, a.2), packed_a) };
                    for jr in (0..nc).step_by(NR) {
                        let columns = NR.min(nc - jr);
                        let onto = if p > 0 { Onto::Itself } else { onto.columns(j + jr..j + jr + columns) };
                        for ir in (0..mc).step_by(MR) {
                            let rows = MR.min(mc - ir);
                            let tile = TILES[rows - 1][(columns - 1) / LANES];
                            // SAFETY: the panels were just packed, and the tile lies inside C.
                            unsafe {
                                let c = c.offset((i + ir) as isize * stride).add(j + jr);
                                tile(kc, alpha, packed_a.add(ir * KC), packed_b.add(jr * kc), onto, c, stride, columns);
                            }
                        }
                    }
                }
            }
        }
    });
}

/// `buffer`, grown to `len` numbers.
fn room(buffer: &mut Vec<Line>, len: usize) -> *mut f32 {
    let lines = len.div_ceil(LANES);
    if buffer.len() < lines {
        buffer.resize(lines, Line([0.0; LANES]));
    }
    buffer.as_mut_ptr().cast()
}

/// Element (i, j)'s place.
fn at((x, rows, columns): Matrix, i: usize, j: usize) -> *const f32 {
    x.wrapping_offset(i as isize * rows + j as isize * columns)
}

/// The first `lanes` lanes; all of them from 16 on.
#[inline(always)]
fn mask(lanes: usize) -> __mmask16 {
    if lanes >= LANES { !0 } else { (1 << lanes) - 1 }
}

/// `rows` rows of `k` numbers, one after the other, [`KC`] apart: a tile reads each of its rows as a stream of its own.
///
/// # Safety
/// `a` must be readable for rows x k, `out` writable for rows x KC.
#[target_feature(enable = "avx512f")]
unsafe fn pack_rows(rows: usize, k: usize, a: Matrix, out: *mut f32) {
    if a.2 == 1 {
        for i in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(at(a, i, 0), out.add(i * KC), k) };
        }
        return;
    }
    for i in (0..rows).step_by(LANES) {
        for p in (0..k).step_by(LANES) {
            let (high, wide) = (LANES.min(rows - i), LANES.min(k - p));
            // SAFETY: the square has `wide` rows of `high` numbers of A's transpose, and what is written of it is as large.
            unsafe {
                let square = transposed(square((at(a, i, p), a.2, a.1), wide, high));
                for (r, row) in square.into_iter().enumerate().take(high) {
                    _mm512_mask_storeu_ps(out.add((i + r) * KC + p), mask(wide), row);
                }
            }
        }
    }
}

/// `k` rows of `columns` numbers into panels of [`NR`] columns: panel, row, column. A panel's missing columns are zero.
///
/// # Safety
/// `b` must be readable for k x columns, `out` writable for whole panels.
#[target_feature(enable = "avx512f")]
unsafe fn pack_panels(k: usize, columns: usize, b: Matrix, out: *mut f32) {
    let place = |p: usize, j: usize| out.wrapping_add(j / NR * (NR * k) + p * NR + j % NR);
    if b.2 == 1 {
        // Several panels at a time, so that B is read in runs of a kilobyte.
        const RUN: usize = 4 * NR;
        for first in (0..columns).step_by(RUN) {
            for p in 0..k {
                for j in (first..columns.min(first + RUN)).step_by(LANES) {
                    // SAFETY: the mask keeps to B's columns, and j's 16 columns lie in one panel.
                    unsafe { _mm512_store_ps(place(p, j), _mm512_maskz_loadu_ps(mask(columns - j), at(b, p, j))) };
                }
            }
        }
        return;
    }
    for j in (0..columns).step_by(LANES) {
        for p in (0..k).step_by(LANES) {
            let (wide, high) = (LANES.min(columns - j), LANES.min(k - p));
            // SAFETY: the square has `wide` rows of `high` numbers of B's transpose; j's 16 columns lie in one panel.
            unsafe {
                let square = transposed(square((at(b, p, j), b.2, b.1), wide, high));
                for (r, row) in square.into_iter().enumerate().take(high) {
                    _mm512_store_ps(place(p + r, j), row);
                }
            }
        }
    }
}

/// `high` rows of `wide` numbers, at most 16 each; the rest is zero.
///
/// # Safety
/// They must be readable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn square(x: Matrix, high: usize, wide: usize) -> [__m512; LANES] {
    let mut rows = [_mm512_setzero_ps(); LANES];
    for (i, row) in rows.iter_mut().enumerate().take(high) {
        // SAFETY: the caller's promise.
        *row = unsafe {
            if x.2 == 1 { _mm512_maskz_loadu_ps(mask(wide), at(x, i, 0)) } else { gather(at(x, i, 0), x.2, wide) }
        };
    }
    rows
}

/// `count` numbers `step` apart, then zeros.
///
/// # Safety
/// They must be readable.
#[target_feature(enable = "avx512f")]
#[cold]
unsafe fn gather(src: *const f32, step: isize, count: usize) -> __m512 {
    let mut x = [0.0; LANES];
    for (i, x) in x.iter_mut().enumerate().take(count) {
        // SAFETY: the caller's promise.
        *x = unsafe { *src.offset(i as isize * step) };
    }
    // SAFETY: `x` holds 16 numbers.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

/// The transpose of a square of 16 by 16.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(x: [__m512; LANES]) -> [__m512; LANES] {
    // Squares of 2, then of 4, inside each quarter of a register ...
    let (mut two, mut four, mut out) = (x, x, x);
    for i in (0..LANES).step_by(2) {
        two[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        two[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    let wide = |i: usize| _mm512_castps_pd(two[i]);
    for i in (0..LANES).step_by(4) {
        four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(wide(i), wide(i + 2)));
        four[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(wide(i), wide(i + 2)));
        four[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(wide(i + 1), wide(i + 3)));
        four[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(wide(i + 1), wide(i + 3)));
    }
    // ... then the quarters: four[4 r + j] holds, in quarter q, column 4 q + j of rows 4 r .. 4 r + 4.
    for j in 0..4 {
        let even = _mm512_shuffle_f32x4::<0x88>(four[j], four[4 + j]);
        let odd = _mm512_shuffle_f32x4::<0xdd>(four[j], four[4 + j]);
        let even_low = _mm512_shuffle_f32x4::<0x88>(four[8 + j], four[12 + j]);
        let odd_low = _mm512_shuffle_f32x4::<0xdd>(four[8 + j], four[12 + j]);
        out[j] = _mm512_shuffle_f32x4::<0x88>(even, even_low);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd_low);
        out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even_low);
        out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_low);
    }
    out
}

/// [`sgemm`] of a few rows with a B whose columns are contiguous: 16 columns at a time are transposed in registers, where a packed
/// copy would be written and read again.
///
/// # Safety
/// As [`sgemm`].
#[target_feature(enable = "avx512f")]
unsafe fn few_rows<const M: usize>(
    k: usize,
    n: usize,
    alpha: f32,
    a: Matrix,
    b: Matrix,
    onto: Onto<f32>,
    (c, stride): (*mut f32, isize),
) {
    /// How far ahead of the sum memory is asked for.
    const AHEAD: usize = 6 * LANES;
    let alpha = _mm512_set1_ps(alpha);
    let b = (b.0, 1, b.2);
    for j in (0..n).step_by(LANES) {
        let (columns, there) = (LANES.min(n - j), mask(n - j));
        for start in (0..k).step_by(KC) {
            let end = k.min(start + KC);
            let mut sums = [_mm512_setzero_ps(); M];
            for p in (start..end).step_by(LANES) {
                let deep = LANES.min(end - p);
                // In these columns, or at the top of the next ones.
                let ahead = if p + AHEAD < k { at(b, p + AHEAD, j) } else { at(b, p + AHEAD - k, j + LANES) };
                // SAFETY: `columns` columns of `deep` numbers of B, and rows of A up to k.
                unsafe {
                    for i in 0..LANES {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_offset(i as isize * b.2).cast());
                    }
                    // Whole squares apart: their loops unroll, and they stay in registers.
                    let whole = deep == LANES && columns == LANES;
                    let mut rows = [_mm512_setzero_ps(); LANES];
                    if whole {
                        for (i, row) in rows.iter_mut().enumerate() {
                            *row = _mm512_loadu_ps(at(b, p, j + i));
                        }
                    } else {
                        rows = square((at(b, p, j), b.2, b.1), columns, deep);
                    }
                    let square = transposed(rows);
                    let mut add = |q: usize, row: __m512| {
                        for (i, sum) in sums.iter_mut().enumerate() {
                            *sum = _mm512_fmadd_ps(_mm512_set1_ps(*at(a, i, p + q)), row, *sum);
                        }
                    };
                    if whole {
                        square.into_iter().enumerate().for_each(|(q, row)| add(q, row));
                    } else {
                        square.into_iter().enumerate().take(deep).for_each(|(q, row)| add(q, row));
                    }
                }
            }
            for (i, &sum) in sums.iter().enumerate() {
                // SAFETY: the mask keeps to C's columns, and the row's.
                unsafe {
                    let c = c.offset(i as isize * stride).add(j);
                    let onto = if start > 0 { Onto::Itself } else { onto };
                    store(c, there, alpha, sum, onto, j);
                }
            }
        }
    }
}

/// `c <- alpha sum + onto` for up to 16 numbers of a row of C, which are columns `j ..` of `onto`.
///
/// # Safety
/// The lanes of `mask` must be there in C, and in the row to add.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store(c: *mut f32, mask: __mmask16, alpha: __m512, sum: __m512, onto: Onto<f32>, j: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let old = match onto {
            Onto::Zero => _mm512_setzero_ps(),
            Onto::Itself => _mm512_maskz_loadu_ps(mask, c),
            Onto::Row(row) => _mm512_maskz_loadu_ps(mask, row.as_ptr().add(j)),
        };
        _mm512_mask_storeu_ps(c, mask, _mm512_fmadd_ps(alpha, sum, old));
    }
}

type Tile = unsafe fn(usize, f32, *const f32, *const f32, Onto<f32>, *mut f32, isize, usize);

/// [`tile`] by rows - 1 and vectors - 1.
const TILES: [[Tile; VECTORS]; MR] = [
    [tile::<1, 1>, tile::<1, 2>, tile::<1, 3>, tile::<1, 4>],
    [tile::<2, 1>, tile::<2, 2>, tile::<2, 3>, tile::<2, 4>],
    [tile::<3, 1>, tile::<3, 2>, tile::<3, 3>, tile::<3, 4>],
    [tile::<4, 1>, tile::<4, 2>, tile::<4, 3>, tile::<4, 4>],
    [tile::<5, 1>, tile::<5, 2>, tile::<5, 3>, tile::<5, 4>],
    [tile::<6, 1>, tile::<6, 2>, tile::<6, 3>, tile::<6, 4>],
];

/// `R` rows and the first `columns` of `V` vectors of C from rows of packed A and a panel of B.
#[target_feature(enable = "avx512f")]
#[allow(clippy::too_many_arguments)]
unsafe fn tile<const R: usize, const V: usize>(
    k: usize,
    alpha: f32,
    a: *const f32,
    b: *const f32,
    onto: Onto<f32>,
    c: *mut f32,
    stride: isize,
    columns: usize,
) {
    // C is on its way while the sums are formed.
    for i in 0..R {
        for v in 0..V {
            _mm_prefetch::<_MM_HINT_T0>(c.wrapping_offset(i as isize * stride).wrapping_add(v * LANES).cast());
        }
    }
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for p in 0..k {
        // SAFETY: rows of A hold k numbers, a panel of B k rows of NR, each on a cache line.
        unsafe {
            let row: [__m512; V] = std::array::from_fn(|v| _mm512_load_ps(b.add(p * NR + v * LANES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(i * KC + p));
                for (sum, &y) in sums.iter_mut().zip(&row) {
                    *sum = _mm512_fmadd_ps(x, y, *sum);
                }
            }
        }
    }
    let alpha = _mm512_set1_ps(alpha);
    for (i, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            let mask = mask(columns - v * LANES);
            // SAFETY: the mask keeps to the tile's columns.
            unsafe {
                let c = c.offset(i as isize * stride).add(v * LANES);
                store(c, mask, alpha, sum, onto, v * LANES);
            }
        }
    }
}

/// [`super::Real::pack_16`].
pub fn pack_16(rows: ArrayView2<f32>, packed: &mut [f32]) -> bool {
    let (high, k) = rows.dim();
    if !supported() || rows.strides()[1] != 1 {
        return false;
    }
    assert!(high <= LANES && packed.len() >= k * LANES, "16 rows at most, and room for them");
    let place = (rows.as_ptr(), rows.strides()[0], 1);
    for p in (0..k).step_by(LANES) {
        let deep = LANES.min(k - p);
        // SAFETY: the machine has AVX-512, the rows hold k numbers each, and `packed` has room for all.
        unsafe {
            let square = transposed(square((at(place, 0, p), place.1, 1), high, deep));
            for (q, row) in square.into_iter().enumerate().take(deep) {
                _mm512_storeu_ps(packed.as_mut_ptr().add((p + q) * LANES), row);
            }
        }
    }
    true
}

/// [`super::Real::tile_16`].
pub fn tile_16(a: &[f32], b: &[f32], tile: &mut [f32]) -> bool {
    /// # Safety
    /// `tile` must hold 16 x 16 numbers.
    #[target_feature(enable = "avx512f")]
    unsafe fn add(a: &[[f32; LANES]], b: &[[f32; LANES]], tile: *mut f32) {
        let mut sums = [_mm512_setzero_ps(); LANES];
        for (a, b) in a.iter().zip(b) {
            // SAFETY: `b` is 16 numbers.
            let b = unsafe { _mm512_loadu_ps(b.as_ptr()) };
            for (sum, &a) in sums.iter_mut().zip(a) {
                *sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, *sum);
            }
        }
        for (r, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let row = tile.add(r * LANES);
                _mm512_storeu_ps(row, _mm512_add_ps(_mm512_loadu_ps(row), sum));
            }
        }
    }
    if !supported() {
        return false;
    }
    assert_eq!(tile.len(), LANES * LANES);
    // SAFETY: the machine has AVX-512, and the tile's size was just checked.
    unsafe { add(a.as_chunks().0, b.as_chunks().0, tile.as_mut_ptr()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use ndarray::{Array2, s};

    fn tiled(alpha: f32, a: ArrayView2<f32>, b: ArrayView2<f32>, onto: Onto<f32>, c: &mut Array2<f32>) {
        let (size, stride) = ((a.nrows(), a.ncols(), b.ncols()), c.strides()[0]);
        let parts = |x: &ArrayView2<f32>| (x.as_ptr(), x.strides()[0], x.strides()[1]);
        // SAFETY: the views are valid, and the caller has asked `supported`.
        unsafe { sgemm(size, alpha, parts(&a), parts(&b), onto, (c.as_mut_ptr(), stride)) }
    }

    fn reference(alpha: f32, a: ArrayView2<f32>, b: ArrayView2<f32>, beta: f32, c: &mut Array2<f32>) {
        let (sa, sb, sc) = (a.strides(), b.strides(), c.strides().to_vec());
        let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
        // SAFETY: the views are valid and their sizes agree.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                alpha,
                a.as_ptr(),
                sa[0],
                sa[1],
                b.as_ptr(),
                sb[0],
                sb[1],
                beta,
                c.as_mut_ptr(),
                sc[0],
                sc[1],
            )
        }
    }

    /// Odd sizes around every block's edge, each factor plain, transposed, and with a stride in both directions.
    #[test]
    fn tiles_give_the_bits_of_matrixmultiply() {
        if !supported() {
            eprintln!("skipped: this machine has no AVX-512");
            return;
        }
        for (m, k, n) in [
            (1, 1, 1),
            (2, 515, 70),
            (4, 30, 33),
            (5, 7, 9),
            (6, 256, 64),
            (7, 257, 65),
            (361, 30, 80),
            (367, 600, 17),
            (13, 20, 4163),
            (64, 515, 48),
        ] {
            let (a, at) = (noise::<f32>(m, k, 1), noise::<f32>(k, m, 2));
            let (b, bt) = (noise::<f32>(k, n, 3), noise::<f32>(n, k, 4));
            let (a2, b2) = (noise::<f32>(2 * m, 3 * k, 5), noise::<f32>(3 * k, 2 * n, 6));
            let (a2, b2) = (a2.slice(s![..;2, ..;3]), b2.slice(s![..;3, ..;2]));
            for a in [a.view(), at.t(), a2] {
                for b in [b.view(), bt.t(), b2] {
                    let mut got = Array2::from_elem((m, n), f32::NAN);
                    let mut want = Array2::zeros((m, n));
                    tiled(1.0, a, b, Onto::Zero, &mut got);
                    reference(1.0, a, b, 0.0, &mut want);
                    assert_eq!(got, want, "{m} x {k} x {n}");
                    tiled(1.0, a, b, Onto::Itself, &mut got);
                    reference(1.0, a, b, 1.0, &mut want);
                    assert_eq!(got, want, "{m} x {k} x {n}, added");
                    tiled(0.5, a, b, Onto::Zero, &mut got);
                    reference(0.5, a, b, 0.0, &mut want);
                    assert_eq!(got, want, "{m} x {k} x {n}, scaled");
                    let row = noise::<f32>(1, n, 7);
                    tiled(1.0, a, b, Onto::Row(row.as_slice().unwrap()), &mut got);
                    want.assign(&row);
                    reference(1.0, a, b, 1.0, &mut want);
                    assert_eq!(got, want, "{m} x {k} x {n}, on a row");
                }
            }
        }
    }
}
