//! The decoder's body, once for every backend: forward, backward, jvp.
//!
//! ```text
//! x   = wte[ids] + wpe[positions]
//! x   = x + attn_out(attention(qkv(norm_1(x))))      for every block
//! x   = x + mlp_out(gelu(mlp_in(norm_2(x))))
//! l   = norm_f(x) headᵀ
//! ```

use super::batch::Batch;
use super::config::Config;
use super::layout::{BlockIds, Layout, ParamId, Place};
use super::sink::{GradSink, Rows, Slot};
use super::weights::Weights;
use crate::backend::Backend;
use crate::error::Result;
use crate::kernel::Stored;
use crate::ops::{Order, Qkv, Segments};

/// Rows of logits that exist at once, unless one sample is longer.
pub(super) const HEAD_ROWS: usize = 512;

/// A decoder with its parameters in the memory of `B`.
pub struct Decoder<B: Backend> {
    /// Where it runs.
    pub backend: B,
    /// Its shape.
    pub config: Config,
    /// Its parameters' names and shapes.
    pub layout: Layout,
    /// Its parameters, in layout order.
    pub params: Vec<B::Weight>,
    /// Keep only each block's input for backward, and run the block again when backward reaches it: a third more time, and of
    /// the activations only N C numbers a block, for long contexts. The gradients are the same to the bit.
    pub recompute: bool,
}

/// What backward needs of one block's forward.
struct BlockCache<B: Backend> {
    x: B::Tensor,
    stats_1: B::Tensor,
    n1: Option<B::Tensor>,
    qkv: B::Tensor,
    att: B::Tensor,
    lse: B::Tensor,
    mid: B::Tensor,
    stats_2: B::Tensor,
    n2: Option<B::Tensor>,
    h: B::Tensor,
    a: Option<B::Tensor>,
}

/// What is kept of a block until backward reaches it.
enum Kept<B: Backend> {
    All(Box<BlockCache<B>>),
    Input(B::Tensor),
}

impl<B: Backend> Decoder<B> {
    /// Move `weights` into the memory of `backend`.
    pub fn new(backend: B, weights: Weights) -> Result<Self> {
        let Weights { config, layout, tensors } = weights;
        let params = layout
            .specs()
            .iter()
            .zip(tensors)
            .map(|(spec, data)| {
                let (rows, cols) = spec.matrix();
                backend.weight(rows, cols, Stored::F32(data))
            })
            .collect::<Result<_>>()?;
        Ok(Self { backend, config, layout, params, recompute: false })
    }

    /// The parameters back in host memory.
    pub fn weights(&self) -> Result<Weights> {
        let tensors = self.params.iter().map(|p| self.backend.download_weight(p)).collect::<Result<_>>()?;
        Ok(Weights { config: self.config.clone(), layout: self.layout.clone(), tensors })
    }

    /// The parameter `p`.
    pub fn param(&self, p: ParamId) -> &B::Weight {
        &self.params[p.0]
    }

    /// Each row's loss (N x 1), keeping nothing.
    pub fn losses(&self, batch: &Batch) -> B::Tensor {
        let b = &self.backend;
        let mut losses = b.zeros(batch.rows(), 1);
        self.over_logits(batch, |logits, rows| {
            b.cross_entropy(logits, &batch.targets[rows.clone()], &mut losses, rows.start);
        });
        losses
    }

    /// Each row's statistics for audits (N x 4, see [`crate::ops::token_stats`]), keeping nothing.
    pub fn token_stats(&self, batch: &Batch) -> B::Tensor {
        let b = &self.backend;
        let mut stats = b.zeros(batch.rows(), crate::ops::token_stats::COLUMNS);
        self.over_logits(batch, |logits, rows| {
            b.token_stats(logits, &batch.targets[rows.clone()], &mut stats, rows.start);
        });
        stats
    }

    /// Forward, handing out the logits of a few samples at a time with the rows they belong to.
    fn over_logits(&self, batch: &Batch, mut f: impl FnMut(&B::Tensor, std::ops::Range<usize>)) {
        let b = &self.backend;
        let (h, ..) = self.trunk(batch, self.config.layers, |_| false);
        for samples in batch.segments.chunks(HEAD_ROWS) {
            let rows = row_range(&batch.segments, &samples);
            f(&b.head(&b.rows(&h, rows.clone()), self.param(self.layout.head)), rows);
        }
    }

    /// The logits of rows `rows` (all rows of a batch are V numbers each: ask for few).
    pub fn logits(&self, batch: &Batch, rows: std::ops::Range<usize>) -> B::Tensor {
        let (h, ..) = self.trunk(batch, self.config.layers, |_| false);
        self.backend.head(&self.backend.rows(&h, rows), self.param(self.layout.head))
    }

