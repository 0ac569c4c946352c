//! Tangents that are given as tensors.

use crate::backend::Backend;
use crate::model::{ParamId, Tangents};

/// A direction held in memory, one tensor a parameter; `None` is zero.
pub struct TensorTangents<B: Backend>(pub Vec<Option<B::Tensor>>);

impl<B: Backend> Tangents<B> for TensorTangents<B> {
    fn moves(&self, p: ParamId) -> bool {
        self.0[p.0].is_some()
    }

    fn vector(&self, b: &B, p: ParamId) -> Option<B::Tensor> {
        self.0[p.0].as_ref().map(|u| b.rows(u, 0..1))
    }

    fn matmul(&self, b: &B, p: ParamId, x: &B::Tensor, y: &mut B::Tensor) {
        if let Some(u) = &self.0[p.0] {
            b.add_matmul(x, 0, u, y);
        }
    }

    fn gather(&self, b: &B, p: ParamId, ids: &[u32], y: &mut B::Tensor) {
        if let Some(u) = &self.0[p.0] {
            b.add_gather(ids, u, y);
        }
    }

    fn head(&self, b: &B, p: ParamId, h: &B::Tensor, y: &mut B::Tensor) {
        if let Some(u) = &self.0[p.0] {
            b.add_head(h, u, y, 0);
        }
    }
}
