//! A study: a grid of runs, read from a name or a TOML file, run once each, shown as tables and verdicts.

mod check;
mod expand;
mod place;
mod real;
pub mod report;
mod run;
pub mod sheet;
mod sketches;
mod spread;
mod subsets;

pub use expand::{Basis, Row};
pub use run::{Choice, FinishedRun, Progress, Runner, Store};
pub use spread::Spread;

use crate::error::{Error, Result};
use crate::fsio;
use crate::study::real::ProbePlan;
use crate::study::subset::Subset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What a grid compares, and so which tables it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The paper's methods over budgets and epochs.
    Paper,
    /// Readings of Algorithm 1.
    Readings,
    /// FERRET with a true (eps, delta) against DPSGD.
    TrueDp,
    /// FERRET, its bits counted as the paper does, exactly, and exactly with flips, against DPSGD at the same nats.
    EqualNats,
    /// FERRET-k by bits a step and by eps, against DPSGD.
    FerretK,
    /// What of the model is tuned: all of it, adapters, a few tensors.
    Tune,
    /// All methods on a model and records of the user's, with answers and planted secrets.
    Real,
}

impl Kind {
    /// Every kind, by the name of its grid.
    pub const NAMED: [(&'static str, Self); 7] = [
        ("paper", Self::Paper),
        ("readings", Self::Readings),
        ("true-dp", Self::TrueDp),
        ("equal-nats", Self::EqualNats),
        ("ferret-k", Self::FerretK),
        ("tune", Self::Tune),
        ("real", Self::Real),
    ];

    /// Its grid's name.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|n| n.1 == self).map_or("", |n| n.0)
    }

    /// The methods that its grid may name.
    fn methods(self) -> Vec<&'static str> {
        match self {
            Self::Paper => [&FERRETS[..], &["dpsgd", "dp-signsgd", "nonprivate", "signsgd", "qsgd"]].concat(),
            Self::Readings | Self::TrueDp => FERRETS.to_vec(),
            Self::EqualNats => {
                vec!["ferret-paper", "ferret-exact", "ferret-flipped", "ferret-k", "dpsgd", "nonprivate"]
            }
            Self::FerretK => vec!["ferret-k", "dpsgd"],
            Self::Real => {
                [&FERRETS[..], &["ferret-paper", "ferret-exact", "ferret-flipped", "ferret-k", "dpsgd", "nonprivate"]]
                    .concat()
            }
            Self::Tune => [&FERRETS[..], &["ferret-k", "dpsgd", "nonprivate"]].concat(),
        }
    }
}

/// What a study runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// What is compared.
    pub kind: Kind,
    /// The methods of the paper's grid and of equal-nats; variants of FERRET for the other grids.
    pub methods: Vec<String>,
    /// Paper: FERRET's budgets in nats and DPSGD's eps, and inf for non-private training. Readings, equal-nats: nats. True-dp: eps.
    pub budgets: Vec<f64>,
    /// True-dp: the nats of mutual information that decide how many bits FERRET releases. More bits need more flips. Real: FERRET's budgets.
    pub nats: Vec<f64>,
    /// Ferret-k: bits a step, at eps 1 or the first budget.
    pub bits: Vec<u32>,
    /// Tune and real: what of the model is tuned, a row each.
    pub tune: Vec<Subset>,
    /// The rows that are run, by name, and the base model; none: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Passes over the members.
    pub epochs: Vec<u32>,
    /// Expected batch sizes.
    pub batches: Vec<u64>,
    /// How many seeds, from 1 up: each has records, coins and public randomness of its own.
    pub seeds: u64,
    /// Candidates; about half of them become members.
    pub candidates: usize,
    /// Records a side that are attacked.
    pub audited: usize,
    /// The delta of every (eps, delta).
    pub delta: f64,
    /// Learning rates that each row tries on the tuning split; 1: none are tried, the middle one is taken.
    pub learning_rates: u32,
    /// Rates that a row tries further out, one after the other, while the best is the lowest or the highest of those tried.
    pub further_rates: u32,
    /// Whether every cell (budget, epochs) chooses its own learning rate, or every row one.
    pub tune_cells: bool,
    /// Show DPSGD and non-private training also with as many steps as FERRET computes. Paper's grid only.
    pub matched: bool,
    /// Real: parameters of the model, which the middle of the learning rates goes by; 0: as small as the embedded one.
    #[serde(skip_serializing_if = "is_zero")]
    pub parameters: u64,
    /// Real: what is asked of the models beside losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<ProbePlan>,
    /// Learning rates that are known already, by [`Row::key`]: such rows try none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<String, f64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A grid's file: what it leaves out is as in the named grid.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: Kind,
    methods: Option<Vec<String>>,
    budgets: Option<Vec<f64>>,
    nats: Option<Vec<f64>>,
    bits: Option<Vec<u32>>,
    tune: Option<Vec<Subset>>,
    only: Option<Vec<String>>,
    epochs: Option<Vec<u32>>,
    batches: Option<Vec<u64>>,
    seeds: Option<u64>,
    candidates: Option<usize>,
    audited: Option<usize>,
    delta: Option<f64>,
    learning_rates: Option<u32>,
    further_rates: Option<u32>,
    tune_cells: Option<bool>,
    matched: Option<bool>,
    parameters: Option<u64>,
    asked: Option<ProbePlan>,
    rates: Option<BTreeMap<String, f64>>,
}

