//! [`Compute`] on the GPU: each op names its windows and its kernel.

use super::context::Arg;
use super::kernels::{self, Kernel};
use super::matmul::{Factor, Target, matmul};
use super::params::Logits;
use super::tensor::Window;
use super::{Gpu, Tensor, attention, gated, norm, rows};
use crate::backend::{Compute, Memory, Updates};
use crate::ops::{Activation, GateUp, Heads, Order, Parts, Qkv, Segments, rms_norm};
use std::ops::Range;

impl Gpu {
    fn matmul(&self, a: Factor, b: Factor, bias: Option<&Tensor>, c: Target) {
        matmul(&self.context, a, b, bias, c);
    }

    /// A workgroup for each of the first `count` rows of the logits, with `each` operations a number; what it gives goes to rows `first..` of `out`. `args`
    /// are those of a window of rows of the two.
    fn each_row<'a>(
        &self,
        kernel: &'static Kernel,
        each: f64,
        (logits, count): (&'a Tensor, usize),
        (out, first): (&'a Tensor, usize),
        args: impl Fn(Range<usize>, Window<'a>, Window<'a>) -> Vec<Arg<'a>>,
    ) {
        for rows in self.context.blocks(0..count, &[logits.cols]) {
            let (from, to) = (logits.window(rows.clone()), out.window(first + rows.start..first + rows.end));
            let params = Logits {
                rows: rows.len() as u32,
                cols: logits.cols as u32,
                line: from.line / 4,
                start_logits: from.start,
                start_out: to.start,
                first: rows.start as u32,
            };
            let (count, flops) = (rows.len(), each * (rows.len() * logits.cols) as f64);
            self.context.run(kernel, &[], &args(rows, from, to), &params, count, flops);
        }
    }
}

/// A weight as (in, out).
fn weight(w: &Tensor, order: Order) -> Factor<'_> {
    if order == Order::InOut { Factor::plain(w) } else { Factor::transposed(w) }
}

/// A weight as (out, in).
fn transposed_weight(w: &Tensor, order: Order) -> Factor<'_> {
    if order == Order::InOut { Factor::transposed(w) } else { Factor::plain(w) }
}

/// Rows of a projection.
fn rows_of<const N: usize>(x: Parts<&Tensor, N>) -> usize {
    x.iter().next().map_or(0, |x| x.rows)
}

impl Compute for Gpu {
    fn embed(&self, ids: &[u32], tokens: &Tensor, learned: Option<(&[u32], &Tensor)>) -> Tensor {
        let x = self.empty(ids.len(), tokens.cols);
        rows::gather(&self.context, ids, tokens, &x, false);
        if let Some((positions, table)) = learned {
            rows::gather(&self.context, positions, table, &x, true);
        }
        x
    }

    fn norm(&self, x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f64) -> (Tensor, Tensor) {
        let (y, stats) = (self.empty(x.rows, x.cols), self.empty(x.rows, 2));
        norm::forward(&self.context, x, gain, Some(bias), eps, &y, &stats);
        (y, stats)
    }

    fn linear(&self, x: &Tensor, w: &Tensor, order: Order, bias: Option<&Tensor>) -> Tensor {
        let y = self.empty(x.rows, order.sizes((w.rows, w.cols)).1);
        self.matmul(Factor::plain(x), weight(w, order), bias, Target::new(&y));
        y
    }

    fn attention(&self, qkv: Qkv<&Tensor>, segments: &Segments, heads: &Heads) -> (Tensor, Tensor) {
        let n = segments.rows();
        let (out, lse) = (self.empty(n, heads.heads * heads.width), self.empty(n, heads.heads));
        attention::forward(&self.context, qkv, segments, heads, &out, &lse);
        (out, lse)
    }

    fn rope(&self, x: &mut Tensor, first: usize, heads: usize, width: usize, table: &Tensor, back: bool) {
        gated::rope(&self.context, x, (first, heads, width), table, back);
    }

    fn rms_norm(&self, x: &Tensor, gain: &Tensor, eps: f64) -> (Tensor, Tensor) {
        let (y, stats) = (self.empty(x.rows, x.cols), self.empty(x.rows, rms_norm::groups(x.cols, gain.cols)));
        norm::forward(&self.context, x, gain, None, eps, &y, &stats);
        (y, stats)
    }

    fn rms_norm_backward(
        &self,
        dy: &mut Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        dgain: bool,
        dx: &mut Tensor,
    ) {
        norm::backward(&self.context, (&kernels::RMS_NORM_BACKWARD, 10.0), dy, (x, stats), gain, dgain, dx);
    }

