//! Every sample's gradient norm, and clipping.

use super::Memory;
use crate::ops::Segments;
use crate::ops::clip::ClipFunction;

/// What the per-sample methods compute from a gradient's factors. `squares` (but of `add_norm_bounds` and `clip_factors`, where it is a column) has the columns of
/// [`crate::ops::sample_norm`], `factors` is a column, each with one row a sample of the batch; `first` is the row of the first segment.
pub trait SampleNorms: Memory {
    /// [`crate::ops::sample_norm::add_outer`], into rows `first..` of `squares`.
    fn add_outer_squares(
        &self,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        segments: &Segments,
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::add_rows`], into rows `first..` of `squares`.
    fn add_row_squares(
        &self,
        ids: &[u32],
        dy: &Self::Tensor,
        segments: &Segments,
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::add_tied`], into rows `first..` of `squares`. The rows of `head`'s segments lie from row `head.2` on in
    /// its x and dy, and those of `rows` from row `rows.2` on in its ids and rows.
    fn add_tied_squares(
        &self,
        head: (&Self::Tensor, &Self::Tensor, usize, &Segments),
        rows: (&[u32], &Self::Tensor, usize, &Segments),
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::segment_sums`].
    fn segment_sums(&self, dy: &Self::Tensor, segments: &Segments) -> Self::Tensor;
    /// [`crate::ops::clip::bounds`] of a parameter's norms, added to a column of squares.
    fn add_norm_bounds(&self, norms: &Self::Tensor, squares: &mut Self::Tensor);
    /// [`crate::ops::clip::factors`].
    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Self::Tensor);
    /// [`crate::ops::clip::scale_rows`] with rows `first..` of `factors`.
    fn scale_rows(&self, x: &mut Self::Tensor, segments: &Segments, factors: &Self::Tensor, first: usize);
    /// [`crate::ops::clip::drop_rows`] with rows `first..` of `factors`.
    fn drop_rows(&self, x: &mut Self::Tensor, segments: &Segments, factors: &Self::Tensor, first: usize);
}
