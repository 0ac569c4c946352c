//! Public scales on gradients: in front of any sink, every tensor's gradient times a number of its own.
//!
//! A delivery is linear in dy, so that whoever is behind sees `s_p g_p` in place of `g_p`: norms, ties, factors that are kept and their clipped sum are those of the
//! scaled gradient. `s dy` is rounded row by row, before a norm is taken of it: a bound on what is delivered is one on what is added up.

use crate::backend::Backend;
use crate::model::{GradSink, ParamId, Rows, Slot};

/// Hands on what it receives, times a scale for each tensor of the layout; as it is, where there are none.
pub struct Scaled<'a, S> {
    sink: &'a mut S,
    scales: Option<&'a [f32]>,
}

impl<'a, S> Scaled<'a, S> {
    /// In front of `sink`.
    pub fn new(sink: &'a mut S, scales: Option<&'a [f32]>) -> Self {
        Self { sink, scales }
    }

    fn times<'d, B: Backend>(&self, b: &B, p: ParamId, dy: Slot<'d, B>) -> Slot<'d, B> {
        times(b, self.scales.map(|scales| scales[p.0]), dy)
    }
}

/// `s dy`, or dy where there is no scale.
pub(super) fn times<'d, B: Backend>(b: &B, s: Option<f32>, dy: Slot<'d, B>) -> Slot<'d, B> {
    match s {
        None => dy,
        Some(s) => Slot::Given(b.scaled(dy.get(), s)),
    }
}

impl<B: Backend, S: GradSink<B>> GradSink<B> for Scaled<'_, S> {
    fn wants(&self, p: ParamId) -> bool {
        self.sink.wants(p)
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        let dy = self.times(b, p, dy);
        self.sink.outer(b, p, x, dy, rows);
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        let dy = self.times(b, p, dy);
        self.sink.rows(b, p, ids, dy, rows);
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        let dy = self.times(b, p, dy);
        self.sink.vector(b, p, dy, rows);
    }
}
