//! From finished runs to tables, verdicts, findings and files.

mod dp;
mod group;
mod nats;
mod page;
mod paper;
mod readings;
mod real;
mod sketches;
mod subsets;

use super::run::{Choice, FinishedRun, choose};
use super::sheet::Sheet;
use super::{Basis, Grid, Kind, Row, Spread};
use crate::audit::columns::{WIDTH, wrap};
use crate::audit::report::quote;
use crate::error::Result;
use crate::fsio;
use crate::study::arm::Outcome;
use crate::study::paper::Cell as PaperCell;
use crate::study::spec::Spec;
use crate::study::verdict::Verdict;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

pub use group::{Group, groups};
use group::{before, is_base, length, levels, lower, rows, show, within};
pub use page::page;

/// What a study says.
pub struct Report {
    /// Tables, in the order of the page.
    pub sheets: Vec<Sheet>,
    /// Hypotheses, judged.
    pub verdicts: Vec<Verdict>,
    /// What was found, in sentences computed from the results.
    pub findings: Vec<String>,
    /// One entry a cell and measure, for CSV and JSON.
    pub figures: Vec<Figure>,
}

/// A measure in a cell.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figure {
    /// The row of the table.
    pub row: String,
    /// Expected batch size.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// The column: a budget, "inf" where there is none.
    pub budget: String,
    /// What unit the budget has in this row.
    pub unit: &'static str,
    /// What was measured.
    pub measure: &'static str,
    /// Over seeds; none where every run diverged.
    pub ours: Option<Spread>,
    /// Runs whose weights diverged.
    pub diverged: usize,
    /// The paper's own GPT-2 figure.
    pub paper: Option<f64>,
}

/// A measure: key, title, digits, ours, the paper's.
struct Measure {
    key: &'static str,
    title: &'static str,
    digits: usize,
    ours: fn(&Outcome) -> f64,
    paper: fn(&PaperCell) -> f64,
}

const MEASURES: [Measure; 5] = [
    Measure {
        key: "test_perplexity",
        title: "Test perplexity",
        digits: 2,
        ours: |o| o.test_loss.exp(),
        paper: |c| c.test_ppl,
    },
    Measure { key: "auc", title: "AUC of the attack", digits: 3, ours: |o| o.attack.auc, paper: |c| c.auc },
    Measure {
        key: "advantage",
        title: "Advantage of the attack",
        digits: 3,
        ours: |o| o.attack.advantage,
        paper: |c| c.advantage,
    },
    Measure { key: "seconds", title: "Training time in seconds", digits: 1, ours: |o| o.seconds, paper: |c| c.seconds },
    Measure {
        key: "gap",
        title: "Gap: test perplexity minus training perplexity",
        digits: 2,
        ours: |o| o.test_loss.exp() - o.train_loss.exp(),
        paper: |c| c.test_ppl - c.train_ppl,
    },
];

fn number(x: f64) -> String {
    if x.is_infinite() { "inf".into() } else { format!("{x}") }
}

/// What tuning chose, by [`Row::key`].
fn chosen(grid: &Grid, tuning: &[FinishedRun]) -> HashMap<String, Choice> {
    let rows: Vec<Row> = grid.tuned_rows();
    choose(tuning, |spec| {
        let of_spec = |r: &&Row| {
            r.name == spec.row && r.method == spec.method && r.epochs == spec.epochs && r.steps_of == spec.steps_of
        };
        rows.iter().find(of_spec).map_or_else(|| spec.row.clone(), |r| r.key(grid.tune_cells))
    })
}

/// What tuning chooses: by the rates of the grid, and by those further out that they lead to. `run` gives the runs it is asked for, or none to end here.
pub fn tune(
    grid: &Grid,
    fixed: &Basis,
    mut run: impl FnMut(&[Spec]) -> Result<Vec<FinishedRun>>,
) -> Result<HashMap<String, Choice>> {
    let (mut next, mut known) = (grid.tuning(fixed), Vec::new());
    loop {
        let found = run(&next)?;
        let more = !found.is_empty();
        known.extend(found);
        let choices = chosen(grid, &known);
        next = grid.outward(fixed, &choices);
        if !more || next.is_empty() {
            return Ok(choices);
        }
    }
}

