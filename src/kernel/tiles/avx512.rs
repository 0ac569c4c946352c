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

// SAFETY: a register of AVX-512 holds 16 numbers.
unsafe impl Lanes for Avx512 {
    const WIDTH: usize = WIDTH;
    const NR: usize = 64;
    const MC: usize = 516;
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
            // Squares of 2, then of 4, inside each quarter of a register ...
            let (mut two, mut four, mut out) = (x, x, x);
            for i in (0..WIDTH).step_by(2) {
                two[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                two[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
            }
            let wide = |i: usize| _mm512_castps_pd(two[i]);
            for i in (0..WIDTH).step_by(4) {
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
    }

    #[inline(always)]
    unsafe fn prefetch(src: *const f32) {
        // SAFETY: a hint, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(src.cast()) }
    }
}
