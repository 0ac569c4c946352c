//! The GPU: [`crate::ops`] in WGSL, through wgpu.
//!
//! Reading order: `adapter` opens a device; a [`Tensor`] is a matrix in a pooled buffer; `context` records dispatches of the
//! `kernels` and moves data in and out; `matmul`, `attention`, `norm`, `gated`, `rows`, `clip`, `sketch` and `update` say what each op dispatches. The shaders lie in
//! `shaders/`, each with the stem of the file in `src/ops` that it mirrors.
//!
//! A device shows a shader only so many bytes of a buffer at once (128 MiB on some; GPT-2's embedding has 154 MB). So every op works
//! on windows of rows, and goes over a matrix in as many as it takes.
//!
//! Commands are recorded and submitted many at a time. Nothing waits but [`Memory::download`](super::Memory::download)
//! and [`Memory::finish`](super::Memory::finish), and they also report what went wrong since.

mod adapter;
mod attention;
mod clip;
mod compute;
mod context;
mod fault;
mod gated;
mod kernels;
mod mass;
mod matmul;
mod measure;
mod memory;
mod norm;
mod params;
mod pool;
mod recorder;
mod rows;
mod sketch;
mod sketches;
mod tensor;
#[cfg(test)]
mod tests;
mod update;

pub use adapter::{ADAPTER_VARIABLE, AdapterInfo, adapters, preferred};
pub use kernels::sources;
pub use measure::Rates;
pub use params::parameters;
pub use tensor::Tensor;

use crate::error::Result;
use context::Context;
use std::sync::Arc;

/// Runs ops on a device that wgpu found. Clones share the device, its memory and its commands.
#[derive(Clone)]
pub struct Gpu {
    context: Arc<Context>,
}

impl Gpu {
    /// Open the adapter named by `selector`: part of its name, or its number in [`adapters`]. Without one the environment variable
    /// `FERRET_ADAPTER` decides, or else it is the most capable adapter.
    pub fn new(selector: Option<&str>) -> Result<Self> {
        Ok(Self { context: Arc::new(Context::new(adapter::open(selector)?, None)) })
    }

    /// As [`Gpu::new`], as if the adapter bound at most `bytes` at once: for tests of what happens to larger matrices.
    pub fn with_binding_limit(selector: Option<&str>, bytes: u64) -> Result<Self> {
        Ok(Self { context: Arc::new(Context::new(adapter::open(selector)?, Some(bytes))) })
    }

    /// The adapter.
    pub fn info(&self) -> &AdapterInfo {
        &self.context.info
    }

    /// Buffers made so far and bytes that exist in them, in use or waiting. The count stands still once steps repeat.
    pub fn allocated(&self) -> (u64, u64) {
        self.context.allocated()
    }

    /// The kernels that have not been run yet, as `file entry`: a bench that times all of them leaves none.
    pub fn unused(&self) -> Vec<String> {
        self.context.unused()
    }

    /// Submissions to the device so far.
    pub fn submissions(&self) -> u64 {
        self.context.submissions()
    }

    /// A matrix with stale content, for ops that overwrite all of it.
    fn empty(&self, rows: usize, cols: usize) -> Tensor {
        Tensor::new(&self.context, rows, cols)
    }
}
