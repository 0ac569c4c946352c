//! Causal attention of grouped heads over ragged segments: `o_i = sum_j p_ij v_j`, `p_i = softmax_j(scale <q_i, k_j> + slope (j - i))`,
//! over the keys j <= i that the [window](Heads::window) of row i holds.
//!
//! Scores exist only for a block of query rows of one head at a time, and those after the diagonal, but for tiles that it crosses, are not
//! computed. What is kept between forward and backward is the output and one number a row and head, the log of the softmax' denominator;
//! backward recomputes `p = exp(s - lse)`.
//! The heads of a group read the same keys and values; their gradients are added up in the order of the heads.
//!
//! In shapes, Q is `heads * width` columns and K is `kv_heads * width`.

#[cfg(test)]
mod tests;

mod mask;

use self::mask::{Mask, within};
use super::heads::Heads;
use super::{Segments, slice_mut};
use crate::kernel::gemm::{Onto, Part, SERIAL_BELOW, Triangle, matmul_part};
use crate::kernel::scratch::{block, with_scratch};
use crate::kernel::{Real, lanes, multiversion};
use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::ops::Range;

/// Query rows worked on at a time: their scores against 1,024 keys are 512 KiB in f32. No bit depends on it.
const BLOCK: usize = 128;

/// The same in [`backward`], where the sums over queries are formed block by block: another size gives other bits.
const BACKWARD_BLOCK: usize = 64;

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
    let mut tasks = Vec::new();
    let outs = split_heads(out.view_mut(), segments, heads.heads);
    let lses = split_heads(lse.view_mut(), segments, heads.heads);
    for ((range, outs), lses) in segments.iter().zip(outs).zip(lses) {
        let inputs = qkv.map(|x| x.slice_move(s![range.clone(), ..]));
        for (h, (out, lse)) in outs.into_iter().zip(lses).enumerate() {
            let pieces = split_blocks(out).into_iter().zip(split_blocks(lse));
            for (rows, (out, lse)) in blocks(range.len(), BLOCK).zip(pieces) {
                tasks.push((h, head_inputs(inputs, heads, h), rows, out, lse));
            }
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(h, inputs, rows, out, mut lse)| {
        one_block(inputs, &Mask::new(heads, slopes[h], 0), rows, out, Some(lse.column_mut(0)));
    });
}

/// Attention of new rows at positions `past..past + n` to the keys up to their own, for decoding with a cache.
///
/// Shapes: `q`, `out`: (n, Q); `k`, `v`: (past + n, K).
pub fn forward_cached<F: Real>(qkv: [ArrayView2<F>; 3], heads: &Heads, mut out: ArrayViewMut2<F>) {
    let (new, past) = (qkv[0].nrows(), qkv[1].nrows() - qkv[0].nrows());
    let slopes = heads.slopes();
    let outs: Vec<_> = out.axis_chunks_iter_mut(Axis(1), heads.width).collect();
    // A short text is attended to sooner than a second thread is met.
    let least = if qkv[0].len() * qkv[1].nrows() < SERIAL_BELOW { heads.heads } else { 1 };
    outs.into_par_iter().with_min_len(least).enumerate().for_each(|(h, out)| {
        let mask = Mask::new(heads, slopes[h], past);
        for (rows, out) in blocks(new, BLOCK).zip(split_blocks(out)) {
            one_block(head_inputs(qkv, heads, h), &mask, rows, out, None);
        }
    });
}

/// A block of query rows of one head of one segment.
///
/// Shapes: `out`: (rows, W); `lse`: (rows).
fn one_block<F: Real>(
    [q, k, v]: [ArrayView2<F>; 3],
    mask: &Mask<F>,
    rows: Range<usize>,
    mut out: ArrayViewMut2<F>,
    mut lse: Option<ArrayViewMut1<F>>,
) {
    let keys = mask.keys(&rows);
    let before = mask.before(&rows, &keys);
    let (q, k, v) = (q.slice(s![rows.clone(), ..]), k.slice(s![keys.clone(), ..]), v.slice(s![keys.clone(), ..]));
    with_scratch(rows.len() * keys.len(), |[scratch]| {
        let mut scores = block(scratch, rows.len(), keys.len());
        mask.scores(q, k, before, Onto::Zero, scores.view_mut());
        let mut denominators = [F::one(); BLOCK];
        for (i, row) in slice_mut(&mut scores).chunks_exact_mut(keys.len()).enumerate() {
            let seen = mask.seen(rows.start + i, keys.start, row);
            let largest = lanes::max(seen);
            denominators[i] = lanes::exp_shifted(seen, largest);
            if let Some(lse) = &mut lse {
                lse[i] = largest + denominators[i].ln();
            }
        }
        weighted(scores.view(), before, v, Onto::Zero, out.view_mut());
        for (mut row, &denominator) in out.rows_mut().into_iter().zip(&denominators) {
            lanes::scale(row.as_slice_mut().expect("adjacent columns"), F::one() / denominator);
        }
    });
}

