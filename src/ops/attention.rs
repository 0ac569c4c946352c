//! Causal attention of grouped heads over ragged segments: `o_i = sum_j p_ij v_j`, `p_i = softmax_j(scale <q_i, k_j> + slope (j - i))`,
//! over the keys j <= i that the [window](Heads::window) of row i holds.
//!
//! Scores exist only for a block of query rows of one head at a time. What is kept between forward and backward is the
//! output and one number a row and head, the log of the softmax' denominator; backward recomputes `p = exp(s - lse)`.
//! The heads of a group read the same keys and values; their gradients are added up in the order of the heads.
//!
//! In shapes, Q is `heads * width` columns and K is `kv_heads * width`.

#[cfg(test)]
mod tests;

use super::heads::Heads;
use super::{Segments, slice, slice_mut};
use crate::kernel::gemm::{KC, Onto, SERIAL_BELOW, matmul_serial, scaled_matmul_serial};
use crate::kernel::{Real, lanes, multiversion};
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::ops::Range;

/// Query rows worked on at a time: their scores against 1,024 keys are 256 KiB in f32.
const BLOCK: usize = 64;

/// `o = attention(q, k, v)` for every segment and head.
///
/// Shapes: `q`: (N, Q); `k`, `v`: (N, K); heads side by side in each; `out`: (N, Q); `lse`: (N, H), for [`backward`].
pub fn forward<F: Real>(
    qkv: [ArrayView2<F>; 3],
    segments: &Segments,
    heads: &Heads,
    mut out: ArrayViewMut2<F>,
    mut lse: ArrayViewMut2<F>,
) {
    let slopes = heads.slopes();
    let mut tasks = Vec::with_capacity(segments.len() * heads.heads);
    let outs = heads_of(split_rows(out.view_mut(), segments), heads.heads);
    let lses = heads_of(split_rows(lse.view_mut(), segments), heads.heads);
    for ((range, outs), lses) in segments.iter().zip(outs).zip(lses) {
        let rows = qkv.map(|x| x.slice_move(s![range.clone(), ..]));
        for (h, (out, lse)) in outs.into_iter().zip(lses).enumerate() {
            tasks.push((head_inputs(rows, heads, h), Mask::new(heads, slopes[h], 0), out, lse));
        }
    }
    tasks.into_par_iter().for_each(|(inputs, mask, out, mut lse)| {
        one_head(inputs, &mask, out, Some(lse.column_mut(0)));
    });
}

/// Attention of new rows at positions `past..past + n` to the keys up to their own, for decoding with a cache.
///
/// Shapes: `q`, `out`: (n, Q); `k`, `v`: (past + n, K).
pub fn forward_cached<F: Real>(qkv: [ArrayView2<F>; 3], heads: &Heads, mut out: ArrayViewMut2<F>) {
    let past = qkv[1].nrows() - qkv[0].nrows();
    let slopes = heads.slopes();
    let outs: Vec<_> = out.axis_chunks_iter_mut(Axis(1), heads.width).collect();
    // A short text is attended to sooner than a second thread is met.
    let least = if qkv[0].len() * qkv[1].nrows() < SERIAL_BELOW { heads.heads } else { 1 };
    outs.into_par_iter().with_min_len(least).enumerate().for_each(|(h, out)| {
        one_head(head_inputs(qkv, heads, h), &Mask::new(heads, slopes[h], past), out, None);
    });
}

/// Which keys a head's query rows see, and what is added to their scores. Query row i is at position `past + i`.
struct Mask<F> {
    heads: Heads,
    scale: F,
    slope: F,
    past: usize,
}

impl<F: Real> Mask<F> {
    fn new(heads: &Heads, slope: f64, past: usize) -> Self {
        Self { heads: *heads, scale: F::of(heads.scale), slope: F::of(slope), past }
    }

