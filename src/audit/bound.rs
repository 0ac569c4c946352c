//! What the privacy accounting permits an attack to reach, and the alarm above it.
//!
//! **Released bits.** Let membership be a fair coin per candidate, N_c candidates, K released bits. The coins are
//! independent, so `sum_i I(M_i; release) <= I(M; release) <= K ln 2`: a candidate's coin is known to
//! `kappa = K ln 2 / N_c` nats on average. A threshold attack meets record i with rates `(f_i, t_i)`, and
//! `J(f, t) = h((f+t)/2) - (h(f) + h(t))/2` is at most `I(M_i; release)` (data processing) and convex, so the mean rates
//! obey `J(f, t) <= kappa`. As `J >= (t-f)^2 / 2` (Pinsker), the advantage is at most `sqrt(2 kappa)`, which with
//! `N = N_c / 2` members is `sqrt(K ln 2 / N) = sqrt(eps / B)`. All of this is in expectation over coins and runs, on
//! average over records: it bounds neither one record nor the luckiest attack.
//!
//! When the members are instead a uniform subset of fixed size m, the M_i depend a little on each other;
//! `kappa = (K ln 2 + N_c h(pi) - ln C(N_c, m)) / N_c`, `pi = m / N_c`, and J carries the weights pi and 1 - pi.
//!
//! **(eps, delta).** `TPR <= min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR))`, a concave curve, so means over
//! records obey it too, for the worlds that the guarantee calls neighbours. A coin decides between a record and none; a subset of
//! fixed size, and coins whose number of heads is known because the number of records is, between a record and another. Where the
//! guarantee is about one record against an empty one, that is two steps: (2 eps, delta (1 + e^eps)).
//!
//! **One run.** For a fixed transcript the scores are fixed and the labels random, so a metric has its null
//! distribution; a union over the 2^K transcripts gives `P[metric >= x] <= 2^K P_null[metric >= x]` for every score
//! that reads only the release and the candidates. That needs no expectation over runs: [`Verdict::uncharged_p`].

use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};

use super::roc::{LOW_FPR, Roc};
use super::stats::{bisect, entropy, holm, ln_choose, simpson};
use crate::privacy::Neighbours;

/// How the members were chosen among the candidates. The bounds are about this choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Design {
    /// A fair coin for every candidate.
    CoinFlip,
    /// A random subset of fixed size.
    RandomSubset,
    /// Given from outside: members and non-members may differ in kind, and a difference in score need not be a leak.
    #[cfg_attr(feature = "cli", value(help = "Given from outside: no bound applies"))]
    Given,
}

/// What was charged for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Charge {
    /// This many realised bits of a public question each (FERRET).
    Bits(u64),
    /// An (eps, delta) guarantee (DPSGD, randomised response).
    EpsDelta {
        /// eps of the accountant.
        eps: f64,
        /// delta of the accountant.
        delta: f64,
        /// Its neighbours.
        neighbours: Neighbours,
    },
    /// No guarantee.
    #[default]
    NonPrivate,
}

/// The largest mean rates that a charge permits, as a curve `TPR(FPR)`.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// `J_pi(f, t) <= kappa`.
    Information {
        /// Mean information about a candidate's membership, nats.
        kappa: f64,
        /// Prior probability of membership.
        prior: f64,
        /// Bits released, for the one-run test.
        bits: u64,
    },
    /// The (eps, delta) curve.
    EpsDelta {
        /// eps between member and non-member worlds.
        eps: f64,
        /// delta between them.
        delta: f64,
    },
    /// No bound, and the reason a table gives.
    DoesNotApply(String),
}

/// Beyond it `e^eps` leaves the range of doubles, and the curve is 1 to the last digit long before.
const MOST_EPS: f64 = 700.0;

