//! The scalar types the engine is generic over.

use super::fourier::{self, Fourier};
use super::gemm::{Onto, Part};
use ndarray::NdFloat;
use std::iter::Sum;
use std::sync::Arc;

/// `f32` trains, `f64` checks gradients.
pub trait Real: NdFloat + Sum + bytemuck::Pod + Default {
    /// The nearest value to `x`.
    fn of(x: f64) -> Self;
    /// `self` in double precision.
    fn f64(self) -> f64;
    /// e^x. For `f32` a branch-free polynomial with at most 2 ulp of error that vectorises: results below the smallest
    /// normal number are flushed to zero. For `f64` the standard library's.
    fn exp_fast(self) -> Self;
    /// 1 / (1 + e^-x), which is (1 + tanh(x / 2)) / 2 without its cancellation. For `f32` at most 2 ulp of error where the result is a
    /// normal number.
    #[inline(always)]
    fn sigmoid_fast(self) -> Self {
        let (one, negative) = (Self::one(), self < Self::zero());
        // e^-|x| is at most 1: what the sum loses of it is known exactly, and what the quotient does too.
        let e = (-self.abs()).exp_fast();
        let (above, below) = (if negative { e } else { one }, one + e);
        let lost = e - (below - one);
        let quotient = above / below;
        let left = (-quotient).mul_add(below, above) - quotient * lost;
        let reciprocal = if negative { one - quotient } else { quotient };
        left.mul_add(reciprocal, quotient)
    }
    /// The error function. For `f32` branch-free polynomials with at most 2 ulp of error that vectorise; for `f64` libm's.
    fn erf_fast(self) -> Self;
    /// The Fourier transform of length `k`.
    fn fourier(k: usize) -> Arc<dyn Fourier<Self>>;
    /// `C <- alpha A B + onto`, or `part` of it, on raw strided memory, sizes (m, k, n): `super::tiles` for `f32` where the machine allows, else
    /// [`matrixmultiply`], which does all of it.
    ///
    /// # Safety
    /// Pointers and strides must describe valid matrices of the given sizes, `c` unaliased, a row to add n long.
    unsafe fn gemm(
        size: (usize, usize, usize),
        part: Part,
        alpha: Self,
        a: (*const Self, isize, isize),
        b: (*const Self, isize, isize),
        onto: Onto<Self>,
        c: (*mut Self, isize, isize),
    );
    /// Whether there is a [`Real::gemm_bf16`] here.
    fn reads_bf16() -> bool {
        false
    }
    /// `C <- A B + onto` for 1 to 4 rows of A, not empty, and a B stored as bf16, its columns contiguous and so far apart, C's columns adjacent: the bits of
    /// [`Real::gemm`] with B widened.
    ///
    /// # Safety
    /// As [`Real::gemm`], where [`Real::reads_bf16`].
    unsafe fn gemm_bf16(
        _size: (usize, usize, usize),
        _a: (*const Self, isize, isize),
        _b: (*const u16, isize),
        _onto: Onto<Self>,
        _c: (*mut Self, isize),
    ) {
        unreachable!("no product with bf16 of our own")
    }
}

impl Real for f32 {
    #[inline(always)]
    fn of(x: f64) -> Self {
        x as f32
    }

    #[inline(always)]
    fn f64(self) -> f64 {
        self as f64
    }

    #[inline(always)]
    fn exp_fast(self) -> Self {
        exp_f32(self)
    }

    #[inline(always)]
    fn erf_fast(self) -> Self {
        erf_f32(self)
    }

    fn fourier(k: usize) -> Arc<dyn Fourier<Self>> {
        fourier::forward(k)
    }

