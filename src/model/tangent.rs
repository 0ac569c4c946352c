//! Forward mode: the derivative of every row's loss along a direction in parameter space, in the memory of inference.
//!
//! Value and tangent walk through the decoder together; nothing is kept once a layer has been passed. Below the first
//! parameter with a tangent there is no tangent to carry, and only the value is computed.

use super::batch::Batch;
use super::block::NormInput;
use super::config::{Mlp, Norm, Order};
use super::decoder::{Decoder, head_chunks};
use super::layout::{BlockIds, Pair, Place};
use super::scored::ScoredRows;
use super::sink::Tangents;
use crate::backend::Backend;
use crate::ops::{GateUp, Parts, Qkv};

/// Rows of logits, and of their tangents, that exist at once.
const HEAD_ROWS: usize = 64;

impl<B: Backend> Decoder<B> {
    /// `d loss_i / d direction` for every row i (N x 1).
    pub fn jvp(&self, batch: &Batch, tangents: &impl Tangents<B>) -> B::Tensor {
        self.backend.inside(|| self.jvp_by_ops(batch, tangents))
    }

    fn jvp_by_ops(&self, batch: &Batch, tangents: &impl Tangents<B>) -> B::Tensor {
        let (b, layout) = (&self.backend, &self.layout);
        let (scored, c) = (self.scored(batch), self.config.width);
        let lowest = layout.ids().filter(|&p| tangents.moves(p)).map(|p| layout.spec(p).place).min();
        let (mut x, embedded) = self.embed(&batch.ids, &batch.positions);
        // None as long as it is zero.
        let mut x_dot = (lowest == Some(Place::Embedding)).then(|| self.embed_dot(batch, &embedded, tangents));
        drop(embedded);
        let table = self.table(batch);
        for l in 0..self.config.layers {
            let top = self.top(l, &scored);
            if x_dot.is_none() && lowest != Some(Place::Block(l)) {
                x = self.block(l, x, &table, top, |_| false, |qkv| self.attend(l, qkv, batch)).0;
                continue;
            }
            let x_dot = x_dot.get_or_insert_with(|| b.zeros(batch.rows(), c));
            self.block_jvp(l, &mut x, x_dot, &table, top, batch, tangents);
        }
        let n = scored.segments().rows();
        let (h, h_dot) = self.norm_jvp(&x, &x_dot.unwrap_or_else(|| b.zeros(n, c)), layout.norm_f, tangents);
        drop(x);
        let mut losses_dot = b.zeros(n, 1);
        for (_, range) in head_chunks(scored.segments(), HEAD_ROWS) {
            for first in range.clone().step_by(HEAD_ROWS) {
                let rows = first..(first + HEAD_ROWS).min(range.end);
                let (h, h_dot) = (b.rows(&h, rows.clone()), b.rows(&h_dot, rows.clone()));
                let logits = b.head(&h, self.param(layout.head));
                let mut logits_dot = b.head(&h_dot, self.param(layout.head));
                tangents.head(b, layout.head, &h, &mut logits_dot);
                b.cross_entropy_jvp(&logits, &logits_dot, &scored.targets()[rows.clone()], &mut losses_dot, rows.start);
            }
        }
        scored.put(b, &losses_dot).unwrap_or(losses_dot)
    }

    /// The tangent of [`Decoder::embed`]; `embedded` is what that gave of its norm.
    fn embed_dot(&self, batch: &Batch, embedded: &Option<NormInput<B>>, tangents: &impl Tangents<B>) -> B::Tensor {
        let (b, layout) = (&self.backend, &self.layout);
        let mut x_dot = b.zeros(batch.rows(), self.config.width);
        tangents.gather(b, layout.tokens, &batch.ids, &mut x_dot);
        if let Some(positions) = layout.positions {
            tangents.gather(b, positions, &batch.positions, &mut x_dot);
        }
        match (layout.embedding_norm, embedded) {
            (Some(pair), Some((x, stats))) => self.norm_dot(x, &x_dot, stats, pair, tangents),
            _ => x_dot,
        }
    }

    /// Block `l`: its input and the input's tangent become those of its output, with `top` of the scored rows.
    #[allow(clippy::too_many_arguments)]
    fn block_jvp(
        &self,
        l: usize,
        x: &mut B::Tensor,
        x_dot: &mut B::Tensor,
        table: &Option<B::Tensor>,
        top: Option<&ScoredRows>,
        batch: &Batch,
        tangents: &impl Tangents<B>,
    ) {
        let (b, ids) = (&self.backend, &self.layout.blocks[l]);
        let (n1, n1_dot) = self.norm_jvp(x, x_dot, ids.norm_1, tangents);
        let (qkv, qkv_dot) = self.linears_jvp(n1, n1_dot, ids.qkv, tangents);
        let (qkv, qkv_dot) = self.norm_heads_jvp(ids, qkv, qkv_dot, tangents);
        let (mut att, mut att_dot) = self.attend_jvp(l, qkv, qkv_dot, table, batch);
        for x in [&mut att, &mut att_dot, x, x_dot] {
            if let Some(picked) = top.and_then(|top| top.pick(b, x)) {
                *x = picked;
            }
        }
        let (out, out_dot) = self.linear_jvp(&att, &att_dot, ids.attn_out, tangents);
        drop((att, att_dot));
        b.add(x, &out);
        b.add(x_dot, &out_dot);
        drop((out, out_dot));
        let (n2, n2_dot) = self.norm_jvp(x, x_dot, ids.norm_2, tangents);
        let (h, h_dot) = self.linears_jvp(n2, n2_dot, ids.mlp_in, tangents);
        let (a, a_dot) = self.activation_jvp(h, h_dot);
        let (out, out_dot) = self.linear_jvp(&a, &a_dot, ids.mlp_out, tangents);
        drop((a, a_dot));
        b.add(x, &out);
        b.add(x_dot, &out_dot);
    }

