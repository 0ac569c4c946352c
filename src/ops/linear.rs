//! `y = x W + b`, with W stored `[in, out]` as GPT-2's Conv1D is.

use super::add_column_sums;
use crate::kernel::{Onto, Real, matmul};
use ndarray::{ArrayView2, ArrayViewMut2};

/// `y = x W + b`.
///
/// Shapes: `x`: (N, I); `w`: (I, O); `bias`: (O) or none; `y`: (N, O).
pub fn forward<F: Real>(x: ArrayView2<F>, w: ArrayView2<F>, bias: Option<&[F]>, y: ArrayViewMut2<F>) {
    match bias {
        None => matmul(x, w, Onto::Zero, y),
        Some(bias) => matmul(x, w, Onto::Row(bias), y),
    }
}

/// Backward of [`forward`] to its input: `dx = dy Wᵀ`.
///
/// Shapes: `dy`: (N, O); `w`: (I, O); `dx`: (N, I).
pub fn backward_input<F: Real>(dy: ArrayView2<F>, w: ArrayView2<F>, dx: ArrayViewMut2<F>) {
    matmul(dy, w.reversed_axes(), Onto::Zero, dx);
}

/// Backward of [`forward`] to its weight: `dW += xᵀ dy`.
///
/// Shapes: `x`: (N, I); `dy`: (N, O); `dw`: (I, O).
pub fn backward_weight<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>, dw: ArrayViewMut2<F>) {
    matmul(x.reversed_axes(), dy, Onto::Itself, dw);
}

/// Backward of [`forward`] to its bias: `db += sum over rows of dy`.
///
/// Shapes: `dy`: (N, O); `db`: (O).
pub fn backward_bias<F: Real>(dy: ArrayView2<F>, db: &mut [F]) {
    add_column_sums(dy, db);
}

/// Directional derivative: `ẏ = ẋ W + x Ẇ + ḃ`, where absent tangents are zero.
///
/// Shapes: as in [`forward`]; `y_dot` is overwritten.
pub fn jvp<F: Real>(
    x: ArrayView2<F>,
    x_dot: ArrayView2<F>,
    w: ArrayView2<F>,
    w_dot: Option<ArrayView2<F>>,
    bias_dot: Option<&[F]>,
    mut y_dot: ArrayViewMut2<F>,
) {
    forward(x_dot, w, bias_dot, y_dot.view_mut());
    if let Some(w_dot) = w_dot {
        matmul(x, w_dot, Onto::Itself, y_dot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::Array2;

    #[test]
    fn gradients_and_tangents_agree() {
        for (n, i, o) in [(1, 1, 1), (4, 3, 5), (17, 33, 9), (0, 2, 3)] {
            let inputs = vec![noise(n, i, 1), noise(i, o, 2), noise(1, o, 3)];
            check(&Op {
                inputs,
                forward: &|v| {
                    let mut y = Array2::zeros((n, o));
                    forward(v[0].view(), v[1].view(), v[2].as_slice(), y.view_mut());
                    y
                },
                backward: &|v, dy| {
                    let (mut dx, mut dw, mut db) = (v[0].clone(), v[1].clone() * 0.0, v[2].clone() * 0.0);
                    backward_input(dy.view(), v[1].view(), dx.view_mut());
                    backward_weight(v[0].view(), dy.view(), dw.view_mut());
                    backward_bias(dy.view(), db.as_slice_mut().unwrap());
                    vec![dx, dw, db]
                },
                jvp: &|v, d| {
                    let mut y = Array2::from_elem((n, o), f64::NAN);
                    jvp(v[0].view(), d[0].view(), v[1].view(), Some(d[1].view()), d[2].as_slice(), y.view_mut());
                    y
                },
            });
        }
    }
}
