//! `ferret`: a transformer's forward, backward and directional derivative, written out.
#![warn(missing_docs)]

pub mod audit;
pub mod backend;
pub mod cli;
pub mod data;
pub mod error;
pub mod eval;
pub mod fsio;
pub mod grad;
pub mod kernel;
pub mod measure;
pub mod method;
pub mod model;
pub mod ops;
pub mod optim;
pub mod privacy;
pub mod rng;
pub mod study;

pub use error::{Error, Result};
