//! The privacy statement that goes with every trained checkpoint: `privacy.json`, and `PRIVACY.md` for readers.
//!
//! Training fills a [`Statement`] and calls [`Statement::to_json`] and [`Statement::to_markdown`]. Warnings that follow from the
//! fields (a fixed secret seed, a sampler without a proof, private logs) are derived by [`Statement::finish`], so that no method can
//! forget them.

use super::accountant::Accountant;
use super::event::Event;
use super::guarantee::{Guarantee, number};
use super::mi;
use super::pld::Pld;
use super::rdp::Rdp;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Version of the JSON form.
pub const VERSION: u32 = 1;

/// How batches are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sampler {
    /// Every record with probability s, independently.
    #[default]
    Poisson,
    /// A fixed number of records without replacement, anew at each step.
    Uniform,
    /// Each epoch in a random order, cut into batches.
    Shuffle,
}

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
    /// Version of this form.
    pub version: u32,
    /// `ferret-max`, `dpsgd`, `nonprivate`, ...
    pub method: String,
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
    /// Nats of mutual information charged to any one record for the bits really released, or what noise left of them; none for other releases. No promise where the sample is known.
    pub nats_charged: Option<f64>,
    /// Nats of mutual information planned for.
    pub nats_planned: Option<f64>,
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
            method: method.into(),
            released,
            sampler,
            records,
            sampling_rate,
            steps,
            claims: Vec::new(),
            nats_charged: None,
            nats_planned: None,
            insecure_seed: false,
            private_logs: false,
            windows: false,
            users: false,
            assumptions: Vec::new(),
            not_met: Vec::new(),
        }
    }

    /// Add a promise.
    pub fn claim(&mut self, guarantee: Guarantee, accountant: &str, of: &str) -> &mut Self {
        self.claims.push(Claim { guarantee, accountant: accountant.into(), of: of.into() });
        self
    }

    /// What the accountants say of `event`, which is over: the tightest first.
    pub fn claim_spent(&mut self, event: &Event, delta: f64) -> Result<()> {
        for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
            let eps = accountant.epsilon(event, delta)?.upper;
            self.claim(Guarantee::eps_delta(eps, delta), accountant.name(), "spent");
        }
        Ok(())
    }

    /// Charge the bits that were released, whatever else is promised: s K ln 2 nats, and for bits without noise the (0, delta)
    /// that their batches add up to. A flipped bit or a noisy sign is made from the bit alone, and so tells no more than it.
    pub fn charge_bits(&mut self) -> &mut Self {
        let (count, batches, plain) = match self.released {
            Released::Bits { count, batches } => (count, batches, true),
            Released::FlippedBits { count, batches, .. } | Released::DitheredScalars { count, batches, .. } => {
                (count, batches, false)
            }
            Released::NoisedSums { .. } | Released::Gradients { .. } => return self,
        };
        let nats = mi::charge(self.sampling_rate, count);
        self.nats_charged = Some(nats);
        self.claim(Guarantee::MutualInformation { nats }, "mutual information", "spent");
        if plain && self.sampler == Sampler::Poisson {
            let delta = mi::delta_zero_realised(self.sampling_rate, batches);
            self.claim(Guarantee::eps_delta(0.0, delta), "total variation", "spent");
        }
        self
    }

    /// Derive the assumptions and those not met under `circumstances`, and drop what they leave untrue.
    pub fn finish(mut self, circumstances: Circumstances) -> Self {
        Circumstances {
            insecure_seed: self.insecure_seed,
            private_logs: self.private_logs,
            windows: self.windows,
            users: self.users,
        } = circumstances;
        let private = !matches!(self.released, Released::Gradients { .. });
        let mut assume = |text: &str| self.assumptions.push(text.into());
        if private {
            assume("The number of records N is public; so are all settings and the public seed.");
            assume(
                "Which records were in which batch stays secret, for ever: publish neither batches nor the secret key.",
            );
            assume(if self.users {
                "A record is a user: all lines of the data that name the same \"user\", put end to end as one, sampled and clipped as one. \
                 The promises are about everything a user gave; someone who appears under several names is covered for each name."
            } else if self.windows {
                "A record is a window of the text, as long as the model's context. Nothing is promised about a line, or about a \
                 person who is spread over several windows."
            } else {
                "A record is one line of the data. People with several records are covered for each record, not for all together."
            });
            assume(
                "Several runs on the same records add up: nats of mutual information are summed; for (eps, delta) sum both, or \
                 account for the runs as one composition. Choosing settings by looking at the results of runs counts as runs.",
            );
        }
        match self.released {
            Released::FlippedBits { .. } => assume(
                "Flips are drawn from a cryptographic generator. How long a step takes is not hidden from an observer of the machine.",
            ),
            Released::DitheredScalars { .. } => assume(
                "Noise is drawn in double precision from a cryptographic generator, and what is released is rounded to a public grid far \
                 coarser than it, so that the bits of a scalar tell no more than its place on the grid. How long a step takes is not \
                 hidden from an observer of the machine.",
            ),
            Released::NoisedSums { .. } => assume(
                "Noise is drawn in floating point from a cryptographic generator. The finite set of values a floating-point Gaussian \
                 can take is not defended against an observer of the exact bits of single updates, nor is the time a step takes.",
            ),
            Released::Bits { .. } | Released::Gradients { .. } => {}
        }
        let mut unmet = Vec::new();
        if self.insecure_seed {
            unmet.push("not private: sampling and noise are known (--insecure-seed was given)".to_owned());
        }
        if private {
            let nats = match self.released {
                Released::NoisedSums { .. } | Released::Gradients { .. } => "",
                _ => "the mutual-information bound holds, ",
            };
            let how = match self.sampler {
                Sampler::Poisson => None,
                Sampler::Uniform => Some("Batches were drawn uniformly at a fixed size"),
                Sampler::Shuffle => Some("Batches were cut from shuffled epochs"),
            };
            unmet.extend(how.map(|how| {
                format!("{how}: {nats}amplification of (eps, delta) is proven here for Poisson sampling only.")
            }));
        }
        if self.private_logs {
            unmet.push("Realised batch sizes, losses and step times were logged (--log-private): keep the log as secret as the records.".to_owned());
        }
        self.not_met.splice(0..0, unmet);
        if self.sampler != Sampler::Poisson {
            self.claims.retain(|c| !matches!(c.guarantee, Guarantee::EpsDelta { .. }));
        }
        if self.insecure_seed || !private || self.claims.is_empty() {
            self.claims =
                vec![Claim { guarantee: Guarantee::NonPrivate, accountant: "none".into(), of: "spent".into() }];
        }
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

    /// Read `privacy.json`.
    pub fn from_json(text: &str) -> Result<Self> {
        let out: Self = serde_json::from_str(text).map_err(|e| Error::Usage(format!("privacy statement: {e}")))?;
        if out.version != VERSION {
            return Err(Error::Usage(format!(
                "privacy statement: version {}, this program reads {VERSION}: use the program that wrote it",
                out.version
            )));
        }
        Ok(out)
    }

    /// `PRIVACY.md`.
    pub fn to_markdown(&self) -> String {
        let mut out = String::from("# Privacy statement\n\n");
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        if !self.is_private() {
            line("**This model is not private.** Nothing is promised about the records it was trained on.\n".into());
        }
        line(format!("- Method: `{}`, {} steps", self.method, self.steps));
        line(format!("- Released: {}", self.released.describe()));
        line(format!("- Sampling: {}", self.sampler.describe(self.sampling_rate, self.records, self.is_private())));
        line("\n## What is promised about any one record\n".into());
        for c in &self.claims {
            line(format!("- {}: {} (accountant: {})", c.of, c.guarantee, c.accountant));
        }
        // A charge rests on a sample that is secret: where it is not, or gradients left, the numbers are no promise.
        let private = self.is_private();
        if let Some(nats) = self.nats_planned.filter(|_| private) {
            line(format!("- planned budget: {} nats of mutual information", number(nats)));
        }
        if let Some(nats) = self.nats_charged.filter(|_| private) {
            line(format!("- charged for the bits released: {} nats of mutual information", number(nats)));
        }
        if self.nats_charged.is_some() && private {
            line("\nNats of mutual information and (eps, delta) are different units; neither follows from the other's number.".into());
        }
        for (title, list) in [("What this rests on", &self.assumptions), ("What was not met", &self.not_met)] {
            line(format!("\n## {title}\n"));
            if list.is_empty() {
                line("- nothing".into());
            }
            for item in list {
                line(format!("- {item}"));
            }
        }
        out
    }
}

