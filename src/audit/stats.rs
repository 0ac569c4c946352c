//! The special functions and small generators that the intervals stand on.

use crate::rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A seeded generator for simulations and splits. Not for secrets: anyone who knows the seed knows the stream.
#[derive(Debug, Clone)]
pub struct SeededRng(ChaCha8Rng);

impl SeededRng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform in the open interval (0, 1), 53 bits.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal, by inversion: one uniform a draw, so streams stay aligned.
    pub fn normal(&mut self) -> f64 {
        phi_inv(self.uniform())
    }

    /// Uniform in `0..n`, without bias. `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "Seeded::below(0)");
        rng::below(n, || self.0.next_u64())
    }

    /// Put `items` into a random order, each equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        rng::shuffle(items, || self.0.next_u64());
    }
}

/// The standard normal distribution function.
pub fn phi(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// The inverse of [`phi`]: Acklam's rational approximation and one Halley step, to about 1e-15 relative.
/// 0 and 1 map to the infinities.
pub fn phi_inv(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 4] = [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00];
    if p.is_nan() || !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p == 0.0 {
        return f64::NEG_INFINITY;
    }
    if p == 1.0 {
        return f64::INFINITY;
    }
    // The upper half by symmetry: 1 - p is exact for p >= 1/2.
    if p > 0.5 {
        return -phi_inv(1.0 - p);
    }
    let x = if p < 0.02425 {
        let q = (-2.0 * p.ln()).sqrt();
        (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5])
            / ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1.0)
    } else {
        let q = p - 0.5;
        let r = q * q;
        (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q
            / (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1.0)
    };
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if density == 0.0 {
        return x;
    }
    let u = (phi(x) - p) / density;
    x - u / (1.0 + 0.5 * x * u)
}

/// `ln C(n, k)`.
pub fn ln_choose(n: f64, k: f64) -> f64 {
    libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0)
}

/// The regularised incomplete beta function `I_x(a, b)`, by Lentz's continued fraction.
pub fn beta_inc(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let ln_front = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (-x).ln_1p();
    if x < (a + 1.0) / (a + b + 2.0) {
        (ln_front.exp() * beta_fraction(a, b, x) / a).min(1.0)
    } else {
        (1.0 - ln_front.exp() * beta_fraction(b, a, 1.0 - x) / b).max(0.0)
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let guard = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    // Needs about sqrt(max(a, b)) rounds near the mean.
    for m in 1..100_000 {
        let m = f64::from(m);
        for step in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / guard(1.0 + step * d);
            c = guard(1.0 + step / c);
            h *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-16 * 4.0 {
            break;
        }
    }
    h
}

/// `P[Binomial(n, p) >= k]`.
pub fn binomial_upper(n: u64, p: f64, k: u64) -> f64 {
    if k == 0 {
        1.0
    } else if k > n {
        0.0
    } else {
        beta_inc(k as f64, (n - k) as f64 + 1.0, p)
    }
}

/// `ln P[Binomial(n, p) = k]`.
pub fn ln_binomial_pmf(n: u64, p: f64, k: u64) -> f64 {
    let (n, k) = (n as f64, k as f64);
    let part = |count: f64, ln: f64| if count == 0.0 { 0.0 } else { count * ln };
    ln_choose(n, k) + part(k, p.ln()) + part(n - k, (-p).ln_1p())
}

/// The largest `p` with `P[Binomial(n, p) >= k] <= alpha`: the one-sided exact lower limit of Clopper and Pearson.
/// `n` may be fractional (an effective sample size).
pub fn proportion_lower(k: f64, n: f64, alpha: f64) -> f64 {
    if k <= 0.0 { 0.0 } else { bisect(0.0, 1.0, |p| beta_inc(k, n - k + 1.0, p) <= alpha) }
}

/// The one-sided exact upper limit of Clopper and Pearson.
pub fn proportion_upper(k: f64, n: f64, alpha: f64) -> f64 {
    1.0 - proportion_lower(n - k, n, alpha)
}

/// The last point of `[low, high]` where `holds` is still true, for a predicate true at `low` that turns false once.
pub fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if holds(middle) { low = middle } else { high = middle }
    }
    low
}

