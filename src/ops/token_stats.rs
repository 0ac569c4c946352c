//! What a row's distribution says about itself and about the token that came: the raw material of audits.
//!
//! With `p = softmax(l_i)` and x the target, a row of statistics is
//! `[ln p(x), E ln p(z), sd ln p(z), max p(z)]`, z drawn from p. With `d = l - max l` and `Z = sum e^d`:
//! `ln p = d - ln Z`, `E = A / Z - ln Z` where `A = sum e^d d`, and `sd^2 = sum e^d (d - A/Z)^2 / Z`, in a second pass because
//! the difference of two sums would lose the digits of a narrow distribution.

use super::slice;
use super::slice_mut;
use crate::kernel::{Real, lanes, multiversion};
use crate::ops::cross_entropy::IGNORE;
use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

/// Statistics a row.
pub const COLUMNS: usize = 4;

/// Each row's statistics; zeros where the target is [`IGNORE`].
///
/// Shapes: `logits`: (N, V); `targets`: N; `stats`: (N, 4).
pub fn forward<F: Real>(logits: ArrayView2<F>, targets: &[u32], mut stats: ArrayViewMut2<F>) {
    let v = logits.ncols();
    (slice(&logits).par_chunks_exact(v), targets, slice_mut(&mut stats).par_chunks_exact_mut(COLUMNS))
        .into_par_iter()
        .for_each(|(row, &target, out)| {
            if target == IGNORE {
                out.fill(F::zero());
                return;
            }
            let largest = lanes::max(row);
            let total = lanes::sum_exp_shifted(row, largest);
            let mean = weighted_sum(row, largest) / total;
            let variance = weighted_squares(row, largest, mean) / total;
            out[0] = row[target as usize] - largest - total.ln();
            out[1] = mean - total.ln();
            out[2] = variance.sqrt();
            out[3] = F::one() / total;
        });
}

/// `l - largest`, no lower than where its exponential has long vanished: 0 times infinity would not be a number.
#[inline(always)]
fn shifted<F: Real>(l: F, largest: F) -> F {
    let (d, low) = (l - largest, F::of(-1e4));
    if d > low { d } else { low }
}

multiversion! {
    /// `sum e^d d`.
    fn weighted_sum<F: Real>(l: &[F], largest: F) -> F {
        lanes::lane_sum([l], |[l]| {
            let d = shifted(l, largest);
            d.exp_fast() * d
        })
    }
}

multiversion! {
    /// `sum e^d (d - mean)^2`.
    fn weighted_squares<F: Real>(l: &[F], largest: F, mean: F) -> F {
        lanes::lane_sum([l], |[l]| {
            let d = shifted(l, largest);
            d.exp_fast() * (d - mean) * (d - mean)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use ndarray::Array2;

    /// The definition, in f64 and without tricks.
    fn by_definition(row: &[f64], target: usize) -> [f64; 4] {
        let total: f64 = row.iter().map(|l| l.exp()).sum();
        let p: Vec<f64> = row.iter().map(|l| l.exp() / total).collect();
        let mean: f64 = p.iter().map(|p| p * p.ln()).sum();
        let variance: f64 = p.iter().map(|p| p * (p.ln() - mean).powi(2)).sum();
        [p[target].ln(), mean, variance.sqrt(), p.iter().copied().fold(0.0, f64::max)]
    }

    #[test]
    fn statistics_are_those_of_the_definition() {
        for (targets, v) in [(vec![], 3), (vec![0], 1), (vec![2, IGNORE, 0, 39, 17], 40), (vec![70, 3], 71)] {
            let n = targets.len();
            let logits = noise::<f64>(n, v, 1) * 3.0;
            let (mut exact, mut single) = (Array2::from_elem((n, 4), f64::NAN), Array2::from_elem((n, 4), f32::NAN));
            forward(logits.view(), &targets, exact.view_mut());
            forward(logits.mapv(|x| x as f32).view(), &targets, single.view_mut());
            for (i, &target) in targets.iter().enumerate() {
                let want = match target {
                    IGNORE => [0.0; 4],
                    t => by_definition(logits.row(i).as_slice().unwrap(), t as usize),
                };
                for (j, want) in want.into_iter().enumerate() {
                    assert!(
                        (exact[[i, j]] - want).abs() < 1e-12,
                        "row {i}, statistic {j}: {} not {want}",
                        exact[[i, j]]
                    );
                    assert!((f64::from(single[[i, j]]) - want).abs() < 2e-5, "row {i}, statistic {j} in f32");
                }
            }
        }
    }

    #[test]
    fn sharp_and_extreme_rows_stay_numbers() {
        let logits =
            Array2::from_shape_vec((3, 3), vec![1e30f32, -1e30, 5e29, 7., 7., 7., 0., f32::NEG_INFINITY, -90.]);
        let mut stats = Array2::from_elem((3, 4), f32::NAN);
        forward(logits.unwrap().view(), &[0, 1, 0], stats.view_mut());
        assert!(stats.iter().all(|x| x.is_finite()), "{stats}");
        assert_eq!(stats.row(0).to_vec(), [0.0, 0.0, 0.0, 1.0]);
        // A uniform row has no spread at all.
        assert!(stats[[1, 2]] < 1e-6 && (stats[[1, 0]] - stats[[1, 1]]).abs() < 1e-6);
    }
}
