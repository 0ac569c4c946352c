//! The paper's own GPT-2 figures, for tables that put ours beside them. They are the paper's, measured by its authors on their data.

use std::sync::OnceLock;

/// One cell of the paper's results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its name for the method, `FERRET-MAX`, `DPSGD`, `Non-DP`.
    pub method: &'static str,
    /// Passes over the records.
    pub epochs: u32,
    /// Its budget; infinite for `Non-DP`.
    pub epsilon: f64,
    /// Perplexity on the training records.
    pub train_ppl: f64,
    /// Perplexity on the test records.
    pub test_ppl: f64,
    /// The attack's area under the curve.
    pub auc: f64,
    /// The attack's advantage.
    pub advantage: f64,
    /// Seconds of training.
    pub seconds: f64,
}

const TEXT: &str = include_str!("paper.csv");

/// All cells of GPT-2: four private methods at four budgets and three lengths, and non-private training.
pub fn cells() -> &'static [Cell] {
    static CELLS: OnceLock<Vec<Cell>> = OnceLock::new();
    CELLS.get_or_init(|| {
        let read = |line: &'static str| {
            let fields: Vec<&str> = line.split(',').collect();
            let [method, epochs, _model, rest @ ..] = &fields[..] else { return None };
            let [epsilon, train_ppl, test_ppl, auc, advantage, seconds] =
                rest.iter().map(|f| f.parse::<f64>().ok()).collect::<Option<Vec<_>>>()?[..]
            else {
                return None;
            };
            let epochs = epochs.parse().ok()?;
            Some(Cell { method, epochs, epsilon, train_ppl, test_ppl, auc, advantage, seconds })
        };
        TEXT.lines().skip(1).filter_map(read).collect()
    })
}

/// The paper's cell for a row of ours; none where it has none.
pub fn cell(row: &str, epochs: u32, budget: f64) -> Option<&'static Cell> {
    let method = if row == "non-private" { "Non-DP" } else { row };
    cells().iter().find(|c| c.method == method && c.epochs == epochs && c.epsilon == budget)
}
