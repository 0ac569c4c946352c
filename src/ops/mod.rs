//! One file an op: forward, backward and jvp (forward-mode directional derivative) as plain functions on arrays.
//!
//! Rows are tokens, columns are features. Outputs are written into views that the caller owns, so that a step reuses its
//! memory. In `jvp`, `ẋ` (`x_dot`) is the tangent of `x`.

pub mod activation;
pub mod attention;
pub mod clip;
pub mod compress;
pub mod cross_entropy;
pub mod embedding;
pub mod gated;
pub mod heads;
pub mod linear;
pub mod norm;
pub mod residual;
pub mod rms_norm;
pub mod rope;
pub mod sample_norm;
pub mod segments;
pub mod sketch;
pub mod token_stats;
pub mod update;

pub use activation::Activation;
pub use heads::{GateUp, Heads, Parts, Qkv};
pub use linear::Order;
pub use rope::Rope;
pub use segments::Segments;

#[cfg(test)]
pub(crate) mod check;

use ndarray::{ArrayBase, ArrayView2, ArrayViewMut2, Axis, Data, DataMut, Ix2};
use rayon::prelude::*;

/// Rows handed to a thread at a time by row-wise ops.
const ROWS: usize = 16;

/// The contiguous rows of a matrix.
pub(crate) fn slice<F, S: Data<Elem = F>>(x: &ArrayBase<S, Ix2>) -> &[F] {
    x.as_slice().expect("a contiguous matrix")
}

/// The contiguous rows of a matrix, to write to.
pub(crate) fn slice_mut<F, S: DataMut<Elem = F>>(x: &mut ArrayBase<S, Ix2>) -> &mut [F] {
    x.as_slice_mut().expect("a contiguous matrix")
}

/// Run `f(first row, block)` over blocks of rows in parallel.
pub(crate) fn for_row_blocks<F: Send + Sync>(x: &mut ArrayViewMut2<F>, f: impl Fn(usize, &mut [F]) + Sync + Send) {
    let cols = x.ncols().max(1);
    slice_mut(x).par_chunks_mut(cols * ROWS).enumerate().for_each(|(i, block)| f(i * ROWS, block));
}

/// Sum the rows of `x` into `out` (`out += sum_i x_i`): columns are split over threads, so the order of the sum is fixed.
pub fn add_column_sums<F: crate::kernel::Real>(x: ArrayView2<F>, out: &mut [F]) {
    assert_eq!(x.ncols(), out.len());
    out.par_chunks_mut(256).enumerate().for_each(|(i, out)| {
        let columns = x.slice_axis(Axis(1), ndarray::Slice::from(i * 256..i * 256 + out.len()));
        for row in columns.rows() {
            let row = row.to_slice().expect("contiguous rows");
            crate::kernel::lanes::add(row, out);
        }
    });
}
