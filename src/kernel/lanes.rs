//! Loops over slices that vectorise, and sums whose shape is fixed.

use super::{Real, multiversion};

/// Width of the partial sums: wide enough for two vector registers of any machine, the same on all of them.
const LANES: usize = 32;

/// Add up `lanes` in a fixed tree.
#[inline(always)]
fn fold<F: Real>(mut lanes: [F; LANES]) -> F {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `sum_i term(i)` over N slices of one length at once, with [`LANES`] partial sums.
///
/// The slices are cut into arrays of [`LANES`], so that no bound is checked inside and the loop vectorises.
#[inline(always)]
pub(crate) fn lane_sum<F: Real, S: Real, const N: usize>(x: [&[F]; N], term: impl Fn([F; N]) -> S) -> S {
    let mut lanes = [S::zero(); LANES];
    let len = x.first().map_or(0, |x| x.len());
    let x = x.map(|x| x[..len].as_chunks::<LANES>());
    for i in 0..len / LANES {
        let chunk = x.map(|(chunks, _)| &chunks[i]);
        for (j, lane) in lanes.iter_mut().enumerate() {
            *lane += term(chunk.map(|c| c[j]));
        }
    }
    for i in 0..len % LANES {
        lanes[i] += term(x.map(|(_, rest)| rest[i]));
    }
    fold(lanes)
}

multiversion! {
    /// `sum_i a_i b_i`.
    pub fn dot<F: Real>(a: &[F], b: &[F]) -> F {
        assert_eq!(a.len(), b.len());
        lane_sum([a, b], |[a, b]| a * b)
    }
}

multiversion! {
    /// `sum_i a_i`.
    pub fn sum<F: Real>(a: &[F]) -> F {
        lane_sum([a], |[a]| a)
    }
}

multiversion! {
    /// The largest element; negative infinity for none. NaN elements are passed over.
    pub fn max<F: Real>(a: &[F]) -> F {
        let mut lanes = [F::neg_infinity(); LANES];
        let (chunks, rest) = a.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(F::neg_infinity(), |m, &x| if x > m { x } else { m })
    }
}

multiversion! {
    /// `x_i <- exp(x_i - shift)`, and their sum.
    pub fn exp_shifted<F: Real>(x: &mut [F], shift: F) -> F {
        for x in x.iter_mut() {
            *x = (*x - shift).exp_fast();
        }
        lane_sum([x], |[x]| x)
    }
}

multiversion! {
    /// `sum_i exp(x_i - shift)`, leaving `x` alone.
    pub fn sum_exp_shifted<F: Real>(x: &[F], shift: F) -> F {
        lane_sum([x], |[x]| (x - shift).exp_fast())
    }
}

multiversion! {
    /// `x_i <- a x_i`.
    pub fn scale<F: Real>(x: &mut [F], a: F) {
        for x in x {
            *x *= a;
        }
    }
}

multiversion! {
    /// `y_i <- y_i + x_i`.
    pub fn add<F: Real>(x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

multiversion! {
    /// `y_i <- y_i + a x_i`.
    pub fn axpy<F: Real>(a: F, x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        for (y, &x) in y.iter_mut().zip(x) {
            *y = a.mul_add(x, *y);
        }
    }
}

/// Numbers between two requests for memory.
const RUN: usize = 16;

multiversion! {
    /// `y <- a_7 x_7 + (... (a_1 x_1 + (a_0 x_0 + y)))`: eight [`axpy`] in one pass over y, while `next` is asked for. Eight streams fill the
    /// memory's bandwidth where one does not.
    fn axpy8<F: Real>(a: &[F; 8], x: &[&[[F; RUN]]; 8], next: &[&[[F; RUN]]; 8], y: &mut [[F; RUN]]) {
        for (i, y) in y.iter_mut().enumerate() {
            let mut sum = *y;
            for ((&a, x), next) in a.iter().zip(x).zip(next) {
                prefetch(next, i);
                for (sum, &x) in sum.iter_mut().zip(&x[i]) {
                    *sum = a.mul_add(x, *sum);
                }
            }
            *y = sum;
        }
    }
}

/// Ask memory for number `i` of `x`, which will be needed soon.
#[inline(always)]
fn prefetch<F>(x: &[F], i: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(i).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (x, i);
}

/// `y <- y + sum_p a_p row(p)`, in the order of p.
pub(crate) fn add_combination<'a, F: Real>(a: &[F], row: impl Fn(usize) -> &'a [F], y: &mut [F]) {
    let whole = y.len() / RUN * RUN;
    let (eights, rest) = a.as_chunks::<8>();
    let runs = |i: usize| std::array::from_fn(|j| row(8 * i + j).as_chunks().0);
    for (i, eight) in eights.iter().enumerate() {
        axpy8(eight, &runs(i), &runs((i + 1).min(eights.len() - 1)), y.as_chunks_mut().0);
    }
    // What is left: columns beyond the last run, then rows beyond the last eight.
    let (left, last) = (a.len() - rest.len(), y.len() % RUN);
    for (p, &a) in a[..left].iter().enumerate().filter(|_| last > 0) {
        axpy(a, &row(p)[whole..], &mut y[whole..]);
    }
    for (p, &a) in rest.iter().enumerate() {
        axpy(a, row(left + p), y);
    }
}

/// `sum_i a_i b_i` in double precision, in a fixed tree.
pub fn dot_f64<F: Real>(a: &[F], b: &[F]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.chunks(4096).zip(b.chunks(4096)).map(|(a, b)| lane_sum([a, b], |[a, b]| a.f64() * b.f64())).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ndarray::Array2;
    use ndarray_rand::{RandomExt, rand_distr::StandardNormal};
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    /// A matrix of standard normal numbers, the same for the same seed.
    pub(crate) fn noise<F: Real>(rows: usize, cols: usize, seed: u64) -> Array2<F> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Array2::<f64>::random_using((rows, cols), StandardNormal, &mut rng).mapv(F::of)
    }

    #[test]
    fn sums_equal_their_definitions_at_every_length() {
        for len in (0..100).chain([4095, 4096, 4097, 9000]) {
            let (a, b) = (noise::<f64>(1, len, 1).into_raw_vec_and_offset().0, noise::<f64>(1, len, 2));
            let b = b.as_slice().unwrap();
            let want: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            assert!((dot(&a, b) - want).abs() < 1e-10);
            assert!((dot_f64(&a, b) - want).abs() < 1e-10);
            assert!((sum(&a) - a.iter().sum::<f64>()).abs() < 1e-10);
            assert_eq!(max(&a), a.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let mut e = a.clone();
            let total = exp_shifted(&mut e, 0.25);
            assert!((total - a.iter().map(|x| (x - 0.25).exp()).sum::<f64>()).abs() < 1e-9);
            assert!((sum_exp_shifted(&a, 0.25) - total).abs() < 1e-9);
        }
    }
}
