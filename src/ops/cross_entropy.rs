//! Softmax cross-entropy of rows of logits: `loss_i = lse(l_i) - l_i[target_i]`.
//!
//! The decoder hands over the logits of a few samples at a time, so those of a whole batch never exist at once.

use super::{slice, slice_mut};
use crate::kernel::{Real, lanes};
use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

/// A target that does not count.
pub const IGNORE: u32 = u32::MAX;

/// Each row's loss; 0 where the target is [`IGNORE`].
///
/// Shapes: `logits`: (N, V); `targets`, `losses`: N.
pub fn forward<F: Real>(logits: ArrayView2<F>, targets: &[u32], losses: &mut [F]) {
    let v = logits.ncols();
    (slice(&logits).par_chunks_exact(v), targets, losses).into_par_iter().for_each(|(row, &target, loss)| {
        *loss = if target == IGNORE { F::zero() } else { log_sum_exp(row) - row[target as usize] };
    });
}

/// Each row's loss, and in place of the logits its gradient times the row's weight: `w_i (softmax(l_i) - onehot)`.
///
/// Shapes: `logits`: (N, V); `targets`, `weights`, `losses`: N.
pub fn forward_backward<F: Real>(mut logits: ArrayViewMut2<F>, targets: &[u32], weights: &[F], losses: &mut [F]) {
    let v = logits.ncols();
    (slice_mut(&mut logits).par_chunks_exact_mut(v), targets, weights, losses).into_par_iter().for_each(
        |(row, &target, &weight, loss)| {
            if target == IGNORE {
                row.fill(F::zero());
                *loss = F::zero();
                return;
            }
            let largest = lanes::max(row);
            let at_target = row[target as usize];
            let total = lanes::exp_shifted(row, largest);
            *loss = largest + total.ln() - at_target;
            lanes::scale(row, weight / total);
            row[target as usize] -= weight;
        },
    );
}

/// Directional derivative of each row's loss: `<softmax(l_i), l̇_i> - l̇_i[target_i]`.
///
/// Shapes: `logits`, `logits_dot`: (N, V); `targets`, `losses_dot`: N.
pub fn jvp<F: Real>(logits: ArrayView2<F>, logits_dot: ArrayView2<F>, targets: &[u32], losses_dot: &mut [F]) {
    let v = logits.ncols();
    (slice(&logits).par_chunks_exact(v), slice(&logits_dot).par_chunks_exact(v), targets, losses_dot)
        .into_par_iter()
        .for_each(|(row, dot, &target, loss_dot)| {
            if target == IGNORE {
                *loss_dot = F::zero();
                return;
            }
            *loss_dot = softmax_dot(row, dot, log_sum_exp(row)) - dot[target as usize];
        });
}

fn log_sum_exp<F: Real>(row: &[F]) -> F {
    let largest = lanes::max(row);
    largest + lanes::sum_exp_shifted(row, largest).ln()
}

crate::kernel::multiversion! {
    /// `<exp(l - lse), d>`.
    fn softmax_dot<F: Real>(l: &[F], d: &[F], lse: F) -> F {
        lanes::lane_sum([l, d], |[l, d]| (l - lse).exp_fast() * d)
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
        for (targets, v) in [(vec![], 3), (vec![0], 1), (vec![2, IGNORE, 0, 39], 40)] {
            let n = targets.len();
            let weights: Vec<f64> = (0..n).map(|i| 0.5 + i as f64).collect();
            let column = |x: Vec<f64>| Array2::from_shape_vec((n, 1), x).unwrap();
            check(&Op {
                inputs: vec![noise(n, v, 1) * 4.0],
                forward: &|x| {
                    let mut losses = vec![f64::NAN; n];
                    forward(x[0].view(), &targets, &mut losses);
                    column(losses)
                },
                backward: &|x, dy| {
                    let (mut d, mut losses, mut plain) = (x[0].clone(), vec![f64::NAN; n], vec![f64::NAN; n]);
                    let by_row: Vec<f64> = dy.iter().zip(&weights).map(|(d, w)| d * w).collect();
                    forward_backward(d.view_mut(), &targets, &by_row, &mut losses);
                    forward(x[0].view(), &targets, &mut plain);
                    assert!(losses.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-12));
                    for (mut row, w) in d.rows_mut().into_iter().zip(&weights) {
                        row /= *w;
                    }
                    vec![d]
                },
                jvp: &|x, d| {
                    let mut losses = vec![f64::NAN; n];
                    jvp(x[0].view(), d[0].view(), &targets, &mut losses);
                    column(losses)
                },
            });
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = Array2::from_shape_vec((1, 3), vec![1e30f32, -1e30, 5e29]).unwrap();
        let mut loss = [f32::NAN];
        forward(logits.view(), &[0], &mut loss);
        assert_eq!(loss, [0.0]);
    }
}
