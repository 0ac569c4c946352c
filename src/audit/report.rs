//! The audit's tables: text for people, CSV for spreadsheets, JSON for programs.

use serde::{Deserialize, Serialize};

use super::attack::HeldOut;
use super::bound::{Bound, Charge, Design, Metric, Verdict, judge};
use super::columns::{align, wrap};
use super::roc::{LOW_FPR, Roc, Summary};

/// One attack: what it reached, and what was permitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The attack's name.
    pub attack: String,
    /// Metrics, intervals, nulls.
    #[serde(flatten)]
    pub summary: Summary,
    /// One verdict a metric.
    pub verdicts: Vec<Verdict>,
    /// Advantage of a threshold chosen on other records, where computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOut>,
}

/// All attacks on one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What the model's training charged for.
    pub charge: Charge,
    /// How members were chosen.
    pub design: Design,
    /// Why the bounds do not apply, where they do not.
    pub bound_does_not_apply: Option<String>,
    /// All limits hold together with this probability.
    pub simultaneous_confidence: f64,
    /// Whether any value lies surely above its bound.
    pub alarm: bool,
    /// Whether there was a bound to hold the values against: without one, no alarm says nothing.
    #[serde(default)]
    pub judged: bool,
    /// What the attacks found, in a sentence, whether or not a bound applies.
    #[serde(default)]
    pub finding: String,
    /// One row an attack.
    pub attacks: Vec<Row>,
}

impl Report {
    /// Judge `attacks` (name, curve) against what was charged. `candidates` are the members and non-members among whom
    /// membership was drawn, which may be more than were scored.
    pub fn new(attacks: &[(String, Roc)], charge: Charge, design: Design, candidates: (u64, u64)) -> Self {
        const ALPHA: f64 = 0.05;
        let bound = Bound::new(&charge, design, candidates.0, candidates.1);
        let curves: Vec<&Roc> = attacks.iter().map(|(_, roc)| roc).collect();
        let rows: Vec<Row> = attacks
            .iter()
            .zip(judge(&curves, &bound, ALPHA))
            .map(|((name, roc), verdicts)| Row {
                attack: name.clone(),
                summary: roc.summary(),
                verdicts,
                held_out: None,
            })
            .collect();
        Self {
            judged: bound.why_not().is_none() && !rows.is_empty(),
            finding: finding(&rows, design),
            bound_does_not_apply: bound.why_not().map(str::to_owned),
            simultaneous_confidence: 1.0 - ALPHA,
            alarm: rows.iter().flat_map(|row| &row.verdicts).any(raised),
            attacks: rows,
            charge,
            design,
        }
    }

    /// A table for a terminal of this width, with the notes a reader needs.
    pub fn text(&self, width: usize) -> String {
        let head = ["attack", "metric", "value", "95 % interval", "by chance", "bound", "at least", "verdict"];
        let mut table = vec![head.map(String::from).to_vec()];
        for row in &self.attacks {
            for verdict in &row.verdicts {
                let (value, ci, null, _) = cells(&row.summary, verdict.metric);
                let first = if verdict.metric == Metric::Auc { row.attack.clone() } else { String::new() };
                table.push(vec![
                    first,
                    label(verdict.metric).into(),
                    format!("{value:.3}"),
                    match fpr(verdict.metric).filter(|&fpr| row.summary.nonmembers < needed(fpr)) {
                        Some(_) => format!("at most {:.3} *", ci[1]),
                        None => interval(ci),
                    },
                    interval(null),
                    verdict.bound.map_or("none".into(), |b| format!("{:.3}", upwards(b))),
                    format!("{:.3}", downwards(verdict.lower_limit)),
                    Self::word(verdict).into(),
                ]);
            }
        }
        let mut out = align(&table, width);
        if let Some(row) = self.attacks.first() {
            let (m, n) = (row.summary.members, row.summary.nonmembers);
            out.push_str(&format!(
                "\n{m} members, {n} non-members; rates are fractions of records. \"By chance\": 95 % of values if nothing leaked.\n"
            ));
            for fpr in LOW_FPR.into_iter().filter(|&fpr| n < needed(fpr)) {
                out.push_str(&format!(
                    "* {n} non-members cannot tell a threshold of FPR {} % from a laxer one: {} give a lower limit too.\n",
                    100.0 * fpr,
                    needed(fpr)
                ));
            }
        }
        out.push_str(&format!(
            "\"At least\": lower limits that hold together with {:.0} %.\n",
            100.0 * self.simultaneous_confidence
        ));
        match (&self.bound_does_not_apply, &self.charge) {
            (Some(why), _) => out.push_str(&format!("The bound does not apply: {why}.\n")),
            (None, Charge::Bits(bits)) => out.push_str(&format!(
                "Bound: {bits} released bits; in expectation over runs and on average over records.\n"
            )),
            (None, Charge::EpsDelta { eps, delta, neighbours }) => {
                out.push_str(&format!(
                    "Bound: the trade-off curve of (eps, delta) = ({eps:.4}, {delta:e}), {neighbours}.\n"
                ));
            }
            (None, Charge::NonPrivate) => {}
        }
        out.push_str(&self.finding);
        out.push('\n');
        if self.alarm {
            out.push_str("ALARM: a value lies surely above its bound: the model gives away more than was charged.\n");
        }
        wrap(&out, width)
    }

