//! The runs of a cell together, and what tables and figures ask of them.

use crate::privacy::guarantee::Guarantee;
use crate::study::arm::Outcome;
use crate::study::grid::Spread;
use crate::study::grid::run::FinishedRun;
use crate::study::spec::{Goal, Spec};
use crate::study::verdict::interval;

/// The results of one row at one budget and length, seeds in order.
pub struct Group<'a> {
    /// Of its first run.
    pub spec: &'a Spec,
    /// One finished run a seed.
    pub runs: Vec<&'a FinishedRun>,
}

impl Group<'_> {
    pub(super) fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.runs.iter().filter_map(|r| r.outcome.as_ref().ok())
    }

    pub(super) fn spread(&self, of: impl Fn(&Outcome) -> f64) -> Option<Spread> {
        Spread::of(&self.outcomes().map(of).collect::<Vec<_>>())
    }

    pub(super) fn diverged(&self) -> usize {
        self.runs.len() - self.outcomes().count()
    }

    pub(super) fn show(&self, of: impl Fn(&Outcome) -> f64, digits: usize) -> String {
        show(self.spread(of), self.diverged(), digits)
    }

    /// Test perplexity, for a reader.
    pub(super) fn perplexity(&self) -> String {
        self.show(|o| o.test_loss.exp(), 2)
    }

    /// Test perplexity over seeds, at `x` in a figure.
    pub(super) fn point(&self, x: f64) -> Option<(f64, f64, f64, f64)> {
        let s = self.spread(|o| o.test_loss.exp())?;
        Some((x, s.mean, s.min, s.max))
    }

    /// Learning rate, for a reader.
    pub(super) fn rate(&self) -> String {
        format!("{:.2e}", self.spec.learning_rate)
    }

    /// AUC of the attack, for a reader.
    pub(super) fn auc(&self) -> String {
        self.show(|o| o.attack.auc, 3)
    }

    /// What is said of the first run that did not diverge.
    pub(super) fn said(&self, of: impl Fn(&Outcome) -> Option<String>) -> String {
        self.outcomes().next().and_then(of).unwrap_or_default()
    }

    /// What that run promises, for a reader.
    pub(super) fn promised(&self) -> String {
        self.said(|o| Some(o.guarantees.iter().map(|g| g.short()).collect::<Vec<_>>().join(", ")))
    }

    /// The eps of the first run's (eps, delta), for a reader.
    pub(super) fn eps_spent(&self) -> String {
        let eps = self.outcomes().next().and_then(|o| {
            o.guarantees.iter().find_map(|g| match g {
                Guarantee::EpsDelta { eps, .. } => Some(format!("{eps:.3}")),
                _ => None,
            })
        });
        eps.unwrap_or_else(|| "none".into())
    }

    /// How far its test losses are above those of `other`, seed by seed.
    pub(super) fn losses_above(&self, other: &Group) -> Vec<f64> {
        let same_seed = |own: &&FinishedRun| other.runs.iter().find(|r| r.spec.seed == own.spec.seed);
        let loss = |run: &FinishedRun| Some(run.outcome.as_ref().ok()?.test_loss);
        self.runs.iter().filter_map(|own| Some(loss(own)? - loss(same_seed(own)?)?)).collect()
    }
}

/// `mean ± SD [min, max]`; the mean alone for one run.
pub(super) fn show(spread: Option<Spread>, diverged: usize, digits: usize) -> String {
    let text = match spread {
        None => return "diverged".into(),
        Some(Spread { mean, n: 1, .. }) => format!("{mean:.digits$}"),
        Some(Spread { mean, sd, min, max, .. }) => {
            format!("{mean:.digits$} ± {sd:.digits$} [{min:.digits$}, {max:.digits$}]")
        }
    };
    if diverged > 0 { format!("{text}, {diverged} diverged") } else { text }
}

/// Results by row, length and column, in the order in which they come.
pub fn groups(results: &[FinishedRun]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for run in results {
        let same = |a: &Spec, b: &Spec| {
            a.row == b.row && a.epochs == b.epochs && a.column().to_bits() == b.column().to_bits() && a.batch == b.batch
        };
        match groups.iter_mut().find(|g| same(g.spec, &run.spec)) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { spec: &run.spec, runs: vec![run] }),
        }
    }
    for group in &mut groups {
        group.runs.sort_by_key(|r| r.spec.seed);
    }
    groups
}

/// Perplexity of the base model, for captions.
pub(super) fn before(groups: &[Group]) -> String {
    groups.iter().find(|g| is_base(g)).map_or(String::new(), Group::perplexity)
}

/// The rows that these groups belong to, in order.
pub(super) fn rows<'a>(groups: impl Iterator<Item = &'a Group<'a>>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for group in groups {
        if !names.contains(&group.spec.row) {
            names.push(group.spec.row.clone());
        }
    }
    names
}

/// Row and mean test perplexity of these groups, for level lines in figures.
pub(super) fn levels<'a>(groups: impl Iterator<Item = &'a Group<'a>>) -> Vec<(String, f64)> {
    groups.filter_map(|g| Some((g.spec.row.clone(), g.point(0.0)?.1))).collect()
}

/// Whose loss is lower, given by how much `own` is above `other`, paired over seeds.
pub(super) fn lower(own: &str, other: &str, above: &[f64]) -> String {
    match interval(above, 0.05) {
        Some([low, _]) if low > 0.0 => format!("{other} is lower"),
        Some([_, high]) if high < 0.0 => format!("{own} is lower"),
        Some(_) => "the seeds do not tell which is lower".into(),
        None => "too few seeds to be sure which is lower".into(),
    }
}

/// The runs of this length at this budget.
pub(super) fn within<'a>(groups: &'a [Group<'a>], epochs: u32, budget: f64) -> Vec<&'a Group<'a>> {
    groups.iter().filter(|g| !is_base(g) && g.spec.epochs == epochs && g.spec.column() == budget).collect()
}

/// `1 epoch`, `3 epochs`.
pub(super) fn length(epochs: u32) -> String {
    format!("{epochs} epoch{}", if epochs == 1 { "" } else { "s" })
}

/// Whether a group is the base model's.
pub(super) fn is_base(group: &Group) -> bool {
    group.spec.method == Goal::Base
}
