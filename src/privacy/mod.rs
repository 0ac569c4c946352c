//! Events, accountants, guarantees and statements. Knows no tensors.
//!
//! What was released is an [`Event`]; what it costs is an [`Accountant`]'s
//! answer. [`rdp`] is the classical bound, [`pld`] composes the privacy-loss distribution and brackets epsilon from
//! both sides, [`mi`] counts nats of mutual information, which are another unit altogether: see
//! [`Guarantee`].

pub mod accountant;
mod aim;
mod atoms;
pub mod binomial;
mod boundary;
pub mod calibrate;
mod choose;
pub mod compose;
pub mod curve;
mod effort;
pub mod eq12;
pub mod event;
pub mod guarantee;
pub mod lattice;
pub mod mi;
pub mod normal;
pub mod pld;
pub mod rdp;
pub mod spectrum;
pub mod statement;
mod tilt;

pub use accountant::{Accountant, Bounds};
pub use event::{Event, Fires, Sampler};
pub use guarantee::{Guarantee, Neighbours};
pub use pld::Pld;
pub use rdp::Rdp;
pub use statement::Statement;
