//! From a grid to its runs: rows, the learning rates each tries, and the results.

use super::{Choice, Grid, Kind};
use crate::method::ferret::Payload;
use crate::optim::{Route, Schedule, Silent};
use crate::rng::Direction;
use crate::study::spec::{Counting, Goal, Part, Reading, Release, Sketches, Spec};
use crate::study::subset::Subset;
use std::collections::HashMap;

/// What stays the same in all runs of a study.
#[derive(Clone, Debug)]
pub struct Basis {
    /// SHA-256 of the base model's tensors.
    pub base_sha256: String,
    /// `embedded`, or SHA-256 of the file of records.
    pub data: String,
    /// Fixes sampling and noise of every run; none is private then.
    pub insecure_seed: Option<u64>,
    /// Chosen learning rates, by [`Row::key`].
    pub rates: HashMap<String, f64>,
}

/// A row of a study at one budget and length: runs that differ in seed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// How tables call it.
    pub name: String,
    /// What is asked for, with its budget.
    pub method: Goal,
    /// Expected batch size.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// What of the model is tuned.
    pub subset: Subset,
    /// See [`Spec::steps_of`].
    pub steps_of: Option<Reading>,
    /// The middle of the learning rates that are tried.
    pub centre: f64,
}

/// FERRET at equal nats: the method of the grid, how its bits are counted, and what tables say of it.
pub(super) const COUNTED: [(&str, Counting, &str); 3] = [
    ("ferret-paper", Counting::Paper, "paper's count"),
    ("ferret-exact", Counting::Exact, "exact"),
    ("ferret-flipped", Counting::Flipped, "exact, flipped"),
];

/// The factor between neighbouring ones of n learning rates: five cover about as much as three, more finely.
fn factor(n: u32) -> f64 {
    if n < 5 { 3.0 } else { 2.0 }
}

impl Row {
    /// A row that tunes all weights for as many steps as its passes have.
    pub(super) fn new(name: impl Into<String>, method: Goal, batch: u64, epochs: u32, centre: f64) -> Self {
        Self { name: name.into(), method, batch, epochs, subset: Subset::default(), steps_of: None, centre }
    }

    /// Rows of the same key have one learning rate.
    pub fn key(&self, cells: bool) -> String {
        let budget = self.budget().map_or("no budget".into(), |budget| format!("budget {budget}"));
        if cells { format!("{}, {} epochs, {budget}", self.name, self.epochs) } else { self.name.clone() }
    }

    /// Whether it is a run of the method that a grid names so.
    pub(super) fn is_of(&self, method: &str) -> bool {
        match &self.method {
            Goal::Base => false,
            Goal::Ferret(reading) => reading.variant == method,
            Goal::Within { counted, .. } => COUNTED.iter().any(|c| c.0 == method && c.1 == *counted),
            Goal::Dpsgd { .. } | Goal::DpsgdScaled { .. } | Goal::DpsgdWithin { .. } => method == "dpsgd",
            Goal::FerretK(_) | Goal::FerretKWithin { .. } => method == "ferret-k",
            Goal::DpSignsgd { .. } => method == "dp-signsgd",
            Goal::Nonprivate => method == "nonprivate",
            Goal::Signsgd => method == "signsgd",
            Goal::Qsgd => method == "qsgd",
        }
    }

    fn budget(&self) -> Option<f64> {
        match &self.method {
            Goal::Ferret(reading) => match reading.release {
                Release::Bit => Some(reading.nats),
                Release::Rr { eps } | Release::Gaussian { eps } => Some(eps),
            },
            Goal::FerretK(sketches) => Some(sketches.eps),
            Goal::Dpsgd { eps } | Goal::DpsgdScaled { eps } | Goal::DpSignsgd { eps } => Some(*eps),
            Goal::Within { nats, .. } | Goal::DpsgdWithin { nats } | Goal::FerretKWithin { nats } => Some(*nats),
            _ => self.steps_of.as_ref().map(|reading| reading.nats),
        }
    }

    /// The `n` learning rates that are tried.
    pub fn rates(&self, n: u32) -> Vec<f64> {
        // The middle is exact: the power 0 is 1.
        (0..n as i32).map(|i| self.centre * factor(n).powi(i - (n as i32 - 1) / 2)).collect()
    }
}

