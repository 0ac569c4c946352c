//! Is a statement the one that its run leads to?

use super::super::guarantee::{Guarantee, number};
use super::{Circumstances, Claim, Statement};

/// Figures are computed with the system's exp and ln, and may differ by so much between machines.
const ROUNDING: f64 = 1e-9;

/// What a later accountant of privacy-loss distributions may find above an earlier one's figure: each stops refining at a share of
/// 10^-3 between its bounds.
const REFINEMENT: f64 = 2e-3;

/// The same of one that refines as far: another order of the same sums moves its upper bound in digits that its bounds do not prove.
const REORDERING: f64 = 1e-6;

impl Statement {
    /// What no one can recompute, as the statement has it.
    pub fn circumstances(&self) -> Circumstances {
        Circumstances {
            insecure_seed: self.insecure_seed,
            private_logs: self.private_logs,
            windows: self.windows,
            users: self.users,
            shards: self.shards,
        }
    }

    /// The delta of its (eps, delta), where an accountant found the eps.
    pub fn delta(&self) -> Option<f64> {
        self.claims.iter().find_map(|c| match c.guarantee {
            Guarantee::EpsDelta { delta, .. } if c.accountant != "total variation" => Some(delta),
            _ => None,
        })
    }

    /// Where this statement says other things than `expected`, which was made again from the run's files by the rules of the same
    /// version: other words or facts, or less spent. More spent than expected is no untruth. Notes in `later` may have been added to
    /// what was not met after the run. A sentence for each difference; none where the statement is the run's.
    pub fn differences(&self, expected: &Statement, later: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        let mut fact = |name: &str, stated: String, expected: String| {
            if stated != expected {
                found.push(format!("{name} is {}, the run's files make it {}", short(&stated), short(&expected)));
            }
        };
        fact("version", json(self.version), json(expected.version));
        fact("tuned_sha256", json(&self.tuned_sha256), json(&expected.tuned_sha256));
        fact("method", json(&self.method), json(&expected.method));
        fact("tune", json(&self.tune), json(&expected.tune));
        fact("released", json(&self.released), json(&expected.released));
        fact("sampler", json(self.sampler), json(expected.sampler));
        fact("records", json(self.records), json(expected.records));
        fact("sampling_rate", json(self.sampling_rate), json(expected.sampling_rate));
        fact("steps", json(self.steps), json(expected.steps));
        fact("event", json(&self.event), json(&expected.event));
        fact("nats_planned", json(self.nats_planned), json(expected.nats_planned));
        fact("accounting", json(self.accounting), json(expected.accounting));
        fact("insecure_seed", json(self.insecure_seed), json(expected.insecure_seed));
        fact("private_logs", json(self.private_logs), json(expected.private_logs));
        fact("users", json(self.users), json(expected.users));
        fact("shards", json(self.shards), json(expected.shards));
        fact("windows", json(self.windows), json(expected.windows));
        for (name, stated, spent) in [
            ("nats_charged", self.nats_charged, expected.nats_charged),
            ("nats_paper", self.nats_paper, expected.nats_paper),
        ] {
            match (stated, spent) {
                (Some(stated), Some(spent)) if below(stated, spent, ROUNDING) => found.push(less(name, stated, spent)),
                (stated, spent) if stated.is_some() != spent.is_some() => {
                    found.push(format!("{name} is {}, the run's files make it {}", json(stated), json(spent)));
                }
                _ => {}
            }
        }
        self.compare_claims(expected, &mut found);
        let not_met: Vec<&String> = self.not_met.iter().filter(|note| !later.contains(&note.as_str())).collect();
        for (name, stated, expected) in [
            (
                "assumptions",
                self.assumptions.iter().collect::<Vec<_>>(),
                expected.assumptions.iter().collect::<Vec<_>>(),
            ),
            ("not_met", not_met, expected.not_met.iter().collect()),
        ] {
            let missing = expected.iter().find(|e| !stated.iter().any(|s| self.same_words(s, e)));
            let invented = stated.iter().find(|s| !expected.iter().any(|e| self.same_words(s, e)));
            match (missing, invented) {
                (_, Some(words)) => found.push(format!("{name} says {}, which the run's files do not", short(words))),
                (Some(words), None) => found.push(format!("{name} leaves out {}", short(words))),
                (None, None) if stated.len() != expected.len() => found.push(format!("{name} repeats itself")),
                (None, None) => {}
            }
        }
        found
    }