    /// Numbers of scratch that the scores of a block may take, for `rows` queries.
    fn scratch(&self, rows: usize) -> usize {
        let keys = self.past + rows;
        BLOCK.min(rows) * self.heads.window.map_or(keys, |window| keys.min(window.saturating_add(BLOCK + KC)))
    }

    /// The keys that some row of a block of queries sees. They begin where a block of a product's sum does, so that a row's bits
    /// do not depend on the rows that it shares a block with.
    fn keys(&self, rows: &Range<usize>) -> Range<usize> {
        self.heads.first_key(self.past + rows.start) / KC * KC..self.past + rows.end
    }

    /// `scores <- scale q kᵀ` for a block of query rows against the keys that they see.
    fn scores(&self, q: ArrayView2<F>, k: ArrayView2<F>, scores: ArrayViewMut2<F>) {
        scaled_matmul_serial(self.scale, q, k.reversed_axes(), Onto::Zero, scores);
    }

    /// What query row `i` sees of its scores against the keys from `first` on, with the distance added; the rest becomes zero.
    fn seen<'a>(&self, i: usize, first: usize, scores: &'a mut [F]) -> &'a mut [F] {
        let seen = self.only(i, first, scores);
        if self.heads.alibi {
            add_distance(seen, self.slope);
        }
        seen
    }

    /// What query row `i` sees of numbers for the keys from `first` on; the rest becomes zero.
    fn only<'a>(&self, i: usize, first: usize, row: &'a mut [F]) -> &'a mut [F] {
        let position = self.past + i;
        let (seen, after) = row.split_at_mut(position + 1 - first);
        let (before, seen) = seen.split_at_mut(self.heads.first_key(position) - first);
        after.fill(F::zero());
        before.fill(F::zero());
        seen
    }
}

multiversion! {
    /// `score_j += slope (j - i)`, where the last of them is key i.
    fn add_distance<F: Real>(scores: &mut [F], slope: F) {
        let last = scores.len() as i32 - 1;
        for (j, score) in scores.iter_mut().enumerate() {
            *score += slope * F::of((j as i32 - last) as f64);
        }
    }
}

/// One head of one segment.
fn one_head<F: Real>(
    [q, k, v]: [ArrayView2<F>; 3],
    mask: &Mask<F>,
    mut out: ArrayViewMut2<F>,
    mut lse: Option<ArrayViewMut1<F>>,
) {
    with_scratch(mask.scratch(q.nrows()), |scratch, _| {
        for rows in blocks(q.nrows()) {
            let keys = mask.keys(&rows);
            let mut scores = block(scratch, rows.len(), keys.len());
            mask.scores(q.slice(s![rows.clone(), ..]), k.slice(s![keys.clone(), ..]), scores.view_mut());
            let mut denominators = [F::one(); BLOCK];
            for (i, mut row) in scores.rows_mut().into_iter().enumerate() {
                let seen = mask.seen(rows.start + i, keys.start, row.as_slice_mut().expect("scratch rows"));
                let largest = lanes::max(seen);
                denominators[i] = lanes::exp_shifted(seen, largest);
                if let Some(lse) = &mut lse {
                    lse[rows.start + i] = largest + denominators[i].ln();
                }
            }
            let mut out = out.slice_mut(s![rows, ..]);
            matmul_serial(scores.view(), v.slice(s![keys, ..]), Onto::Zero, out.view_mut());
            for (mut row, &denominator) in out.rows_mut().into_iter().zip(&denominators) {
                lanes::scale(row.as_slice_mut().expect("adjacent columns"), F::one() / denominator);
            }
        }
    });
}

