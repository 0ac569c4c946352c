//! The privacy statement that goes with every trained checkpoint: `privacy.json`, and `PRIVACY.md` for readers.
//!
//! Training fills a [`Statement`] and calls [`Statement::to_json`] and [`Statement::to_markdown`]. Warnings that follow from the
//! fields (a fixed secret seed, a sampler without a proof, private logs) are derived by [`Statement::finish`], so that no method can
//! forget them.
//!
//! A statement is not to be believed: everything in it follows from the run's settings and releases by the rules of its
//! [version](Statement::version), so that whoever has those states it again and compares ([`Statement::differences`]). Files of every
//! version are read for ever, and the newest is written; the rules of an earlier version stay as they were.

mod charge;
mod compare;
mod words;

use super::accountant::Accountant;
use super::event::{Event, Sampler};
use super::guarantee::{Guarantee, Neighbours};
use super::mi::Accounting;
use super::pld::Pld;
use super::rdp::Rdp;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Version of the form and of the rules by which a statement follows from a run.
///
/// 1: no hash of the model, no event; neighbours called "one record added or removed"; nats not said to be given all other records.
/// 2: all of these. Bits are charged s ln 2 nats each, sums none.
/// 3: every private release has nats, bits of one batch and noise charged by what they can tell ([`mi`](super::mi)); the paper's s K ln 2 beside it.
///    A budget in nats that was exceeded is listed among what was not met.
pub const VERSION: u32 = 3;

/// The file's name in a trained checkpoint's folder.
pub const FILE: &str = "privacy.json";

/// The same for readers.
pub const PAGE: &str = "PRIVACY.md";

/// What an audit of a run on its own records adds to what was not met.
pub const AUDITED: &str = "An audit was run (--audit): the files in audit/ are computed from the private records, tell who is among them, \
                    and are covered by no promise made here. Keep that folder as secret as the records; publish the model without it.";

/// What a run adds to what was not met if it was begun again after it had diverged.
pub const RESTARTED: &str = "This run was begun again after one on the same records had diverged, with other settings (--restart-diverged): what \
                      that one released, and the choice made because of it, are not counted here.";

/// What left the boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Released {
    /// FERRET's bits as they are.
    Bits {
        /// How many.
        count: u64,
        /// From how many batches, each sampled anew.
        batches: u64,
    },
    /// FERRET's bits after randomised response.
    FlippedBits {
        /// How many.
        count: u64,
        /// From how many batches, each sampled anew.
        batches: u64,
        /// Probability of a flip.
        flip: f64,
    },
    /// FERRET's scalars with Gaussian noise along the direction.
    DitheredScalars {
        /// How many.
        count: u64,
        /// From how many batches, each sampled anew.
        batches: u64,
        /// Standard deviation of the noise in units of C.
        dither: f64,
    },
    /// Sums of clipped gradients with Gaussian noise.
    NoisedSums {
        /// How many.
        count: u64,
        /// Standard deviation of the noise over the clipping bound.
        noise_multiplier: f64,
        /// The clipping bound C.
        clip: f64,
        /// Bits sent an update, where the method compresses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bits_per_update: Option<f64>,
    },
    /// Sums of each record's few numbers (FERRET-k: a sketch of its gradient), clipped together, with Gaussian noise once.
    NoisedSketches {
        /// How many sums.
        count: u64,
        /// Numbers in each.
        numbers: u32,
        /// Whether only their signs were released.
        signs: bool,
        /// Whether only two bits of each, its sign and one of two levels, and one size for all were released.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        levels: bool,
        /// Standard deviation of the noise over the clipping bound.
        noise_multiplier: f64,
        /// The clipping bound C.
        clip: f64,
    },
    /// Gradients, or functions of them, without protection.
    Gradients {
        /// How many updates.
        count: u64,
        /// Bits sent an update, where the method compresses.
        bits_per_update: Option<f64>,
    },
}

/// What else decides what a run gave away, beside its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Sampling and noise came from a known seed.
    pub insecure_seed: bool,
    /// Private logs were written.
    pub private_logs: bool,
    /// Records were windows of a plain text.
    pub windows: bool,
    /// Each record was all that one user gave.
    pub users: bool,
    /// On how many ranks the records lay, each with a shard that no other saw; none: in one hand.
    pub shards: Option<u32>,
}

/// A guarantee, who says so, and for what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The promise.
    pub guarantee: Guarantee,
    /// Which accountant computed it: "mutual information", "RDP", "PLD", "total variation".
    pub accountant: String,
    /// For what: "planned", "spent".
    pub of: String,
}

