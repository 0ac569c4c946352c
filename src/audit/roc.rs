//! From scores of members and non-members to the receiver operating characteristic, and to how sure it is.
//!
//! A threshold attack says "member" when a record's score is at least `t`. Tied scores move together: no point of the
//! curve splits a group of equal scores.

use serde::{Deserialize, Serialize};

use super::null::{
    AucNull, dkw_sum_quantile, exceedance_interval, exceedance_ln_tail, smirnov_interval, smirnov_ln_tail,
};
use super::stats::{binomial_upper, bisect, phi_inv, proportion_lower, proportion_upper, relative_entropy};
use crate::{Error, Result};

/// One point of a curve: what the threshold `score >= threshold` lets through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The smallest score that counts as a member.
    pub threshold: f64,
    /// Members let through.
    pub true_positives: u64,
    /// Non-members let through.
    pub false_positives: u64,
}

/// The empirical curve, from `(0, 0)` (threshold infinity) to `(1, 1)`, one point a distinct score.
#[derive(Debug, Clone)]
pub struct Roc {
    points: Vec<Point>,
    members: u64,
    nonmembers: u64,
}

/// A false-positive rate at which the true-positive rate is read off.
pub const LOW_FPR: [f64; 2] = [0.01, 0.001];

/// What is reported of one attack. Intervals cover 95 %; `*_null` is where 95 % of attacks on a model that saw nothing
/// would fall with this many records; `*_p` is the null's probability of a value at least as large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Area under the curve: the probability that a member's score is above a non-member's, ties counted half.
    pub auc: f64,
    /// `max(TPR - FPR)` over all thresholds. Its own maximisation lifts it above 0 even when nothing leaked: read it
    /// beside its null.
    pub advantage: f64,
    /// True-positive rate where at most 1 % of the non-members pass.
    #[serde(rename = "tpr_at_fpr_0.01")]
    pub tpr_at_fpr_0_01: f64,
    /// True-positive rate where at most 0.1 % of the non-members pass.
    #[serde(rename = "tpr_at_fpr_0.001")]
    pub tpr_at_fpr_0_001: f64,
    /// How many members were scored.
    pub members: u64,
    /// How many non-members were scored.
    pub nonmembers: u64,
    /// DeLong's interval on the logit scale; the Chernoff interval where that degenerates.
    pub auc_ci: [f64; 2],
    /// The Dvoretzky-Kiefer-Wolfowitz interval of the population's maximum, valid at every size.
    pub advantage_ci: [f64; 2],
    /// Order-statistic limits of the threshold with Clopper-Pearson limits of the rate, valid at every size.
    #[serde(rename = "tpr_at_fpr_0.01_ci")]
    pub tpr_at_fpr_0_01_ci: [f64; 2],
    /// The same at 0.1 %.
    #[serde(rename = "tpr_at_fpr_0.001_ci")]
    pub tpr_at_fpr_0_001_ci: [f64; 2],
    /// Mann and Whitney's null.
    pub auc_null: [f64; 2],
    /// Smirnov's one-sided null.
    pub advantage_null: [f64; 2],
    /// The exact exceedance null.
    #[serde(rename = "tpr_at_fpr_0.01_null")]
    pub tpr_at_fpr_0_01_null: [f64; 2],
    /// The same at 0.1 %.
    #[serde(rename = "tpr_at_fpr_0.001_null")]
    pub tpr_at_fpr_0_001_null: [f64; 2],
    /// One-sided p-value of the area.
    pub auc_p: f64,
    /// One-sided p-value of the advantage.
    pub advantage_p: f64,
    /// One-sided p-value of the rate at 1 %.
    #[serde(rename = "tpr_at_fpr_0.01_p")]
    pub tpr_at_fpr_0_01_p: f64,
    /// One-sided p-value of the rate at 0.1 %.
    #[serde(rename = "tpr_at_fpr_0.001_p")]
    pub tpr_at_fpr_0_001_p: f64,
}

