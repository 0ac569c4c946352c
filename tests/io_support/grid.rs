//! Studies on the tiny model.

use super::{ferret, tiny};
use std::path::Path;
use std::process::Command;

/// Few runs of the paper's grid.
pub const PAPER: &str = r#"
kind = "paper"
methods = ["ferret-2", "dpsgd", "nonprivate"]
budgets = [1.0, inf]
epochs = [1]
batches = [4]
seeds = 2
candidates = 60
audited = 20
learning_rates = 2
"#;

/// A folder with `grid.toml` and records that the tiny model can read.
pub fn folder(grid: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grid.toml"), grid).unwrap();
    let record = |i: u64| {
        let ids: Vec<String> = (0..8).map(|j| (1 + (i * 7 + j * j * 3 + i * j) % 19).to_string()).collect();
        format!("{{\"tokens\": [{}]}}\n", ids.join(", "))
    };
    std::fs::write(dir.path().join("records.jsonl"), (0..90).map(record).collect::<String>()).unwrap();
    dir
}

/// The study of such a folder.
pub fn study(dir: &Path) -> Command {
    let mut command = ferret(dir);
    command.args(["study", "--grid", "grid.toml", "--data", "records.jsonl", "--out", "out", "--model"]).arg(tiny());
    command
}
