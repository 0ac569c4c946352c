//! A real model: what each method leaves of it, what it answers, what it gives away.

use super::sketches::{against_bytes, all_bits, bytes};
use super::{Group, is_base, length, paper, rows};
use crate::study::grid::sheet::Sheet;
use crate::study::grid::{Choice, Grid};
use crate::study::real::Exposures;
use crate::study::spec::{Goal, Spec};
use crate::study::table::thousands;
use crate::study::verdict::{UNITS_DIFFER, Verdict};
use std::collections::HashMap;

pub(super) fn tables(
    grid: &Grid,
    groups: &[Group],
    chosen: &HashMap<String, Choice>,
) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let mut sheets = Vec::new();
    for &epochs in &grid.epochs {
        let here: Vec<&Group> = groups.iter().filter(|g| is_base(g) || g.spec.epochs == epochs).collect();
        let length = length(epochs);
        sheets.push(kept(grid, &here, &length));
        sheets.extend(secrets(grid, &here, &length));
    }
    let of_ferret = |g: &&Group| matches!(g.spec.method, Goal::Ferret(_) | Goal::Within { .. });
    let variants = rows(groups.iter().filter(of_ferret));
    let (verdicts, mut findings) = paper::judge(grid, &variants, groups, chosen, UNITS_DIFFER);
    findings.extend(finding(groups));
    (sheets, verdicts, findings)
}

/// The row with its budget, for a reader: rows of several budgets share a name.
fn name(grid: &Grid, spec: &Spec) -> String {
    match spec.budget() {
        (nats, "nats") if grid.nats.len() > 1 => format!("{}, {nats} nats", spec.row),
        (eps, "eps at delta") if grid.budgets.len() > 1 => format!("{}, eps {eps}", spec.row),
        _ => spec.row.clone(),
    }
}

/// Utility, attack, cost.
fn kept(grid: &Grid, here: &[&Group], length: &str) -> Sheet {
    let row = |g: &&Group| {
        let run = g.outcomes().next();
        let promised: Vec<String> = run.into_iter().flat_map(|o| &o.guarantees).map(|g| g.short()).collect();
        let base = is_base(g);
        let answers = |o: &crate::study::arm::Outcome| {
            o.probed.as_ref().and_then(|p| p.answers.accuracy()).map_or(f64::NAN, |a| 100.0 * a)
        };
        let asked = run.is_some_and(|o| o.probed.as_ref().is_some_and(|p| p.answers.asked > 0));
        vec![
            name(grid, g.spec),
            if base { "saw no record".into() } else { promised.join(", ") },
            run.map_or(String::new(), |o| if base { String::new() } else { thousands(o.tuned) }),
            run.and_then(all_bits).map_or(String::new(), bytes),
            if base { String::new() } else { format!("{:.1e}", g.spec.learning_rate) },
            g.perplexity(),
            if asked { g.show(answers, 1) } else { String::new() },
            g.show(|o| o.attack.auc, 3),
            if base { String::new() } else { g.show(|o| o.seconds, 0) },
            run.and_then(|o| o.peak_bytes).map_or(String::new(), |b| format!("{:.1}", b as f64 / 1e9)),
        ]
    };
    let titles = [
        "method",
        "promised",
        "tuned",
        "released",
        "rate",
        "test ppl",
        "answers [%]",
        "AUC",
        "time [s]",
        "memory [GB]",
    ];
    Sheet {
        caption: format!("What each method made of the model, {length}"),
        titles: titles.map(String::from).to_vec(),
        rows: here.iter().map(row).collect(),
        note: format!(
            "Mean ± SD [least, largest] over {} seed(s). Promised: by the first seed's run; nats of mutual information with a record and (eps, delta) are \
             different units. Tuned: numbers. Released: bits of FERRET and FERRET-k, 32 bits a number for the others. Answers: exact match of greedy \
             answers on held-out records with a short one. Memory: the process's peak in the first run's training, the base model and the \
             records included.",
            grid.seeds
        ),
    }
}

/// Secrets that were planted.
fn secrets(grid: &Grid, here: &[&Group], length: &str) -> Option<Sheet> {
    let of = |g: &Group| -> Vec<Vec<Exposures>> {
        g.outcomes().filter_map(|o| Some(o.probed.as_ref()?.secrets.clone())).filter(|s| !s.is_empty()).collect()
    };
    let frequencies: Vec<u32> = here.iter().flat_map(|g| of(g)).next()?.iter().map(|e| e.repeats).collect();
    let row = |g: &&Group| {
        let found = of(g);
        let cell = |&repeats: &u32| {
            let own: Vec<&Exposures> = found.iter().flatten().filter(|e| e.repeats == repeats).collect();
            let secrets: u64 = own.iter().map(|e| e.secrets).sum();
            if secrets == 0 {
                return String::new();
            }
            let bits = own.iter().map(|e| e.exposure * e.secrets as f64).sum::<f64>() / secrets as f64;
            let said: u64 = own.iter().map(|e| e.extracted).sum();
            format!("{bits:.2}, {said} of {secrets} said")
        };
        std::iter::once(name(grid, g.spec)).chain(frequencies.iter().map(cell)).collect()
    };
    let head = frequencies.iter().map(|n| match n {
        0 => "never planted".to_owned(),
        1 => "once".to_owned(),
        n => format!("{n} times"),
    });
    Some(Sheet {
        caption: format!("Planted secrets, {length}: mean exposure in bits, and how many greedy decoding said"),
        titles: std::iter::once("method".to_owned()).chain(head).collect(),
        rows: here.iter().map(row).collect(),
        note: "Exposure is log2 of how far up a secret stands among others of its form: about 1.44 bits on average where nothing was learnt of it. A promise \
               is about one record: of a secret that is planted several times more may be told, where there is noise faster than their number."
            .into(),
    })
}

/// Of the private rows, the one with the lowest perplexity.
fn finding(groups: &[Group]) -> Option<String> {
    let base = groups.iter().find(|g| is_base(g))?;
    let ppl = |g: &Group| g.spread(|o| o.test_loss.exp());
    let private = groups.iter().filter(|g| !is_base(g) && g.spec.method != Goal::Nonprivate);
    let mean = |g: &Group| ppl(g).map_or(f64::INFINITY, |s| s.mean);
    let best = private.min_by(|a, b| mean(a).total_cmp(&mean(b)))?;
    let free = groups.iter().filter(|g| g.spec.method == Goal::Nonprivate).min_by(|a, b| mean(a).total_cmp(&mean(b)));
    let beside = free.map_or(String::new(), |g| format!("; without privacy {} reached {}", g.spec.row, g.perplexity()));
    Some(format!(
        "Of the private runs {} ({} {}) had the lowest held-out perplexity, {} from the base model's {}{beside}.",
        best.spec.row,
        best.spec.budget().0,
        best.spec.budget().1,
        best.perplexity(),
        base.perplexity(),
    ))
}

/// Held-out perplexity against bytes released, a figure a length: every method and what it tunes.
pub(super) fn pictures(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let picture = |&epochs: &u32| {
        let title = format!("Held-out perplexity against what is released, {}", length(epochs));
        let here: Vec<&Group> = groups.iter().filter(|g| !is_base(g) && g.spec.epochs == epochs).collect();
        let points = here.iter().map(|g| (*g, g.spec.row.as_str(), g.outcomes().next().and_then(all_bits)));
        against_bytes(&title, "held-out perplexity", points, groups)
    };
    grid.epochs.iter().map(picture).collect()
}
