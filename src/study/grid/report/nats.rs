//! FERRET and DPSGD at the same nats of mutual information.

use super::dp::{finding, protection};
use super::{Group, before, is_base, paper, rows};
use crate::privacy::guarantee::{Guarantee, number};
use crate::study::arm::Outcome;
use crate::study::grid::sheet::{Column, Sheet};
use crate::study::grid::{Choice, Grid};
use crate::study::spec::Goal;
use crate::study::verdict::{UNITS_AGREE, Verdict};
use std::collections::HashMap;

pub(super) fn tables(
    grid: &Grid,
    groups: &[Group],
    chosen: &HashMap<String, Choice>,
) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let before = before(groups);
    let names = rows(groups.iter().filter(|g| !is_base(g)));
    let (mut sheets, mut findings) = (Vec::new(), Vec::new());
    for &epochs in &grid.epochs {
        let of_length: Vec<&Group> = groups.iter().filter(|g| !is_base(g) && g.spec.epochs == epochs).collect();
        let cell = |name: &str, nats: f64| {
            let unlimited = |g: &Group| g.spec.method == Goal::Nonprivate;
            let found = of_length.iter().find(|g| g.spec.row == name && (g.spec.column() == nats || unlimited(g)));
            found.map_or(String::new(), |g| g.perplexity())
        };
        let row = |name: &String| {
            let cells = grid.budgets.iter().map(|nats| cell(name, *nats));
            std::iter::once(name.clone()).chain(cells).collect()
        };
        let budgets = grid.budgets.iter().map(|nats| format!("{nats} nats"));
        sheets.push(Sheet {
            caption: format!("Test perplexity at the same nats, {epochs} epochs (base model: {before})"),
            titles: std::iter::once("method".to_owned()).chain(budgets).collect(),
            rows: names.iter().map(row).collect(),
            note: format!(
                "Mean ± SD [least, largest] over {} seed(s). Nats of mutual information with a record, given all others. Non-private training \
                 has no budget: the same runs stand in every column.",
                grid.seeds
            ),
        });
        for &nats in &grid.budgets {
            let here: Vec<&Group> = of_length.iter().copied().filter(|g| g.spec.column() == nats).collect();
            let at = format!("At {nats} nats, {epochs} epochs");
            let columns: [Column<&Group>; 9] = [
                ("method", &|g| g.spec.row.clone()),
                ("rate", &|g| g.rate()),
                ("test ppl", &|g| g.perplexity()),
                ("AUC", &|g| g.auc()),
                ("gradients", &|g| g.said(|o| Some(o.sample_gradients.to_string()))),
                ("time [s]", &|g| g.show(|o| o.seconds, 1)),
                ("bits", &|g| g.outcomes().next().and_then(|o| o.bits).map_or("all".into(), |bits| bits.to_string())),
                ("hidden by", &|g| g.said(|o| Some(protection(o)))),
                ("nats told", &|g| g.outcomes().next().and_then(told).unwrap_or_else(|| "none".into())),
            ];
            let note = "Gradients of records that one run computes. Nats told: what the first run's releases can tell at most, by what was \
                        really released; under the paper's count bits tell less than they were charged.";
            sheets.push(Sheet::of(at.clone(), &columns, &here, note.into()));
            findings.extend(finding(grid, &here, chosen, &at));
        }
    }
    let variants = rows(groups.iter().filter(|g| matches!(g.spec.method, Goal::Within { .. })));
    let (verdicts, others) = paper::judge(grid, &variants, groups, chosen, UNITS_AGREE);
    findings.extend(others);
    (sheets, verdicts, findings)
}

/// Nats of mutual information that a run promises, for a reader.
fn told(outcome: &Outcome) -> Option<String> {
    outcome.guarantees.iter().find_map(|g| match g {
        Guarantee::MutualInformation { nats } => Some(number(*nats)),
        _ => None,
    })
}
