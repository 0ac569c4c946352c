//! Grids of runs, tables, plots and the report.

pub mod arm;
pub mod audit;
pub mod comparison;
pub mod figures;
pub mod first;
pub mod grid;
pub mod html;
mod origin;
pub mod outcome;
pub mod paper;
mod peak;
pub mod plot;
pub mod real;
pub mod settings;
pub mod spec;
pub mod subset;
pub mod table;
pub mod toy;
pub mod verdict;
pub mod world;
