//! Attacks made of scores.

use crate::audit::attack::{Mode, RmiaSettings, Shadows, Variance, lira, rmia};
use crate::audit::roc::Roc;
use crate::audit::score::{RecordStats, Score};
use crate::error::Result;

/// One attack's value for every record; larger means "more likely a member".
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The attack's name in tables and files.
    pub name: String,
    /// Of the members, in order.
    pub members: Vec<f64>,
    /// Of the non-members, in order.
    pub nonmembers: Vec<f64>,
}

impl Scores {
    /// Cut `values` of members followed by non-members.
    fn split(name: &str, mut values: Vec<f64>, members: usize) -> Self {
        let nonmembers = values.split_off(members);
        Self { name: name.into(), members: values, nonmembers }
    }

    /// True-positive rate over false-positive rate, at every threshold.
    pub fn roc(&self) -> Result<Roc> {
        Roc::new(&self.members, &self.nonmembers)
    }
}

/// A threshold on every score whose statistics are there. `min_k` is the fraction of tokens that min-k averages.
pub fn threshold_attacks(members: &[RecordStats], nonmembers: &[RecordStats], min_k: f64) -> Result<Vec<Scores>> {
    let mut attacks = Vec::new();
    for score in Score::ALL {
        let score = match score {
            Score::MinK(_) => Score::MinK(min_k),
            Score::MinKPlusPlus(_) => Score::MinKPlusPlus(min_k),
            other => other,
        };
        if let (Some(members), Some(nonmembers)) = (score.of_all(members)?, score.of_all(nonmembers)?) {
            attacks.push(Scores { name: score.name(), members, nonmembers });
        }
    }
    Ok(attacks)
}

/// Mean log-probabilities under the target model and K shadow models, of the candidates (members first) and of a population
/// that neither was trained on.
#[derive(Clone, Debug)]
pub struct ShadowScores {
    /// The target's scores of the candidates.
    pub target: Vec<f64>,
    /// `[shadow][candidate]`.
    pub shadows: Vec<Vec<f64>>,
    /// `[shadow][candidate]`: whether the shadow model was trained on it.
    pub trained: Vec<Vec<bool>>,
    /// The target's scores of the population; empty: no RMIA.
    pub population: Vec<f64>,
    /// `[shadow][population record]`.
    pub population_shadows: Vec<Vec<f64>>,
    /// How many of the candidates are members.
    pub members: usize,
}

/// LiRA and RMIA, online where shadow models were trained on candidates, offline always. With fewer than 32 shadow models LiRA
/// pools its variances.
pub fn shadow_attacks(scores: ShadowScores) -> Result<Vec<Scores>> {
    let ShadowScores { target, shadows, trained, population, population_shadows, members } = scores;
    let count = shadows.len();
    let variance = if count < 32 { Variance::Global } else { Variance::PerRecord };
    let online = trained.iter().flatten().any(|&t| t);
    let shadows = Shadows::new(shadows, trained)?;
    let modes: &[(Mode, &str)] =
        if online { &[(Mode::Online, "online"), (Mode::Offline, "offline")] } else { &[(Mode::Offline, "offline")] };
    let mut attacks = Vec::new();
    for &(mode, name) in modes {
        attacks.push(Scores::split(&format!("lira-{name}"), lira(&target, &shadows, mode, variance)?, members));
    }
    if !population.is_empty() {
        let never = vec![vec![false; population.len()]; count];
        let reference = Shadows::new(population_shadows, never)?;
        for &(mode, name) in modes {
            let settings = RmiaSettings { mode, ..RmiaSettings::default() };
            let values = rmia(&target, &shadows, &population, &reference, settings)?;
            attacks.push(Scores::split(&format!("rmia-{name}"), values, members));
        }
    }
    Ok(attacks)
}
