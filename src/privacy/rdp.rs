//! Rényi differential privacy of Poisson-subsampled mechanisms, and its conversion to (eps, delta).

use super::accountant::{Accountant, Bounds, check_delta};
use super::event::{Event, Step};
use super::normal::ln_above;
use crate::error::Result;

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
        let best = self.orders.iter().map(|&a| convert(a, divergence(&steps, a), delta)).fold(f64::INFINITY, f64::min);
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

/// (order, divergence) to epsilon at `delta`: rho + ln(1 - 1/a) - ln(delta a) / (a - 1), at least 0.
///
/// (Canonne, Kamath and Steinke, "The discrete Gaussian", proposition 12.) By Bretagnolle and Huber
/// TV <= sqrt(1 - e^-KL), so a divergence with 1 - e^-rho < delta^2 gives epsilon 0.
fn convert(order: f64, rho: f64, delta: f64) -> f64 {
    if rho.is_nan() || -(-rho).exp_m1() < delta * delta {
        return if rho.is_nan() { f64::INFINITY } else { 0.0 };
    }
    (rho + (-1.0 / order).ln_1p() - (delta * order).ln() / (order - 1.0)).max(0.0)
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
fn ln_moment_whole(q: f64, sigma: f64, order: u32) -> f64 {
    let a = f64::from(order);
    let mut ln_choose = 0.0;
    let mut sum = LnSum::default();
    for i in 0..=order {
        let x = f64::from(i);
        sum.add(ln_choose + (a - x) * (-q).ln_1p() + x * q.ln() + (x * x - x) / (2.0 * sigma * sigma), true);
        ln_choose += ((a - x) / (x + 1.0)).ln();
    }
    sum.ln().max(0.0)
}

/// The same for any order: the integral falls at z0, where both parts of the mixture are equal, into two binomial
/// series that converge on their side of it (section 3.3 of the same paper).
fn ln_moment_fractional(q: f64, sigma: f64, a: f64) -> f64 {
    let z0 = sigma * sigma * ((1.0 - q) / q).ln() + 0.5;
    let (ln_q, ln_p) = (q.ln(), (-q).ln_1p());
    let (mut ln_choose, mut positive) = (0.0_f64, true);
    let mut sum = LnSum::default();
    for i in 0..2000 {
        let x = f64::from(i);
        let j = a - x;
        let half = 0.5 / (sigma * sigma);
        let left = ln_choose + x * ln_q + j * ln_p + (x * x - x) * half + ln_above((x - z0) / sigma);
        let right = ln_choose + j * ln_q + x * ln_p + (j * j - j) * half + ln_above((z0 - j) / sigma);
        sum.add(left, positive);
        sum.add(right, positive);
        if x > a && left.max(right) < sum.ln() - 35.0 {
            return sum.ln().max(0.0);
        }
        let factor = (a - x) / (x + 1.0);
        ln_choose += factor.abs().ln();
        positive ^= factor < 0.0;
    }
    // Too slow: ln of the moment is convex in the order, so the chord between the whole orders is above it.
    let below = if a < 2.0 { 0.0 } else { ln_moment_whole(q, sigma, a.floor() as u32) };
    let above = ln_moment_whole(q, sigma, a.ceil() as u32);
    below + a.fract() * (above - below)
}

/// Rényi divergence of `bits` flipped bits on one batch, the larger of the two directions; exact, a sum over bits + 1
/// outcomes. Outcome a has probability C(k,a) f^a (1-f)^(k-a) without the record and likelihood ratio
/// 1 - q + q ((1-f)/f)^(2a-k) with it.
pub fn response(q: f64, flip: f64, bits: u32, order: f64) -> f64 {
    let k = f64::from(bits);
    let ln_odds = (-flip).ln_1p() - flip.ln();
    let (mut with, mut without) = (LnSum::default(), LnSum::default());
    let mut ln_choose = 0.0;
    for i in 0..=bits {
        let x = f64::from(i);
        let ln_mass = ln_choose + x * flip.ln() + (k - x) * (-flip).ln_1p();
        let mut ratio = LnSum::default();
        ratio.add((-q).ln_1p(), true);
        ratio.add(q.ln() + (2.0 * x - k) * ln_odds, true);
        with.add(ln_mass + order * ratio.ln(), true);
        without.add(ln_mass + (1.0 - order) * ratio.ln(), true);
        ln_choose += ((k - x) / (x + 1.0)).ln();
    }
    with.ln().max(without.ln()).max(0.0) / (order - 1.0)
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
    fn one_unsampled_bit_is_plain_randomised_response() {
        let (f, a): (f64, f64) = (0.1, 3.0);
        let plain = ((1.0 - f).powf(a) * f.powf(1.0 - a) + f.powf(a) * (1.0 - f).powf(1.0 - a)).ln() / (a - 1.0);
        approx::assert_relative_eq!(response(1.0, f, 1, a), plain, max_relative = 1e-12);
        approx::assert_relative_eq!(response(1.0, f, 4, a), 4.0 * plain, max_relative = 1e-12);
    }
}
