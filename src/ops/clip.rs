//! From squared norms to clip factors, and the factors onto a gradient's rows.
//!
//! With `n` a sample's norm and `C` the bound, the factor is
//!
//! ```text
//! Abadi        min(1, C / (n + 1e-6))
//! Automatic    C / (n + gamma)             (AUTO-S: every gradient is scaled to nearly C)
//! ```
//!
//! so that `factor n <= C`, where n is never below the norm of what is applied. A parameter's share of it is [`bounds`]: from the numbers of
//! [`super::sample_norm`], which says why, `sqrt(square + e M²) + γ(d) M`. Where nothing cancels, that is a few parts in a hundred thousand above the norm;
//! where a record's tokens cancel, so that the product of its factors is mostly rounding error, n is the size of that error.
//!
//! The rest of the way rounds up: sums of squares, and `n` by [`SLACK`] units in the last place for its root; the factor is rounded down. A product that falls under
//! the smallest normal number is lost or, in part, kept: with rows of at most 2^64 that moves a gradient by less than 1e-12 in f32, which the units in the last
//! place of a bound of at least [`LEAST_BOUND`] hold, and squares lost on the way are less than [`underflow`]², which is added. A norm that is infinite or NaN gets
//! the factor 0, as does one so large that the factor is no safe number, and a factor of 0 *removes* the sample: its rows become 0 even where they were infinite.

use super::Segments;
use super::sample_norm::{COLUMNS, gamma, up};
use crate::kernel::{Real, lanes};
use ndarray::ArrayViewMut2;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Norms are rounded up by this many units in the last place: 1.9e-6 of them in f32.
pub const SLACK: f64 = 16.0;

/// The smallest bound that clipping in f32 can promise.
pub const LEAST_BOUND: f64 = 1e-6;

/// Factors below this remove the sample: products with them might not be normal numbers. None is above its inverse.
pub const LEAST_FACTOR: f64 = 1e-30;

/// What is added to a norm for squares too small for F: 1e-13 in f32.
pub fn underflow<F: Real>() -> f64 {
    F::min_positive_value().f64().sqrt() * 1e6
}

/// How a sample's norm becomes its factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ClipFunction {
    /// C / (n + 0.01): every gradient is scaled to nearly C
    #[default]
    Automatic,
    /// min(1, C / n)
    Abadi,
    /// 1: nothing bounds a record's contribution, so the result is NOT private
    None,
}

/// Keeps the automatic factor of small gradients finite: that of the AUTO-S paper.
pub const GAMMA: f64 = 0.01;

impl ClipFunction {
    /// The factor of a sample of norm `norm` under the bound `bound`.
    pub fn factor(self, norm: f64, bound: f64) -> f64 {
        match self {
            Self::None => 1.0,
            _ if !norm.is_finite() => 0.0,
            Self::Abadi => (bound / (norm + 1e-6)).min(1.0),
            Self::Automatic => bound / (norm + GAMMA),
        }
    }
}

/// `squares_i += n_i²`, with n_i at least the norm of a parameter's share of sample i under the factor 1, rounding included.
///
/// Shapes: `norms`: [`COLUMNS`] numbers a sample; `squares`: one.
pub fn bounds<F: Real>(norms: &[F], squares: &mut [F]) {
    assert_eq!(norms.len(), COLUMNS * squares.len(), "a row for each sample");
    let unit = F::epsilon().f64() / 2.0;
    for (row, total) in norms.chunks_exact(COLUMNS).zip(squares) {
        let [square, mass, roundings, error] = [0, 1, 2, 3].map(|i| row[i].f64());
        let square = square + error * mass * mass;
        // `max` would turn NaN into 0.
        let norm = if square < 0.0 { 0.0 } else { square.sqrt() } + gamma(roundings, unit) * mass;
        *total = up(total.f64() + norm * norm);
    }
}

/// Squared norms to factors, in place. A square that rounding has pushed below 0 counts as 0.
pub fn factors<F: Real>(function: ClipFunction, bound: f64, squares: &mut [F]) {
    let slack = 1.0 + SLACK * F::epsilon().f64();
    for square in squares {
        // `max` would turn NaN into 0.
        let norm = if square.f64() < 0.0 { 0.0 } else { square.f64().sqrt() * slack } + underflow::<F>();
        let factor = function.factor(norm, bound).min(1.0 / LEAST_FACTOR);
        *square = if factor < LEAST_FACTOR { F::zero() } else { down(factor) };
    }
}