    /// One line an attack and metric, a header with units.
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "attack,metric,value [fraction],ci95_low [fraction],ci95_high [fraction],null95_low [fraction],\
             null95_high [fraction],null_p [probability],bound [fraction],simultaneous_lower95 [fraction],alarm,\
             uncharged_p [probability],members [records],nonmembers [records]\n",
        );
        for row in &self.attacks {
            for verdict in &row.verdicts {
                let (value, ci, null, p) = cells(&row.summary, verdict.metric);
                let bound = verdict.bound.map_or("does not apply".into(), |b| b.to_string());
                let uncharged = verdict.uncharged_p.map_or("does not apply".into(), |p| p.to_string());
                out.push_str(&format!(
                    "{},{},{value},{},{},{},{},{p},{bound},{},{},{uncharged},{},{}\n",
                    quote(&row.attack),
                    verdict.metric.key(),
                    ci[0],
                    ci[1],
                    null[0],
                    null[1],
                    verdict.lower_limit,
                    raised(verdict),
                    row.summary.members,
                    row.summary.nonmembers,
                ));
            }
        }
        out
    }

    /// The whole report; `attacks[..]` hold the metrics by their keys.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a report has string keys and finite numbers")
    }

    fn word(verdict: &Verdict) -> &'static str {
        match verdict.bound {
            _ if raised(verdict) => "ALARM",
            Some(_) => "within",
            None => "-",
        }
    }
}

/// The next thousandth that is not below `x`, so that what is printed of a bound still bounds. A thousandth itself is one, however it was computed, and zero
/// has no sign.
fn upwards(x: f64) -> f64 {
    (1e3 * x - 1e-5).ceil() / 1e3 + 0.0
}

/// The next thousandth that is not above `x`, for what is printed of a lower limit.
fn downwards(x: f64) -> f64 {
    0.0 - upwards(-x)
}

/// The level of the intervals in a [`Summary`], both sides.
const OUTSIDE: f64 = 0.05;

/// Non-members below which an interval of TPR at `fpr` has no lower end.
fn needed(fpr: f64) -> u64 {
    Roc::nonmembers_for(fpr, 0.5 * OUTSIDE)
}

fn fpr(metric: Metric) -> Option<f64> {
    match metric {
        Metric::Auc | Metric::Advantage => None,
        Metric::TprAt1Percent => Some(LOW_FPR[0]),
        Metric::TprAt01Percent => Some(LOW_FPR[1]),
    }
}

/// What a coin would reach: above it, scores tell members from non-members.
fn chance(metric: Metric) -> f64 {
    fpr(metric).unwrap_or(if metric == Metric::Auc { 0.5 } else { 0.0 })
}

/// The sentence that a reader takes away: the attack with the largest area, whether anything is surely better than chance, and
/// what that means where no bound applies. The limits are simultaneous, so picking the best of them is allowed.
fn finding(rows: &[Row], design: Design) -> String {
    let Some(best) = rows.iter().max_by(|a, b| a.summary.auc.total_cmp(&b.summary.auc)) else {
        return "No attack was made: nothing is known of what the model gives away.".into();
    };
    let sure = rows.iter().flat_map(|row| &row.verdicts).any(|v| v.lower_limit > chance(v.metric));
    let source = match design {
        Design::Given => ", if both sides come from the same source",
        _ => "",
    };
    let told = format!("{} tells members from non-members with AUC {:.4} (chance: 0.5)", best.attack, best.summary.auc);
    match (sure, best.summary.auc) {
        (true, 0.9..) => format!("The model leaks who is in its records{source}, and badly: {told}."),
        (true, _) => format!("The model leaks who is in its records{source}: {told}, surely better than chance."),
        // Too few records to be sure of a limit, and yet every one is told apart.
        (false, 0.9..) => format!(
            "The model seems to leak who is in its records{source}: {told}, on too few records to be sure of it."
        ),
        (false, _) => format!(
            "No attack is surely better than chance on these records (the best, {}, has AUC {:.4}). Other attacks might be.",
            best.attack, best.summary.auc
        ),
    }
}

/// Above the bound by its lower limit (at 5 %), or by the exact one-run test, which is sharper but has to be surer (1 %).
fn raised(verdict: &Verdict) -> bool {
    verdict.alarm || verdict.uncharged_p.is_some_and(|p| p <= 0.01)
}

