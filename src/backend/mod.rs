//! Where the decoder's ops run.
//!
//! [`Backend`] is what the decoder, the gradient sinks and the methods are written in, in five parts for five readers: [`Memory`] holds and moves
//! numbers, [`Compute`] has the decoder's ops, [`SampleNorms`] every sample's gradient norm and clipping, [`Sketches`] every sample's few numbers of a
//! gradient, [`Updates`] what changes weights after a release. `Cpu<f32>` trains, `Cpu<f64>` checks gradients, `Gpu` runs WGSL. A tensor of one backend cannot meet another's: it does not
//! compile.
//!
//! Tensors are matrices in row-major order; a vector is one row. Ops that can fail on a device (out of memory, device lost)
//! do not return errors one by one: they poison the backend, and [`Memory::finish`] or the next download says what happened.

mod compute;
pub mod cpu;
pub mod device;
#[cfg(feature = "gpu")]
pub mod gpu;
mod memory;
mod sample_norms;
mod sketches;
mod updates;

pub use compute::Compute;
pub use cpu::Cpu;
pub use device::{Device, Job};
#[cfg(feature = "gpu")]
pub use gpu::Gpu;
pub use memory::Memory;
pub use sample_norms::SampleNorms;
pub use sketches::Sketches;
pub use updates::Updates;

/// All of a backend.
pub trait Backend: Memory + Compute + SampleNorms + Sketches + Updates {}

impl<B: Memory + Compute + SampleNorms + Sketches + Updates> Backend for B {}
