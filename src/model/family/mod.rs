//! One file a family of checkpoints: a name map, transposes and config parsing, nothing else.

pub mod gpt2;
