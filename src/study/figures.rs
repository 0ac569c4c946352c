//! The figures of a report, from outcomes to SVG. A method has the same colour in every figure: its place in the list.

use super::arm::Outcome;
use super::plot::{self, Axis, Bar, BarChart, Chart, FiredBit, Series};
use super::table::thousands;
use crate::privacy::mi;

/// Every figure that the outcomes have data for, in the order of a report: what is learnt for what is given away first.
pub fn all(outcomes: &[&Outcome]) -> Vec<String> {
    let mut out = Vec::new();
    out.extend(against_bits(outcomes));
    out.extend(against_gradients(outcomes));
    out.extend(roc(outcomes));
    out.push(perplexity(outcomes));
    out.push(advantage(outcomes));
    out.extend(time(outcomes));
    out.extend(rasters(outcomes));
    out
}

/// Outcomes that trained, with their place among those that did: the colour.
fn trained<'a>(outcomes: &'a [&'a Outcome]) -> impl Iterator<Item = (usize, &'a Outcome)> {
    outcomes.iter().copied().filter(|o| o.steps.1 > 0).enumerate()
}

/// Perplexity on members and on non-members, a row a method.
pub fn perplexity(outcomes: &[&Outcome]) -> String {
    let mut chart = BarChart::new("Perplexity", Axis::log("perplexity"), &["members", "non-members"]).points();
    for o in outcomes {
        chart = chart.row(&o.name, vec![Some(o.train_loss.exp().into()), Some(o.test_loss.exp().into())]);
    }
    chart.svg()
}

/// One line of [`budget_lines`]: (budget, middle, low, high) of a method, over its seeds.
#[derive(Debug, Clone)]
pub struct BudgetLine {
    /// The method, as the legend calls it.
    pub name: String,
    /// Its place among the study's methods, which is its colour.
    pub colour: usize,
    /// Its points, from the smallest budget up.
    pub points: Vec<(f64, f64, f64, f64)>,
}

impl BudgetLine {
    /// Add a point to the line called `name`, which begins with it where there is none, in this `colour`.
    pub fn add(lines: &mut Vec<Self>, name: &str, colour: usize, point: (f64, f64, f64, f64)) {
        match lines.iter_mut().find(|l| l.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Self { name: name.to_owned(), colour, points: vec![point] }),
        }
    }
}

/// A measure against the budget: a line a method with the range over its seeds, and references (the base model,
/// non-private training) as level dashed lines. All budgets of one figure are of one unit, which `unit` names.
pub fn budget_lines(
    title: &str,
    unit: &str,
    measure: Axis,
    lines: &[BudgetLine],
    references: &[(String, f64)],
) -> String {
    let budgets = || lines.iter().flat_map(|l| &l.points).map(|p| p.0).filter(|b| b.is_finite() && *b > 0.0);
    let (low, high) = budgets().fold((f64::INFINITY, 0f64), |(l, h), b| (l.min(b), h.max(b)));
    let (low, high) = if low > high { (0.1, 1.0) } else { (low / 1.25, high * 1.25) };
    let mut chart = Chart::new(title).x(Axis::log(unit).range(low, high)).y(measure);
    for (name, value) in references {
        // All references look alike: the value says which line is whose.
        let name = format!("{name}: {value:.2}");
        chart = chart.series(Series::line(name, vec![(low, *value), (high, *value)]).muted().dashed());
    }
    for line in lines {
        let spread: Vec<_> =
            line.points.iter().filter(|p| p.3 > p.2).map(|&(x, _, low, high)| (x, low, high)).collect();
        let points = line.points.iter().map(|&(x, middle, ..)| (x, middle)).collect();
        chart = chart.series(Series::line(&line.name, points).markers().errors(spread).colour(line.colour));
    }
    chart.svg()
}

