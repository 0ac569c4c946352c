//! Whether the paper's hypotheses hold here, by tests that are stated in words with their figures.
//!
//! Everything is paired by seed: the same records, coins and public randomness. A difference's interval is Student's, at a level
//! that is corrected (Bonferroni) for how many intervals the verdict looks at, so that all of them hold together 95 times in 100.

use crate::audit::stats::{beta_inc, bisect, mean_variance};
use serde::Serialize;
use std::fmt;

/// What a test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The hypothesis holds here.
    Holds,
    /// It fails here.
    Fails,
    /// The runs do not decide.
    Undecided,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Undecided => "undecided",
        })
    }
}

/// A hypothesis, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The hypothesis, as the table calls it.
    pub name: String,
    /// Whether it held.
    pub outcome: Answer,
    /// The test in words, with what it found.
    pub test: String,
}

/// One run, as verdicts see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Mean token loss on non-members: the logarithm of the perplexity.
    pub loss: f64,
    /// The attack's area under the curve.
    pub auc: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// Records whose gradient was computed.
    pub gradients: f64,
}

/// The runs of one budget and length; seed k is at place k of all three. Empty where a method was not run.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// FERRET's.
    pub ferret: Vec<Sample>,
    /// DPSGD's.
    pub dpsgd: Vec<Sample>,
    /// Non-private training's, of the same length.
    pub nonprivate: Vec<Sample>,
}

/// A difference of areas under the curve below this is no difference.
const MARGIN: f64 = 0.02;

/// Student's quantile: `P(|T| > t) = alpha` with `df` degrees of freedom.
pub fn student(df: f64, alpha: f64) -> f64 {
    // P(|T| > t) = I_x(df / 2, 1 / 2), x = df / (df + t^2).
    let x = bisect(0.0, 1.0, |x| beta_inc(df / 2.0, 0.5, x) <= alpha);
    (df * (1.0 - x) / x).sqrt()
}

/// Student's interval of the mean of `differences`; none for fewer than two.
pub fn interval(differences: &[f64], alpha: f64) -> Option<[f64; 2]> {
    let n = differences.len();
    if n < 2 || differences.iter().any(|d| !d.is_finite()) {
        return None;
    }
    let (mean, variance) = mean_variance(differences);
    let half = student(n as f64 - 1.0, alpha) * (variance / n as f64).sqrt();
    Some([mean - half, mean + half])
}

fn paired(a: &[Sample], b: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(x, y)| of(x) - of(y)).collect()
}

/// How intervals of FERRET minus another lie: all below 0, some above, or neither.
struct Tally {
    below: usize,
    above: usize,
    all: usize,
    means: Vec<f64>,
}

impl Tally {
    fn of(differences: &[Vec<f64>]) -> Self {
        let alpha = 0.05 / differences.len().max(1) as f64;
        let mut tally = Self { below: 0, above: 0, all: differences.len(), means: Vec::new() };
        for d in differences {
            if !d.is_empty() {
                tally.means.push(d.iter().sum::<f64>() / d.len() as f64);
            }
            match interval(d, alpha) {
                Some([_, high]) if high < 0.0 => tally.below += 1,
                Some([low, _]) if low > 0.0 => tally.above += 1,
                _ => {}
            }
        }
        tally
    }

    fn answer(&self) -> Answer {
        match self {
            Self { all: 0, .. } => Answer::Undecided,
            Self { above: 1.., .. } => Answer::Fails,
            Self { below, all, .. } if below == all => Answer::Holds,
            _ => Answer::Undecided,
        }
    }

    /// From the least to the largest mean ratio.
    fn ratios(&self) -> String {
        let low = self.means.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.means.is_empty() { "none".into() } else { format!("{} to {}", short(low.exp()), short(high.exp())) }
    }
}

fn short(x: f64) -> String {
    if x >= 100.0 {
        format!("{x:.0}")
    } else if x >= 10.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.2}")
    }
}

const PAIRED: &str = "Paired over seeds, with Student's interval at 95 % for all cells together (Bonferroni).";

fn both(cells: &[Cell]) -> impl Iterator<Item = &Cell> {
    cells.iter().filter(|c| !c.ferret.is_empty() && !c.dpsgd.is_empty())
}

/// What the paper's grid must say of its budgets.
pub const UNITS_DIFFER: &str = "The same number is nats of mutual information for FERRET and eps of (eps, delta) for DPSGD: the units differ, so \
this is the paper's comparison, not one at equal privacy; for that see the grids true-dp and equal-nats.";

/// What the grid of equal nats must say of its budgets.
pub const UNITS_AGREE: &str = "Budgets are nats of mutual information for both, charged by what each release can tell at most; nats say nothing of \
(eps, delta), for which see the grid true-dp.";