impl Released {
    fn describe(&self) -> String {
        match self {
            Self::Bits { count, batches } => format!("{count} bits from {batches} batches"),
            Self::FlippedBits { count, batches, flip } => {
                format!("{count} bits from {batches} batches, each flipped with probability {}", number(*flip))
            }
            Self::DitheredScalars { count, batches, dither } => {
                format!("{count} scalars from {batches} batches, a sign plus Gaussian noise of {} C", number(*dither))
            }
            Self::NoisedSums { count, noise_multiplier, clip, bits_per_update } => {
                let compressed =
                    bits_per_update.map_or(String::new(), |b| format!(", compressed to {} bits afterwards", number(b)));
                format!(
                    "{count} sums of gradients clipped to {}, with Gaussian noise of {} times that{compressed}",
                    number(*clip),
                    number(*noise_multiplier)
                )
            }
            Self::Gradients { count, bits_per_update: None } => format!("{count} gradients as they are"),
            Self::Gradients { count, bits_per_update: Some(bits) } => {
                format!("{count} compressed gradients of {} bits, without protection", number(*bits))
            }
        }
    }
}

impl Sampler {
    fn describe(self, rate: f64, records: u64, private: bool) -> String {
        let rate = number(rate);
        match self {
            Self::Poisson => {
                let proven = if private { "; amplification is proven" } else { "" };
                format!("Poisson, each of {records} records with probability {rate}{proven}")
            }
            Self::Uniform => format!("uniform batches of a fixed size, share {rate} of {records} records"),
            Self::Shuffle => format!("shuffled epochs of {records} records, share {rate} a batch"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ferret(sampler: Sampler) -> Statement {
        let mut s =
            Statement::new("ferret-max", Released::Bits { count: 144, batches: 140 }, sampler, 10_000, 0.005, 1000);
        s.nats_planned = Some(0.5);
        s.charge_bits();
        s
    }

    #[test]
    fn bits_are_charged_in_nats_and_as_zero_delta_apart() {
        let s = ferret(Sampler::Poisson).finish(Circumstances::default());
        approx::assert_relative_eq!(s.nats_charged.unwrap(), 144.0 * 0.005 * std::f64::consts::LN_2);
        let delta = 1.0 - 0.995_f64.powi(140);
        assert!(s.claims.iter().any(
            |c| matches!(c.guarantee, Guarantee::EpsDelta { eps, delta: d, .. } if eps == 0.0 && (d - delta).abs() < 1e-12)
        ));
        assert!(s.not_met.is_empty() && s.is_private());
        for l in s
            .to_markdown()
            .lines()
            .filter(|l| l.contains("nats") && !l.contains("different units") && !l.contains("add up"))
        {
            assert!(!l.contains("delta") && !l.contains("differential"), "units mixed: {l}");
        }
    }

    #[test]
    fn a_known_seed_takes_every_promise_back() {
        let s = ferret(Sampler::Poisson).finish(Circumstances { insecure_seed: true, ..Default::default() });
        assert!(!s.is_private());
        for number in ["planned budget", "charged for", "proven"] {
            assert!(!s.to_markdown().contains(number), "{}", s.to_markdown());
        }
        assert!(s.not_met[0].contains("not private: sampling and noise are known"));
        assert!(s.to_markdown().contains("**This model is not private.**"));
    }

    #[test]
    fn shuffling_keeps_the_nats_and_loses_eps_delta() {
        let mut s = ferret(Sampler::Shuffle);
        s.claim(Guarantee::eps_delta(1.0, 1e-5), "PLD", "spent");
        let s = s.finish(Circumstances::default());
        assert!(s.claims.iter().all(|c| matches!(c.guarantee, Guarantee::MutualInformation { .. })) && s.is_private());
        assert!(s.not_met[0].contains("Poisson sampling only"));
    }

    #[test]
    fn a_window_of_a_text_is_not_called_a_line() {
        for (windows, unit) in [(true, "a window of the text"), (false, "one line of the data")] {
            let s = ferret(Sampler::Poisson).finish(Circumstances { windows, ..Default::default() });
            let said: Vec<_> = s.assumptions.iter().filter(|a| a.starts_with("A record is")).collect();
            assert!(said.len() == 1 && said[0].contains(unit), "{said:?}");
        }
    }

    #[test]
    fn gradients_are_never_private_and_json_reads_back() {
        let mut s = Statement::new(
            "qsgd",
            Released::Gradients { count: 10, bits_per_update: Some(8e6) },
            Sampler::Poisson,
            100,
            0.1,
            10,
        );
        s.claim(Guarantee::eps_delta(1.0, 1e-5), "PLD", "spent");
        let s = s.finish(Circumstances { private_logs: true, ..Default::default() });
        assert_eq!(s.claims.len(), 1);
        assert_eq!(s.claims[0].guarantee, Guarantee::NonPrivate);
        assert_eq!(Statement::from_json(&s.to_json()).unwrap(), s);
        assert!(Statement::from_json(&s.to_json().replace("\"version\": 1", "\"version\": 9")).is_err());
    }
}
