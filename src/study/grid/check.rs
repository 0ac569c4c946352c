//! Whether a grid makes sense.

use super::{Grid, Kind};
use crate::rng::sketch::MOST_BUCKETS;
use crate::study::spec::Goal;
use crate::study::subset::Subset;
use std::collections::BTreeSet;

impl Grid {
    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), String> {
        let lists = [
            ("methods", self.methods.is_empty()),
            ("budgets", self.budgets.is_empty()),
            ("epochs", self.epochs.is_empty()),
            ("tune", self.tune.is_empty()),
            ("batches", self.batches.is_empty()),
        ];
        if let Some((name, _)) = lists.iter().find(|l| l.1) {
            return Err(format!("{name} is empty: name at least one"));
        }
        for method in &self.methods {
            let known = self.kind.methods();
            if !known.contains(&method.as_str()) {
                return Err(format!("methods: {method:?} is not known here: {}", known.join(", ")));
            }
        }
        if let Some(budget) = self.budgets.iter().find(|b| b.is_nan() || **b <= 0.0) {
            return Err(format!(
                "budgets: {budget} is no budget: give numbers above 0, or inf for non-private training"
            ));
        }
        if self.kind != Kind::Paper && self.budgets.iter().any(|b| b.is_infinite()) {
            return Err(
                "budgets: inf belongs to the paper's grid, where non-private training stands beside the others".into(),
            );
        }
        if !matches!(self.kind, Kind::Tune | Kind::Real) && self.tune != [Subset::default()] {
            return Err("tune: only the grids tune and real compare what is tuned: leave it out".into());
        }
        if self.asked.is_some() != (self.kind == Kind::Real) {
            return Err("asked: questions and secrets belong to the grid real: leave them out".into());
        }
        if let Some(longest) = self.asked.map(|a| a.longest).filter(|n| *n < 2) {
            return Err(format!("longest is {longest}: a record needs at least 2 tokens"));
        }
        if self.epochs.contains(&0) || self.batches.contains(&0) {
            return Err("epochs and batches count from 1, found 0".into());
        }
        // The smallest number of members that the coins make is not known here; a quarter is far below it.
        if let Some(batch) = self.batches.iter().find(|b| **b > self.candidates as u64 / 4) {
            return Err(format!(
                "batches: {batch} of {} candidates is too many: give at most a quarter",
                self.candidates
            ));
        }
        if self.seeds == 0 || self.seeds > 1000 {
            return Err(format!("seeds is {}, expected 1 to 1000", self.seeds));
        }
        if self.audited < 2 {
            return Err(format!("audited is {}: an attack needs at least 2 records a side", self.audited));
        }
        if !(self.delta > 0.0 && self.delta < 1.0) {
            return Err(format!("delta is {}, expected a number between 0 and 1", self.delta));
        }
        if self.nats.is_empty() || !self.nats.iter().all(|n| *n > 0.0 && n.is_finite()) {
            return Err(format!("nats is {:?}, expected numbers above 0", self.nats));
        }
        if let Some(k) = self.bits.iter().find(|&&k| k == 0 || k as usize > MOST_BUCKETS) {
            return Err(format!("bits: {k} a step, expected 1 to {MOST_BUCKETS}"));
        }
        if self.learning_rates == 0 || self.learning_rates > 15 {
            return Err(format!("learning_rates is {}, expected 1 to 15", self.learning_rates));
        }
        if self.further_rates > 15 {
            return Err(format!("further_rates is {}, expected at most 15", self.further_rates));
        }
        let twice = [
            ("methods", repeated(&self.methods)),
            ("budgets", repeated(&self.budgets)),
            ("nats", repeated(&self.nats)),
            ("bits", repeated(&self.bits)),
            ("tune", repeated(&self.tune)),
            ("epochs", repeated(&self.epochs)),
            ("batches", repeated(&self.batches)),
        ];
        if let Some((name, entry)) = twice.iter().find_map(|(name, entry)| Some((name, entry.as_ref()?))) {
            return Err(format!("{name}: {entry} is named twice, and its runs would count twice: name it once"));
        }
        let rows = self.every_row();
        if let Some(method) = self.methods.iter().find(|m| !rows.iter().any(|row| row.is_of(m))) {
            let needed = match method.as_str() {
                "nonprivate" => "inf among the budgets, or matched steps: FERRET among the methods and matched = true",
                "signsgd" | "qsgd" => "inf among the budgets",
                _ => "a budget below inf",
            };
            return Err(format!("methods: {method} gets no run with these budgets: it needs {needed}"));
        }
        Ok(())
    }

    /// Whether there are such rows.
    pub(super) fn check_only(&self) -> Result<(), String> {
        let known: BTreeSet<String> =
            self.every_row().into_iter().filter(|r| r.method != Goal::Base).map(|r| r.name).collect();
        match self.only.iter().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<String> = known.into_iter().collect();
                Err(format!("only: {name:?} is no row of this grid: {}", known.join("; ")))
            }
        }
    }

    /// Whether the given rates are of its rows. A smaller grid may lack some of them.
    pub(super) fn check_rates(&self) -> Result<(), String> {
        let rows = self.rows();
        for (name, rate) in &self.rates {
            let keys = || rows.iter().filter(|r| r.method != Goal::Base).map(|r| r.key(self.tune_cells));
            if !keys().any(|key| key == *name) {
                // A row of several budgets or lengths is one key.
                let known: Vec<String> = BTreeSet::from_iter(keys()).into_iter().collect();
                return Err(format!("rates: {name:?} is no row of this grid: {}", known.join("; ")));
            }
            if !(rate.is_finite() && *rate > 0.0) {
                return Err(format!("rates: {rate} for {name:?}, expected a number above 0"));
            }
        }
        Ok(())
    }
}

