//! The decoder's body, once for every backend: forward, backward, jvp.
//!
//! ```text
//! x   = wte[ids] + wpe[positions]                    positions where they are learned; normalised where the config says so
//! x   = x + attn_out(attention(qkv(norm_1(x))))      for every block: see [`super::block`]
//! x   = x + mlp_out(act(mlp_in(norm_2(x))))
//! l   = norm_f(x) headᵀ
//! ```

use super::batch::Batch;
use super::block::{BlockCache, NormInput};
use super::config::{Config, Norm, Position};
use super::layout::{Layout, Pair, ParamId, Place};
use super::scored::ScoredRows;
use super::sink::{GradSink, Rows, Slot};
use super::weights::Weights;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::kernel::Stored;
use crate::ops::{Rope, Segments};

/// Rows of logits that exist at once, unless one sample is longer.
pub(super) const HEAD_ROWS: usize = 512;

/// A decoder with its parameters in the memory of `B`.
pub struct Decoder<B: Backend> {
    /// Where it runs.
    pub backend: B,
    /// What layout and arithmetic follow from: sizes, norms, positions, biases.
    pub config: Config,
    /// Its parameters' names and shapes.
    pub layout: Layout,
    /// Its parameters, in layout order.
    pub params: Vec<B::Weight>,
    /// How queries and keys turn, where they do.
    pub(super) rope: Option<Rope>,
    /// Keep only each block's input for backward, and run the block again when backward reaches it: a third more time, and of
    /// the activations only N C numbers a block, for long contexts. The gradients are the same to the bit.
    pub recompute: bool,
}

/// What forward leaves for backward.
struct Trunk<B: Backend> {
    /// The final norm's output, its input and its statistics, of the scored rows.
    h: B::Tensor,
    x: B::Tensor,
    stats_f: B::Tensor,
    caches: Vec<BlockTrace<B>>,
    table: Option<B::Tensor>,
    /// Input and statistics of the embedding's norm, where there is one.
    embedded: Option<(B::Tensor, B::Tensor)>,
}

/// What stays of a block until backward reaches it: all that it computed, or its input, from which that is computed again.
enum BlockTrace<B: Backend> {
    All(Box<BlockCache<B>>),
    Input(B::Tensor),
}

impl<B: Backend> Decoder<B> {
    /// Move `weights` into the memory of `backend`.
    pub fn new(backend: B, weights: Weights<impl Into<Stored>>) -> Result<Self> {
        let Weights { config, layout, tensors } = weights;
        Self::from_tensors(backend, config, layout, tensors.into_iter().map(|t| Ok(t.into())))
    }

    /// Move tensors into the memory of `backend`, in layout order, one at a time and as they are stored.
    pub fn from_tensors(
        backend: B,
        config: Config,
        layout: Layout,
        tensors: impl Iterator<Item = Result<Stored>>,
    ) -> Result<Self> {
        config.check().map_err(|what| Error::Usage(format!("the model's shape: {what}")))?;
        let params = layout
            .specs()
            .iter()
            .zip(tensors)
            .map(|(spec, data)| {
                let (rows, cols) = spec.matrix();
                backend.weight(rows, cols, data?)
            })
            .collect::<Result<_>>()?;
        let rope = match &config.position {
            Position::Rope(rope) => Some(Rope::new(rope.theta, rope.width, &rope.scaling)),
            Position::Learned | Position::Alibi => None,
        };
        Ok(Self { backend, config, layout, params, rope, recompute: false })
    }

    /// The parameters back in host memory.
    pub fn weights(&self) -> Result<Weights> {
        let tensors = self.params.iter().map(|p| self.backend.download_weight(p)).collect::<Result<_>>()?;
        Ok(Weights { config: self.config.clone(), layout: self.layout.clone(), tensors })
    }

    /// The parameters back in host memory, as they are stored there where nobody changed them; and the backend.
    pub fn into_weights(self) -> Result<(Weights<Stored>, B)> {
        let Self { backend, config, layout, params, .. } = self;
        let tensors = params.into_iter().map(|p| backend.take_weight(p)).collect::<Result<_>>()?;
        Ok((Weights { config, layout, tensors }, backend))
    }

    /// The parameter `p`.
    pub fn param(&self, p: ParamId) -> &B::Weight {
        &self.params[p.0]
    }

    /// Each row's loss (N x 1), keeping nothing.
    pub fn losses(&self, batch: &Batch) -> B::Tensor {
        self.over_logits(batch, 1, |logits, targets, losses, first| {
            self.backend.cross_entropy(logits, targets, losses, first);
        })
    }

