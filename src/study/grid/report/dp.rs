//! FERRET with a true (eps, delta) against DPSGD at the same (eps, delta).

use super::sketches::at_dp;
use super::{Group, before, lower, within};
use crate::privacy::statement::Released;
use crate::study::arm::Outcome;
use crate::study::grid::sheet::{Column, Sheet};
use crate::study::grid::{Choice, Grid, Row};
use crate::study::spec::Goal;
use crate::study::verdict::Verdict;
use std::collections::HashMap;

pub(super) fn tables(
    grid: &Grid,
    groups: &[Group],
    chosen: &HashMap<String, Choice>,
) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let before = before(groups);
    let mut sheets = Vec::new();
    let mut findings = Vec::new();
    for &epochs in &grid.epochs {
        for &eps in &grid.budgets {
            let here = within(groups, epochs, eps);
            let released = |o: &Outcome| o.fired.as_ref().map_or("whole updates".into(), |f| f.fired.len().to_string());
            let columns: [Column<&Group>; 9] = [
                ("method", &|g| g.spec.row.clone()),
                ("rate", &|g| g.rate()),
                ("test ppl", &|g| g.perplexity()),
                ("AUC", &|g| g.auc()),
                ("record gradients", &|g| g.said(|o| Some(o.sample_gradients.to_string()))),
                ("time [s]", &|g| g.show(|o| o.seconds, 1)),
                ("released", &|g| g.outcomes().next().map_or("whole updates".into(), released)),
                ("protected by", &|g| g.said(|o| Some(protection(o)))),
                ("eps spent (PLD)", &|g| g.eps_spent()),
            ];
            let note = format!(
                "Mean ± SD [least, largest] over {} seed(s). Every row is protected to the same eps and delta, one record replaced \
                 by an empty one, Poisson sampling; eps spent is the accountant's upper bound for what was really released. How many bits or \
                 scalars FERRET releases was set by the nats of mutual information in its name, another unit.",
                grid.seeds
            );
            sheets.push(Sheet::of(at_dp(grid, eps, epochs, &before), &columns, &here, note));
            let at = format!("At ({eps}, {:e}), {epochs} epochs", grid.delta);
            findings.extend(finding(grid, &here, chosen, &at));
        }
    }
    (sheets, Vec::new(), findings)
}

/// What hides a record in a run's releases.
pub(super) fn protection(outcome: &Outcome) -> String {
    outcome.statement.as_ref().map_or(String::new(), |s| match s.released {
        Released::FlippedBits { flip, .. } => format!("flips {:.2} %", 100.0 * flip),
        Released::DitheredScalars { dither, .. } => format!("dither {dither:.2} C"),
        Released::NoisedSums { noise_multiplier, .. } => format!("noise {noise_multiplier:.2} C"),
        _ => String::new(),
    })
}

/// The best of each side, chosen on the tuning split, compared by results.
pub(super) fn finding(grid: &Grid, here: &[&Group], chosen: &HashMap<String, Choice>, at: &str) -> Option<String> {
    let rows = grid.tuned_rows();
    let is = |r: &Row, g: &Group| {
        r.name == g.spec.row && (!grid.tune_cells || (r.method == g.spec.method && r.epochs == g.spec.epochs))
    };
    let score = |g: &&&Group| {
        let key = rows.iter().find(|r| is(r, g)).map(|r| r.key(grid.tune_cells));
        let by_tuning = key.and_then(|k| chosen.get(&k)?.best).map(|(_, loss)| loss);
        by_tuning.or_else(|| g.spread(|o| o.test_loss).map(|s| s.mean)).unwrap_or(f64::INFINITY)
    };
    let dpsgd = |g: &&&Group| matches!(g.spec.method, Goal::Dpsgd { .. } | Goal::DpsgdWithin { .. });
    let ferret = |g: &&&Group| matches!(g.spec.method, Goal::Ferret(_) | Goal::Within { .. });
    let best = |of: &dyn Fn(&&&Group) -> bool| {
        here.iter().filter(|g| of(g)).min_by(|a, b| score(a).total_cmp(&score(b))).copied()
    };
    let (ferret, dpsgd) = (best(&|g| ferret(g))?, best(&|g| dpsgd(g))?);
    let mean = |g: &Group, of: fn(&Outcome) -> f64| g.spread(of).map(|s| s.mean);
    let ratio = |of: fn(&Outcome) -> f64| Some(mean(ferret, of)? / mean(dpsgd, of)?.max(1e-12));
    let sure = lower("FERRET's perplexity", "DPSGD's perplexity", &ferret.losses_above(dpsgd));
    let by = if chosen.is_empty() { "by these results, there being no tuning runs" } else { "on the tuning split" };
    Some(format!(
        "{at}: {} reached perplexity {}, {} reached {} (each the best of its kind {by}). FERRET's perplexity is {:.2} times \
         DPSGD's, with {:.2} times the record gradients and {:.2} times the time; {sure} (Student's 95 % interval of the difference in loss, \
         paired over seeds).",
        ferret.spec.row,
        ferret.perplexity(),
        dpsgd.spec.row,
        dpsgd.perplexity(),
        ratio(|o| o.test_loss.exp())?,
        ratio(|o| o.sample_gradients as f64)?,
        ratio(|o| o.seconds)?
    ))
}
