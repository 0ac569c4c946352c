//! Forward mode: the derivative of every row's loss along a direction in parameter space, in the memory of inference.
//!
//! Value and tangent walk through the decoder together; nothing is kept once a layer has been passed. Below the first
//! parameter with a tangent there is no tangent to carry, and only the value is computed.

use super::batch::Batch;
use super::config::{Mlp, Side};
use super::decoder::{Decoder, row_range};
use super::layout::Pair;
use super::sink::Tangents;
use crate::backend::Backend;

/// Rows of logits, and of their tangents, that exist at once.
const HEAD_ROWS: usize = 64;

impl<B: Backend> Decoder<B> {
    /// `d loss_i / d direction` for every row i (N x 1).
    pub fn jvp(&self, batch: &Batch, tangents: &impl Tangents<B>) -> B::Tensor {
        let (b, layout, config) = (&self.backend, &self.layout, &self.config);
        let (n, c) = (batch.rows(), config.width);
        let (mut x, embedded) = self.embed(&batch.ids, &batch.positions);
        let mut x_dot = b.zeros(n, c);
        tangents.gather(b, layout.tokens, &batch.ids, &mut x_dot);
        if let Some(positions) = layout.positions {
            tangents.gather(b, positions, &batch.positions, &mut x_dot);
        }
        if let (Some(pair), Some((x, stats))) = (layout.embedding_norm, &embedded) {
            x_dot = self.norm_dot(x, &x_dot, stats, pair, tangents);
        }
        drop(embedded);
        for (l, ids) in layout.blocks.iter().enumerate() {
            let (n1, n1_dot) = self.norm_jvp(&x, &x_dot, ids.norm_1, tangents);
            let (qkv, qkv_dot) = self.linears_jvp(n1, n1_dot, &ids.qkv, tangents);
            let (att, att_dot) = self.attend_jvp(l, qkv, qkv_dot, batch);
            let (out, out_dot) = self.linear_jvp(&att, &att_dot, ids.attn_out, tangents);
            drop((att, att_dot));
            b.add(&mut x, &out);
            b.add(&mut x_dot, &out_dot);
            drop((out, out_dot));
            let (n2, n2_dot) = self.norm_jvp(&x, &x_dot, ids.norm_2, tangents);
            let (h, h_dot) = self.linears_jvp(n2, n2_dot, &ids.mlp_in, tangents);
            let (a, a_dot) = self.activation_jvp(h, h_dot);
            let (out, out_dot) = self.linear_jvp(&a, &a_dot, ids.mlp_out, tangents);
            drop((a, a_dot));
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

    /// Attention and its tangent.
    fn attend_jvp(
        &self,
        l: usize,
        qkv: Vec<B::Tensor>,
        qkv_dot: Vec<B::Tensor>,
        batch: &Batch,
    ) -> (B::Tensor, B::Tensor) {
        let (b, config) = (&self.backend, &self.config);
        let scale = config.attention_scale(l);
        let (att, lse) = b.attention(&qkv[0], &batch.segments, config.heads, scale);
        let att_dot = b.attention_jvp(&qkv[0], &qkv_dot[0], &lse, &batch.segments, config.heads, scale);
        (att, att_dot)
    }

    /// The MLP's hidden layer and its tangent.
    fn activation_jvp(&self, h: Vec<B::Tensor>, mut h_dot: Vec<B::Tensor>) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        match self.config.mlp {
            Mlp::Plain(kind) => {
                let mut dot = h_dot.swap_remove(0);
                b.activation_backward(kind, &h[0], &mut dot);
                (b.activation(kind, &h[0]), dot)
            }
            Mlp::Gated { .. } => unreachable!("not yet"),
        }
    }

    fn norm_jvp(
        &self,
        x: &B::Tensor,
        x_dot: &B::Tensor,
        pair: Pair,
        tangents: &impl Tangents<B>,
    ) -> (B::Tensor, B::Tensor) {
        let (y, stats) = self.norm(x, pair);
        let y_dot = self.norm_dot(x, x_dot, &stats, pair, tangents);
        (y, y_dot)
    }

    fn norm_dot(
        &self,
        x: &B::Tensor,
        x_dot: &B::Tensor,
        stats: &B::Tensor,
        pair: Pair,
        tangents: &impl Tangents<B>,
    ) -> B::Tensor {
        let b = &self.backend;
        let gain_dot = tangents.vector(b, pair.weight);
        let bias_dot = pair.bias.and_then(|bias| tangents.vector(b, bias));
        b.norm_jvp(x, x_dot, stats, self.param(pair.weight), gain_dot.as_ref(), bias_dot.as_ref())
    }

    /// Several layers of one input.
    fn linears_jvp(
        &self,
        x: B::Tensor,
        x_dot: B::Tensor,
        pairs: &[Pair],
        tangents: &impl Tangents<B>,
    ) -> (Vec<B::Tensor>, Vec<B::Tensor>) {
        pairs.iter().map(|&pair| self.linear_jvp(&x, &x_dot, pair, tangents)).unzip()
    }

    fn linear_jvp(
        &self,
        x: &B::Tensor,
        x_dot: &B::Tensor,
        pair: Pair,
        tangents: &impl Tangents<B>,
    ) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        let mut y_dot = self.linear(x_dot, Pair { bias: None, ..pair });
        match self.config.linear_rows {
            Side::Input => tangents.matmul(b, pair.weight, x, &mut y_dot),
            Side::Output => tangents.head(b, pair.weight, x, &mut y_dot),
        }
        if let Some(v) = pair.bias.and_then(|bias| tangents.vector(b, bias)) {
            b.add_vector(&v, &mut y_dot);
        }
        (self.linear(x, pair), y_dot)
    }
}
