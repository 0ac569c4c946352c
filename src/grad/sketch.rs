//! `v_i = U g_i` for every sample of a micro-batch: the gradient of each, as FERRET-k's public sketch sees it, without forming it.
//!
//! The step's [`StepSketch`] is drawn before any data is touched. This sink takes the factors of one backward (with the loss weights of
//! [`Reduction::SampleSum`](crate::model::Reduction::SampleSum)) and leaves k numbers a sample:
//!
//! ```text
//! let sketch = StepSketch::new(seed, step, kind, k, &shapes(&layout));
//! for each micro-batch:
//!     let mut sink = Sketch::new(&backend, &layout, &sketch, samples, |p| tuned(p));
//!     decoder.backward(&batch, &weights, &mut sink);
//!     for mut v in sink.finish(&backend)? { ops::sketch::clip(function, C, &mut v); sum += v }
//! release b = sign(sum + noise); then weights -= eta / sqrt(d) sketch.pullback(&b)
//! ```
//!
//! Deliveries of a tied parameter share its buckets, signs and scale, and add up. How they are added up is the backend's
//! ([`Sketches`](crate::backend::Sketches)).

use crate::backend::Backend;
use crate::error::Result;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot};
use crate::rng::StepSketch;

/// The (rows, columns) of every tensor, in the layout's order: what [`StepSketch::new`] asks for.
pub fn shapes(layout: &Layout) -> Vec<(usize, usize)> {
    layout.ids().map(|p| layout.spec(p).matrix()).collect()
}

/// Receives one backward of one micro-batch.
pub struct Sketch<'a, B: Backend> {
    sketch: &'a StepSketch,
    wants: Vec<bool>,
    sums: B::Sums,
}

impl<'a, B: Backend> Sketch<'a, B> {
    /// For `samples` samples and the parameters that `wants` names; `sketch` has the shapes of `layout`, at least of these.
    pub fn new(
        b: &B,
        layout: &Layout,
        sketch: &'a StepSketch,
        samples: usize,
        wants: impl Fn(ParamId) -> bool,
    ) -> Self {
        Self { sketch, wants: layout.ids().map(wants).collect(), sums: b.sketch_sums(sketch, samples) }
    }

    /// Every sample's v, in order.
    pub fn finish(self, b: &B) -> Result<Vec<Vec<f64>>> {
        b.sketches(self.sketch, self.sums)
    }
}

/// dy times the scale that U has for `p`: what a tensor delivers is linear in it.
fn scaled<'d, B: Backend>(b: &B, sketch: &StepSketch, p: ParamId, dy: &'d B::Tensor) -> Scaled<'d, B::Tensor> {
    match sketch.scale(p.0) {
        None => Scaled::Own(dy),
        Some(s) => Scaled::Times(b.scaled(dy, s)),
    }
}

/// A tensor as it was delivered, or a multiple of it.
enum Scaled<'d, T> {
    Own(&'d T),
    Times(T),
}

impl<T> std::ops::Deref for Scaled<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(dy) => dy,
            Self::Times(dy) => dy,
        }
    }
}

impl<B: Backend> GradSink<B> for Sketch<'_, B> {
    fn wants(&self, p: ParamId) -> bool {
        self.wants[p.0]
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        let dy = scaled(b, self.sketch, p, dy.get());
        b.sketch_outer(self.sketch, p.0, x.get(), &dy, rows.segments, rows.samples.start, &mut self.sums);
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        let dy = scaled(b, self.sketch, p, dy.get());
        b.sketch_rows(self.sketch, p.0, ids, &dy, rows.segments, rows.samples.start, &mut self.sums);
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        let dy = scaled(b, self.sketch, p, dy.get());
        b.sketch_vector(self.sketch, p.0, &dy, rows.segments, rows.samples.start, &mut self.sums);
    }
}
