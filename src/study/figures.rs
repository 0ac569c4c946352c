//! The figures of a report, from outcomes to SVG. A method has the same colour in every figure: its place in the list.

use super::arm::Outcome;
use super::plot::{self, Axis, Bar, BarChart, Chart, Fired, Series};
use crate::privacy::guarantee::Guarantee;
use crate::privacy::mi;

/// Every figure that the outcomes have data for, in the order of a report.
pub fn all(outcomes: &[&Outcome]) -> Vec<String> {
    let mut out = vec![perplexity(outcomes)];
    out.extend(perplexity_against_budget(outcomes));
    out.extend(loss_curves(outcomes));
    out.extend(roc(outcomes));
    out.push(advantage(outcomes));
    out.extend(time(outcomes));
    out.extend(bits(outcomes));
    out.extend(gradients(outcomes));
    out.extend(rasters(outcomes));
    out
}

/// Outcomes that trained, with their place among those that did: the colour.
fn trained<'a>(outcomes: &'a [&'a Outcome]) -> impl Iterator<Item = (usize, &'a Outcome)> {
    outcomes.iter().copied().filter(|o| o.steps.1 > 0).enumerate()
}

/// Perplexity on members and on non-members, a row a method.
pub fn perplexity(outcomes: &[&Outcome]) -> String {
    let mut chart = BarChart::new("Perplexity", Axis::log("perplexity"), &["members", "non-members"]);
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
    /// Its points, from the smallest budget up.
    pub points: Vec<(f64, f64, f64, f64)>,
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
    for (index, line) in lines.iter().enumerate() {
        let spread: Vec<_> =
            line.points.iter().filter(|p| p.3 > p.2).map(|&(x, _, low, high)| (x, low, high)).collect();
        let points = line.points.iter().map(|&(x, middle, ..)| (x, middle)).collect();
        chart = chart.series(Series::line(&line.name, points).markers().errors(spread).colour(index));
    }
    chart.svg()
}

/// Test perplexity against what was spent, a figure for each unit that occurs: nats of mutual information and (eps, delta)
/// never share an axis. Outcomes of one name form one line. The base model and methods that promise nothing are level
/// lines.
pub fn perplexity_against_budget(outcomes: &[&Outcome]) -> Vec<String> {
    type Spent = fn(&Guarantee) -> Option<f64>;
    let nats: Spent = |g| match g {
        Guarantee::MutualInformation { nats } => Some(*nats),
        _ => None,
    };
    let eps: Spent = |g| match g {
        Guarantee::EpsDelta { eps, .. } => Some(*eps),
        _ => None,
    };
    let deltas: Vec<f64> = {
        let all = outcomes.iter().flat_map(|o| &o.guarantees).filter_map(|g| match g {
            Guarantee::EpsDelta { delta, .. } => Some(*delta),
            _ => None,
        });
        let mut all: Vec<f64> = all.collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    };
    let at = if let [delta] = deltas[..] { format!("eps at delta {delta:e}") } else { "eps".to_owned() };
    let references: Vec<(String, f64)> = outcomes
        .iter()
        .filter(|o| !o.guarantees.iter().any(Guarantee::is_private))
        .map(|o| (o.name.clone(), o.test_loss.exp()))
        .collect();
    let units = [
        ("Test perplexity against nats spent", "mutual information with a record [nats]".to_owned(), nats),
        ("Test perplexity against eps spent", at, eps),
    ];
    let figure = |(title, unit, spent): (&str, String, Spent)| {
        let mut lines: Vec<BudgetLine> = Vec::new();
        // Every trained method takes its place, so that colours stay those of the other figures.
        for (_, o) in trained(outcomes) {
            let point = o.guarantees.iter().find_map(spent).map(|x| {
                let y = o.test_loss.exp();
                (x, y, y, y)
            });
            match lines.iter_mut().find(|l| l.name == o.name) {
                Some(line) => line.points.extend(point),
                None => lines.push(BudgetLine { name: o.name.clone(), points: point.into_iter().collect() }),
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if line.points.is_empty() {
                line.name.clear();
            }
        }
        let any = lines.iter().any(|l| !l.points.is_empty());
        any.then(|| budget_lines(title, &unit, Axis::log("test perplexity"), &lines, &references))
    };
    units.into_iter().filter_map(figure).collect()
}

/// What a bit costs: nats a bit against the probability of a flip, for three batch sizes of `records` records, a batch of its own for each
/// bit. The paper's s ln 2 is level beside each: it knows of no flips.
pub fn nats_a_bit(records: u64) -> String {
    let flips: Vec<f64> = (0..=80).map(|i| 1e-5 * (0.45_f64 / 1e-5).powf(f64::from(i) / 80.0)).collect();
    let batches = [1, 5, 50].into_iter().filter(|b| *b <= records);
    let mut chart = Chart::new(format!("What a bit costs, {records} records"))
        .x(Axis::log("probability that a bit is flipped").range(flips[0], 0.45))
        .y(Axis::log("nats a bit, about any one record given all others"))
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
    let mut chart = Chart::new("Held-out perplexity over the run")
        .x(Axis::linear("share of the run").range(0.0, 1.0))
        .y(Axis::log("perplexity on held-out records"));
    let mut any = false;
    for (colour, o) in trained(outcomes).filter(|(_, o)| !o.curve.is_empty()) {
        let points = o.curve.iter().map(|&(x, loss)| (x, loss.exp())).collect();
        chart = chart.series(Series::line(&o.name, points).markers().colour(colour));
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
        plot::roc("The same at low false-positive rates", &curves, &[], Some(1e-3)),
    ]
}

/// The attack's advantage with its interval, and what the charge permits.
pub fn advantage(outcomes: &[&Outcome]) -> String {
    let mut chart = BarChart::new(
        "The attack's advantage and its bound",
        Axis::linear("advantage (largest TPR \u{2212} FPR)").range(0.0, 1.0),
        &["advantage, 95 % interval"],
    );
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

/// Bits released, of the methods that release nothing else.
pub fn bits(outcomes: &[&Outcome]) -> Option<String> {
    bars("Bits released", Axis::linear("bits").whole(), outcomes, |o| o.bits.map(|b| b as f64))
}

/// Records whose gradient was computed.
pub fn gradients(outcomes: &[&Outcome]) -> Option<String> {
    bars("Record gradients computed", Axis::linear("gradients").whole(), outcomes, |o| Some(o.sample_gradients as f64))
}

/// Which group fired when, a figure for each run that released bits.
pub fn rasters(outcomes: &[&Outcome]) -> Vec<String> {
    let figure = |o: &Outcome| {
        let raster = o.fired.as_ref()?;
        let fired: Vec<Fired> = raster
            .fired
            .iter()
            .map(|&(step, group, plus)| Fired { step: step.into(), group: group.into(), plus })
            .collect();
        Some(plot::raster(&format!("Which group fired when: {}", o.name), o.steps.1, raster.groups, &fired))
    };
    outcomes.iter().copied().filter_map(figure).collect()
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