/// The four reported quantities, in the order of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// Area under the curve.
    #[serde(rename = "auc")]
    Auc,
    /// `max(TPR - FPR)`.
    #[serde(rename = "advantage")]
    Advantage,
    /// TPR at FPR 1 %.
    #[serde(rename = "tpr_at_fpr_0.01")]
    TprAt1Percent,
    /// TPR at FPR 0.1 %.
    #[serde(rename = "tpr_at_fpr_0.001")]
    TprAt01Percent,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 4] = [Metric::Auc, Metric::Advantage, Metric::TprAt1Percent, Metric::TprAt01Percent];

    /// The key in JSON and CSV.
    pub fn key(self) -> &'static str {
        match self {
            Metric::Auc => "auc",
            Metric::Advantage => "advantage",
            Metric::TprAt1Percent => "tpr_at_fpr_0.01",
            Metric::TprAt01Percent => "tpr_at_fpr_0.001",
        }
    }
}

impl Bound {
    /// The bound of a charge, for `members` and `nonmembers` chosen by `design` (the whole candidate set, also where
    /// only a part of it is scored).
    pub fn new(charge: &Charge, design: Design, members: u64, nonmembers: u64) -> Self {
        let candidates = (members + nonmembers) as f64;
        match (charge, design) {
            (Charge::NonPrivate, _) => Bound::DoesNotApply("no guarantee was given".into()),
            (_, Design::Given) => Bound::DoesNotApply("membership was not drawn at random".into()),
            (_, _) if members + nonmembers == 0 => Bound::DoesNotApply("there are no candidates".into()),
            (Charge::Bits(bits), Design::CoinFlip) => {
                Bound::Information { kappa: *bits as f64 * LN_2 / candidates, prior: 0.5, bits: *bits }
            }
            (Charge::Bits(bits), Design::RandomSubset) => {
                let prior = members as f64 / candidates;
                if members == 0 || nonmembers == 0 {
                    return Bound::DoesNotApply("every candidate is on one side".into());
                }
                let dependence = candidates * entropy(prior) - ln_choose(candidates, members as f64);
                Bound::Information { kappa: (*bits as f64 * LN_2 + dependence) / candidates, prior, bits: *bits }
            }
            // Not numbers, or numbers that promise nothing: a file can say anything.
            (Charge::EpsDelta { eps, delta, .. }, _)
                if !(eps.is_finite() && *eps >= 0.0 && (0.0..=1.0).contains(delta)) =>
            {
                Bound::DoesNotApply(format!("({eps}, {delta}) is no (eps, delta)"))
            }
            (Charge::EpsDelta { eps, delta, neighbours }, design) => match (neighbours, design) {
                (Neighbours::AddOrRemoveOne, Design::CoinFlip) | (Neighbours::ReplaceOne, Design::RandomSubset) => {
                    Bound::EpsDelta { eps: *eps, delta: *delta }
                }
                // Exchanging is removing one and adding another: group privacy for two.
                (Neighbours::AddOrRemoveOne | Neighbours::ReplaceByEmpty, _) => {
                    Bound::EpsDelta { eps: 2.0 * eps, delta: (delta * (1.0 + eps.exp())).min(1.0) }
                }
                (Neighbours::ReplaceOne, _) => Bound::DoesNotApply(
                    "the guarantee is about exchanging records, the coin about leaving them out".into(),
                ),
            },
        }
    }

    /// The largest TPR at `fpr`; 1 where no bound applies.
    pub fn tpr(&self, fpr: f64) -> f64 {
        match *self {
            Bound::Information { kappa, prior, .. } => {
                let information = |tpr: f64| {
                    entropy(prior * tpr + (1.0 - prior) * fpr) - prior * entropy(tpr) - (1.0 - prior) * entropy(fpr)
                };
                bisect(fpr, 1.0, |tpr| information(tpr) <= kappa).clamp(fpr, 1.0)
            }
            Bound::EpsDelta { eps, delta } => {
                let eps = eps.min(MOST_EPS);
                (eps.exp() * fpr + delta).min(1.0 - (-eps).exp() * (1.0 - delta - fpr)).clamp(0.0, 1.0)
            }
            Bound::DoesNotApply(_) => 1.0,
        }
    }

