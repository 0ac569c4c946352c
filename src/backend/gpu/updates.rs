//! [`Updates`] on the GPU.

use super::{Gpu, Tensor, update};
use crate::backend::Updates;
use crate::ops::compress::Address;
use crate::ops::update::{Constants, Step};

impl Updates for Gpu {
    fn adamw(
        &self,
        w: &mut Tensor,
        (m, v): (&mut Tensor, &mut Tensor),
        g: &Tensor,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    ) {
        update::adamw(&self.context, w, (m, v), g, first, scale, s, k);
    }

    fn adamw_idle(&self, w: &mut Tensor, (m, v): (&mut Tensor, &mut Tensor), steps: &[Step], k: &Constants) {
        update::adamw_idle(&self.context, w, (m, v), steps, k);
    }

    fn decay(&self, w: &mut Tensor, steps: &[Step]) {
        update::decay(&self.context, w, steps);
    }

    fn subtract(&self, w: &mut Tensor, g: &Tensor, first: usize, scale: f32) {
        update::subtract(&self.context, w, g, first, scale);
    }

    fn signs(&self, x: &mut Tensor, at: Address) {
        update::signs(&self.context, x, None, at, &|rows, cols| self.empty(rows, cols));
    }

    fn signs_with_residue(&self, x: &mut Tensor, residue: &mut Tensor, at: Address) {
        update::signs(&self.context, x, Some(residue), at, &|rows, cols| self.empty(rows, cols));
    }

    fn quantise(&self, x: &mut Tensor, bits: u32, at: Address) {
        update::quantise(&self.context, x, bits, at);
    }
}
