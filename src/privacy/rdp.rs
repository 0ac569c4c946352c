//! Rényi differential privacy of Poisson-subsampled mechanisms, and its conversion to (eps, delta).

use super::accountant::{Accountant, Bounds, check_delta, ever_sampled, larger};
use super::event::{Event, Step};
use super::normal::ln_above;
use crate::error::{Error, Result};
use rayon::prelude::*;

/// The Rényi accountant: sums the divergences of each order over the steps and converts the best order.
#[derive(Clone, Debug, PartialEq)]
pub struct Rdp {
    orders: Vec<f64>,
}

impl Default for Rdp {
    /// Orders 1.1, 1.2, ..., 10.9, then 11, ..., 63, then 128, 256, 512, 1024: those of dp_accounting.
    fn default() -> Self {
        let tenths = (1..100).map(|x| 1.0 + f64::from(x) / 10.0);
        let whole = (11..64).map(f64::from);
        Self { orders: tenths.chain(whole).chain([128.0, 256.0, 512.0, 1024.0]).collect() }
    }
}

impl Rdp {
    /// The divergence of order `order` > 1 that `event` adds up to, in nats.
    pub fn divergence(&self, event: &Event, order: f64) -> Result<f64> {
        Ok(divergence(&event.steps()?, order))
    }
}

impl Accountant for Rdp {
    fn name(&self) -> &'static str {
        "RDP"
    }

    /// The lower bound is 0: this accountant bounds from above only.
    fn epsilon(&self, event: &Event, delta: f64) -> Result<Bounds> {
        check_delta(delta)?;
        let steps = event.steps()?;
        if ever_sampled(&steps) <= delta {
            return Ok(Bounds { lower: 0.0, upper: 0.0 });
        }
        let best = self
            .orders
            .par_iter()
            .map(|&a| convert(a, divergence(&steps, a), delta))
            .reduce(|| f64::INFINITY, f64::min);
        if !best.is_finite() {
            let count: u64 = steps.iter().map(|(_, c)| *c).fold(0, u64::saturating_add);
            return Err(Error::Privacy(format!(
                "no finite epsilon at delta = {delta:e} after {count} steps: every Rényi divergence is too large to write down; use \
                 more noise (or flips)"
            )));
        }
        Ok(Bounds { lower: 0.0, upper: best })
    }
}

fn divergence(steps: &[(Step, u64)], order: f64) -> f64 {
    steps.iter().map(|&(step, count)| count as f64 * of_step(step, order)).sum()
}

fn of_step(step: Step, order: f64) -> f64 {
    match step {
        Step::Gaussian { noise_multiplier, sampling_rate } => gaussian(sampling_rate, noise_multiplier, order),
        Step::Response { flip, sampling_rate, bits } => response(sampling_rate, flip, bits, order),
    }
}

/// (order, divergence) to epsilon at `delta`: rho + ln(1 - 1/a) - ln(delta a) / (a - 1), at least 0; infinite if that is no number.
///
/// (Canonne, Kamath and Steinke, "The discrete Gaussian", proposition 12.) By Bretagnolle and Huber
/// TV <= sqrt(1 - e^-KL), so a divergence with 1 - e^-rho < delta^2 gives epsilon 0.
fn convert(order: f64, rho: f64, delta: f64) -> f64 {
    if -(-rho).exp_m1() < delta * delta {
        return 0.0;
    }
    larger(0.0, rho + (-1.0 / order).ln_1p() - (delta * order).ln() / (order - 1.0))
}

/// Rényi divergence of order a of (1-q) N(0, s^2) + q N(1, s^2) from N(0, s^2); the other direction is never larger
/// (Mironov, Talwar and Zhang, "Rényi differential privacy of the sampled Gaussian mechanism").
pub fn gaussian(q: f64, sigma: f64, order: f64) -> f64 {
    if q == 0.0 {
        0.0
    } else if q == 1.0 {
        order / (2.0 * sigma * sigma)
    } else if order.fract() == 0.0 {
        ln_moment_whole(q, sigma, order as u32) / (order - 1.0)
    } else {
        ln_moment_fractional(q, sigma, order) / (order - 1.0)
    }
}