    /// Each row's statistics for audits (N x 4, see [`crate::ops::token_stats`]), keeping nothing.
    pub fn token_stats(&self, batch: &Batch) -> B::Tensor {
        self.over_logits(batch, crate::ops::token_stats::COLUMNS, |logits, targets, stats, first| {
            self.backend.token_stats(logits, targets, stats, first);
        })
    }

    /// `columns` numbers for each row, zeros where it has no target: `f(logits, targets, out, first)` makes those of a few samples at a
    /// time, rows `first..` of `out`.
    fn over_logits(
        &self,
        batch: &Batch,
        columns: usize,
        f: impl Fn(&B::Tensor, &[u32], &mut B::Tensor, usize) + Send,
    ) -> B::Tensor {
        self.backend.inside(|| self.over_logits_by_ops(batch, columns, f))
    }

    fn over_logits_by_ops(
        &self,
        batch: &Batch,
        columns: usize,
        f: impl Fn(&B::Tensor, &[u32], &mut B::Tensor, usize),
    ) -> B::Tensor {
        let (b, scored) = (&self.backend, self.scored(batch));
        let h = self.trunk(batch, &scored, self.config.layers, |_| false).h;
        let mut out = b.zeros(scored.segments().rows(), columns);
        for (_, rows) in head_chunks(scored.segments(), HEAD_ROWS) {
            let logits = b.head(&b.rows(&h, rows.clone()), self.param(self.layout.head));
            f(&logits, &scored.targets()[rows.clone()], &mut out, rows.start);
        }
        scored.put(b, &out).unwrap_or(out)
    }

    /// The logits of rows `rows` (all rows of a batch are V numbers each: ask for few).
    pub fn logits(&self, batch: &Batch, rows: std::ops::Range<usize>) -> B::Tensor {
        let h = self.trunk(batch, &ScoredRows::all(batch), self.config.layers, |_| false).h;
        self.backend.head(&self.backend.rows(&h, rows), self.param(self.layout.head))
    }

    /// Forward and backward of `sum_i weights_i loss_i`: delivers the factors of every wanted parameter's gradient to `sink`
    /// and returns each row's loss (N x 1). Backward stops at the lowest block that holds a wanted parameter, and forward
    /// keeps nothing below it.
    pub fn backward(&self, batch: &Batch, weights: &[f32], sink: &mut impl GradSink<B>) -> B::Tensor {
        self.backend.inside(|| self.backward_by_ops(batch, weights, sink))
    }

    fn backward_by_ops(&self, batch: &Batch, weights: &[f32], sink: &mut impl GradSink<B>) -> B::Tensor {
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
        let scored = self.scored(batch);
        let Trunk { h, x, stats_f, caches, table, embedded } = self.trunk(batch, &scored, first_block, wants);

        let (n, c) = (scored.segments().rows(), self.config.width);
        let (targets, weights) = (scored.targets(), scored.weights(weights));
        let mut losses = b.zeros(n, 1);
        let mut dh = b.zeros(n, c);
        let needs_dh = first_block < self.config.layers || layout.norm_f.ids().any(wants);
        for (samples, rows) in head_chunks(scored.segments(), HEAD_ROWS) {
            let h = b.rows(&h, rows.clone());
            let mut logits = b.head(&h, self.param(layout.head));
            let (targets, weights) = (&targets[rows.clone()], &weights[rows.clone()]);
            b.cross_entropy_backward(&mut logits, targets, weights, &mut losses, rows.start);
            if needs_dh {
                b.head_input(&logits, self.param(layout.head), &mut dh, rows.start);
            }
            if wants(layout.head) {
                let segments = scored.segments().slice(samples.clone());
                let rows = Rows { samples, segments: &segments };
                sink.outer(b, layout.head, Slot::Given(logits), Slot::Given(h), rows);
            }
        }
        drop(h);
        let losses = scored.put(b, &losses).unwrap_or(losses);
        if !needs_dh {
            return losses;
        }
        let mut dx = b.zeros(n, c);
        self.norm_backward(dh, &x, &stats_f, layout.norm_f, &wants, &mut dx, sink, &scored.rows());
        drop(x);
        for (l, cache) in caches.into_iter().enumerate().rev() {
            let l = first_block + l;
            let top = self.top(l, &scored);
            let cache = match cache {
                BlockTrace::All(cache) => *cache,
                BlockTrace::Input(x) => self.block(l, x, &table, top, wants, |qkv| self.attend(l, qkv, batch)).1,
            };
            let below = lowest < Some(Place::Block(l));
            self.block_backward(l, cache, &mut dx, below, &table, top, &wants, sink, batch);
        }
        if let (Some(pair), Some((x, stats))) = (layout.embedding_norm, &embedded) {
            let dy = std::mem::replace(&mut dx, b.zeros(batch.rows(), c));
            self.norm_backward(dy, x, stats, pair, &wants, &mut dx, sink, &all_rows(batch));
        }
        if let Some(positions) = layout.positions.filter(|&p| wants(p)) {
            sink.rows(b, positions, &batch.positions, Slot::Lent(&dx), all_rows(batch));
        }
        if wants(layout.tokens) {
            sink.rows(b, layout.tokens, &batch.ids, Slot::Given(dx), all_rows(batch));
        }
        losses
    }

