//! Scores, attacks and their error bars. Knows no tensors.
//!
//! Reading order: [`score`] turns per-token statistics into one number a record, [`attack`] turns numbers of shadow
//! models into sharper ones, [`roc`] says how well a number separates members from non-members and how sure that is,
//! [`bound`] says what the privacy accounting permits and raises the alarm above it. [`canary`] and [`one_run`] audit
//! with planted secrets, [`leakage`] reads FERRET's bits record by record, [`report`] prints, in [`columns`].
//!
//! Every score is oriented the same way: larger means "more likely a member".

pub mod attack;
pub mod bound;
pub mod canary;
pub mod columns;
pub mod leakage;
pub mod null;
pub mod one_run;
pub mod report;
pub mod roc;
pub mod score;
pub mod stats;