impl Grid {
    /// All rows in all cells, in the order of tables.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = self.every_row();
        rows.retain(|row| row.method == Goal::Base || self.only.is_empty() || self.only.contains(&row.name));
        rows
    }

    /// The rows, whether they are run or not.
    pub(super) fn every_row(&self) -> Vec<Row> {
        let mut rows = vec![Row::new("base model", Goal::Base, 1, self.epochs[0], 0.0)];
        match self.kind {
            Kind::Paper => self.paper(&mut rows),
            Kind::Readings => self.readings(&mut rows),
            Kind::TrueDp => self.true_dp(&mut rows),
            Kind::EqualNats => self.equal_nats(&mut rows),
            Kind::FerretK => rows.extend(self.sketched()),
            Kind::Tune => rows.extend(self.subsets()),
            Kind::Real => rows.extend(self.real()),
        }
        rows
    }

    fn paper(&self, rows: &mut Vec<Row>) {
        let several = self.batches.len() > 1;
        let ferret = self.methods.iter().find(|m| m.starts_with("ferret"));
        for &epochs in &self.epochs {
            for method in &self.methods {
                for &batch in &self.batches {
                    let at = if several { format!(", B = {batch}") } else { String::new() };
                    for &budget in &self.budgets {
                        let private = budget.is_finite();
                        let (name, method, centre) = match method.as_str() {
                            "nonprivate" if !private => ("non-private".to_owned(), Goal::Nonprivate, 1e-3),
                            "signsgd" if !private => ("signSGD".to_owned(), Goal::Signsgd, 1e-3),
                            "qsgd" if !private => ("QSGD".to_owned(), Goal::Qsgd, 1e-3),
                            "dpsgd" if private => ("DPSGD".to_owned(), Goal::Dpsgd { eps: budget }, 3e-3),
                            "dp-signsgd" if private => ("DP-signSGD".to_owned(), Goal::DpSignsgd { eps: budget }, 3e-3),
                            variant if private && variant.starts_with("ferret") => {
                                let reading = Reading::paper(variant, budget);
                                let centre = centre(&reading, batch);
                                (variant.to_uppercase(), Goal::Ferret(reading), centre)
                            }
                            _ => continue,
                        };
                        rows.push(Row::new(name + &at, method, batch, epochs, centre));
                    }
                }
            }
            let Some(like) = ferret.filter(|_| self.matched) else { continue };
            for method in self.methods.iter().filter(|m| ["dpsgd", "nonprivate"].contains(&m.as_str())) {
                for &batch in &self.batches {
                    let at = if several { format!(", B = {batch}") } else { String::new() };
                    for &budget in self.budgets.iter().filter(|b| b.is_finite()) {
                        let (name, method, centre) = match method.as_str() {
                            "dpsgd" => ("DPSGD", Goal::Dpsgd { eps: budget }, 3e-3),
                            _ => ("non-private", Goal::Nonprivate, 1e-3),
                        };
                        let name = format!("{name}, steps of {}{at}", like.to_uppercase());
                        let steps_of = Some(Reading::paper(like, budget));
                        rows.push(Row { steps_of, ..Row::new(name, method, batch, epochs, centre) });
                    }
                }
            }
        }
    }

    fn readings(&self, rows: &mut Vec<Row>) {
        let updates = [
            (Route::Direct, Silent::None, "direct"),
            (Route::Adamw, Silent::None, "AdamW, silent untouched"),
            (Route::Adamw, Silent::Zero, "AdamW, silent zero"),
        ];
        // A true gradient needs no direction.
        let payloads = [
            (Payload::Sign, Direction::Sphere, "sign, sphere"),
            (Payload::Sign, Direction::Rademacher, "sign, Rademacher"),
            (Payload::TrueGradient, Direction::Sphere, "true gradient (not private)"),
        ];
        for &epochs in &self.epochs {
            for &nats in &self.budgets {
                for variant in &self.methods {
                    for (payload, direction, sends) in payloads {
                        for (route, silent, update) in updates {
                            for &batch in &self.batches {
                                let reading =
                                    Reading { route, silent, direction, payload, ..Reading::paper(variant, nats) };
                                let centre = centre(&reading, batch);
                                let name = format!("{}, {sends}, {update}, B = {batch}", variant.to_uppercase());
                                rows.push(Row::new(name, Goal::Ferret(reading), batch, epochs, centre));
                            }
                        }
                    }
                }
            }
        }
    }

    fn true_dp(&self, rows: &mut Vec<Row>) {
        for &epochs in &self.epochs {
            for &eps in &self.budgets {
                for &batch in &self.batches {
                    for variant in &self.methods {
                        for (release, how) in [(Release::Rr { eps }, "rr"), (Release::Gaussian { eps }, "gaussian")] {
                            for &nats in &self.nats {
                                rows.push(Self::noisy(variant, release, how, nats, batch, epochs));
                            }
                        }
                    }
                    let name = format!("DPSGD, B = {batch}");
                    // Noise on a batch of one is as large as the gradient: a smaller step.
                    let centre = 3e-3 * (batch as f64 / 50.0).sqrt().clamp(0.05, 2.0);
                    rows.push(Row::new(name, Goal::Dpsgd { eps }, batch, epochs, centre));
                    let sketches = Goal::FerretK(Sketches::usual(eps, None));
                    let rate = self.signs_rate(batch, epochs) * (batch as f64 / 50.0).sqrt().clamp(0.1, 1.0);
                    rows.push(Row::new(format!("FERRET-k, B = {batch}"), sketches, batch, epochs, rate));
                }
            }
        }
    }

    /// FERRET at every batch size, the others at the first.
    fn equal_nats(&self, rows: &mut Vec<Row>) {
        let first = self.batches[0];
        for &epochs in &self.epochs {
            for method in &self.methods {
                for &batch in &self.batches {
                    let counted = COUNTED.iter().find(|c| c.0 == method);
                    let mut row = |name: String, method, centre| {
                        rows.push(Row::new(name, method, batch, epochs, centre));
                    };
                    match (method.as_str(), counted) {
                        (_, Some(&(_, counted, how))) => {
                            for &nats in &self.budgets {
                                let goal = Goal::Within { nats, counted };
                                row(format!("FERRET, {how}, B = {batch}"), goal, self::within(counted, nats, batch));
                            }
                        }
                        _ if batch != first => {}
                        ("dpsgd", _) => {
                            for &nats in &self.budgets {
                                row(format!("DPSGD, B = {batch}"), Goal::DpsgdWithin { nats }, 3e-3);
                            }
                        }
                        ("ferret-k", _) => {
                            for &nats in &self.budgets {
                                let centre = self.signs_rate(batch, epochs);
                                row(format!("FERRET-k, B = {batch}"), Goal::FerretKWithin { nats }, centre);
                            }
                        }
                        _ => row(format!("non-private, B = {batch}"), Goal::Nonprivate, 1e-3),
                    }
                }
            }
        }
    }

    fn noisy(variant: &str, release: Release, how: &str, nats: f64, batch: u64, epochs: u32) -> Row {
        let reading = Reading {
            release,
            silent: Silent::None,
            direction: Direction::Rademacher,
            ..Reading::paper(variant, nats)
        };
        // More bits, each of which says less: a smaller step.
        let centre = centre(&reading, batch) / nats.sqrt();
        let unit = if nats == 1.0 { "nat" } else { "nats" };
        let name = format!("{}-{how}, {nats} {unit}, B = {batch}", variant.to_uppercase());
        Row::new(name, Goal::Ferret(reading), batch, epochs, centre)
    }

    /// The rows that are tuned, one a key, unless their rate is given: of a real model's grid the first cell, else the cell nearest the middle of budgets and lengths stands for the others.
    pub fn tuned_rows(&self) -> Vec<Row> {
        let mut keys: Vec<(String, Vec<Row>)> = Vec::new();
        for row in self.rows().into_iter().filter(|r| r.method != Goal::Base) {
            let key = row.key(self.tune_cells);
            if self.rates.contains_key(&key) {
                continue;
            }
            match keys.iter_mut().find(|k| k.0 == key) {
                Some((_, rows)) => rows.push(row),
                None => keys.push((key, vec![row])),
            }
        }
        let middle = |mut rows: Vec<Row>| {
            // A real model's time is short: its shortest runs stand for the longer ones, and stay when those are left out.
            if self.kind == Kind::Real {
                return rows.swap_remove(0);
            }
            rows.sort_by(|a, b| a.budget().unwrap_or(0.0).total_cmp(&b.budget().unwrap_or(0.0)));
            rows.sort_by_key(|r| r.epochs);
            let epochs = rows[rows.len() / 2].epochs;
            rows.retain(|r| r.epochs == epochs);
            rows.swap_remove(rows.len() / 2)
        };
        keys.into_iter().map(|(_, rows)| middle(rows)).collect()
    }

    fn spec(&self, row: &Row, fixed: &Basis, part: Part, learning_rate: f64, seed: u64) -> Spec {
        Spec {
            row: row.name.clone(),
            base_sha256: fixed.base_sha256.clone(),
            data: fixed.data.clone(),
            candidates: self.candidates,
            audited: self.audited,
            part,
            method: row.method.clone(),
            delta: self.delta,
            batch: row.batch,
            epochs: row.epochs,
            subset: row.subset.clone(),
            steps_of: row.steps_of.clone(),
            asked: self.asked,
            learning_rate,
            schedule: Schedule::Constant,
            seed,
            insecure_seed: fixed.insecure_seed,
        }
    }

    /// The runs on the tuning split. None where only one learning rate is allowed.
    pub fn tuning(&self, fixed: &Basis) -> Vec<Spec> {
        if self.learning_rates == 1 {
            return Vec::new();
        }
        let rows = self.tuned_rows();
        let rates = |row: &Row| row.rates(self.learning_rates);
        rows.iter().flat_map(|r| rates(r).into_iter().map(|rate| self.spec(r, fixed, Part::Tuning, rate, 1))).collect()
    }

    /// The runs of the tuning split that follow from those in `chosen`: the next rate beyond where a row's best is the lowest or the highest of those
    /// tried (beyond the lowest where all diverged), unless it has had as many as it may.
    pub fn outward(&self, fixed: &Basis, chosen: &HashMap<String, Choice>) -> Vec<Spec> {
        let (first, factor) = (self.learning_rates as usize, factor(self.learning_rates));
        let next = |row: &Row| {
            let Choice { best, tried, .. } = chosen.get(&row.key(self.tune_cells))?;
            let (lowest, highest) = (*tried.first()?, *tried.last()?);
            if tried.len() >= first + self.further_rates as usize {
                return None;
            }
            match best {
                Some((rate, _)) if *rate == highest => Some(highest * factor),
                Some((rate, _)) if *rate > lowest => None,
                _ => Some(lowest / factor),
            }
        };
        let rows = self.tuned_rows();
        let spec = |row: &Row| Some(self.spec(row, fixed, Part::Tuning, next(row)?, 1));
        rows.iter().filter_map(spec).collect()
    }

    /// The runs that results are taken from, by the rates that are given or that tuning chose (the middle ones where neither is so).
    pub fn results(&self, fixed: &Basis) -> Vec<Spec> {
        let mut specs = Vec::new();
        for seed in 1..=self.seeds {
            for row in self.rows() {
                let key = row.key(self.tune_cells);
                let rate = self.rates.get(&key).or_else(|| fixed.rates.get(&key)).copied().unwrap_or(row.centre);
                specs.push(self.spec(&row, fixed, Part::Result, rate, seed));
            }
        }
        specs
    }
}

