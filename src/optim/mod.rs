//! Post-processing of releases: update rules and schedules. Sees no data.
