//! A measure over the seeds of a row.

use crate::audit::stats::mean_variance;
use serde::Serialize;

/// Mean, least, largest and standard deviation over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean of the values.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Standard deviation with n - 1; 0 for one value.
    pub sd: f64,
    /// How many values.
    pub n: usize,
}

impl Spread {
    /// Of these values; none where there is none.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let (mean, variance) = mean_variance(values);
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { mean, min, max, sd: variance.sqrt(), n: values.len() })
    }
}
