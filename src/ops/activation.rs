//! GELU, in GPT-2's form (`gelu_new`) and exact.
//!
//! `gelu_new(x) = x/2 (1 + tanh(a (x + b x³)))` is computed as `x σ(2 a (x + b x³))`: the same function, one exp, and no
//! cancellation for large negative x.

use super::for_row_blocks;
use crate::kernel::{Real, multiversion};
use crate::model::Activation;
use ndarray::{ArrayView2, ArrayViewMut2};

/// sqrt(2 / pi).
const A: f64 = 0.797_884_560_802_865_4;
const B: f64 = 0.044_715;

/// Value and slope of `gelu_new`.
#[inline(always)]
fn gelu_tanh<F: Real>(x: F) -> (F, F) {
    let (one, a2, b) = (F::one(), F::of(2.0 * A), F::of(B));
    // Beyond 20 sigma is 0 or 1 to the last bit; the clamp keeps 0 * infinity out of the slope.
    let t = if x > F::of(20.0) { F::of(20.0) } else { x };
    let t = if t < F::of(-20.0) { F::of(-20.0) } else { t };
    let t2 = t * t;
    let inner = a2 * t * b.mul_add(t2, one);
    let sigma = inner.sigmoid_fast();
    let inner_slope = a2 * (F::of(3.0) * b).mul_add(t2, one);
    (x * sigma, sigma + t * sigma * (one - sigma) * inner_slope)
}

/// Value and slope of the exact GELU: `x Φ(x)`, `Φ(x) + x φ(x)`.
#[inline(always)]
fn gelu_erf<F: Real>(x: F) -> (F, F) {
    let half = F::of(0.5);
    let phi = half * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf_fast());
    let density = (-half * x * x).exp_fast() * F::of(0.398_942_280_401_432_7);
    (x * phi, phi + x * density)
}

multiversion! {
    fn tanh_values<F: Real>(x: &[F], y: &mut [F]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = gelu_tanh(x).0;
        }
    }
}

multiversion! {
    fn tanh_slopes<F: Real>(x: &[F], dy: &mut [F]) {
        for (dy, &x) in dy.iter_mut().zip(x) {
            *dy *= gelu_tanh(x).1;
        }
    }
}

multiversion! {
    fn erf_values<F: Real>(x: &[F], y: &mut [F]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = gelu_erf(x).0;
        }
    }
}

multiversion! {
    fn erf_slopes<F: Real>(x: &[F], dy: &mut [F]) {
        for (dy, &x) in dy.iter_mut().zip(x) {
            *dy *= gelu_erf(x).1;
        }
    }
}

/// `y = gelu(x)`.
///
/// Shapes: both (N, C).
pub fn forward<F: Real>(kind: Activation, x: ArrayView2<F>, mut y: ArrayViewMut2<F>) {
    let (cols, x) = (x.ncols(), super::slice(&x));
    for_row_blocks(&mut y, |row, y| {
        let x = &x[row * cols..][..y.len()];
        match kind {
            Activation::GeluTanh => tanh_values(x, y),
            Activation::GeluErf => erf_values(x, y),
        }
    });
}

/// Backward of [`forward`], in place: `dy <- dy ∘ gelu'(x)`. It is also the jvp, with the tangent in place of `dy`.
///
/// Shapes: both (N, C).
pub fn backward<F: Real>(kind: Activation, x: ArrayView2<F>, mut dy: ArrayViewMut2<F>) {
    let (cols, x) = (x.ncols(), super::slice(&x));
    for_row_blocks(&mut dy, |row, dy| {
        let x = &x[row * cols..][..dy.len()];
        match kind {
            Activation::GeluTanh => tanh_slopes(x, dy),
            Activation::GeluErf => erf_slopes(x, dy),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::{Array2, array};

    #[test]
    fn gradients_and_tangents_agree() {
        for kind in [Activation::GeluTanh, Activation::GeluErf] {
            for (n, c) in [(1, 1), (5, 7), (40, 33), (0, 3)] {
                let slope = |v: &[Array2<f64>], d: &Array2<f64>| {
                    let mut d = d.clone();
                    backward(kind, v[0].view(), d.view_mut());
                    d
                };
                check(&Op {
                    inputs: vec![noise(n, c, 1) * 2.0],
                    forward: &|v| {
                        let mut y = Array2::zeros((n, c));
                        forward(kind, v[0].view(), y.view_mut());
                        y
                    },
                    backward: &|v, dy| vec![slope(v, dy)],
                    jvp: &|v, d| slope(v, &d[0]),
                });
            }
        }
    }

    #[test]
    fn equals_the_textbook_form_and_survives_large_arguments() {
        let x = array![[-1e30f32, -1e4, -30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 30.0, 1e4, 1e30]];
        for kind in [Activation::GeluTanh, Activation::GeluErf] {
            let (mut y, mut slope) = (x.clone(), Array2::ones(x.dim()));
            forward(kind, x.view(), y.view_mut());
            backward(kind, x.view(), slope.view_mut());
            for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slope) {
                let wide = x as f64;
                let want = match kind {
                    Activation::GeluTanh => 0.5 * wide * (1.0 + (A * (wide + B * wide * wide * wide)).tanh()),
                    Activation::GeluErf => 0.5 * wide * (1.0 + libm::erf(wide / 2f64.sqrt())),
                };
                assert!((y as f64 - want).abs() <= 1e-6 * want.abs().max(1.0), "gelu({x}) = {y}, not {want}");
                assert!(slope.is_finite(), "slope at {x}");
                if wide.abs() >= 30.0 {
                    assert_eq!(slope, if x > 0.0 { 1.0 } else { 0.0 }, "slope at {x}");
                }
            }
        }
    }
}
