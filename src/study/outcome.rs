//! What a run gave: in memory with its curves, and on disk as one JSON file.

use super::real::ProbeResult;
use crate::audit::bound::{Bound, Charge, Design, judge};
use crate::audit::roc::{Roc, Summary};
use crate::error::Result;
use crate::privacy::guarantee::Guarantee;
use crate::privacy::statement::Statement;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// What an arm gave: what was measured, and what follows from it.
pub struct Outcome {
    /// How tables call it.
    pub name: String,
    /// What was measured; its fields are read as if they were here.
    pub stored: StoredOutcome,
    /// The attack by loss relative to the base model's.
    pub roc: Roc,
    /// The attack's AUC, advantage and rates, with intervals.
    pub attack: Summary,
    /// What the charge permits.
    pub bound: Bound,
    /// Whether the attack exceeds it.
    pub alarm: bool,
    /// What the model says after the prompts of held-out records, greedily; where it was asked.
    pub says: Vec<String>,
}

impl Deref for Outcome {
    type Target = StoredOutcome;

    fn deref(&self) -> &StoredOutcome {
        &self.stored
    }
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredOutcome {
    /// What is promised about a record, in its own unit.
    pub guarantees: Vec<Guarantee>,
    /// Bits released; none for methods that release more than bits.
    pub bits: Option<u64>,
    /// Bits of one update, for methods that release whole ones.
    #[serde(default)]
    pub update_bits: Option<u64>,
    /// How many numbers of the model were tuned; 0 where it is not known.
    #[serde(default)]
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
    /// The attack's scores of members, larger meaning member.
    pub members: Vec<f32>,
    /// Those of non-members.
    pub nonmembers: Vec<f32>,
    /// What it answered beside losses, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed: Option<ProbeResult>,
    /// The most memory that the process had while training, where the system tells and nothing else ran in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

impl StoredOutcome {
    /// The outcome, under `name`: the attack is judged again from its scores.
    pub fn restore(self, name: &str) -> Result<Outcome> {
        let wide = |scores: &[f32]| scores.iter().map(|&s| f64::from(s)).collect::<Vec<_>>();
        let roc = Roc::new(&wide(&self.members), &wide(&self.nonmembers))?;
        let bound = Bound::new(&self.charge, Design::CoinFlip, self.candidates.0, self.candidates.1);
        let alarm = judge(&[&roc], &bound, 0.05).iter().flatten().any(|v| v.alarm);
        let attack = roc.summary();
        Ok(Outcome { name: name.to_owned(), stored: self, roc, attack, bound, alarm, says: Vec::new() })
    }
}
