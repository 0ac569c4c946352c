//! Root mean square norm: `y = x̂ ∘ gain`, `x̂ = x rstd`, `rstd = 1 / sqrt(mean(x²) + eps)`.
//!
//! A row may hold several groups of columns that are normalised each on their own with one gain, as the heads of Qwen3's queries and
//! keys are: there are as many as the gain fits into the row.

use super::{ROWS, for_row_blocks, slice, slice_mut};
use crate::kernel::lanes::lane_sum;
use crate::kernel::{Real, lanes, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

/// Groups of `gain`'s width in rows of `cols` columns.
pub fn groups(cols: usize, gain: usize) -> usize {
    assert!(gain > 0 && cols.is_multiple_of(gain), "rows of {cols} columns are no whole groups of {gain}");
    cols / gain
}

/// Normalise each group of each row.
///
/// Shapes: `x`, `y`: (N, G C); `gain`: (C); `stats`: (N, G), the rstd, for [`backward`].
pub fn forward<F: Real>(x: ArrayView2<F>, gain: &[F], eps: f64, mut y: ArrayViewMut2<F>, mut stats: ArrayViewMut2<F>) {
    let (block, groups) = (ROWS * x.ncols(), groups(x.ncols(), gain.len()));
    let (x, y, stats) = (slice(&x), slice_mut(&mut y), slice_mut(&mut stats));
    (x.par_chunks(block), y.par_chunks_mut(block), stats.par_chunks_mut(ROWS * groups))
        .into_par_iter()
        .for_each(|(x, y, stats)| forward_rows(x, gain, F::of(eps), y, stats));
}

multiversion! {
    fn forward_rows<F: Real>(x: &[F], gain: &[F], eps: F, y: &mut [F], stats: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        for ((x, y), stats) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(stats) {
            let rstd = F::one() / (lane_sum([x], |[x]| x * x) / count + eps).sqrt();
            for i in 0..c {
                y[i] = x[i] * rstd * gain[i];
            }
            *stats = rstd;
        }
    }
}

/// Backward of [`forward`] to its input: `dx += rstd (dn - x̂ mean(dn ∘ x̂))`, `dn = dy ∘ gain`.
///
/// It adds to `dx` because a norm's input is mostly also a residual. On return `dy` holds `dy ∘ x̂` where `dgain` asks for it: the
/// rows whose sum, over groups too, is the gain's gradient.
///
/// Shapes: `dy`, `x`, `dx`: (N, G C); `stats`: (N, G).
pub fn backward<F: Real>(
    mut dy: ArrayViewMut2<F>,
    x: ArrayView2<F>,
    stats: ArrayView2<F>,
    gain: &[F],
    dgain: bool,
    mut dx: ArrayViewMut2<F>,
) {
    let (block, groups) = (ROWS * x.ncols(), groups(x.ncols(), gain.len()));
    let (dy, x, stats, dx) = (slice_mut(&mut dy), slice(&x), slice(&stats), slice_mut(&mut dx));
    (dy.par_chunks_mut(block), x.par_chunks(block), stats.par_chunks(ROWS * groups), dx.par_chunks_mut(block))
        .into_par_iter()
        .for_each(|(dy, x, stats, dx)| backward_rows(dy, x, stats, gain, dgain, dx));
}

multiversion! {
    fn backward_rows<F: Real>(dy: &mut [F], x: &[F], stats: &[F], gain: &[F], dgain: bool, dx: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        let rows = dy.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(dx.chunks_exact_mut(c)).zip(stats);
        for (((dy, x), dx), &rstd) in rows {
            let along = lane_sum([dy, gain, x], |[dy, gain, x]| dy * gain * (x * rstd)) / count;
            for i in 0..c {
                let normal = x[i] * rstd;
                dx[i] += rstd * (dy[i] * gain[i] - normal * along);
                if dgain {
                    dy[i] *= normal;
                }
            }
        }
    }
}

/// `y_i += sum of row i's groups`: what [`backward`] leaves in `dy`, as rows of the gain's gradient.
///
/// Shapes: `x`: (N, G C); `y`: (N, C).
pub fn fold<F: Real>(x: ArrayView2<F>, mut y: ArrayViewMut2<F>) {
    let (cols, width, x) = (x.ncols(), y.ncols(), slice(&x));
    for_row_blocks(&mut y, |first, block| {
        for (y, x) in block.chunks_exact_mut(width).zip(x[first * cols..].chunks_exact(cols)) {
            x.chunks_exact(width).for_each(|x| lanes::add(x, y));
        }
    });
}

/// Directional derivative: `ẏ = dx̂ ∘ gain + x̂ ∘ dgain` with `dx̂ = rstd (ẋ - x̂ mean(x̂ ∘ ẋ))`.
///
/// Shapes: as in [`forward`]; an absent tangent is zero; `y_dot` is overwritten.
pub fn jvp<F: Real>(
    x: ArrayView2<F>,
    x_dot: ArrayView2<F>,
    stats: ArrayView2<F>,
    gain: &[F],
    gain_dot: Option<&[F]>,
    mut y_dot: ArrayViewMut2<F>,
) {
    let (block, groups) = (ROWS * x.ncols(), groups(x.ncols(), gain.len()));
    let zeros = vec![F::zero(); gain.len()];
    let gain_dot = gain_dot.unwrap_or(&zeros);
    let (x, x_dot, stats, y_dot) = (slice(&x), slice(&x_dot), slice(&stats), slice_mut(&mut y_dot));
    (x.par_chunks(block), x_dot.par_chunks(block), stats.par_chunks(ROWS * groups), y_dot.par_chunks_mut(block))
        .into_par_iter()
        .for_each(|(x, x_dot, stats, y_dot)| jvp_rows(x, x_dot, stats, gain, gain_dot, y_dot));
}

multiversion! {
    fn jvp_rows<F: Real>(x: &[F], x_dot: &[F], stats: &[F], gain: &[F], gain_dot: &[F], y_dot: &mut [F]) {
        let c = gain.len();
        let count = F::of(c as f64);
        let rows = x.chunks_exact(c).zip(x_dot.chunks_exact(c)).zip(y_dot.chunks_exact_mut(c)).zip(stats);
        for (((x, x_dot), y_dot), &rstd) in rows {
            let along = lane_sum([x, x_dot], |[x, x_dot]| x * rstd * x_dot) / count;
            for i in 0..c {
                let normal = x[i] * rstd;
                y_dot[i] = rstd * (x_dot[i] - normal * along) * gain[i] + normal * gain_dot[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::{Array2, Axis};

    fn run(v: &[Array2<f64>], groups: usize, eps: f64) -> (Array2<f64>, Array2<f64>) {
        let (mut y, mut stats) = (Array2::zeros(v[0].dim()), Array2::zeros((v[0].nrows(), groups)));
        forward(v[0].view(), v[1].as_slice().unwrap(), eps, y.view_mut(), stats.view_mut());
        (y, stats)
    }

    #[test]
    fn equals_the_definition() {
        let (n, groups, c) = (19, 3, 7);
        let v = [noise::<f64>(n, groups * c, 1), noise(1, c, 2)];
        let (y, _) = run(&v, groups, 0.5);
        for ((i, j), &got) in y.indexed_iter() {
            let first = j / c * c;
            let mean = (first..first + c).map(|j| v[0][[i, j]] * v[0][[i, j]]).sum::<f64>() / c as f64;
            let want = v[0][[i, j]] / (mean + 0.5).sqrt() * v[1][[0, j % c]];
            assert!((got - want).abs() < 1e-12, "row {i} column {j}: {got}, not {want}");
        }
    }

    #[test]
    fn gradients_and_tangents_agree() {
        for (n, groups, c) in [(1, 1, 1), (5, 1, 33), (35, 1, 64), (0, 2, 4), (18, 3, 5)] {
            check(&Op {
                inputs: vec![noise(n, groups * c, 1) * 3.0 + 1.0, noise(1, c, 2)],
                forward: &|v| run(v, groups, 1e-2).0,
                backward: &|v, dy| {
                    let (_, stats) = run(v, groups, 1e-2);
                    let (mut dn, mut dx) = (dy.clone(), Array2::zeros(dy.dim()));
                    backward(dn.view_mut(), v[0].view(), stats.view(), v[1].as_slice().unwrap(), true, dx.view_mut());
                    let mut rows = Array2::zeros((n, c));
                    fold(dn.view(), rows.view_mut());
                    vec![dx, rows.sum_axis(Axis(0)).insert_axis(Axis(0))]
                },
                jvp: &|v, d| {
                    let (_, stats) = run(v, groups, 1e-2);
                    let mut y = Array2::from_elem(v[0].dim(), f64::NAN);
                    let gain = v[1].as_slice().unwrap();
                    jvp(v[0].view(), d[0].view(), stats.view(), gain, d[1].as_slice(), y.view_mut());
                    y
                },
            });
        }
    }
}