impl Roc {
    /// The curve of these scores, larger meaning "more likely a member". Infinities are scores like any other.
    pub fn new(members: &[f64], nonmembers: &[f64]) -> Result<Self> {
        if members.is_empty() || nonmembers.is_empty() {
            return Err(Error::usage(format!(
                "an attack is judged on at least one member and one non-member, found {} and {}: pass records of both",
                members.len(),
                nonmembers.len()
            )));
        }
        let mut pool: Vec<(f64, bool)> = members.iter().map(|&s| (s, true)).collect();
        pool.extend(nonmembers.iter().map(|&s| (s, false)));
        if let Some(at) = pool.iter().position(|(s, _)| s.is_nan()) {
            let (kind, index) = if at < members.len() { ("member", at) } else { ("non-member", at - members.len()) };
            return Err(Error::usage(format!(
                "the score of {kind} record {index} is not a number: check the model's loss on that record"
            )));
        }
        pool.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut points = vec![Point { threshold: f64::INFINITY, true_positives: 0, false_positives: 0 }];
        let (mut tp, mut fp) = (0, 0);
        for (index, &(score, member)) in pool.iter().enumerate() {
            if member {
                tp += 1
            } else {
                fp += 1
            }
            // `==` and not the total order: -0 and 0 are one score.
            if pool.get(index + 1).is_none_or(|next| next.0 != score) {
                points.push(Point { threshold: score, true_positives: tp, false_positives: fp });
            }
        }
        Ok(Self { points, members: tp, nonmembers: fp })
    }

    /// The points, thresholds falling.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// How many members and non-members.
    pub fn sizes(&self) -> (u64, u64) {
        (self.members, self.nonmembers)
    }

    /// `(FPR, TPR)` of a point.
    pub fn rates(&self, point: &Point) -> (f64, f64) {
        (point.false_positives as f64 / self.nonmembers as f64, point.true_positives as f64 / self.members as f64)
    }

