//! The comparison as a table: text for the terminal, rows for the page.

use super::first::Row;
use super::grid::Spread;
use crate::audit::columns::{align, fits};

/// Column titles, not to be broken. The first seven are what a narrow terminal shows.
pub const TITLES: [&str; 10] = [
    "method",
    "promised",
    "test\u{a0}ppl",
    "AUC",
    "bits",
    "time\u{a0}[s]",
    "rate",
    "train\u{a0}ppl",
    "advantage\u{a0}[95\u{a0}%]",
    "bound",
];

/// Columns of the terminal's table.
const NARROW: usize = 7;

/// `mean ± SD`; the mean alone for one value.
fn with_spread(s: Spread, digits: usize) -> String {
    let Spread { mean, sd, n, .. } = s;
    if n < 2 { format!("{mean:.digits$}") } else { format!("{mean:.digits$} ± {sd:.digits$}") }
}

/// A perplexity's digits: as many as mean something.
fn digits(perplexity: f64) -> usize {
    if perplexity >= 100.0 {
        0
    } else if perplexity >= 20.0 {
        1
    } else {
        2
    }
}

/// One arm's cells, in the order of [`TITLES`]. Advantage, bound and promise are those of the seed where they are largest.
pub fn cells(row: &Row) -> [String; 10] {
    let Some(worst) = row.worst() else {
        return TITLES.map(|_| String::new());
    };
    let ppl = |of: fn(&super::arm::Outcome) -> f64| {
        let spread = row.spread(of);
        with_spread(spread, digits(spread.mean))
    };
    let [low, high] = worst.attack.advantage_ci;
    let bound = match worst.bound.why_not() {
        Some(_) => "none".to_owned(),
        None => {
            let alarm = if row.outcomes.iter().any(|o| o.alarm) { " ALARM" } else { "" };
            format!("{:.3}{alarm}", worst.bound.advantage())
        }
    };
    let bits = row.spread(|o| o.bits.unwrap_or(0) as f64);
    [
        row.name.clone(),
        promised(row),
        ppl(|o| o.test_loss.exp()),
        with_spread(row.spread(|o| o.attack.auc), 3),
        worst.bits.map_or("all".into(), |_| thousands(bits.mean.round() as u64)),
        format!("{:.1}", row.spread(|o| o.seconds).mean),
        row.learning_rate.map_or(String::new(), |rate| format!("{rate:.1e}")),
        ppl(|o| o.train_loss.exp()),
        format!("{:.3} [{low:.3}, {high:.3}]", worst.attack.advantage),
        bound,
    ]
}

/// What holds for every seed: they have a few more or fewer members, so the largest of each unit.
fn promised(row: &Row) -> String {
    let units = row.outcomes.iter().map(|o| o.guarantees.len()).min().unwrap_or(0);
    let largest = |i: usize| {
        let all = row.outcomes.iter().map(|o| &o.guarantees[i]);
        // Where a cell is broken, it is between two promises.
        all.max_by(|a, b| weight(a).total_cmp(&weight(b))).map(|g| g.short().replace(' ', "\u{a0}"))
    };
    let all: Vec<String> = (0..units).filter_map(largest).collect();
    if all.is_empty() { "saw no record".into() } else { all.join(", ") }
}

fn weight(g: &crate::privacy::Guarantee) -> f64 {
    use crate::privacy::Guarantee::{EpsDelta, MutualInformation, NonPrivate};
    match g {
        MutualInformation { nats } => *nats,
        EpsDelta { eps, .. } => *eps,
        NonPrivate => f64::INFINITY,
    }
}

/// `12,345`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// The whole table for a terminal of this width; columns that do not fit on one line a row are left out.
pub fn text(rows: &[Row], width: usize) -> String {
    let all: Vec<Vec<String>> =
        std::iter::once(TITLES.map(String::from)).chain(rows.iter().map(cells)).map(|cells| cells.to_vec()).collect();
    let first = |columns: usize| all.iter().map(|row| row[..columns].to_vec()).collect::<Vec<_>>();
    let mut columns = NARROW;
    while columns < TITLES.len() && fits(&first(columns + 1), width) {
        columns += 1;
    }
    align(&first(columns), width).replace('\u{a0}', " ")
}

/// What was found, in a sentence: the best private result beside the one without privacy, and whether an attack told members apart.
pub fn finding(rows: &[Row]) -> String {
    let private = |row: &&Row| {
        row.outcomes.iter().all(|o| !o.guarantees.is_empty() && o.guarantees.iter().all(|g| g.is_private()))
    };
    let ppl = |row: &Row| row.spread(|o| o.test_loss.exp()).mean;
    let trained = |row: &&Row| row.learning_rate.is_some();
    let best = |of: &dyn Fn(&&Row) -> bool| {
        rows.iter().filter(trained).filter(|r| of(r)).min_by(|a, b| ppl(a).total_cmp(&ppl(b)))
    };
    let show = |row: &Row| {
        let promised = promised(row).replace('\u{a0}', " ");
        let spread = row.spread(|o| o.test_loss.exp());
        let about = with_spread(spread, digits(spread.mean));
        if promised == "nothing" { about } else { format!("{about} ({promised})") }
    };
    let base = rows.iter().find(|r| r.learning_rate.is_none());
    let others = |row: &&Row| !private(row);
    let (Some(first), Some(base), Some(open)) = (best(&private), base, best(&others)) else {
        return "Not enough was run to compare.".into();
    };
    let ferret = best(&|row| private(row) && row.name.starts_with("FERRET"));
    let beside = match ferret.filter(|f| f.name != first.name) {
        Some(ferret) => format!(", the best of FERRET ({}) reaches {}", ferret.name, show(ferret)),
        None => String::new(),
    };
    let auc = |row: &Row| row.spread(|o| o.attack.auc).mean;
    let most = rows.iter().filter(private).map(auc).fold(0.0, f64::max);
    let leak = rows.iter().filter(others).max_by(|a, b| auc(a).total_cmp(&auc(b)));
    let leak = leak.map_or(String::new(), |l| format!(" and {:.3} where records were {}", auc(l), l.name));
    format!(
        "From perplexity {:.0}, the best private method ({}) reaches {}{beside}, and training without privacy {}; the attack's AUC is at most \
         {most:.3} for the private ones{leak} (0.5 is chance).",
        ppl(base),
        first.name,
        show(first),
        show(open)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(n), text);
        }
    }
}
