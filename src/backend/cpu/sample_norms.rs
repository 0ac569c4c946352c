//! [`SampleNorms`] on the CPU.

use super::{Cpu, Tensor};
use crate::backend::SampleNorms;
use crate::kernel::Real;
use crate::ops::clip::{self, ClipFunction};
use crate::ops::{Segments, sample_norm};

impl<F: Real> SampleNorms for Cpu<F> {
    fn add_outer_squares(
        &self,
        x: &Tensor<F>,
        dy: &Tensor<F>,
        segments: &Segments,
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        sample_norm::add_outer(x.view(), dy.view(), segments, &mut squares.as_slice_mut()[first..][..segments.len()]);
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor<F>, segments: &Segments, squares: &mut Tensor<F>, first: usize) {
        sample_norm::add_rows(ids, dy.view(), segments, &mut squares.as_slice_mut()[first..][..segments.len()]);
    }

    fn add_tied_squares(
        &self,
        (x, dy, head_row): (&Tensor<F>, &Tensor<F>, usize),
        (ids, demb, row): (&[u32], &Tensor<F>, usize),
        segments: &Segments,
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        let head = head_row..head_row + segments.rows();
        let rows = row..row + segments.rows();
        sample_norm::add_tied(
            x.take_rows(head.clone()),
            dy.take_rows(head),
            &ids[rows.clone()],
            demb.take_rows(rows),
            segments,
            &mut squares.as_slice_mut()[first..][..segments.len()],
        );
    }

    fn segment_sums(&self, dy: &Tensor<F>, segments: &Segments) -> Tensor<F> {
        let mut sums = self.empty(segments.len(), dy.array.ncols());
        sample_norm::segment_sums(dy.view(), segments, sums.view_mut());
        sums
    }

    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Tensor<F>) {
        clip::factors(function, bound, squares.as_slice_mut());
    }

    fn scale_rows(&self, x: &mut Tensor<F>, segments: &Segments, factors: &Tensor<F>, first: usize) {
        clip::scale_rows(x.view_mut(), segments, &factors.as_slice()[first..][..segments.len()]);
    }

    fn drop_rows(&self, x: &mut Tensor<F>, segments: &Segments, factors: &Tensor<F>, first: usize) {
        clip::drop_rows(x.view_mut(), segments, &factors.as_slice()[first..][..segments.len()]);
    }
}
