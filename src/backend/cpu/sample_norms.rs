//! [`SampleNorms`] on the CPU.

use super::{Cpu, Tensor};
use crate::backend::SampleNorms;
use crate::kernel::Real;
use crate::ops::Segments;
use crate::ops::clip::{self, ClipFunction};
use crate::ops::sample_norm::{self, COLUMNS};

/// The rows of [`sample_norm`]'s numbers that belong to `segments`, from row `first` on.
fn rows_of<'a, F: Real>(norms: &'a mut Tensor<F>, first: usize, segments: &Segments) -> &'a mut [F] {
    assert_eq!(norms.array.ncols(), COLUMNS, "the columns of a sample's norms");
    &mut norms.as_slice_mut()[first * COLUMNS..][..segments.len() * COLUMNS]
}

impl<F: Real> SampleNorms for Cpu<F> {
    fn add_outer_squares(
        &self,
        x: &Tensor<F>,
        dy: &Tensor<F>,
        segments: &Segments,
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        sample_norm::add_outer(x.view(), dy.view(), segments, rows_of(squares, first, segments));
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor<F>, segments: &Segments, squares: &mut Tensor<F>, first: usize) {
        sample_norm::add_rows(ids, dy.view(), segments, rows_of(squares, first, segments));
    }

    fn add_tied_squares(
        &self,
        (x, dy, head_row, head_segments): (&Tensor<F>, &Tensor<F>, usize, &Segments),
        (ids, demb, row, segments): (&[u32], &Tensor<F>, usize, &Segments),
        squares: &mut Tensor<F>,
        first: usize,
    ) {
        let head = head_row..head_row + head_segments.rows();
        let rows = row..row + segments.rows();
        sample_norm::add_tied(
            (x.take_rows(head.clone()), dy.take_rows(head), head_segments),
            (&ids[rows.clone()], demb.take_rows(rows), segments),
            rows_of(squares, first, segments),
        );
    }

    fn segment_sums(&self, dy: &Tensor<F>, segments: &Segments) -> Tensor<F> {
        let mut sums = self.empty(segments.len(), dy.array.ncols());
        sample_norm::segment_sums(dy.view(), segments, sums.view_mut());
        sums
    }

    fn add_norm_bounds(&self, norms: &Tensor<F>, squares: &mut Tensor<F>) {
        clip::bounds(norms.as_slice(), squares.as_slice_mut());
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
