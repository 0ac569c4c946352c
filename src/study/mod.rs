//! Grids of runs, tables, plots and the report.