/// Methods that a grid may name.
const FERRETS: [&str; 5] = ["ferret-max", "ferret-half", "ferret-quarter", "ferret-eighth", "ferret-2"];

impl Grid {
    /// The grid of this kind as the program has it.
    pub fn named(kind: Kind) -> Self {
        let words = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let paper = Self {
            kind,
            methods: words(&["ferret-max", "ferret-eighth", "ferret-2", "dpsgd", "nonprivate"]),
            budgets: vec![0.1, 0.5, 1.0, 2.0, f64::INFINITY],
            nats: vec![1.0],
            bits: Vec::new(),
            tune: vec![Subset::default()],
            only: Vec::new(),
            epochs: vec![1, 3, 5],
            batches: vec![50],
            seeds: 3,
            candidates: 3000,
            audited: 1000,
            delta: 1e-5,
            learning_rates: 3,
            further_rates: 0,
            tune_cells: false,
            matched: true,
            parameters: 0,
            asked: None,
            rates: BTreeMap::new(),
        };
        match kind {
            Kind::Paper => paper,
            Kind::Readings => Self {
                methods: words(&["ferret-2"]),
                budgets: vec![1.0],
                epochs: vec![3],
                batches: vec![50, 5, 1],
                matched: false,
                ..paper
            },
            Kind::TrueDp => Self {
                methods: words(&["ferret-2"]),
                budgets: vec![1.0],
                epochs: vec![3],
                batches: vec![250, 50, 5, 1],
                nats: vec![1.0, 4.0],
                matched: false,
                ..paper
            },
            Kind::EqualNats => Self {
                methods: words(&kind.methods()),
                budgets: vec![0.1, 0.5, 1.0, 2.0],
                epochs: vec![3],
                batches: vec![50, 1],
                matched: false,
                ..paper
            },
            Kind::FerretK => Self {
                methods: words(&["ferret-k", "dpsgd"]),
                budgets: vec![0.1, 0.5, 1.0, 2.0, 8.0],
                bits: vec![1, 4, 16, 64, 256, 1024, 4096, 65_536],
                epochs: vec![3],
                batches: vec![100],
                learning_rates: 5,
                tune_cells: true,
                matched: false,
                ..paper
            },
            Kind::Real => Self {
                methods: words(&["nonprivate", "dpsgd", "ferret-2", "ferret-flipped", "ferret-k"]),
                budgets: vec![8.0, 1.0],
                nats: vec![0.5],
                tune: ["all", "lora:8"].map(|text| Subset::parse(text).expect("a subset")).to_vec(),
                epochs: vec![1, 3],
                batches: vec![32],
                candidates: 2000,
                audited: 200,
                further_rates: 4,
                matched: false,
                asked: Some(ProbePlan::default()),
                ..paper
            },
            Kind::Tune => Self {
                methods: words(&["ferret-2", "ferret-k", "dpsgd"]),
                budgets: vec![1.0],
                tune: subsets::usual(),
                epochs: vec![3],
                learning_rates: 5,
                matched: false,
                ..paper
            },
        }
    }

    /// A grid by its name ([`Kind::NAMED`]), or a TOML file.
    pub fn open(name: &str) -> Result<Self> {
        if let Some((_, kind)) = Kind::NAMED.iter().find(|n| n.0 == name) {
            return Ok(Self::named(*kind));
        }
        if name.ends_with(".toml") {
            let path = Path::new(name);
            return Self::parse(&fsio::read_text(path)?).map_err(|what| Error::file(path, what));
        }
        let names: Vec<&str> = Kind::NAMED.iter().map(|n| n.0).collect();
        Err(Error::usage(format!(
            "`grid` {name}: there is no such grid: give {} or a file that ends in .toml",
            names.join(", ")
        )))
    }

    /// Read a grid's text; the error is a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            format!("{place}{}: see `ferret study --help` for what a grid may say", e.message().replace('\n', " "))
        })?;
        let mut grid = Self::named(file.kind);
        macro_rules! take {
            ($($field:ident),*) => { $(if let Some(given) = file.$field { grid.$field = given; })* };
        }
        take!(
            methods,
            budgets,
            nats,
            bits,
            tune,
            only,
            epochs,
            batches,
            seeds,
            candidates,
            audited,
            delta,
            learning_rates,
            further_rates,
            tune_cells,
            matched,
            parameters,
            rates
        );
        grid.asked = file.asked.or(grid.asked);
        grid.check()?;
        grid.check_only()?;
        grid.check_rates()?;
        Ok(grid)
    }

    /// The grid as a file that [`Grid::parse`] reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain values")
    }
}