    /// The curve as `(FPR, TPR)` for a plot: points on straight stretches left out, shape unchanged.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut kept: Vec<Point> = Vec::new();
        for &point in &self.points {
            while let [.., a, b] = kept[..] {
                let cross = |p: Point, q: Point| {
                    (
                        i128::from(q.false_positives) - i128::from(p.false_positives),
                        i128::from(q.true_positives) - i128::from(p.true_positives),
                    )
                };
                let ((x0, y0), (x1, y1)) = (cross(a, b), cross(b, point));
                if x0 * y1 != y0 * x1 {
                    break;
                }
                kept.pop();
            }
            kept.push(point);
        }
        kept.iter().map(|p| self.rates(p)).collect()
    }

    /// Area under the curve by trapezoids, which is Mann and Whitney's count with ties worth one half.
    pub fn auc(&self) -> f64 {
        // In half wins, exact in integers.
        let mut halves: u128 = 0;
        for pair in self.points.windows(2) {
            let width = u128::from(pair[1].false_positives - pair[0].false_positives);
            halves += width * u128::from(pair[0].true_positives + pair[1].true_positives);
        }
        halves as f64 / (2.0 * self.members as f64 * self.nonmembers as f64)
    }

    /// `max(TPR - FPR)`, never below 0.
    pub fn advantage(&self) -> f64 {
        self.points
            .iter()
            .map(|p| {
                let (fpr, tpr) = self.rates(p);
                tpr - fpr
            })
            .fold(0.0, f64::max)
    }

    /// The rate of members above the lowest threshold that at most `fpr` of the non-members reach. Conservative: no
    /// interpolation, and a group of ties that would overshoot stays outside.
    pub fn tpr_at(&self, fpr: f64) -> f64 {
        let allowed = self.allowed(fpr);
        let last = self.points.iter().rev().find(|p| p.false_positives <= allowed);
        last.map_or(0.0, |p| self.rates(p).1)
    }

    /// `floor(fpr n)`, with a guard for products like 0.01 * 300 that round down.
    fn allowed(&self, fpr: f64) -> u64 {
        (fpr * self.nonmembers as f64 + 1e-9).floor() as u64
    }

    /// Sum of `t^3 - t` over groups of equal scores.
    fn tie_term(&self) -> f64 {
        let group = |pair: &[Point]| {
            let before = pair[0].true_positives + pair[0].false_positives;
            (pair[1].true_positives + pair[1].false_positives - before) as f64
        };
        self.points.windows(2).map(|pair| group(pair).powi(3) - group(pair)).sum()
    }

    /// DeLong's variance of the area: `var(V10)/m + var(V01)/n`, V the share of the other side each score beats.
    fn auc_variance(&self) -> f64 {
        let (m, n) = (self.members as f64, self.nonmembers as f64);
        let auc = self.auc();
        let (mut of_members, mut of_nonmembers) = (0.0, 0.0);
        for pair in self.points.windows(2) {
            let tp = (pair[1].true_positives - pair[0].true_positives) as f64;
            let fp = (pair[1].false_positives - pair[0].false_positives) as f64;
            let member_beats = 1.0 - (pair[0].false_positives as f64 + 0.5 * fp) / n;
            let nonmember_loses = (pair[0].true_positives as f64 + 0.5 * tp) / m;
            of_members += tp * (member_beats - auc).powi(2);
            of_nonmembers += fp * (nonmember_loses - auc).powi(2);
        }
        of_members / ((m - 1.0).max(1.0) * m) + of_nonmembers / ((n - 1.0).max(1.0) * n)
    }

    /// DeLong's interval on the logit scale, which is right for large samples; where it degenerates (a perfect or
    /// constant score, a single record) the one of [`Roc::auc_lower`].
    pub fn auc_interval(&self, level: f64) -> [f64; 2] {
        let (auc, variance) = (self.auc(), self.auc_variance());
        let alpha = 1.0 - level;
        if self.members.min(self.nonmembers) < 2 || variance <= 0.0 || auc <= 0.0 || auc >= 1.0 {
            return [self.auc_lower(0.5 * alpha), 1.0 - self.chernoff_lower(1.0 - auc, 0.5 * alpha)];
        }
        let logit = (auc / (1.0 - auc)).ln();
        let half = phi_inv(1.0 - 0.5 * alpha) * variance.sqrt() / (auc * (1.0 - auc));
        [logit - half, logit + half].map(|x| 1.0 / (1.0 + (-x).exp()))
    }

    /// A lower limit of the population's area that holds at every sample size with probability `1 - alpha`: the least
    /// `a` with `k kl(auc || a) <= ln(1/alpha)`, `k = min(m, n)`. (Hoeffding: the area is a mean over matchings of k
    /// independent pairs, so Chernoff's bound for k coins applies to it.)
    pub fn auc_lower(&self, alpha: f64) -> f64 {
        self.chernoff_lower(self.auc(), alpha)
    }

    fn chernoff_lower(&self, auc: f64, alpha: f64) -> f64 {
        let k = self.members.min(self.nonmembers) as f64;
        auc - bisect(0.0, auc, |below| k * relative_entropy(auc, auc - below) <= -alpha.ln())
    }

    /// A lower limit of the population's `max(TPR - FPR)`, by [`dkw_sum_quantile`].
    pub fn advantage_lower(&self, alpha: f64) -> f64 {
        (self.advantage() - dkw_sum_quantile(self.members, self.nonmembers, alpha)).max(0.0)
    }

    /// The two-sided interval of the same.
    pub fn advantage_interval(&self, level: f64) -> [f64; 2] {
        let slack = dkw_sum_quantile(self.members, self.nonmembers, 0.5 * (1.0 - level));
        let value = self.advantage();
        [(value - slack).max(0.0), (value + slack).min(1.0)]
    }

    /// The fewest non-members that make a lower limit of TPR at `fpr` possible: with fewer, even a threshold that lets none of them
    /// through may let more than `fpr` of the population through, `(1 - fpr)^n > alpha / 2`.
    pub fn nonmembers_for(fpr: f64, alpha: f64) -> u64 {
        ((0.5 * alpha).ln() / (-fpr).ln_1p()).ceil().max(1.0) as u64
    }

    /// A lower limit of the population's TPR at `fpr`. Half of alpha pays for a threshold that is surely strict
    /// enough: above the (k+1)-th largest non-member with `P[Binomial(n, fpr) <= k] <= alpha/2`; half for the exact
    /// binomial limit of the members above it. 0 when there are too few non-members to be sure of any threshold.
    pub fn tpr_lower(&self, fpr: f64, alpha: f64) -> f64 {
        let n = self.nonmembers;
        let sure = |k: u64| 1.0 - binomial_upper(n, fpr, k + 1) <= 0.5 * alpha;
        if !sure(0) {
            return 0.0;
        }
        let k = (1..=n).take_while(|&k| sure(k)).last().unwrap_or(0);
        let above = self.points.iter().rev().find(|p| p.false_positives <= k).map_or(0, |p| p.true_positives);
        proportion_lower(above as f64, self.members as f64, 0.5 * alpha)
    }

    /// The matching upper limit: the threshold surely lets at least `fpr` through.
    pub fn tpr_upper(&self, fpr: f64, alpha: f64) -> f64 {
        let n = self.nonmembers;
        let Some(k) = (0..n).find(|&k| binomial_upper(n, fpr, k + 1) <= 0.5 * alpha) else {
            return 1.0;
        };
        let above = self.points.iter().find(|p| p.false_positives > k).map_or(self.members, |p| p.true_positives);
        proportion_upper(above as f64, self.members as f64, 0.5 * alpha)
    }

    /// The two-sided interval of TPR at `fpr`.
    pub fn tpr_interval(&self, fpr: f64, level: f64) -> [f64; 2] {
        let alpha = 0.5 * (1.0 - level);
        [self.tpr_lower(fpr, alpha), self.tpr_upper(fpr, alpha)]
    }

    /// `ln P[at least this area]` under the null, by Chernoff's bound (see [`Roc::auc_lower`]): an upper bound that
    /// holds however far out, where the normal approximation does not.
    pub fn auc_null_ln_bound(&self) -> f64 {
        let auc = self.auc();
        let k = self.members.min(self.nonmembers) as f64;
        if auc <= 0.5 { 0.0 } else { -k * relative_entropy(auc, 0.5) }
    }

    /// `ln P[at least this advantage]` under the null, exact up to 1.5e8 pairs of records.
    pub fn advantage_null_ln_tail(&self) -> f64 {
        smirnov_ln_tail(self.members, self.nonmembers, self.advantage())
    }

    /// `ln P[at least this TPR at fpr]` under the null, exact.
    pub fn tpr_null_ln_tail(&self, fpr: f64) -> f64 {
        let above = (self.tpr_at(fpr) * self.members as f64).round() as u64;
        exceedance_ln_tail(self.members, self.nonmembers, self.allowed(fpr), above)
    }

    /// Everything that is reported of an attack.
    pub fn summary(&self) -> Summary {
        const LEVEL: f64 = 0.95;
        let (m, n) = self.sizes();
        let null = AucNull::new(m, n, self.tie_term());
        let [low, lower] = LOW_FPR;
        Summary {
            auc: self.auc(),
            advantage: self.advantage(),
            tpr_at_fpr_0_01: self.tpr_at(low),
            tpr_at_fpr_0_001: self.tpr_at(lower),
            members: m,
            nonmembers: n,
            auc_ci: self.auc_interval(LEVEL),
            advantage_ci: self.advantage_interval(LEVEL),
            tpr_at_fpr_0_01_ci: self.tpr_interval(low, LEVEL),
            tpr_at_fpr_0_001_ci: self.tpr_interval(lower, LEVEL),
            auc_null: null.interval(LEVEL),
            advantage_null: smirnov_interval(m, n, LEVEL).0,
            tpr_at_fpr_0_01_null: exceedance_interval(m, n, self.allowed(low), LEVEL),
            tpr_at_fpr_0_001_null: exceedance_interval(m, n, self.allowed(lower), LEVEL),
            auc_p: null.upper_tail(self.auc()),
            advantage_p: self.advantage_null_ln_tail().exp(),
            tpr_at_fpr_0_01_p: self.tpr_null_ln_tail(low).exp(),
            tpr_at_fpr_0_001_p: self.tpr_null_ln_tail(lower).exp(),
        }
    }
}