    fn rms_norm_jvp(
        &self,
        x: &Tensor,
        x_dot: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        gain_dot: Option<&Tensor>,
    ) -> Tensor {
        let y_dot = self.empty(x.rows, x.cols);
        norm::jvp(&self.context, (&kernels::RMS_NORM_JVP, 10.0), (x, x_dot), stats, gain, &[gain_dot], &y_dot);
        y_dot
    }

    fn fold(&self, x: &Tensor, width: usize) -> Tensor {
        let y = self.empty(x.rows, width);
        norm::fold(&self.context, x, &y);
        y
    }

    fn gated(&self, kind: Activation, x: GateUp<&Tensor>) -> Tensor {
        let h = self.empty(rows_of(x), gated::inner(x));
        gated::forward(&self.context, kind, x, &h);
        h
    }

    fn gated_backward(&self, kind: Activation, x: GateUp<&Tensor>, dh: &Tensor) -> GateUp<Tensor> {
        let d = x.map(|x| self.empty(x.rows, x.cols));
        gated::backward(&self.context, kind, x, dh, d.as_ref());
        d
    }

    fn gated_jvp(&self, kind: Activation, x: GateUp<&Tensor>, x_dot: GateUp<&Tensor>) -> Tensor {
        let h_dot = self.empty(rows_of(x), gated::inner(x));
        gated::jvp(&self.context, kind, x, x_dot, &h_dot);
        h_dot
    }

    fn activation(&self, kind: Activation, x: &Tensor) -> Tensor {
        let y = self.empty(x.rows, x.cols);
        rows::elementwise(&self.context, &kernels::ACTIVATION, &[rows::kind(kind)], x, &y, 20.0);
        y
    }

    fn add(&self, x: &mut Tensor, branch: &Tensor) {
        assert_eq!((x.rows, x.cols), (branch.rows, branch.cols), "the two sides of a residual");
        rows::elementwise(&self.context, &kernels::ADD, &[], branch, x, 1.0);
    }

    fn scaled(&self, x: &Tensor, by: f32) -> Tensor {
        let mut y = self.zeros(x.rows, x.cols);
        self.subtract(&mut y, x, 0, -by);
        y
    }

    fn head(&self, h: &Tensor, w: &Tensor) -> Tensor {
        let logits = self.empty(h.rows, w.rows);
        self.matmul(Factor::plain(h), Factor::transposed(w), None, Target::new(&logits));
        logits
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &[u32], losses: &mut Tensor, first: usize) {
        self.each_row(&kernels::CROSS_ENTROPY, 10.0, (logits, targets.len()), (losses, first), |_, from, to| {
            vec![Arg::Rows(from), Arg::Words(targets), Arg::Rows(to)]
        });
    }

    fn cross_entropy_backward(
        &self,
        logits: &mut Tensor,
        targets: &[u32],
        weights: &[f32],
        losses: &mut Tensor,
        first: usize,
    ) {
        let weights: &[u32] = bytemuck::cast_slice(weights);
        self.each_row(
            &kernels::CROSS_ENTROPY_BACKWARD,
            20.0,
            (logits, targets.len()),
            (losses, first),
            |_, from, to| vec![Arg::Words(targets), Arg::Rows(to), Arg::Words(weights), Arg::Rows(from)],
        );
    }

    fn head_input(&self, dlogits: &Tensor, w: &Tensor, dh: &mut Tensor, first: usize) {
        let target = Target { tensor: dh, first_row: first, first_column: 0, add: false };
        self.matmul(Factor::plain(dlogits), Factor::plain(w), None, target);
    }

    fn linear_input(&self, dy: &Tensor, w: &Tensor, order: Order) -> Tensor {
        let dx = self.empty(dy.rows, order.sizes((w.rows, w.cols)).0);
        self.matmul(Factor::plain(dy), transposed_weight(w, order), None, Target::new(&dx));
        dx
    }

    fn add_linear_input(&self, dy: &Tensor, w: &Tensor, order: Order, dx: &mut Tensor) {
        self.matmul(Factor::plain(dy), transposed_weight(w, order), None, Target::sum(dx));
    }

    fn norm_backward(&self, dy: &mut Tensor, x: &Tensor, stats: &Tensor, gain: &Tensor, dgain: bool, dx: &mut Tensor) {
        norm::backward(&self.context, (&kernels::NORM_BACKWARD, 14.0), dy, (x, stats), gain, dgain, dx);
    }

    fn attention_backward(
        &self,
        dout: &Tensor,
        out: &Tensor,
        lse: &Tensor,
        qkv: Qkv<&Tensor>,
        segments: &Segments,
        heads: &Heads,
    ) -> Qkv<Tensor> {
        let d = qkv.map(|x| self.empty(x.rows, x.cols));
        attention::backward(self, (dout, out, lse), qkv, segments, heads, d.as_ref());
        d
    }

