//! The study's page.

use super::{Group, Report, groups, is_base, length, levels};
use crate::study::arm::Outcome;
use crate::study::figures::{self, BudgetLine};
use crate::study::grid::{FinishedRun, Grid, Kind, Spread};
use crate::study::html::{Page, Part, Section};
use crate::study::origin;
use crate::study::plot::{Axis, Bar, BarChart};
use crate::study::spec::Goal;
use crate::study::table::thousands;
use crate::study::toy;

/// The page of a finished study. `command` repeats it.
pub fn page(report: &Report, grid: &Grid, results: &[FinishedRun], command: &str) -> Page {
    let groups = groups(results);
    let section = |id: &str, title: &str, parts| Section { id: id.into(), title: title.into(), parts };
    let mut sections = Vec::new();
    let verdicts = report.verdicts.iter().map(|v| Part::Verdict {
        name: v.name.clone(),
        outcome: v.outcome.to_string(),
        test: v.test.clone(),
    });
    let findings: Vec<Part> = verdicts.chain(report.findings.iter().cloned().map(Part::Prose)).collect();
    if !findings.is_empty() {
        sections.push(section("verdicts", "What was found", findings));
    }
    sections.push(section("tables", "Tables", report.sheets.iter().flat_map(|s| s.parts()).collect()));
    sections.push(section("pictures", "Pictures", vec![Part::Plots(pictures(grid, &groups))]));
    if let Some(records) = results.iter().find_map(|r| Some(r.outcome.as_ref().ok()?.candidates.0)).filter(|n| *n > 0) {
        let said = "One released bit, a batch of its own: the most it can tell about any one record, given all others, by how often it is \
                    flipped. Several bits on one batch are charged together, and cost more.";
        let parts = vec![Part::Prose(said.into()), Part::Plots(vec![figures::nats_a_bit(records)])];
        sections.push(section("cost", "What a bit costs", parts));
    }
    if grid.kind == Kind::Paper {
        sections.push(toy::section(&toy::sweep(toy::SEEDS)));
    }
    let statements = results.iter().filter_map(|r| {
        let statement = r.outcome.as_ref().ok()?.statement.as_ref()?;
        let claims: Vec<String> = statement.claims.iter().map(|c| c.guarantee.to_string()).collect();
        let s = &r.spec;
        let summary = format!("{}, {} epochs, seed {}: {}", s.row, s.epochs, s.seed, claims.join("; "));
        Some(Part::Statement { summary, text: statement.to_markdown() })
    });
    sections.push(section("privacy", "What each run promises", statements.collect()));
    let again = "The same command again runs nothing twice. Every run is a file under `runs/`, named by a hash of its settings.";
    let facts = origin::facts().map(|(name, value)| (name.to_owned(), value));
    let repeat = vec![
        Part::Table(origin::table(&facts)),
        Part::Code(command.into()),
        Part::Prose(again.into()),
        Part::Prose(origin::PAPER.into()),
        Part::Data { name: "study.json".into(), json: report.json(grid, results).to_string() },
        origin::links(),
    ];
    sections.push(section("repeat", "How it was run, and how to repeat it", repeat));
    let what = match grid.kind {
        Kind::Paper => "The paper's methods over budgets and lengths, beside the paper's own GPT-2 figures.",
        Kind::Readings => "Every reading of Algorithm 1 side by side at the same budget.",
        Kind::TrueDp => {
            "FERRET with randomised response and with Gaussian noise against DPSGD, at the same (eps, delta)."
        }
        Kind::EqualNats => {
            "FERRET, its bits charged as the paper does, exactly, and exactly with flips, against DPSGD at the same nats of mutual information."
        }
        Kind::FerretK => "FERRET-k by bits a step and by eps, against DPSGD at the same (eps, delta).",
        Kind::Real => {
            "A model and records of the user's: every method for all weights and for an adapter, with its answers and what it tells of planted secrets."
        }
        Kind::Tune => "All weights, adapters, or a few tensors: what of the model to tune, method by method.",
    };
    let members = results.iter().find_map(|r| r.outcome.as_ref().ok()).map_or((0, 0), |o| o.candidates);
    Page {
        title: "ferret study".into(),
        intro: vec![
            what.into(),
            format!(
                "{} runs over {} seed{}. In each, every candidate record became a member by the toss of a coin (seed 1: {} members, {} \
                 not), the model was fine-tuned on the members, and attacked with up to {} records of each side.",
                thousands(results.len() as u64),
                grid.seeds,
                if grid.seeds == 1 { "" } else { "s" },
                thousands(members.0),
                thousands(members.1),
                grid.audited
            ),
            "Nats of mutual information and (eps, delta) are different units. No figure here puts both on one axis, and no number of one \
             follows from the other."
                .into(),
            "What each run promises is about the model it would publish. Perplexities, curves and attacks were computed from the records \
             themselves, and so were the choices of learning rates: no promise covers this page, nor the files beside it. On records that are \
             private, keep them as secret."
                .into(),
        ],
        sections,
    }
}

