//! The library by brute force: engine, methods, accountants, statistics of attacks.
//!
//! One binary for all of them: what they instantiate is compiled once.

#[path = "../common/mod.rs"]
mod common;

mod accountants;
mod accountants_published;
mod adapter;
mod audit_bounds;
mod audit_stats;
mod canary_audit;
mod clip_bound;
mod compressed;
mod decoder;
mod dense;
mod dense_scales;
mod families;
mod ferret;
mod ferret_k;
mod ferret_k_law;
mod ferret_k_resume;
mod ferret_k_scales;
mod norms;
mod norms_order;
mod pytorch;
mod sketch;
mod smollm2;
mod stored;
mod tour;
mod training;
mod tune;