/// Backward of [`forward`]. With `D_i = <do_i, o_i>`: `dv = pᵀ do`, `ds = p ∘ (do vᵀ - D) scale`, `dq = ds k`,
/// `dk = dsᵀ q`; a head of keys and values gets the sum over the query heads of its group.
///
/// Shapes: `dout`, `out`: (N, Q); `lse`: (N, H); `qkv`, `dqkv`: (N, Q), (N, K), (N, K), the latter overwritten.
pub fn backward<F: Real>(
    dout: ArrayView2<F>,
    out: ArrayView2<F>,
    lse: ArrayView2<F>,
    qkv: [ArrayView2<F>; 3],
    segments: &Segments,
    heads: &Heads,
    dqkv: [ArrayViewMut2<F>; 3],
) {
    let (width, slopes) = (heads.width, heads.slopes());
    let [dq, mut dk, mut dv] = dqkv;
    // Heads that share keys and values each have gradients of their own, which are added up in order: a task is a query head, and its bits are its own.
    let mut apart =
        (heads.group() > 1).then(|| [(); 2].map(|()| Array2::<F>::zeros((dout.nrows(), heads.heads * width))));
    let [dks, dvs] = match &mut apart {
        Some(apart) => apart.each_mut().map(|x| x.view_mut()),
        None => {
            dk.fill(F::zero());
            dv.fill(F::zero());
            [dk.view_mut(), dv.view_mut()]
        }
    };
    let mut tasks = Vec::with_capacity(segments.len() * heads.heads);
    let [dq, dks, dvs] = [dq, dks, dvs].map(|d| heads_of(split_rows(d, segments), heads.heads));
    for (((range, dq), dks), dvs) in segments.iter().zip(dq).zip(dks).zip(dvs) {
        for (h, ((dq, dk), dv)) in dq.into_iter().zip(dks).zip(dvs).enumerate() {
            tasks.push((range.clone(), h, dq, dk, dv));
        }
    }
    tasks.into_par_iter().for_each(|(range, h, dq, dk, dv)| {
        let rows = qkv.map(|x| x.slice_move(s![range.clone(), ..]));
        let columns = h * width..(h + 1) * width;
        let [dout, out] = [dout, out].map(|x| x.slice_move(s![range.clone(), columns.clone()]));
        let (inputs, mask) = (head_inputs(rows, heads, h), Mask::new(heads, slopes[h], 0));
        one_head_backward(inputs, &mask, (dout, out, lse.slice(s![range, h])), dq, dk, dv);
    });
    for (sum, apart) in [dk, dv].iter_mut().zip(apart.iter().flatten()) {
        let rows: Vec<_> = sum.rows_mut().into_iter().zip(apart.rows()).collect();
        rows.into_par_iter().with_min_len(BLOCK).for_each(|(mut sum, apart)| {
            add_groups(apart.to_slice().expect("contiguous rows"), heads, &mut sum);
        });
    }
}

/// What a row's query heads have each, summed over those that share a head of keys and values, in order.
fn add_groups<F: Real>(apart: &[F], heads: &Heads, sum: &mut ArrayViewMut1<F>) {
    let groups = apart.chunks_exact(heads.group() * heads.width);
    for (mut sum, group) in sum.axis_chunks_iter_mut(Axis(0), heads.width).zip(groups) {
        let sum = sum.as_slice_mut().expect("adjacent columns");
        let (first, others) = group.split_at(heads.width);
        sum.copy_from_slice(first);
        others.chunks_exact(heads.width).for_each(|x| lanes::add(x, sum));
    }
}