/// `y <- p x + onto`, where p is zero above the diagonal that begins after `before` keys.
fn weighted<F: Real>(p: ArrayView2<F>, before: usize, x: ArrayView2<F>, onto: Onto<F>, y: ArrayViewMut2<F>) {
    matmul_part(Part::Left(Triangle::Lower(before)), F::one(), p, x, onto, y);
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
    let known = (dout, out, lse);
    if heads.group() == 1 {
        return backward_heads(known, qkv, segments, heads, dqkv);
    }
    // Heads that share keys and values each have gradients of their own, which are added up in order: a task is a query head, and its bits are its own.
    let [dq, dk, dv] = dqkv;
    with_scratch(dout.len(), |apart| {
        let [mut dks, mut dvs] = apart.map(|x| block(x, dout.nrows(), dout.ncols()));
        backward_heads(known, qkv, segments, heads, [dq, dks.view_mut(), dvs.view_mut()]);
        for (mut sum, apart) in [(dk, dks), (dv, dvs)] {
            let rows: Vec<_> = sum.rows_mut().into_iter().zip(apart.rows()).collect();
            rows.into_par_iter().with_min_len(BLOCK).for_each(|(mut sum, apart)| {
                add_groups(apart.to_slice().expect("contiguous rows"), heads, &mut sum);
            });
        }
    });
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

/// [`backward`] of every query head on its own.
///
/// Shapes: as there, but `dqkv`: (N, Q) each, overwritten.
fn backward_heads<F: Real>(
    (dout, out, lse): (ArrayView2<F>, ArrayView2<F>, ArrayView2<F>),
    qkv: [ArrayView2<F>; 3],
    segments: &Segments,
    heads: &Heads,
    dqkv: [ArrayViewMut2<F>; 3],
) {
    let slopes = heads.slopes();
    let mut tasks = Vec::with_capacity(segments.len() * heads.heads);
    let [dq, dk, dv] = dqkv.map(|d| split_heads(d, segments, heads.heads));
    for (((range, dq), dk), dv) in segments.iter().zip(dq).zip(dk).zip(dv) {
        for (h, ((dq, dk), dv)) in dq.into_iter().zip(dk).zip(dv).enumerate() {
            tasks.push((range.clone(), h, [dq, dk, dv]));
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(range, h, dqkv)| {
        let rows = qkv.map(|x| x.slice_move(s![range.clone(), ..]));
        let columns = h * heads.width..(h + 1) * heads.width;
        let [dout, out] = [dout, out].map(|x| x.slice_move(s![range.clone(), columns.clone()]));
        let (inputs, mask) = (head_inputs(rows, heads, h), Mask::new(heads, slopes[h], 0));
        one_head_backward(inputs, &mask, (dout, out, lse.slice(s![range, h])), dqkv);
    });
}

/// Backward of one query head of one segment. `p` and `ds` are held transposed, a row for each key: so they and the inputs are left factors as
/// they lie, and the products turn only small blocks, and `ds` for `dq`.
fn one_head_backward<F: Real>(
    [q, k, v]: [ArrayView2<F>; 3],
    mask: &Mask<F>,
    (dout, out, lse): (ArrayView2<F>, ArrayView2<F>, ArrayView1<F>),
    [mut dq, mut dk, mut dv]: [ArrayViewMut2<F>; 3],
) {
    dk.fill(F::zero());
    dv.fill(F::zero());
    for rows in blocks(q.nrows(), BACKWARD_BLOCK) {
        let keys = mask.keys(&rows);
        let before = mask.before(&rows, &keys);
        let [q, dout, out] = [q, dout, out].map(|x| x.slice_move(s![rows.clone(), ..]));
        let [k, v] = [k, v].map(|x| x.slice_move(s![keys.clone(), ..]));
        let (mut dk, mut dv) = (dk.slice_mut(s![keys.clone(), ..]), dv.slice_mut(s![keys.clone(), ..]));
        let (mut shifts, mut means) = ([F::zero(); BACKWARD_BLOCK], [F::zero(); BACKWARD_BLOCK]);
        for (i, (dout, out)) in dout.rows().into_iter().zip(out.rows()).enumerate() {
            shifts[i] = lse[rows.start + i];
            means[i] = lanes::dot(dout.to_slice().expect("contiguous rows"), out.to_slice().expect("contiguous rows"));
        }
        with_scratch(rows.len() * keys.len(), |[p, ds]| {
            let (mut p, mut ds) = (block(p, keys.len(), rows.len()), block(ds, keys.len(), rows.len()));
            // Key j is seen by the rows from j - before on.
            let (seen, nonzero) = (Part::Out(Triangle::Upper(before)), Part::Left(Triangle::Upper(before)));
            matmul_part(seen, mask.scale, k, q.t(), Onto::Zero, p.view_mut());
            matmul_part(seen, F::one(), v, dout.t(), Onto::Zero, ds.view_mut());
            let pairs =
                slice_mut(&mut p).chunks_exact_mut(rows.len()).zip(slice_mut(&mut ds).chunks_exact_mut(rows.len()));
            for (j, (p, ds)) in keys.clone().zip(pairs) {
                let seers = mask.seers(j, &rows);
                let (p, ds) = (within(seers.clone(), p), within(seers.clone(), ds));
                mask.add_distances(j, rows.start + seers.start, p);
                score_gradients(&shifts[seers.clone()], &means[seers], mask.scale, p, ds);
            }
            matmul_part(nonzero, F::one(), p.view(), dout, Onto::Itself, dv.view_mut());
            matmul_part(nonzero, F::one(), ds.view(), q, Onto::Itself, dk.view_mut());
            weighted(ds.t(), before, k, Onto::Zero, dq.slice_mut(s![rows.clone(), ..]));
        });
    }
}

multiversion! {
    /// `p_i <- exp(p_i - shift_i)`, from scores to probabilities, and `ds_i <- p_i (ds_i - mean_i) scale`.
    fn score_gradients<F: Real>(shifts: &[F], means: &[F], scale: F, p: &mut [F], ds: &mut [F]) {
        for (((p, ds), &shift), &mean) in p.iter_mut().zip(ds).zip(shifts).zip(means) {
            *p = (*p - shift).exp_fast();
            *ds = *p * (*ds - mean) * scale;
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
    let outs = split_heads(out_dot.view_mut(), segments, heads.heads);
    for (range, outs) in segments.iter().zip(outs) {
        let [rows, rows_dot] = [qkv, qkv_dot].map(|x| x.map(|x| x.slice_move(s![range.clone(), ..])));
        for (h, out) in outs.into_iter().enumerate() {
            let (inputs, tangents) = (head_inputs(rows, heads, h), head_inputs(rows_dot, heads, h));
            tasks.push((inputs, tangents, Mask::new(heads, slopes[h], 0), lse.slice(s![range.clone(), h]), out));
        }
    }
    tasks.into_par_iter().with_max_len(1).for_each(|([q, k, v], [q_dot, k_dot, v_dot], mask, lse, mut out)| {
        for rows in blocks(q.nrows(), BLOCK) {
            let keys = mask.keys(&rows);
            let before = mask.before(&rows, &keys);
            let (q, q_dot) = (q.slice(s![rows.clone(), ..]), q_dot.slice(s![rows.clone(), ..]));
            let [k, k_dot, v, v_dot] = [k, k_dot, v, v_dot].map(|x| x.slice_move(s![keys.clone(), ..]));
            with_scratch(rows.len() * keys.len(), |[p, dp]| {
                let (mut p, mut dp) = (block(p, rows.len(), keys.len()), block(dp, rows.len(), keys.len()));
                mask.scores(q, k, before, Onto::Zero, p.view_mut());
                mask.scores(q_dot, k, before, Onto::Zero, dp.view_mut());
                mask.scores(q, k_dot, before, Onto::Itself, dp.view_mut());
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
                weighted(dp.view(), before, v, Onto::Zero, out.view_mut());
                weighted(p.view(), before, v_dot, Onto::Itself, out);
            });
        }
    });
}

/// Blocks of query rows.
fn blocks(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(most).map(move |start| start..(start + most).min(rows))
}

/// The columns of query head `h`, and those of the keys and values that it reads.
fn head_inputs<'a, F>([q, k, v]: [ArrayView2<'a, F>; 3], heads: &Heads, h: usize) -> [ArrayView2<'a, F>; 3] {
    let kv = h / heads.group();
    [(q, h), (k, kv), (v, kv)].map(|(x, h)| x.slice_move(s![.., h * heads.width..(h + 1) * heads.width]))
}

/// Disjoint views of pieces of these lengths, end to end along an axis.
fn split<F>(mut x: ArrayViewMut2<F>, axis: Axis, lengths: impl Iterator<Item = usize>) -> Vec<ArrayViewMut2<F>> {
    let pieces = lengths.map(|len| {
        let rest = std::mem::replace(&mut x, ArrayViewMut2::from_shape((0, 0), &mut []).expect("an empty view"));
        let (piece, rest) = rest.split_at(axis, len);
        x = rest;
        piece
    });
    pieces.collect()
}

/// Each head's columns of each segment's rows, segment by segment.
fn split_heads<'a, F>(x: ArrayViewMut2<'a, F>, segments: &Segments, heads: usize) -> Vec<Vec<ArrayViewMut2<'a, F>>> {
    let width = x.ncols() / heads;
    let rows = split(x, Axis(0), segments.iter().map(|range| range.len()));
    rows.into_iter().map(|x| split(x, Axis(1), std::iter::repeat_n(width, heads))).collect()
}

/// Each block's rows.
fn split_blocks<F>(x: ArrayViewMut2<F>) -> Vec<ArrayViewMut2<F>> {
    let lengths = blocks(x.nrows(), BLOCK).map(|rows| rows.len());
    split(x, Axis(0), lengths)
}
