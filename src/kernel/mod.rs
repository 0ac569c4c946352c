//! The few hot loops: matrix products in tiles of our own or by matrixmultiply, split over rayon, vectorised exp, fixed-shape reductions.
//!
//! Everything here gives the same bits at any thread count: work is split over outputs, never over a sum.

mod awake;
pub mod fourier;
pub mod gemm;
pub mod gram;
pub mod lanes;
pub mod real;
pub(crate) mod scratch;
mod stored;
#[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod tiles;

pub use awake::awake;
pub use fourier::Fourier;
pub use gemm::{Onto, matmul, matmul_serial};
pub use gram::Gram;
pub use real::Real;
pub use stored::{Narrow, Scalars, Stored, View, matmul_narrow};

pub(crate) use crate::isa::multiversion;