    fn activation_backward(&self, kind: Activation, x: &Tensor, dy: &mut Tensor) {
        assert_eq!((x.rows, x.cols), (dy.rows, dy.cols), "shapes of an activation");
        rows::elementwise(&self.context, &kernels::ACTIVATION_BACKWARD, &[rows::kind(kind)], x, dy, 25.0);
    }

    fn add_outer(&self, x: &Tensor, dy: &Tensor, rows: Range<usize>, out: &mut Tensor) {
        let a = Factor::transposed(x).rows(rows.clone());
        self.matmul(a, Factor::plain(dy).rows(rows), None, Target::sum(out));
    }

    fn add_rows(&self, ids: &[u32], dy: &Tensor, rows: Range<usize>, out: &mut Tensor) {
        rows::scatter(&self.context, ids, dy, rows, out);
    }

    fn add_columns(&self, dy: &Tensor, rows: Range<usize>, out: &mut Tensor) {
        rows::columns(self, dy, rows, out, 0);
    }

    fn add_matmul(&self, x: &Tensor, first: usize, w: &Tensor, y: &mut Tensor) {
        let a = Factor::plain(x).columns(first..first + w.rows);
        self.matmul(a, Factor::plain(w), None, Target::sum(y));
    }

    fn add_gather(&self, ids: &[u32], table: &Tensor, y: &mut Tensor) {
        rows::gather(&self.context, ids, table, y, true);
    }

    fn add_vector(&self, v: &Tensor, y: &mut Tensor) {
        assert_eq!(v.rows, 1, "a vector is one row");
        rows::elementwise(&self.context, &kernels::ADD_VECTOR, &[], v, y, 1.0);
    }

    fn add_head(&self, h: &Tensor, w: &Tensor, y: &mut Tensor, first: usize) {
        let target = Target { tensor: y, first_row: 0, first_column: first, add: true };
        self.matmul(Factor::plain(h), Factor::transposed(w), None, target);
    }

    fn add_row_dots(&self, a: &Tensor, b: &Tensor, out: &mut Tensor, first: usize) {
        rows::row_dots(&self.context, a, b, out, first);
    }

    fn norm_jvp(
        &self,
        x: &Tensor,
        x_dot: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        gain_dot: Option<&Tensor>,
        bias_dot: Option<&Tensor>,
    ) -> Tensor {
        let y_dot = self.empty(x.rows, x.cols);
        let dots = [gain_dot, bias_dot];
        norm::jvp(&self.context, (&kernels::NORM_JVP, 14.0), (x, x_dot), stats, gain, &dots, &y_dot);
        y_dot
    }

    fn attention_jvp(
        &self,
        qkv: Qkv<&Tensor>,
        qkv_dot: Qkv<&Tensor>,
        lse: &Tensor,
        segments: &Segments,
        heads: &Heads,
    ) -> Tensor {
        let out_dot = self.empty(segments.rows(), heads.heads * heads.width);
        attention::jvp(self, qkv, qkv_dot, lse, segments, heads, &out_dot);
        out_dot
    }

    fn cross_entropy_jvp(
        &self,
        logits: &Tensor,
        logits_dot: &Tensor,
        targets: &[u32],
        losses_dot: &mut Tensor,
        first: usize,
    ) {
        assert_eq!(logits.cols, logits_dot.cols, "columns of logits and their tangents");
        self.each_row(
            &kernels::CROSS_ENTROPY_JVP,
            12.0,
            (logits, targets.len()),
            (losses_dot, first),
            |rows, from, to| {
                vec![Arg::Rows(from), Arg::Words(targets), Arg::Rows(to), Arg::Rows(logits_dot.window(rows))]
            },
        );
    }

    fn attention_cached(
        &self,
        qkv: Qkv<&Tensor>,
        keys: &mut Tensor,
        values: &mut Tensor,
        past: usize,
        heads: &Heads,
    ) -> Tensor {
        let n = rows_of(qkv);
        let (out, lse) = (self.empty(n, heads.heads * heads.width), self.empty(n, heads.heads));
        attention::cached(&self.context, qkv, (keys, values), past, heads, &out, &lse);
        out
    }

    fn token_stats(&self, logits: &Tensor, targets: &[u32], stats: &mut Tensor, first: usize) {
        assert_eq!(stats.cols, 4, "statistics a row");
        self.each_row(&kernels::TOKEN_STATS, 40.0, (logits, targets.len()), (stats, first), |_, from, to| {
            vec![Arg::Rows(from), Arg::Words(targets), Arg::Rows(to)]
        });
    }
}
