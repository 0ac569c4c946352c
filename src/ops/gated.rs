//! The gated hidden layer of an MLP: `h = act(gate) ∘ up`.
//!
//! Gate and up are blocks of columns: the halves of one projection (Phi-3) or two (Llama).

use super::activation::{Activation, by_kind};
use super::{ROWS, for_row_blocks};
use crate::kernel::{Real, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;

by_kind! {
    fn products(curve; gate: &[F], up: &[F], h: &mut [F]) {
        for ((h, &gate), &up) in h.iter_mut().zip(gate).zip(up) {
            *h = curve(gate).0 * up;
        }
    }
}

by_kind! {
    fn gradients(curve; gate: &[F], up: &[F], dh: &[F], dgate: &mut [F], dup: &mut [F]) {
        for ((((&gate, &up), &dh), dgate), dup) in gate.iter().zip(up).zip(dh).zip(dgate).zip(dup) {
            let (value, slope) = curve(gate);
            *dgate = dh * up * slope;
            *dup = dh * value;
        }
    }
}

by_kind! {
    fn tangents(curve; gate: &[F], up: &[F], gate_dot: &[F], up_dot: &[F], h_dot: &mut [F]) {
        for ((((&gate, &up), &gate_dot), &up_dot), h_dot) in gate.iter().zip(up).zip(gate_dot).zip(up_dot).zip(h_dot) {
            let (value, slope) = curve(gate);
            *h_dot = slope * gate_dot * up + value * up_dot;
        }
    }
}

/// Row `i`, whose columns are adjacent.
fn row<'a, F>(x: &'a ArrayView2<F>, i: usize) -> &'a [F] {
    x.row(i).to_slice().expect("adjacent columns")
}

/// `h = act(gate) ∘ up`.
///
/// Shapes: all (N, I); rows of `gate` and `up` may lie apart.
pub fn forward<F: Real>(kind: Activation, gate: ArrayView2<F>, up: ArrayView2<F>, mut h: ArrayViewMut2<F>) {
    assert_eq!((gate.dim(), up.dim()), (h.dim(), h.dim()), "shapes of a gate and what it gates");
    let cols = h.ncols().max(1);
    for_row_blocks(&mut h, |first, block| {
        for (i, h) in block.chunks_exact_mut(cols).enumerate() {
            products(kind, row(&gate, first + i), row(&up, first + i), h);
        }
    });
}

/// Backward of [`forward`]: `dgate = dh ∘ up ∘ act'(gate)`, `dup = dh ∘ act(gate)`.
///
/// Shapes: all (N, I); rows of all but `dh` may lie apart.
pub fn backward<F: Real>(
    kind: Activation,
    gate: ArrayView2<F>,
    up: ArrayView2<F>,
    dh: ArrayView2<F>,
    mut dgate: ArrayViewMut2<F>,
    mut dup: ArrayViewMut2<F>,
) {
    assert_eq!((gate.dim(), up.dim()), (dh.dim(), dh.dim()), "shapes of a gate and what it gates");
    assert_eq!((dgate.dim(), dup.dim()), (dh.dim(), dh.dim()), "shapes of a gate's gradients");
    let dups = dup.axis_chunks_iter_mut(Axis(0), ROWS).into_par_iter();
    dgate.axis_chunks_iter_mut(Axis(0), ROWS).into_par_iter().zip(dups).enumerate().for_each(
        |(b, (mut dg, mut du))| {
            for (i, (dgate, dup)) in dg.rows_mut().into_iter().zip(du.rows_mut()).enumerate() {
                let i = b * ROWS + i;
                let (dgate, dup) =
                    (dgate.into_slice().expect("adjacent columns"), dup.into_slice().expect("adjacent columns"));
                gradients(kind, row(&gate, i), row(&up, i), row(&dh, i), dgate, dup);
            }
        },
    );
}

/// Directional derivative: `ḣ = act'(gate) ∘ ġ ∘ up + act(gate) ∘ u̇`.
///
/// Shapes: all (N, I); rows of the inputs may lie apart; `h_dot` is overwritten.
pub fn jvp<F: Real>(
    kind: Activation,
    [gate, up]: [ArrayView2<F>; 2],
    [gate_dot, up_dot]: [ArrayView2<F>; 2],
    mut h_dot: ArrayViewMut2<F>,
) {
    assert_eq!((gate.dim(), up.dim()), (h_dot.dim(), h_dot.dim()), "shapes of a gate and what it gates");
    let cols = h_dot.ncols().max(1);
    for_row_blocks(&mut h_dot, |first, block| {
        for (i, h_dot) in block.chunks_exact_mut(cols).enumerate() {
            let i = first + i;
            tangents(kind, row(&gate, i), row(&up, i), row(&gate_dot, i), row(&up_dot, i), h_dot);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::{Array2, array, s};

    #[test]
    fn equals_the_definition() {
        let (gate, up) = (array![[-2.0f64, 0.0, 0.5, 3.0]], array![[1.5, -2.0, 0.25, -1.0]]);
        let mut h = Array2::zeros((1, 4));
        forward(Activation::Silu, gate.view(), up.view(), h.view_mut());
        for ((&g, &u), &h) in gate.iter().zip(&up).zip(&h) {
            assert!((h - g / (1.0 + f64::exp(-g)) * u).abs() < 1e-12);
        }
    }

    /// On halves of one matrix and on two.
    #[test]
    fn gradients_and_tangents_agree() {
        for kind in Activation::ALL {
            for (n, c) in [(1, 1), (5, 7), (40, 33), (0, 3)] {
                let halves = |x: &Array2<f64>| (x.slice(s![.., ..c]).to_owned(), x.slice(s![.., c..]).to_owned());
                check(&Op {
                    inputs: vec![noise(n, 2 * c, 1) * 2.0],
                    forward: &|v| {
                        let (gate, up) = halves(&v[0]);
                        let mut h = Array2::zeros((n, c));
                        forward(kind, gate.view(), up.view(), h.view_mut());
                        h
                    },
                    backward: &|v, dh| {
                        let mut d = Array2::from_elem((n, 2 * c), f64::NAN);
                        let (gate, up) = v[0].view().split_at(Axis(1), c);
                        let (dgate, dup) = d.view_mut().split_at(Axis(1), c);
                        backward(kind, gate, up, dh.view(), dgate, dup);
                        vec![d]
                    },
                    jvp: &|v, d| {
                        let [x, x_dot] = [&v[0], &d[0]].map(|x| x.view().split_at(Axis(1), c));
                        let mut h_dot = Array2::from_elem((n, c), f64::NAN);
                        jvp(kind, [x.0, x.1], [x_dot.0, x_dot.1], h_dot.view_mut());
                        h_dot
                    },
                });
            }
        }
    }
}
