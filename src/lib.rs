//! `ferret`: a transformer's forward, backward and directional derivative, written out, with private training built in.
//!
//! To learn from it, take the [`tour`]: seven short chapters with exercises, from a matrix product to a privacy statement.
//!
//! # The rooms, in reading order
//!
//! | module | what lives there |
//! |---|---|
//! | [`error`], [`fsio`] | one error type, whose messages are sentences; files written whole or not at all |
//! | [`hash`] | SHA-256 and hexadecimal |
//! | [`isa`] | which vector instructions are used |
//! | [`ranks`] | the processes of one run: what they ask of each other, by MPI (feature `mpi`) or alone |
//! | [`rng`] | public randomness (seeded, random access) and secret randomness (keyed by the system), kept apart |
//! | [`kernel`] | the few hot loops: matrix products, vectorised exp, sums of fixed shape |
//! | [`ops`] | one file an op: formula, forward, backward, jvp, test |
//! | [`backend`] | where ops run: [`Cpu<f32>`](backend::Cpu) trains, `Cpu<f64>` checks |
//! | [`model`] | config, named parameters, the [`Decoder`](model::Decoder), checkpoints, tokenizer, generation |
//! | [`data`], [`eval`] | records, ragged batches, losses |
//! | [`grad`] | what backward delivers to: sums, per-sample norms, projections |
//! | [`optim`] | update rules and schedules: post-processing of releases |
//! | [`privacy`] | events, accountants, guarantees, statements; knows no tensors |
//! | [`method`] | the boundary around private records, and the methods that cross it |
//! | [`progress`] | who hears how far a long job is |
//! | [`audit`] | attacks and their error bars; knows no tensors |
//! | [`measure`] | from a decoder and records to the numbers that audits judge: scores, shadow models, canaries, leakage |
//! | [`study`] | grids of runs, tables beside the paper's, verdicts, plots, pages |
//! | [`tour`] | chapters and exercises; nothing but documentation |
//! | [`cli`](https://docs.rs/ferret-engine/latest/ferret/cli/) | the program, one file a verb (feature `cli`) |
//!
//! # A gradient in a few lines
//!
//! ```
//! use ferret::backend::Cpu;
//! use ferret::data::{Example, batches};
//! use ferret::grad::Sum;
//! use ferret::model::{Decoder, Reduction, init};
//!
//! let weights = init::random(init::Preset::Tiny.config(), 1)?;
//! let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
//! let batch = batches::batch([&Example::all(vec![1, 2, 3, 4]), &Example::all(vec![5, 6])]);
//!
//! let mut gradient = Sum::new(&decoder.backend, &decoder.layout, |_| true);
//! let losses = decoder.backward(&batch, &batch.weights(Reduction::SampleMean), &mut gradient);
//! assert_eq!(losses.as_slice().len(), 4); // four tokens were fed, each predicting the next
//! let wte = gradient.get(decoder.layout.tokens).unwrap();
//! assert!(wte.as_slice().iter().any(|g| *g != 0.0));
//! # Ok::<(), ferret::Error>(())
//! ```
#![warn(missing_docs)]

pub mod audit;
pub mod backend;
#[cfg(feature = "cli")]
pub mod cli;
pub mod data;
pub mod error;
pub mod eval;
pub mod fsio;
pub mod grad;
mod guard;
pub mod hash;
pub mod isa;
pub mod kernel;
pub mod measure;
pub mod method;
pub mod model;
pub mod ops;
pub mod optim;
pub mod privacy;
pub mod progress;
pub mod ranks;
pub mod rng;
pub mod study;
#[cfg(any(doc, doctest))]
pub mod tour;

pub use error::{Error, Result};

/// The commit that this was built from; none where the build was no release of a repository.
pub const COMMIT: Option<&str> = option_env!("FERRET_COMMIT");