/// The chosen learning rates as [`Basis::rates`] has them.
pub fn best_rates(chosen: &HashMap<String, Choice>) -> HashMap<String, f64> {
    chosen.iter().filter_map(|(key, choice)| Some((key.clone(), choice.best?.0))).collect()
}

/// Tables, verdicts and findings of a finished study. `chosen` is from [`tune`].
pub fn report(grid: &Grid, results: &[FinishedRun], chosen: &HashMap<String, Choice>) -> Report {
    let groups = groups(results);
    let mut figures = Vec::new();
    for group in &groups {
        for m in &MEASURES {
            let theirs = crate::study::paper::cell(&group.spec.row, group.spec.epochs, group.spec.column());
            figures.push(Figure {
                row: group.spec.row.clone(),
                batch: group.spec.batch,
                epochs: group.spec.epochs,
                budget: number(group.spec.column()),
                unit: group.spec.budget().1,
                measure: m.key,
                ours: group.spread(m.ours),
                diverged: group.diverged(),
                paper: theirs.filter(|_| grid.kind == Kind::Paper).map(m.paper),
            });
        }
    }
    let (mut sheets, verdicts, findings) = match grid.kind {
        Kind::Paper => paper::tables(grid, &groups, chosen),
        Kind::Readings => readings::tables(grid, &groups),
        Kind::TrueDp => dp::tables(grid, &groups, chosen),
        Kind::EqualNats => nats::tables(grid, &groups, chosen),
        Kind::FerretK => sketches::tables(grid, &groups),
        Kind::Tune => subsets::tables(grid, &groups),
        Kind::Real => real::tables(grid, &groups, chosen),
    };
    sheets.extend(rates(grid, chosen));
    Report { sheets, verdicts, findings, figures }
}

/// The learning rates tried and chosen.
fn rates(grid: &Grid, chosen: &HashMap<String, Choice>) -> Option<Sheet> {
    if grid.learning_rates == 1 {
        return None;
    }
    let row = |row: &Row| {
        let choice = chosen.get(&row.key(grid.tune_cells));
        let tried = choice.map_or_else(|| row.rates(grid.learning_rates), |c| c.tried.clone());
        let (rate, perplexity) = match choice {
            Some(Choice { best: Some((rate, loss)), .. }) => (format!("{rate:.2e}"), format!("{:.2}", loss.exp())),
            _ => ("all diverged".into(), String::new()),
        };
        let tried: Vec<String> = tried.iter().map(|r| format!("{r:.2e}")).collect();
        vec![row.key(grid.tune_cells), tried.join(", "), rate, perplexity]
    };
    let given = |(key, rate): (&String, &f64)| vec![key.clone(), "given".into(), format!("{rate:.2e}"), String::new()];
    Some(Sheet {
        caption: "Learning rates tried and chosen, on the tuning split".into(),
        titles: ["row", "tried", "chosen", "perplexity there"].map(String::from).to_vec(),
        rows: grid.tuned_rows().iter().map(row).chain(grid.rates.iter().map(given)).collect(),
        note: format!(
            "Every row whose rate was not given tried {} learning rates, one run each, on records that no result is taken from{}{}.",
            grid.learning_rates,
            if grid.tune_cells { "" } else { ", in the middle one of its cells" },
            match grid.further_rates {
                0 => String::new(),
                n => format!("; where the best was the lowest or the highest, the next beyond it, up to {n} more"),
            }
        ),
    })
}

impl Report {
    /// Everything for a terminal of this width.
    pub fn text(&self, width: usize) -> String {
        let mut out: String = self.sheets.iter().map(|sheet| sheet.text(width)).collect();
        for v in &self.verdicts {
            out += &wrap(&format!("{}: {} here.\n  {}\n\n", v.name, v.outcome, v.test), width);
        }
        for finding in &self.findings {
            out += &wrap(&format!("{finding}\n\n"), width);
        }
        out
    }

