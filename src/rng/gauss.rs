//! Standard Gaussians from uniform words (Box and Muller), the same bits on every machine.
//!
//! A pair of words gives a pair of Gaussians: radius `sqrt(-2 ln u)` from the first, angle from the second.
//! The formula is evaluated in flat loops over short arrays, which LLVM vectorises.

use super::math::{cos_sin_turn, ln};
use crate::isa::multiversion;

/// Pairs of a batch of the inner loop: small enough for the first-level cache, long enough to fill vectors.
pub(crate) const PAIRS: usize = 512;

/// Elements of one ChaCha block of public words.
pub(crate) const BLOCK: usize = 16;

/// `u` in (0, 1) from the top 23 bits: the middle of one of 2^23 cells, exact in f32. So |z| <= 5.77.
#[inline(always)]
fn open_unit(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// `u` in (0, 1) from the radius' 32 bits and the 6 that the angle leaves over: `(high + (low + 1/2) 2^-14) 2^-24`, rounded to f32, so
/// that cells are as small as 2^-38 near 0, where the tail is. So |z| <= 7.35.
#[inline(always)]
fn open_unit_fine(radius: u32, angle: u32) -> f32 {
    let low = (radius & 0xff) << 6 | angle & 0x3f;
    let u = (radius >> 8) as f32 * (1.0 / 16_777_216.0) + (low as f32 + 0.5) * (1.0 / 274_877_906_944.0);
    // Rounding may reach 1; the largest number below it stands for that cell.
    u.min(1.0 - 1.0 / 16_777_216.0)
}

#[inline(always)]
fn box_muller(u: f32, angle: u32) -> (f32, f32) {
    let radius = (-2.0 * ln(u)).sqrt();
    let (c, s) = cos_sin_turn(angle);
    (radius * c, radius * s)
}

multiversion! {
    /// Gaussians of whole ChaCha blocks, times `scale`: block k's words r_0..r_7, a_0..a_7 give elements `16 k + j`
    /// (cosine of pair j) and `16 k + 8 + j` (its sine), j < 8. `words` and `out` are equally long, a multiple of 16, at most 1024.
    pub(crate) fn from_blocks(words: &[u32], scale: f32, out: &mut [f32]) {
        let (words, out) = (words.as_chunks::<BLOCK>().0, out.as_chunks_mut::<BLOCK>().0);
        let mut radius = [0u32; PAIRS];
        let mut angle = [0u32; PAIRS];
        let (mut cos, mut sin) = ([0f32; PAIRS], [0f32; PAIRS]);
        let pairs = 8 * words.len();
        let radii = radius.as_chunks_mut::<8>().0.iter_mut().zip(angle.as_chunks_mut::<8>().0);
        for (block, (r, a)) in words.iter().zip(radii) {
            r.copy_from_slice(&block[..8]);
            a.copy_from_slice(&block[8..]);
        }
        for (((&r, &a), c), s) in radius[..pairs].iter().zip(&angle[..pairs]).zip(&mut cos[..pairs]).zip(&mut sin[..pairs]) {
            let (zc, zs) = box_muller(open_unit(r), a);
            *c = zc * scale;
            *s = zs * scale;
        }
        for (block, (c, s)) in out.iter_mut().zip(cos.as_chunks::<8>().0.iter().zip(sin.as_chunks::<8>().0)) {
            block[..8].copy_from_slice(c);
            block[8..].copy_from_slice(s);
        }
    }
}

/// Words behind a batch of [`NOISE`] noise values.
pub(crate) const NOISE_WORDS: usize = 2 * PAIRS;

/// Noise values of a batch: two from four pairs.
pub(crate) const NOISE: usize = PAIRS / 2;

multiversion! {
    /// Noise values `sigma (z_1 + z_2 + z_3 + z_4) / 2` from 512 pairs with fine radii: 512 radius words, then 512 angles.
    /// Values j and 128 + j share pairs j, 128 + j, 256 + j, 384 + j: the first takes the cosines, the second the sines.
    pub(crate) fn noise(words: &[u32; NOISE_WORDS], sigma: f32, out: &mut [f32; NOISE]) {
        let (mut cos, mut sin) = ([0f32; PAIRS], [0f32; PAIRS]);
        for i in 0..PAIRS {
            (cos[i], sin[i]) = box_muller(open_unit_fine(words[i], words[PAIRS + i]), words[PAIRS + i]);
        }
        const Q: usize = PAIRS / 4;
        for (half, z) in [cos, sin].iter().enumerate() {
            for j in 0..Q {
                let sum = (z[j] + z[j + Q]) + (z[j + 2 * Q] + z[j + 3 * Q]);
                out[half * Q + j] = sum * 0.5 * sigma;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_formula() {
        let words: Vec<u32> = (0..64u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995).collect();
        let mut out = vec![0.0; 64];
        from_blocks(&words, 1.0, &mut out);
        // Vector code of any width gives the bits of one element at a time.
        for (block, z) in words.chunks(16).zip(out.chunks(16)) {
            let one_by_one: Vec<_> = (0..8).map(|j| box_muller(open_unit(block[j]), block[8 + j])).collect();
            assert!((0..8).all(|j| (z[j], z[8 + j]) == one_by_one[j]));
        }
        for (k, block) in words.chunks(16).enumerate() {
            for j in 0..8 {
                let u = (f64::from(block[j] >> 9) + 0.5) / 2f64.powi(23);
                let turn = (f64::from(block[8 + j] >> 6) + 0.5) / 2f64.powi(26);
                let r = (-2.0 * u.ln()).sqrt();
                let (s, c) = (turn * std::f64::consts::TAU).sin_cos();
                assert!((f64::from(out[16 * k + j]) - r * c).abs() < 2e-6);
                assert!((f64::from(out[16 * k + 8 + j]) - r * s).abs() < 2e-6);
            }
        }
    }

    #[test]
    fn units_stay_inside() {
        for w in [0, 1, 511, 512, u32::MAX - 512, u32::MAX] {
            assert!(open_unit(w) > 0.0 && open_unit(w) < 1.0);
            for angle in [0, 63, 64, u32::MAX] {
                assert!(open_unit_fine(w, angle) > 0.0 && open_unit_fine(w, angle) < 1.0);
            }
        }
        assert_eq!(open_unit_fine(0, 0), 2f32.powi(-39));
        assert_eq!(open_unit_fine(1 << 31, 0), 0.5);
        // The low bits of the radius weigh more than those of the angle.
        assert_eq!(open_unit_fine(1, 0), 64.5 * 2f32.powi(-38));
    }
}
