//! One block, forward and backward. Forward serves training, evaluation and decoding: they differ in what attends.

use super::batch::Batch;
use super::config::{Mlp, Norm, Order};
use super::decoder::{Decoder, all_rows};
use super::layout::{BlockIds, Pair, ParamId};
use super::scored::ScoredRows;
use super::sink::{GradSink, Rows, Slot};
use crate::backend::Backend;
use crate::ops::{GateUp, Parts, Qkv};

/// What backward needs of one block's forward.
pub(super) struct BlockCache<B: Backend> {
    pub(super) x: B::Tensor,
    stats_1: B::Tensor,
    n1: Option<B::Tensor>,
    /// As attention sees them: normalised and turned where they are.
    qkv: Qkv<B::Tensor>,
    heads: Option<[NormInput<B>; 2]>,
    att: B::Tensor,
    lse: Option<B::Tensor>,
    /// From here on, in the last block, of the scored rows.
    mid: B::Tensor,
    stats_2: B::Tensor,
    n2: Option<B::Tensor>,
    h: GateUp<B::Tensor>,
    a: Option<B::Tensor>,
}

/// A norm's input and statistics.
pub(super) type NormInput<B> = (<B as crate::backend::Memory>::Tensor, <B as crate::backend::Memory>::Tensor);

impl<B: Backend> Decoder<B> {
    /// Block `l`: its output, and what backward needs of it for the parameters that are wanted. `table` says what rows turn by, and
    /// `attend` makes attention's output of queries, keys and values, and the log-sum-exp where backward may follow. With `top` the output
    /// has the scored rows alone.
    pub(super) fn block(
        &self,
        l: usize,
        x: B::Tensor,
        table: &Option<B::Tensor>,
        top: Option<&ScoredRows>,
        wants: impl Fn(ParamId) -> bool,
        attend: impl FnOnce(Qkv<&B::Tensor>) -> (B::Tensor, Option<B::Tensor>),
    ) -> (B::Tensor, BlockCache<B>) {
        let (b, ids) = (&self.backend, &self.layout.blocks[l]);
        let (n1, stats_1) = self.norm(&x, ids.norm_1);
        let (mut qkv, heads) = self.norm_heads(ids, self.linears(&n1, ids.qkv));
        let n1 = ids.qkv.iter().any(|pair| pair.products().any(&wants)).then_some(n1);
        self.turn(&mut qkv, table, false);
        let (att, lse) = attend(qkv.as_ref());
        let pick = |x: &B::Tensor| top.and_then(|top| top.pick(b, x));
        let mut mid = self.linear(pick(&att).as_ref().unwrap_or(&att), ids.attn_out);
        b.add(&mut mid, pick(&x).as_ref().unwrap_or(&x));
        let (n2, stats_2) = self.norm(&mid, ids.norm_2);
        let h = self.linears(&n2, ids.mlp_in);
        let n2 = ids.mlp_in.iter().any(|pair| pair.products().any(&wants)).then_some(n2);
        let a = self.activation(h.as_ref());
        let mut y = self.linear(&a, ids.mlp_out);
        b.add(&mut y, &mid);
        let a = ids.mlp_out.products().any(&wants).then_some(a);
        (y, BlockCache { x, stats_1, n1, qkv, heads, att, lse, mid, stats_2, n2, h, a })
    }

    /// Backward through block `l`; `dx` goes from the gradient of its output, with `top` of the scored rows, to that of its input. What only parameters further
    /// down would need is left out when `below` is false.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn block_backward(
        &self,
        l: usize,
        cache: BlockCache<B>,
        dx: &mut B::Tensor,
        below: bool,
        table: &Option<B::Tensor>,
        top: Option<&ScoredRows>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let b = &self.backend;
        let BlockIds { norm_1, qkv, head_norms, attn_out, norm_2, mlp_in, mlp_out } = self.layout.blocks[l];
        let BlockCache { x, stats_1, n1, qkv: qkv_out, heads, att, lse, mid, stats_2, n2, h, a } = cache;
        let one = |pair: &Pair| pair.ids().any(wants);
        let (rows, top_rows) = (all_rows(batch), top.map_or_else(|| all_rows(batch), ScoredRows::rows));
        // What lies further down, from bottom to top.
        let from_norm_1 = below || one(&norm_1);
        let from_qkv = from_norm_1 || qkv.iter().any(one);
        let from_heads = from_qkv || head_norms.is_some_and(|gains| gains.into_iter().any(wants));
        let from_norm_2 = from_heads || one(&attn_out) || one(&norm_2);
        let from_mlp_in = from_norm_2 || mlp_in.iter().any(one);

