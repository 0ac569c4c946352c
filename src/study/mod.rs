//! Grids of runs, tables, plots and the report.

pub mod plot;