/// The first entry that comes again, as it is written.
fn repeated<T: PartialEq + std::fmt::Display>(list: &[T]) -> Option<String> {
    list.iter().enumerate().find(|(i, entry)| list[..*i].contains(entry)).map(|(_, entry)| entry.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::grid::Basis;
    use std::collections::HashMap;

    #[test]
    fn only_the_rows_that_are_named_are_run_and_the_base_model() {
        let grid = Grid::parse("kind = \"ferret-k\"\nonly = [\"DPSGD\", \"FERRET-k, 16 KB\"]").unwrap();
        assert_eq!(Grid::parse(&grid.to_toml()).unwrap(), grid);
        let names: BTreeSet<String> = grid.rows().into_iter().map(|row| row.name).collect();
        assert_eq!(Vec::from_iter(names), ["DPSGD", "FERRET-k, 16 KB", "base model"]);
        let wrong = Grid::parse("kind = \"ferret-k\"\nonly = [\"SGD\"]").unwrap_err();
        assert!(wrong.contains("\"SGD\" is no row of this grid: DPSGD; DPSGD, scaled; FERRET-k, 1 signs"), "{wrong}");
    }

    #[test]
    fn a_given_rate_is_taken_and_not_tuned() {
        let fixed = Basis { base_sha256: "b".into(), data: "d".into(), insecure_seed: None, rates: HashMap::new() };
        let text = "kind = \"real\"\nrates = { \"DPSGD, all weights\" = 0.5 }";
        let grid = Grid::parse(text).unwrap();
        assert_eq!(Grid::parse(&grid.to_toml()).unwrap(), grid);
        let of_row = |specs: Vec<crate::study::spec::Spec>| -> Vec<f64> {
            specs.iter().filter(|s| s.row == "DPSGD, all weights").map(|s| s.learning_rate).collect()
        };
        assert_eq!(of_row(grid.tuning(&fixed)), [0.0; 0]);
        assert_eq!(of_row(Grid::named(Kind::Real).tuning(&fixed)).len(), 3);
        let results = of_row(grid.results(&fixed));
        assert!(!results.is_empty() && results.iter().all(|rate| *rate == 0.5), "{results:?}");
        let wrong = Grid::parse("kind = \"real\"\nrates = { \"DPSGD, some weights\" = 0.5 }").unwrap_err();
        assert!(wrong.contains("no row of this grid") && wrong.matches("DPSGD, all weights").count() == 1, "{wrong}");
        for rate in ["0.0", "-1.0", "nan", "inf"] {
            let wrong = Grid::parse(&format!("kind = \"real\"\nrates = {{ \"DPSGD, all weights\" = {rate} }}"));
            assert!(wrong.unwrap_err().contains("expected a number above 0"), "{rate}");
        }
        // A grid that is cut to fit may lack the row.
        let less = Grid { methods: vec!["nonprivate".into()], ..grid };
        less.check().unwrap();
    }
}
