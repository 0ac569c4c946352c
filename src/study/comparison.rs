//! The main job's page: every method side by side on the embedded world.

use super::arm::Outcome;
use super::figures;
use super::first::{BATCH, Options, Row};
use super::html::{Cell, Page, Part, Section, Table};
use super::table::{self, thousands};
use super::world::World;

/// What was run, for texts.
pub struct About {
    parameters: usize,
    members: usize,
    nonmembers: usize,
    attacked: usize,
    seeds: u64,
    nats: f64,
    eps: f64,
    delta: f64,
    epochs: u32,
}

impl About {
    /// Of these worlds and options.
    pub fn of(worlds: &[World], o: &Options) -> Self {
        let first = &worlds[0];
        let (members, nonmembers) = (first.members.len(), first.nonmembers.len());
        Self {
            parameters: first.base.weights.layout.scalars(),
            members,
            nonmembers,
            attacked: o.audited.min(members) + o.audited.min(nonmembers),
            seeds: worlds.len() as u64,
            nats: o.nats,
            eps: o.eps,
            delta: o.delta,
            epochs: o.epochs,
        }
    }

    /// What is about to be done.
    pub fn sentence(&self) -> String {
        format!(
            "Fine-tuning the embedded model ({} parameters) on some {} invented records, by every method over {}; then asking each result which of {} \
             records it has seen.",
            thousands(self.parameters as u64),
            thousands(self.members as u64),
            self.seeds(),
            thousands(self.attacked as u64)
        )
    }

    fn seeds(&self) -> String {
        if self.seeds == 1 { "one seed".into() } else { format!("{} seeds", self.seeds) }
    }

    /// What the columns mean.
    pub fn under_the_table(&self) -> String {
        let spread = if self.seeds == 1 {
            "One seed: run again with more to see how far results spread."
        } else {
            "Mean ± standard deviation over the seeds."
        };
        format!(
            "{spread} B = {BATCH} and {} passes where nothing else is said. Budgets: {} nats of mutual information for FERRET, ({}, {:e}) for DPSGD and flips. \
             Nats are given all other records, and copies of a record add up; nats and (eps, delta) are different units. AUC: of one attack by loss, \
             0.5 is chance. Rate: the learning rate, which ferret train takes too where none is given.",
            self.epochs, self.nats, self.eps, self.delta
        )
    }
}

fn cell(text: String) -> Cell {
    let alarm = text.contains("ALARM");
    Cell { alarm, ..text.into() }
}

/// Every run's privacy statement, of the first seed.
fn statements(rows: &[Row]) -> Vec<Part> {
    let part = |o: &Outcome| {
        let text = o.statement.as_ref()?.to_markdown();
        let promised: Vec<String> = o.guarantees.iter().map(ToString::to_string).collect();
        Some(Part::Statement { summary: format!("{}: {}", o.name, promised.join("; ")), text })
    };
    rows.iter().filter_map(|row| part(row.outcomes.first()?)).collect()
}

/// The page.
pub fn page(rows: &[Row], about: &About, o: &Options) -> Page {
    let section = |id: &str, title: &str, parts| Section { id: id.into(), title: title.into(), parts };
    let methods = Table {
        caption: "Every method. A click on a column's head sorts by it.".into(),
        titles: table::TITLES.iter().map(|t| (*t).to_owned()).collect(),
        rows: rows.iter().map(|row| table::cells(row).into_iter().map(cell).collect()).collect(),
    };
    let first: Vec<&Outcome> = rows.iter().filter_map(|row| row.outcomes.first()).collect();
    Page {
        title: "ferret: private fine-tuning, side by side".into(),
        intro: vec![
            table::finding(rows),
            format!(
                "A GPT-2-architecture model of {} parameters was fine-tuned on {} invented instruction records by each method over {}, and \
                 attacked with {} of them and of {} records that it never saw. Every candidate became a member by the toss of a coin.",
                thousands(about.parameters as u64),
                thousands(about.members as u64),
                about.seeds(),
                thousands(about.attacked as u64),
                thousands(about.nonmembers as u64),
            ),
            format!(
                "FERRET's budget was {} nats of mutual information, DPSGD's (eps, delta) = ({}, {:e}); {} passes over the records. The arm with the small batch flips its bits so that it has DPSGD's (eps, delta) as well. The last arm shows what a leak looks \
                 like: it learns a few of the members by heart, without any privacy. Learning rates were chosen on records that nothing here is \
                 measured on.",
                o.nats, o.eps, o.delta, o.epochs
            ),
        ],
        sections: vec![
            section("table", "Every method, side by side", vec![Part::Table(methods), Part::Prose(about.under_the_table())]),
            section("pictures", "Pictures", vec![Part::Plots(figures::all(&first))]),
            section("privacy", "What each run promises", statements(rows)),
            section(
                "repeat",
                "How to repeat it",
                vec![
                    Part::Code("cargo run --release".into()),
                    Part::Prose(
                        "All budgets, tables beside the paper's and verdicts: `ferret study --grid paper`. Other readings of the algorithm: `--grid readings`. \
                         The comparison at equal (eps, delta): `--grid true-dp`; at equal nats: `--grid equal-nats`."
                            .into(),
                    ),
                ],
            ),
        ],
    }
}
