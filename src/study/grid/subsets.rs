//! The rows of the grid of what is tuned: every method at one budget on all weights, on adapters, on a few tensors.

use super::expand::centre;
use super::{Grid, Row};
use crate::study::spec::{Goal, Reading, Sketches};
use crate::study::subset::{Size, Subset};

/// All weights, adapters of three ranks, biases, norms, the last block.
pub(super) fn usual() -> Vec<Subset> {
    let read = |text: &&str| Subset::parse(text).expect("a subset");
    ["all", "lora:1", "lora:4", "lora:16", "bias", "norms", "last:1"].iter().map(read).collect()
}

impl Grid {
    /// Budgets are nats for FERRET, the eps of (eps, delta) for FERRET-k and DPSGD.
    pub(super) fn subsets(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let several = self.batches.len() > 1;
        for &epochs in &self.epochs {
            for method in &self.methods {
                for &batch in &self.batches {
                    let at = if several { format!(", B = {batch}") } else { String::new() };
                    // What is not private has no budget, and so one run.
                    let budgets = if method == "nonprivate" { &self.budgets[..1] } else { &self.budgets[..] };
                    for &budget in budgets {
                        let (name, goal, middle) = match method.as_str() {
                            "nonprivate" => ("non-private".to_owned(), Goal::Nonprivate, 1e-3),
                            "dpsgd" => ("DPSGD".to_owned(), Goal::Dpsgd { eps: budget }, 3e-3),
                            "ferret-k" => (
                                "FERRET-k".to_owned(),
                                Goal::FerretK(Sketches::usual(budget, None)),
                                self.signs_rate(batch, epochs),
                            ),
                            variant => {
                                let reading = Reading::paper(variant, budget);
                                let middle = centre(&reading, batch);
                                (variant.to_uppercase(), Goal::Ferret(reading), middle)
                            }
                        };
                        for subset in &self.tune {
                            let name = format!("{name}, {}{at}", subset.words());
                            let middle = middle * larger(subset, method);
                            let row = Row::new(name, goal.clone(), batch, epochs, middle);
                            rows.push(Row { subset: subset.clone(), ..row });
                        }
                    }
                }
            }
        }
        rows
    }
}

/// By how much the middle of the learning rates is larger than that for all weights: found by trials on the tuning split of the embedded world.
pub(super) fn larger(subset: &Subset, method: &str) -> f64 {
    match (subset.size(), method) {
        // Its rate is the length of a step, whatever has part in it.
        (_, "ferret-k") | (Size::All, _) => 1.0,
        (Size::Adapter, "dpsgd" | "nonprivate") => 6.0,
        (Size::Adapter, _) => 2.5,
        (Size::Vectors, _) => 10.0,
        (Size::Tensors, _) => 2.0,
    }
}
