//! Attention: blocks of rows of each segment, a workgroup for each block and head.

use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::tensor::{Tensor, Window};
use crate::ops::Segments;
use std::ops::Range;

/// One call's shape.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) heads: usize,
    /// Width of the output: heads times the width of a head.
    pub(super) width: usize,
    pub(super) scale: f64,
}

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

/// The shader's parameters.
#[derive(Default)]
struct Params<'a> {
    work: usize,
    keep_lse: bool,
    q: Option<Window<'a>>,
    k: Option<Window<'a>>,
    v: Option<Window<'a>>,
    out: Option<Window<'a>>,
    lse: Option<Window<'a>>,
    dot: Option<Window<'a>>,
    rows: usize,
    cols: usize,
}

impl Params<'_> {
    fn words(&self, shape: Shape) -> [u32; 19] {
        let start = |w: &Option<Window>| w.map_or(0, |w| w.start);
        let line = |w: &Option<Window>| w.map_or(0, |w| w.line);
        [
            self.work as u32,
            shape.heads as u32,
            (shape.scale as f32).to_bits(),
            self.keep_lse as u32,
            start(&self.q),
            line(&self.q),
            start(&self.k),
            line(&self.k),
            start(&self.v),
            line(&self.v),
            start(&self.out),
            line(&self.out),
            start(&self.lse),
            line(&self.lse),
            start(&self.dot),
            line(&self.dot),
            shape.width as u32,
            self.rows as u32,
            self.cols as u32,
        ]
    }
}

