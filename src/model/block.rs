//! One block, forward and backward. Forward serves training, evaluation and decoding: they differ in what attends.

use super::batch::Batch;
use super::config::{Mlp, Side};
use super::decoder::{Decoder, all_rows};
use super::layout::{BlockIds, Pair, ParamId};
use super::sink::{GradSink, Rows, Slot};
use crate::backend::Backend;

/// What backward needs of one block's forward.
pub(super) struct BlockCache<B: Backend> {
    pub(super) x: B::Tensor,
    stats_1: B::Tensor,
    n1: Option<B::Tensor>,
    qkv: Vec<B::Tensor>,
    att: B::Tensor,
    lse: Option<B::Tensor>,
    mid: B::Tensor,
    stats_2: B::Tensor,
    n2: Option<B::Tensor>,
    h: Vec<B::Tensor>,
    a: Option<B::Tensor>,
}

impl<B: Backend> Decoder<B> {
    /// Block `l`: its output, and what backward needs of it for the parameters that are wanted. `attend` makes attention's output of
    /// queries, keys and values, and the log-sum-exp where backward may follow.
    pub(super) fn block(
        &self,
        l: usize,
        x: B::Tensor,
        wants: impl Fn(ParamId) -> bool,
        attend: impl FnOnce(&[B::Tensor]) -> (B::Tensor, Option<B::Tensor>),
    ) -> (B::Tensor, BlockCache<B>) {
        let (b, ids) = (&self.backend, &self.layout.blocks[l]);
        let any = |pairs: &[Pair]| pairs.iter().any(|pair| wants(pair.weight));
        let (n1, stats_1) = self.norm(&x, ids.norm_1);
        let qkv = self.linears(&n1, &ids.qkv);
        let n1 = any(&ids.qkv).then_some(n1);
        let (att, lse) = attend(&qkv);
        let mut mid = self.linear(&att, ids.attn_out);
        b.add(&mut mid, &x);
        let (n2, stats_2) = self.norm(&mid, ids.norm_2);
        let h = self.linears(&n2, &ids.mlp_in);
        let n2 = any(&ids.mlp_in).then_some(n2);
        let a = self.activation(&h);
        let mut y = self.linear(&a, ids.mlp_out);
        b.add(&mut y, &mid);
        let a = wants(ids.mlp_out.weight).then_some(a);
        (y, BlockCache { x, stats_1, n1, qkv, att, lse, mid, stats_2, n2, h, a })
    }

    /// Backward through block `l`; `dx` goes from the gradient of its output to that of its input. What only parameters further
    /// down would need is left out when `below` is false.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn block_backward(
        &self,
        l: usize,
        cache: BlockCache<B>,
        dx: &mut B::Tensor,
        below: bool,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let BlockIds { norm_1, qkv, attn_out, norm_2, mlp_in, mlp_out } = &self.layout.blocks[l];
        let BlockCache { x, stats_1, n1, qkv: qkv_out, att, lse, mid, stats_2, n2, h, a } = cache;
        let one = |pair: &Pair| pair.ids().any(wants);
        let any = |pairs: &[Pair]| pairs.iter().any(one);
        let rows = all_rows(batch);
        // What lies further down, from bottom to top.
        let from_norm_1 = below || one(norm_1);
        let from_qkv = from_norm_1 || any(qkv);
        let from_norm_2 = from_qkv || one(attn_out) || one(norm_2);
        let from_mlp_in = from_norm_2 || any(mlp_in);

        self.deliver_linear(*mlp_out, a.map(Slot::Given), Slot::Lent(dx), wants, sink, batch);
        if !from_mlp_in {
            return;
        }
        let da = self.linears_input(&[dx], &[*mlp_out]);
        let dh = self.activation_backward(h, da);
        let dn = from_norm_2.then(|| self.linears_input(&dh.iter().collect::<Vec<_>>(), mlp_in));
        self.deliver_linears(mlp_in, n2, dh, wants, sink, batch);
        let Some(dn) = dn else { return };
        self.norm_backward(dn, &mid, &stats_2, *norm_2, wants, dx, sink, &rows);
        drop(mid);