/// What a bit costs: nats a bit against the probability of a flip, for three batch sizes of `records` records, a batch of its own for each
/// bit. The paper's s ln 2 is level beside each: it knows of no flips.
pub fn nats_a_bit(records: u64) -> String {
    let flips: Vec<f64> = (0..=80).map(|i| 1e-5 * (0.45_f64 / 1e-5).powf(f64::from(i) / 80.0)).collect();
    let batches = [1, 5, 50].into_iter().filter(|b| *b <= records);
    let mut chart = Chart::new(format!("What a bit costs, {} records", thousands(records)))
        .x(Axis::log("probability that a bit is flipped").range(flips[0], 0.45))
        .y(Axis::log("nats a bit"))
        .description(
            "Level lines: the paper's charge, s ln 2 a bit, s = B / N. A clean bit tells at most s / e, half of that; and a flip rate far above \
             s makes the charge fall with the square of s, so that a small batch and a few flips make a budget go a hundred times further.",
        );
    for (colour, batch) in batches.enumerate() {
        let s = batch as f64 / records as f64;
        let (paper, cost) = (mi::charge(s, 1), |flip: f64| mi::flips::flipped(s, flip, 1));
        let points = flips.iter().map(|&flip| (flip, cost(flip))).collect();
        let level = vec![(flips[0], paper), (0.45, paper)];
        chart = chart
            .series(Series::line(format!("B = {batch}"), points).colour(colour))
            .series(Series::line(format!("B = {batch}, the paper: {paper:.2e}"), level).colour(colour).dashed());
    }
    chart.svg()
}

/// Perplexity on held-out records over the run.
pub fn loss_curves(outcomes: &[&Outcome]) -> Option<String> {
    let chart = Chart::new("Held-out perplexity over the run")
        .x(Axis::linear("share of the run").range(0.0, 1.0))
        .y(Axis::log("perplexity on held-out records"));
    curves(chart, outcomes, |_, share| Some(share))
}

/// The share of its releases that a run has made at a share of its steps; the same where it does not release by bits.
fn released(o: &Outcome, share: f64) -> f64 {
    let Some(raster) = o.fired.as_ref().filter(|r| !r.fired.is_empty()) else { return share };
    let before = raster.fired.iter().filter(|f| f64::from(f.0) < share * o.steps.1 as f64).count();
    before as f64 / raster.fired.len() as f64
}

/// Perplexity on held-out records against the bits released so far, of the methods that release bits.
pub fn against_bits(outcomes: &[&Outcome]) -> Option<String> {
    let chart = Chart::new("Held-out perplexity against bits released")
        .x(Axis::log("bits released so far"))
        .y(Axis::log("perplexity on held-out records"));
    curves(chart, outcomes, |o, share| Some(released(o, share) * o.bits? as f64).filter(|bits| *bits > 0.0))
}

/// Perplexity on held-out records against the record gradients computed so far.
pub fn against_gradients(outcomes: &[&Outcome]) -> Option<String> {
    let chart = Chart::new("Held-out perplexity against gradients computed")
        .x(Axis::linear("record gradients so far").whole())
        .y(Axis::log("perplexity on held-out records"));
    curves(chart, outcomes, |o, share| Some(released(o, share) * o.sample_gradients as f64))
}

/// A line a trained method: its curve, placed by `x` of the share of the run.
fn curves(mut chart: Chart, outcomes: &[&Outcome], x: impl Fn(&Outcome, f64) -> Option<f64>) -> Option<String> {
    let mut any = false;
    for (colour, o) in trained(outcomes) {
        let place = |&(share, loss): &(f64, f64)| Some((x(o, share)?, loss.exp()));
        let points: Vec<(f64, f64)> = o.curve.iter().filter_map(place).collect();
        if points.len() < 2 {
            continue;
        }
        let line = Series::line(&o.name, points).colour(colour);
        chart = chart.series(if o.curve.len() <= 12 { line.markers() } else { line.sparse_markers(6) });
        any = true;
    }
    any.then(|| chart.svg())
}

