//! What the metrics do when nothing leaked: members and non-members exchangeable, every labelling of the pooled scores
//! equally likely. Tied scores only make these distributions narrower, so the ends and tails below stay valid.

use super::stats::{bisect, ln_choose, phi, phi_inv, simpson};

/// Above this many lattice cells a Smirnov tail is Hodges' approximation; below it the exact count.
const EXACT_CELLS: u64 = 150_000_000;
/// The same limit where a quantile needs some forty tails.
const EXACT_CELLS_QUANTILE: u64 = 100_000;
/// Largest group for which the Mann-Whitney distribution is counted out.
const EXACT_RANKS: u64 = 50;

/// The null of the area under the curve for `m` members and `n` non-members.
#[derive(Debug, Clone)]
pub struct AucNull {
    m: u64,
    n: u64,
    /// `P[U = u]` for u in `0..=mn`, where counted.
    exact: Option<Vec<f64>>,
    deviation: f64,
}

impl AucNull {
    /// `tie_term` is the sum of `t^3 - t` over groups of `t` equal pooled scores. Exact (Mann and Whitney's count) for
    /// at most 50 + 50 records without ties, otherwise normal with `sd^2 = (N + 1 - tie_term / (N (N-1))) / (12 m n)`.
    pub fn new(m: u64, n: u64, tie_term: f64) -> Self {
        let total = (m + n) as f64;
        let correction = if m + n > 1 { tie_term / (total * (total - 1.0)) } else { 0.0 };
        let deviation = ((total + 1.0 - correction) / (12.0 * m as f64 * n as f64)).max(0.0).sqrt();
        let exact = (m.max(n) <= EXACT_RANKS && tie_term == 0.0).then(|| rank_sum_distribution(m as usize, n as usize));
        Self { m, n, exact, deviation }
    }

    /// The central interval that holds the AUC with probability at least `level` (about, for the normal).
    pub fn interval(&self, level: f64) -> [f64; 2] {
        let tail = 0.5 * (1.0 - level);
        match &self.exact {
            Some(pmf) => {
                let mut below = 0.0;
                let low = pmf.iter().position(|p| {
                    below += p;
                    below > tail
                });
                let low = low.unwrap_or(0) as f64 / (self.m * self.n) as f64;
                [low, 1.0 - low]
            }
            None => {
                let half = phi_inv(1.0 - tail) * self.deviation;
                [(0.5 - half).max(0.0), (0.5 + half).min(1.0)]
            }
        }
    }

    /// `P[AUC >= auc]`.
    pub fn upper_tail(&self, auc: f64) -> f64 {
        match &self.exact {
            Some(pmf) => {
                let first = (auc * (self.m * self.n) as f64 - 1e-6).ceil().max(0.0) as usize;
                pmf.iter().skip(first).sum::<f64>().min(1.0)
            }
            None if self.deviation > 0.0 => phi(-(auc - 0.5) / self.deviation),
            None => 1.0,
        }
    }
}

/// `P[U = u]`: the Gaussian binomial coefficient `[m+n choose m]_q`, built up as
/// `prod_i (1 - q^(n+i)) / (1 - q^i)`, divided by `C(m+n, m)`.
fn rank_sum_distribution(m: usize, n: usize) -> Vec<f64> {
    let mut count = vec![0.0; m * n + 1];
    count[0] = 1.0;
    for i in 1..=m {
        for u in (n + i..=m * n).rev() {
            count[u] -= count[u - n - i];
        }
        for u in i..=m * n {
            count[u] += count[u - i];
        }
    }
    let total: f64 = count.iter().sum();
    count.iter().map(|c| c.max(0.0) / total).collect()
}

/// `ln P[D+ >= d]`, D+ the one-sided Smirnov statistic `max(TPR - FPR)` of `m` and `n` exchangeable scores.
///
/// Equal sizes: `P[D+ >= k/n] = C(2n, n+k) / C(2n, n)` by reflection. Otherwise the lattice paths that reach the
/// boundary are counted out, and beyond 1.5e8 cells Hodges' approximation (1958, 5.3) stands in.
pub fn smirnov_ln_tail(m: u64, n: u64, d: f64) -> f64 {
    smirnov_ln_tail_within(m, n, d, EXACT_CELLS)
}

fn smirnov_ln_tail_within(m: u64, n: u64, d: f64, cells: u64) -> f64 {
    if d <= 0.0 {
        return 0.0;
    }
    if d > 1.0 + 1e-12 {
        return f64::NEG_INFINITY;
    }
    if m == n {
        let k = (d * n as f64 - 1e-9 * n as f64).ceil();
        let n = n as f64;
        return (ln_choose(2.0 * n, n + k) - ln_choose(2.0 * n, n)).min(0.0);
    }
    if m.saturating_mul(n) <= cells {
        return smirnov_paths(m as usize, n as usize, d).ln();
    }
    let (large, small) = (m.max(n) as f64, m.min(n) as f64);
    let z = d * (large * small / (large + small)).sqrt();
    (-2.0 * z * z - 2.0 * z * (large + 2.0 * small) / (3.0 * (large * small * (large + small)).sqrt())).min(0.0)
}