/// ln sum_i C(a, i) (1-q)^(a-i) q^i exp((i^2 - i) / (2 s^2)).
///
/// Without the exponentials the sum is 1, and the terms 0 and 1 have none: so it is 1 plus the terms i >= 2 with exp - 1 for exp, which
/// keeps its digits however small q is.
fn ln_moment_whole(q: f64, sigma: f64, order: u32) -> f64 {
    let a = f64::from(order);
    let half = 0.5 / (sigma * sigma);
    let mut ln_choose = 0.0;
    let mut excess = LnSum::default();
    for i in 0..=order {
        let x = f64::from(i);
        if i >= 2 {
            excess.add(ln_choose + (a - x) * (-q).ln_1p() + x * q.ln() + ln_exp_m1((x * x - x) * half), true);
        }
        ln_choose += ((a - x) / (x + 1.0)).ln();
    }
    ln_one_plus(excess.ln())
}

/// The same for any order: the integral falls at z0, where both parts of the mixture are equal, into two binomial
/// series that converge on their side of it (section 3.3 of the same paper).
///
/// ln of the moment is convex in the order, so the chord between the whole orders is above it: that is the answer where the series is too
/// slow, or where what its terms round is more than the chord gives away.
fn ln_moment_fractional(q: f64, sigma: f64, a: f64) -> f64 {
    let below = if a < 2.0 { 0.0 } else { ln_moment_whole(q, sigma, a.floor() as u32) };
    let chord = larger(below, below + a.fract() * (ln_moment_whole(q, sigma, a.ceil() as u32) - below));
    match ln_moment_series(q, sigma, a) {
        Some(series) if series < chord => series,
        _ => chord,
    }
}

/// An upper bound on ln of the moment by the two series: what they sum to and what their terms may have been rounded by.
fn ln_moment_series(q: f64, sigma: f64, a: f64) -> Option<f64> {
    let z0 = sigma * sigma * ((1.0 - q) / q).ln() + 0.5;
    let (ln_q, ln_p) = (q.ln(), (-q).ln_1p());
    let half = 0.5 / (sigma * sigma);
    let (mut ln_choose, mut positive) = (0.0_f64, true);
    let (mut sum, mut rounded) = (LnSum::default(), LnSum::default());
    for i in 0..2000 {
        let x = f64::from(i);
        let j = a - x;
        let mut add = |powers: f64, exponent: f64, tail: f64| {
            let term = ln_choose + powers + exponent + tail;
            sum.add(term, positive);
            // A logarithm made of parts errs by some last bits of the largest of them, and its term by as much relatively.
            rounded.add(term + (64.0 + ln_choose.abs() + powers.abs() + exponent.abs() + tail.abs()).ln(), true);
            term
        };
        let left = add(x * ln_q + j * ln_p, (x * x - x) * half, ln_above((x - z0) / sigma));
        let right = add(j * ln_q + x * ln_p, (j * j - j) * half, ln_above((z0 - j) / sigma));
        if x > a && left.max(right) < sum.ln() - 35.0 {
            let errors = [sum.ln() - 33.0, rounded.ln() + (4.0 * f64::EPSILON).ln()];
            errors.into_iter().for_each(|error| sum.add(error, true));
            let ln = sum.ln();
            return ln.is_finite().then_some(ln.max(0.0));
        }
        let factor = (a - x) / (x + 1.0);
        ln_choose += factor.abs().ln();
        positive ^= factor < 0.0;
    }
    None
}

