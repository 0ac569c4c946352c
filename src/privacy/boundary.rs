//! Where a falling function meets a target.

use crate::error::{Error, Result};

/// Two settings that have a boundary between them, or, if `low` is 0, one below which it lies.
pub(super) struct Bracket {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Logarithms of their epsilons over the target.
    pub(super) excess: (f64, f64),
}

impl Bracket {
    /// How fast epsilon falls with the setting, in logarithms.
    pub(super) fn slope(&self) -> f64 {
        let seen = (self.excess.0 - self.excess.1) / (self.high / self.low).ln();
        if seen.is_finite() && (0.1..=100.0).contains(&seen) { seen } else { 1.5 }
    }
}

/// ln(epsilon / target): what is above 0 does not suffice, and neither does what is not a number.
pub(super) fn over(epsilon: f64, target: f64) -> f64 {
    if epsilon.is_nan() { f64::INFINITY } else { (epsilon.max(1e-300) / target).ln() }
}

/// Settings with f(low) > target >= f(high) and high / low <= 1 + `precision`, for f falling; low is 0 if the target holds everywhere.
///
/// Brackets around `start` by growing factors, the first 1 + `reach`, then regula falsi in logarithms, with a step of bisection
/// whenever it stalls. What is `enough` ends the search with the closest that is known.
pub(super) fn boundary(
    start: f64,
    largest: f64,
    target: f64,
    precision: f64,
    reach: f64,
    f: &dyn Fn(f64) -> Result<f64>,
    enough: &dyn Fn() -> bool,
) -> Result<Bracket> {
    // No finite epsilon is an answer here: too little noise.
    let excess = |x: f64| match f(x) {
        Ok(e) => Ok(over(e, target)),
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
        if low < 1e-9 || enough() {
            return Ok(Bracket { low: 0.0, high: low, excess: (f64::NAN, at_low) });
        }
        (high, at_high) = (low, at_low);
        low /= growth;
        growth *= growth.min(4.0);
        at_low = excess(low)?;
    }
    let mut bisect = false;
    while high / low > 1.0 + precision && !enough() {
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
    Ok(Bracket { low, high, excess: (at_low, at_high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_enclosed() {
        for root in [1e-3, 0.7, 40.0] {
            let Bracket { low, high, .. } =
                boundary(1.0, 1e9, 2.0, 1e-4, 0.01, &|x| Ok(2.0 * (root / x).powf(1.7)), &|| false).unwrap();
            assert!(low < root && root <= high && high / low <= 1.0 + 1.01 * 1e-4, "{low} {root} {high}");
        }
        assert!(boundary(1.0, 10.0, 2.0, 1e-4, 0.01, &|_| Ok(3.0), &|| false).is_err());
        assert_eq!(boundary(1.0, 10.0, 2.0, 1e-4, 0.01, &|_| Ok(1.0), &|| false).unwrap().low, 0.0);
    }
}
