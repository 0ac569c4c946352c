//! What the audited model's training charged for: from flags, or from the statement and transcript beside it.

use super::pair::{self, Pair};
use crate::audit::bound::{Bound, Charge, Design};
use crate::error::{Error, Result};
use crate::measure::shadow::Known;
use crate::method::dense;
use crate::method::ferret::{Payload, Transcript};
use crate::privacy::guarantee::{Guarantee, Neighbours};
use crate::privacy::statement::{Released, Statement};

/// How membership was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Membership {
    /// A fair coin for every candidate
    CoinFlip,
    /// A random subset of fixed size
    RandomSubset,
    /// Given from outside: no bound applies
    Given,
}

impl From<Membership> for Design {
    fn from(membership: Membership) -> Self {
        match membership {
            Membership::CoinFlip => Design::CoinFlip,
            Membership::RandomSubset => Design::RandomSubset,
            Membership::Given => Design::Given,
        }
    }
}

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
    /// Which data sets --dp-epsilon compares
    #[arg(long, value_enum, value_name = "RELATION", default_value = "add-remove", help_heading = "Bound")]
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

/// The charges that hold for a model, and what its folder tells about its training.
pub(super) struct Found {
    pub charges: Vec<Charge>,
    pub transcript: Option<Transcript>,
    pub record: Option<dense::Record>,
    pub statement: Option<Statement>,
}

impl ChargeArgs {
    /// Flags win over files.
    pub fn find(&self, pair: &Pair) -> Result<Found> {
        // What flags charge may be about a model that its transcript does not fit.
        let own = |charge: Charge| {
            let transcript = pair::transcript_of(&pair.tuned, &pair.tuned_sha256).ok().flatten();
            let record = pair::record_of(&pair.tuned, &pair.tuned_sha256).ok().flatten();
            let statement = pair::statement_of(&pair.tuned, &pair.tuned_sha256).ok().flatten();
            Ok(Found { charges: vec![charge], transcript, record, statement })
        };
        if let Some(bits) = self.bits {
            return own(Charge::Bits(bits));
        }
        if let Some(eps) = self.dp_epsilon {
            let delta = self.delta.unwrap_or(1e-5);
            if !(eps >= 0.0 && eps.is_finite() && (0.0..1.0).contains(&delta)) {
                return Err(Error::usage(format!(
                    "--dp-epsilon {eps} --delta {delta}: an epsilon of at least 0 and a delta from 0 to below 1 are expected"
                )));
            }
            return own(Charge::EpsDelta { eps, delta, neighbours: self.dp_neighbours.into() });
        }
        Found::of(pair)
    }
}

impl Found {
    /// What the tuned model's folder tells.
    pub fn of(pair: &Pair) -> Result<Self> {
        let transcript = pair::transcript_of(&pair.tuned, &pair.tuned_sha256)?;
        let record = pair::record_of(&pair.tuned, &pair.tuned_sha256)?;
        let statement = pair::statement_of(&pair.tuned, &pair.tuned_sha256)?;
        Ok(Self { charges: charges(transcript.as_ref(), statement.as_ref()), transcript, record, statement })
    }
}

/// Every bound that files promise: the bits as they were released, and each (eps, delta) that the statement claims.
fn charges(transcript: Option<&Transcript>, statement: Option<&Statement>) -> Vec<Charge> {
    let mut charges = Vec::new();
    match (transcript, statement.map(|s| &s.released)) {
        // K bits tell at most K bits about the coins, whoever knew the samples and whatever was flipped.
        (Some(t), _) if t.settings.payload == Payload::Sign => {
            if let crate::method::ferret::Releases::Bits(bits) = &t.releases {
                charges.push(Charge::Bits(bits.len() as u64));
            }
        }
        (None, Some(Released::Bits { count, .. } | Released::FlippedBits { count, .. })) => {
            charges.push(Charge::Bits(*count));
        }
        _ => {}
    }
    for claim in statement.into_iter().flat_map(|s| &s.claims).filter(|c| c.of == "spent") {
        if let Guarantee::EpsDelta { eps, delta, neighbours } = claim.guarantee {
            charges.push(Charge::EpsDelta { eps, delta, neighbours });
        }
    }
    charges
}

impl Found {
    /// For shadow models.
    pub fn known(&self) -> Known<'_> {
        Known { transcript: self.transcript.as_ref(), record: self.record.as_ref(), statement: self.statement.as_ref() }
    }

    /// The charge with the tightest bound on the advantage; no guarantee where nothing is promised.
    pub fn tightest(&self, design: Design, candidates: (u64, u64)) -> Charge {
        // Where no bound applies all are equal, and the first says best what was charged.
        let advantage = |c: &Charge| Bound::new(c, design, candidates.0, candidates.1).advantage();
        let best = self.charges.iter().reduce(|a, b| if advantage(b) < advantage(a) { b } else { a });
        best.cloned().unwrap_or(Charge::NonPrivate)
    }

    /// The accountant's smallest (eps, delta) with eps above 0, where there is one that leaving a record out is covered by: a planted
    /// secret is there or, in its place, an empty record. Of an exchange for another record it says nothing.
    pub fn eps_delta(&self) -> Option<(f64, f64)> {
        let pairs = self.charges.iter().filter_map(|c| match c {
            Charge::EpsDelta { neighbours: Neighbours::ReplaceOne, .. } => None,
            Charge::EpsDelta { eps, delta, .. } if *eps > 0.0 || *delta == 0.0 => Some((*eps, *delta)),
            _ => None,
        });
        pairs.reduce(|a, b| if b.0 < a.0 { b } else { a })
    }

    /// Realised bits, where they were charged for.
    pub fn bits(&self) -> Option<u64> {
        self.charges.iter().find_map(|c| if let Charge::Bits(bits) = c { Some(*bits) } else { None })
    }
}
