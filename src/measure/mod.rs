//! From a decoder and records to the numbers that [`crate::audit`] judges.
//!
//! [`tokens`] and [`norms`] score records, batched and ragged, at the rate of [`crate::eval`], and keep what they computed in a
//! [`Cache`] by the hash of weights and data, so that a killed audit goes on where it was. [`attacks`] makes attacks of the scores,
//! [`membership`] does the whole of an audit on two models ([`Pair`]) and what the folder of one tells of its training ([`Provenance`]);
//! [`shadow`] trains the models that LiRA and RMIA compare with, [`canary`] plants secrets and [`secrets`] looks for them, also by decoding ([`extract`]), [`leakage()`] takes
//! FERRET's bits apart record by record, [`story`] tells a run step by step.
//!
//! Whoever audits holds the records: nothing here is a release.

pub mod attacks;
mod cache;
pub mod canary;
pub mod extract;
mod leakage;
pub mod membership;
pub mod norms;
pub mod pair;
pub mod provenance;
pub mod secrets;
pub mod shadow;
pub mod story;
pub mod tokens;

pub use attacks::{Scores, shadow_attacks, threshold_attacks};
pub use cache::Cache;
pub use leakage::{Metering, Reading, leakage};
pub use membership::{Audit, Finding};
pub use norms::gradient_norms;
pub use pair::{Pair, ReadAs};
pub use provenance::Provenance;
pub use secrets::{CanaryAudit, CanaryFinding};
pub use tokens::{cached_log_probs, compressed_bytes, log_probs, mean_log_probs, token_stats};
