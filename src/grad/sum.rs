//! The plain gradient: everything delivered is added up.

use crate::backend::Backend;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot};

/// The gradient summed over all rows, for the parameters asked for.
pub struct Sum<B: Backend> {
    grads: Vec<Option<B::Tensor>>,
}

impl<B: Backend> Sum<B> {
    /// Zeros for the parameters that `wants` names.
    pub fn new(b: &B, layout: &Layout, wants: impl Fn(ParamId) -> bool) -> Self {
        let zeros = |p: ParamId| {
            let (rows, cols) = layout.spec(p).matrix();
            b.zeros(rows, cols)
        };
        Self { grads: layout.ids().map(|p| wants(p).then(|| zeros(p))).collect() }
    }

    /// The gradient of `p`, if it was asked for.
    pub fn get(&self, p: ParamId) -> Option<&B::Tensor> {
        self.grads[p.0].as_ref()
    }

    /// All gradients in layout order.
    pub fn into_grads(self) -> Vec<Option<B::Tensor>> {
        self.grads
    }

    pub(super) fn grad(&mut self, p: ParamId) -> &mut B::Tensor {
        self.grads[p.0].as_mut().expect("only wanted parameters are delivered")
    }
}

impl<B: Backend> GradSink<B> for Sum<B> {
    fn wants(&self, p: ParamId) -> bool {
        self.grads[p.0].is_some()
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        b.add_outer(x.get(), dy.get(), 0..rows.segments.rows(), self.grad(p));
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        b.add_rows(ids, dy.get(), 0..rows.segments.rows(), self.grad(p));
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        b.add_columns(dy.get(), 0..rows.segments.rows(), self.grad(p));
    }
}