/// The probability that a uniform path of m member and n non-member steps (scores from the top down) ever has
/// `i/m - j/n >= d`. First hits are added up, so that small tails keep their relative accuracy.
fn smirnov_paths(m: usize, n: usize, d: f64) -> f64 {
    let (mf, nf) = (m as f64, n as f64);
    let edge = d * mf * nf - 1e-9 * mf * nf;
    let hit = |i: usize, j: usize| i as f64 * nf - j as f64 * mf >= edge;
    // row[i]: probability of standing at (i, j) without an earlier hit.
    let mut row = vec![0.0; m + 1];
    row[0] = 1.0;
    let mut hits = 0.0;
    for j in 0..=n {
        for i in 0..=m {
            let here = row[i];
            if here == 0.0 {
                continue;
            }
            let left = (m + n - i - j) as f64;
            if i < m {
                let step = here * (m - i) as f64 / left;
                if hit(i + 1, j) { hits += step } else { row[i + 1] += step }
            }
            // The non-member step stays in place for the next row.
            row[i] = if j < n { here * (n - j) as f64 / left } else { 0.0 };
        }
    }
    f64::max(hits, f64::MIN_POSITIVE).min(1.0)
}

/// The central interval of D+ for `m` and `n` exchangeable scores, and how it was had.
pub fn smirnov_interval(m: u64, n: u64, level: f64) -> ([f64; 2], &'static str) {
    let tail = 0.5 * (1.0 - level);
    let exact = m == n || m.saturating_mul(n) <= EXACT_CELLS_QUANTILE;
    let at_least = |d: f64| smirnov_ln_tail_within(m, n, d, EXACT_CELLS_QUANTILE).exp();
    // Both ends of the bracket around the point where P[D+ >= d] falls below p: D+ is discrete, and rounding the
    // lower end down and the upper end up keeps the lattice points at the ends inside.
    let search = |p: f64| {
        let (mut low, mut high) = (0.0, (4.0 * ((m + n) as f64 / (m as f64 * n as f64)).sqrt()).min(1.0));
        for _ in 0..24 {
            let middle = 0.5 * (low + high);
            if at_least(middle) >= p { low = middle } else { high = middle }
        }
        (low, high)
    };
    let method = if exact { "exact one-sided Smirnov" } else { "one-sided Smirnov (Hodges)" };
    ([search(1.0 - tail).0, search(tail).1], method)
}

/// `ln P[J = j]`, J the number of `m` members strictly above the (k+1)-th largest of `n` non-members:
/// `C(j+k, k) C(m-j+n-k-1, n-k-1) / C(m+n, n)`.
fn ln_exceedance(m: u64, n: u64, k: u64, j: u64) -> f64 {
    let (m, n, k, j) = (m as f64, n as f64, k as f64, j as f64);
    ln_choose(j + k, k) + ln_choose(m - j + n - k - 1.0, n - k - 1.0) - ln_choose(m + n, n)
}

/// The null's interval of TPR at the threshold that lets `k` of `n` non-members through, for `m` members.
pub fn exceedance_interval(m: u64, n: u64, k: u64, level: f64) -> [f64; 2] {
    if k >= n {
        return [1.0, 1.0];
    }
    let tail = 0.5 * (1.0 - level);
    let (mut below, mut low, mut high) = (0.0, None, m);
    for j in 0..=m {
        below += ln_exceedance(m, n, k, j).exp();
        if low.is_none() && below > tail {
            low = Some(j);
        }
        if below >= 1.0 - tail {
            high = j;
            break;
        }
    }
    [low.unwrap_or(0) as f64 / m as f64, high as f64 / m as f64]
}

/// `ln P[J >= j]` of the same null.
pub fn exceedance_ln_tail(m: u64, n: u64, k: u64, j: u64) -> f64 {
    if k >= n || j == 0 {
        return 0.0;
    }
    let terms: Vec<f64> = (j..=m).map(|j| ln_exceedance(m, n, k, j)).collect();
    let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY {
        return top;
    }
    (top + terms.iter().map(|t| (t - top).exp()).sum::<f64>().ln()).min(0.0)
}

