//! One file an op, plain functions on arrays: forward, backward and jvp.
