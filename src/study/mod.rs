//! Grids of runs, tables, plots and the report.

pub mod arm;
pub mod figures;
pub mod first;
pub mod html;
pub mod plot;
pub mod table;
pub mod toy;
pub mod world;
