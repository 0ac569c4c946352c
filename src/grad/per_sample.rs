//! Every sample's gradient on its own: as much memory as samples times parameters, and nothing clever, so that it can be
//! trusted to judge what is.

use super::Sum;
use crate::backend::Backend;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot};

/// One [`Sum`] a sample.
pub struct PerSample<B: Backend> {
    samples: Vec<Sum<B>>,
}

impl<B: Backend> PerSample<B> {
    /// Zeros for all parameters of `samples` samples.
    pub fn new(b: &B, layout: &Layout, samples: usize) -> Self {
        Self { samples: (0..samples).map(|_| Sum::new(b, layout, |_| true)).collect() }
    }

    /// Sample `i`'s gradient.
    pub fn sample(&self, i: usize) -> &Sum<B> {
        &self.samples[i]
    }

    /// Run `f(gradient, rows)` for each sample delivered.
    fn each(&mut self, p: ParamId, rows: &Rows, f: impl Fn(std::ops::Range<usize>, &mut B::Tensor)) {
        for (i, range) in rows.samples.clone().zip(rows.segments.iter()) {
            f(range, self.samples[i].grad(p));
        }
    }
}

impl<B: Backend> GradSink<B> for PerSample<B> {
    fn wants(&self, _: ParamId) -> bool {
        true
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        self.each(p, &rows, |range, grad| b.add_outer(x.get(), dy.get(), range, grad));
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        self.each(p, &rows, |range, grad| b.add_rows(ids, dy.get(), range, grad));
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        self.each(p, &rows, |range, grad| b.add_columns(dy.get(), range, grad));
    }
}