/// The smallest `x` with `P[sup(F_m - F) + sup(G - G_n) > x] <= alpha` for two independent empirical distributions.
///
/// Each supremum has `P[. > a] <= exp(-2 n a^2)` wherever that is at most 1/2 (Dvoretzky, Kiefer, Wolfowitz; Massart's
/// constant) and is taken as large as that permits; independence then gives the sum's tail by one integral, which is
/// sharper than splitting alpha. Ties are allowed.
pub fn dkw_sum_quantile(m: u64, n: u64, alpha: f64) -> f64 {
    let (m, n) = (m as f64, n as f64);
    let atom = |n: f64| (2f64.ln() / (2.0 * n)).sqrt();
    let tail = |n: f64, x: f64| if x < atom(n) { 1.0 } else { (-2.0 * n * x * x).exp() };
    let sum_tail = |x: f64| {
        // E over the second supremum b: half its mass at the atom, the rest with density 4 n b exp(-2 n b^2); from
        // b = x - atom(m) on, the first supremum is surely large enough.
        let (from, to) = (atom(n), x - atom(m));
        if to <= from {
            return 1.0;
        }
        let inner = |b: f64| 4.0 * n * b * (-2.0 * n * b * b - 2.0 * m * (x - b) * (x - b)).exp();
        0.5 * tail(m, x - from) + simpson(from, to, 400, inner) + tail(n, to)
    };
    bisect(0.0, 4.0, |x| sum_tail(x) > alpha).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::stats::SeededRng;

    /// Every labelling of m + n distinct ranks: (AUC, D+, members above the k+1st non-member).
    fn all_labellings(m: usize, n: usize, k: usize) -> Vec<(f64, f64, usize)> {
        let total = m + n;
        let mut out = Vec::new();
        for mask in 0u32..1 << total {
            if mask.count_ones() as usize != m {
                continue;
            }
            let (mut tp, mut fp, mut wins, mut best, mut exceed) = (0, 0, 0, 0.0f64, 0);
            for rank in 0..total {
                if mask >> rank & 1 == 1 {
                    tp += 1;
                    wins += n - fp;
                    exceed += usize::from(fp <= k);
                } else {
                    fp += 1;
                }
                best = best.max(tp as f64 / m as f64 - fp as f64 / n as f64);
            }
            out.push((wins as f64 / (m * n) as f64, best, exceed));
        }
        out
    }

    #[test]
    fn tails_match_enumeration() {
        for (m, n) in [(5, 5), (4, 7), (7, 3), (1, 6)] {
            let all = all_labellings(m, n, 1);
            let share = |hit: &dyn Fn(&(f64, f64, usize)) -> bool| {
                all.iter().filter(|x| hit(x)).count() as f64 / all.len() as f64
            };
            let auc = AucNull::new(m as u64, n as u64, 0.0);
            for step in 0..=m * n {
                let x = step as f64 / (m * n) as f64;
                assert!((auc.upper_tail(x) - share(&|o| o.0 >= x - 1e-9)).abs() < 1e-12);
                let tail = smirnov_ln_tail(m as u64, n as u64, x).exp();
                assert!((tail - share(&|o| o.1 >= x - 1e-9)).abs() < 1e-12, "m={m} n={n} d={x}");
            }
            for j in 0..=m {
                let tail = exceedance_ln_tail(m as u64, n as u64, 1, j as u64).exp();
                assert!((tail - share(&|o| o.2 >= j)).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn lattice_count_agrees_with_reflection_and_hodges() {
        for d in [0.02, 0.1, 0.25] {
            let reflection = smirnov_ln_tail(400, 400, d);
            assert!((smirnov_paths(400, 400, d).ln() - reflection).abs() < 1e-9);
            let exact = smirnov_ln_tail_within(900, 700, d, u64::MAX);
            let hodges = smirnov_ln_tail_within(900, 700, d, 0);
            assert!((exact - hodges).abs() < 0.02 * exact.abs().max(1.0), "d={d}: {exact} against {hodges}");
        }
    }

    #[test]
    fn dkw_sum_bounds_simulated_suprema() {
        // Uniform scores: sup(F_m - F) + sup(G - G_n) must exceed the quantile in at most alpha of the draws.
        let (m, n, alpha, rounds) = (60, 90, 0.1, 3000);
        let limit = dkw_sum_quantile(m, n, alpha);
        let mut rng = SeededRng::new(7);
        let mut supremum = |n: u64, sign: f64| {
            let mut x: Vec<f64> = (0..n).map(|_| rng.uniform()).collect();
            x.sort_by(f64::total_cmp);
            let n = n as f64;
            (0..x.len())
                .flat_map(|i| [sign * (i as f64 / n - x[i]), sign * ((i as f64 + 1.0) / n - x[i])])
                .fold(0.0, f64::max)
        };
        let over = (0..rounds).filter(|_| supremum(m, 1.0) + supremum(n, -1.0) > limit).count();
        assert!(over as f64 <= alpha * f64::from(rounds), "{over} of {rounds}");
        // ... and is not vacuous: splitting alpha in halves is wider.
        let split = [m, n].map(|k| ((2.0 / alpha).ln() / (2.0 * k as f64)).sqrt()).iter().sum::<f64>();
        assert!(limit < split, "{limit} against {split}");
    }
}