        self.deliver_linear(mlp_out, a.map(Slot::Given), Slot::Lent(dx), wants, sink, &top_rows);
        if !from_mlp_in {
            return;
        }
        let da = self.linear_input(dx, mlp_out);
        let dh = self.activation_backward(h, da);
        let dn = from_norm_2.then(|| self.linears_input(dh.as_ref(), mlp_in));
        self.deliver_linears(mlp_in, n2, dh, wants, sink, &top_rows);
        let Some(dn) = dn else { return };
        self.norm_backward(dn, &mid, &stats_2, norm_2, wants, dx, sink, &top_rows);
        drop(mid);

        let att_top = top.and_then(|top| top.pick(b, &att));
        if !from_heads {
            let att = Slot::Given(att_top.unwrap_or(att));
            return self.deliver_linear(attn_out, Some(att), Slot::Lent(dx), wants, sink, &top_rows);
        }
        let put = |x: &B::Tensor| top.and_then(|top| top.put(b, x));
        let datt = self.linear_input(dx, attn_out);
        let datt = put(&datt).unwrap_or(datt);
        let lse = lse.expect("forward keeps it where backward follows");
        let config = self.config.attention(l);
        let mut dqkv = b.attention_backward(&datt, &att, &lse, qkv_out.as_ref(), &batch.segments, &config);
        drop((datt, qkv_out, lse));
        self.turn(&mut dqkv, table, true);
        let att = Slot::Given(att_top.unwrap_or(att));
        self.deliver_linear(attn_out, Some(att), Slot::Lent(dx), wants, sink, &top_rows);
        if let Some(all) = put(dx) {
            *dx = all;
        }
        if let (Some(gains), Some(heads)) = (head_norms, heads) {
            dqkv = self.norm_heads_backward(gains, heads, dqkv, wants, sink, batch);
        }
        let dn = from_norm_1.then(|| self.linears_input(dqkv.as_ref(), qkv));
        self.deliver_linears(qkv, n1, dqkv, wants, sink, &rows);
        if let Some(dn) = dn {
            self.norm_backward(dn, &x, &stats_1, norm_1, wants, dx, sink, &rows);
        }
    }

    /// Attention over the samples of a batch: output and log-sum-exp.
    pub(super) fn attend(&self, l: usize, qkv: Qkv<&B::Tensor>, batch: &Batch) -> (B::Tensor, Option<B::Tensor>) {
        let (att, lse) = self.backend.attention(qkv, &batch.segments, &self.config.attention(l));
        (att, Some(lse))
    }

    /// Turn queries and keys by what `table` says of their rows; gradients the other way, `back`.
    pub(super) fn turn(&self, qkv: &mut Qkv<B::Tensor>, table: &Option<B::Tensor>, back: bool) {
        let (b, c) = (&self.backend, &self.config);
        let Some(table) = table else { return };
        match qkv {
            // Keys follow queries: one run of heads.
            Parts::Fused(x) => b.rope(x, 0, c.heads + c.kv_heads, c.head_width, table, back),
            Parts::Split([q, k, _]) => {
                b.rope(q, 0, c.heads, c.head_width, table, back);
                b.rope(k, 0, c.kv_heads, c.head_width, table, back);
            }
        }
    }

    /// Normalise the heads of queries and keys, where the block does so; what they were, and the statistics.
    pub(super) fn norm_heads(
        &self,
        ids: &BlockIds,
        qkv: Qkv<B::Tensor>,
    ) -> (Qkv<B::Tensor>, Option<[NormInput<B>; 2]>) {
        let Some([query, key]) = ids.head_norms else { return (qkv, None) };
        let Parts::Split([q, k, v]) = qkv else { unreachable!("heads that are normalised are stored apart") };
        let norm = |x: &B::Tensor, gain| self.backend.rms_norm(x, self.param(gain), self.config.norm_epsilon);
        let ((q_out, q_stats), (k_out, k_stats)) = (norm(&q, query), norm(&k, key));
        (Parts::Split([q_out, k_out, v]), Some([(q, q_stats), (k, k_stats)]))
    }

    /// Backward of [`Decoder::norm_heads`]. The heads share a gain, so its gradient's rows are sums over them.
    fn norm_heads_backward(
        &self,
        gains: [ParamId; 2],
        heads: [NormInput<B>; 2],
        dqkv: Qkv<B::Tensor>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) -> Qkv<B::Tensor> {
        let b = &self.backend;
        let Parts::Split([dq, dk, dv]) = dqkv else { unreachable!("heads that are normalised are stored apart") };
        let mut one = |gain: ParamId, (x, stats): &NormInput<B>, mut dy: B::Tensor| {
            let (rows, cols) = b.shape(x);
            let mut dx = b.zeros(rows, cols);
            b.rms_norm_backward(&mut dy, x, stats, self.param(gain), wants(gain), &mut dx);
            if wants(gain) {
                sink.vector(b, gain, Slot::Given(b.fold(&dy, self.config.head_width)), all_rows(batch));
            }
            dx
        };
        let dq = one(gains[0], &heads[0], dq);
        let dk = one(gains[1], &heads[1], dk);
        Parts::Split([dq, dk, dv])
    }

    /// The MLP's hidden layer.
    fn activation(&self, h: GateUp<&B::Tensor>) -> B::Tensor {
        match (self.config.mlp, h) {
            (Mlp::Plain(kind), Parts::Fused(h)) => self.backend.activation(kind, h),
            (Mlp::Gated { activation, .. }, h) => self.backend.gated(activation, h),
            (Mlp::Plain(_), Parts::Split(_)) => unreachable!("a plain MLP has one layer in"),
        }
    }

    /// Backward of [`Decoder::activation`].
    fn activation_backward(&self, h: GateUp<B::Tensor>, mut da: B::Tensor) -> GateUp<B::Tensor> {
        match (self.config.mlp, h) {
            (Mlp::Plain(kind), Parts::Fused(h)) => {
                self.backend.activation_backward(kind, &h, &mut da);
                Parts::Fused(da)
            }
            (Mlp::Gated { activation, .. }, h) => self.backend.gated_backward(activation, h.as_ref(), &da),
            (Mlp::Plain(_), Parts::Split(_)) => unreachable!("a plain MLP has one layer in"),
        }
    }

    /// `x W + bias`, and what an adapter adds.
    pub(super) fn linear(&self, x: &B::Tensor, pair: Pair) -> B::Tensor {
        let bias = pair.bias.map(|p| self.param(p));
        let mut y = self.backend.linear(x, self.param(pair.weight), self.config.order, bias);
        self.add_low(x, pair, &mut y);
        y
    }

    /// [`Decoder::linear`] by layers of one input.
    fn linears<const N: usize>(&self, x: &B::Tensor, pairs: Parts<Pair, N>) -> Parts<B::Tensor, N> {
        match pairs {
            Parts::Fused(pair) => Parts::Fused(self.linear(x, pair)),
            Parts::Split(pairs) => {
                let layers = pairs.map(|pair| (self.param(pair.weight), pair.bias.map(|p| self.param(p))));
                let mut ys = self.backend.linears(x, layers, self.config.order);
                ys.iter_mut().zip(pairs).for_each(|(y, pair)| self.add_low(x, pair, y));
                Parts::Split(ys)
            }
        }
    }

    /// `y += s x Aᵀ Bᵀ`: what an adapter adds.
    fn add_low(&self, x: &B::Tensor, pair: Pair, y: &mut B::Tensor) {
        if let Some([a, b]) = pair.adapter {
            let up = self.backend.linear(&self.low(x, a), self.param(b), Order::OutIn, None);
            self.backend.add(y, &up);
        }
    }

    /// `s x Aᵀ`.
    pub(super) fn low(&self, x: &B::Tensor, a: ParamId) -> B::Tensor {
        self.scaled(&self.backend.linear(x, self.param(a), Order::OutIn, None))
    }

    /// `s x`, s the adapter's scale.
    pub(super) fn scaled(&self, x: &B::Tensor) -> B::Tensor {
        self.backend.scaled(x, self.config.adapter.as_ref().map_or(0.0, |adapter| adapter.scale()))
    }

    /// Backward of [`Decoder::linear`] to its input: `dy Wᵀ + s (dy B) A`.
    fn linear_input(&self, dy: &B::Tensor, pair: Pair) -> B::Tensor {
        let mut dx = self.backend.linear_input(dy, self.param(pair.weight), self.config.order);
        self.add_low_input(dy, pair, &mut dx);
        dx
    }

    fn add_low_input(&self, dy: &B::Tensor, pair: Pair, dx: &mut B::Tensor) {
        if let Some([a, b]) = pair.adapter {
            let low = self.scaled(&self.backend.linear_input(dy, self.param(b), Order::OutIn));
            self.backend.add_linear_input(&low, self.param(a), Order::OutIn, dx);
        }
    }

    /// Backward of layers of one input to that input: the sum of `dy Wᵀ`.
    fn linears_input<const N: usize>(&self, dys: Parts<&B::Tensor, N>, pairs: Parts<Pair, N>) -> B::Tensor {
        let (b, order) = (&self.backend, self.config.order);
        let mut all = dys.iter().zip(pairs.iter());
        let (dy, pair) = all.next().expect("at least one layer");
        let mut dx = self.linear_input(dy, *pair);
        for (dy, pair) in all {
            b.add_linear_input(dy, self.param(pair.weight), order, &mut dx);
            self.add_low_input(dy, *pair, &mut dx);
        }
        dx
    }

    /// Hand the factors of several layers of one input to the sink.
    fn deliver_linears<const N: usize>(
        &self,
        pairs: Parts<Pair, N>,
        mut x: Option<B::Tensor>,
        dys: Parts<B::Tensor, N>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        rows: &Rows,
    ) {
        let mut left = pairs.iter();
        dys.map(|dy| {
            let pair = *left.next().expect("a gradient a layer");
            let x = if left.len() == 0 { x.take().map(Slot::Given) } else { x.as_ref().map(Slot::Lent) };
            self.deliver_linear(pair, x, Slot::Given(dy), wants, sink, rows);
        });
    }

    /// Hand a linear layer's factors to the sink: those of the gradient in the shape of its weight.
    fn deliver_linear(
        &self,
        pair: Pair,
        x: Option<Slot<B>>,
        dy: Slot<B>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        rows: &Rows,
    ) {
        let b = &self.backend;
        if let Some(bias) = pair.bias.filter(|&p| wants(p)) {
            sink.vector(b, bias, Slot::Lent(dy.get()), rows.same());
        }
        if let (Some([low, up]), Some(x)) = (pair.adapter, &x) {
            // dB = dyᵀ (s x Aᵀ), dA = (s dy B)ᵀ x.
            if wants(up) {
                sink.outer(b, up, Slot::Lent(dy.get()), Slot::Given(self.low(x.get(), low)), rows.same());
            }
            if wants(low) {
                let dlow = self.scaled(&b.linear_input(dy.get(), self.param(up), Order::OutIn));
                sink.outer(b, low, Slot::Given(dlow), Slot::Lent(x.get()), rows.same());
            }
        }
        if wants(pair.weight) {
            let x = x.expect("forward keeps the input of a wanted weight");
            let (x, dy) = match self.config.order {
                Order::InOut => (x, dy),
                Order::OutIn => (dy, x),
            };
            sink.outer(b, pair.weight, x, dy, rows.same());
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
        if let Some(bias) = pair.bias.filter(|&p| wants(p)) {
            sink.vector(b, bias, Slot::Lent(&dy), rows.same());
        }
        let (gain, dgain) = (self.param(pair.weight), wants(pair.weight));
        match self.config.norm {
            Norm::Layer => b.norm_backward(&mut dy, x, stats, gain, dgain, dx),
            Norm::Rms => b.rms_norm_backward(&mut dy, x, stats, gain, dgain, dx),
        }
        if dgain {
            sink.vector(b, pair.weight, Slot::Given(dy), rows.same());
        }
    }
}
