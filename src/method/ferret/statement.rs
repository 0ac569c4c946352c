//! What a run gave away: from its settings and fires to releases, the event that accountants know, and the statement.

use super::settings::{BatchPer, MaskKind, Payload, Release, Settings};
use super::transcript::Transcript;
use crate::error::Result;
use crate::privacy::event::{Event, Fires};
use crate::privacy::guarantee::number;
use crate::privacy::mi::Accounting;
use crate::privacy::statement::{Circumstances, Released, Statement, VERSION};
use std::f64::consts::LN_2;

impl Settings {
    /// How many batches were seen by how many bits each, for the accountants.
    pub fn shared(&self, fires: &[(u32, u32)]) -> Vec<Fires> {
        let mut shared: Vec<Fires> = Vec::new();
        for step in fires.chunk_by(|a, b| a.0 == b.0) {
            let (steps, bits) = match self.batch_per {
                BatchPer::Step => (1, step.len() as u32),
                BatchPer::Bit => (step.len() as u64, 1),
            };
            match shared.iter_mut().find(|f| f.bits == bits) {
                Some(f) => f.steps += steps,
                None => shared.push(Fires { steps, bits }),
            }
        }
        shared
    }

    /// The event that has an (eps, delta): none for bits as they are, for true gradients, and where nothing fired.
    fn event(&self, fires: &[(u32, u32)]) -> Option<Event> {
        let (shared, sampling_rate) = (self.shared(fires), self.sampling_rate());
        match self.release {
            _ if self.payload == Payload::TrueGradient || shared.is_empty() => None,
            Release::Bit | Release::Rr { flip: 0.0, .. } => None,
            Release::Rr { flip, .. } => {
                Some(Event::SubsampledRandomisedResponse { flip, sampling_rate, fires: shared })
            }
            Release::Gaussian { dither } => Some(Event::dithered(dither, sampling_rate, &shared)),
        }
    }

    /// The statement of a run that stops after `stop` steps; (eps, delta) is claimed at `delta`.
    pub fn statement(&self, stop: u32, delta: f64, circumstances: Circumstances) -> Result<Statement> {
        self.statement_by(VERSION, &self.fires(stop), stop, delta, circumstances)
    }

    /// [`Settings::statement`] by the rules of `version`.
    fn statement_by(
        &self,
        version: u32,
        fires: &[(u32, u32)],
        steps_run: u32,
        delta: f64,
        circumstances: Circumstances,
    ) -> Result<Statement> {
        let shared = self.shared(fires);
        let (count, batches) = (fires.len() as u64, shared.iter().map(|f| f.steps).sum());
        let released = match (self.payload, self.release) {
            (Payload::TrueGradient, _) => Released::Gradients { count, bits_per_update: None },
            (_, Release::Bit) => Released::Bits { count, batches },
            (_, Release::Rr { flip, .. }) => Released::FlippedBits { count, batches, flip },
            (_, Release::Gaussian { dither }) => Released::DitheredScalars { count, batches, dither },
        };
        let steps = steps_run.into();
        let mut statement =
            Statement::new(&*self.method, released, self.sampler, self.records, self.sampling_rate(), steps)
                .by_rules_of(version)
                .of_tensors(self.tune.to_string());
        statement.nats_planned = Some(self.epsilon);
        statement.accounting = (version > 2).then_some(self.accounting);
        statement.charge_nats(&shared)?;
        if let Some(event) = self.event(fires) {
            statement.claim_spent(event, delta)?;
        }
        // A mask of fires that are drawn one by one meets its budget on average: what is over it is told, in the count that it was planned by.
        if version > 2 && self.mask == MaskKind::Bernoulli {
            statement.assumptions.push(
                "Fires were drawn one by one (a Bernoulli mask): the planned budget is met on average over seeds. What is stated as spent is \
                 for the fires that were really drawn."
                    .into(),
            );
        }
        let counted = match self.accounting {
            Accounting::Paper => statement.nats_paper,
            Accounting::Exact => statement.nats_charged,
        };
        if let Some(nats) = counted.filter(|n| version > 2 && *n > self.epsilon * (1.0 + 1e-9)) {
            statement.not_met.push(format!(
                "The planned budget of {} nats was exceeded: by the count that it was planned with, {} nats were spent. A Bernoulli mask \
                 meets a budget on average over its seeds only.",
                number(self.epsilon),
                number(nats)
            ));
        }
        if self.payload == Payload::TrueGradient {
            statement.not_met.push("not private: the true gradients of fired groups were released".into());
        }
        Ok(statement.finish(circumstances))
    }
}

