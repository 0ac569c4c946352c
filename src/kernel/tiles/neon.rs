//! 4 lanes: NEON, which every 64-bit ARM has.

use super::{KC, Lanes, Tile, compiled};
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon;

compiled!(Neon, "neon", 1 2 3 4);

const WIDTH: usize = 4;
const _: () = assert!(KC.is_multiple_of(2 * WIDTH));

// SAFETY: a register of NEON holds 4 numbers.
unsafe impl Lanes for Neon {
    const WIDTH: usize = WIDTH;
    const NR: usize = 16;
    const MC: usize = 258;
    const SLABS: usize = 4;
    type Vector = float32x4_t;
    type Square = [float32x4_t; WIDTH];

    fn tile(rows: usize, vectors: usize) -> Tile {
        TILES[rows - 1][vectors - 1]
    }

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: every 64-bit ARM has NEON; so below.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(src: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_f32(src) }
    }

    #[inline(always)]
    unsafe fn first_halves(x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(x))) }
    }

    #[inline(always)]
    unsafe fn second_halves(x: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff_0000))) }
    }

    #[inline(always)]
    unsafe fn load_part(src: *const f32, count: usize) -> float32x4_t {
        if count >= WIDTH {
            // SAFETY: the caller's promise.
            return unsafe { vld1q_f32(src) };
        }
        let mut numbers = [0.0; WIDTH];
        // SAFETY: the caller's promise: `count` numbers are there.
        unsafe {
            std::ptr::copy_nonoverlapping(src, numbers.as_mut_ptr(), count);
            vld1q_f32(numbers.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store(dst: *mut f32, x: float32x4_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(dst, x) }
    }

    #[inline(always)]
    unsafe fn store_part(dst: *mut f32, count: usize, x: float32x4_t) {
        // SAFETY: the caller's promise: `count` numbers fit.
        unsafe {
            if count >= WIDTH {
                return vst1q_f32(dst, x);
            }
            let mut numbers = [0.0; WIDTH];
            vst1q_f32(numbers.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), dst, count);
        }
    }

    #[inline(always)]
    unsafe fn fused(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn zeros() -> Self::Square {
        // SAFETY: as above.
        [unsafe { vdupq_n_f32(0.0) }; WIDTH]
    }

    #[inline(always)]
    unsafe fn transposed([a, b, c, d]: Self::Square) -> Self::Square {
        // SAFETY: as above.
        unsafe {
            let (ab, cd) = ([vtrn1q_f32(a, b), vtrn2q_f32(a, b)], [vtrn1q_f32(c, d), vtrn2q_f32(c, d)]);
            let wide = |x: float32x4_t| vreinterpretq_f64_f32(x);
            let low = |i: usize| vreinterpretq_f32_f64(vtrn1q_f64(wide(ab[i]), wide(cd[i])));
            let high = |i: usize| vreinterpretq_f32_f64(vtrn2q_f64(wide(ab[i]), wide(cd[i])));
            [low(0), low(1), high(0), high(1)]
        }
    }

    #[inline(always)]
    unsafe fn load_slab(src: *const f32, apart: isize) -> [float32x4_t; 4] {
        // SAFETY: the caller's promise. Here a slab is a square.
        unsafe { Self::load_turned(src, apart) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {
        // The intrinsic is not stable, and the hardware's own prefetcher follows these streams.
    }

    #[inline(always)]
    unsafe fn prefetch_far(_: *const f32) {
        // As above.
    }
}