/// Rényi divergence of `bits` flipped bits on one batch, the larger of the two directions; exact, a sum over bits + 1
/// outcomes. Outcome a has probability m = C(k,a) f^a (1-f)^(k-a) without the record and likelihood ratio
/// r = 1 + u = 1 - q + q ((1-f)/f)^(2a-k) with it.
///
/// The moment is the sum of m r^p, p = order one way and 1 - order the other. As the m u sum to 0 it is
/// 1 + sum m ((1+u)^p - 1 - p u), every term at least 0.
pub fn response(q: f64, flip: f64, bits: u32, order: f64) -> f64 {
    let k = f64::from(bits);
    let ln_odds = (-flip).ln_1p() - flip.ln();
    let (mut with, mut without) = (LnSum::default(), LnSum::default());
    let mut ln_choose = 0.0;
    for i in 0..=bits {
        let x = f64::from(i);
        let ln_mass = ln_choose + x * flip.ln() + (k - x) * (-flip).ln_1p();
        let exponent = (2.0 * x - k) * ln_odds;
        let u = q * exponent.exp_m1();
        let ln_r = match (u.is_finite(), q == 1.0) {
            (true, false) => u.ln_1p(),
            (_, true) => exponent,
            (false, _) => q.ln() + exponent,
        };
        with.add(ln_mass + ln_excess(u, ln_r, order), true);
        without.add(ln_mass + ln_excess(u, ln_r, 1.0 - order), true);
        ln_choose += ((k - x) / (x + 1.0)).ln();
    }
    larger(ln_one_plus(with.ln()), ln_one_plus(without.ln())) / (order - 1.0)
}

/// ln((1+u)^p - 1 - p u) for p outside [0, 1], where it is convex in u and so never below 0; `ln_r` is ln(1+u).
fn ln_excess(u: f64, ln_r: f64, p: f64) -> f64 {
    if u == 0.0 {
        return f64::NEG_INFINITY;
    }
    if (p * u).abs().max(u.abs()) < 0.25 {
        // C(p,2) u^2 + C(p,3) u^3 + ...
        let (mut term, mut sum) = (0.5 * p * (p - 1.0), 0.0);
        for i in 2..60 {
            sum += term;
            term *= u * (p - f64::from(i)) / f64::from(i + 1);
            if term.abs() < 1e-17 * sum {
                break;
            }
        }
        return sum.ln() + 2.0 * u.abs().ln();
    }
    let direct = (p * ln_r).exp_m1() - p * u;
    if direct.is_finite() {
        direct.ln()
    } else if p > 0.0 {
        p * ln_r
    } else {
        // For u > 0 > p the rest is below 0; below u = 0 nothing overflows but the power.
        larger(p * ln_r, (-p).ln() + ln_r)
    }
}

/// ln(e^y - 1), y > 0.
fn ln_exp_m1(y: f64) -> f64 {
    if y < 30.0 { y.exp_m1().ln() } else { y + (-(-y).exp()).ln_1p() }
}

/// ln(1 + e^y), never below it by more than rounding.
fn ln_one_plus(y: f64) -> f64 {
    (if y < 30.0 { y.exp().ln_1p() } else { y + (-y).exp() }) * (1.0 + 1e-12)
}

/// A sum of signed terms given by their logarithms.
#[derive(Clone, Copy)]
struct LnSum {
    top: f64,
    sum: f64,
}

impl Default for LnSum {
    fn default() -> Self {
        Self { top: f64::NEG_INFINITY, sum: 0.0 }
    }
}

impl LnSum {
    fn add(&mut self, ln_term: f64, positive: bool) {
        if ln_term == f64::NEG_INFINITY {
            return;
        }
        if ln_term == f64::INFINITY || ln_term.is_nan() {
            // Beyond f64: so is the sum.
            *self = Self { top: f64::INFINITY, sum: 1.0 };
        }
        if self.top == f64::INFINITY {
            return;
        }
        if ln_term > self.top {
            self.sum *= (self.top - ln_term).exp();
            self.top = ln_term;
        }
        self.sum += if positive { 1.0 } else { -1.0 } * (ln_term - self.top).exp();
    }