    #[inline]
    unsafe fn gemm(
        size: (usize, usize, usize),
        part: Part,
        alpha: Self,
        a: (*const Self, isize, isize),
        b: (*const Self, isize, isize),
        onto: Onto<Self>,
        c: (*mut Self, isize, isize),
    ) {
        let (m, k, n) = size;
        // A hint, of no use to matrixmultiply.
        let _ = part;
        #[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
        if m * k * n > 0 && super::tiles::supported() {
            use super::tiles::sgemm;
            if c.2 == 1 {
                // SAFETY: the caller's promise, and the machine has what it takes.
                return unsafe { sgemm(size, part, alpha, a, b, onto, (c.0, c.1)) };
            }
            if c.1 == 1 && !matches!(onto, Onto::Row(_)) {
                let (a, b, c) = ((a.0, a.2, a.1), (b.0, b.2, b.1), (c.0, c.2));
                // SAFETY: as above; Cᵀ = Bᵀ Aᵀ.
                return unsafe { sgemm((n, k, m), Part::Whole, alpha, b, a, onto, c) };
            }
        }
        // SAFETY: the caller's promise.
        let beta = unsafe { prepare(m, n, onto, c) };
        // SAFETY: the caller's promise is matrixmultiply's requirement.
        unsafe { matrixmultiply::sgemm(m, k, n, alpha, a.0, a.1, a.2, b.0, b.1, b.2, beta, c.0, c.1, c.2) }
    }

    #[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn reads_bf16() -> bool {
        super::tiles::supported()
    }

    #[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[inline]
    unsafe fn gemm_bf16(
        size: (usize, usize, usize),
        a: (*const Self, isize, isize),
        b: (*const u16, isize),
        onto: Onto<Self>,
        c: (*mut Self, isize),
    ) {
        // SAFETY: the caller's promise.
        unsafe { super::tiles::sgemm_bf16(size, a, b, onto, c) }
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(x: f64) -> Self {
        x
    }

    #[inline(always)]
    fn f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp_fast(self) -> Self {
        self.exp()
    }

    fn erf_fast(self) -> Self {
        libm::erf(self)
    }

    fn fourier(k: usize) -> Arc<dyn Fourier<Self>> {
        fourier::forward(k)
    }

    #[inline]
    unsafe fn gemm(
        size: (usize, usize, usize),
        _: Part,
        alpha: Self,
        a: (*const Self, isize, isize),
        b: (*const Self, isize, isize),
        onto: Onto<Self>,
        c: (*mut Self, isize, isize),
    ) {
        let (m, k, n) = size;
        // SAFETY: the caller's promise.
        let beta = unsafe { prepare(m, n, onto, c) };
        // SAFETY: the caller's promise is matrixmultiply's requirement.
        unsafe { matrixmultiply::dgemm(m, k, n, alpha, a.0, a.1, a.2, b.0, b.1, b.2, beta, c.0, c.1, c.2) }
    }
}

/// Lay a row under the product where one is asked for, and say by what C is then scaled.
///
/// # Safety
/// `c` must be writable for m x n, and the row n long.
unsafe fn prepare<F: Real>(m: usize, n: usize, onto: Onto<F>, c: (*mut F, isize, isize)) -> F {
    let Onto::Row(row) = onto else {
        return if matches!(onto, Onto::Zero) { F::zero() } else { F::one() };
    };
    for i in 0..m {
        for (j, &x) in row.iter().enumerate().take(n) {
            // SAFETY: the caller's promise.
            unsafe { *c.0.offset(i as isize * c.1 + j as isize * c.2) = x };
        }
    }
    F::one()
}

/// e^x for x in f32: n = round(x / ln 2), r = x - n ln 2 in two parts, a polynomial of degree 6 for e^r, times 2^n.
///
/// NaN stays NaN, overflow gives infinity, and results under 2^-126 are zero.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // 1.5 * 2^23: adding it rounds to the nearest integer and leaves that integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let clamped = x.clamp(-88.0, 88.8);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, clamped));
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let e = p.mul_add(r * r, r) + 1.0;
    // n, which is in the low bits of `shifted`, is added to the exponent. Where that leaves the normal numbers, x is one of those below.
    let y = f32::from_bits(e.to_bits().wrapping_add(shifted.to_bits() << 23));
    let y = if x < -87.336_54 { 0.0 } else { y };
    // From there on infinity, and NaN for NaN.
    if x < 88.722_84 { y } else { x + f32::INFINITY }
}

