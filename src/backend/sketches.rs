//! Every sample's sketch of its gradient, and what a release of sketched numbers does to weights.

use super::Memory;
use crate::error::Result;
use crate::ops::Segments;
use crate::rng::{Pullback, StepSketch};

/// What FERRET-k computes from a gradient's factors. U is the public matrix of a step; `tensor` says whose columns of it are meant, `first` is the
/// sample of the first segment.
pub trait Sketches: Memory {
    /// What the sketches of some samples are added up in.
    type Sums: Send;

    /// Zeros for `samples` samples.
    fn sketch_sums(&self, sketch: &StepSketch, samples: usize) -> Self::Sums;
    /// `v_i += U (x_iᵀ dy_i)` for every segment i.
    #[allow(clippy::too_many_arguments)]
    fn sketch_outer(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        segments: &Segments,
        first: usize,
        sums: &mut Self::Sums,
    );
    /// `v_i += U` times the matrix whose row `ids_t` has dy_t added to it, over the rows t of every segment i.
    #[allow(clippy::too_many_arguments)]
    fn sketch_rows(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        ids: &[u32],
        dy: &Self::Tensor,
        segments: &Segments,
        first: usize,
        sums: &mut Self::Sums,
    );
    /// `v_i += U` times the sum of the rows of every segment i, for tensors of one row.
    fn sketch_vector(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        dy: &Self::Tensor,
        segments: &Segments,
        first: usize,
        sums: &mut Self::Sums,
    );
    /// Every sample's v, in order, waiting for it.
    fn sketches(&self, sketch: &StepSketch, sums: Self::Sums) -> Result<Vec<Vec<f64>>>;

    /// Rows `first .. first + rows` of a tensor's part of `Uᵀ b`.
    fn pulled(&self, pullback: &Pullback, tensor: usize, first: usize, rows: usize, cols: usize) -> Self::Tensor;
    /// `w -= scale Uᵀ b` for a whole tensor: the bits of [`Updates::subtract`](super::Updates::subtract) with [`Sketches::pulled`], without the matrix.
    fn subtract_pulled(&self, w: &mut Self::Tensor, pullback: &Pullback, tensor: usize, scale: f32);
    /// `m = share m + scale Uᵀ b`, then `w -= rate m`, for a whole tensor; the last argument is (share, scale, rate).
    fn momentum_pulled(
        &self,
        w: &mut Self::Tensor,
        m: &mut Self::Tensor,
        pullback: &Pullback,
        tensor: usize,
        factors: [f32; 3],
    );
}