    fn ln(&self) -> f64 {
        self.top + self.sum.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moment by Simpson's rule over x, scaled to stay finite.
    fn integrated(q: f64, sigma: f64, a: f64) -> f64 {
        let (from, to, n) = (-12.0 * sigma, a + 12.0 * sigma + 1.0, 400_000);
        let w = (to - from) / n as f64;
        let sum: f64 = (0..=n)
            .map(|i| {
                let x = from + i as f64 * w;
                let weight = if i == 0 || i == n {
                    1.0
                } else if i % 2 == 1 {
                    4.0
                } else {
                    2.0
                };
                let ratio = 1.0 - q + q * ((2.0 * x - 1.0) / (2.0 * sigma * sigma)).exp();
                weight * super::super::normal::density(x / sigma) / sigma * ratio.powf(a)
            })
            .sum();
        (sum * w / 3.0).ln() / (a - 1.0)
    }

    #[test]
    fn whole_and_fractional_orders_agree_with_numeric_integration() {
        for (q, sigma, a) in
            [(0.01, 1.0, 1.5), (0.01, 1.0, 2.0), (0.3, 0.8, 3.7), (0.005, 2.0, 10.3), (0.9, 1.0, 5.0), (0.6, 4.0, 2.2)]
        {
            approx::assert_relative_eq!(gaussian(q, sigma, a), integrated(q, sigma, a), max_relative = 1e-6);
        }
    }

    #[test]
    fn a_tiny_sampling_rate_keeps_its_digits() {
        // To second order in q the moment is 1 + a (a-1) / 2 q^2 E[(L - 1)^2], L the unsampled likelihood ratio.
        for q in [1e-6, 1e-8, 1e-12, 1e-100] {
            for a in [2.0, 3.0, 7.0] {
                let second = 0.5 * a * 1.0_f64.exp_m1();
                approx::assert_relative_eq!(gaussian(q, 1.0, a) / q / q, second, max_relative = 1e-4);
                let f = 0.1_f64;
                let variance = (1.0 - f).powi(2) / f + f * f / (1.0 - f) - 1.0;
                approx::assert_relative_eq!(response(q, f, 1, a) / q / q, 0.5 * a * variance, max_relative = 1e-4);
            }
            // Between whole orders it is a bound: the chord, or the series with what it may have lost.
            for a in [1.1, 1.5, 1.9, 2.5, 10.9] {
                let over = gaussian(q, 1.0, a) / q / q / (0.5 * a * 1.0_f64.exp_m1());
                assert!((1.0..2.0).contains(&over), "q = {q}, order {a}: {over}");
            }
        }
    }

    #[test]
    fn what_overflows_is_infinite() {
        for a in [1.1, 2.0, 10.9, 1024.0] {
            for q in [1e-300, 0.01, 1.0] {
                assert_eq!(gaussian(q, 1e-155, a), f64::INFINITY);
                assert!(response(q, 1e-310, 1, a) >= 0.0 && response(q, 1e-310, 512, a) >= 0.0);
            }
        }
        assert_eq!(convert(2.0, f64::NAN, 1e-5), f64::INFINITY);
        assert_eq!(convert(2.0, f64::INFINITY, 1e-5), f64::INFINITY);
    }

    #[test]
    fn one_unsampled_bit_is_plain_randomised_response() {
        let (f, a): (f64, f64) = (0.1, 3.0);
        let plain = ((1.0 - f).powf(a) * f.powf(1.0 - a) + f.powf(a) * (1.0 - f).powf(1.0 - a)).ln() / (a - 1.0);
        approx::assert_relative_eq!(response(1.0, f, 1, a), plain, max_relative = 1e-11);
        approx::assert_relative_eq!(response(1.0, f, 4, a), 4.0 * plain, max_relative = 1e-11);
    }
}
