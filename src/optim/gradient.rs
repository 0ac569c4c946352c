//! What an update rule is given.

use crate::backend::Backend;
use crate::rng::{DirectionStream, Pullback};

/// Elements of a direction that exist at once: 4 MiB in f32.
const BLOCK: usize = 1 << 20;

/// What an update rule is given for one tensor: already released, so nothing here is sensitive.
pub enum Gradient<'a, B: Backend> {
    /// `scale * u[offset ..]`: a released scalar along a public direction, which the backend generates.
    Along {
        /// The group's direction.
        direction: &'a DirectionStream,
        /// Where the tensor begins in the group.
        offset: usize,
        /// Bit times C, or the released scalar.
        scale: f32,
    },
    /// `scale * Uᵀ b`: released numbers b, pulled back by a step's public sketch, which the backend generates.
    Pulled {
        /// Uᵀ b.
        pullback: &'a Pullback<'a>,
        /// Which tensor of the sketch it is.
        tensor: usize,
        /// The factor on it.
        scale: f32,
    },
    /// `scale * tensor`: a whole gradient.
    Whole {
        /// Of the weights' shape.
        tensor: &'a B::Tensor,
        /// The factor on it.
        scale: f32,
    },
}

impl<B: Backend> Gradient<'_, B> {
    /// Calls `f(g, first, scale)` for blocks of rows of a matrix of this shape; the gradient of rows `first ..` is `scale * g`.
    pub(super) fn blocks(&self, b: &B, (rows, cols): (usize, usize), mut f: impl FnMut(&B::Tensor, usize, f32)) {
        let block = (BLOCK / cols.max(1)).max(1);
        match *self {
            Gradient::Whole { tensor, scale } => f(tensor, 0, scale),
            Gradient::Along { direction, offset, scale } => {
                for first in (0..rows).step_by(block) {
                    f(&b.direction(direction, offset + first * cols, block.min(rows - first), cols), first, scale);
                }
            }
            Gradient::Pulled { pullback, tensor, scale } => {
                for first in (0..rows).step_by(block) {
                    f(&b.pulled(pullback, tensor, first, block.min(rows - first), cols), first, scale);
                }
            }
        }
    }

    /// `to -= factor(scale) * g`.
    pub(super) fn subtract(&self, b: &B, to: &mut B::Tensor, factor: impl Fn(f32) -> f32) {
        match *self {
            Gradient::Pulled { pullback, tensor, scale } => b.subtract_pulled(to, pullback, tensor, factor(scale)),
            _ => {
                let shape = b.shape(to);
                self.blocks(b, shape, |g, first, scale| b.subtract(to, g, first, factor(scale)));
            }
        }
    }
}
