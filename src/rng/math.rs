//! A logarithm, a sine and a cosine that give the same bits everywhere.
//!
//! The standard library's transcendental functions differ between platforms and versions. These are pinned: polynomials of
//! Cephes (Moshier) in f32, evaluated in the order written, with IEEE `+ - *` and integer operations only, no fused
//! multiply-add, no branch. WGSL can evaluate the same expressions, though a GPU may contract or reorder them: what must
//! be the same to the bit is computed here.

const SQRT_HALF_BITS: i32 = 0x3f35_04f3;

/// ln x for a normal, positive, finite `x`; within 2e-7 relative or absolute of the true value, whichever is larger.
///
/// `x = 2^e m` with m in [sqrt(1/2), sqrt(2)): the exponent is read from the bits after shifting the cut from 1 to sqrt(1/2).
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let shifted = (x.to_bits() as i32).wrapping_sub(SQRT_HALF_BITS);
    let e = (shifted >> 23) as f32;
    let f = f32::from_bits(((shifted & 0x007f_ffff) + SQRT_HALF_BITS) as u32) - 1.0;
    let z = f * f;
    let mut y = 7.037_683_6e-2 * f - 1.151_461e-1;
    y = y * f + 1.167_699_9e-1;
    y = y * f - 1.242_014_1e-1;
    y = y * f + 1.424_932_3e-1;
    y = y * f - 1.666_805_8e-1;
    y = y * f + 2.000_071_5e-1;
    y = y * f - 2.499_999_4e-1;
    y = y * f + 3.333_333e-1;
    y = y * f * z;
    // ln 2 in two parts, the first exact in few bits: e * 0.693359375 has no rounding error.
    y -= 2.121_944_4e-4 * e;
    y -= 0.5 * z;
    (f + y) + 0.693_359_4 * e
}

/// (cos 2πt, sin 2πt) of the turn t that `word` stands for; absolute error below 1.5e-7.
///
/// The nearest quarter turn `q` comes from the top bits; what is left, in [-1/8, 1/8) turn, is cut to 24 bits and put in the
/// middle of its cell: `x = (r + 1/2) π/2 2^-24`. So neither result is ever 0, and `word`, `word + 2^31` are exact opposites.
#[inline(always)]
pub fn cos_sin_turn(word: u32) -> (f32, f32) {
    let q = word.wrapping_add(1 << 29) >> 30;
    let r = (word.wrapping_sub(q << 30) as i32) >> 6;
    let x = (r as f32 + 0.5) * 9.362_675e-8;
    let z = x * x;
    let s = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
    let c = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
    // Quarter turns: (c, s), (-s, c), (-c, -s), (s, -c).
    let swap = 0u32.wrapping_sub(q & 1);
    let (cb, sb) = (c.to_bits(), s.to_bits());
    let cos = (cb & !swap) | (sb & swap);
    let sin = (sb & !swap) | (cb & swap);
    let cos_sign = (q.wrapping_add(1) & 2) << 30;
    let sin_sign = (q & 2) << 30;
    (f32::from_bits(cos ^ cos_sign), f32::from_bits(sin ^ sin_sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_is_within_its_bound() {
        let mut worst = 0.0f64;
        // Every 977th positive normal number, and a fine sweep around 1.
        let all = (0x0080_0000u32..0x7f80_0000).step_by(977);
        let near_one = 0x3f70_0000u32..0x3f90_0000;
        for bits in all.chain(near_one) {
            let x = f32::from_bits(bits);
            let truth = f64::from(x).ln();
            worst = worst.max((f64::from(ln(x)) - truth).abs() / truth.abs().max(1.0));
            if (0x3f7f_0000..0x3f81_0000).contains(&bits) && truth != 0.0 {
                let relative = ((f64::from(ln(x)) - truth) / truth).abs();
                assert!(relative < 1.2e-7, "ln {x}: relative error {relative}");
            }
        }
        assert!(worst < 2e-7, "{worst}");
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn cosine_and_sine_are_within_their_bound() {
        let mut worst = 0.0f64;
        let words = (0..=u32::MAX).step_by(9_973).chain((0..4).flat_map(|q| {
            let edge = (q as u32) << 30;
            (0..4096u32).map(move |k| edge.wrapping_add(k * 16).wrapping_sub(32_768))
        }));
        for word in words {
            // The cell's middle: 6 bits are dropped, half a unit of what is left is added.
            let turn = (f64::from(word >> 6) + 0.5) / 2f64.powi(26);
            let (sin, cos) = (turn * std::f64::consts::TAU).sin_cos();
            let (c, s) = cos_sin_turn(word);
            worst = worst.max((f64::from(c) - cos).abs()).max((f64::from(s) - sin).abs());
            assert!(c != 0.0 && s != 0.0);
            let (c2, s2) = cos_sin_turn(word.wrapping_add(1 << 31));
            assert_eq!((c2, s2), (-c, -s));
        }
        assert!(worst < 1.5e-7, "{worst}");
    }

    #[test]
    fn pinned() {
        let got = [ln(0.1), ln(1e-7), ln(0.999_999_9), cos_sin_turn(0x1234_5678).0, cos_sin_turn(0xdead_beef).1];
        assert_eq!(got.map(f32::to_bits), [3_222_494_606, 3_246_453_212, 3_019_898_881, 1_063_706_240, 3_208_301_350]);
    }
}
