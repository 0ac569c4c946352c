//! What a run gave: in memory with its curves, and on disk as one JSON file.

use super::real::ProbeResult;
use crate::audit::bound::{Bound, Charge, Design, judge};
use crate::audit::roc::{Roc, Summary};
use crate::error::Result;
use crate::privacy::guarantee::Guarantee;
use crate::privacy::statement::Statement;
use serde::{Deserialize, Serialize};

/// What an arm gave.
pub struct Outcome {
    /// How tables call it.
    pub name: String,
    /// What is promised about a record, in its own unit.
    pub guarantees: Vec<Guarantee>,
    /// Bits released; none for methods that release more than bits.
    pub bits: Option<u64>,
    /// Bits of one update, for methods that release whole ones.
    pub update_bits: Option<u64>,
    /// How many numbers of the model were tuned; 0 where it is not known.
    pub tuned: u64,
    /// Records whose gradient was computed, over the whole run.
    pub sample_gradients: u64,
    /// Steps in which anything was computed, and all steps.
    pub steps: (u64, u64),
    /// Seconds of training.
    pub seconds: f64,
    /// Mean loss of a token on members and on non-members.
    pub train_loss: f64,
    /// See `train_loss`.
    pub test_loss: f64,
    /// The attack by loss relative to the base model's.
    pub roc: Roc,
    /// The attack's AUC, advantage and rates, with intervals.
    pub attack: Summary,
    /// What the charge permits.
    pub bound: Bound,
    /// Whether the attack exceeds it.
    pub alarm: bool,
    /// (share of the run, mean token loss on held-out records).
    pub curve: Vec<(f64, f64)>,
    /// FERRET's releases.
    pub fired: Option<Raster>,
    /// The privacy statement; none where no record was seen.
    pub statement: Option<Statement>,
    /// What it is charged for.
    pub charge: Charge,
    /// Candidates that became members, and that did not.
    pub candidates: (u64, u64),
    /// The attack's scores of members and of non-members, larger meaning member.
    pub scores: (Vec<f32>, Vec<f32>),
    /// What it answered beside losses, where it was asked.
    pub probed: Option<ProbeResult>,
    /// The most memory that the process had while training, where the system tells and nothing else ran in it.
    pub peak_bytes: Option<u64>,
    /// What the model says after the prompts of held-out records, greedily; where it was asked.
    pub says: Vec<String>,
}

/// Which group fired when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raster {
    /// Step, group, and whether the released sign is plus.
    pub fired: Vec<(u32, u32, bool)>,
    /// Number of groups.
    pub groups: u64,
    /// The block of every group's first tensor, where it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
}

/// An [`Outcome`] as it is stored: what follows from the scores and the charge is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredOutcome {
    pub(super) guarantees: Vec<Guarantee>,
    pub(super) bits: Option<u64>,
    #[serde(default)]
    pub(super) update_bits: Option<u64>,
    #[serde(default)]
    pub(super) tuned: u64,
    pub(super) sample_gradients: u64,
    pub(super) steps: (u64, u64),
    pub(super) seconds: f64,
    pub(super) train_loss: f64,
    pub(super) test_loss: f64,
    pub(super) curve: Vec<(f64, f64)>,
    pub(super) fired: Option<Raster>,
    pub(super) statement: Option<Statement>,
    pub(super) charge: Charge,
    pub(super) candidates: (u64, u64),
    pub(super) members: Vec<f32>,
    pub(super) nonmembers: Vec<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) probed: Option<ProbeResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peak_bytes: Option<u64>,
}

impl From<&Outcome> for StoredOutcome {
    fn from(o: &Outcome) -> Self {
        Self {
            guarantees: o.guarantees.clone(),
            bits: o.bits,
            update_bits: o.update_bits,
            tuned: o.tuned,
            sample_gradients: o.sample_gradients,
            steps: o.steps,
            seconds: o.seconds,
            train_loss: o.train_loss,
            test_loss: o.test_loss,
            curve: o.curve.clone(),
            fired: o.fired.clone(),
            statement: o.statement.clone(),
            charge: o.charge.clone(),
            candidates: o.candidates,
            members: o.scores.0.clone(),
            nonmembers: o.scores.1.clone(),
            probed: o.probed.clone(),
            peak_bytes: o.peak_bytes,
        }
    }
}

impl StoredOutcome {
    /// The outcome, under `name`: the attack is judged again from its scores.
    pub fn restore(self, name: &str) -> Result<Outcome> {
        let wide = |scores: &[f32]| scores.iter().map(|&s| f64::from(s)).collect::<Vec<_>>();
        let roc = Roc::new(&wide(&self.members), &wide(&self.nonmembers))?;
        let bound = Bound::new(&self.charge, Design::CoinFlip, self.candidates.0, self.candidates.1);
        let alarm = judge(&[&roc], &bound, 0.05).iter().flatten().any(|v| v.alarm);
        Ok(Outcome {
            name: name.to_owned(),
            guarantees: self.guarantees,
            bits: self.bits,
            update_bits: self.update_bits,
            tuned: self.tuned,
            sample_gradients: self.sample_gradients,
            steps: self.steps,
            seconds: self.seconds,
            train_loss: self.train_loss,
            test_loss: self.test_loss,
            attack: roc.summary(),
            roc,
            bound,
            alarm,
            curve: self.curve,
            fired: self.fired,
            statement: self.statement,
            charge: self.charge,
            candidates: self.candidates,
            scores: (self.members, self.nonmembers),
            probed: self.probed,
            peak_bytes: self.peak_bytes,
            says: Vec::new(),
        })
    }
}
