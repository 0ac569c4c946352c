//! Every sample's exact gradient norm from one backward, with the factors kept for the clipped sum.
//!
//! Per-sample gradients are never formed. A delivered pair (x, dy) yields the sample's squared norm at once
//! ([`crate::ops::sample_norm`]); the pair itself is kept, and when the norms of all parameters are known,
//! [`Norms::clipped_sum`] scales the rows of the narrower factor by their sample's clip factor and multiplies:
//! `sum_i f_i x_iᵀ dy_i = xᵀ (f ∘ dy)`. That is the product a plain backward would have formed, so clipping costs the norms
//! alone, and memory is set by the micro-batch.
//!
//! A parameter that is delivered twice has `|G + E|² = |G|² + |E|² + 2 <G, E>`. The last term is added when the second of
//! the two arrives, whichever that is.
//!
//! The factor that [`Clipping`](super::Clipping) makes of the norms bounds what [`Norms::clipped_sum`] adds for the sample *as it is computed*, roundings included
//! ([`crate::ops::sample_norm`] proves it). That a sum of many samples is rounded too, by some 1e-7 of its size, is no sample's own and not in
//! that bound.

use super::{Factors, Sum};
use crate::backend::Backend;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot};
use crate::ops::Segments;
use crate::ops::sample_norm::COLUMNS;
use std::ops::Range;

/// Receives one backward (with the loss weights of
/// [`Reduction::SampleSum`](crate::model::Reduction::SampleSum)) of one micro-batch.
pub struct Norms<B: Backend> {
    samples: usize,
    /// One row of [`COLUMNS`] a sample, for each wanted parameter.
    squares: Vec<Option<B::Tensor>>,
    kept: Vec<Delivery<B>>,
}

/// One delivery.
struct Delivery<B: Backend> {
    param: ParamId,
    samples: Range<usize>,
    segments: Segments,
    factors: Pair<B>,
}

enum Pair<B: Backend> {
    Outer {
        x: B::Tensor,
        dy: B::Tensor,
    },
    Rows {
        ids: Vec<u32>,
        dy: B::Tensor,
    },
    /// Already one row a sample.
    Vector {
        sums: B::Tensor,
    },
}

impl<B: Backend> Norms<B> {
    /// For `samples` samples and the parameters that `wants` names.
    pub fn new(b: &B, layout: &Layout, samples: usize, wants: impl Fn(ParamId) -> bool) -> Self {
        let squares = layout.ids().map(|p| wants(p).then(|| b.zeros(samples, COLUMNS))).collect();
        Self { samples, squares, kept: Vec::new() }
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Number of parameters of the layout, wanted or not.
    pub fn params(&self) -> usize {
        self.squares.len()
    }

    /// Every sample's squared norm of the gradient of `p`, if it was wanted, and what bounds its rounding: the
    /// [`COLUMNS`] of [`crate::ops::sample_norm`], one row a sample.
    pub fn squares(&self, p: ParamId) -> Option<&B::Tensor> {
        self.squares[p.0].as_ref()
    }

    /// `sum += sum over samples i of f_i g_i`. The sum may hold earlier micro-batches of the same logical batch.
    pub fn clipped_sum(self, b: &B, factors: &Factors<B>, sum: &mut Sum<B>) {
        b.inside(|| self.clipped_sum_by_ops(b, factors, sum));
    }

    fn clipped_sum_by_ops(self, b: &B, factors: &Factors<B>, sum: &mut Sum<B>) {
        for Delivery { param, samples, segments, factors: pair } in self.kept {
            let factors = factors.get(param).expect("factors of every wanted parameter");
            let rows = || Rows { samples: samples.clone(), segments: &segments };
            match pair {
                Pair::Outer { mut x, mut dy } => {
                    let x_is_narrower = b.shape(&x).1 < b.shape(&dy).1;
                    let (narrow, wide) = if x_is_narrower { (&mut x, &mut dy) } else { (&mut dy, &mut x) };
                    b.scale_rows(narrow, &segments, factors, samples.start);
                    b.drop_rows(wide, &segments, factors, samples.start);
                    sum.outer(b, param, Slot::Given(x), Slot::Given(dy), rows());
                }
                Pair::Rows { ids, mut dy } => {
                    b.scale_rows(&mut dy, &segments, factors, samples.start);
                    sum.rows(b, param, &ids, Slot::Given(dy), rows());
                }
                Pair::Vector { mut sums } => {
                    b.scale_rows(&mut sums, &segments, factors, samples.start);
                    sum.vector(b, param, Slot::Given(sums), rows());
                }
            }
        }
    }

    /// Add the inner products with what was delivered for the same parameter and samples before, and keep the delivery.
    fn keep(&mut self, b: &B, param: ParamId, samples: Range<usize>, segments: Segments, factors: Pair<B>) {
        let new = Delivery { param, samples, segments, factors };
        let squares = self.squares[param.0].as_mut().expect("only wanted parameters are delivered");
        for old in self.kept.iter().filter(|old| old.param == param) {
            let both = old.samples.start.max(new.samples.start)..old.samples.end.min(new.samples.end);
            if both.is_empty() {
                continue;
            }
            let (head, rows) = match (&old.factors, &new.factors) {
                (Pair::Outer { .. }, Pair::Rows { .. }) => (old, &new),
                (Pair::Rows { .. }, Pair::Outer { .. }) => (&new, old),
                // Leaving a term out would break the clip bound silently.
                _ => panic!("a decoder uses a parameter twice only as embedding and output head"),
            };
            let (Pair::Outer { x, dy }, Pair::Rows { ids, dy: demb }) = (&head.factors, &rows.factors) else {
                unreachable!("told apart above")
            };
            let within = |kept: &Delivery<B>| both.start - kept.samples.start..both.end - kept.samples.start;
            // The head's rows are those with a target, the embedding's are all.
            let segments = [head, rows].map(|kept| kept.segments.slice(within(kept)));
            let row_of = |kept: &Delivery<B>| kept.segments.offsets()[within(kept).start];
            b.add_tied_squares(
                (x, dy, row_of(head), &segments[0]),
                (ids, demb, row_of(rows), &segments[1]),
                squares,
                both.start,
            );
        }
        self.kept.push(new);
    }

    fn squares_of(&mut self, p: ParamId) -> &mut B::Tensor {
        self.squares[p.0].as_mut().expect("only wanted parameters are delivered")
    }
}

impl<B: Backend> GradSink<B> for Norms<B> {
    fn wants(&self, p: ParamId) -> bool {
        self.squares[p.0].is_some()
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        b.add_outer_squares(x.get(), dy.get(), rows.segments, self.squares_of(p), rows.samples.start);
        let factors = Pair::Outer { x: x.take(b), dy: dy.take(b) };
        self.keep(b, p, rows.samples, rows.segments.clone(), factors);
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        b.add_row_squares(ids, dy.get(), rows.segments, self.squares_of(p), rows.samples.start);
        let factors = Pair::Rows { ids: ids.to_vec(), dy: dy.take(b) };
        self.keep(b, p, rows.samples, rows.segments.clone(), factors);
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        let sums = b.segment_sums(dy.get(), rows.segments);
        // One row a sample: the norm of an embedding's only row.
        let ones = Segments::from_lengths(rows.samples.clone().map(|_| 1));
        b.add_row_squares(&vec![0; ones.len()], &sums, &ones, self.squares_of(p), rows.samples.start);
        self.keep(b, p, rows.samples, ones, Pair::Vector { sums });
    }
}
