//! The rows of the grid of FERRET-k: signs a step at one budget, all budgets at the usual number of levels and at as many as fit into 16 KB, with scales on U and without, DPSGD beside each.

use super::{Grid, Row};
use crate::method::ferret_k::Release;
use crate::method::rates;
use crate::optim::Route;
use crate::study::spec::{Goal, Sketches};
use std::f64::consts::SQRT_2;

/// The usual number of bits a step, in tables.
const USUAL: &str = "usual k";

/// What a run may release in all to be compared with DPSGD at one size, whatever its noise: 16 KB, in bits.
const FEW_BITS: u64 = 16 * 8000;

impl Grid {
    /// The budget at which the number of bits is swept.
    pub fn swept_budget(&self) -> f64 {
        if self.budgets.contains(&1.0) { 1.0 } else { self.budgets[0] }
    }

    /// The middle of the learning rates for signs and levels.
    pub(super) fn signs_rate(&self, batch: u64, epochs: u32) -> f64 {
        let members = (self.candidates as u64 / 2).max(1);
        rates::signs(f64::from(epochs) * members.div_ceil(batch) as f64)
    }

    /// FERRET-k that releases at most 16 KB in all, unless over 5 % more than half of the candidates become members.
    fn in_few_bytes(&self, eps: f64, batch: u64, epochs: u32) -> Option<Sketches> {
        let members = (self.candidates as u64 * 21).div_ceil(40).max(1);
        let steps = u64::from(epochs) * members.div_ceil(batch);
        let k = Release::default().numbers_in(FEW_BITS / steps).min(1 << 16) as u32;
        (k > 0).then(|| Sketches::usual(eps, Some(k)))
    }

    pub(super) fn sketched(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let several = self.batches.len() > 1;
        for &epochs in &self.epochs {
            for &batch in &self.batches {
                let adamw = 3e-3 * (batch as f64 / 50.0).sqrt();
                let rate = self.signs_rate(batch, epochs);
                let at = if several { format!(", B = {batch}") } else { String::new() };
                for &eps in &self.budgets {
                    let mut add = |name: String, method, centre| {
                        rows.push(Row::new(name + &at, method, batch, epochs, centre));
                    };
                    if self.methods.iter().any(|m| m == "dpsgd") {
                        add("DPSGD".into(), Goal::Dpsgd { eps }, adamw);
                        add("DPSGD, scaled".into(), Goal::DpsgdScaled { eps }, adamw);
                    }
                    if self.methods.iter().all(|m| m != "ferret-k") {
                        continue;
                    }
                    let usual = Sketches::usual(eps, None);
                    add(format!("FERRET-k, {USUAL}"), Goal::FerretK(usual.clone()), rate);
                    if let Some(few) = self.in_few_bytes(eps, batch, epochs) {
                        add("FERRET-k, 16 KB".into(), Goal::FerretK(few.clone()), rate);
                        let scaled = Sketches { scaled: true, ..few };
                        add("FERRET-k, 16 KB, scaled".into(), Goal::FerretK(scaled), rate * SQRT_2);
                    }
                    if eps != self.swept_budget() {
                        continue;
                    }
                    let signs = Sketches { release: Release::Sign, ..usual.clone() };
                    for &k in &self.bits {
                        let swept = Sketches { bits: Some(k), ..signs.clone() };
                        add(format!("FERRET-k, {k} signs"), Goal::FerretK(swept), rate);
                    }
                    add(format!("FERRET-k, {USUAL}, signs"), Goal::FerretK(signs), rate);
                    let scalars = Sketches { release: Release::Scalar, ..usual.clone() };
                    add(format!("FERRET-k, {USUAL}, scalars"), Goal::FerretK(scalars), rate);
                    let by_adamw = Sketches { route: Route::Adamw, momentum: 0.0, ..usual };
                    add(format!("FERRET-k, {USUAL}, AdamW"), Goal::FerretK(by_adamw), adamw);
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::grid::Kind;

    #[test]
    fn every_budget_has_a_row_of_16_kilobytes() {
        let grid = Grid::named(Kind::FerretK);
        let rows: Vec<Row> = grid.sketched().into_iter().filter(|r| r.name == "FERRET-k, 16 KB").collect();
        assert_eq!(rows.len(), grid.budgets.len());
        for row in rows {
            let Goal::FerretK(sketches) = &row.method else { panic!("{row:?}") };
            // 48 steps: 3 passes over at most 1,575 members, 100 a step.
            let bits = 48 * sketches.release.bits(sketches.bits.unwrap().into());
            assert!(bits <= FEW_BITS && bits + 48 * 2 > FEW_BITS, "{bits}");
        }
        let large = Grid { candidates: 100_000_000, ..grid };
        assert!(large.in_few_bytes(1.0, 1, 3).is_none(), "not one level a step fits");
    }
}
