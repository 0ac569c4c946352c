//! The main job's page: every method side by side on the embedded world.

use super::arm::Outcome;
use super::figures;
use super::first::{BATCH, Options, Row, asked};
use super::grid::Spread;
use super::html::{Cell, Page, Part, Section, Table};
use super::origin;
use super::plot::{Axis, Bar, BarChart, group_and_bit};
use super::table::{self, thousands};
use super::world::World;
use crate::error::Result;
use crate::model::tokenizer::Tokenizer;
use serde_json::{Value, json};

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
    insecure: bool,
    /// What the models were asked, and what the records answer.
    asked: Vec<[String; 2]>,
}

impl About {
    /// Of these worlds, at least one, and options.
    pub fn of(worlds: &[World], o: &Options) -> Result<Self> {
        let first = &worlds[0];
        let (members, nonmembers) = (first.members.len(), first.nonmembers.len());
        let tokenizer = Tokenizer::from_folder(&first.base.folder)?;
        let texts = |t: Tokenizer| {
            asked(first).into_iter().map(|(p, r)| Ok([t.decode(p)?, t.decode(r)?].map(|text| line(&text)))).collect()
        };
        let asked = tokenizer.map(texts).transpose()?.unwrap_or_default();
        Ok(Self {
            parameters: first.base.weights.layout.scalars(),
            members,
            nonmembers,
            attacked: o.audited.min(members) + o.audited.min(nonmembers),
            seeds: worlds.len() as u64,
            nats: o.nats,
            eps: o.eps,
            delta: o.delta,
            epochs: o.epochs,
            insecure: o.insecure_seed.is_some(),
            asked,
        })
    }

    /// What was run, in words.
    fn told(&self) -> String {
        format!(
            "A GPT-2-architecture model of {} parameters was fine-tuned on {} invented instruction records by each method over {}, and attacked with {} of \
             them and of {} records that it never saw. Every candidate became a member by the toss of a coin. The arm with the small batch flips its bits \
             so that it has DPSGD's (eps, delta) as well. The last arm shows what a leak looks like: it learns a few of the members by heart, \
             without any privacy. Learning rates were chosen on records that nothing here is measured on.",
            thousands(self.parameters as u64),
            thousands(self.members as u64),
            self.seeds(),
            thousands(self.attacked as u64),
            thousands(self.nonmembers as u64),
        )
    }

    /// How it was run, fact by fact.
    fn facts(&self) -> Vec<(String, Value)> {
        let facts = [
            ("seeds", json!(if self.seeds == 1 { "1".into() } else { format!("1 to {}", self.seeds) })),
            ("sampling_and_noise", json!(if self.insecure { "fixed: not private" } else { "secret" })),
            ("members_of_seed_1", json!(self.members)),
            ("budget_of_ferret_nats", json!(self.nats)),
            ("budget_of_dpsgd_epsilon", json!(self.eps)),
            ("delta", json!(self.delta)),
            ("passes", json!(self.epochs)),
            ("batch", json!(BATCH)),
        ];
        origin::facts().into_iter().chain(facts).map(|(name, value)| (name.to_owned(), value)).collect()
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
            "{spread} B = {BATCH} and {} passes where nothing else is said. Budgets: {} {} of mutual information for FERRET, ({}, {:e}) for DPSGD and flips. \
             Nats are given all other records, and copies of a record add up; nats and (eps, delta) are different units. AUC: of one attack by loss, \
             0.5 is chance. Rate: the learning rate, which ferret train takes too where none is given.",
            self.epochs,
            self.nats,
            if self.nats == 1.0 { "nat" } else { "nats" },
            self.eps,
            self.delta
        )
    }
}

