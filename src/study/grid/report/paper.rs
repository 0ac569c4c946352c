//! The paper's tables in its layout, and its hypotheses.

use super::{Group, MEASURES, is_base, number, rows, show};
use crate::study::grid::{Choice, Grid, Kind, sheet::Sheet};
use crate::study::paper;
use crate::study::spec::Goal;
use crate::study::verdict::{self, Cell, Sample, Verdict};
use std::collections::HashMap;

pub(super) fn tables(
    grid: &Grid,
    groups: &[Group],
    chosen: &HashMap<String, Choice>,
) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let note = format!(
        "Mean ± SD [least, largest] over {} seed{}; after the bar the paper's own GPT-2 figure. Columns are nats of mutual information for \
         FERRET and the eps of (eps, delta = {:e}) for DPSGD: the units differ. Column inf: no budget. \"Steps of\": as many steps as \
         that method computes at the column's budget.",
        grid.seeds,
        if grid.seeds == 1 { "" } else { "s" },
        grid.delta
    );
    let names = rows(groups.iter().filter(|g| !is_base(g)));
    let mut sheets = Vec::new();
    for m in &MEASURES {
        let mut cells = Vec::new();
        for &epochs in &grid.epochs {
            for name in &names {
                let mut row = vec![epochs.to_string(), name.clone()];
                for &budget in &grid.budgets {
                    let found = groups.iter().find(|g| {
                        g.spec.row == *name && g.spec.epochs == epochs && g.spec.column() == budget && !is_base(g)
                    });
                    let theirs = paper::cell(name, epochs, budget);
                    row.push(found.map_or(String::new(), |g| {
                        let ours = show(g.spread(m.ours), g.diverged(), m.digits);
                        theirs.map_or(ours.clone(), |c| format!("{ours} | {:.*}", m.digits, (m.paper)(c)))
                    }));
                }
                cells.push(row);
            }
        }
        let mut titles = vec!["epochs".to_owned(), "method".to_owned()];
        titles.extend(grid.budgets.iter().map(|b| number(*b)));
        let mut caption = m.title.to_owned();
        if let Some(base) = groups.iter().find(|g| is_base(g)) {
            caption += &format!(" (base model: {})", base.show(m.ours, m.digits));
        }
        sheets.push(Sheet { caption, titles, rows: cells, note: note.clone() });
    }
    let variants: Vec<String> =
        grid.methods.iter().filter(|m| m.starts_with("ferret")).map(|m| m.to_uppercase()).collect();
    let (verdicts, findings) = if grid.batches.len() > 1 && !variants.is_empty() {
        let why = "With several batch sizes the hypotheses are not judged: run one batch size.";
        (Vec::new(), vec![why.into()])
    } else {
        judge(grid, &variants, groups, chosen, verdict::UNITS_DIFFER)
    };
    (sheets, verdicts, findings)
}

/// Verdicts on the variant of FERRET that was best on the tuning split; the others' answers as findings.
pub(super) fn judge(
    grid: &Grid,
    variants: &[String],
    groups: &[Group],
    chosen: &HashMap<String, Choice>,
    units: &str,
) -> (Vec<Verdict>, Vec<String>) {
    let loss = |name: &String| {
        let of_variant = |key: &str| key == name || key.starts_with(&format!("{name}, "));
        let own = chosen.iter().filter(|(key, _)| of_variant(key));
        own.filter_map(|(_, choice)| Some(choice.best?.1)).fold(f64::INFINITY, f64::min)
    };
    let Some(best) = variants.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))) else { return Default::default() };
    let judged = |name: &str| {
        let cells = cells(grid, groups, name);
        [verdict::utility(name, &cells, units), verdict::trade_off(name, &cells), verdict::time(name, &cells)]
    };
    let mut findings = Vec::new();
    if grid.seeds < 2 {
        findings.push("One seed has no spread: every verdict is undecided. Run at least two, better five.".into());
    }
    let others: Vec<String> = variants
        .iter()
        .filter(|v| *v != best)
        .map(|v| {
            let [utility, trade_off, time] = judged(v).map(|verdict| verdict.outcome);
            format!("{v}: H1 {utility}, H2 {trade_off}, H3 {time}")
        })
        .collect();
    if !others.is_empty() {
        findings.push(format!(
            "The hypotheses were judged for {best}{}. By the same tests, {}.",
            if chosen.is_empty() { "" } else { ", the variant with the lowest perplexity on the tuning split" },
            others.join("; ")
        ));
    }
    (judged(best).into(), findings)
}

fn cells(grid: &Grid, groups: &[Group], variant: &str) -> Vec<Cell> {
    // Only seeds that did not diverge for either of two can be paired; a diverged run is infinitely bad.
    let samples = |g: &Group| -> Vec<Sample> {
        let of = |r: &&crate::study::grid::FinishedRun| match &r.outcome {
            Ok(o) => Sample {
                loss: o.test_loss,
                auc: o.attack.auc,
                seconds: o.seconds,
                gradients: o.sample_gradients as f64,
            },
            Err(_) => Sample { loss: f64::INFINITY, auc: f64::NAN, seconds: f64::NAN, gradients: f64::NAN },
        };
        g.runs.iter().map(of).collect()
    };
    let full = |g: &&Group| g.spec.steps_of.is_none();
    let of =
        |pick: &dyn Fn(&Group) -> bool| groups.iter().filter(full).find(|g| pick(g)).map(samples).unwrap_or_default();
    groups
        .iter()
        .filter(|g| g.spec.row == variant)
        .map(|ferret| {
            let (epochs, budget) = (ferret.spec.epochs, ferret.spec.column());
            // A real model's grid has a list of each unit: the first eps stands beside every number of nats.
            let beside = if grid.kind == Kind::Real { grid.budgets[0] } else { budget };
            let same = |g: &Group| g.spec.epochs == epochs && g.spec.subset == ferret.spec.subset;
            Cell {
                ferret: samples(ferret),
                dpsgd: of(&|g| {
                    matches!(g.spec.method, Goal::Dpsgd { .. } | Goal::DpsgdWithin { .. })
                        && same(g)
                        && g.spec.column() == beside
                }),
                nonprivate: of(&|g| g.spec.method == Goal::Nonprivate && same(g)),
            }
        })
        .collect()
}