/// Backward of one query head of one segment: `dq` is overwritten, `dk` and `dv` are added to.
fn one_head_backward<F: Real>(
    [q, k, v]: [ArrayView2<F>; 3],
    mask: &Mask<F>,
    (dout, out, lse): (ArrayView2<F>, ArrayView2<F>, ArrayView1<F>),
    mut dq: ArrayViewMut2<F>,
    mut dk: ArrayViewMut2<F>,
    mut dv: ArrayViewMut2<F>,
) {
    with_scratch(mask.scratch(q.nrows()), |p_scratch, dp_scratch| {
        for rows in blocks(q.nrows()) {
            let keys = mask.keys(&rows);
            let (q, dout) = (q.slice(s![rows.clone(), ..]), dout.slice(s![rows.clone(), ..]));
            let (k, v) = (k.slice(s![keys.clone(), ..]), v.slice(s![keys.clone(), ..]));
            let (mut p, mut dp) = (block(p_scratch, rows.len(), keys.len()), block(dp_scratch, rows.len(), keys.len()));
            mask.scores(q, k, p.view_mut());
            matmul_serial(dout, v.reversed_axes(), Onto::Zero, dp.view_mut());
            for (i, mut p) in p.rows_mut().into_iter().enumerate() {
                let seen = mask.seen(rows.start + i, keys.start, p.as_slice_mut().expect("scratch rows"));
                lanes::exp_shifted(seen, lse[rows.start + i]);
            }
            matmul_serial(p.t(), dout, Onto::Itself, dv.slice_mut(s![keys.clone(), ..]));
            let pairs = slice(&p).chunks_exact(keys.len()).zip(slice_mut(&mut dp).chunks_exact_mut(keys.len()));
            for (i, (p, dp)) in pairs.enumerate() {
                let d = lanes::dot(
                    dout.row(i).to_slice().expect("contiguous rows"),
                    out.row(rows.start + i).to_slice().expect("contiguous rows"),
                );
                score_gradient(p, d, mask.scale, dp);
            }
            matmul_serial(dp.view(), k, Onto::Zero, dq.slice_mut(s![rows, ..]));
            matmul_serial(dp.t(), q, Onto::Itself, dk.slice_mut(s![keys, ..]));
        }
    });
}

multiversion! {
    /// `dp_i <- p_i (dp_i - d) scale`.
    fn score_gradient<F: Real>(p: &[F], d: F, scale: F, dp: &mut [F]) {
        for (dp, &p) in dp.iter_mut().zip(p) {
            *dp = p * (*dp - d) * scale;
        }
    }
}

/// Directional derivative: `ṡ = scale (q̇ kᵀ + q k̇ᵀ)`, `ṗ = p ∘ (ṡ - <p, ṡ>)`, `ȯ = ṗ v + p v̇`.
///
/// Shapes: `qkv`, `qkv_dot`: (N, Q), (N, K), (N, K); `lse`: (N, H) from [`forward`]; `out_dot`: (N, Q), overwritten.
pub fn jvp<F: Real>(
    qkv: [ArrayView2<F>; 3],
    qkv_dot: [ArrayView2<F>; 3],
    lse: ArrayView2<F>,
    segments: &Segments,
    heads: &Heads,
    mut out_dot: ArrayViewMut2<F>,
) {
    let slopes = heads.slopes();
    let mut tasks = Vec::with_capacity(segments.len() * heads.heads);
    let outs = heads_of(split_rows(out_dot.view_mut(), segments), heads.heads);
    for (range, outs) in segments.iter().zip(outs) {
        let [rows, rows_dot] = [qkv, qkv_dot].map(|x| x.map(|x| x.slice_move(s![range.clone(), ..])));
        for (h, out) in outs.into_iter().enumerate() {
            let (inputs, tangents) = (head_inputs(rows, heads, h), head_inputs(rows_dot, heads, h));
            tasks.push((inputs, tangents, Mask::new(heads, slopes[h], 0), lse.slice(s![range.clone(), h]), out));
        }
    }
    tasks.into_par_iter().for_each(|([q, k, v], [q_dot, k_dot, v_dot], mask, lse, mut out)| {
        with_scratch(mask.scratch(q.nrows()), |p_scratch, dp_scratch| {
            for rows in blocks(q.nrows()) {
                let keys = mask.keys(&rows);
                let (q, q_dot) = (q.slice(s![rows.clone(), ..]), q_dot.slice(s![rows.clone(), ..]));
                let [k, k_dot, v, v_dot] = [k, k_dot, v, v_dot].map(|x| x.slice_move(s![keys.clone(), ..]));
                let (mut p, mut dp) =
                    (block(p_scratch, rows.len(), keys.len()), block(dp_scratch, rows.len(), keys.len()));
                mask.scores(q, k, p.view_mut());
                mask.scores(q_dot, k, dp.view_mut());
                scaled_matmul_serial(mask.scale, q, k_dot.reversed_axes(), Onto::Itself, dp.view_mut());
                for (i, (mut p, mut dp)) in p.rows_mut().into_iter().zip(dp.rows_mut()).enumerate() {
                    let p = mask.seen(rows.start + i, keys.start, p.as_slice_mut().expect("scratch rows"));
                    let dp = mask.only(rows.start + i, keys.start, dp.as_slice_mut().expect("scratch rows"));
                    lanes::exp_shifted(p, lse[rows.start + i]);
                    let mean = lanes::dot(p, dp);
                    for (dp, &p) in dp.iter_mut().zip(&*p) {
                        *dp = p * (*dp - mean);
                    }
                }
                let mut out = out.slice_mut(s![rows, ..]);
                matmul_serial(dp.view(), v, Onto::Zero, out.view_mut());
                matmul_serial(p.view(), v_dot, Onto::Itself, out);
            }
        });
    });
}

