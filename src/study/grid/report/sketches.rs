//! FERRET-k against DPSGD at the same (eps, delta): by bits a step, and by eps.

use super::{Group, before, is_base, levels, lower, within};
use crate::method::ferret_k::Release;
use crate::privacy::statement::Released;
use crate::study::arm::Outcome;
use crate::study::figures::{self, BudgetLine};
use crate::study::grid::Grid;
use crate::study::grid::sheet::{Column, Sheet};
use crate::study::plot::Axis;
use crate::study::spec::{Goal, Sketches};
use crate::study::table::thousands;
use crate::study::verdict::Verdict;

/// What a run released: numbers a step, bits in all, and the noise; of DPSGD all weights, 32 bits each.
pub(super) fn released(outcome: &Outcome) -> Option<(u64, u64, f64)> {
    match outcome.statement.as_ref()?.released {
        Released::NoisedSketches { count, numbers, signs, levels, noise_multiplier, .. } => {
            let bits = Release::stated(signs, levels).bits(numbers.into());
            Some((numbers.into(), count * bits, noise_multiplier))
        }
        Released::NoisedSums { count, noise_multiplier, .. } => {
            let bits = outcome.update_bits?;
            Some((bits / 32, count * bits, noise_multiplier))
        }
        _ => None,
    }
}

/// All bits that a run released; of non-private training all its updates, 32 bits a number.
pub(super) fn all_bits(outcome: &Outcome) -> Option<u64> {
    let whole = || Some(outcome.update_bits? * outcome.steps.0);
    released(outcome).map(|made| made.1).or(outcome.bits).or_else(whole)
}

/// Bytes, for a reader.
pub(super) fn bytes(bits: u64) -> String {
    match bits.div_ceil(8) {
        b if b < 10_000 => format!("{b} B"),
        b if b < 10_000_000 => format!("{:.1} KB", b as f64 / 1e3),
        b => format!("{:.1} MB", b as f64 / 1e6),
    }
}

/// The caption of what was run at one (eps, delta).
pub(super) fn at_dp(grid: &Grid, eps: f64, epochs: u32, before: &str) -> String {
    format!("At ({eps}, {:e})-differential privacy, {epochs} epochs (base model: perplexity {before})", grid.delta)
}

pub(super) fn tables(grid: &Grid, groups: &[Group]) -> (Vec<Sheet>, Vec<Verdict>, Vec<String>) {
    let before = before(groups);
    let (mut sheets, mut findings) = (Vec::new(), Vec::new());
    for &epochs in &grid.epochs {
        for &eps in &grid.budgets {
            let here = within(groups, epochs, eps);
            let columns: [Column<&Group>; 9] = [
                ("method", &|g| g.spec.row.clone()),
                ("numbers a step", &|g| g.said(|o| Some(thousands(released(o)?.0)))),
                ("released", &|g| g.said(|o| Some(bytes(released(o)?.1)))),
                ("noise [C]", &|g| g.said(|o| Some(format!("{:.3}", released(o)?.2)))),
                ("rate", &|g| g.rate()),
                ("test ppl", &|g| g.perplexity()),
                ("AUC", &|g| g.auc()),
                ("time [s]", &|g| g.show(|o| o.seconds, 1)),
                ("eps spent (PLD)", &|g| g.eps_spent()),
            ];
            let note = format!(
                "Mean ± SD [least, largest] over {} seed(s). All rows see the same records with the same batch size for as many steps; \
                 what a row releases is all that its model tells of them.",
                grid.seeds
            );
            sheets.push(Sheet::of(at_dp(grid, eps, epochs, &before), &columns, &here, note));
            findings.extend(here.iter().flat_map(|own| findings_of(grid, own, &here)));
        }
    }
    (sheets, Vec::new(), findings)
}

/// FERRET-k with levels, as many as usual or as fit into 16 KB, against DPSGD, paired by seed; with scales against DPSGD with and without them.
fn findings_of(grid: &Grid, own: &Group, here: &[&Group]) -> Vec<String> {
    let (eps, batch) = (own.spec.column(), own.spec.batch);
    let scaled = match &own.spec.method {
        Goal::FerretK(sketches) if *sketches == Sketches::usual(eps, sketches.bits) => false,
        Goal::FerretK(sketches) if *sketches == (Sketches { scaled: true, ..Sketches::usual(eps, sketches.bits) }) => {
            true
        }
        _ => return Vec::new(),
    };
    let against =
        [Some((Goal::Dpsgd { eps }, "DPSGD")), scaled.then_some((Goal::DpsgdScaled { eps }, "DPSGD with scales"))];
    let row = |goal: &Goal| here.iter().find(|g| g.spec.method == *goal && g.spec.batch == batch);
    let found = against.into_iter().flatten();
    found.filter_map(|(goal, name)| finding(grid, (own, scaled), (row(&goal)?, name))).collect()
}

fn finding(grid: &Grid, (own, scaled): (&Group, bool), (dpsgd, name): (&Group, &str)) -> Option<String> {
    let (eps, epochs, batch) = (own.spec.column(), own.spec.epochs, own.spec.batch);
    let ratio = own.spread(|o| o.test_loss.exp())?.mean / dpsgd.spread(|o| o.test_loss.exp())?.mean;
    let (less, all) = (released(own.outcomes().next()?)?, released(dpsgd.outcomes().next()?)?);
    let sure = lower("FERRET-k's", &format!("{name}'s"), &own.losses_above(dpsgd));
    Some(format!(
        "At ({eps}, {:e}), {epochs} epochs of batches of {batch}: FERRET-k with two bits of each of {} numbers a step{} reached perplexity {} in {}, {name} {} in {}: {:+.1} % (the aim is \
         within 5 %); {sure} (Student's 95 % interval of the difference in loss, paired over seeds).",
        grid.delta,
        less.0,
        if scaled { " and scales" } else { "" },
        own.perplexity(),
        bytes(less.1),
        dpsgd.perplexity(),
        bytes(all.1),
        100.0 * (ratio - 1.0)
    ))
}

/// Perplexity against bytes released, at the budget at which the bits are swept: from one bit a step to all of DPSGD.
pub(super) fn pictures(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let eps = grid.swept_budget();
    let picture = |&epochs: &u32| {
        let title = format!("Test perplexity against what is released, at ({eps}, {:e}), {epochs} epochs", grid.delta);
        let here = within(groups, epochs, eps);
        let points = here.iter().map(|g| {
            let name = match &g.spec.method {
                Goal::FerretK(sketches) if sketches.release == Release::Sign => "FERRET-k, signs",
                _ => &g.spec.row,
            };
            (*g, name, g.outcomes().next().and_then(released).map(|made| made.1))
        });
        against_bytes(&title, "test perplexity", points, groups)
    };
    grid.epochs.iter().map(picture).collect()
}

/// Perplexity of groups, each on the line of its name, against the bits that it released; the base model's is level.
pub(super) fn against_bytes<'a>(
    title: &str,
    measure: &str,
    points: impl Iterator<Item = (&'a Group<'a>, &'a str, Option<u64>)>,
    all: &[Group],
) -> String {
    let mut lines: Vec<BudgetLine> = Vec::new();
    for (group, name, bits) in points {
        let Some(point) = bits.and_then(|bits| group.point(bits.max(1) as f64 / 8.0)) else { continue };
        let colour = lines.len();
        BudgetLine::add(&mut lines, name, colour, point);
    }
    let base = levels(all.iter().filter(|g| is_base(g)));
    figures::budget_lines(title, "bytes released", Axis::log(measure), &lines, &base)
}
