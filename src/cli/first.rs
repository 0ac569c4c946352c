//! `ferret` without a verb: the embedded world, every method, one table and one page.

use super::common::progress_by_share;
use super::interrupt;
use crate::error::{Error, Result};
use crate::fsio;
use crate::study::arm::Outcome;
use crate::study::html::{self, Cell, Page, Part, Section, Table};
use crate::study::{figures, first, table, world::World};
use std::path::Path;
use std::time::Instant;

const REPORT: &str = "ferret-report";

const UNITS: &str = "Nats of mutual information and (eps, delta) are different units: no number of one column follows from the other \
kind. AUC and advantage are of one attack, by loss relative to the base model's; an attack that finds nothing proves nothing. The bound is \
what the charge permits on average when membership is a coin flip per candidate, as it was here.";

fn cell(text: String) -> Cell {
    let alarm = text.contains("ALARM");
    Cell { alarm, ..text.into() }
}

/// Every run's privacy statement.
fn statements(outcomes: &[Outcome]) -> Vec<Part> {
    let part = |o: &Outcome| {
        let text = o.statement.as_ref()?.to_markdown();
        let promised: Vec<String> = o.guarantees.iter().map(ToString::to_string).collect();
        Some(Part::Statement { summary: format!("{}: {}", o.name, promised.join("; ")), text })
    };
    outcomes.iter().filter_map(part).collect()
}

/// Run the job.
pub fn run(quiet: bool) -> Result<()> {
    let begun = Instant::now();
    let (report, path) = (Path::new(REPORT), Path::new(REPORT).join("index.html"));
    // Before all the training, not after it.
    fsio::must_be_writable(report)?;
    if path.is_dir() {
        return Err(Error::file(
            path,
            "is a folder, and the report's page is to be written there: move it out of the way",
        ));
    }
    interrupt::listen();
    let options = first::Options::default();
    let world = World::embedded(options.seed, options.candidates, 0)?;
    let (members, nonmembers) = (world.members.len(), world.nonmembers.len());
    let note = |text: String| {
        if !quiet {
            eprintln!("{text}");
        }
    };
    note(format!(
        "Fine-tuning the embedded model ({} parameters) on {members} invented records, by every method; then asking each result which \
         of {} records it has seen.",
        world.base.weights.layout.scalars(),
        2 * options.audited.min(members).min(nonmembers)
    ));
    let bar = progress_by_share("all methods", quiet);
    let outcomes = first::run(
        &world,
        &options,
        |name, share| {
            bar.set_message(format!("{name:<30}"));
            bar.set_position((share * 1000.0) as u64);
            if interrupt::asked() { Err(Error::Interrupted("stopped; nothing was written".into())) } else { Ok(()) }
        },
        |o| {
            bar.suspend(|| {
                note(format!("  {:<30} test perplexity {:>8.2}, AUC {:.3}", o.name, o.test_loss.exp(), o.attack.auc))
            })
        },
    )?;
    bar.finish_and_clear();
    fsio::print(&table::text(&outcomes))?;
    let page = Page {
        title: "ferret: private fine-tuning, side by side".into(),
        intro: vec![
            format!(
                "A GPT-2-architecture model of {} parameters was fine-tuned on {members} invented instruction records by each method, \
                 and attacked with them and {nonmembers} records that it never saw. Every candidate became a member by the toss of a coin.",
                world.base.weights.layout.scalars()
            ),
            format!(
                "FERRET's budget was {} nats of mutual information, DPSGD's (eps, delta) = ({}, {:e}); {} passes over the records. One seed: \
                 differences between runs of the same arm are not shown here.",
                options.nats, options.eps, options.delta, options.epochs
            ),
            "The arm with the small batch flips its bits so that it has DPSGD's (eps, delta) as well. The last arm shows what a leak looks \
             like: it learns a few of the members by heart, without any privacy. Learning rates were chosen on records that nothing here is \
             measured on."
                .into(),
        ],
        sections: vec![
            Section {
                id: "table".into(),
                title: "Every method, side by side".into(),
                parts: vec![
                    Part::Table(Table {
                        caption: "One run of each method. A click on a column's head sorts by it.".into(),
                        titles: table::TITLES.iter().map(|t| (*t).to_owned()).collect(),
                        rows: outcomes.iter().map(|o| table::cells(o).into_iter().map(cell).collect()).collect(),
                    }),
                    Part::Prose(UNITS.into()),
                ],
            },
            Section {
                id: "pictures".into(),
                title: "Pictures".into(),
                parts: vec![Part::Plots(figures::all(&outcomes))],
            },
            Section { id: "privacy".into(), title: "What each run promises".into(), parts: statements(&outcomes) },
            Section {
                id: "repeat".into(),
                title: "How to repeat it".into(),
                parts: vec![
                    Part::Code("cargo run --release".into()),
                    Part::Prose(
                        "Several seeds, all budgets, tables beside the paper's and verdicts: `ferret study --grid paper`. Other readings of the algorithm: `--grid readings`. The comparison at equal (eps, delta): `--grid true-dp`."
                            .into(),
                    ),
                ],
            },
        ],
    };
    fsio::fill_folder(report, |folder| fsio::write(&folder.join("index.html"), html::render(&page).as_bytes()))?;
    fsio::print(&format!(
        "\nThe page with pictures: {}  ({:.0} s in all)\nNext: ferret study --grid paper for seeds, budgets and verdicts, ferret train \
         --help for your own model and records, ferret plan for what a budget buys.\n",
        path.display(),
        begun.elapsed().as_secs_f64()
    ))
}
