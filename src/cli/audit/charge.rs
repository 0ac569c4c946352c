//! What the audited model's training charged for: from flags, or from the statement and transcript beside it.

use crate::audit::bound::Charge;
use crate::error::{Error, Result};
use crate::measure::{Pair, Provenance};
use crate::privacy::guarantee::Neighbours;

/// What was charged for.
#[derive(clap::Args, Debug)]
pub(super) struct ChargeArgs {
    /// The model was charged for K released bits [default: what privacy.json and transcript.json in --tuned say]
    #[arg(long, value_name = "K", conflicts_with = "dp_epsilon", help_heading = "Bound")]
    bits: Option<u64>,
    /// The model was charged for (E, delta)-differential privacy
    #[arg(long, value_name = "E", help_heading = "Bound")]
    dp_epsilon: Option<f64>,
    /// The delta of --dp-epsilon [default: 1e-5]
    #[arg(long, requires = "dp_epsilon", help_heading = "Bound")]
    delta: Option<f64>,
    /// Which data sets --dp-epsilon compares; this program's own statements, the default, hold their number public
    #[arg(long, value_enum, value_name = "RELATION", default_value = "replace-by-empty", help_heading = "Bound")]
    dp_neighbours: Relation,
}

/// The names of [`Neighbours`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Relation {
    /// One record added or removed
    AddRemove,
    /// One record replaced by an empty one, their number being public
    ReplaceByEmpty,
    /// One record exchanged for another
    ReplaceOne,
}

impl From<Relation> for Neighbours {
    fn from(relation: Relation) -> Self {
        match relation {
            Relation::AddRemove => Neighbours::AddOrRemoveOne,
            Relation::ReplaceByEmpty => Neighbours::ReplaceByEmpty,
            Relation::ReplaceOne => Neighbours::ReplaceOne,
        }
    }
}

impl ChargeArgs {
    /// Flags win over files.
    pub fn find(&self, pair: &Pair) -> Result<Provenance> {
        // What flags charge may be about a model that its transcript does not fit.
        if let Some(bits) = self.bits {
            return Ok(Provenance::charged(pair, Charge::Bits(bits)));
        }
        if let Some(eps) = self.dp_epsilon {
            let delta = self.delta.unwrap_or(1e-5);
            if !(eps >= 0.0 && eps.is_finite() && (0.0..1.0).contains(&delta)) {
                return Err(Error::usage(format!(
                    "--dp-epsilon {eps} --delta {delta}: an epsilon of at least 0 and a delta from 0 to below 1 are expected"
                )));
            }
            let neighbours = self.dp_neighbours.into();
            return Ok(Provenance::charged(pair, Charge::EpsDelta { eps, delta, neighbours }));
        }
        Provenance::of(pair)
    }
}
