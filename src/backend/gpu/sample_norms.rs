//! [`SampleNorms`] on the GPU.

use super::{Gpu, Tensor, clip};
use crate::backend::SampleNorms;
use crate::ops::Segments;
use crate::ops::clip::ClipFunction;

impl SampleNorms for Gpu {
    fn add_outer_squares(&self, x: &Tensor, dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        clip::outer(&self.context, x, dy, segments, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        clip::rows(&self.context, ids, dy, segments, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn add_tied_squares(
        &self,
        head: (&Tensor, &Tensor, usize, &Segments),
        rows: (&[u32], &Tensor, usize, &Segments),
        squares: &mut Tensor,
        first: usize,
    ) {
        clip::tied(&self.context, head, rows, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn segment_sums(&self, dy: &Tensor, segments: &Segments) -> Tensor {
        let sums = self.empty(segments.len(), dy.cols);
        clip::segment_sums(&self.context, dy, segments, &sums, &|rows, cols| self.empty(rows, cols));
        sums
    }

    fn add_norm_bounds(&self, norms: &Tensor, squares: &mut Tensor) {
        clip::bounds(&self.context, norms, squares);
    }

    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Tensor) {
        clip::factors(&self.context, function, bound, squares);
    }

    fn scale_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip::clip_rows(&self.context, x, segments, factors, first, true);
    }

    fn drop_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip::clip_rows(&self.context, x, segments, factors, first, false);
    }
}
