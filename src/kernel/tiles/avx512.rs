//! 16 lanes: AVX-512.

use super::{KC, Lanes, Tile, compiled};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx512;

compiled!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", 1 2 3 4);

const WIDTH: usize = 16;
const _: () = assert!(KC.is_multiple_of(2 * WIDTH));

/// The first `lanes` lanes; all of them from 16 on.
#[inline(always)]
fn mask(lanes: usize) -> __mmask16 {
    if lanes >= WIDTH { !0 } else { (1 << lanes) - 1 }
}

/// Transpose squares of 4 inside each quarter of a register.
#[inline(always)]
unsafe fn turned_within(x: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let (low, high) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        let (low_2, high_2) = (_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        let (low, low_2) = (_mm512_castps_pd(low), _mm512_castps_pd(low_2));
        let (high, high_2) = (_mm512_castps_pd(high), _mm512_castps_pd(high_2));
        [
            _mm512_castpd_ps(_mm512_unpacklo_pd(low, low_2)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low, low_2)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(high, high_2)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(high, high_2)),
        ]
    }
}

// SAFETY: a register of AVX-512 holds 16 numbers.
unsafe impl Lanes for Avx512 {
    const WIDTH: usize = WIDTH;
    const NR: usize = 64;
    const MC: usize = 516;
    const SLABS: usize = 4;
    type Vector = __m512;
    type Square = [__m512; WIDTH];

    fn tile(rows: usize, vectors: usize) -> Tile {
        TILES[rows - 1][vectors - 1]
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller has AVX-512; so below.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(src: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(src) }
    }

    #[inline(always)]
    unsafe fn first_halves(x: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(x))) }
    }

    #[inline(always)]
    unsafe fn second_halves(x: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-1 << 16))) }
    }

    #[inline(always)]
    unsafe fn load_part(src: *const f32, count: usize) -> __m512 {
        // SAFETY: the mask keeps to what is there.
        unsafe { _mm512_maskz_loadu_ps(mask(count), src) }
    }

    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(dst, x) }
    }

    #[inline(always)]
    unsafe fn store_part(dst: *mut f32, count: usize, x: __m512) {
        // SAFETY: the mask keeps to what is there.
        unsafe { _mm512_mask_storeu_ps(dst, mask(count), x) }
    }

    #[inline(always)]
    unsafe fn fused(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn zeros() -> Self::Square {
        // SAFETY: the caller has AVX-512.
        [unsafe { _mm512_setzero_ps() }; WIDTH]
    }

    #[inline(always)]
    unsafe fn transposed(x: Self::Square) -> Self::Square {
        // SAFETY: the caller has AVX-512.
        unsafe {
            // Squares of 4 inside each quarter of a register ...
            let (mut four, mut out) = (x, x);
            for i in (0..WIDTH).step_by(4) {
                [four[i], four[i + 1], four[i + 2], four[i + 3]] = turned_within([x[i], x[i + 1], x[i + 2], x[i + 3]]);
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
    }

    #[inline(always)]
    unsafe fn load_slab(src: *const f32, apart: isize) -> [__m512; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            // Row 4 q + i goes to quarter q of register i on the way from memory.
            let mut rows = [Self::zero(); 4];
            for (i, rows) in rows.iter_mut().enumerate() {
                let row = src.byte_offset(i as isize * apart);
                *rows = _mm512_castps128_ps512(_mm_loadu_ps(row));
                *rows = _mm512_insertf32x4::<1>(*rows, _mm_loadu_ps(row.byte_offset(4 * apart)));
                *rows = _mm512_insertf32x4::<2>(*rows, _mm_loadu_ps(row.byte_offset(8 * apart)));
                *rows = _mm512_insertf32x4::<3>(*rows, _mm_loadu_ps(row.byte_offset(12 * apart)));
            }
            turned_within(rows)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(src: *const f32) {
        // SAFETY: a hint, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(src.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(src: *const f32) {
        // SAFETY: a hint, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(src.cast()) }
    }
}