    /// [`Decoder::norm_heads`] and its tangent.
    fn norm_heads_jvp(
        &self,
        ids: &BlockIds,
        qkv: Qkv<B::Tensor>,
        qkv_dot: Qkv<B::Tensor>,
        tangents: &impl Tangents<B>,
    ) -> (Qkv<B::Tensor>, Qkv<B::Tensor>) {
        let b = &self.backend;
        let (qkv, heads) = self.norm_heads(ids, qkv);
        match (ids.head_norms, heads, qkv_dot) {
            (Some([query, key]), Some([q, k]), Parts::Split([q_dot, k_dot, v_dot])) => {
                let dot = |gain, (x, stats): NormInput<B>, x_dot: B::Tensor| {
                    let gain_dot = tangents.vector(b, gain);
                    b.rms_norm_jvp(&x, &x_dot, &stats, self.param(gain), gain_dot.as_ref())
                };
                (qkv, Parts::Split([dot(query, q, q_dot), dot(key, k, k_dot), v_dot]))
            }
            (_, _, qkv_dot) => (qkv, qkv_dot),
        }
    }

    /// Attention and its tangent.
    fn attend_jvp(
        &self,
        l: usize,
        mut qkv: Qkv<B::Tensor>,
        mut qkv_dot: Qkv<B::Tensor>,
        table: &Option<B::Tensor>,
        batch: &Batch,
    ) -> (B::Tensor, B::Tensor) {
        let (b, heads) = (&self.backend, self.config.attention(l));
        self.turn(&mut qkv, table, false);
        self.turn(&mut qkv_dot, table, false);
        let (att, lse) = b.attention(qkv.as_ref(), &batch.segments, &heads);
        let att_dot = b.attention_jvp(qkv.as_ref(), qkv_dot.as_ref(), &lse, &batch.segments, &heads);
        (att, att_dot)
    }

    /// The MLP's hidden layer and its tangent.
    fn activation_jvp(&self, h: GateUp<B::Tensor>, h_dot: GateUp<B::Tensor>) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        match (self.config.mlp, h, h_dot) {
            (Mlp::Plain(kind), Parts::Fused(h), Parts::Fused(mut dot)) => {
                b.activation_backward(kind, &h, &mut dot);
                (b.activation(kind, &h), dot)
            }
            (Mlp::Gated { activation, .. }, h, h_dot) => {
                (b.gated(activation, h.as_ref()), b.gated_jvp(activation, h.as_ref(), h_dot.as_ref()))
            }
            (Mlp::Plain(_), ..) => unreachable!("a plain MLP has one layer in"),
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
        let gain = self.param(pair.weight);
        match self.config.norm {
            Norm::Layer => b.norm_jvp(x, x_dot, stats, gain, gain_dot.as_ref(), bias_dot.as_ref()),
            Norm::Rms => b.rms_norm_jvp(x, x_dot, stats, gain, gain_dot.as_ref()),
        }
    }

    /// Several layers of one input.
    fn linears_jvp<const N: usize>(
        &self,
        x: B::Tensor,
        x_dot: B::Tensor,
        pairs: Parts<Pair, N>,
        tangents: &impl Tangents<B>,
    ) -> (Parts<B::Tensor, N>, Parts<B::Tensor, N>) {
        let both = pairs.map(|pair| self.linear_jvp(&x, &x_dot, pair, tangents));
        both.unzip()
    }

    fn linear_jvp(
        &self,
        x: &B::Tensor,
        x_dot: &B::Tensor,
        pair: Pair,
        tangents: &impl Tangents<B>,
    ) -> (B::Tensor, B::Tensor) {
        let b = &self.backend;
        // The layer is linear: in x_dot with the weights as they are, adapter included.
        let mut y_dot = self.linear(x_dot, Pair { bias: None, ..pair });
        if let Some([low, up]) = pair.adapter {
            let mut low_dot = b.zeros(b.shape(x).0, self.layout.spec(low).shape[0]);
            tangents.head(b, low, x, &mut low_dot);
            b.add(&mut y_dot, &b.linear(&self.scaled(&low_dot), self.param(up), Order::OutIn, None));
            tangents.head(b, up, &self.low(x, low), &mut y_dot);
        }
        match self.config.order {
            Order::InOut => tangents.matmul(b, pair.weight, x, &mut y_dot),
            Order::OutIn => tangents.head(b, pair.weight, x, &mut y_dot),
        }
        if let Some(v) = pair.bias.and_then(|bias| tangents.vector(b, bias)) {
            b.add_vector(&v, &mut y_dot);
        }
        (self.linear(x, pair), y_dot)
    }
}
