//! What changes weights after a release, and compression.

use super::Memory;
use crate::ops::compress::Address;
use crate::ops::update::{Constants, Step};

/// Post-processing of what was released, on weights and moments where they lie.
pub trait Updates: Memory {
    /// [`crate::ops::update::adamw_step`] on the rows from `first` on, as many as the gradient `g` has; moments are (m, v).
    #[allow(clippy::too_many_arguments)]
    fn adamw(
        &self,
        w: &mut Self::Tensor,
        moments: (&mut Self::Tensor, &mut Self::Tensor),
        g: &Self::Tensor,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    );
    /// [`crate::ops::update::adamw_idle`].
    fn adamw_idle(
        &self,
        w: &mut Self::Tensor,
        moments: (&mut Self::Tensor, &mut Self::Tensor),
        steps: &[Step],
        k: &Constants,
    );
    /// [`crate::ops::update::decay`].
    fn decay(&self, w: &mut Self::Tensor, steps: &[Step]);
    /// [`crate::ops::update::subtract`] on the rows from `first` on, as many as `g` has.
    fn subtract(&self, w: &mut Self::Tensor, g: &Self::Tensor, first: usize, scale: f32);
    /// [`crate::ops::compress::signs`].
    fn signs(&self, x: &mut Self::Tensor, at: Address);
    /// [`crate::ops::compress::signs_with_residue`].
    fn signs_with_residue(&self, x: &mut Self::Tensor, residue: &mut Self::Tensor, at: Address);
    /// [`crate::ops::compress::quantise`].
    fn quantise(&self, x: &mut Self::Tensor, bits: u32, at: Address);
}
