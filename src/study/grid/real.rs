//! The rows of the grid of a real model: every method for all weights and for an adapter, and smaller grids where time is short.

use super::expand::{COUNTED, centre, within};
use super::subsets::larger;
use super::{Grid, Row};
use crate::method::rates;
use crate::study::real::ProbePlan;
use crate::study::spec::{Goal, Reading, Sketches};
use crate::study::subset::Size;

/// Batches of FERRET's exact count are so much smaller than those of the others: its bits tell less of a smaller batch.
const SMALLER: u64 = 4;

impl Grid {
    /// FERRET at `nats`, FERRET-k and DPSGD at the eps of `budgets`.
    pub(super) fn real(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let several = self.batches.len() > 1;
        let [size, halfway] = [rates::size, rates::halfway].map(|of| of(self.parameters as usize));
        for &epochs in &self.epochs {
            for subset in &self.tune {
                for method in &self.methods {
                    for &usual in &self.batches {
                        let mut add = |name: &str, goal: Goal, batch: u64, middle: f64| {
                            let at = if several || batch != usual { format!(", B = {batch}") } else { String::new() };
                            let name = format!("{name}, {}{at}", subset.words());
                            let row = Row::new(name, goal, batch, epochs, middle * larger(subset, method));
                            rows.push(Row { subset: subset.clone(), ..row });
                        };
                        let counted = COUNTED.iter().find(|c| c.0 == method);
                        match (method.as_str(), counted) {
                            ("nonprivate", _) => {
                                let size = if subset.size() == Size::All { size } else { halfway };
                                add("non-private", Goal::Nonprivate, usual, 2e-3 * size);
                            }
                            ("dpsgd", _) => {
                                for &eps in &self.budgets {
                                    add("DPSGD", Goal::Dpsgd { eps }, usual, 3e-3 * halfway);
                                }
                            }
                            ("ferret-k", _) => {
                                for &eps in &self.budgets {
                                    let middle = self.signs_rate(usual, epochs) / halfway;
                                    add("FERRET-k", Goal::FerretK(Sketches::usual(eps, None)), usual, middle);
                                }
                            }
                            (_, Some(&(_, counted, how))) => {
                                let small = (usual / SMALLER).max(1);
                                for &nats in &self.nats {
                                    let goal = Goal::Within { nats, counted };
                                    let middle = within(counted, nats, small) * halfway;
                                    add(&format!("FERRET, {how}"), goal, small, middle);
                                }
                            }
                            (variant, None) => {
                                for &nats in &self.nats {
                                    let reading = Reading::paper(variant, nats);
                                    let middle = centre(&reading, usual) * halfway;
                                    add(&variant.to_uppercase(), Goal::Ferret(reading), usual, middle);
                                }
                            }
                        }
                    }
                }
            }
        }
        rows
    }

    /// The next smaller grid, and what it leaves out: what matters least goes first. None where nothing is left to leave out.
    pub fn smaller(&self) -> Option<(Self, String)> {
        let mut less = self.clone();
        let left = if less.epochs.len() > 1 {
            let longest = less.epochs.iter().copied().max()?;
            less.epochs.retain(|e| *e != longest);
            format!("runs of {longest} epochs")
        } else if less.seeds > 2 {
            less.seeds -= 1;
            format!("seed {}", self.seeds)
        } else if less.budgets.iter().filter(|b| b.is_finite()).count() > 1 {
            let last = less.budgets.iter().rposition(|b| b.is_finite())?;
            format!("the budget {}", less.budgets.remove(last))
        } else if less.nats.len() > 1 {
            format!("the budget of {} nats", less.nats.pop()?)
        } else if less.candidates > FEW {
            less.candidates = (self.candidates / 2).max(FEW).max(4 * self.batches.iter().copied().max()? as usize);
            if less.candidates >= self.candidates {
                return self.fewer_runs();
            }
            format!("{} of {} candidates", self.candidates - less.candidates, self.candidates)
        } else {
            return self.fewer_runs();
        };
        Some((less, left))
    }

