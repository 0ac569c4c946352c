//! Attacks that compare a record with how models behave that were, or were not, trained on it.
//!
//! Nothing is fitted on the records it is judged on: every fit uses shadow models' scores, the target model's score
//! of a record enters only as the point that is judged, and a threshold chosen by data is judged on other records.

use serde::{Deserialize, Serialize};

use super::stats::{SeededRng, mean_variance, proportion_lower, proportion_upper};
use crate::{Error, Result};

/// Scores of N records under M shadow models, with who was trained on what.
#[derive(Debug, Clone)]
pub struct Shadows {
    scores: Vec<Vec<f64>>,
    member: Vec<Vec<bool>>,
    records: usize,
}

/// Scores of one record under models trained on it, and under the others.
type Split = (Vec<f64>, Vec<f64>);

impl Shadows {
    /// `scores[shadow][record]` and `member[shadow][record]`.
    pub fn new(scores: Vec<Vec<f64>>, member: Vec<Vec<bool>>) -> Result<Self> {
        let records = scores.first().map_or(0, Vec::len);
        if records == 0 || scores.len() != member.len() {
            return Err(Error::usage(format!(
                "shadow scores and membership need the same positive number of models, found {} and {}",
                scores.len(),
                member.len()
            )));
        }
        for (shadow, (row, mask)) in scores.iter().zip(&member).enumerate() {
            if row.len() != records || mask.len() != records {
                return Err(Error::usage(format!(
                    "shadow model {shadow} has {} scores and {} memberships where {records} records were expected",
                    row.len(),
                    mask.len()
                )));
            }
            if let Some(record) = row.iter().position(|s| !s.is_finite()) {
                return Err(Error::Diverged(format!(
                    "shadow model {shadow} scores record {record} as {}: its training diverged, leave it out",
                    row[record]
                )));
            }
        }
        Ok(Self { scores, member, records })
    }

    fn split(&self, record: usize) -> Split {
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for (row, mask) in self.scores.iter().zip(&self.member) {
            if mask[record] { inside.push(row[record]) } else { outside.push(row[record]) }
        }
        (inside, outside)
    }

    fn check_target(&self, target: &[f64]) -> Result<()> {
        if target.len() == self.records {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the target model has {} scores, the shadow models {}: score the same records in the same order",
            target.len(),
            self.records
        )))
    }
}

/// How a Gaussian's variance is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variance {
    /// Each record's own: wants some tens of shadow models.
    PerRecord,
    /// One pooled over all records' deviations from their means: better with few shadow models.
    Global,
}

/// Which shadow models the adversary could train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// With and without the record in question.
    Online,
    /// Without it only, before the record was known.
    Offline,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Online => "online",
            Mode::Offline => "offline",
        }
    }
}

/// The likelihood-ratio attack of Carlini et al. 2022, one value a record.
///
/// Online: `ln N(x; in) - ln N(x; out)` with Gaussians fitted to the record's shadow scores. Offline: the standard
/// score `(x - mean_out) / sd_out`, which orders records as `1 - P[N(out) > x]` does, without saturating at 1.
pub fn lira(target: &[f64], shadows: &Shadows, mode: Mode, variance: Variance) -> Result<Vec<f64>> {
    shadows.check_target(target)?;
    let splits: Vec<_> = (0..shadows.records).map(|record| shadows.split(record)).collect();
    let least = match variance {
        Variance::PerRecord => 2,
        Variance::Global => 1,
    };
    for (record, (inside, outside)) in splits.iter().enumerate() {
        let missing = outside.len() < least || (mode == Mode::Online && inside.len() < least);
        if missing {
            return Err(Error::usage(format!(
                "record {record} is in {} and out of {} shadow models, {} LiRA with {} needs at least {least}: train more shadow \
                 models or use the global variance",
                inside.len(),
                outside.len(),
                mode.name(),
                if variance == Variance::Global { "one variance for all" } else { "each record's own variance" }
            )));
        }
    }
    let pooled = |side: fn(&Split) -> &Vec<f64>| -> Result<f64> {
        let (mut squares, mut freedom) = (0.0, 0.0);
        for split in &splits {
            let freedom_here = (side(split).len() as f64 - 1.0).max(0.0);
            squares += mean_variance(side(split)).1 * freedom_here;
            freedom += freedom_here;
        }
        if freedom == 0.0 {
            return Err(Error::usage(
                "a variance needs some record with two shadow scores on a side: train more shadow models",
            ));
        }
        Ok(squares / freedom)
    };
    let global_out = pooled(|split| &split.1)?;
    let global_in = if mode == Mode::Online { pooled(|split| &split.0)? } else { global_out };
    // Keeps a record whose shadow scores coincide from having infinite likelihood.
    let floor = 1e-6 * global_out.max(global_in) + 1e-30;
    let fit = |values: &[f64], global: f64| {
        let (mean, own) = mean_variance(values);
        (mean, if variance == Variance::Global { global } else { own }.max(floor))
    };
    let judge = |(&x, (inside, outside)): (&f64, &Split)| {
        let (mean_out, var_out) = fit(outside, global_out);
        match mode {
            Mode::Offline => (x - mean_out) / var_out.sqrt(),
            Mode::Online => {
                let (mean_in, var_in) = fit(inside, global_in);
                let minus_ln = |mean: f64, var: f64| 0.5 * (var.ln() + (x - mean) * (x - mean) / var);
                minus_ln(mean_out, var_out) - minus_ln(mean_in, var_in)
            }
        }
    };
    Ok(target.iter().zip(&splits).map(judge).collect())
}