impl Settings {
    /// What a user should know before the run.
    pub fn notes(&self) -> Vec<String> {
        let ceiling = self.groups.len() as f64 * f64::from(self.steps()) * self.sampling_rate() * LN_2;
        let mut notes = Vec::new();
        if self.p() >= 1.0 && self.accounting == Accounting::Paper {
            notes.push(format!(
                "{} nats are above the ceiling G T s ln 2 = {ceiling:.4}: every group fires at every step, and {ceiling:.4} nats are spent",
                self.epsilon
            ));
        } else if self.mask == MaskKind::Bernoulli {
            notes.push(format!(
                "{} nats are spent on average over Bernoulli masks: this seed's may be more, and the statement says so",
                self.epsilon
            ));
        }
        notes
    }
}

impl Transcript {
    /// The statement that a run of this transcript makes, by the rules of the version of `stated`, and with its delta and circumstances:
    /// what no one can recompute.
    pub fn restate(&self, stated: &Statement) -> Result<Statement> {
        // Bits as they are have no use for a delta; where one is missing, no claim rests on it.
        let delta = stated.delta().unwrap_or(1e-5);
        let (settings, fires) = (&self.settings, self.fires());
        let mut made = settings.statement_by(stated.version, &fires, self.steps_run, delta, stated.circumstances())?;
        made.tuned_sha256 = self.tuned_sha256.clone().filter(|_| stated.version > 1);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::ferret::settings::example;
    use crate::privacy::guarantee::Guarantee;

    /// Three bits, two of them at one step.
    const FIRES: [(u32, u32); 3] = [(0, 0), (0, 2), (7, 1)];

    #[test]
    fn a_record_is_exposed_once_for_every_batch_drawn() {
        for (batch_per, batches) in [(BatchPer::Step, 2), (BatchPer::Bit, 3)] {
            let s = Settings { batch_per, ..example() };
            let statement = s.statement_by(VERSION, &FIRES, 60, 1e-5, Circumstances::default()).unwrap();
            let exposed = 1.0 - (1.0 - s.sampling_rate()).powi(batches);
            let claimed = statement.claims.iter().find_map(|c| match c.guarantee {
                Guarantee::EpsDelta { eps: 0.0, delta, .. } => Some(delta),
                _ => None,
            });
            approx::assert_relative_eq!(claimed.unwrap(), exposed, max_relative = 1e-12);
        }
    }

    /// The program's own mask never exceeds the budget. The paper's does for some seeds, and then says so.
    #[test]
    fn a_budget_is_kept_or_its_overrun_is_listed() {
        let mut over = 0;
        for seed in 0..40 {
            for mask in [MaskKind::default(), MaskKind::Bernoulli] {
                let s = Settings { mask, seed, epsilon: 1.0, ..example() };
                let statement = s.statement(60, 1e-5, Circumstances::default()).unwrap();
                let exceeded = statement.nats_paper.unwrap() > 1.0;
                assert!(mask == MaskKind::Bernoulli || !exceeded, "seed {seed}");
                assert_eq!(statement.not_met.iter().any(|n| n.contains("was exceeded")), exceeded, "seed {seed}");
                over += u32::from(exceeded);
            }
        }
        assert!((5..35).contains(&over), "{over} of 40 Bernoulli masks were over: the test needs both kinds");
    }

    #[test]
    fn bits_are_charged_by_what_they_can_tell_and_the_papers_count_stays() {
        let s = example();
        let nats = |release, batch_per, version| {
            let s = Settings { release, batch_per, ..example() };
            let made = s.statement_by(version, &FIRES, 60, 1e-5, Circumstances::default()).unwrap();
            let claimed = made.claims.iter().find_map(|c| match c.guarantee {
                Guarantee::MutualInformation { nats } => Some(nats),
                _ => None,
            });
            assert_eq!(claimed, made.nats_charged, "{release:?}");
            (made.nats_charged.unwrap(), made.nats_paper)
        };
        let paper = 3.0 * s.sampling_rate() * std::f64::consts::LN_2;
        let (rr, noisy) = (Release::Rr { flip: 0.1, unbiased: false }, Release::Gaussian { dither: 1.5 });
        for batch_per in [BatchPer::Step, BatchPer::Bit] {
            let clean = nats(Release::Bit, batch_per, VERSION).0;
            for release in [Release::Bit, rr, noisy] {
                for version in [1, 2] {
                    approx::assert_relative_eq!(nats(release, batch_per, version).0, paper);
                }
                let (charged, count) = nats(release, batch_per, VERSION);
                approx::assert_relative_eq!(count.unwrap(), paper);
                assert!(
                    charged <= clean && charged > 0.0 && clean < 0.8 * paper,
                    "{release:?}: {charged} {clean} {paper}"
                );
            }
        }
        // Bits of one batch are charged together.
        assert!(nats(rr, BatchPer::Step, VERSION).0 > 1.5 * nats(rr, BatchPer::Bit, VERSION).0);
    }
}
