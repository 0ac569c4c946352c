//! The boundary between records and releases, and the methods that cross it.

pub mod ferret;
pub mod groups;