/// The middle of the learning rates for a reading: found by trials on the tuning split of the embedded world.
pub(super) fn centre(reading: &Reading, batch: u64) -> f64 {
    let small_groups = reading.variant == "ferret-max";
    // Fewer bits can each be allowed a larger step, down to where a batch's sign is mostly noise.
    let few = (batch as f64).powf(0.35).min(4.0);
    match (reading.payload, reading.route, reading.silent) {
        (Payload::TrueGradient, Route::Direct, _) => 0.1,
        (Payload::TrueGradient, ..) => 1e-3,
        (_, Route::Direct, _) => (if small_groups { 0.15 } else { 0.5 }) * few,
        (_, _, Silent::None) => (if small_groups { 3e-3 } else { 1e-3 }) * few,
        (_, _, Silent::Zero) => (if small_groups { 1.5e-3 } else { 6e-4 }) * few,
    }
}

/// The middle of the learning rates for FERRET within a budget in nats, found in the same way: flipped bits are many and say little each.
pub(super) fn within(counted: Counting, nats: f64, batch: u64) -> f64 {
    let more = nats.sqrt().clamp(0.5, 2.0);
    match counted {
        Counting::Paper | Counting::Exact => 1e-3 / 3.0 * (batch as f64).powf(0.63).min(12.0) / more,
        Counting::Flipped => 3e-4 * (batch as f64).powf(0.35).min(4.0) / more,
    }
}