    /// One line a cell and measure.
    pub fn csv(&self) -> String {
        let mut out = String::from("row,batch,epochs,budget,unit,measure,mean,min,max,sd,seeds,diverged,paper_gpt2\n");
        for f in &self.figures {
            let ours = f.ours.map_or(",,,,0".into(), |s| format!("{},{},{},{},{}", s.mean, s.min, s.max, s.sd, s.n));
            let paper = f.paper.map_or(String::new(), |p| p.to_string());
            out += &format!(
                "{},{},{},{},{},{},{ours},{},{paper}\n",
                quote(&f.row),
                f.batch,
                f.epochs,
                f.budget,
                f.unit,
                f.measure,
                f.diverged
            );
        }
        out
    }

    /// All tables as LaTeX.
    pub fn latex(&self) -> String {
        self.sheets.iter().map(Sheet::latex).collect()
    }

    /// Everything for programs.
    pub fn json(&self, grid: &Grid, results: &[FinishedRun]) -> Value {
        let run = |r: &FinishedRun| {
            let spec = &r.spec;
            let mut out = json!({
                "file": format!("runs/{}.json", spec.hash()), "row": spec.row, "epochs": spec.epochs, "batch": spec.batch,
                "tune": spec.subset, "budget": number(spec.column()), "unit": spec.budget().1, "seed": spec.seed, "learning_rate": spec.learning_rate,
            });
            match &r.outcome {
                Ok(o) => {
                    for m in &MEASURES {
                        out[m.key] = json!((m.ours)(o));
                    }
                    out["train_perplexity"] = json!(o.train_loss.exp());
                    out["bits"] = json!(o.bits);
                    out["update_bits"] = json!(o.update_bits);
                    out["tuned"] = json!(o.tuned);
                    out["record_gradients"] = json!(o.sample_gradients);
                    out["steps_computed"] = json!(o.steps.0);
                    out["guarantees"] = json!(o.guarantees);
                    if let Some(probed) = &o.probed {
                        out["answers"] = json!(probed.answers);
                        out["secrets"] = json!(probed.secrets);
                        out["peak_bytes"] = json!(o.peak_bytes);
                    }
                }
                Err(why) => out["diverged"] = json!(why),
            }
            out
        };
        let budgets: Vec<String> = grid.budgets.iter().map(|b| number(*b)).collect();
        let mut settings = json!(grid);
        settings["budgets"] = json!(budgets);
        json!({
            "grid": settings, "verdicts": self.verdicts, "findings": self.findings, "cells": self.figures,
            "runs": results.iter().map(run).collect::<Vec<_>>(),
        })
    }

    /// Write tables.txt, tables.csv, tables.tex, study.json and index.html to `dir`; of a real model also the figure of perplexity against bytes
    /// released, a file a length.
    pub fn write(&self, dir: &Path, grid: &Grid, results: &[FinishedRun], command: &str) -> Result<()> {
        let json = serde_json::to_string_pretty(&self.json(grid, results)).expect("plain values") + "\n";
        let html = crate::study::html::render(&page(self, grid, results, command));
        let files = [
            ("tables.txt", self.text(WIDTH)),
            ("tables.csv", self.csv()),
            ("tables.tex", self.latex()),
            ("study.json", json),
            ("index.html", html),
        ];
        let pictures = if grid.kind == Kind::Real { real::pictures(grid, &groups(results)) } else { Vec::new() };
        let pictures = grid.epochs.iter().zip(pictures).map(|(epochs, svg)| (format!("released-{epochs}.svg"), svg));
        let files = files.map(|(name, text)| (name.to_owned(), text));
        for (name, text) in files.into_iter().chain(pictures) {
            // Computed from the records, and covered by no promise: for its owner alone, as the runs are.
            fsio::write_private(&dir.join(name), text.as_bytes())?;
        }
        Ok(())
    }
}