        if !from_qkv {
            return self.deliver_linear(*attn_out, Some(Slot::Given(att)), Slot::Lent(dx), wants, sink, batch);
        }
        let datt = self.linears_input(&[dx], &[*attn_out]);
        let lse = lse.expect("forward keeps it where backward follows");
        let dqkv = self.attend_backward(l, &datt, &att, &lse, &qkv_out, batch);
        drop((datt, qkv_out, lse));
        self.deliver_linear(*attn_out, Some(Slot::Given(att)), Slot::Lent(dx), wants, sink, batch);
        let dn = from_norm_1.then(|| self.linears_input(&dqkv.iter().collect::<Vec<_>>(), qkv));
        self.deliver_linears(qkv, n1, dqkv, wants, sink, batch);
        if let Some(dn) = dn {
            self.norm_backward(dn, &x, &stats_1, *norm_1, wants, dx, sink, &rows);
        }
    }

    /// Attention over the samples of a batch: output and log-sum-exp.
    pub(super) fn attend(&self, l: usize, qkv: &[B::Tensor], batch: &Batch) -> (B::Tensor, Option<B::Tensor>) {
        let scale = self.config.attention_scale(l);
        let (att, lse) = self.backend.attention(&qkv[0], &batch.segments, self.config.heads, scale);
        (att, Some(lse))
    }

    fn attend_backward(
        &self,
        l: usize,
        datt: &B::Tensor,
        att: &B::Tensor,
        lse: &B::Tensor,
        qkv: &[B::Tensor],
        batch: &Batch,
    ) -> Vec<B::Tensor> {
        let (heads, scale) = (self.config.heads, self.config.attention_scale(l));
        vec![self.backend.attention_backward(datt, att, lse, &qkv[0], &batch.segments, heads, scale)]
    }

    /// The MLP's hidden layer.
    fn activation(&self, h: &[B::Tensor]) -> B::Tensor {
        match self.config.mlp {
            Mlp::Plain(kind) => self.backend.activation(kind, &h[0]),
            Mlp::Gated { .. } => unreachable!("not yet"),
        }
    }

    /// Backward of [`Decoder::activation`].
    fn activation_backward(&self, h: Vec<B::Tensor>, mut da: B::Tensor) -> Vec<B::Tensor> {
        match self.config.mlp {
            Mlp::Plain(kind) => {
                self.backend.activation_backward(kind, &h[0], &mut da);
                vec![da]
            }
            Mlp::Gated { .. } => unreachable!("not yet"),
        }
    }

    /// `x W + bias` for each of several layers.
    fn linears(&self, x: &B::Tensor, pairs: &[Pair]) -> Vec<B::Tensor> {
        pairs.iter().map(|&pair| self.linear(x, pair)).collect()
    }

    /// `x W + bias`, or `x Wᵀ + bias` where a weight's rows are outputs.
    pub(super) fn linear(&self, x: &B::Tensor, pair: Pair) -> B::Tensor {
        let (b, weight, bias) = (&self.backend, self.param(pair.weight), pair.bias.map(|p| self.param(p)));
        match self.config.linear_rows {
            Side::Input => b.linear(x, weight, bias),
            Side::Output => {
                let mut y = b.head(x, weight);
                if let Some(bias) = bias {
                    b.add_vector(bias, &mut y);
                }
                y
            }
        }
    }

    /// Backward of layers of one input to that input: `sum of dy Wᵀ`, or `dy W` where a weight's rows are outputs.
    fn linears_input(&self, dys: &[&B::Tensor], pairs: &[Pair]) -> B::Tensor {
        let b = &self.backend;
        let one = |dy: &B::Tensor, pair: &Pair| {
            let weight = self.param(pair.weight);
            match self.config.linear_rows {
                Side::Input => b.linear_input(dy, weight),
                Side::Output => {
                    let mut dx = b.zeros(b.shape(dy).0, b.shape(weight).1);
                    b.head_input(dy, weight, &mut dx, 0);
                    dx
                }
            }
        };
        let mut dx = one(dys[0], &pairs[0]);
        for (dy, pair) in dys.iter().zip(pairs).skip(1) {
            b.add(&mut dx, &one(dy, pair));
        }
        dx
    }

    /// Hand the factors of several layers of one input to the sink.
    fn deliver_linears(
        &self,
        pairs: &[Pair],
        x: Option<B::Tensor>,
        dys: Vec<B::Tensor>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let (mut x, last) = (x, pairs.len() - 1);
        for (i, (&pair, dy)) in pairs.iter().zip(dys).enumerate() {
            let x = if i == last { x.take().map(Slot::Given) } else { x.as_ref().map(Slot::Lent) };
            self.deliver_linear(pair, x, Slot::Given(dy), wants, sink, batch);
        }
    }

    /// Hand a linear layer's factors to the sink: those of the gradient in the shape of its weight.
    fn deliver_linear(
        &self,
        pair: Pair,
        x: Option<Slot<B>>,
        dy: Slot<B>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let b = &self.backend;
        if let Some(bias) = pair.bias.filter(|&p| wants(p)) {
            sink.vector(b, bias, Slot::Lent(dy.get()), all_rows(batch));
        }
        if wants(pair.weight) {
            let x = x.expect("forward keeps the input of a wanted weight");
            let (x, dy) = match self.config.linear_rows {
                Side::Input => (x, dy),
                Side::Output => (dy, x),
            };
            sink.outer(b, pair.weight, x, dy, all_rows(batch));
        }
    }

    /// Backward through a norm, adding to `dx` and delivering gain and bias.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn norm_backward(
        &self,
        mut dy: B::Tensor,
        x: &B::Tensor,
        stats: &B::Tensor,
        pair: Pair,
        wants: &impl Fn(ParamId) -> bool,
        dx: &mut B::Tensor,
        sink: &mut impl GradSink<B>,
        rows: &Rows,
    ) {
        let b = &self.backend;
        let rows = || Rows { samples: rows.samples.clone(), segments: rows.segments };
        if let Some(bias) = pair.bias.filter(|&p| wants(p)) {
            sink.vector(b, bias, Slot::Lent(&dy), rows());
        }
        let dgain = wants(pair.weight);
        b.norm_backward(&mut dy, x, stats, self.param(pair.weight), dgain, dx);
        if dgain {
            sink.vector(b, pair.weight, Slot::Given(dy), rows());
        }
    }
}
