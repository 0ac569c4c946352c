//! What a tuned model's folder tells about its training, and what that was charged for.

use super::pair::Pair;
use super::shadow::Knowledge;
use crate::audit::bound::{Bound, Charge, Design};
use crate::error::{Error, Result};
use crate::fsio::read_text;
use crate::method::ferret::transcript;
use crate::method::{Record, dense};
use crate::privacy::guarantee::{Guarantee, Neighbours};
use crate::privacy::statement::{self, Released, Statement};
use std::path::Path;

/// The charges that hold for a model, and the files beside it that tell of its training.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// What the model may give away, each by itself.
    pub charges: Vec<Charge>,
    /// What the run was told, and what it released where that is kept.
    pub record: Option<Record>,
    /// Of any run.
    pub statement: Option<Statement>,
}

impl Provenance {
    /// What the tuned model's folder tells. A file that names other tensors is refused.
    pub fn of(pair: &Pair) -> Result<Self> {
        let (transcript, run, statement) = (transcript_of(pair)?, run_of(pair)?, statement_of(pair)?);
        let record = transcript.or(run);
        Ok(Self { charges: charges(record.as_ref(), statement.as_ref()), record, statement })
    }

    /// `charge` alone, as whoever audits knows better than files; these tell of the training as far as they fit the model.
    pub fn charged(pair: &Pair, charge: Charge) -> Self {
        Self {
            charges: vec![charge],
            record: transcript_of(pair).ok().flatten().or_else(|| run_of(pair).ok().flatten()),
            statement: statement_of(pair).ok().flatten(),
        }
    }

    /// For shadow models.
    pub fn known(&self) -> Knowledge<'_> {
        Knowledge { record: self.record.as_ref(), statement: self.statement.as_ref() }
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

/// The file `name` beside the tuned model, which must name the model's tensors as `fits` finds them; none where there is no such file.
fn beside<T>(
    pair: &Pair,
    name: &str,
    parse: impl FnOnce(&str, &Path) -> Result<T>,
    fits: impl FnOnce(&T, &str) -> bool,
) -> Result<Option<T>> {
    let path = pair.tuned.folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let found = parse(&read_text(&path)?, &path)?;
    if !fits(&found, &pair.tuned_sha256) {
        return Err(Error::file(
            path,
            "is not of the model beside it: its tuned_sha256 names other tensors, so what it says is not about them; remove it, or \
             audit the model that it belongs to",
        ));
    }
    Ok(Some(found))
}

/// The transcript of a model that was trained by FERRET or FERRET-k.
fn transcript_of(pair: &Pair) -> Result<Option<Record>> {
    beside(pair, transcript::FILE, Record::from_transcript, |t, hash| t.tuned_sha256() == Some(hash))
}

/// What a model was told that was trained with whole updates.
fn run_of(pair: &Pair) -> Result<Option<Record>> {
    let parse = |text: &str, path: &Path| {
        dense::Record::from_json(text).map(Record::Dense).map_err(|e| Error::file(path, e.to_string()))
    };
    beside(pair, dense::RECORD, parse, |r, hash| r.tuned_sha256() == Some(hash))
}

/// The privacy statement. One of version 1 names no model, and is taken for that of the one it lies beside.
fn statement_of(pair: &Pair) -> Result<Option<Statement>> {
    let parse = |text: &str, path: &Path| Statement::from_json(text).map_err(|e| Error::file(path, e.to_string()));
    let fits = |s: &Statement, hash: &str| s.version == 1 || s.tuned_sha256.as_deref() == Some(hash);
    beside(pair, statement::FILE, parse, fits)
}

/// Every bound that files promise: the bits as they were released, and each (eps, delta) that the statement claims.
fn charges(record: Option<&Record>, statement: Option<&Statement>) -> Vec<Charge> {
    let mut charges = Vec::new();
    match (record.filter(|r| r.is_rebuildable()), statement.map(|s| &s.released)) {
        // Of signs after noise, (eps, delta) says more.
        (Some(Record::FerretK(_)), _) => {}
        // K bits tell at most K bits about the coins, whoever knew the samples and whatever was flipped.
        (Some(record), _) => charges.extend(record.bits().map(Charge::Bits)),
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
    if let Some(record @ Record::FerretK(_)) = record {
        charges.extend(record.bits().map(Charge::Bits));
    }
    charges
}