    /// Forward and backward of `sum_i weights_i loss_i`: delivers the factors of every wanted parameter's gradient to `sink`
    /// and returns each row's loss (N x 1). Backward stops at the lowest block that holds a wanted parameter, and forward
    /// keeps nothing below it.
    pub fn backward(&self, batch: &Batch, weights: &[f32], sink: &mut impl GradSink<B>) -> B::Tensor {
        let b = &self.backend;
        let layout = &self.layout;
        let wanted: Vec<bool> = layout.ids().map(|p| sink.wants(p)).collect();
        let wants = |p: ParamId| wanted[p.0];
        let lowest = layout.ids().filter(|&p| wants(p)).map(|p| layout.spec(p).place).min();
        let first_block = match lowest {
            Some(Place::Embedding) => 0,
            Some(Place::Block(l)) => l,
            Some(Place::Top) | None => self.config.layers,
        };
        // The head's gradient of a tied embedding is needed at the top; only its other use lies below.
        let (h, x, stats_f, caches) = self.trunk(batch, first_block, wants);
        let all = Rows { samples: 0..batch.segments.len(), segments: &batch.segments };

        let (n, c) = (batch.rows(), self.config.width);
        let mut losses = b.zeros(n, 1);
        let mut dh = b.zeros(n, c);
        let needs_dh = first_block < self.config.layers || wants(layout.norm_f.0) || wants(layout.norm_f.1);
        for samples in batch.segments.chunks(HEAD_ROWS) {
            let rows = row_range(&batch.segments, &samples);
            let h = b.rows(&h, rows.clone());
            let mut logits = b.head(&h, self.param(layout.head));
            let (targets, weights) = (&batch.targets[rows.clone()], &weights[rows.clone()]);
            b.cross_entropy_backward(&mut logits, targets, weights, &mut losses, rows.start);
            if needs_dh {
                b.head_input(&logits, self.param(layout.head), &mut dh, rows.start);
            }
            if wants(layout.head) {
                let segments = batch.segments.slice(samples.clone());
                let rows = Rows { samples, segments: &segments };
                sink.outer(b, layout.head, Slot::Given(logits), Slot::Given(h), rows);
            }
        }
        drop(h);
        if !needs_dh {
            return losses;
        }
        let mut dx = b.zeros(n, c);
        self.norm_backward(dh, &x, &stats_f, layout.norm_f, &wants, &mut dx, sink, &all);
        drop(x);
        for (l, cache) in caches.into_iter().enumerate().rev() {
            let l = first_block + l;
            let cache = match cache {
                Kept::All(cache) => *cache,
                Kept::Input(x) => self.block(l, x, batch, wants).1,
            };
            self.block_backward(l, cache, &mut dx, lowest < Some(Place::Block(l)), &wants, sink, batch);
        }
        if wants(layout.positions) {
            sink.rows(b, layout.positions, &batch.positions, Slot::Lent(&dx), all_rows(batch));
        }
        if wants(layout.tokens) {
            sink.rows(b, layout.tokens, &batch.ids, Slot::Given(dx), all_rows(batch));
        }
        losses
    }

    /// Embedding and blocks: the normalised output, the final norm's input and statistics, and what backward needs of the blocks
    /// from `keep_from` on.
    fn trunk(
        &self,
        batch: &Batch,
        keep_from: usize,
        wants: impl Fn(ParamId) -> bool,
    ) -> (B::Tensor, B::Tensor, B::Tensor, Vec<Kept<B>>) {
        let (b, layout) = (&self.backend, &self.layout);
        let mut x =
            b.embed(&batch.ids, self.param(layout.tokens), Some((&batch.positions, self.param(layout.positions))));
        let mut caches = Vec::with_capacity(self.config.layers - keep_from);
        for l in 0..self.config.layers {
            let keep = l >= keep_from && !self.recompute;
            let (y, cache) = self.block(l, x, batch, |p| keep && wants(p));
            x = y;
            if l >= keep_from {
                caches.push(if keep { Kept::All(Box::new(cache)) } else { Kept::Input(cache.x) });
            }
        }
        let (h, stats_f) = self.norm(&x, layout.norm_f);
        (h, x, stats_f, caches)
    }

    /// One block: its output, and what backward needs of it for the parameters that are wanted.
    fn block(
        &self,
        l: usize,
        x: B::Tensor,
        batch: &Batch,
        wants: impl Fn(ParamId) -> bool,
    ) -> (B::Tensor, BlockCache<B>) {
        let (b, ids) = (&self.backend, &self.layout.blocks[l]);
        let (n1, stats_1) = self.norm(&x, ids.norm_1);
        let qkv = self.linear(&n1, ids.qkv);
        let n1 = wants(ids.qkv.0).then_some(n1);
        let (att, lse) = b.attention(Qkv::Fused(&qkv), &batch.segments, &self.config.attention(l));
        let mut mid = self.linear(&att, ids.attn_out);
        b.add(&mut mid, &x);
        let (n2, stats_2) = self.norm(&mid, ids.norm_2);
        let h = self.linear(&n2, ids.mlp_in);
        let n2 = wants(ids.mlp_in.0).then_some(n2);
        let a = b.activation(self.config.activation, &h);
        let mut y = self.linear(&a, ids.mlp_out);
        b.add(&mut y, &mid);
        let a = wants(ids.mlp_out.0).then_some(a);
        (y, BlockCache { x, stats_1, n1, qkv, att, lse, mid, stats_2, n2, h, a })
    }