/// Simpson's rule on `steps` (even) intervals.
pub fn simpson(from: f64, to: f64, steps: u32, f: impl Fn(f64) -> f64) -> f64 {
    let width = (to - from) / f64::from(steps);
    let weight = |i: u32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
    (0..=steps).map(|i| weight(i) * f(from + f64::from(i) * width)).sum::<f64>() * width / 3.0
}

/// Binary entropy in nats, `h(p) = -p ln p - (1-p) ln(1-p)`.
pub fn entropy(p: f64) -> f64 {
    let term = |q: f64, ln: f64| if q <= 0.0 { 0.0 } else { -q * ln };
    term(p, p.ln()) + term(1.0 - p, (-p).ln_1p())
}

/// Binary relative entropy in nats, `kl(p || q)`.
pub fn relative_entropy(p: f64, q: f64) -> f64 {
    let term = |a: f64, b: f64| if a <= 0.0 { 0.0 } else { a * (a / b).ln() };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

/// Mean, and variance with `n - 1` in the denominator (0 for a single value).
pub fn mean_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    (mean, if values.len() > 1 { squares / (n - 1.0) } else { 0.0 })
}

/// Holm's step-down adjustment: reject the hypotheses whose adjusted p-value is at most alpha and the chance of any
/// wrong rejection is at most alpha, whatever their dependence.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut running: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        running = running.max((p_values.len() - rank) as f64 * p_values[index]).min(1.0);
        adjusted[index] = running;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_quantile_inverts_the_distribution() {
        assert!((phi_inv(0.975) - 1.959963984540054).abs() < 1e-14);
        assert!((phi_inv(1e-10) + 6.361340902404056).abs() < 1e-12);
        for i in 1..1000 {
            let p = f64::from(i) / 1000.0;
            assert!((phi(phi_inv(p)) - p).abs() < 1e-15);
        }
    }

    #[test]
    fn binomial_tail_is_the_sum_of_its_terms() {
        for (n, p) in [(1u64, 0.3), (7, 0.5), (40, 0.02), (300, 0.7)] {
            let mut sum = 0.0;
            for k in (0..=n).rev() {
                sum += ln_binomial_pmf(n, p, k).exp();
                let tail = binomial_upper(n, p, k);
                assert!((tail - sum).abs() < 1e-12, "n={n} p={p} k={k}: {tail} against {sum}");
            }
        }
        // Far in the tail the relative error still matters: P[Bin(200, 1/2) = 200] = 2^-200.
        assert!((binomial_upper(200, 0.5, 200).ln() + 200.0 * 2f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn clopper_pearson_matches_tables() {
        // 3 of 10: (0.06674, 0.65245); 0 of 20: upper 0.16843.
        assert!((proportion_lower(3.0, 10.0, 0.025) - 0.066739).abs() < 1e-5);
        assert!((proportion_upper(3.0, 10.0, 0.025) - 0.652453).abs() < 1e-5);
        assert!((proportion_upper(0.0, 20.0, 0.025) - (1.0 - 0.025f64.powf(0.05))).abs() < 1e-12);
        assert_eq!(proportion_lower(0.0, 20.0, 0.025), 0.0);
        assert_eq!(proportion_upper(20.0, 20.0, 0.025), 1.0);
    }

    #[test]
    fn holm_by_hand() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((got - want).abs() < 1e-12);
        }
    }

    #[test]
    fn below_is_uniform() {
        let mut rng = SeededRng::new(1);
        let mut counts = [0u32; 3];
        for _ in 0..30_000 {
            counts[rng.below(3) as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (9_600..10_400).contains(&c)), "{counts:?}");
    }
}