/// What RMIA is told beside the scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmiaSettings {
    /// Whether `P(x)` is averaged over shadow models with and without x, or extrapolated from those without.
    pub mode: Mode,
    /// The ratio that x must reach against z; 1 unless there is a reason.
    pub gamma: f64,
    /// Offline: `P(x) = ((1 + a) P_out(x) + 1 - a) / 2`. 1 takes `P_out` as it is; the authors use 0.2 to 1, chosen on
    /// shadow models.
    pub a: f64,
}

impl Default for RmiaSettings {
    fn default() -> Self {
        Self { mode: Mode::Offline, gamma: 1.0, a: 1.0 }
    }
}

/// The robust attack of Zarifzadeh et al. 2024: the share of population records z with
/// `[P(x|target) / P(x)] / [P(z|target) / P(z)] >= gamma`, one value a record.
///
/// Scores are log-probabilities (a sequence's mean token log-probability). `population` records must be none of those
/// judged and in no target training set; shadow models may or may not have seen them.
pub fn rmia(
    target: &[f64],
    shadows: &Shadows,
    population: &[f64],
    population_shadows: &Shadows,
    settings: RmiaSettings,
) -> Result<Vec<f64>> {
    shadows.check_target(target)?;
    population_shadows.check_target(population)?;
    if !(settings.gamma > 0.0 && (0.0..=1.0).contains(&settings.a)) {
        return Err(Error::usage(format!(
            "RMIA needs gamma above 0 and a in [0, 1], found {} and {}",
            settings.gamma, settings.a
        )));
    }
    let mut reference: Vec<f64> = Vec::with_capacity(population.len());
    for (record, &log_prob) in population.iter().enumerate() {
        // Records of the population need not be in any shadow model: then online falls back to their OUT models.
        let (inside, _) = population_shadows.split(record);
        let mode = if inside.is_empty() { Mode::Offline } else { settings.mode };
        reference.push(log_prob - log_marginal(population_shadows, record, mode, settings.a)?);
    }
    reference.sort_by(f64::total_cmp);
    let ln_gamma = settings.gamma.ln();
    target
        .iter()
        .enumerate()
        .map(|(record, &log_prob)| {
            let ratio = log_prob - log_marginal(shadows, record, settings.mode, settings.a)?;
            let dominated = reference.partition_point(|z| ratio - z >= ln_gamma);
            Ok(dominated as f64 / reference.len() as f64)
        })
        .collect()
}

/// `ln P(x)`: online the mean of the mean over IN and the mean over OUT models, offline see [`RmiaSettings::a`].
fn log_marginal(shadows: &Shadows, record: usize, mode: Mode, a: f64) -> Result<f64> {
    let (inside, outside) = shadows.split(record);
    if outside.is_empty() || (mode == Mode::Online && inside.is_empty()) {
        return Err(Error::usage(format!(
            "record {record} is in {} and out of {} shadow models, {} RMIA needs at least one of each kind it reads",
            inside.len(),
            outside.len(),
            mode.name()
        )));
    }
    let outside = log_mean_exp(&outside);
    Ok(match mode {
        Mode::Online => log_mean_exp(&[log_mean_exp(&inside), outside]),
        // (1 + a)/2 e^out + (1 - a)/2, the second term absent at a = 1.
        Mode::Offline if a == 1.0 => outside,
        Mode::Offline => (0.5 * (1.0 + a) * outside.exp() + 0.5 * (1.0 - a)).ln(),
    })
}

fn log_mean_exp(values: &[f64]) -> f64 {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY {
        return top;
    }
    top + (values.iter().map(|v| (v - top).exp()).sum::<f64>() / values.len() as f64).ln()
}

/// A threshold chosen on one half of the records and judged on the other: an advantage that its own maximisation has
/// not lifted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Chosen on the first half.
    pub threshold: f64,
    /// Judged on the second half; may be negative.
    pub advantage: f64,
    /// 95 %: exact binomial limits of TPR and FPR at 97.5 % each, subtracted.
    pub advantage_ci: [f64; 2],
}

/// Split both groups in halves by `seed`, choose the threshold with the largest `TPR - FPR` on one, judge on the other.
pub fn held_out_threshold(members: &[f64], nonmembers: &[f64], seed: u64) -> Result<HeldOut> {
    if members.len() < 2 || nonmembers.len() < 2 {
        return Err(Error::usage(format!(
            "a held-out threshold needs two records on each side, found {} members and {} non-members",
            members.len(),
            nonmembers.len()
        )));
    }
    let mut rng = SeededRng::new(seed);
    let mut halves = |scores: &[f64]| {
        let mut scores = scores.to_vec();
        rng.shuffle(&mut scores);
        let rest = scores.split_off(scores.len() / 2);
        (scores, rest)
    };
    let ((choose_in, judge_in), (choose_out, judge_out)) = (halves(members), halves(nonmembers));
    let roc = super::roc::Roc::new(&choose_in, &choose_out)?;
    let gain = |point: &super::roc::Point| {
        let (fpr, tpr) = roc.rates(point);
        tpr - fpr
    };
    let best = roc.points().iter().max_by(|a, b| gain(a).total_cmp(&gain(b)));
    let threshold = best.map_or(f64::INFINITY, |point| point.threshold);
    let rate = |scores: &[f64]| {
        let (k, n) = (scores.iter().filter(|&&s| s >= threshold).count() as f64, scores.len() as f64);
        // 95 % for the difference: 2.5 % for each rate, both ends.
        (k / n, proportion_lower(k, n, 0.0125), proportion_upper(k, n, 0.0125))
    };
    let (tpr, fpr) = (rate(&judge_in), rate(&judge_out));
    Ok(HeldOut { threshold, advantage: tpr.0 - fpr.0, advantage_ci: [tpr.1 - fpr.2, tpr.2 - fpr.1] })
}
