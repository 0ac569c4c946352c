//! Attention: blocks of rows of each segment, a workgroup for each block and head.

use super::Gpu;
use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::params;
use super::rows::LANES;
use super::tensor::{Tensor, Window};
use crate::ops::{Heads, Parts, Qkv, Segments};
use std::ops::Range;

/// Bytes of workgroup memory with a block of this side: `tiles` tiles of a head's rows, `scores` blocks of scores.
fn workgroup_bytes(head_width: usize, block: usize, tiles: usize, scores: usize) -> usize {
    tiles * block * (head_width.div_ceil(4) + 1) * 16 + scores * block * (block + 1) * 4 + 3 * block * 4
}

/// The largest side of a block that the device has workgroup memory for.
fn block_side(c: &Context, head_width: usize, tiles: usize, scores: usize) -> Option<usize> {
    let limit = c.limits.max_compute_workgroup_storage_size as usize;
    let side = [32, 16, 8].into_iter().find(|&b| workgroup_bytes(head_width, b, tiles, scores) <= limit);
    if side.is_none() {
        c.fault.set(format!(
            "attention heads of width {head_width} need {} bytes of workgroup memory and the adapter has {limit} \
             (max_compute_workgroup_storage_size): use `device` cpu",
            workgroup_bytes(head_width, 8, tiles, scores)
        ));
    }
    side
}

/// What the workgroups of one call work on, and the parameters that say how.
struct Call {
    /// Number of blocks of rows.
    blocks: usize,
    /// The shader's items: four words a block, and the heads' slopes.
    items: Vec<u32>,
    params: params::Attention,
}

impl Call {
    /// Of blocks (first row of the segment's keys, its number of keys, position in the segment, row among the queries).
    fn new(blocks: impl Iterator<Item = [usize; 4]>, heads: &Heads) -> Self {
        let mut items: Vec<u32> = blocks.flatten().map(|x| x as u32).collect();
        let blocks = items.len() / 4;
        if heads.alibi {
            items.extend(heads.slopes().iter().map(|&slope| (slope as f32).to_bits()));
            items.resize(items.len().next_multiple_of(4), 0);
        }
        let params = params::Attention {
            work: (blocks * heads.heads) as u32,
            heads: heads.heads as u32,
            group: heads.group() as u32,
            scale: heads.scale as f32,
            window: heads.window.map_or(u32::MAX, |window| window.min(u32::MAX as usize) as u32),
            slopes: if heads.alibi { blocks as u32 } else { 0 },
            ..Default::default()
        };
        Self { blocks, items, params }
    }

    /// Of the blocks of every segment.
    fn of(segments: &Segments, block: usize, heads: &Heads) -> Self {
        let blocks = segments.iter().flat_map(|range| {
            let (start, len) = (range.start, range.len());
            (0..len).step_by(block).map(move |position| [start, len, position, start + position])
        });
        Self::new(blocks, heads)
    }

    /// The parameters with queries, keys and values in their places.
    fn with(&self, [q, k, v]: [Window; 3]) -> params::Attention {
        params::Attention {
            q_start: q.start,
            q_line: q.line,
            k_start: k.start,
            k_line: k.line,
            v_start: v.start,
            v_line: v.line,
            ..self.params
        }
    }
}

/// The rows `rows` of queries, keys and values.
fn windows<'a>(qkv: Qkv<&'a Tensor>, heads: &Heads, rows: &Range<usize>) -> [Window<'a>; 3] {
    qkv.columns(heads.columns()).map(|(x, first)| x.window(rows.clone()).shifted(first))
}

/// Columns of the widest matrix of a projection.
fn widest(qkv: Qkv<&Tensor>) -> usize {
    qkv.iter().map(|x| x.cols).max().unwrap_or(0)
}

/// Copy `cols` columns of every row of one window into another.
fn store(c: &Context, constants: &[u32], from: Window, to: Window, rows: usize, cols: usize) {
    let params = params::Attention {
        q_start: from.start,
        q_line: from.line,
        out_start: to.start,
        out_line: to.line,
        rows: rows as u32,
        cols: cols as u32,
        ..Default::default()
    };
    let args = [Arg::Rows(from), Arg::Rows(to)];
    c.run(&kernels::ATTENTION_STORE, constants, &args, &params, (rows * cols).div_ceil(LANES), 0.0);
}

