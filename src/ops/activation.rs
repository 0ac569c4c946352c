//! Activations: GELU in GPT-2's form (`gelu_new`) and exact, and SiLU.
//!
//! `gelu_new(x) = x/2 (1 + tanh(a (x + b x³)))` is computed as `x σ(2 a (x + b x³))`: the same function, one exp, and no
//! cancellation for large negative x.

use super::for_row_blocks;
use crate::kernel::{Real, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2};

/// The nonlinearity of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `gelu_new`: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    GeluTanh,
    /// `gelu`: x Phi(x), with erf.
    GeluErf,
    /// `silu`: x / (1 + e^-x).
    Silu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GeluTanh, Self::GeluErf, Self::Silu];
}

/// sqrt(2 / pi).
const A: f64 = 0.797_884_560_802_865_4;
const B: f64 = 0.044_715;

/// Value and slope of `gelu_new`.
#[inline(always)]
pub(super) fn gelu_tanh<F: Real>(x: F) -> (F, F) {
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
pub(super) fn gelu_erf<F: Real>(x: F) -> (F, F) {
    let half = F::of(0.5);
    let phi = half * (F::one() + (x * F::of(std::f64::consts::FRAC_1_SQRT_2)).erf_fast());
    let density = (-half * x * x).exp_fast() * F::of(0.398_942_280_401_432_7);
    (x * phi, phi + x * density)
}

/// Value and slope of SiLU: `x σ`, `σ + x σ (1 - σ)`.
#[inline(always)]
pub(super) fn silu<F: Real>(x: F) -> (F, F) {
    // Beyond 100 sigma is 0 or 1; the clamp keeps 0 * infinity out of the slope.
    let t = if x > F::of(100.0) { F::of(100.0) } else { x };
    let t = if t < F::of(-100.0) { F::of(-100.0) } else { t };
    let sigma = t.sigmoid_fast();
    (x * sigma, sigma + t * sigma * (F::one() - sigma))
}

/// A loop over slices, compiled for every kind of activation and every vector width. Inside, `curve(x)` is value and slope.
macro_rules! by_kind {
    (fn $name:ident($curve:ident; $($arg:ident: $ty:ty),*) $body:block) => {
        fn $name<F: Real>(kind: Activation, $($arg: $ty),*) {
            multiversion! { fn gelu_tanh<F: Real>($($arg: $ty),*) { let $curve = crate::ops::activation::gelu_tanh::<F>; $body } }
            multiversion! { fn gelu_erf<F: Real>($($arg: $ty),*) { let $curve = crate::ops::activation::gelu_erf::<F>; $body } }
            multiversion! { fn silu<F: Real>($($arg: $ty),*) { let $curve = crate::ops::activation::silu::<F>; $body } }
            match kind {
                Activation::GeluTanh => gelu_tanh($($arg),*),
                Activation::GeluErf => gelu_erf($($arg),*),
                Activation::Silu => silu($($arg),*),
            }
        }
    };
}
pub(super) use by_kind;

by_kind! {
    fn values(curve; x: &[F], y: &mut [F]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = curve(x).0;
        }
    }
}

by_kind! {
    fn slopes(curve; x: &[F], dy: &mut [F]) {
        for (dy, &x) in dy.iter_mut().zip(x) {
            *dy *= curve(x).1;
        }
    }
}

/// `y = act(x)`.
///
/// Shapes: both (N, C).
pub fn forward<F: Real>(kind: Activation, x: ArrayView2<F>, mut y: ArrayViewMut2<F>) {
    let (cols, x) = (x.ncols(), super::slice(&x));
    for_row_blocks(&mut y, |row, y| {
        values(kind, &x[row * cols..][..y.len()], y);
    });
}

/// Backward of [`forward`], in place: `dy <- dy ∘ act'(x)`. It is also the jvp, with the tangent in place of `dy`.
///
/// Shapes: both (N, C).
pub fn backward<F: Real>(kind: Activation, x: ArrayView2<F>, mut dy: ArrayViewMut2<F>) {
    let (cols, x) = (x.ncols(), super::slice(&x));
    for_row_blocks(&mut dy, |row, dy| {
        slopes(kind, &x[row * cols..][..dy.len()], dy);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::{Array2, array};

    #[test]
    fn gradients_and_tangents_agree() {
        for kind in Activation::ALL {
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
        for kind in Activation::ALL {
            let (mut y, mut slope) = (x.clone(), Array2::ones(x.dim()));
            forward(kind, x.view(), y.view_mut());
            backward(kind, x.view(), slope.view_mut());
            for ((&x, &y), &slope) in x.iter().zip(&y).zip(&slope) {
                let wide = x as f64;
                let want = match kind {
                    Activation::GeluTanh => 0.5 * wide * (1.0 + (A * (wide + B * wide * wide * wide)).tanh()),
                    Activation::GeluErf => 0.5 * wide * (1.0 + libm::erf(wide / 2f64.sqrt())),
                    Activation::Silu => wide / (1.0 + (-wide).exp()),
                };
                assert!((y as f64 - want).abs() <= 1e-6 * want.abs().max(1.0), "{kind:?} at {x} is {y}, not {want}");
                assert!(slope.is_finite(), "slope at {x}");
                if wide.abs() >= 30.0 {
                    let limit = if x > 0.0 { 1.0 } else { 0.0 };
                    let room = if kind == Activation::Silu { 1e-11 } else { 0.0 };
                    assert!((slope - limit).abs() <= room, "{kind:?}'s slope at {x} is {slope}");
                }
            }
        }
    }
}