    /// The largest `TPR - FPR`: `sqrt(2 kappa)` for coin flips (the stated bound), the curve's own maximum for subsets,
    /// `(e^eps - 1 + 2 delta) / (e^eps + 1)` for (eps, delta).
    pub fn advantage(&self) -> f64 {
        match *self {
            Bound::Information { kappa, prior: 0.5, .. } => (2.0 * kappa).sqrt().min(1.0),
            Bound::Information { .. } => (0..=1000)
                .map(|i| f64::from(i) / 1000.0)
                // Between grid points the concave curve's excess is at most one spacing higher.
                .map(|fpr| (self.tpr(fpr) - fpr + 1e-3).min(1.0))
                .fold(0.0, f64::max),
            Bound::EpsDelta { eps, delta } => ((0.5 * eps).tanh() + 2.0 * delta / (eps.exp() + 1.0)).min(1.0),
            Bound::DoesNotApply(_) => 1.0,
        }
    }

    /// The largest area: the curve's integral.
    pub fn auc(&self) -> f64 {
        match *self {
            // A cubic change of variable flattens the curve's steep start.
            Bound::Information { .. } => simpson(0.0, 1.0, 600, |u| 3.0 * u * u * self.tpr(u * u * u)).min(1.0),
            Bound::EpsDelta { eps, delta } => {
                let eps = eps.min(MOST_EPS);
                // Two straight pieces that meet at FPR (1 - delta) / (1 + e^eps), then 1 on the last delta.
                let corner = (1.0 - delta) / (1.0 + eps.exp());
                let rest = 1.0 - delta - corner;
                0.5 * eps.exp() * corner * corner + delta * corner + rest - 0.5 * (-eps).exp() * rest * rest + delta
            }
            Bound::DoesNotApply(_) => 1.0,
        }
    }

    /// The bound of a metric, `None` where it does not apply.
    pub fn of(&self, metric: Metric) -> Option<f64> {
        if let Bound::DoesNotApply(_) = self {
            return None;
        }
        Some(match metric {
            Metric::Auc => self.auc(),
            Metric::Advantage => self.advantage(),
            Metric::TprAt1Percent => self.tpr(LOW_FPR[0]),
            Metric::TprAt01Percent => self.tpr(LOW_FPR[1]),
        })
    }

    /// Why there is no bound.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Bound::DoesNotApply(why) => Some(why),
            _ => None,
        }
    }

    /// The curve for a plot, `points` of them, dense towards FPR 0 so that a log-log plot is smooth down to `from`.
    pub fn curve(&self, points: usize, from: f64) -> Vec<(f64, f64)> {
        if self.why_not().is_some() {
            return Vec::new();
        }
        let half = points.max(4) / 2;
        let mut fprs: Vec<f64> = (0..half).map(|i| from.powf(1.0 - i as f64 / half as f64)).collect();
        fprs.extend((0..=half).map(|i| i as f64 / half as f64));
        fprs.sort_by(f64::total_cmp);
        fprs.into_iter().map(|fpr| (fpr, self.tpr(fpr))).collect()
    }
}

/// One metric of one attack against its bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is compared: the advantage, or the true-positive rate at a low false-positive rate.
    pub metric: Metric,
    /// The bound; absent where it does not apply.
    pub bound: Option<f64>,
    /// The simultaneous lower limit: all limits of all attacks hold together with the stated probability.
    pub lower_limit: f64,
    /// `lower_limit > bound`: a leak that was not charged.
    pub alarm: bool,
    /// For released bits: `2^K` times the null's tail, Holm-adjusted over attacks and metrics. Small means that no K
    /// bits could have told this much in this one run.
    pub uncharged_p: Option<f64>,
}

