//! `ferret` without a verb: the embedded world, every method over a few seeds, one table and one page.

use super::common::{progress_by_share, width};
use super::interrupt;
use crate::audit::columns::wrap;
use crate::error::{Error, Result};
use crate::fsio;
use crate::study::{comparison, first, html, table};
use std::path::Path;
use std::time::Instant;

const REPORT: &str = "ferret-report";

/// Run every method over so many seeds, print the table and write the page.
pub fn run(seeds: u64, quiet: bool) -> Result<()> {
    let begun = Instant::now();
    if seeds == 0 || seeds > 100 {
        return Err(Error::usage(format!("--seeds {seeds}: give a number from 1 to 100")));
    }
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
    let options = first::Options { seeds, ..first::Options::default() };
    let worlds = first::worlds(&options)?;
    let note = |text: String| {
        if !quiet {
            fsio::tell(&text);
        }
    };
    let about = comparison::About::of(&worlds, &options)?;
    note(wrap(&about.sentence(), width()));
    let bar = progress_by_share("all methods", quiet);
    let rows = first::run(
        &worlds,
        &options,
        &|share| {
            bar.set_position((share * 1000.0) as u64);
            if interrupt::asked() { Err(Error::Interrupted("stopped; nothing was written".into())) } else { Ok(()) }
        },
        &|seed, o| {
            bar.suspend(|| {
                note(format!(
                    "  seed {seed}  {:<22}  test perplexity {:>7.2}, AUC {:.3}",
                    o.name,
                    o.test_loss.exp(),
                    o.attack.auc
                ))
            })
        },
    )?;
    bar.finish_and_clear();
    let page = comparison::page(&rows, &about, &format!("cargo run --release -- --seeds {seeds}"));
    fsio::fill_folder(report, |folder| fsio::write(&folder.join("index.html"), html::render(&page).as_bytes()))?;
    let width = width();
    fsio::print(&format!("{}\n\n", wrap(&table::finding(&rows), width)))?;
    fsio::print(&table::text(&rows, width))?;
    let notes = format!(
        "\n{}\n\nThe page with pictures: {}  ({:.0} s in all)\nNext: ferret study --grid paper for budgets and verdicts, ferret train --help for your own \
         model and records, ferret plan for what a budget buys.\n",
        about.under_the_table(),
        path.display(),
        begun.elapsed().as_secs_f64()
    );
    fsio::print(&wrap(&notes, width))
}