fn pictures(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let mut out = Vec::new();
    if grid.kind == Kind::Paper {
        out.extend(against_budget(grid, groups));
        // The middle cell's runs of the first seed: one line a method.
        let middle = |values: &[f64]| values.get(values.len() / 2).copied();
        let finite: Vec<f64> = grid.budgets.iter().copied().filter(|b| b.is_finite()).collect();
        let (budget, epochs) = (middle(&finite), grid.epochs.iter().max());
        let shown: Vec<&Outcome> = groups
            .iter()
            .filter(|g| is_base(g) || Some(&g.spec.epochs) == epochs)
            .filter(|g| {
                g.spec.steps_of.is_none()
                    && (!g.spec.column().is_finite() || is_base(g) || Some(g.spec.column()) == budget)
            })
            .filter_map(first)
            .collect();
        out.extend(figures::all(&shown));
        return out;
    }
    if grid.kind == Kind::EqualNats {
        out.extend(against_budget(grid, groups));
    }
    let title = "Perplexity on held-out records, mean and range over seeds";
    let mut chart = BarChart::new(title, Axis::log("perplexity"), &[""]).points();
    for group in groups {
        if let Some(Spread { mean, min, max, n, .. }) = group.spread(|o| o.test_loss.exp()) {
            let bar = Bar { value: mean, interval: (n > 1).then_some([min, max]), bound: None };
            chart = chart.row(&group.spec.row, vec![Some(bar)]);
        }
    }
    out.push(chart.svg());
    let shown: Vec<&Outcome> = groups.iter().filter_map(first).collect();
    out.extend(figures::time(&shown));
    out.extend(figures::gradients(&shown));
    if grid.kind == Kind::Real {
        out.extend(super::real::pictures(grid, groups));
        out.extend(against_budget(grid, groups));
        out.push(figures::advantage(&shown));
    }
    if grid.kind == Kind::FerretK {
        out.extend(super::sketches::pictures(grid, groups));
        out.extend(against_budget(grid, groups));
    }
    if matches!(grid.kind, Kind::TrueDp | Kind::EqualNats | Kind::FerretK | Kind::Tune) {
        out.extend(figures::loss_curves(&shown));
        out.push(figures::advantage(&shown));
    }
    out
}

/// The outcome of a group's first seed, for figures.
fn first<'a>(group: &Group<'a>) -> Option<&'a Outcome> {
    group.runs.first()?.outcome.as_ref().ok()
}

/// Perplexity against the budget, a figure a length and unit.
fn against_budget(grid: &Grid, groups: &[Group]) -> Vec<String> {
    let mut out = Vec::new();
    // A method has one colour in all figures; rows that only repeat another's steps come after.
    let mut names: Vec<&str> = Vec::new();
    let trained = || groups.iter().filter(|g| !is_base(g));
    for g in trained().filter(|g| g.spec.steps_of.is_none()).chain(trained()) {
        if !names.contains(&g.spec.row.as_str()) {
            names.push(&g.spec.row);
        }
    }
    for &epochs in &grid.epochs {
        let level = |g: &&Group| is_base(g) || (g.spec.method == Goal::Nonprivate && g.spec.epochs == epochs);
        let references = levels(groups.iter().filter(|g| g.spec.steps_of.is_none()).filter(level));
        let units = [
            ("nats", "mutual information with a record [nats]".to_owned()),
            ("eps at delta", format!("eps at delta {:e}", grid.delta)),
        ];
        for (unit, axis) in units {
            let mut lines: Vec<BudgetLine> = Vec::new();
            for g in groups.iter().filter(|g| g.spec.epochs == epochs && g.spec.budget().1 == unit) {
                let Some(point) = g.point(g.spec.column()) else { continue };
                let colour = names.iter().position(|name| *name == g.spec.row).unwrap_or(0);
                BudgetLine::add(&mut lines, &g.spec.row, colour, point);
            }
            if !lines.is_empty() {
                let title = format!("Test perplexity against budget, {}", length(epochs));
                out.push(figures::budget_lines(&title, &axis, Axis::log("test perplexity"), &lines, &references));
            }
        }
    }
    out
}
