//! What every accountant can be asked.

use super::event::Event;
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

    /// The epsilon of `event` at `delta`, for neighbours that differ by one added or removed record.
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
