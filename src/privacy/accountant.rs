//! What every accountant can be asked.

use super::event::{Event, Step};
use crate::error::{Error, Result};

/// Epsilon lies between the two, both ends included, for the worst pair of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bounds {
    /// No smaller epsilon is true.
    pub lower: f64,
    /// This epsilon is true.
    pub upper: f64,
}

/// Turns events into epsilon at a given delta.
pub trait Accountant {
    /// How statements name it.
    fn name(&self) -> &'static str;

    /// The epsilon of `event` at `delta`, for one record replaced by an empty one: the number of records is public.
    ///
    /// The upper bound is always a finite number. Where none is proven the answer is [`Error::Privacy`], never a guess: what
    /// overflowed or is not a number counts as infinite.
    fn epsilon(&self, event: &Event, delta: f64) -> Result<Bounds>;
}

/// Refuse a delta outside (0, 1).
pub(super) fn check_delta(delta: f64) -> Result<()> {
    if delta > 0.0 && delta < 1.0 {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "delta must lie strictly between 0 and 1, found {delta}: usual choices are well below 1 / records"
        )))
    }
}

/// An upper bound on the probability that the record is in any batch at all, 1 - prod (1 - q)^count.
///
/// Where it is not, both neighbours release the same. So at a delta not below it, epsilon is 0, whatever is released.
pub(super) fn ever_sampled(steps: &[(Step, u64)]) -> f64 {
    let ln_never: f64 = steps.iter().map(|(step, count)| *count as f64 * (-step.sampling_rate()).ln_1p()).sum();
    -(ln_never * (1.0 + 1e-12)).exp_m1() * (1.0 + 1e-12)
}

/// The larger one; what is not a number is infinite.
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::INFINITY } else { a.max(b) }
}