/// Whole segments whose rows fit a binding together, with their rows.
pub(super) fn groups(c: &Context, segments: &Segments, columns: usize) -> Vec<(Range<usize>, Segments)> {
    let fit = c.blocks(0..segments.rows(), &[columns]).first().map_or(0, Range::len);
    if segments.longest() > fit {
        c.fault.set(format!(
            "a sequence of {} rows of {columns} numbers is longer than the {fit} rows that fit the adapter's limit for one \
             binding (max_storage_buffer_binding_size): use shorter sequences, or `device` cpu",
            segments.longest()
        ));
        return Vec::new();
    }
    let chunk = |samples: Range<usize>| {
        (segments.offsets()[samples.start]..segments.offsets()[samples.end], segments.slice(samples))
    };
    segments.chunks(fit).into_iter().map(chunk).filter(|(rows, _)| !rows.is_empty()).collect()
}

/// Multiply-adds of attention's products, for a rough estimate of the work.
fn flops(segments: &Segments, heads: &Heads, products: usize) -> f64 {
    let seen = |len: usize| (len * len.min(heads.window.unwrap_or(len))) as f64;
    segments.iter().map(|r| seen(r.len())).sum::<f64>() * (heads.heads * heads.width * products) as f64
}

pub(super) fn forward(c: &Context, qkv: Qkv<&Tensor>, segments: &Segments, heads: &Heads, out: &Tensor, lse: &Tensor) {
    let Some(block) = block_side(c, heads.width, 2, 1) else { return };
    for (rows, segments) in groups(c, segments, widest(qkv)) {
        let (x, call) = (windows(qkv, heads, &rows), Call::of(&segments, block, heads));
        let (to, l) = (out.window(rows.clone()), lse.window(rows));
        run_forward(c, &call, block, heads, x, to, (l, true), flops(&segments, heads, 2));
    }
}

#[allow(clippy::too_many_arguments)]
fn run_forward(
    c: &Context,
    call: &Call,
    block: usize,
    heads: &Heads,
    x: [Window; 3],
    out: Window,
    (lse, keep_lse): (Window, bool),
    flops: f64,
) {
    let params = params::Attention {
        keep_lse: keep_lse as u32,
        out_start: out.start,
        out_line: out.line,
        lse_start: lse.start,
        lse_line: lse.line,
        ..call.with(x)
    };
    let [q, k, v] = x.map(Arg::Rows);
    let args = [Arg::Words(&call.items), q, k, v, Arg::Rows(out), Arg::Rows(lse)];
    let constants = [heads.width as u32, block as u32, 2];
    c.run(&kernels::ATTENTION, &constants, &args, &params, call.blocks * heads.heads, flops);
}

/// `qkv`'s keys and values into rows `past..` of the caches, and its queries against all of them.
pub(super) fn cached(
    c: &Context,
    qkv: Qkv<&Tensor>,
    (keys, values): (&Tensor, &Tensor),
    past: usize,
    heads: &Heads,
    out: &Tensor,
    lse: &Tensor,
) {
    let (n, [.., kv_cols]) = (out.rows, heads.columns());
    let Some(block) = block_side(c, heads.width, 2, 1) else { return };
    // One window each: a cache is one sequence.
    if groups(c, &Segments::from_lengths([past + n]), widest(qkv)).is_empty() {
        return;
    }
    let [q, k, v] = windows(qkv, heads, &(0..n));
    for (from, cache) in [(k, keys), (v, values)] {
        let constants = [heads.width as u32, block as u32, 2];
        store(c, &constants, from, cache.window(past..past + n), n, kv_cols);
    }
    let call = Call::new((0..n).step_by(block).map(|row| [0, past + n, past + row, row]), heads);
    let x = [q, keys.window(0..past + n), values.window(0..past + n)];
    let flops = (4 * n * (past + n) * out.cols) as f64;
    run_forward(c, &call, block, heads, x, out.whole(), (lse.whole(), false), flops);
}

