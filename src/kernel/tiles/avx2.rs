//! 8 lanes: AVX2 and FMA.

use super::{KC, Lanes, Tile, compiled};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

compiled!(Avx2, "avx2,fma", 1 2);

const WIDTH: usize = 8;
const _: () = assert!(KC.is_multiple_of(2 * WIDTH));

/// The first `lanes` lanes, as what masked loads and stores take.
#[inline(always)]
unsafe fn mask(lanes: usize) -> __m256i {
    const MASKS: [i32; 2 * WIDTH] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: 8 of the 16 from 8 - lanes on.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(WIDTH - lanes.min(WIDTH)).cast()) }
}

/// Transpose squares of 4 inside each half of a register.
#[inline(always)]
unsafe fn turned_within(x: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let (low, high) = (_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
        let (low_2, high_2) = (_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
        let (low, low_2) = (_mm256_castps_pd(low), _mm256_castps_pd(low_2));
        let (high, high_2) = (_mm256_castps_pd(high), _mm256_castps_pd(high_2));
        [
            _mm256_castpd_ps(_mm256_unpacklo_pd(low, low_2)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(low, low_2)),
            _mm256_castpd_ps(_mm256_unpacklo_pd(high, high_2)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(high, high_2)),
        ]
    }
}

/// The two slabs of a square.
#[inline(always)]
fn side_by_side([a, b, c, d]: [__m256; 4], [e, f, g, h]: [__m256; 4]) -> [__m256; WIDTH] {
    [a, b, c, d, e, f, g, h]
}

// SAFETY: a register of AVX holds 8 numbers.
unsafe impl Lanes for Avx2 {
    const WIDTH: usize = WIDTH;
    const NR: usize = 16;
    const MC: usize = 258;
    const SLABS: usize = 2;
    type Vector = __m256;
    type Square = [__m256; WIDTH];

    fn tile(rows: usize, vectors: usize) -> Tile {
        TILES[rows - 1][vectors - 1]
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller has AVX2 and FMA; so below.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(src: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(src) }
    }

    #[inline(always)]
    unsafe fn first_halves(x: __m256) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(x))) }
    }

    #[inline(always)]
    unsafe fn second_halves(x: __m256) -> __m256 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(-1 << 16))) }
    }

    #[inline(always)]
    unsafe fn load_part(src: *const f32, count: usize) -> __m256 {
        // SAFETY: the mask keeps to what is there.
        unsafe { if count >= WIDTH { _mm256_loadu_ps(src) } else { _mm256_maskload_ps(src, mask(count)) } }
    }

    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(dst, x) }
    }

    #[inline(always)]
    unsafe fn store_part(dst: *mut f32, count: usize, x: __m256) {
        // SAFETY: the mask keeps to what is there.
        unsafe { if count >= WIDTH { _mm256_storeu_ps(dst, x) } else { _mm256_maskstore_ps(dst, mask(count), x) } }
    }

    #[inline(always)]
    unsafe fn fused(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn zeros() -> Self::Square {
        // SAFETY: the caller has AVX2.
        [unsafe { _mm256_setzero_ps() }; WIDTH]
    }

    #[inline(always)]
    unsafe fn transposed(x: Self::Square) -> Self::Square {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (mut low, mut high) = ([Self::zero(); 4], [Self::zero(); 4]);
            for i in 0..4 {
                low[i] = _mm256_permute2f128_ps::<0x20>(x[i], x[4 + i]);
                high[i] = _mm256_permute2f128_ps::<0x31>(x[i], x[4 + i]);
            }
            side_by_side(turned_within(low), turned_within(high))
        }
    }

    #[inline(always)]
    unsafe fn load_turned(src: *const f32, apart: isize) -> Self::Square {
        // SAFETY: the caller's promise.
        unsafe { side_by_side(Self::load_slab(src, apart), Self::load_slab(src.add(4), apart)) }
    }

    #[inline(always)]
    unsafe fn load_slab(src: *const f32, apart: isize) -> [__m256; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            // The halves are put side by side on the way from memory, where it costs nothing.
            let mut rows = [Self::zero(); 4];
            for (i, rows) in rows.iter_mut().enumerate() {
                let row = src.byte_offset(i as isize * apart);
                *rows = _mm256_set_m128(_mm_loadu_ps(row.byte_offset(4 * apart)), _mm_loadu_ps(row));
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