/// Blocks of query rows.
fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(rows))
}

/// The columns of query head `h`, and those of the keys and values that it reads.
fn head_inputs<'a, F>([q, k, v]: [ArrayView2<'a, F>; 3], heads: &Heads, h: usize) -> [ArrayView2<'a, F>; 3] {
    let kv = h / heads.group();
    [(q, h), (k, kv), (v, kv)].map(|(x, h)| x.slice_move(s![.., h * heads.width..(h + 1) * heads.width]))
}

/// Disjoint views of each segment's rows.
fn split_rows<'a, F>(mut x: ArrayViewMut2<'a, F>, segments: &Segments) -> Vec<ArrayViewMut2<'a, F>> {
    segments
        .iter()
        .map(|range| {
            let rest = std::mem::replace(&mut x, ArrayViewMut2::from_shape((0, 0), &mut []).expect("an empty view"));
            let (rows, rest) = rest.split_at(Axis(0), range.len());
            x = rest;
            rows
        })
        .collect()
}

/// Disjoint views of each head's columns, segment by segment.
fn heads_of<F>(segments: Vec<ArrayViewMut2<F>>, heads: usize) -> Vec<Vec<ArrayViewMut2<F>>> {
    segments
        .into_iter()
        .map(|mut x| {
            let width = x.ncols() / heads;
            (0..heads)
                .map(|_| {
                    let rest =
                        std::mem::replace(&mut x, ArrayViewMut2::from_shape((0, 0), &mut []).expect("an empty view"));
                    let (head, rest) = rest.split_at(Axis(1), width);
                    x = rest;
                    head
                })
                .collect()
        })
        .collect()
}

/// The first `rows * cols` elements of `scratch` as a matrix.
pub(super) fn block<F>(scratch: &mut [F], rows: usize, cols: usize) -> ArrayViewMut2<'_, F> {
    ArrayViewMut2::from_shape((rows, cols), &mut scratch[..rows * cols]).expect("scratch is long enough")
}

/// Two buffers of `len` elements with stale content, kept by the thread for the next call.
pub(super) fn with_scratch<F: Real>(len: usize, f: impl FnOnce(&mut [F], &mut [F])) {
    use std::cell::RefCell;
    thread_local!(static SCRATCH: RefCell<[Vec<u64>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) });
    SCRATCH.with_borrow_mut(|buffers| {
        let words = (len * size_of::<F>()).div_ceil(8);
        for buffer in buffers.iter_mut().filter(|b| b.len() < words) {
            buffer.resize(words, 0);
        }
        let [a, b] = buffers.each_mut().map(|b| &mut bytemuck::cast_slice_mut::<u64, F>(b)[..len]);
        f(a, b);
    });
}