    /// Backward through one block; `dx` goes from the gradient of its output to that of its input. What only parameters further
    /// down would need is left out when `below` is false.
    #[allow(clippy::too_many_arguments)]
    fn block_backward(
        &self,
        l: usize,
        cache: BlockCache<B>,
        dx: &mut B::Tensor,
        below: bool,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let b = &self.backend;
        let BlockIds { norm_1, qkv, attn_out, norm_2, mlp_in, mlp_out } = self.layout.blocks[l];
        let any = |pairs: &[(ParamId, ParamId)]| pairs.iter().any(|&(w, v)| wants(w) || wants(v));
        let BlockCache { x, stats_1, n1, qkv: qkv_out, att, lse, mid, stats_2, n2, h, a } = cache;
        let rows = all_rows(batch);

        self.deliver_linear(mlp_out, a, Slot::Lent(dx), wants, sink, batch);
        if !(below || any(&[mlp_in, norm_2, attn_out, qkv, norm_1])) {
            return;
        }
        let mut dh = b.linear_input(dx, self.param(mlp_out.0), Order::InOut);
        b.activation_backward(self.config.activation, &h, &mut dh);
        drop(h);
        let dn = (below || any(&[norm_2, attn_out, qkv, norm_1]))
            .then(|| b.linear_input(&dh, self.param(mlp_in.0), Order::InOut));
        self.deliver_linear(mlp_in, n2, Slot::Given(dh), wants, sink, batch);
        let Some(dn) = dn else { return };
        self.norm_backward(dn, &mid, &stats_2, norm_2, wants, dx, sink, &rows);
        drop(mid);

        if !(below || any(&[qkv, norm_1])) {
            return self.deliver_linear(attn_out, Some(att), Slot::Lent(dx), wants, sink, batch);
        }
        let datt = b.linear_input(dx, self.param(attn_out.0), Order::InOut);
        let heads = self.config.attention(l);
        let dqkv = b.attention_backward(&datt, &att, &lse, Qkv::Fused(&qkv_out), &batch.segments, &heads);
        let Qkv::Fused(dqkv) = dqkv else { unreachable!("gradients have the shape of what was given") };
        drop((datt, qkv_out, lse));
        self.deliver_linear(attn_out, Some(att), Slot::Lent(dx), wants, sink, batch);
        let dn = (below || any(&[norm_1])).then(|| b.linear_input(&dqkv, self.param(qkv.0), Order::InOut));
        self.deliver_linear(qkv, n1, Slot::Given(dqkv), wants, sink, batch);
        if let Some(dn) = dn {
            self.norm_backward(dn, &x, &stats_1, norm_1, wants, dx, sink, &rows);
        }
    }

    /// Hand a linear layer's factors to the sink.
    fn deliver_linear(
        &self,
        (weight, bias): (ParamId, ParamId),
        x: Option<B::Tensor>,
        dy: Slot<B>,
        wants: &impl Fn(ParamId) -> bool,
        sink: &mut impl GradSink<B>,
        batch: &Batch,
    ) {
        let b = &self.backend;
        if wants(bias) {
            sink.vector(b, bias, Slot::Lent(dy.get()), all_rows(batch));
        }
        if wants(weight) {
            let x = x.expect("forward keeps the input of a wanted weight");
            sink.outer(b, weight, Slot::Given(x), dy, all_rows(batch));
        }
    }

    /// Backward through a norm, adding to `dx` and delivering gain and bias.
    #[allow(clippy::too_many_arguments)]
    fn norm_backward(
        &self,
        mut dy: B::Tensor,
        x: &B::Tensor,
        stats: &B::Tensor,
        (gain, bias): (ParamId, ParamId),
        wants: &impl Fn(ParamId) -> bool,
        dx: &mut B::Tensor,
        sink: &mut impl GradSink<B>,
        rows: &Rows,
    ) {
        let b = &self.backend;
        let rows = || Rows { samples: rows.samples.clone(), segments: rows.segments };
        if wants(bias) {
            sink.vector(b, bias, Slot::Lent(&dy), rows());
        }
        b.norm_backward(&mut dy, x, stats, self.param(gain), wants(gain), dx);
        if wants(gain) {
            sink.vector(b, gain, Slot::Given(dy), rows());
        }
    }

    pub(super) fn norm(&self, x: &B::Tensor, (gain, bias): (ParamId, ParamId)) -> (B::Tensor, B::Tensor) {
        self.backend.norm(x, self.param(gain), self.param(bias), self.config.norm_epsilon)
    }

    pub(super) fn linear(&self, x: &B::Tensor, (weight, bias): (ParamId, ParamId)) -> B::Tensor {
        self.backend.linear(x, self.param(weight), Order::InOut, Some(self.param(bias)))
    }
}

fn all_rows(batch: &Batch) -> Rows<'_> {
    Rows { samples: 0..batch.segments.len(), segments: &batch.segments }
}

/// The rows of consecutive samples.
pub(super) fn row_range(segments: &Segments, samples: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    segments.offsets()[samples.start]..segments.offsets()[samples.end]
}