    /// What is cut when the records are as few as they may be.
    fn fewer_runs(&self) -> Option<(Self, String)> {
        let mut less = self.clone();
        let left = if less.audited > 100 {
            less.audited = (self.audited / 2).max(100);
            format!("{} of {} attacked records a side", self.audited - less.audited, self.audited)
        } else if let Some(asked) = self.asked.filter(|a| a.answers > 50) {
            let answers = (asked.answers / 2).max(50);
            less.asked = Some(ProbePlan { answers, ..asked });
            format!("{} of {} questions", asked.answers - answers, asked.answers)
        } else if less.seeds > 1 {
            less.seeds -= 1;
            format!("seed {}", self.seeds)
        } else if less.tune.len() > 1 {
            format!("tuning {}", less.tune.pop()?.words())
        } else if less.methods.len() > 1 {
            format!("the method {}", less.methods.pop()?)
        } else {
            return None;
        };
        Some((less, left))
    }
}

/// Candidates below which a study tells little.
const FEW: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::grid::{Basis, Choice, Kind};
    use std::collections::{HashMap, HashSet};

    #[test]
    fn every_smaller_grid_makes_sense_and_runs_nothing_anew() {
        let fixed = Basis { base_sha256: "b".into(), data: "d".into(), insecure_seed: None, rates: HashMap::new() };
        for (name, kind) in Kind::NAMED {
            let mut grid = Grid::named(kind);
            let (mut cuts, mut records) = (Vec::new(), grid.clone());
            loop {
                let runs = |g: &Grid| -> HashSet<String> {
                    g.tuning(&fixed).iter().chain(&g.results(&fixed)).map(|s| s.hash()).collect()
                };
                let Some((less, what)) = grid.smaller() else { break };
                assert_ne!(less, grid, "{name}: {what}");
                // Fewer records, attacks and questions are other runs; any other cut only leaves some out.
                if (less.candidates, less.audited, less.asked) == (grid.candidates, grid.audited, grid.asked) {
                    assert!(kind != Kind::Real || runs(&less).is_subset(&runs(&grid)), "{name}: {what}");
                    assert!(less.results(&fixed).len() < grid.results(&fixed).len(), "{name}: {what}");
                } else {
                    records = less.clone();
                }
                cuts.push(what);
                grid = less;
            }
            assert!(cuts.len() > 5 && records.candidates <= FEW.max(4 * 250), "{name}: {cuts:?}");
            assert_eq!((grid.seeds, grid.methods.len(), grid.tune.len(), grid.epochs.len()), (1, 1, 1, 1), "{name}");
        }
        let (less, what) = Grid::named(Kind::Real).smaller().unwrap();
        assert_eq!((less.epochs, what.as_str()), (vec![1], "runs of 3 epochs"));
    }

    #[test]
    fn a_rate_at_the_edge_is_tried_further_out_until_it_is_none_or_patience_ends() {
        let fixed = Basis { base_sha256: "b".into(), data: "d".into(), insecure_seed: None, rates: HashMap::new() };
        let grid = Grid { further_rates: 2, ..Grid::named(Kind::Real) };
        let rows = grid.tuned_rows();
        let key = rows[0].key(grid.tune_cells);
        let next = |best: Option<f64>, tried: &[f64]| -> Vec<f64> {
            let choice = Choice { best: best.map(|rate| (rate, 1.0)), tried: tried.to_vec() };
            let specs = grid.outward(&fixed, &HashMap::from([(key.clone(), choice)]));
            assert!(specs.iter().all(|s| s.row == rows[0].name && s.part == crate::study::spec::Part::Tuning));
            specs.iter().map(|s| s.learning_rate).collect()
        };
        assert_eq!(next(Some(3.0), &[1.0, 3.0, 9.0]), [0.0; 0]);
        assert_eq!(next(Some(9.0), &[1.0, 3.0, 9.0]), [27.0]);
        assert_eq!(next(Some(3.0), &[3.0, 9.0, 27.0]), [1.0]);
        assert_eq!(next(None, &[3.0, 9.0, 27.0]), [1.0]);
        assert_eq!(next(Some(81.0), &[1.0, 3.0, 9.0, 27.0, 81.0]), [0.0; 0]);
        assert!(Grid { further_rates: 0, ..grid.clone() }.outward(&fixed, &HashMap::new()).is_empty());
    }
}
