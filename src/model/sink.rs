//! What the decoder's backward delivers to, and where its jvp takes tangents from.
//!
//! A weight's gradient is `dW = xᵀ dy`, a sum over rows. The private methods need the factors x and dy *before* that product
//! exists, so backward hands over the factors and the [`GradSink`] decides: add up, keep apart by sample, take norms, project.
//! [`Tangents`] is the mirror image for forward mode.

use super::layout::ParamId;
use crate::backend::Backend;
use crate::ops::Segments;
use std::ops::Range;

/// A factor: lent for the call, or given away.
pub enum Slot<'a, B: Backend> {
    /// Backward still needs it.
    Lent(&'a B::Tensor),
    /// Nobody else needs it: keep it or drop it.
    Given(B::Tensor),
}

impl<B: Backend> Slot<'_, B> {
    /// Look at it.
    pub fn get(&self) -> &B::Tensor {
        match self {
            Slot::Lent(x) => x,
            Slot::Given(x) => x,
        }
    }

    /// Keep it, copying if it was lent.
    pub fn take(self, backend: &B) -> B::Tensor {
        match self {
            Slot::Lent(x) => backend.rows(x, 0..backend.shape(x).0),
            Slot::Given(x) => x,
        }
    }
}

/// Which samples the delivered rows belong to: `segments` counts rows from the first row delivered, and its first segment
/// is sample `samples.start` of the batch. Rows whose part of the gradient is zero may be missing, so that deliveries differ in a sample's number of rows.
pub struct Rows<'a> {
    /// Samples of the batch, in order.
    pub samples: Range<usize>,
    /// Their rows within the delivered tensors.
    pub segments: &'a Segments,
}

impl Rows<'_> {
    /// The same once more.
    pub fn same(&self) -> Rows<'_> {
        Rows { samples: self.samples.clone(), segments: self.segments }
    }
}

/// Receives the factors of every wanted parameter's gradient. A parameter that is used twice (tied embeddings) is delivered
/// more than once; the order of deliveries means nothing.
pub trait GradSink<B: Backend>: Send {
    /// Whether anything should be delivered for `p`. Asked before forward, so that unwanted factors are not even kept.
    fn wants(&self, p: ParamId) -> bool;
    /// `dW = xᵀ dy`: linear weights (x, dy) and, a few samples at a time, the output head (dlogits, h).
    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows);
    /// `dW[ids_i] += dy_i`: embeddings.
    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows);
    /// `db = sum of dy's rows`: biases and gains.
    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows);
}

/// The tangent of each parameter: a direction in which the loss is differentiated. Every method adds; a parameter whose
/// tangent is zero adds nothing.
pub trait Tangents<B: Backend>: Sync {
    /// Whether the tangent of `p` may be other than zero: below the first such parameter no tangent is carried.
    fn moves(&self, p: ParamId) -> bool;
    /// The tangent of a bias or gain, if it is not zero.
    fn vector(&self, b: &B, p: ParamId) -> Option<B::Tensor>;
    /// `y += x U` for a linear weight.
    fn matmul(&self, b: &B, p: ParamId, x: &B::Tensor, y: &mut B::Tensor);
    /// `y_i += U[ids_i]` for an embedding.
    fn gather(&self, b: &B, p: ParamId, ids: &[u32], y: &mut B::Tensor);
    /// `y += h Uᵀ` for an output head.
    fn head(&self, b: &B, p: ParamId, h: &B::Tensor, y: &mut B::Tensor);
}
