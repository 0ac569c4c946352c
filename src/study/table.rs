//! The comparison as a table: text for the terminal, rows for the page.

use super::arm::Outcome;
use crate::audit::report::align;

/// Column titles.
pub const TITLES: [&str; 9] = [
    "method",
    "ppl train",
    "ppl test",
    "AUC [95 %]",
    "advantage [95 %]",
    "bound",
    "bits released",
    "time [s]",
    "promised about a record",
];

/// One arm's cells, in the order of [`TITLES`].
pub fn cells(o: &Outcome) -> [String; 9] {
    let interval = |value: f64, [low, high]: [f64; 2]| format!("{value:.3} [{low:.3}, {high:.3}]");
    let bound = match o.bound.why_not() {
        Some(_) => "none".to_owned(),
        None => format!("{:.3}{}", o.bound.advantage(), if o.alarm { " ALARM" } else { "" }),
    };
    let promised: Vec<String> = o.guarantees.iter().map(ToString::to_string).collect();
    [
        o.name.clone(),
        format!("{:.2}", o.train_loss.exp()),
        format!("{:.2}", o.test_loss.exp()),
        interval(o.attack.auc, o.attack.auc_ci),
        interval(o.attack.advantage, o.attack.advantage_ci),
        bound,
        o.bits.map_or("every gradient".into(), |b| b.to_string()),
        format!("{:.1}", o.seconds),
        if promised.is_empty() { "saw no record".into() } else { promised.join("; ") },
    ]
}

/// The whole table for a terminal.
pub fn text(outcomes: &[Outcome]) -> String {
    let mut rows = vec![TITLES.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>()];
    rows.extend(outcomes.iter().map(|o| cells(o).to_vec()));
    align(&rows)
}
