//! From the epsilon one wants to the noise or the flips one needs.

use super::accountant::{Accountant, Bounds};
use super::event::{Event, Fires};
use super::pld::Pld;
use super::rdp::Rdp;
use crate::error::{Error, Result};
use std::cell::RefCell;

/// How close to the true boundary a search ends, relatively.
const PRECISION: f64 = 1e-4;

/// The setting each accountant asks for.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Settings {
    /// Sufficient by RDP.
    pub rdp: f64,
    /// `upper` is proven sufficient, anything below `lower` proven insufficient.
    pub pld: Bounds,
}

/// The noise multiplier at which `steps` sums at `sampling_rate` are (`epsilon`, `delta`)-DP.
pub fn noise_multiplier(epsilon: f64, delta: f64, sampling_rate: f64, steps: u64) -> Result<Settings> {
    settings(epsilon, delta, 1e9, |noise_multiplier| Event::SubsampledGaussian {
        noise_multiplier,
        sampling_rate,
        steps,
    })
}

/// The dither, in units of C, at which FERRET's Gaussian release is (`epsilon`, `delta`)-DP.
pub fn dither(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    settings(epsilon, delta, 1e9, |s| Event::dithered(s, sampling_rate, fires))
}

/// The flip probability at which the bits of `fires` are (`epsilon`, `delta`)-DP.
pub fn flip(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    settings(epsilon, delta, 0.5, |flip| Event::SubsampledRandomisedResponse {
        flip,
        sampling_rate,
        fires: fires.to_vec(),
    })
}

/// The smallest setting near `start` at which `accountant` proves `epsilon` at `delta`.
pub fn sufficient(
    accountant: &dyn Accountant,
    start: f64,
    epsilon: f64,
    delta: f64,
    event: impl Fn(f64) -> Event,
) -> Result<f64> {
    Ok(boundary(start, 1e9, epsilon, PRECISION, 0.01, &|x| Ok(accountant.epsilon(&event(x), delta)?.upper))?.1)
}

fn settings(epsilon: f64, delta: f64, largest: f64, event: impl Fn(f64) -> Event) -> Result<Settings> {
    if !(epsilon > 0.0 && epsilon.is_finite()) {
        return Err(Error::Usage(format!("epsilon must be a positive number, found {epsilon}")));
    }
    let rdp = Rdp::default();
    let pld = Pld::default();
    let rough = Pld { tolerance: 0.02, largest_log2: 16, ..pld };
    let start = 0.5 * largest.min(2.0);
    let search = |start, precision, reach, accountant: &dyn Accountant| {
        boundary(start, largest, epsilon, precision, reach, &|x| Ok(accountant.epsilon(&event(x), delta)?.upper))
    };
    let by_rdp = search(start, PRECISION, 1.0, &rdp)?.1;
    let near = search(by_rdp, 5e-3, 0.1, &rough)?.1;
    // One composition gives both bounds: the search for the lower one begins with what the search for the upper one knew.
    let known = RefCell::new(Vec::<(f64, Bounds)>::new());
    let bounds = |x: f64| {
        if let Some(&(_, found)) = known.borrow().iter().find(|(at, _)| *at == x) {
            return Ok(found);
        }
        let found = pld.epsilon(&event(x), delta)?;
        known.borrow_mut().push((x, found));
        Ok(found)
    };
    let (below, upper) = boundary(near, largest, epsilon, PRECISION, 4e-3, &|x| Ok(bounds(x)?.upper))?;
    Ok(Settings { rdp: by_rdp, pld: Bounds { lower: insufficient(below, epsilon, &bounds)?, upper } })
}

/// A setting just below `from` whose epsilon is proven to be above `target`; 0 if none is found nearby.
fn insufficient(from: f64, target: f64, f: &dyn Fn(f64) -> Result<Bounds>) -> Result<f64> {
    let mut x = from;
    // Each round composes anew; where bounds are this far apart more rounds rarely find anything.
    for _ in 0..3 {
        let lower = match f(x) {
            Ok(bounds) => bounds.lower,
            Err(Error::Privacy(_)) => return Ok(x),
            Err(e) => return Err(e),
        };
        if lower > target {
            return Ok(x);
        }
        // Epsilon falls about as 1 / x, or faster.
        x *= (lower / target).clamp(0.9, 1.0) * (1.0 - PRECISION);
    }
    Ok(0.0)
}

/// (x, y) with f(x) > target >= f(y) and y / x <= 1 + `precision`, for f falling; x is 0 if the target holds everywhere.
///
/// Brackets around `start` by growing factors, the first 1 + `reach`, then regula falsi in logarithms, with a step of bisection
/// whenever it stalls.
fn boundary(
    start: f64,
    largest: f64,
    target: f64,
    precision: f64,
    reach: f64,
    f: &dyn Fn(f64) -> Result<f64>,
) -> Result<(f64, f64)> {
    // No finite epsilon is an answer here: too little noise.
    let excess = |x: f64| match f(x) {
        Ok(e) => Ok((e.max(1e-300) / target).ln()),
        Err(Error::Privacy(_)) => Ok(f64::INFINITY),
        Err(e) => Err(e),
    };
    let (mut high, mut growth) = (start, 1.0 + reach);
    let mut at_high = excess(high)?;
    let (mut low, mut at_low) = (high, at_high);
    while at_high > 0.0 {
        if high >= largest {
            return Err(Error::Privacy(format!(
                "epsilon {target} is out of reach: even {largest} does not suffice; use fewer steps, a lower sampling rate or a larger delta"
            )));
        }
        (low, at_low) = (high, at_high);
        high = (high * growth).min(largest);
        growth *= growth.min(4.0);
        at_high = excess(high)?;
    }
    let mut growth = 1.0 + reach;
    while at_low <= 0.0 {
        if low < 1e-9 {
            return Ok((0.0, low));
        }
        (high, at_high) = (low, at_low);
        low /= growth;
        growth *= growth.min(4.0);
        at_low = excess(low)?;
    }
    let mut bisect = false;
    while high / low > 1.0 + precision {
        let (a, b) = (low.ln(), high.ln());
        let secant = if at_low.is_finite() { (a * at_high - b * at_low) / (at_high - at_low) } else { f64::NAN };
        // Aim a little beside the root, so that the next bracket is short from both sides.
        let edge = 0.45 * precision;
        let x = if bisect || !(secant > a && secant < b) { 0.5 * (a + b) } else { secant.clamp(a + edge, b - edge) };
        let before = b - a;
        let at = excess(x.exp())?;
        if at > 0.0 {
            (low, at_low) = (x.exp(), at);
        } else {
            (high, at_high) = (x.exp(), at);
        }
        bisect = !bisect && high.ln() - low.ln() > 0.5 * before;
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_enclosed() {
        for root in [1e-3, 0.7, 40.0] {
            let (low, high) = boundary(1.0, 1e9, 2.0, PRECISION, 0.01, &|x| Ok(2.0 * (root / x).powf(1.7))).unwrap();
            assert!(low < root && root <= high && high / low <= 1.0 + 1.01 * PRECISION, "{low} {root} {high}");
        }
        assert!(boundary(1.0, 10.0, 2.0, PRECISION, 0.01, &|_| Ok(3.0)).is_err());
        assert_eq!(boundary(1.0, 10.0, 2.0, PRECISION, 0.01, &|_| Ok(1.0)).unwrap().0, 0.0);
    }
}