/// Everything a reader needs to judge what a checkpoint gives away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Version of this form, and of the rules that made it: see [`VERSION`].
    pub version: u32,
    /// SHA-256 of the tensors that it is about; none before there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned_sha256: Option<String>,
    /// `ferret-max`, `dpsgd`, `nonprivate`, ...
    pub method: String,
    /// Which tensors were tuned, in the words of the setting; none: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tune: Option<String>,
    /// What was released.
    pub released: Released,
    /// How batches were drawn.
    pub sampler: Sampler,
    /// Records N, taken as public.
    pub records: u64,
    /// Expected batch size over records.
    pub sampling_rate: f64,
    /// Steps T, silent ones included.
    pub steps: u64,
    /// The promises; empty only before [`Statement::finish`].
    pub claims: Vec<Claim>,
    /// What the accountants of (eps, delta) were told, so that several runs can be composed exactly; none for what they do not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// Nats of mutual information charged to any one record for what was really released; none where no finite charge is proven. No promise
    /// where the sample is known.
    pub nats_charged: Option<f64>,
    /// What the paper charges for the bits: s ln 2 nats each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nats_paper: Option<f64>,
    /// Nats of mutual information planned for.
    pub nats_planned: Option<f64>,
    /// How the plan counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// `--insecure-seed` was given: sampling and noise can be repeated by anyone who knows it.
    pub insecure_seed: bool,
    /// `--log-private` was given: the log holds realised batch sizes, losses and times.
    pub private_logs: bool,
    /// Records were windows of a plain text: the promises are about a window.
    #[serde(default)]
    pub windows: bool,
    /// Each record was all that one user gave: the promises are about a user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub users: bool,
    /// On how many ranks the records lay, each with a shard that no other saw; none: in one hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// What the promises rest on.
    pub assumptions: Vec<String>,
    /// Which of them do not hold here.
    pub not_met: Vec<String>,
}

impl Statement {
    /// A statement with the claims still to be added.
    pub fn new(
        method: impl Into<String>,
        released: Released,
        sampler: Sampler,
        records: u64,
        sampling_rate: f64,
        steps: u64,
    ) -> Self {
        Self {
            version: VERSION,
            tuned_sha256: None,
            method: method.into(),
            tune: None,
            released,
            sampler,
            records,
            sampling_rate,
            steps,
            claims: Vec::new(),
            event: None,
            nats_charged: None,
            nats_paper: None,
            nats_planned: None,
            accounting: None,
            insecure_seed: false,
            private_logs: false,
            windows: false,
            users: false,
            shards: None,
            assumptions: Vec::new(),
            not_met: Vec::new(),
        }
    }

    /// Add a promise.
    pub fn claim(&mut self, guarantee: Guarantee, accountant: &str, of: &str) -> &mut Self {
        self.claims.push(Claim { guarantee, accountant: accountant.into(), of: of.into() });
        self
    }

    /// The same by the rules of an earlier version. Before anything is claimed.
    pub fn by_rules_of(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Name the tensors that were tuned, in the words of the setting.
    pub fn of_tensors(mut self, tune: String) -> Self {
        self.tune = Some(tune).filter(|t| t != "all");
        self
    }

    /// (eps, delta) as this statement's version promises it: N and T are public, so a neighbour has an empty record in the place of one.
    pub fn eps_delta(&self, eps: f64, delta: f64) -> Guarantee {
        match self.version {
            1 => Guarantee::EpsDelta { eps, delta, neighbours: Neighbours::AddOrRemoveOne },
            _ => Guarantee::eps_delta(eps, delta),
        }
    }

    /// What the accountants say of `event`, which is over: the tightest first.
    pub fn claim_spent(&mut self, event: Event, delta: f64) -> Result<()> {
        for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
            let eps = accountant.epsilon(&event, delta)?.upper;
            self.claim(self.eps_delta(eps, delta), accountant.name(), "spent");
        }
        self.spent(event);
        Ok(())
    }

    /// Write down what the accountants were told of what was released.
    pub fn spent(&mut self, event: Event) -> &mut Self {
        self.event = (self.version > 1).then_some(event);
        self
    }

    /// Whether anything is promised.
    pub fn is_private(&self) -> bool {
        self.claims.iter().any(|c| c.guarantee.is_private())
    }

    /// `privacy.json`.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a statement holds only plain values");
        text.push('\n');
        text
    }

    /// Read `privacy.json`, of this version or an earlier one.
    pub fn from_json(text: &str) -> Result<Self> {
        let broken = |e: serde_json::Error| Error::Usage(format!("privacy statement: {e}"));
        // The version first: a later one may have fields that this program does not know.
        let head: serde_json::Value = serde_json::from_str(text).map_err(broken)?;
        if !head["version"].as_u64().is_some_and(|v| (1..=u64::from(VERSION)).contains(&v)) {
            return Err(Error::Usage(format!(
                "privacy statement: version {}, this program reads versions up to {VERSION}: use the one that wrote it, or a later one",
                head["version"]
            )));
        }
        serde_json::from_str(text).map_err(broken)
    }
}

#[cfg(test)]
mod tests;
