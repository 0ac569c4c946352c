//! Post-processing of releases: update rules and schedules. Sees no data.
//!
//! An update is element-wise IEEE arithmetic on f32 ([`crate::ops::update`]), in the order written, without fused multiply-add, so that
//! the same releases give the same bytes on every machine, at every thread count and vector width. Work is cut into fixed blocks.

pub mod gradient;
pub mod schedule;
pub mod timeline;
pub mod updates;

pub use gradient::Gradient;
pub use schedule::Schedule;
pub use timeline::{Hyper, Silent, Timeline};
pub use updates::{Route, Updates};