/// H1: lower perplexity than DPSGD at every budget. `units` says what the budgets are.
pub fn utility(name: &str, cells: &[Cell], units: &str) -> Verdict {
    let differences: Vec<_> = both(cells).map(|c| paired(&c.ferret, &c.dpsgd, |s| s.loss)).collect();
    let tally = Tally::of(&differences);
    Verdict {
        name: "H1 (utility): FERRET has a lower perplexity than DPSGD at every budget".into(),
        outcome: tally.answer(),
        test: format!(
            "The logarithm of {name}'s test perplexity minus DPSGD's, in every cell of budget and length. {PAIRED} Holds if all {} \
             intervals lie below 0, fails if any lies above. Below: {}, above: {}. Mean ratio of perplexities, FERRET over DPSGD: {}. \
             {units}",
            tally.all,
            tally.below,
            tally.above,
            tally.ratios()
        ),
    }
}

/// Whether `a` is better than `b` in one respect and not worse in the other.
fn dominates(a: &[Sample], b: &[Sample], alpha: f64) -> bool {
    let high = |d: Vec<f64>| interval(&d, alpha).map(|i| i[1]);
    let (loss, auc) = (high(paired(a, b, |s| s.loss)), high(paired(a, b, |s| s.auc)));
    match (loss, auc) {
        (Some(loss), Some(auc)) => (loss < 0.0 && auc < MARGIN) || (auc < -MARGIN && loss < MARGIN),
        _ => false,
    }
}

/// H2: a better trade-off of privacy and utility than DPSGD and than non-private training.
pub fn trade_off(name: &str, cells: &[Cell]) -> Verdict {
    let mut pairs: Vec<(&[Sample], &[Sample])> = Vec::new();
    for cell in both(cells) {
        pairs.push((&cell.ferret, &cell.dpsgd));
        if !cell.nonprivate.is_empty() {
            pairs.push((&cell.ferret, &cell.nonprivate));
        }
    }
    // Two intervals a comparison.
    let alpha = 0.05 / (2 * pairs.len()).max(1) as f64;
    let better = pairs.iter().filter(|p| dominates(p.0, p.1, alpha)).count();
    let worse = pairs.iter().filter(|p| dominates(p.1, p.0, alpha)).count();
    let outcome = match (better, worse) {
        (_, 1..) => Answer::Fails,
        (b, _) if b == pairs.len() && b > 0 => Answer::Holds,
        _ => Answer::Undecided,
    };
    Verdict {
        name: "H2 (trade-off): FERRET trades privacy for utility better than DPSGD and than non-private training"
            .into(),
        outcome,
        test: format!(
            "{name} against DPSGD and against non-private training in every cell. One of two is better if its test perplexity is lower \
             (interval below 0 on the logarithm) and its attack's AUC is not higher by {MARGIN} or more, or if its AUC is lower by more \
             than {MARGIN} and its perplexity not higher by {:.0} % or more. {PAIRED} Holds if FERRET is better in all {} comparisons, fails if \
             it is worse in any. Better: {better}, worse: {worse}. The AUC is of one attack: it can show a leak, not its absence.",
            100.0 * MARGIN,
            pairs.len()
        ),
    }
}

/// H3: less time than DPSGD.
pub fn time(name: &str, cells: &[Cell]) -> Verdict {
    let differences: Vec<_> = both(cells).map(|c| paired(&c.ferret, &c.dpsgd, |s| s.seconds.max(1e-9).ln())).collect();
    let work: Vec<_> = both(cells).map(|c| paired(&c.ferret, &c.dpsgd, |s| s.gradients.max(1.0).ln())).collect();
    let tally = Tally::of(&differences);
    Verdict {
        name: "H3 (time): FERRET needs less time than DPSGD".into(),
        outcome: tally.answer(),
        test: format!(
            "The logarithm of {name}'s seconds of training minus DPSGD's, in every cell. {PAIRED} Holds if all {} intervals lie below 0, \
             fails if any lies above. Below: {}, above: {}. Mean ratio of times: {}; of record gradients computed: {}. Times are of this \
             machine, with several runs at once where jobs says so.",
            tally.all,
            tally.below,
            tally.above,
            tally.ratios(),
            Tally::of(&work).ratios()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_meets_the_tables() {
        for (df, alpha, t) in [(1.0, 0.05, 12.706), (2.0, 0.05, 4.3027), (9.0, 0.01, 3.2498), (30.0, 0.05, 2.0423)] {
            assert!((student(df, alpha) - t).abs() < 1e-3 * t, "{df} {alpha}: {}", student(df, alpha));
        }
    }

    #[test]
    fn an_interval_is_the_textbooks() {
        // Mean 2, SD 1, n = 3: 2 +- 4.3027 / sqrt(3).
        let [low, high] = interval(&[1.0, 2.0, 3.0], 0.05).unwrap();
        assert!((low + 0.4841).abs() < 1e-3 && (high - 4.4841).abs() < 1e-3, "{low} {high}");
        assert_eq!(interval(&[1.0], 0.05), None);
        assert_eq!(interval(&[1.0, f64::INFINITY], 0.05), None);
    }
}
