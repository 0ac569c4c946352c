//! What a statement says in words: assumptions, those not met, and the page. The words of each version stay as they were.

use super::super::event::Sampler;
use super::super::guarantee::{Guarantee, number};
use super::{Circumstances, Claim, Released, Statement};
use crate::privacy::mi::Accounting;

impl Statement {
    /// Derive the assumptions and those not met under `circumstances`, and drop what they leave untrue.
    pub fn finish(mut self, circumstances: Circumstances) -> Self {
        Circumstances {
            insecure_seed: self.insecure_seed,
            private_logs: self.private_logs,
            windows: self.windows,
            users: self.users,
            shards: self.shards,
        } = circumstances;
        let private = !matches!(self.released, Released::Gradients { .. });
        self.assumptions.extend(self.assumed().into_iter().map(str::to_owned));
        self.assumptions.extend(self.shards.map(|ranks| self.trusted(ranks)));
        let mut unmet = Vec::new();
        if self.insecure_seed {
            unmet.push("not private: sampling and noise are known (--insecure-seed was given)".to_owned());
        }
        if private {
            let nats = match self.released {
                Released::NoisedSums { .. } if self.version < 3 => "",
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
        // An event stands for an (eps, delta) that is promised, and for nothing else.
        if !self.claims.iter().any(|c| matches!(c.guarantee, Guarantee::EpsDelta { .. })) {
            self.event = None;
        }
        self
    }

    /// What the ranks of a run in shards trust each other with.
    fn trusted(&self, ranks: u32) -> String {
        let sums = match self.released {
            Released::Bits { .. } | Released::FlippedBits { .. } | Released::DitheredScalars { .. } => {
                "each other's sum of <gradient, direction> for every released number"
            }
            Released::NoisedSketches { .. } => "each other's sum of clipped sketches at every step",
            Released::NoisedSums { .. } => "each other's sum of clipped gradients at every step",
            Released::Gradients { .. } => "each other's sum of gradients, losses and batch sizes at every step",
        };
        format!(
            "The records lay on {ranks} ranks, each with a shard that no other saw and sampled by a key of its own. What is promised is about \
             whoever gets the model, not about the ranks: they see {sums}, as it is, without noise (secure aggregation is not done), how \
             many records each has, and salted hashes of them, by which a guessed record can be tested. They trust each other, and the network between them, with that, \
             and with the key of noise and flips."
        )
    }

    /// What the promises rest on.
    fn assumed(&self) -> Vec<&'static str> {
        let mut said = Vec::new();
        if !matches!(self.released, Released::Gradients { .. }) {
            said.push(match self.version {
                1 => "The number of records N is public; so are all settings and the public seed.",
                _ => {
                    "The number of records N and the number of steps T are public; so are all settings and the public seed. Two data sets \
                     are neighbours where one record of the one is an empty one in the other."
                }
            });
            said.push(
                "Which records were in which batch stays secret, for ever: publish neither batches nor the secret key.",
            );
            said.push(if self.users {
                "A record is a user: all lines of the data that name the same \"user\", put end to end as one, sampled and clipped as one. \
                 The promises are about everything a user gave; someone who appears under several names is covered for each name."
            } else if self.windows {
                "A record is a window of the text, as long as the model's context. Nothing is promised about a line, or about a \
                 person who is spread over several windows."
            } else {
                "A record is one line of the data. People with several records are covered for each record, not for all together."
            });
            if self.version > 1 {
                said.push(
                    "Nats of mutual information are counted given all other records. Copies of a record, and records that tell of one \
                     another, add up, where there is noise faster than their number: they are covered one by one, not together.",
                );
            }
            said.push(match self.version {
                1 => {
                    "Several runs on the same records add up: nats of mutual information are summed; for (eps, delta) sum both, or \
                     account for the runs as one composition. Choosing settings by looking at the results of runs counts as runs."
                }
                _ => {
                    "This statement covers one run. Several runs on the same records add up: `ferret account --add` composes their \
                     statements. Choosing settings by looking at the results of runs counts as runs."
                }
            });
        }
        said.extend(match self.released {
            Released::FlippedBits { .. } => Some(
                "Flips are drawn from a cryptographic generator. How long a step takes is not hidden from an observer of the machine.",
            ),
            Released::DitheredScalars { .. } => Some(
                "Noise is drawn in double precision from a cryptographic generator, and what is released is rounded to a public grid far \
                 coarser than it, so that the bits of a scalar tell no more than its place on the grid. How long a step takes is not \
                 hidden from an observer of the machine.",
            ),
            Released::NoisedSketches { levels: true, .. } => Some(
                "Noise is drawn in double precision from a cryptographic generator, and what is released is a size that is rounded to a public grid \
                 far coarser than it, and two bits a number. How long a step takes is not hidden from an observer of the machine.",
            ),
            Released::NoisedSketches { .. } => Some(
                "Noise is drawn in double precision from a cryptographic generator, and what is released is a sign or rounded to a public grid \
                 far coarser than it. How long a step takes is not hidden from an observer of the machine.",
            ),
            Released::NoisedSums { .. } => Some(
                "Noise is drawn in floating point from a cryptographic generator. The finite set of values a floating-point Gaussian \
                 can take is not defended against an observer of the exact bits of single updates, nor is the time a step takes.",
            ),
            Released::Bits { .. } | Released::Gradients { .. } => None,
        });
        said
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
        if let Some(tune) = &self.tune {
            line(format!("- Tuned: `{tune}`; every other tensor is the base model's, unchanged"));
        }
        line(format!("- Released: {}", self.released.describe(self.version)));
        line(format!("- Sampling: {}", self.sampler.describe(self.sampling_rate, self.records, self.is_private())));
        if let Some(hash) = &self.tuned_sha256 {
            line(format!("- Model: the tensors with SHA-256 `{hash}`, and the run that made them, no other"));
        }
        line("\n## What is promised about any one record\n".into());
        let nats = |nats: f64| match self.version {
            1 => format!("{} nats of mutual information", number(nats)),
            _ => format!("{} nats of mutual information with a record, given all other records", number(nats)),
        };
        for c in &self.claims {
            let promise = match c.guarantee {
                Guarantee::MutualInformation { nats } if self.version == 1 => {
                    format!("at most {} nats of mutual information with a record", number(nats))
                }
                guarantee => guarantee.to_string(),
            };
            line(format!("- {}: {promise} (accountant: {})", c.of, c.accountant));
        }
        // A charge rests on a sample that is secret: where it is not, or gradients left, the numbers are no promise.
        let private = self.is_private();
        if let Some(planned) = self.nats_planned.filter(|_| private) {
            let by = match self.accounting {
                Some(Accounting::Paper) => ", counted as the paper does, s ln 2 a bit",
                Some(Accounting::Exact) => ", counted by what the bits of a batch can tell",
                None => "",
            };
            line(format!("- planned budget: {}{by}", nats(planned)));
        }
        if let Some(charged) = self.nats_charged.filter(|_| private && self.version < 3) {
            line(format!("- charged for the bits released: {}", nats(charged)));
        }
        if let Some(paper) = self.nats_paper.filter(|_| private) {
            line(format!(
                "- the paper's count of the same bits: {} nats, s ln 2 each, an upper bound on what was spent",
                number(paper)
            ));
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
        if self.version > 1 {
            line(format!(
                "\nForm and rules: version {}. `ferret verify` states it again from the run's files and compares.",
                self.version
            ));
        }
        out
    }
}

impl Released {
    fn describe(&self, version: u32) -> String {
        // Rounded up, as bounds are, a flip or a noise would protect more than it did.
        let protects = |x: f64| if version < 3 { number(x) } else { x.to_string() };
        match self {
            Self::Bits { count, batches } => format!("{count} bits from {batches} batches"),
            Self::FlippedBits { count, batches, flip } => {
                format!("{count} bits from {batches} batches, each flipped with probability {}", protects(*flip))
            }
            Self::DitheredScalars { count, batches, dither } => {
                format!("{count} scalars from {batches} batches, a sign plus Gaussian noise of {} C", protects(*dither))
            }
            Self::NoisedSums { count, noise_multiplier, clip, bits_per_update } => {
                let compressed =
                    bits_per_update.map_or(String::new(), |b| format!(", compressed to {} bits afterwards", number(b)));
                format!(
                    "{count} sums of gradients clipped to {}, with Gaussian noise of {} times that{compressed}",
                    number(*clip),
                    protects(*noise_multiplier)
                )
            }
            Self::NoisedSketches { count, numbers, signs, levels, noise_multiplier, clip } => {
                let what = match (signs, levels) {
                    (_, true) => "the size of, and two bits of each of,",
                    (true, _) => "the signs of",
                    _ => "",
                };
                format!(
                    "{count} times {what} {numbers} numbers, sums over records clipped to {} together, with Gaussian noise of {} times that",
                    number(*clip),
                    protects(*noise_multiplier)
                )
                .replace("  ", " ")
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
