//! Auditing with one training run (Steinke, Nasr and Jagielski 2023): m canaries, each included by a fair coin; the
//! auditor guesses r of the coins from the trained model and abstains on the rest; v guesses are right.
//!
//! If training is (eps, delta)-DP then (their Theorem 5.2), with `q = e^eps / (e^eps + 1)`,
//! `P[>= v right] <= P[Binomial(r, q) >= v] + 2 m delta max_i P[v - i <= Binomial(r, q) < v] / i`. Reading that as a
//! p-value in eps gives a lower limit of eps, to be held against the accountant's upper one.
//!
//! The two numbers of guesses, "in" and "out", must be fixed before the coins are looked at; trying several r costs a
//! share of the confidence each ([`audit`] does that).

use serde::{Deserialize, Serialize};

use super::stats::{SeededRng, binomial_upper, ln_binomial_pmf};
use crate::{Error, Result};

/// Fair coins for `m` canaries.
pub fn coins(m: usize, seed: u64) -> Vec<bool> {
    let mut rng = SeededRng::new(seed);
    (0..m).map(|_| rng.below(2) == 1).collect()
}

/// An upper bound of `P[at least v of r guesses right]` under (eps, delta)-DP training on m coins.
pub fn p_value(m: u64, r: u64, v: u64, eps: f64, delta: f64) -> f64 {
    let q = 1.0 / (1.0 + (-eps).exp());
    let pure = binomial_upper(r, q, v);
    if delta == 0.0 {
        return pure.min(1.0);
    }
    let (mut alpha, mut sum) = (0.0f64, 0.0);
    for i in 1..=v {
        sum += ln_binomial_pmf(r, q, v - i).exp();
        alpha = alpha.max(sum / i as f64);
    }
    (pure + 2.0 * m as f64 * delta * alpha).min(1.0)
}

/// The largest eps that `v` right guesses of `r` rule out at confidence `1 - beta`: training is not (eps', delta)-DP for
/// any eps' below it. 0 when they rule out nothing.
pub fn eps_lower_bound(m: u64, r: u64, v: u64, delta: f64, beta: f64) -> Result<f64> {
    if v > r || r > m || !(0.0..=1.0).contains(&delta) || !(beta > 0.0 && beta < 1.0) {
        return Err(Error::usage(format!(
            "a one-run audit needs right guesses <= guesses <= canaries, delta in [0, 1] and beta in (0, 1), found \
             {v}, {r}, {m}, {delta} and {beta}"
        )));
    }
    let ruled_out = |eps: f64| p_value(m, r, v, eps, delta) < beta;
    if r == 0 || !ruled_out(0.0) {
        return Ok(0.0);
    }
    // P[Binomial(r, q) >= v] grows to 1 with eps, so some eps is not ruled out.
    let mut high = 1.0;
    while ruled_out(high) {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if ruled_out(middle) { low = middle } else { high = middle }
    }
    Ok(low)
}

/// Bits that must have been released for `v` of `r` coins to be guessed, at confidence `1 - beta`. Whatever K bits said,
/// a union over their 2^K values gives `P[>= v right] <= 2^K P[Binomial(r, 1/2) >= v]`.
pub fn bits_lower_bound(r: u64, v: u64, beta: f64) -> f64 {
    let tail = binomial_upper(r, 0.5, v).max(f64::MIN_POSITIVE);
    ((beta / tail).log2()).max(0.0)
}

/// What a one-run audit found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneRun {
    /// Canaries of which a coin decided whether they were planted.
    pub canaries: u64,
    /// Guesses made, half "in" and half "out", by rank of the score.
    pub guesses: u64,
    /// Guesses that were right.
    pub right: u64,
    /// Lower limit of eps.
    pub eps_lower: f64,
    /// At this delta.
    pub delta: f64,
    /// With this probability.
    pub confidence: f64,
    /// Lower limit of the bits released, for FERRET's transcript.
    pub bits_lower: f64,
}

