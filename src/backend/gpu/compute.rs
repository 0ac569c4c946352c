//! [`Compute`] on the GPU: each op names its windows and its kernel.

use super::attention::{self, Shape};
use super::context::Arg;
use super::matmul::{Factor, Target, matmul};
use super::{Gpu, Tensor, kernels, rows};
use crate::backend::{Compute, Memory};
use crate::ops::{Activation, GateUp, Heads, Order, Parts, Qkv, Segments};
use std::ops::Range;

impl Gpu {
    fn matmul(&self, a: Factor, b: Factor, bias: Option<&Tensor>, c: Target) {
        matmul(&self.context, a, b, bias, c);
    }

    fn missing(&self, what: &str) {
        self.context.fault.set(format!("{what} is not there on the GPU: use --device cpu"));
    }

    fn plain<'a>(&self, qkv: Qkv<&'a Tensor>, heads: &Heads) -> Option<(&'a Tensor, Shape)> {
        match qkv {
            Parts::Fused(x) if *heads == Heads::plain(heads.heads, heads.width, heads.scale) => {
                Some((x, Shape { heads: heads.heads, width: heads.heads * heads.width, scale: heads.scale }))
            }
            _ => {
                self.missing("attention of grouped, sloped or windowed heads");
                None
            }
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
        for rows in self.context.blocks(0..x.rows, &[x.cols]) {
            let (from, to, stats) = (x.window(rows.clone()), y.window(rows.clone()), stats.window(rows.clone()));
            let (gain, bias) = (gain.whole(), bias.whole());
            let params = [
                rows.len() as u32,
                x.cols as u32,
                from.line / 4,
                (eps as f32).to_bits(),
                from.start,
                stats.start,
                gain.start,
                bias.start,
                to.start,
                0,
                0,
            ];
            let args = [Arg::Rows(from), Arg::Rows(gain), Arg::Rows(bias), Arg::Rows(to), Arg::Rows(stats)];
            self.context.run(&kernels::NORM, &[], &args, &params, rows.len(), 8.0 * (rows.len() * x.cols) as f64);
        }
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
        if let Some((qkv, shape)) = self.plain(qkv, heads) {
            attention::forward(&self.context, qkv, segments, shape, &out, &lse);
        }
        (out, lse)
    }

    fn rope(&self, _: &mut Tensor, _: usize, _: usize, _: usize, _: &Tensor, _: bool) {
        self.missing("rotary positions");
    }

    fn rms_norm(&self, x: &Tensor, _: &Tensor, _: f64) -> (Tensor, Tensor) {
        self.missing("the root mean square norm");
        (self.zeros(x.rows, x.cols), self.zeros(x.rows, 1))
    }

    fn rms_norm_backward(&self, _: &mut Tensor, _: &Tensor, _: &Tensor, _: &Tensor, _: bool, _: &mut Tensor) {
        self.missing("the root mean square norm");
    }

    fn rms_norm_jvp(&self, x: &Tensor, _: &Tensor, _: &Tensor, _: &Tensor, _: Option<&Tensor>) -> Tensor {
        self.missing("the root mean square norm");
        self.zeros(x.rows, x.cols)
    }

    fn fold(&self, x: &Tensor, width: usize) -> Tensor {
        self.missing("the root mean square norm");
        self.zeros(x.rows, width)
    }

    fn gated(&self, _: Activation, x: GateUp<&Tensor>) -> Tensor {
        self.missing("the gated MLP");
        match x {
            Parts::Fused(x) => self.zeros(x.rows, x.cols / 2),
            Parts::Split([x, _]) => self.zeros(x.rows, x.cols),
        }
    }

    fn gated_backward(&self, _: Activation, x: GateUp<&Tensor>, _: &Tensor) -> GateUp<Tensor> {
        self.missing("the gated MLP");
        x.map(|x| self.zeros(x.rows, x.cols))
    }

    fn gated_jvp(&self, kind: Activation, x: GateUp<&Tensor>, _: GateUp<&Tensor>) -> Tensor {
        self.gated(kind, x)
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

    fn head(&self, h: &Tensor, w: &Tensor) -> Tensor {
        let logits = self.empty(h.rows, w.rows);
        self.matmul(Factor::plain(h), Factor::transposed(w), None, Target::new(&logits));
        logits
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &[u32], losses: &mut Tensor, first: usize) {
        for rows in self.context.blocks(0..targets.len(), &[logits.cols]) {
            let from = logits.window(rows.clone());
            let to = losses.window(first + rows.start..first + rows.end);
            let params =
                [rows.len() as u32, logits.cols as u32, from.line / 4, from.start, 0, to.start, rows.start as u32];
            let args = [Arg::Rows(from), Arg::Words(targets), Arg::Rows(to)];
            let flops = 10.0 * (rows.len() * logits.cols) as f64;
            self.context.run(&kernels::CROSS_ENTROPY, &[], &args, &params, rows.len(), flops);
        }
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
        for rows in self.context.blocks(0..targets.len(), &[logits.cols]) {
            let from = logits.window(rows.clone());
            let to = losses.window(first + rows.start..first + rows.end);
            let params =
                [rows.len() as u32, logits.cols as u32, from.line / 4, from.start, 0, to.start, rows.start as u32];
            let args = [Arg::Words(targets), Arg::Rows(to), Arg::Words(weights), Arg::Rows(from)];
            let flops = 20.0 * (rows.len() * logits.cols) as f64;
            self.context.run(&kernels::CROSS_ENTROPY_BACKWARD, &[], &args, &params, rows.len(), flops);
        }
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
        for rows in self.context.blocks(0..x.rows, &[x.cols]) {
            let (from, grad, to) = (x.window(rows.clone()), dy.window(rows.clone()), dx.window(rows.clone()));
            let (stats, gain) = (stats.window(rows.clone()), gain.whole());
            let params = [
                rows.len() as u32,
                x.cols as u32,
                from.line / 4,
                0,
                from.start,
                stats.start,
                gain.start,
                0,
                grad.start,
                to.start,
                dgain as u32,
            ];
            let args = [Arg::Rows(from), Arg::Rows(gain), Arg::Rows(stats), Arg::Rows(grad), Arg::Rows(to)];
            let flops = 14.0 * (rows.len() * x.cols) as f64;
            self.context.run(&kernels::NORM_BACKWARD, &[], &args, &params, rows.len(), flops);
        }
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
        let Some((x, shape)) = self.plain(qkv, heads) else { return qkv.map(|x| self.zeros(x.rows, x.cols)) };
        let (delta, dqkv) = (self.empty(x.rows, heads.heads), self.empty(x.rows, x.cols));
        attention::backward(&self.context, dout, out, lse, x, segments, shape, &delta, &dqkv);
        Qkv::Fused(dqkv)
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
        rows::columns(&self.context, dy, rows, out, 0, &|rows, cols| self.empty(rows, cols));
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
        for rows in self.context.blocks(0..x.rows, &[x.cols]) {
            let (from, tangent, to) = (x.window(rows.clone()), x_dot.window(rows.clone()), y_dot.window(rows.clone()));
            let (stats, gain) = (stats.window(rows.clone()), gain.whole());
            let flags = gain_dot.is_some() as u32 | (bias_dot.is_some() as u32) << 1;
            let params = [
                rows.len() as u32,
                x.cols as u32,
                from.line / 4,
                0,
                from.start,
                stats.start,
                gain.start,
                0,
                to.start,
                tangent.start,
                flags,
            ];
            let args = [
                Arg::Rows(from),
                Arg::Rows(gain),
                Arg::Rows(stats),
                Arg::Rows(tangent),
                gain_dot.map_or(Arg::Nothing, |t| Arg::Rows(t.whole())),
                bias_dot.map_or(Arg::Nothing, |t| Arg::Rows(t.whole())),
                Arg::Rows(to),
            ];
            let flops = 14.0 * (rows.len() * x.cols) as f64;
            self.context.run(&kernels::NORM_JVP, &[], &args, &params, rows.len(), flops);
        }
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
        if let (Some((x, shape)), Some((x_dot, _))) = (self.plain(qkv, heads), self.plain(qkv_dot, heads)) {
            attention::jvp(&self.context, x, x_dot, lse, segments, shape, &out_dot);
        }
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
        for rows in self.context.blocks(0..targets.len(), &[logits.cols]) {
            let (from, dot) = (logits.window(rows.clone()), logits_dot.window(rows.clone()));
            let to = losses_dot.window(first + rows.start..first + rows.end);
            let params = [
                rows.len() as u32,
                logits.cols as u32,
                from.line / 4,
                from.start,
                dot.start,
                to.start,
                rows.start as u32,
            ];
            let args = [Arg::Rows(from), Arg::Words(targets), Arg::Rows(to), Arg::Rows(dot)];
            let flops = 12.0 * (rows.len() * logits.cols) as f64;
            self.context.run(&kernels::CROSS_ENTROPY_JVP, &[], &args, &params, rows.len(), flops);
        }
    }

    fn attention_cached(
        &self,
        qkv: Qkv<&Tensor>,
        keys: &mut Tensor,
        values: &mut Tensor,
        past: usize,
        heads: &Heads,
    ) -> Tensor {
        let n = qkv.iter().next().expect("a tensor").rows;
        let (out, lse) = (self.empty(n, heads.heads * heads.width), self.empty(n, heads.heads));
        if let Some((x, shape)) = self.plain(qkv, heads) {
            attention::cached(&self.context, x, (keys, values), past, shape, &out, &lse);
        }
        out
    }

    fn token_stats(&self, logits: &Tensor, targets: &[u32], stats: &mut Tensor, first: usize) {
        assert_eq!(stats.cols, 4, "statistics a row");
        for rows in self.context.blocks(0..targets.len(), &[logits.cols]) {
            let from = logits.window(rows.clone());
            let to = stats.window(first + rows.start..first + rows.end);
            let params =
                [rows.len() as u32, logits.cols as u32, from.line / 4, from.start, to.start, rows.start as u32];
            let args = [Arg::Rows(from), Arg::Words(targets), Arg::Rows(to)];
            let flops = 40.0 * (rows.len() * logits.cols) as f64;
            self.context.run(&kernels::TOKEN_STATS, &[], &args, &params, rows.len(), flops);
        }
    }
}
