//! `y = x W + b`, with W stored `[in, out]` as GPT-2's Conv1D is, or `[out, in]` as everyone else's Linear.

use super::add_column_sums;
use crate::kernel::{Onto, Real, matmul};
use ndarray::{ArrayView2, ArrayViewMut2};

/// How a weight lies in memory: as its checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[in, out]`: row i is what input i adds to every output.
    InOut,
    /// `[out, in]`: row o is what output o takes of every input.
    OutIn,
}

impl Order {
    /// `w` as (I, O).
    fn forward<F>(self, w: ArrayView2<F>) -> ArrayView2<F> {
        if self == Order::InOut { w } else { w.reversed_axes() }
    }

    /// Inputs and outputs of a weight of this shape.
    pub fn sizes(self, (rows, cols): (usize, usize)) -> (usize, usize) {
        if self == Order::InOut { (rows, cols) } else { (cols, rows) }
    }
}

/// `y = x W + b`.
///
/// Shapes: `x`: (N, I); `w`: (I, O) or (O, I); `bias`: (O) or none; `y`: (N, O).
pub fn forward<F: Real>(x: ArrayView2<F>, w: ArrayView2<F>, order: Order, bias: Option<&[F]>, y: ArrayViewMut2<F>) {
    match bias {
        None => matmul(x, order.forward(w), Onto::Zero, y),
        Some(bias) => matmul(x, order.forward(w), Onto::Row(bias), y),
    }
}

/// Backward of [`forward`] to its input: `dx = dy Wᵀ`, or `dx += dy Wᵀ` where it is `added`: for the other projections of an input that
/// has several.
///
/// Shapes: `dy`: (N, O); `w`: (I, O) or (O, I); `dx`: (N, I).
pub fn backward_input<F: Real>(dy: ArrayView2<F>, w: ArrayView2<F>, order: Order, added: bool, dx: ArrayViewMut2<F>) {
    let onto = if added { Onto::Itself } else { Onto::Zero };
    matmul(dy, order.forward(w).reversed_axes(), onto, dx);
}

/// Backward of [`forward`] to its weight: `dW += xᵀ dy`. Where W is `[out, in]` the factors change places.
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
    (w, order): (ArrayView2<F>, Order),
    w_dot: Option<ArrayView2<F>>,
    bias_dot: Option<&[F]>,
    mut y_dot: ArrayViewMut2<F>,
) {
    forward(x_dot, w, order, bias_dot, y_dot.view_mut());
    if let Some(w_dot) = w_dot {
        matmul(x, order.forward(w_dot), Onto::Itself, y_dot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::Array2;

    #[test]
    fn gradients_and_tangents_agree() {
        let orders = [Order::InOut, Order::OutIn];
        for ((n, i, o), order) in [(1, 1, 1), (4, 3, 5), (17, 33, 9), (0, 2, 3)].into_iter().zip(orders.repeat(2)) {
            let shape = order.sizes((i, o));
            let inputs = vec![noise(n, i, 1), noise(shape.0, shape.1, 2), noise(1, o, 3)];
            check(&Op {
                inputs,
                forward: &|v| {
                    let mut y = Array2::zeros((n, o));
                    forward(v[0].view(), v[1].view(), order, v[2].as_slice(), y.view_mut());
                    y
                },
                backward: &|v, dy| {
                    let (mut dx, mut dw, mut db) = (v[0].clone(), v[1].clone() * 0.0, v[2].clone() * 0.0);
                    backward_input(dy.view(), v[1].view(), order, false, dx.view_mut());
                    match order {
                        Order::InOut => backward_weight(v[0].view(), dy.view(), dw.view_mut()),
                        Order::OutIn => backward_weight(dy.view(), v[0].view(), dw.view_mut()),
                    }
                    backward_bias(dy.view(), db.as_slice_mut().unwrap());
                    let mut twice = dx.clone();
                    backward_input(dy.view(), v[1].view(), order, true, twice.view_mut());
                    assert!((twice - &dx * 2.0).iter().all(|e| e.abs() < 1e-12));
                    vec![dx, dw, db]
                },
                jvp: &|v, d| {
                    let mut y = Array2::from_elem((n, o), f64::NAN);
                    let (w, w_dot) = ((v[1].view(), order), Some(d[1].view()));
                    jvp(v[0].view(), d[0].view(), w, w_dot, d[2].as_slice(), y.view_mut());
                    y
                },
            });
        }
    }
}