/// The value, its interval, that of chance, and how probable such a value is by chance.
fn cells(s: &Summary, metric: Metric) -> (f64, [f64; 2], [f64; 2], f64) {
    match metric {
        Metric::Auc => (s.auc, s.auc_ci, s.auc_null, s.auc_p),
        Metric::Advantage => (s.advantage, s.advantage_ci, s.advantage_null, s.advantage_p),
        Metric::TprAt1Percent => (s.tpr_at_fpr_0_01, s.tpr_at_fpr_0_01_ci, s.tpr_at_fpr_0_01_null, s.tpr_at_fpr_0_01_p),
        Metric::TprAt01Percent => {
            (s.tpr_at_fpr_0_001, s.tpr_at_fpr_0_001_ci, s.tpr_at_fpr_0_001_null, s.tpr_at_fpr_0_001_p)
        }
    }
}

fn label(metric: Metric) -> &'static str {
    match metric {
        Metric::Auc => "AUC",
        Metric::Advantage => "advantage",
        Metric::TprAt1Percent => "TPR at FPR 1 %",
        Metric::TprAt01Percent => "TPR at FPR 0.1 %",
    }
}

fn interval([low, high]: [f64; 2]) -> String {
    format!("{low:.3} to {high:.3}")
}

/// A CSV field, quoted where it must be.
pub fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(members: &[f64], nonmembers: &[f64], design: Design) -> Report {
        let attacks = [("loss".to_owned(), Roc::new(members, nonmembers).unwrap())];
        Report::new(&attacks, Charge::NonPrivate, design, (members.len() as u64, nonmembers.len() as u64))
    }

    fn line(from: f64, n: u32) -> Vec<f64> {
        (0..n).map(|i| from + f64::from(i)).collect()
    }

    #[test]
    fn what_is_printed_of_a_bound_is_not_below_it() {
        assert_eq!([0.05, 0.0501, 0.7, 1.0, 0.0].map(upwards), [0.05, 0.051, 0.7, 1.0, 0.0]);
        assert_eq!([0.05, 0.0509, 0.0].map(downwards), [0.05, 0.05, 0.0]);
        for zero in [upwards(0.0), downwards(0.0), upwards(8e-12), downwards(-8e-12)] {
            assert_eq!(format!("{zero:.3}"), "0.000");
        }
    }

    #[test]
    fn a_model_that_tells_its_members_apart_is_said_to_leak_whether_or_not_a_bound_applies() {
        // 200 a side, one member below all non-members: AUC 0.995.
        let mut members = line(1000.0, 199);
        members.push(-1.0);
        let leaky = report(&members, &line(0.0, 200), Design::Given);
        assert!(leaky.attacks[0].summary.auc > 0.99 && !leaky.alarm && !leaky.judged);
        assert!(
            leaky.finding.contains("leaks who is in its records") && leaky.finding.contains("0.995"),
            "{}",
            leaky.finding
        );
        assert!(leaky.finding.contains("same source") && leaky.text(usize::MAX).contains(&leaky.finding));
        assert_eq!(leaky.json()["finding"], leaky.finding);
        // The same scores on both sides.
        let quiet = report(&line(0.0, 200), &line(0.0, 200), Design::CoinFlip);
        assert!(quiet.finding.starts_with("No attack is surely better than chance"), "{}", quiet.finding);
        // Five records cannot prove much, and yet this is no time to be silent.
        let few = report(&line(100.0, 5), &line(0.0, 5), Design::CoinFlip);
        assert!(few.finding.contains("seems to leak"), "{}", few.finding);
    }

    #[test]
    fn an_interval_without_a_lower_end_is_not_printed_as_one() {
        let few = report(&line(100.0, 40), &line(0.0, 40), Design::Given);
        // Wide enough for no cell to be broken.
        let text = few.text(200);
        let table = |text: &str| text.split("\n\n").next().map(str::to_owned);
        assert_eq!(table(&few.text(100)), table(&text), "no cell is broken on a usual terminal");
        assert!(!text.contains("0.000 to 1.000"), "{text}");
        assert!(text.contains("at most 1.000 *") && text.contains("40 non-members cannot tell a threshold"), "{text}");
        let needed = needed(LOW_FPR[0]) as u32;
        assert!((400..600).contains(&needed), "{needed}");
        // One more than is needed, and the lower limit is there; one less, and it is not.
        for (n, there) in [(needed - 1, false), (needed, true)] {
            let roc = Roc::new(&line(1e6, 600), &line(0.0, n)).unwrap();
            assert_eq!(roc.tpr_interval(LOW_FPR[0], 0.95)[0] > 0.0, there, "{n}");
        }
    }
}