/// Judge every metric of every attack against the bound, all together at `1 - alpha` (Bonferroni for the limits, Holm
/// for the one-run p-values).
pub fn judge(attacks: &[&Roc], bound: &Bound, alpha: f64) -> Vec<Vec<Verdict>> {
    let each = alpha / (attacks.len() * Metric::ALL.len()).max(1) as f64;
    let mut verdicts: Vec<Vec<Verdict>> = Vec::with_capacity(attacks.len());
    let mut p_values = Vec::new();
    let bounds = Metric::ALL.map(|metric| bound.of(metric));
    for roc in attacks {
        let mut row = Vec::with_capacity(Metric::ALL.len());
        for (metric, limit) in Metric::ALL.into_iter().zip(bounds) {
            let (lower_limit, ln_tail) = match metric {
                Metric::Auc => (roc.auc_lower(each), roc.auc_null_ln_bound()),
                Metric::Advantage => (roc.advantage_lower(each), roc.advantage_null_ln_tail()),
                Metric::TprAt1Percent => (roc.tpr_lower(LOW_FPR[0], each), roc.tpr_null_ln_tail(LOW_FPR[0])),
                Metric::TprAt01Percent => (roc.tpr_lower(LOW_FPR[1], each), roc.tpr_null_ln_tail(LOW_FPR[1])),
            };
            if let Bound::Information { bits, .. } = bound {
                p_values.push((*bits as f64 * LN_2 + ln_tail).min(0.0).exp());
            }
            let alarm = limit.is_some_and(|limit| lower_limit > limit);
            row.push(Verdict { metric, bound: limit, lower_limit, alarm, uncharged_p: None });
        }
        verdicts.push(row);
    }
    let adjusted = holm(&p_values);
    for (verdict, p) in verdicts.iter_mut().flatten().zip(adjusted) {
        verdict.uncharged_p = Some(p);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    const DP: Bound = Bound::EpsDelta { eps: 0.5, delta: 1e-5 };

    #[test]
    fn figures_of_the_paper_and_its_reading() {
        // 29 / 144 / 289 / 577 bits on 10,000 + 10,000 candidates: 0.045 / 0.10 / 0.14 / 0.20.
        for (bits, want) in [(29, 0.045), (144, 0.10), (289, 0.14), (577, 0.20)] {
            let bound = Bound::new(&Charge::Bits(bits), Design::CoinFlip, 10_000, 10_000);
            assert!((bound.advantage() - want).abs() < 0.003, "{bits} bits: {}", bound.advantage());
        }
        // (0.5, 1e-5)-DP permits a total variation of 0.245.
        assert!((DP.advantage() - 0.245).abs() < 1e-3);
    }

    #[test]
    fn dp_curve_closed_forms_match_brute_force() {
        for (eps, delta) in [(0.0f64, 0.0f64), (0.5, 1e-5), (2.0, 0.1), (8.0, 0.0), (0.0, 0.3)] {
            let bound = Bound::EpsDelta { eps, delta };
            let grid: Vec<f64> = (0..=200_000).map(|i| f64::from(i) / 200_000.0).collect();
            let area = grid.windows(2).map(|w| (bound.tpr(w[0]) + bound.tpr(w[1])) * 0.5 * (w[1] - w[0])).sum::<f64>();
            assert!((bound.auc() - area).abs() < 1e-8, "eps {eps} delta {delta}: {} against {area}", bound.auc());
            let best = grid.iter().map(|&f| bound.tpr(f) - f).fold(0.0, f64::max);
            assert!((bound.advantage() - best).abs() < 1e-5);
            let stated = (eps.exp() - 1.0 + 2.0 * delta) / (eps.exp() + 1.0);
            assert!((bound.advantage() - stated).abs() < 1e-12);
        }
    }

    #[test]
    fn information_curve_is_tight_where_a_channel_attains_it() {
        // One bit that says the coin of one candidate: kappa = ln 2, everything is permitted.
        let all = Bound::new(&Charge::Bits(1), Design::CoinFlip, 1, 0);
        assert!((all.advantage() - 1.0).abs() < 1e-12 && (all.auc() - 1.0).abs() < 1e-6);
        // A symmetric channel with rates (0.4, 0.6) carries ln 2 - h(0.4): the curve passes through that very point.
        let bound = Bound::Information { kappa: LN_2 - entropy(0.4), prior: 0.5, bits: 0 };
        assert!((bound.tpr(0.4) - 0.6).abs() < 1e-9);
        // Pinsker is weaker than the curve, and the curve's area is below the one of a total-variation bound.
        let tv = bound.advantage();
        assert!((0.2..0.202).contains(&tv));
        assert!(bound.auc() < 0.5 + tv - 0.5 * tv * tv);
        // Nothing released, nothing permitted.
        let none = Bound::new(&Charge::Bits(0), Design::CoinFlip, 100, 100);
        assert!((none.auc() - 0.5).abs() < 1e-6 && none.advantage() == 0.0);
        assert!(none.tpr(0.01) < 0.01 + 1e-6);
    }

    #[test]
    fn a_subset_costs_a_little_more_than_coins() {
        let coins = Bound::new(&Charge::Bits(144), Design::CoinFlip, 10_000, 10_000);
        let subset = Bound::new(&Charge::Bits(144), Design::RandomSubset, 10_000, 10_000);
        assert!(subset.tpr(0.01) > coins.tpr(0.01) && subset.tpr(0.01) < 1.1 * coins.tpr(0.01));
        // Unequal sides go through the weighted divergence.
        let uneven = Bound::new(&Charge::Bits(144), Design::RandomSubset, 10_000, 5_000);
        assert!(uneven.advantage() > 0.1 && uneven.advantage() < 0.2);
    }

    #[test]
    fn says_where_it_does_not_apply() {
        for (charge, design) in [
            (Charge::NonPrivate, Design::CoinFlip),
            (Charge::Bits(3), Design::Given),
            (Charge::EpsDelta { eps: 1.0, delta: 0.0, neighbours: Neighbours::ReplaceOne }, Design::CoinFlip),
        ] {
            let bound = Bound::new(&charge, design, 10, 10);
            assert!(bound.why_not().is_some());
            assert!(Metric::ALL.iter().all(|&metric| bound.of(metric).is_none()));
        }
        let charge = Charge::EpsDelta { eps: 0.5, delta: 1e-5, neighbours: Neighbours::AddOrRemoveOne };
        assert_eq!(Bound::new(&charge, Design::CoinFlip, 10, 10), DP);
        assert!(matches!(Bound::new(&charge, Design::RandomSubset, 10, 10), Bound::EpsDelta { eps: 1.0, .. }));
        // A record against an empty one: whoever is in or out, the other is two steps away.
        let charge = Charge::EpsDelta { eps: 0.5, delta: 1e-5, neighbours: Neighbours::ReplaceByEmpty };
        for design in [Design::CoinFlip, Design::RandomSubset] {
            assert!(matches!(Bound::new(&charge, design, 10, 10), Bound::EpsDelta { eps: 1.0, delta } if delta > 2e-5));
        }
    }

    #[test]
    fn what_is_no_number_bounds_nothing_and_huge_ones_bound_by_one() {
        let neighbours = Neighbours::AddOrRemoveOne;
        for (eps, delta) in
            [(f64::NAN, 0.1), (f64::INFINITY, 0.1), (-1.0, 0.1), (1.0, f64::NAN), (1.0, 1.5), (1.0, -0.1)]
        {
            let bound = Bound::new(&Charge::EpsDelta { eps, delta, neighbours }, Design::CoinFlip, 10, 10);
            assert!(bound.why_not().is_some(), "({eps}, {delta})");
        }
        for eps in [50.0, 709.0, 710.0, 1e6, f64::MAX / 4.0] {
            for neighbours in [Neighbours::AddOrRemoveOne, Neighbours::ReplaceByEmpty] {
                let charge = Charge::EpsDelta { eps, delta: 1e-5, neighbours };
                let bound = Bound::new(&charge, Design::CoinFlip, 10, 10);
                for metric in Metric::ALL {
                    let value = bound.of(metric).unwrap();
                    assert!((value - 1.0).abs() < 1e-9, "{eps}, {metric:?}: {value}");
                }
                assert!(bound.tpr(0.0).is_finite());
            }
        }
    }
}
