//! What bounds the rounding of a sample's squared norm and of its clipped gradient: the columns of [`crate::ops::sample_norm`] beside the
//! square, whose derivation stands there. Everything here is computed in f32: the counts of roundings are those of the kernels, in whose
//! order drivers are taken to add.

use super::Gpu;
use super::clip::factors_of;
use super::context::{Arg, Context};
use super::kernels;
use super::params::SampleNorm;
use super::tensor::Tensor;
use crate::ops::Segments;
use crate::ops::sample_norm::gamma;

/// The unit roundoff of f32.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// Columns that go into one product of a long sample's Gram matrix: a sum of such products is rounded less often than one long one.
pub(super) const LONG: usize = 256;

/// At most how often a term of such a Gram matrix is rounded.
pub(super) fn long_gram(cols: usize) -> usize {
    1 + cols.min(LONG) + cols.div_ceil(LONG) + 1
}

/// At most how often a term of a product over k is rounded by the kernels that sum 64 terms, 64 such sums, and those.
pub(super) fn deep(k: usize) -> usize {
    1 + k.min(64) + k.div_ceil(64).min(64) + k.div_ceil(64 * 64) + 2
}

/// At most how often one of `parts` workgroups' numbers is rounded until it is part of a sample's sum: within the workgroup, by
/// the lanes that collect the groups', and in their tree.
pub(super) fn gathered(parts: usize) -> usize {
    16 + parts.div_ceil(64) + 8
}

/// At most how often a term of the product `xᵀ dy` of `rows` rows is rounded by the matrix product, its scaling and a second delivery's
/// addition included: rows go by in windows, and a sample's may lie in one more than they fill.
pub(super) fn product_roundings(c: &Context, rows: usize, lines: &[usize]) -> usize {
    rows + c.blocks(0..rows, lines).len() + 5
}

/// What is added to the square of a row of `cols` numbers, so that the least relative error of a Gram matrix covers products and sums that
/// a device flushes to 0: with `a >= |x|² + w` and `b >= |y|² + w`, `γ sqrt(a b) >= γ |x| |y| + γ w`.
pub(super) fn floor(cols: usize) -> f32 {
    (2.0 * cols as f64 * f64::from(f32::MIN_POSITIVE) / gamma(16.0, UNIT)) as f32
}

/// The two numbers that are known beforehand: how often the product to come is rounded, and how often the square was.
pub(super) type Rounding = (usize, usize);

/// The masses of every sample's rows, `|x_t| |dy_t|` or `|dy_t|` alone, and the bounds of sample i's `rounding(i)`, onto rows `first..`
/// of `norms`.
pub(super) fn add(
    gpu: &Gpu,
    (x, dy): (Option<&Tensor>, &Tensor),
    segments: &Segments,
    norms: &Tensor,
    first: usize,
    rounding: impl Fn(usize) -> Rounding,
) {
    let (c, n) = (&gpu.context, segments.rows());
    if n == 0 {
        return;
    }
    let sums = gpu.empty(1, n);
    let widest = dy.cols.max(x.map_or(0, |x| x.cols));
    for rows in c.blocks(0..n, &[widest]) {
        let own = dy.window(rows.clone());
        let other = x.map(|x| (x.window(rows.clone()), x.cols));
        let (work, parts) = (rows.len(), rows.start);
        let params = SampleNorm { work: work as u32, parts: parts as u32, ..factors_of(other, Some((own, dy.cols))) };
        let args = [other.map_or(Arg::Nothing, |(w, _)| Arg::Rows(w)), Arg::Rows(own), Arg::Rows(sums.whole())];
        c.run(&kernels::SAMPLE_MASSES, &[], &args, &params, work, 4.0 * (work * widest) as f64);
    }
    let begins: Vec<u32> = segments.offsets().iter().map(|&o| o as u32).collect();
    // Of squares of rows, their roots, products and sums.
    let up = 1.0 + gamma((widest.div_ceil(256) + gathered(segments.longest()) + 32) as f64, UNIT);
    add_bounds(c, (&sums, &begins), segments, norms, first, (rounding, up));
}

/// Add `up` times the sum of sample i's `masses`, which begin at `begins_i`, and the bounds of its rounding.
pub(super) fn add_bounds(
    c: &Context,
    (masses, begins): (&Tensor, &[u32]),
    segments: &Segments,
    norms: &Tensor,
    first: usize,
    (rounding, up): (impl Fn(usize) -> Rounding, f64),
) {
    if segments.is_empty() {
        return;
    }
    let bounds: Vec<u32> = (0..segments.len())
        .flat_map(|i| {
            let (product, square) = rounding(i);
            [product as f32, (gamma(square as f64, UNIT) * (1.0 + 4.0 * UNIT)) as f32].map(f32::to_bits)
        })
        .collect();
    let to = norms.window(first..first + segments.len());
    let params = SampleNorm { work: segments.len() as u32, start_out: to.start, up: up as f32, ..Default::default() };
    let args = [Arg::Words(begins), Arg::Rows(masses.whole()), Arg::Words(&bounds), Arg::Rows(to)];
    c.run(&kernels::COLLECT_MASSES, &[], &args, &params, segments.len(), 0.0);
}