/// The attack's ROC, on linear axes and on logarithmic ones, where low false-positive rates are visible.
pub fn roc(outcomes: &[&Outcome]) -> Vec<String> {
    let curves: Vec<_> = trained(outcomes).map(|(_, o)| (o.name.clone(), o.roc.curve())).collect();
    if curves.is_empty() {
        return Vec::new();
    }
    vec![
        plot::roc("ROC of the attack by loss", &curves, &[], None),
        plot::roc("ROC at low false-positive rates", &curves, &[], Some(1e-3)),
    ]
}

/// The attack's advantage with its interval, and what the charge permits.
pub fn advantage(outcomes: &[&Outcome]) -> String {
    let mut chart = BarChart::new(
        "The attack's advantage and its bound",
        Axis::linear("advantage (largest TPR \u{2212} FPR)").range(0.0, 1.0),
        &["advantage, 95 % interval"],
    )
    .points();
    for o in outcomes {
        let bound = o.bound.why_not().is_none().then(|| o.bound.advantage());
        let bar = Bar { value: o.attack.advantage, interval: Some(o.attack.advantage_ci), bound };
        chart = chart.row(&o.name, vec![Some(bar)]);
    }
    chart.svg()
}

/// A plain bar a trained method, where any has a value.
fn bars(title: &str, axis: Axis, outcomes: &[&Outcome], value: impl Fn(&Outcome) -> Option<f64>) -> Option<String> {
    let mut chart = BarChart::new(title, axis, &[""]);
    let mut any = false;
    for (_, o) in trained(outcomes) {
        let Some(value) = value(o) else { continue };
        chart = chart.row(&o.name, vec![Some(value.into())]);
        any = true;
    }
    any.then(|| chart.svg())
}

/// Seconds of training.
pub fn time(outcomes: &[&Outcome]) -> Option<String> {
    bars("Time of training", Axis::linear("seconds"), outcomes, |o| Some(o.seconds))
}

/// Records whose gradient was computed.
pub fn gradients(outcomes: &[&Outcome]) -> Option<String> {
    bars("Record gradients computed", Axis::linear("gradients").whole(), outcomes, |o| Some(o.sample_gradients as f64))
}

/// Which block fired when, and what that did to the loss: the run that was measured most often, of those that released bits.
pub fn rasters(outcomes: &[&Outcome]) -> Option<String> {
    let o = outcomes.iter().filter(|o| o.fired.is_some()).max_by_key(|o| o.curve.len())?;
    let raster = o.fired.as_ref()?;
    let named = raster.blocks.len() as u64 == raster.groups;
    let mut rows: Vec<String> = Vec::new();
    let mut fired = Vec::new();
    let mut row_of = Vec::new();
    for group in 0..raster.groups {
        let name = if named { raster.blocks[group as usize].clone() } else { format!("group {group}") };
        let row = rows.iter().position(|r| *r == name).unwrap_or_else(|| {
            rows.push(name);
            rows.len() - 1
        });
        row_of.push(row as u64);
    }
    for &(step, group, plus) in &raster.fired {
        fired.push(FiredBit { step: step.into(), row: row_of.get(group as usize).copied().unwrap_or(0), plus });
    }
    let curve: Vec<(f64, f64)> = o.curve.iter().map(|&(at, loss)| (at * o.steps.1 as f64, loss.exp())).collect();
    let title = format!("Which block fired when, and what it did: {}", o.name);
    Some(plot::raster(&title, o.steps.1, &rows, &fired, &curve))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_of_a_bits_cost_has_three_batches_and_the_papers_line_for_each() {
        let svg = nats_a_bit(10_000);
        for name in ["B = 1", "B = 5", "B = 50", "B = 50, the paper: 3.47e-3", "B = 1, the paper: 6.93e-5"] {
            assert!(svg.contains(name), "{name} is missing");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // Fewer records than the largest batch: that one is left out.
        assert!(!nats_a_bit(10).contains("B = 50"));
    }
}
