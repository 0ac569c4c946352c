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

use super::scaled::times;
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

impl<B: Backend> GradSink<B> for Sketch<'_, B> {
    fn wants(&self, p: ParamId) -> bool {
        self.wants[p.0]
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        let dy = times(b, self.sketch.scale(p.0), dy);
        b.sketch_outer(self.sketch, p.0, x.get(), dy.get(), rows.segments, rows.samples.start, &mut self.sums);
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        let dy = times(b, self.sketch.scale(p.0), dy);
        b.sketch_rows(self.sketch, p.0, ids, dy.get(), rows.segments, rows.samples.start, &mut self.sums);
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        let dy = times(b, self.sketch.scale(p.0), dy);
        b.sketch_vector(self.sketch, p.0, dy.get(), rows.segments, rows.samples.start, &mut self.sums);
    }
}