/// Keys and values of a split projection are written side by side and copied apart: a kernel writes to one matrix.
pub(super) fn backward(
    gpu: &Gpu,
    (dout, out, lse): (&Tensor, &Tensor, &Tensor),
    qkv: Qkv<&Tensor>,
    segments: &Segments,
    heads: &Heads,
    d: Qkv<&Tensor>,
) {
    let c = &gpu.context;
    let Some(block) = block_side(c, heads.width, 4, 2) else { return };
    let (constants, [_, kv_cols, _]) = ([heads.width as u32, block as u32, 4], heads.columns());
    for (rows, segments) in groups(c, segments, widest(qkv).max(2 * kv_cols)) {
        let (x, g, l) = (windows(qkv, heads, &rows), dout.window(rows.clone()), lse.window(rows.clone()));
        let (o, pairs) = (out.window(rows.clone()), rows.len() * heads.heads);
        let kept = gpu.empty(rows.len(), 2 * heads.heads);
        let kept = kept.whole();
        let call = Call::of(&segments, block, heads);
        let base = params::Attention {
            lse_start: l.start,
            lse_line: l.line,
            kept_start: kept.start,
            kept_line: kept.line,
            dot_start: g.start,
            dot_line: g.line,
            ..call.with(x)
        };
        let params = params::Attention { work: pairs as u32, q_start: o.start, q_line: o.line, ..base };
        let args = [Arg::Rows(o), Arg::Rows(l), Arg::Rows(g), Arg::Rows(kept)];
        c.run(&kernels::ATTENTION_DELTAS, &constants, &args, &params, pairs.div_ceil(LANES), 0.0);

        let pass = |kernel: &'static Kernel, owners: usize, to: Window, second: u32, products| {
            let work = call.blocks * owners;
            let params = params::Attention {
                work: work as u32,
                out_start: to.start,
                out_line: to.line,
                second_start: second,
                ..base
            };
            let [q, k, v] = x.map(Arg::Rows);
            let args = [Arg::Words(&call.items), q, k, v, Arg::Rows(g), Arg::Rows(kept), Arg::Rows(to)];
            c.run(kernel, &constants, &args, &params, work, flops(&segments, heads, products));
        };
        let [dq, dk, dv] = windows(d, heads, &rows);
        pass(&kernels::ATTENTION_QUERIES, heads.heads, dq, 0, 3);
        match d {
            Parts::Fused(_) => pass(&kernels::ATTENTION_KEYS, heads.kv_heads, dk, dv.start, 4),
            Parts::Split(_) => {
                let both = gpu.empty(rows.len(), 2 * kv_cols);
                let (first, second) = (both.whole(), both.whole().shifted(kv_cols));
                pass(&kernels::ATTENTION_KEYS, heads.kv_heads, first, second.start, 4);
                store(c, &constants, first, dk, rows.len(), kv_cols);
                store(c, &constants, second, dv, rows.len(), kv_cols);
            }
        }
    }
}

/// Tangents of a split projection are copied side by side: a kernel reads so many matrices and no more.
pub(super) fn jvp(
    gpu: &Gpu,
    qkv: Qkv<&Tensor>,
    qkv_dot: Qkv<&Tensor>,
    lse: &Tensor,
    segments: &Segments,
    heads: &Heads,
    out_dot: &Tensor,
) {
    let c = &gpu.context;
    let Some(block) = block_side(c, heads.width, 4, 2) else { return };
    let (constants, columns) = ([heads.width as u32, block as u32, 4], heads.columns());
    for (rows, segments) in groups(c, segments, columns.iter().sum()) {
        let together = matches!(qkv_dot, Parts::Split(_)).then(|| gpu.empty(rows.len(), columns.iter().sum()));
        if let Some(together) = &together {
            let to = windows(Parts::Fused(together), heads, &(0..rows.len()));
            for ((from, to), cols) in windows(qkv_dot, heads, &rows).into_iter().zip(to).zip(columns) {
                store(c, &constants, from, to, rows.len(), cols);
            }
        }
        let tangents = match &together {
            Some(together) => windows(Parts::Fused(together), heads, &(0..rows.len())),
            None => windows(qkv_dot, heads, &rows),
        };
        let (x, l, to) = (windows(qkv, heads, &rows), lse.window(rows.clone()), out_dot.window(rows));
        let call = Call::of(&segments, block, heads);
        let params = params::Attention {
            out_start: to.start,
            out_line: to.line,
            lse_start: l.start,
            lse_line: l.line,
            dot_start: tangents[0].start,
            dot_line: tangents[0].line,
            k_dot: tangents[1].start,
            v_dot: tangents[2].start,
            ..call.with(x)
        };
        let [q, k, v] = x.map(Arg::Rows);
        let args = [Arg::Words(&call.items), q, k, v, Arg::Rows(l), Arg::Rows(tangents[0]), Arg::Rows(to)];
        let work = call.blocks * heads.heads;
        c.run(&kernels::ATTENTION_JVP, &constants, &args, &params, work, flops(&segments, heads, 6));
    }
}
