//! Layer norm: `y = x̂ ∘ gain + bias`, `x̂ = (x - mean) rstd`, `rstd = 1 / sqrt(var + eps)`.

use super::{ROWS, slice, slice_mut};
use crate::kernel::lanes::lane_sum;
use crate::kernel::{Real, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

/// Normalise each row.
///
/// Shapes: `x`, `y`: (N, C); `gain`, `bias`: (C); `stats`: (N, 2), the row's mean and rstd, for [`backward`].
pub fn forward<F: Real>(
    x: ArrayView2<F>,
    gain: &[F],
    bias: &[F],
    eps: f64,
    mut y: ArrayViewMut2<F>,
    mut stats: ArrayViewMut2<F>,
) {
    let block = ROWS * x.ncols();
    let (x, y, stats) = (slice(&x), slice_mut(&mut y), slice_mut(&mut stats));
    (x.par_chunks(block), y.par_chunks_mut(block), stats.par_chunks_mut(ROWS * 2))
        .into_par_iter()
        .for_each(|(x, y, stats)| forward_rows(x, gain, bias, F::of(eps), y, stats));
}

multiversion! {
    fn forward_rows<F: Real>(x: &[F], gain: &[F], bias: &[F], eps: F, y: &mut [F], stats: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        for ((x, y), stats) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(stats.chunks_exact_mut(2)) {
            let mean = lane_sum([x], |[x]| x) / count;
            let variance = lane_sum([x], |[x]| (x - mean) * (x - mean)) / count;
            let rstd = F::one() / (variance + eps).sqrt();
            for i in 0..c {
                y[i] = ((x[i] - mean) * rstd).mul_add(gain[i], bias[i]);
            }
            stats[0] = mean;
            stats[1] = rstd;
        }
    }
}

/// Backward of [`forward`] to its input: `dx += rstd (dn - x̂ mean(dn ∘ x̂) - mean(dn))`, `dn = dy ∘ gain`.
///
/// It adds to `dx` because a norm's input is always also a residual. On return `dy` holds `dy ∘ x̂` where `dgain` asks for
/// it: the rows whose sum is the gain's gradient (the bias' is the sum of `dy` itself, to be taken before).
///
/// Shapes: `dy`, `x`, `dx`: (N, C); `stats`: (N, 2).
pub fn backward<F: Real>(
    mut dy: ArrayViewMut2<F>,
    x: ArrayView2<F>,
    stats: ArrayView2<F>,
    gain: &[F],
    dgain: bool,
    mut dx: ArrayViewMut2<F>,
) {
    let block = ROWS * x.ncols();
    let (dy, x, stats, dx) = (slice_mut(&mut dy), slice(&x), slice(&stats), slice_mut(&mut dx));
    (dy.par_chunks_mut(block), x.par_chunks(block), stats.par_chunks(ROWS * 2), dx.par_chunks_mut(block))
        .into_par_iter()
        .for_each(|(dy, x, stats, dx)| backward_rows(dy, x, stats, gain, dgain, dx));
}

multiversion! {
    fn backward_rows<F: Real>(dy: &mut [F], x: &[F], stats: &[F], gain: &[F], dgain: bool, dx: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        let rows = dy.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(dx.chunks_exact_mut(c)).zip(stats.chunks_exact(2));
        for (((dy, x), dx), stats) in rows {
            let (mean, rstd) = (stats[0], stats[1]);
            let dn_mean = lane_sum([dy, gain], |[dy, gain]| dy * gain) / count;
            let dn_x_mean = lane_sum([dy, gain, x], |[dy, gain, x]| dy * gain * ((x - mean) * rstd)) / count;
            for i in 0..c {
                let normal = (x[i] - mean) * rstd;
                dx[i] += rstd * (dy[i] * gain[i] - normal * dn_x_mean - dn_mean);
                if dgain {
                    dy[i] *= normal;
                }
            }
        }
    }
}

/// Directional derivative: `ẏ = dx̂ ∘ gain + x̂ ∘ dgain + dbias` with `dx̂ = rstd (ẋ - mean(ẋ) - x̂ mean(x̂ ∘ ẋ))`.
///
/// Shapes: as in [`forward`]; absent tangents are zero; `y_dot` is overwritten.
pub fn jvp<F: Real>(
    x: ArrayView2<F>,
    x_dot: ArrayView2<F>,
    stats: ArrayView2<F>,
    gain: &[F],
    gain_dot: Option<&[F]>,
    bias_dot: Option<&[F]>,
    mut y_dot: ArrayViewMut2<F>,
) {
    let c = x.ncols();
    let block = ROWS * c;
    let zeros = vec![F::zero(); c];
    let (gain_dot, bias_dot) = (gain_dot.unwrap_or(&zeros), bias_dot.unwrap_or(&zeros));
    let (x, x_dot, stats, y_dot) = (slice(&x), slice(&x_dot), slice(&stats), slice_mut(&mut y_dot));
    (x.par_chunks(block), x_dot.par_chunks(block), stats.par_chunks(ROWS * 2), y_dot.par_chunks_mut(block))
        .into_par_iter()
        .for_each(|(x, x_dot, stats, y_dot)| jvp_rows(x, x_dot, stats, gain, gain_dot, bias_dot, y_dot));
}

multiversion! {
    #[allow(clippy::too_many_arguments)]
    fn jvp_rows<F: Real>(x: &[F], x_dot: &[F], stats: &[F], gain: &[F], gain_dot: &[F], bias_dot: &[F], y_dot: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        let rows = x.chunks_exact(c).zip(x_dot.chunks_exact(c)).zip(y_dot.chunks_exact_mut(c)).zip(stats.chunks_exact(2));
        for (((x, x_dot), y_dot), stats) in rows {
            let (mean, rstd) = (stats[0], stats[1]);
            let mean_dot = lane_sum([x_dot], |[x]| x) / count;
            let along = lane_sum([x, x_dot], |[x, x_dot]| (x - mean) * rstd * x_dot) / count;
            for i in 0..c {
                let normal = (x[i] - mean) * rstd;
                let normal_dot = rstd * (x_dot[i] - mean_dot - normal * along);
                y_dot[i] = normal_dot * gain[i] + normal * gain_dot[i] + bias_dot[i];
            }
        }
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
        for (n, c) in [(1, 2), (5, 33), (35, 64), (0, 4)] {
            let run = |v: &[Array2<f64>]| {
                let (mut y, mut stats) = (Array2::zeros((n, c)), Array2::zeros((n, 2)));
                forward(
                    v[0].view(),
                    v[1].as_slice().unwrap(),
                    v[2].as_slice().unwrap(),
                    1e-5,
                    y.view_mut(),
                    stats.view_mut(),
                );
                (y, stats)
            };
            check(&Op {
                inputs: vec![noise(n, c, 1) * 3.0 + 1.0, noise(1, c, 2), noise(1, c, 3)],
                forward: &|v| run(v).0,
                backward: &|v, dy| {
                    let (_, stats) = run(v);
                    let (mut dn, mut dx) = (dy.clone(), Array2::zeros((n, c)));
                    let gain = v[1].as_slice().unwrap();
                    backward(dn.view_mut(), v[0].view(), stats.view(), gain, true, dx.view_mut());
                    let sum = |x: &Array2<f64>| x.sum_axis(ndarray::Axis(0)).insert_axis(ndarray::Axis(0));
                    vec![dx, sum(&dn), sum(dy)]
                },
                jvp: &|v, d| {
                    let (_, stats) = run(v);
                    let mut y = Array2::from_elem((n, c), f64::NAN);
                    let gain = v[1].as_slice().unwrap();
                    jvp(v[0].view(), d[0].view(), stats.view(), gain, d[1].as_slice(), d[2].as_slice(), y.view_mut());
                    y
                },
            });
        }
    }
}