/// Guess "in" for the r/2 highest scores and "out" for the r/2 lowest, for every r of `guesses`; the best eps is
/// returned, at confidence `1 - beta` over all of them (each r is given `beta / guesses.len()`).
///
/// Equal scores are ordered by index, which knows nothing of the coins.
pub fn audit(scores: &[f64], included: &[bool], guesses: &[usize], delta: f64, beta: f64) -> Result<OneRun> {
    let m = scores.len();
    if included.len() != m || m < 2 || guesses.is_empty() {
        return Err(Error::usage(format!(
            "a one-run audit needs as many coins as scores, at least two, and a number of guesses, found {} coins, {m} \
             scores and {} numbers",
            included.len(),
            guesses.len()
        )));
    }
    if let Some(bad) = scores.iter().position(|s| s.is_nan()) {
        return Err(Error::usage(format!("the score of canary {bad} is not a number: check the model's loss on it")));
    }
    let mut order: Vec<usize> = (0..m).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let share = beta / guesses.len() as f64;
    let mut best: Option<OneRun> = None;
    for &r in guesses {
        if r == 0 || r > m {
            return Err(Error::usage(format!("{r} guesses about {m} canaries: choose between 1 and {m}")));
        }
        let (top, bottom) = (r.div_ceil(2), r / 2);
        let right = order[..top].iter().filter(|&&i| included[i]).count()
            + order[m - bottom..].iter().filter(|&&i| !included[i]).count();
        let found = OneRun {
            canaries: m as u64,
            guesses: r as u64,
            right: right as u64,
            eps_lower: eps_lower_bound(m as u64, r as u64, right as u64, delta, share)?,
            delta,
            confidence: 1.0 - beta,
            bits_lower: bits_lower_bound(r as u64, right as u64, share),
        };
        let better = |old: &OneRun| (found.eps_lower, found.bits_lower) > (old.eps_lower, old.bits_lower);
        if best.as_ref().is_none_or(better) {
            best = Some(found);
        }
    }
    Ok(best.expect("guesses is not empty"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_value_against_the_direct_sum() {
        // The theorem written out with plain powers, r = 6, v = 5.
        let (m, r, v, eps, delta) = (10u64, 6u64, 5u64, 0.7f64, 1e-3);
        let q = eps.exp() / (1.0 + eps.exp());
        let choose = [1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0];
        let pmf = |k: usize| choose[k] * q.powi(k as i32) * (1.0 - q).powi(6 - k as i32);
        let pure = pmf(5) + pmf(6);
        let worst = (1..=5).map(|i| (5 - i..5).map(pmf).sum::<f64>() / i as f64).fold(0.0, f64::max);
        let want = pure + 2.0 * 10.0 * delta * worst;
        assert!((p_value(m, r, v, eps, delta) - want).abs() < 1e-13);
        assert!((p_value(m, r, v, eps, 0.0) - pure).abs() < 1e-13);
    }

    #[test]
    fn perfect_guesses_give_the_closed_form() {
        // v = r, delta = 0: q^r = beta.
        let q = 0.05f64.powf(1.0 / 100.0);
        let want = (q / (1.0 - q)).ln();
        assert!((eps_lower_bound(100, 100, 100, 0.0, 0.05).unwrap() - want).abs() < 1e-9);
        // A delta makes the claim weaker, guesses at chance claim nothing.
        assert!(eps_lower_bound(100, 100, 100, 1e-4, 0.05).unwrap() < want);
        assert_eq!(eps_lower_bound(100, 100, 50, 0.0, 0.05).unwrap(), 0.0);
        // 100 right guesses need about 100 bits.
        assert!((bits_lower_bound(100, 100, 0.5) - 99.0).abs() < 1e-9);
        assert!(eps_lower_bound(5, 6, 1, 0.0, 0.05).is_err());
    }
}
