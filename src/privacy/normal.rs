//! The normal distribution's tails, to full relative accuracy, and the Gaussian mechanism's hockey-stick divergence.

use std::f64::consts::{PI, SQRT_2};

/// Density of the standard normal.
pub fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// P(Z > x) of a standard normal Z.
pub fn above(x: f64) -> f64 {
    0.5 * libm::erfc(x / SQRT_2)
}

/// Mills' ratio P(Z > x) / density(x).
///
/// From x = 5 on by the continued fraction 1/(x + 1/(x + 2/(x + 3/(x + ...)))), as far as it still changes a bit of an f64.
pub fn mills(x: f64) -> f64 {
    if x < 5.0 {
        return above(x) / density(x);
    }
    let terms = match x {
        ..8.0 => 26,
        ..12.0 => 16,
        ..20.0 => 11,
        ..50.0 => 8,
        _ => 5,
    };
    fraction(x, terms)
}

/// The continued fraction of Mills' ratio, cut off after so many terms.
fn fraction(x: f64, terms: u32) -> f64 {
    1.0 / (1..=terms).rev().fold(x, |tail, k| x + f64::from(k) / tail)
}

/// ln P(Z > x), without underflow.
pub fn ln_above(x: f64) -> f64 {
    if x < 5.0 { above(x).ln() } else { mills(x).ln() - 0.5 * x * x - 0.5 * (2.0 * PI).ln() }
}

/// Hockey-stick divergence of N(1, sigma^2) from N(0, sigma^2) at e^l, l >= 0, and a bound on its rounding error.
///
/// H = P(Z > u) - e^l P(Z > v), u = sigma l - 1/(2 sigma), v = sigma l + 1/(2 sigma). As density(u) = e^l density(v),
/// the second term is density(u) mills(v); for u > 0 the first is density(u) mills(u), so that far tails keep their digits.
pub fn hockey_stick(sigma: f64, l: f64) -> (f64, f64) {
    Stick::new(sigma, l).value
}

/// [`hockey_stick`] with the tails that it was made of: each takes as long as all the rest.
pub struct Stick {
    /// The divergence and a bound on its rounding error.
    pub value: (f64, f64),
    ends: (f64, f64),
    above: (Option<f64>, Option<f64>),
}

impl Stick {
    /// The divergence at e^l.
    pub fn new(sigma: f64, l: f64) -> Self {
        let (u, v) = (sigma * l - 0.5 / sigma, sigma * l + 0.5 / sigma);
        if u < -40.0 {
            // 1 - H = P(Z < u) + e^l P(Z > v) < 2 P(Z < u) < e^-800.
            return Self { value: (1.0, f64::EPSILON), ends: (u, v), above: (None, None) };
        }
        let above_u = (u <= 0.0).then(|| above(u));
        // Below 5 Mills' ratio is the tail over the density.
        let above_v = (v < 5.0).then(|| above(v));
        let first = above_u.unwrap_or_else(|| density(u) * mills(u));
        let second = density(u) * above_v.map_or_else(|| mills(v), |tail| tail / density(v));
        let error = f64::EPSILON * (16.0 + 2.0 * u.abs() * v) * (first + second);
        Self { value: ((first - second).max(0.0), error), ends: (u, v), above: (above_u, above_v) }
    }

    /// P(Z > u).
    pub fn above_u(&self) -> f64 {
        self.above.0.unwrap_or_else(|| above(self.ends.0))
    }

    /// P(Z > v).
    pub fn above_v(&self) -> f64 {
        self.above.1.unwrap_or_else(|| above(self.ends.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mills_ratio_is_smooth_where_its_two_forms_meet_and_tends_to_one_over_x() {
        let at = |x: f64| above(x) / density(x);
        for x in [5.0, 6.0, 8.0, 12.0] {
            approx::assert_relative_eq!(mills(x), at(x), max_relative = 1e-12);
        }
        approx::assert_relative_eq!(mills(1e4) * 1e4, 1.0, max_relative = 1e-7);
        approx::assert_relative_eq!(ln_above(40.0), -804.608_442_013_754, max_relative = 1e-12);
    }

    #[test]
    fn mills_ratio_has_as_many_terms_as_change_a_bit() {
        for x in (0..4000).map(|i| 5.0 + 0.02 * f64::from(i)).chain([100.0, 1e3, 1e6, 1e200]) {
            approx::assert_relative_eq!(mills(x), fraction(x, 400), max_relative = f64::EPSILON);
        }
    }

    #[test]
    fn next_to_no_noise_tells_everything() {
        for sigma in [1e-3, 1e-155, 1e-300] {
            let (value, error) = hockey_stick(sigma, 700.0);
            assert!(value - error > 0.999_999 && value <= 1.0, "{sigma}: {value} {error}");
        }
    }

    #[test]
    fn hockey_stick_integrates_its_own_slope() {
        // dH/dl = -e^l P(Z > v): Simpson's rule over the slope against the difference of the values.
        for (sigma, a, b) in [(1.0, 0.0, 1.0), (0.3, 2.0, 9.0), (5.0, 0.1, 0.9)] {
            let slope = |l: f64| -l.exp() * above(sigma * l + 0.5 / sigma);
            let n = 2000;
            let w = (b - a) / n as f64;
            let integral: f64 = (0..=n)
                .map(|i| {
                    let weight = if i == 0 || i == n {
                        1.0
                    } else if i % 2 == 1 {
                        4.0
                    } else {
                        2.0
                    };
                    weight * slope(a + i as f64 * w) * w / 3.0
                })
                .sum();
            let difference = hockey_stick(sigma, b).0 - hockey_stick(sigma, a).0;
            approx::assert_relative_eq!(integral, difference, max_relative = 1e-9);
        }
    }
}
