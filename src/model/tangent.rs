//! Forward mode: the derivative of every row's loss along a direction in parameter space, in the memory of inference.
//!
//! Value and tangent walk through the decoder together; nothing is kept once a layer has been passed. Below the first
//! parameter with a tangent there is no tangent to carry, and only the value is computed.

use super::batch::Batch;
use super::decoder::{Decoder, row_range};
use super::layout::ParamId;
use super::sink::Tangents;
use crate::backend::Backend;
use crate::ops::{Order, Qkv};

/// Rows of logits, and of their tangents, that exist at once.
const HEAD_ROWS: usize = 64;

impl<B: Backend> Decoder<B> {
    /// `d loss_i / d direction` for every row i (N x 1).
    pub fn jvp(&self, batch: &Batch, tangents: &impl Tangents<B>) -> B::Tensor {
        let (b, layout, config) = (&self.backend, &self.layout, &self.config);
        let (n, c) = (batch.rows(), config.width);
        let mut x =
            b.embed(&batch.ids, self.param(layout.tokens), Some((&batch.positions, self.param(layout.positions))));
        let mut x_dot = b.zeros(n, c);
        tangents.gather(b, layout.tokens, &batch.ids, &mut x_dot);
        tangents.gather(b, layout.positions, &batch.positions, &mut x_dot);
        for (l, ids) in layout.blocks.iter().enumerate() {
            let (n1, n1_dot) = self.norm_jvp(&x, &x_dot, ids.norm_1, tangents);
            let (qkv, qkv_dot) = self.linear_jvp(n1, n1_dot, ids.qkv, tangents);
            let heads = config.attention(l);
            let (att, lse) = b.attention(Qkv::Fused(&qkv), &batch.segments, &heads);
            let (x_qkv, x_qkv_dot) = (Qkv::Fused(&qkv), Qkv::Fused(&qkv_dot));
            let att_dot = b.attention_jvp(x_qkv, x_qkv_dot, &lse, &batch.segments, &heads);
            drop((qkv, qkv_dot, lse));
            let (out, out_dot) = self.linear_jvp(att, att_dot, ids.attn_out, tangents);
            b.add(&mut x, &out);
            b.add(&mut x_dot, &out_dot);
            drop((out, out_dot));
            let (n2, n2_dot) = self.norm_jvp(&x, &x_dot, ids.norm_2, tangents);
            let (h, mut h_dot) = self.linear_jvp(n2, n2_dot, ids.mlp_in, tangents);
            b.activation_backward(config.activation, &h, &mut h_dot);
            let a = b.activation(config.activation, &h);
            drop(h);
            let (out, out_dot) = self.linear_jvp(a, h_dot, ids.mlp_out, tangents);
            b.add(&mut x, &out);
            b.add(&mut x_dot, &out_dot);
        }
        let (h, h_dot) = self.norm_jvp(&x, &x_dot, layout.norm_f, tangents);
        drop((x, x_dot));
        let mut losses_dot = b.zeros(n, 1);
        for samples in batch.segments.chunks(HEAD_ROWS) {
            let range = row_range(&batch.segments, &samples);
            for first in range.clone().step_by(HEAD_ROWS) {
                let rows = first..(first + HEAD_ROWS).min(range.end);
                let (h, h_dot) = (b.rows(&h, rows.clone()), b.rows(&h_dot, rows.clone()));
                let logits = b.head(&h, self.param(layout.head));
                let mut logits_dot = b.head(&h_dot, self.param(layout.head));
                tangents.head(b, layout.head, &h, &mut logits_dot);
                b.cross_entropy_jvp(&logits, &logits_dot, &batch.targets[rows.clone()], &mut losses_dot, rows.start);
            }
        }
        losses_dot
    }

    fn norm_jvp(
        &self,
        x: &B::Tensor,
        x_dot: &B::Tensor,
        (gain, bias): (ParamId, ParamId),
        tangents: &impl Tangents<B>,
    ) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        let (y, stats) = self.norm(x, (gain, bias));
        let (gain_dot, bias_dot) = (tangents.vector(b, gain), tangents.vector(b, bias));
        let y_dot = b.norm_jvp(x, x_dot, &stats, self.param(gain), gain_dot.as_ref(), bias_dot.as_ref());
        (y, y_dot)
    }

    fn linear_jvp(
        &self,
        x: B::Tensor,
        x_dot: B::Tensor,
        (weight, bias): (ParamId, ParamId),
        tangents: &impl Tangents<B>,
    ) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        let mut y_dot = b.linear(&x_dot, self.param(weight), Order::InOut, None);
        drop(x_dot);
        tangents.matmul(b, weight, &x, &mut y_dot);
        if let Some(v) = tangents.vector(b, bias) {
            b.add_vector(&v, &mut y_dot);
        }
        (self.linear(&x, (weight, bias)), y_dot)
    }
}