    /// Why an accountant found nothing is told in its own words, which an earlier one put otherwise.
    fn same_words(&self, stated: &str, expected: &str) -> bool {
        let reason = |text: &str| {
            let (head, _) = text.split_once(": ")?;
            ["PLD, spent", "PLD, planned", "RDP, spent", "RDP, planned"].contains(&head).then(|| head.to_owned())
        };
        stated == expected || (self.version == 1 && reason(stated).is_some() && reason(stated) == reason(expected))
    }

    fn compare_claims(&self, expected: &Statement, found: &mut Vec<String>) {
        let name = |c: &Claim| format!("{}, {}, {}", unit(&c.guarantee), c.accountant, c.of);
        for (i, stated) in self.claims.iter().enumerate() {
            let Some(due) = expected.claims.get(i).filter(|due| name(due) == name(stated)) else {
                found.push(format!(
                    "it claims \"{}\" ({}, {}), which does not follow from the run's files",
                    stated.guarantee,
                    short(&stated.accountant),
                    short(&stated.of)
                ));
                return;
            };
            for (what, stated, spent) in figures(&stated.guarantee, &due.guarantee) {
                let share = match (what, due.accountant.as_str(), self.version) {
                    ("eps", "PLD", 1) => REFINEMENT,
                    ("eps", "PLD", _) => REORDERING,
                    _ => ROUNDING,
                };
                if below(stated, spent, share) {
                    found.push(less(&format!("{what} ({}, {})", due.accountant, due.of), stated, spent));
                }
            }
        }
        if let Some(due) = expected.claims.get(self.claims.len()) {
            found.push(format!("it leaves out \"{}\" ({}, {})", due.guarantee, due.accountant, due.of));
        }
    }
}

/// The kind of a promise, its neighbours included.
fn unit(guarantee: &Guarantee) -> String {
    match guarantee {
        Guarantee::MutualInformation { .. } => "nats".into(),
        Guarantee::EpsDelta { neighbours, .. } => format!("(eps, delta), {neighbours}"),
        Guarantee::NonPrivate => "nothing".into(),
    }
}

/// What is stated and what was spent, figure by figure.
fn figures(stated: &Guarantee, spent: &Guarantee) -> Vec<(&'static str, f64, f64)> {
    match (*stated, *spent) {
        (Guarantee::MutualInformation { nats }, Guarantee::MutualInformation { nats: spent }) => {
            vec![("nats", nats, spent)]
        }
        (Guarantee::EpsDelta { eps, delta, .. }, Guarantee::EpsDelta { eps: e, delta: d, .. }) => {
            vec![("eps", eps, e), ("delta", delta, d)]
        }
        _ => Vec::new(),
    }
}

/// Whether `stated` claims less than `spent`; what is no number claims anything.
fn below(stated: f64, spent: f64, share: f64) -> bool {
    stated.is_nan() || spent.is_nan() || stated < spent * (1.0 - share)
}

fn less(name: &str, stated: f64, spent: f64) -> String {
    format!("{name}: {} is claimed, {} was spent", number(stated), number(spent))
}

/// At most 80 characters of what a file says.
fn short(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{:?} ...", &text[..at]),
        None => format!("{text:?}"),
    }
}

fn json(field: impl serde::Serialize) -> String {
    serde_json::to_string(&field).expect("plain values")
}
