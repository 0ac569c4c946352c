//! Causal multi-head attention over ragged segments: `o_i = sum_{j <= i} p_ij v_j`, `p_i = softmax(scale q_i Kᵀ)`.
//!
//! Scores exist only for a block of query rows of one head at a time. What is kept between forward and backward is the
//! output and one number a row and head, the log of the softmax' denominator; backward recomputes `p = exp(s - lse)`.

use super::{Segments, slice, slice_mut};
use crate::kernel::gemm::{Onto, matmul_serial, scaled_matmul_serial};
use crate::kernel::{Real, elementwise, multiversion};
use ndarray::{ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

/// Query rows worked on at a time: their scores against 1,024 keys are 256 KiB in f32.
const BLOCK: usize = 64;

/// `o = attention(q, k, v)` for every segment and head.
///
/// Shapes: `qkv`: (N, 3 C), queries, keys, values side by side, heads side by side within each; `out`: (N, C);
/// `lse`: (N, H), for [`backward`].
pub fn forward<F: Real>(
    qkv: ArrayView2<F>,
    segments: &Segments,
    heads: usize,
    scale: f64,
    mut out: ArrayViewMut2<F>,
    mut lse: ArrayViewMut2<F>,
) {
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    let outs = heads_of(split_rows(out.view_mut(), segments), heads);
    let lses = heads_of(split_rows(lse.view_mut(), segments), heads);
    for ((range, outs), lses) in segments.iter().zip(outs).zip(lses) {
        let qkv = qkv.slice(s![range, ..]);
        for (head, (out, lse)) in outs.into_iter().zip(lses).enumerate() {
            tasks.push((head_inputs(qkv, heads, head), out, lse));
        }
    }
    tasks.into_par_iter().for_each(|([q, k, v], out, mut lse)| {
        one_head(q, k, v, 0, F::of(scale), out, Some(lse.column_mut(0)));
    });
}

/// Attention of new rows at positions `past..past + n` to all keys up to their own, for decoding with a cache.
///
/// Shapes: `q`, `out`: (n, C); `k`, `v`: (past + n, C).
pub fn forward_cached<F: Real>(
    q: ArrayView2<F>,
    k: ArrayView2<F>,
    v: ArrayView2<F>,
    heads: usize,
    scale: f64,
    mut out: ArrayViewMut2<F>,
) {
    let past = k.nrows() - q.nrows();
    let width = q.ncols() / heads;
    let outs: Vec<_> = out.axis_chunks_iter_mut(Axis(1), width).collect();
    outs.into_par_iter().enumerate().for_each(|(head, out)| {
        let [q, k, v] = [q, k, v].map(|x| x.slice_move(s![.., head * width..(head + 1) * width]));
        one_head(q, k, v, past, F::of(scale), out, None);
    });
}

/// One head of one segment; query row i is at position `past + i`.
fn one_head<F: Real>(
    q: ArrayView2<F>,
    k: ArrayView2<F>,
    v: ArrayView2<F>,
    past: usize,
    scale: F,
    mut out: ArrayViewMut2<F>,
    mut lse: Option<ArrayViewMut1<F>>,
) {
    let rows = q.nrows();
    with_scratch(BLOCK.min(rows) * k.nrows(), |scratch, _| {
        for start in (0..rows).step_by(BLOCK) {
            let end = (start + BLOCK).min(rows);
            let keys = past + end;
            let mut scores = block(scratch, end - start, keys);
            let kt = k.slice(s![..keys, ..]).reversed_axes();
            scaled_matmul_serial(scale, q.slice(s![start..end, ..]), kt, Onto::Zero, scores.view_mut());
            let mut denominators = [F::one(); BLOCK];
            for (i, mut row) in scores.rows_mut().into_iter().enumerate() {
                let (seen, unseen) = row.as_slice_mut().expect("scratch rows").split_at_mut(past + start + i + 1);
                let largest = elementwise::max(seen);
                denominators[i] = elementwise::exp_shifted(seen, largest);
                unseen.fill(F::zero());
                if let Some(lse) = &mut lse {
                    lse[start + i] = largest + denominators[i].ln();
                }
            }
            let mut out = out.slice_mut(s![start..end, ..]);
            matmul_serial(scores.view(), v.slice(s![..keys, ..]), Onto::Zero, out.view_mut());
            for (mut row, &denominator) in out.rows_mut().into_iter().zip(&denominators) {
                elementwise::scale(row.as_slice_mut().expect("adjacent columns"), F::one() / denominator);
            }
        }
    });
}

/// Backward of [`forward`]. With `D_i = <do_i, o_i>`: `dv = pᵀ do`, `ds = p ∘ (do vᵀ - D) scale`, `dq = ds k`,
/// `dk = dsᵀ q`.
///
/// Shapes: `dout`, `out`: (N, C); `lse`: (N, H); `qkv`, `dqkv`: (N, 3 C).
#[allow(clippy::too_many_arguments)]
pub fn backward<F: Real>(
    dout: ArrayView2<F>,
    out: ArrayView2<F>,
    lse: ArrayView2<F>,
    qkv: ArrayView2<F>,
    segments: &Segments,
    heads: usize,
    scale: f64,
    mut dqkv: ArrayViewMut2<F>,
) {
    let width = out.ncols() / heads;
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    for (range, dqkv) in segments.iter().zip(split_rows(dqkv.view_mut(), segments)) {
        let (dq, rest) = dqkv.split_at(Axis(1), out.ncols());
        let (dk, dv) = rest.split_at(Axis(1), out.ncols());
        let [dq, dk, dv] = [dq, dk, dv].map(|d| heads_of(vec![d], heads).remove(0));
        for (head, ((dq, dk), dv)) in dq.into_iter().zip(dk).zip(dv).enumerate() {
            let columns = head * width..(head + 1) * width;
            let inputs = head_inputs(qkv.slice(s![range.clone(), ..]), heads, head);
            let (dout, out) =
                (dout.slice(s![range.clone(), columns.clone()]), out.slice(s![range.clone(), columns.clone()]));
            tasks.push((inputs, dout, out, lse.slice(s![range.clone(), head]), [dq, dk, dv]));
        }
    }
    let scale = F::of(scale);
    tasks.into_par_iter().for_each(|([q, k, v], dout, out, lse, [mut dq, mut dk, mut dv])| {
        let rows = q.nrows();
        dk.fill(F::zero());
        dv.fill(F::zero());
        with_scratch(BLOCK.min(rows) * rows, |p_scratch, dp_scratch| {
            for start in (0..rows).step_by(BLOCK) {
                let end = (start + BLOCK).min(rows);
                let (q, dout) = (q.slice(s![start..end, ..]), dout.slice(s![start..end, ..]));
                let (k, v) = (k.slice(s![..end, ..]), v.slice(s![..end, ..]));
                let (mut p, mut dp) = (block(p_scratch, end - start, end), block(dp_scratch, end - start, end));
                scaled_matmul_serial(scale, q, k.reversed_axes(), Onto::Zero, p.view_mut());
                matmul_serial(dout, v.reversed_axes(), Onto::Zero, dp.view_mut());
                for (i, mut p) in p.rows_mut().into_iter().enumerate() {
                    let (seen, unseen) = p.as_slice_mut().expect("scratch rows").split_at_mut(start + i + 1);
                    elementwise::exp_shifted(seen, lse[start + i]);
                    unseen.fill(F::zero());
                }
                matmul_serial(p.t(), dout, Onto::Itself, dv.slice_mut(s![..end, ..]));
                let rows = slice(&p).chunks_exact(end).zip(slice_mut(&mut dp).chunks_exact_mut(end));
                for (i, (p, dp)) in rows.enumerate() {
                    let d = elementwise::dot(
                        dout.row(i).to_slice().expect("contiguous rows"),
                        out.row(start + i).to_slice().expect("contiguous rows"),
                    );
                    score_gradient(p, d, scale, dp);
                }
                matmul_serial(dp.view(), k, Onto::Zero, dq.slice_mut(s![start..end, ..]));
                matmul_serial(dp.t(), q, Onto::Itself, dk.slice_mut(s![..end, ..]));
            }
        });
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
/// Shapes: `qkv`, `qkv_dot`: (N, 3 C); `lse`: (N, H) from [`forward`]; `out_dot`: (N, C), overwritten.
pub fn jvp<F: Real>(
    qkv: ArrayView2<F>,
    qkv_dot: ArrayView2<F>,
    lse: ArrayView2<F>,
    segments: &Segments,
    heads: usize,
    scale: f64,
    mut out_dot: ArrayViewMut2<F>,
) {
    let mut tasks = Vec::with_capacity(segments.len() * heads);
    let outs = heads_of(split_rows(out_dot.view_mut(), segments), heads);
    for (range, outs) in segments.iter().zip(outs) {
        for (head, out) in outs.into_iter().enumerate() {
            let [inputs, tangents] =
                [qkv, qkv_dot].map(|x| head_inputs(x.slice_move(s![range.clone(), ..]), heads, head));
            tasks.push((inputs, tangents, lse.slice(s![range.clone(), head]), out));
        }
    }
    let scale = F::of(scale);
    tasks.into_par_iter().for_each(|([q, k, v], [q_dot, k_dot, v_dot], lse, mut out)| {
        let rows = q.nrows();
        with_scratch(BLOCK.min(rows) * rows, |p_scratch, dp_scratch| {
            for start in (0..rows).step_by(BLOCK) {
                let end = (start + BLOCK).min(rows);
                let (q, q_dot) = (q.slice(s![start..end, ..]), q_dot.slice(s![start..end, ..]));
                let [k, k_dot, v, v_dot] = [k, k_dot, v, v_dot].map(|x| x.slice_move(s![..end, ..]));
                let (mut p, mut dp) = (block(p_scratch, end - start, end), block(dp_scratch, end - start, end));
                scaled_matmul_serial(scale, q, k.reversed_axes(), Onto::Zero, p.view_mut());
                scaled_matmul_serial(scale, q_dot, k.reversed_axes(), Onto::Zero, dp.view_mut());
                scaled_matmul_serial(scale, q, k_dot.reversed_axes(), Onto::Itself, dp.view_mut());
                for (i, (mut p, mut dp)) in p.rows_mut().into_iter().zip(dp.rows_mut()).enumerate() {
                    let (p, p_unseen) = p.as_slice_mut().expect("scratch rows").split_at_mut(start + i + 1);
                    let (dp, dp_unseen) = dp.as_slice_mut().expect("scratch rows").split_at_mut(start + i + 1);
                    elementwise::exp_shifted(p, lse[start + i]);
                    p_unseen.fill(F::zero());
                    dp_unseen.fill(F::zero());
                    let mean = elementwise::dot(p, dp);
                    for (dp, &p) in dp.iter_mut().zip(&*p) {
                        *dp = p * (*dp - mean);
                    }
                }
                let mut out = out.slice_mut(s![start..end, ..]);
                matmul_serial(dp.view(), v, Onto::Zero, out.view_mut());
                matmul_serial(p.view(), v_dot, Onto::Itself, out);
            }
        });
    });
}

/// One head's queries, keys and values out of a segment's rows of `qkv`.
fn head_inputs<F>(qkv: ArrayView2<F>, heads: usize, head: usize) -> [ArrayView2<F>; 3] {
    let c = qkv.ncols() / 3;
    let width = c / heads;
    [0, c, 2 * c].map(|base| qkv.slice_move(s![.., base + head * width..base + (head + 1) * width]))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::Array2;

    fn run(qkv: &Array2<f64>, segments: &Segments, heads: usize, scale: f64) -> (Array2<f64>, Array2<f64>) {
        let n = segments.rows();
        let (mut out, mut lse) = (Array2::from_elem((n, qkv.ncols() / 3), f64::NAN), Array2::zeros((n, heads)));
        forward(qkv.view(), segments, heads, scale, out.view_mut(), lse.view_mut());
        (out, lse)
    }

    #[test]
    fn equals_the_definition() {
        let (heads, width) = (3, 5);
        let c = heads * width;
        let segments = Segments::from_lengths([1, 0, 70, 131]);
        let qkv = noise::<f64>(segments.rows(), 3 * c, 1);
        let (out, _) = run(&qkv, &segments, heads, 0.4);
        for range in segments.iter() {
            for i in range.clone() {
                for h in 0..heads {
                    let at = |row: usize, part: usize, d: usize| qkv[[row, part * c + h * width + d]];
                    let scores: Vec<f64> = (range.start..=i)
                        .map(|j| (0.4 * (0..width).map(|d| at(i, 0, d) * at(j, 1, d)).sum::<f64>()).exp())
                        .collect();
                    let total: f64 = scores.iter().sum();
                    for d in 0..width {
                        let want: f64 = scores.iter().zip(range.start..=i).map(|(p, j)| p / total * at(j, 2, d)).sum();
                        assert!((out[[i, h * width + d]] - want).abs() < 1e-12);
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_and_tangents_agree() {
        for (lengths, heads, width) in [(vec![1], 1, 1), (vec![3, 0, 1, 6], 2, 3), (vec![67, 2], 1, 4)] {
            let segments = Segments::from_lengths(lengths);
            let (n, scale) = (segments.rows(), 0.7);
            check(&Op {
                inputs: vec![noise(n, 3 * heads * width, 1)],
                forward: &|v| run(&v[0], &segments, heads, scale).0,
                backward: &|v, dy| {
                    let (out, lse) = run(&v[0], &segments, heads, scale);
                    let mut d = Array2::from_elem(v[0].dim(), f64::NAN);
                    backward(dy.view(), out.view(), lse.view(), v[0].view(), &segments, heads, scale, d.view_mut());
                    vec![d]
                },
                jvp: &|v, d| {
                    let (out, lse) = run(&v[0], &segments, heads, scale);
                    let mut y = out * f64::NAN;
                    jvp(v[0].view(), d[0].view(), lse.view(), &segments, heads, scale, y.view_mut());
                    y
                },
            });
        }
    }

    #[test]
    fn cached_rows_equal_the_whole_to_the_bit() {
        let (heads, c, n) = (2, 16, 150);
        let qkv = noise::<f32>(n, 3 * c, 5);
        let segments = Segments::from_lengths([n]);
        let (mut out, mut lse) = (Array2::zeros((n, c)), Array2::zeros((n, heads)));
        forward(qkv.view(), &segments, heads, 0.25, out.view_mut(), lse.view_mut());
        for (past, new) in [(0, 1), (0, n), (63, 1), (100, 50), (149, 1)] {
            let part = |base: usize, rows| qkv.slice(s![rows, base..base + c]);
            let mut got = Array2::zeros((new, c));
            let (q, k, v) = (part(0, past..past + new), part(c, 0..past + new), part(2 * c, 0..past + new));
            forward_cached(q, k, v, heads, 0.25, got.view_mut());
            assert_eq!(got, out.slice(s![past..past + new, ..]), "{new} rows after {past}");
        }
    }
}