/// erf(x) for x in f32, by two minimax polynomials (N. Juffa's): x + x p(x²) near zero, 1 - e^q(|x|) beyond 475/512.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    let (t, s) = (x.abs(), x * x);
    let p = (-5.967_617e-4f32)
        .mul_add(s, 4.991_194e-3)
        .mul_add(s, -2.676_813_5e-2)
        .mul_add(s, 1.128_199_3e-1)
        .mul_add(s, -3.761_253_4e-1)
        .mul_add(s, 1.283_791_7e-1);
    let near = p.mul_add(x, x);
    let q = (-1.728_534_7e-5f32).mul_add(t, 3.831_971_3e-4);
    let q = q.mul_add(s, (-3.883_964_4e-3f32).mul_add(t, 2.425_462_2e-2));
    let q = q.mul_add(t, -1.067_778_8e-1).mul_add(t, -6.348_467e-1).mul_add(t, -1.287_175_1e-1).mul_add(t, -t);
    let far = (1.0 - exp_f32(q)).copysign(x);
    if t > 475.0 / 512.0 { far } else { near }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let spacing = (f32::from_bits((want as f32).to_bits() + 1) - want as f32) as f64;
        (got as f64 - want).abs() / spacing
    }

    #[test]
    fn exp_is_within_two_ulp_over_the_whole_range() {
        let (mut worst, mut at) = (0.0, 0.0);
        let mut x = -87.336f32;
        while x < 88.7228 {
            let error = ulps(x.exp_fast(), (x as f64).exp());
            if error > worst {
                (worst, at) = (error, x);
            }
            x += 1.3e-4;
        }
        assert!(worst <= 2.0, "{worst} ulp at {at}");
        for x in [1e-30f32, -1e-30, 1e-8, 0.0, -0.0] {
            assert!(ulps(x.exp_fast(), (x as f64).exp()) <= 2.0);
        }
    }

    /// The worst error in ulp of `f` against `exact` over the numbers from `from` to `to`.
    fn worst(from: f32, to: f32, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (f64, f32) {
        let (mut worst, mut x) = ((0.0, 0.0), from);
        while x < to {
            let error = ulps(f(x), exact(x as f64));
            if error > worst.0 {
                worst = (error, x);
            }
            x += 1.3e-4;
        }
        worst
    }

    #[test]
    fn sigmoid_and_erf_keep_their_stated_error_over_the_whole_range() {
        // Below -87 the result is no normal number and may be flushed to zero.
        let (error, at) = worst(-87.0, 100.0, f32::sigmoid_fast, |x| 1.0 / (1.0 + (-x).exp()));
        assert!(error <= 2.0, "sigmoid: {error} ulp at {at}");
        let (error, at) = worst(0.0, 10.0, f32::erf_fast, libm::erf);
        assert!(error <= 2.0, "erf: {error} ulp at {at}");
        for x in [1e-30f32, 1e-8, 3e-4, 0.3, 0.9277, 0.9278, 2.0, 9.0] {
            assert!(ulps(x.erf_fast(), libm::erf(x as f64)) <= 2.0, "{x}");
            assert_eq!((-x).erf_fast(), -x.erf_fast());
        }
        assert_eq!((0f32.erf_fast(), f32::INFINITY.erf_fast(), f32::NEG_INFINITY.erf_fast()), (0.0, 1.0, -1.0));
        assert!(f32::NAN.erf_fast().is_nan() && f32::NAN.sigmoid_fast().is_nan());
    }

    #[test]
    fn exp_has_its_limits() {
        assert_eq!(f32::NEG_INFINITY.exp_fast(), 0.0);
        assert_eq!((-1e4f32).exp_fast(), 0.0);
        assert_eq!(f32::INFINITY.exp_fast(), f32::INFINITY);
        assert_eq!(89.0f32.exp_fast(), f32::INFINITY);
        assert!(f32::NAN.exp_fast().is_nan());
    }
}