    /// The rows that go on above the last block's attention.
    pub(super) fn scored<'a>(&self, batch: &'a Batch) -> ScoredRows<'a> {
        if self.config.layers == 0 { ScoredRows::all(batch) } else { ScoredRows::new(batch) }
    }

    /// What block `l` is told of the scored rows: only the last one leaves the others out.
    pub(super) fn top<'a>(&self, l: usize, scored: &'a ScoredRows) -> Option<&'a ScoredRows<'a>> {
        (l + 1 == self.config.layers).then_some(scored)
    }

    /// Embedding and blocks, keeping what backward needs of the blocks from `keep_from` on.
    fn trunk(&self, batch: &Batch, scored: &ScoredRows, keep_from: usize, wants: impl Fn(ParamId) -> bool) -> Trunk<B> {
        let (mut x, embedded) = self.embed(&batch.ids, &batch.positions);
        let table = self.table(batch);
        let mut caches = Vec::with_capacity(self.config.layers - keep_from);
        for l in 0..self.config.layers {
            let keep = l >= keep_from && !self.recompute;
            let (top, wants) = (self.top(l, scored), |p| keep && wants(p));
            let (y, cache) = self.block(l, x, &table, top, wants, |qkv| self.attend(l, qkv, batch));
            x = y;
            if l >= keep_from {
                caches.push(if keep { BlockTrace::All(Box::new(cache)) } else { BlockTrace::Input(cache.x) });
            }
        }
        let (h, stats_f) = self.norm(&x, self.layout.norm_f);
        Trunk { h, x, stats_f, caches, table, embedded }
    }

    /// The first block's input; where the embedding is normalised, that norm's input and statistics too.
    pub(super) fn embed(&self, ids: &[u32], positions: &[u32]) -> (B::Tensor, Option<NormInput<B>>) {
        let layout = &self.layout;
        let learned = layout.positions.map(|wpe| (positions, self.param(wpe)));
        let x = self.backend.embed(ids, self.param(layout.tokens), learned);
        match layout.embedding_norm {
            None => (x, None),
            Some(pair) => {
                let (y, stats) = self.norm(&x, pair);
                (y, Some((x, stats)))
            }
        }
    }

    pub(super) fn norm(&self, x: &B::Tensor, pair: Pair) -> (B::Tensor, B::Tensor) {
        let (b, gain, eps) = (&self.backend, self.param(pair.weight), self.config.norm_epsilon);
        match (self.config.norm, pair.bias) {
            (Norm::Layer, Some(bias)) => b.norm(x, gain, self.param(bias), eps),
            (Norm::Layer, None) => unreachable!("a layer norm has a bias"),
            (Norm::Rms, _) => b.rms_norm(x, gain, eps),
        }
    }

    /// What every row's queries and keys turn by, where they do.
    pub(super) fn table(&self, batch: &Batch) -> Option<B::Tensor> {
        let rope = self.rope.as_ref()?;
        Some(self.upload_table(batch.rows(), rope, rope.tables(&batch.segments)))
    }

    /// A table of turns in the memory of the backend.
    pub(super) fn upload_table(&self, rows: usize, rope: &Rope, table: Vec<f32>) -> B::Tensor {
        self.backend.upload(rows, rope.rotary(), table).expect("as many numbers as rows and columns")
    }
}

pub(super) fn all_rows(batch: &Batch) -> Rows<'_> {
    Rows { samples: 0..batch.segments.len(), segments: &batch.segments }
}

/// Consecutive samples that together have at most `most` rows, or one longer, with their rows; none without rows.
pub(super) fn head_chunks(
    segments: &Segments,
    most: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> {
    let rows = |samples: std::ops::Range<usize>| {
        let rows = segments.offsets()[samples.start]..segments.offsets()[samples.end];
        (samples, rows)
    };
    segments.chunks(most).into_iter().map(rows).filter(|(_, rows)| !rows.is_empty())
}