/// A text on one line, without the marks that end it.
fn line(text: &str) -> String {
    text.replace("<|endoftext|>", " ").split_whitespace().collect::<Vec<_>>().join(" ")
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

const GROUPS: &str = "A group is a few of the model's tensors. Now and then a group fires: a random direction u is drawn from a public seed, and of the \
batch's gradient g nothing leaves but whether it points along u or against it, one bit. The group then takes a small step along u, the way the bit says; \
a whole run is its seed and its bits.";

/// Mean and range over the seeds, on members and on others.
fn perplexity(rows: &[Row]) -> String {
    let mut chart = BarChart::new(
        "Perplexity, mean and range over seeds",
        Axis::log("perplexity"),
        &["members", "held-out records"],
    );
    for row in rows {
        let bar = |of: fn(&Outcome) -> f64| {
            let Spread { mean, min, max, n, .. } = row.spread(of);
            Some(Bar { value: mean, interval: (n > 1).then_some([min, max]), bound: None })
        };
        chart = chart.row(&row.name, vec![bar(|o| o.train_loss.exp()), bar(|o| o.test_loss.exp())]);
    }
    chart.points().svg()
}

/// What the figures show, where the table does not say it.
const FIGURES: &str = "Curves and the picture of what fired are the first seed's, measured on a few of the held-out records. The advantage is shown for the \
seed where it is largest, and its bound is the most that the promise leaves to any attack. Points, range and time are over all seeds.";

/// Mean time over the seeds.
fn time(rows: &[Row]) -> String {
    let mut chart = BarChart::new("Time of training, mean over seeds", Axis::linear("seconds"), &[""]);
    for row in rows.iter().filter(|row| row.learning_rate.is_some()) {
        chart = chart.row(&row.name, vec![Some(row.spread(|o| o.seconds).mean.into())]);
    }
    chart.svg()
}

fn pictures(rows: &[Row], first: &[&Outcome]) -> Vec<String> {
    let worst: Vec<&Outcome> = rows.iter().filter_map(Row::worst).collect();
    let mut out = Vec::new();
    out.extend(figures::against_bits(first));
    out.extend(figures::against_gradients(first));
    out.push(perplexity(rows));
    out.extend(figures::roc(first));
    out.push(figures::advantage(&worst));
    out.extend(figures::rasters(first));
    out.push(time(rows));
    out
}

/// What each model says after the same prompts.
fn samples(rows: &[Row], about: &About) -> Vec<Part> {
    let table = |(i, [prompt, answer]): (usize, &[String; 2])| {
        let said = |row: &Row| {
            let text = row.outcomes.first()?.says.get(i)?;
            Some(vec![row.name.clone().into(), text.trim().into()])
        };
        Part::Table(Table {
            caption: format!("After \u{201c}{prompt}\u{201d}"),
            titles: vec!["method".into(), "goes on with".into()],
            rows: rows
                .iter()
                .filter_map(said)
                .chain([vec!["the record itself".into(), answer.as_str().into()]])
                .collect(),
        })
    };
    about.asked.iter().enumerate().map(table).collect()
}

/// Everything that the page's numbers come from, for programs.
fn data(rows: &[Row], about: &About) -> String {
    let run = |(seed, o): (usize, &Outcome)| {
        json!({
            "seed": seed + 1, "train_perplexity": o.train_loss.exp(), "test_perplexity": o.test_loss.exp(), "auc": o.attack.auc,
            "auc_interval": o.attack.auc_ci, "advantage": o.attack.advantage, "advantage_interval": o.attack.advantage_ci,
            "advantage_bound": o.bound.why_not().is_none().then(|| o.bound.advantage()), "bits": o.bits, "record_gradients": o.sample_gradients,
            "seconds": o.seconds, "guarantees": o.guarantees, "curve": o.curve, "roc": o.roc.curve(), "says": o.says,
        })
    };
    let row = |row: &Row| {
        let runs: Vec<Value> = row.outcomes.iter().enumerate().map(run).collect();
        json!({ "method": row.name, "learning_rate": row.learning_rate, "runs": runs })
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    json!({ "about": about.facts().into_iter().collect::<serde_json::Map<_, _>>(), "methods": rows }).to_string()
}

/// The page. `command` repeats it.
pub fn page(rows: &[Row], about: &About, command: &str) -> Page {
    let section = |id: &str, title: &str, parts| Section { id: id.into(), title: title.into(), parts };
    let methods = Table {
        caption: "Every method. A click on a column's head sorts by it.".into(),
        titles: table::TITLES.iter().map(|t| (*t).to_owned()).collect(),
        rows: rows.iter().map(|row| table::cells(row).into_iter().map(cell).collect()).collect(),
    };
    let first: Vec<&Outcome> = rows.iter().filter_map(|row| row.outcomes.first()).collect();
    let told = |text: &str, parts: Vec<Part>| [vec![Part::Prose(text.into())], parts].concat();
    let said = "What a bit costs: the most that one released bit, with a batch of its own, can tell about any one record, given all others, by how often \
                it is flipped on purpose. Dashed: what the paper charges, which knows of no flips.";
    let before = "Records that no model was trained on. The base model is what was there before.";
    let seed = "Statements of the first seed's runs; the table above has what holds for every seed.";
    let repeat = "All budgets, tables beside the paper's and verdicts: `ferret study --grid paper`. Other readings of the algorithm: `--grid readings`. The \
                  comparison at equal (eps, delta): `--grid true-dp`; at equal nats: `--grid equal-nats`.";
    Page {
        title: "ferret: private fine-tuning, side by side".into(),
        intro: vec![table::finding(rows), about.told()],
        sections: vec![
            section(
                "table",
                "Every method, side by side",
                vec![Part::Table(methods), Part::Prose(about.under_the_table())],
            ),
            section(
                "pictures",
                "What was learnt, and what it gave away",
                vec![Part::Prose(FIGURES.into()), Part::Plots(pictures(rows, &first))],
            ),
            section(
                "group",
                "What a group and a bit are",
                vec![
                    Part::Prose(GROUPS.into()),
                    Part::Plots(vec![group_and_bit(), figures::nats_a_bit(about.members as u64)]),
                    Part::Prose(said.into()),
                ],
            ),
            section("samples", "What the models say", told(before, samples(rows, about))),
            section("privacy", "What each run promises", told(seed, statements(rows))),
            section(
                "repeat",
                "How it was run, and how to repeat it",
                vec![
                    Part::Table(origin::table(&about.facts())),
                    Part::Code(command.into()),
                    Part::Prose(repeat.into()),
                    Part::Prose(origin::PAPER.into()),
                    Part::Data { name: "ferret-report.json".into(), json: data(rows, about) },
                    origin::links(),
                ],
            ),
        ],
    }
}