/// The largest number of F that is not above x > 0, or close below it.
fn down<F: Real>(x: f64) -> F {
    let y = F::of(x);
    if y.f64() <= x { y } else { y - y * F::epsilon() }
}

/// `x_t *= factor_i` for the rows t of every segment i; a factor of 0 writes 0 whatever was there.
///
/// Shapes: `x`: (N, C); `factors`: one number a segment.
pub fn scale_rows<F: Real>(mut x: ArrayViewMut2<F>, segments: &Segments, factors: &[F]) {
    each_segment(&mut x, segments, factors, |rows, factor| {
        if factor == F::zero() {
            rows.fill(F::zero());
        } else if factor != F::one() {
            lanes::scale(rows, factor);
        }
    });
}

/// `x_t = 0` for the rows t of every segment whose factor is 0: the other factor of a product whose first was scaled, so that
/// no `0 times infinity` is left.
///
/// Shapes: as in [`scale_rows`].
pub fn drop_rows<F: Real>(mut x: ArrayViewMut2<F>, segments: &Segments, factors: &[F]) {
    each_segment(&mut x, segments, factors, |rows, factor| {
        if factor == F::zero() {
            rows.fill(F::zero());
        }
    });
}

fn each_segment<F: Real>(
    x: &mut ArrayViewMut2<F>,
    segments: &Segments,
    factors: &[F],
    f: impl Fn(&mut [F], F) + Sync + Send,
) {
    assert_eq!(segments.len(), factors.len(), "a factor for each segment");
    let cols = x.ncols();
    let mut rest = super::slice_mut(x);
    let mut rows = Vec::with_capacity(segments.len());
    for range in segments.iter() {
        let (own, others) = rest.split_at_mut(range.len() * cols);
        rows.push(own);
        rest = others;
    }
    rows.into_par_iter().zip(factors).for_each(|(rows, &factor)| f(rows, factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;

    #[test]
    fn factors_are_their_formulas() {
        let mut f = [9.0f64, 0.25, 0.0, -1e-9];
        factors(ClipFunction::Abadi, 1.5, &mut f);
        for (got, want) in f.iter().zip([1.5 / (3.0 + 1e-6), 1.0, 1.0, 1.0]) {
            assert!((got - want).abs() < 1e-14, "{got}, not {want}");
        }
        let mut f = [9.0f64, 0.0];
        factors(ClipFunction::Automatic, 1.5, &mut f);
        for (got, want) in f.iter().zip([1.5 / 3.01, 150.0]) {
            assert!((got / want - 1.0).abs() < 1e-14, "{got}, not {want}");
        }
        let mut f = [9.0f32, f32::NAN];
        factors(ClipFunction::None, 1.5, &mut f);
        assert_eq!(f, [1.0, 1.0]);
    }

    #[test]
    fn factor_times_norm_never_exceeds_the_bound() {
        // The squares as f32 sums of rounded squares, the norm and the product in f64 of the same f32 gradient.
        for seed in 0..200 {
            let g = noise::<f32>(1, 257, seed) * 10f32.powi(seed as i32 % 9 - 4);
            let norm = g.iter().map(|&g| g as f64 * g as f64).sum::<f64>().sqrt();
            for bound in [norm * 0.3, norm, norm * (1.0 + 1e-7), 1e-3, 1.0] {
                for function in [ClipFunction::Abadi, ClipFunction::Automatic] {
                    let mut f = [g.iter().map(|g| g * g).sum::<f32>()];
                    factors(function, bound, &mut f);
                    let mut x = g.clone();
                    scale_rows(x.view_mut(), &Segments::from_lengths([1]), &f);
                    let clipped = x.iter().map(|&g| g as f64 * g as f64).sum::<f64>().sqrt();
                    assert!(clipped <= bound, "{function:?}: {clipped:e} exceeds {bound:e}");
                }
            }
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_removed() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut f = [bad, 4.0];
            factors(ClipFunction::Automatic, 1.0, &mut f);
            assert_eq!(f[0], 0.0);
            let mut x = noise::<f32>(3, 2, 1);
            x[[1, 0]] = bad;
            let (last, segments) = (x.row(2).to_owned(), Segments::from_lengths([2, 1]));
            let mut other = x.clone();
            scale_rows(x.view_mut(), &segments, &f);
            drop_rows(other.view_mut(), &segments, &f);
            for x in [&x, &other] {
                assert!(x.iter().take(4).all(|&x| x == 0.0));
            }
            assert_eq!(x.row(2), &last * f[1]);
            assert_eq!(other.row(2), last);
        }
    }
}