/// The blocks of every segment, as the shader's items.
fn items(segments: &Segments, block: usize) -> Vec<u32> {
    let mut items = Vec::new();
    for range in segments.iter() {
        for position in (0..range.len()).step_by(block) {
            items.extend([range.start, range.len(), position, range.start + position].map(|x| x as u32));
        }
    }
    items
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

/// Multiply-adds of attention's two products, for a rough estimate of the work.
fn flops(segments: &Segments, width: usize, products: usize) -> f64 {
    segments.iter().map(|r| (r.len() * r.len()) as f64).sum::<f64>() * (width * products) as f64
}

pub(super) fn forward(c: &Context, qkv: &Tensor, segments: &Segments, shape: Shape, out: &Tensor, lse: &Tensor) {
    let head = shape.width / shape.heads;
    let Some(block) = block_side(c, head, 2, 1) else { return };
    for (rows, segments) in groups(c, segments, qkv.cols) {
        let (x, items) = (qkv.window(rows.clone()), items(&segments, block));
        let (k, v) = (x.shifted(shape.width), x.shifted(2 * shape.width));
        let (out, lse) = (out.window(rows.clone()), lse.window(rows));
        let work = items.len() / 4 * shape.heads;
        let params = Params {
            work,
            keep_lse: true,
            q: Some(x),
            k: Some(k),
            v: Some(v),
            out: Some(out),
            lse: Some(lse),
            ..Default::default()
        };
        let args = [Arg::Words(&items), Arg::Rows(x), Arg::Rows(k), Arg::Rows(v), Arg::Rows(out), Arg::Rows(lse)];
        let constants = [head as u32, block as u32];
        c.run(&kernels::ATTENTION, &constants, &args, &params.words(shape), work, flops(&segments, shape.width, 2));
    }
}

/// `qkv`'s keys and values into rows `past..` of the caches, and its queries against all of them.
pub(super) fn cached(
    c: &Context,
    qkv: &Tensor,
    (keys, values): (&Tensor, &Tensor),
    past: usize,
    shape: Shape,
    out: &Tensor,
    lse: &Tensor,
) {
    let (n, width, head) = (qkv.rows, shape.width, shape.width / shape.heads);
    let Some(block) = block_side(c, head, 2, 1) else { return };
    // One window each: a cache is one sequence.
    if groups(c, &Segments::from_lengths([past + n]), qkv.cols).is_empty() {
        return;
    }
    let constants = [head as u32, block as u32];
    let x = qkv.whole();
    for (part, cache) in [(1, keys), (2, values)] {
        let to = cache.window(past..past + n);
        let from = x.shifted(part * width);
        let params = Params { q: Some(from), out: Some(to), rows: n, cols: width, ..Default::default() };
        let args = [Arg::Rows(from), Arg::Rows(to)];
        c.run(&kernels::ATTENTION_STORE, &constants, &args, &params.words(shape), (n * width).div_ceil(64), 0.0);
    }
    let items: Vec<u32> =
        (0..n).step_by(block).flat_map(|row| [0, past + n, past + row, row].map(|x| x as u32)).collect();
    let (k, v, to, lse) = (keys.window(0..past + n), values.window(0..past + n), out.whole(), lse.whole());
    let work = items.len() / 4 * shape.heads;
    let params =
        Params { work, q: Some(x), k: Some(k), v: Some(v), out: Some(to), lse: Some(lse), ..Default::default() };
    let args = [Arg::Words(&items), Arg::Rows(x), Arg::Rows(k), Arg::Rows(v), Arg::Rows(to), Arg::Rows(lse)];
    let flops = (4 * n * (past + n) * width) as f64;
    c.run(&kernels::ATTENTION, &constants, &args, &params.words(shape), work, flops);
}

#[allow(clippy::too_many_arguments)]
pub(super) fn backward(
    c: &Context,
    dout: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    qkv: &Tensor,
    segments: &Segments,
    shape: Shape,
    delta: &Tensor,
    dqkv: &Tensor,
) {
    let head = shape.width / shape.heads;
    let Some(block) = block_side(c, head, 4, 2) else { return };
    let constants = [head as u32, block as u32];
    for (rows, segments) in groups(c, segments, qkv.cols) {
        let (x, d, l) = (qkv.window(rows.clone()), dout.window(rows.clone()), lse.window(rows.clone()));
        let (o, delta) = (out.window(rows.clone()), delta.window(0..rows.len()));
        let pairs = rows.len() * shape.heads;
        let params = Params { work: pairs, q: Some(o), lse: Some(delta), dot: Some(d), ..Default::default() };
        let args = [Arg::Rows(o), Arg::Rows(d), Arg::Rows(delta)];
        c.run(&kernels::ATTENTION_DELTAS, &constants, &args, &params.words(shape), pairs.div_ceil(64), 0.0);

        let (to, items) = (dqkv.window(rows.clone()), items(&segments, block));
        let work = items.len() / 4 * shape.heads;
        let params = Params { work, q: Some(x), out: Some(to), lse: Some(l), dot: Some(d), ..Default::default() };
        let pass = |kernel: &'static Kernel, products| {
            let args = [Arg::Words(&items), Arg::Rows(x), Arg::Rows(l), Arg::Rows(d), Arg::Rows(delta), Arg::Rows(to)];
            c.run(kernel, &constants, &args, &params.words(shape), work, flops(&segments, shape.width, products));
        };
        pass(&kernels::ATTENTION_QUERIES, 3);
        pass(&kernels::ATTENTION_KEYS, 4);
    }
}

pub(super) fn jvp(
    c: &Context,
    qkv: &Tensor,
    qkv_dot: &Tensor,
    lse: &Tensor,
    segments: &Segments,
    shape: Shape,
    out_dot: &Tensor,
) {
    let head = shape.width / shape.heads;
    let Some(block) = block_side(c, head, 4, 2) else { return };
    for (rows, segments) in groups(c, segments, qkv.cols) {
        let (x, d, l) = (qkv.window(rows.clone()), qkv_dot.window(rows.clone()), lse.window(rows.clone()));
        let (to, items) = (out_dot.window(rows), items(&segments, block));
        let work = items.len() / 4 * shape.heads;
        let params = Params { work, q: Some(x), out: Some(to), lse: Some(l), dot: Some(d), ..Default::default() };
        let args = [Arg::Words(&items), Arg::Rows(x), Arg::Rows(l), Arg::Rows(d), Arg::Rows(to)];
        let constants = [head as u32, block as u32];
        c.run(&kernels::ATTENTION_JVP, &constants, &args, &params.words(shape), work, flops(&segments, shape.width, 6));
    }
}
