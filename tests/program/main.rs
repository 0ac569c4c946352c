//! The program as people run it: every verb, what it writes, what it refuses, what it leaves when it is killed.
//!
//! One binary for all of them: what they instantiate is compiled once.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../io_support/mod.rs"]
mod io_support;

mod adapter_program;
mod answers;
mod audit;
#[cfg(unix)]
mod audit_train;
mod audit_verb;
mod bad_input;
mod bad_request;
mod checkpoint;
mod compose;
mod data;
#[cfg(unix)]
mod families_program;
#[cfg(feature = "embedded")]
mod golden;
#[cfg(feature = "gpu")]
mod gpu_train;
#[cfg(feature = "gpu")]
mod gpu_verbs;
mod hostile;
#[cfg(feature = "hub")]
mod hub;
mod plan;
#[cfg(feature = "embedded")]
mod progress;
mod replay;
mod replay_program;
#[cfg(unix)]
mod scales;
mod schemas;
mod start;
mod study;
#[cfg(feature = "embedded")]
mod study_real;
mod study_tune;
mod study_verdicts;
#[cfg(unix)]
mod train;
mod train_dense;
#[cfg(unix)]
mod train_k;
#[cfg(unix)]
mod train_resume;
mod tune_program;
#[cfg(feature = "embedded")]
mod verify;
#[cfg(feature = "embedded")]
mod verify_hidden;
mod words;
#[cfg(feature = "embedded")]
mod world;
