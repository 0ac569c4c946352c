//! [`Compute`] on the CPU.

use super::{Cpu, Tensor, Weight, weight};
use crate::backend::{Compute, Memory};
use crate::kernel::{Onto, Real, lanes, matmul};
use crate::ops::{
    Activation, GateUp, Heads, Order, Parts, Qkv, Segments, activation, attention, cross_entropy, embedding, gated,
    linear, norm, residual, rms_norm, rope, token_stats,
};
use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::ops::Range;

impl<F: Real> Compute for Cpu<F> {
    fn embed(&self, ids: &[u32], tokens: &Weight<F>, learned: Option<(&[u32], &Weight<F>)>) -> Tensor<F> {
        let mut x = self.empty(ids.len(), tokens.dim().1);
        embedding::forward(
            ids,
            |id, row| tokens.row(id as usize, row),
            learned.map(|(positions, table)| (positions, |at: u32, row: &mut [F]| table.row(at as usize, row))),
            x.view_mut(),
        );
        x
    }

    fn norm(&self, x: &Tensor<F>, gain: &Weight<F>, bias: &Weight<F>, eps: f64) -> (Tensor<F>, Tensor<F>) {
        let (n, c) = x.array.dim();
        let (mut y, mut stats) = (self.empty(n, c), self.empty(n, 2));
        norm::forward(x.view(), &gain.values(), &bias.values(), eps, y.view_mut(), stats.view_mut());
        (y, stats)
    }

    fn rms_norm(&self, x: &Tensor<F>, gain: &Weight<F>, eps: f64) -> (Tensor<F>, Tensor<F>) {
        let (n, c) = x.array.dim();
        let (mut y, mut stats) = (self.empty(n, c), self.empty(n, rms_norm::groups(c, gain.dim().1)));
        rms_norm::forward(x.view(), &gain.values(), eps, y.view_mut(), stats.view_mut());
        (y, stats)
    }

    fn linear(&self, x: &Tensor<F>, w: &Weight<F>, order: Order, bias: Option<&Weight<F>>) -> Tensor<F> {
        let mut y = self.empty(x.array.nrows(), order.sizes(w.dim()).1);
        let bias = bias.map(|bias| bias.values());
        let onto = bias.as_ref().map_or(Onto::Zero, |bias| Onto::Row(bias));
        w.product(x.view(), order == Order::OutIn, onto, y.view_mut());
        y
    }

    fn linears<const N: usize>(
        &self,
        x: &Tensor<F>,
        layers: [(&Weight<F>, Option<&Weight<F>>); N],
        order: Order,
    ) -> [Tensor<F>; N] {
        let mut ys = layers.map(|(w, _)| self.empty(x.array.nrows(), order.sizes(w.dim()).1));
        let biases = layers.map(|(_, bias)| bias.map(|bias| bias.values()));
        let mut into = ys.iter_mut();
        let products = std::array::from_fn(|i| {
            let onto = biases[i].as_ref().map_or(Onto::Zero, |bias| Onto::Row(bias));
            (layers[i].0, onto, into.next().expect("an output a layer").view_mut())
        });
        weight::products::<F, N>(x.view(), order == Order::OutIn, products);
        ys
    }

    fn attention(&self, qkv: Qkv<&Tensor<F>>, segments: &Segments, heads: &Heads) -> (Tensor<F>, Tensor<F>) {
        let n = segments.rows();
        let (mut out, mut lse) = (self.empty(n, heads.heads * heads.width), self.empty(n, heads.heads));
        attention::forward(views(qkv, heads.columns()), segments, heads, out.view_mut(), lse.view_mut());
        (out, lse)
    }

    fn rope(&self, x: &mut Tensor<F>, first: usize, heads: usize, width: usize, table: &Tensor<F>, back: bool) {
        rope::turn(x.array.slice_mut(s![.., first..first + heads * width]), table.view(), width, back);
    }

    fn activation(&self, kind: Activation, x: &Tensor<F>) -> Tensor<F> {
        let mut y = self.empty(x.array.nrows(), x.array.ncols());
        activation::forward(kind, x.view(), y.view_mut());
        y
    }

    fn gated(&self, kind: Activation, x: GateUp<&Tensor<F>>) -> Tensor<F> {
        let inner = inner(x);
        let [gate, up] = views(x, [inner; 2]);
        let mut h = self.empty(gate.nrows(), inner);
        gated::forward(kind, gate, up, h.view_mut());
        h
    }

    fn add(&self, x: &mut Tensor<F>, branch: &Tensor<F>) {
        residual::add(x.view_mut(), branch.view());
    }

    fn scaled(&self, x: &Tensor<F>, by: f32) -> Tensor<F> {
        let (rows, cols) = self.shape(x);
        let (mut y, by) = (self.empty(rows, cols), F::of(by.into()));
        y.as_slice_mut().iter_mut().zip(x.as_slice()).for_each(|(y, &x)| *y = by * x);
        y
    }

    fn head(&self, h: &Tensor<F>, w: &Weight<F>) -> Tensor<F> {
        self.linear(h, w, Order::OutIn, None)
    }

    fn cross_entropy(&self, logits: &Tensor<F>, targets: &[u32], losses: &mut Tensor<F>, first: usize) {
        let losses = &mut losses.as_slice_mut()[first..first + targets.len()];
        cross_entropy::forward(logits.view(), targets, losses);
    }

    fn cross_entropy_backward(
        &self,
        logits: &mut Tensor<F>,
        targets: &[u32],
        weights: &[f32],
        losses: &mut Tensor<F>,
        first: usize,
    ) {
        let weights: Vec<F> = weights.iter().map(|&w| F::of(w as f64)).collect();
        let losses = &mut losses.as_slice_mut()[first..first + targets.len()];
        cross_entropy::forward_backward(logits.view_mut(), targets, &weights, losses);
    }

    fn head_input(&self, dlogits: &Tensor<F>, w: &Weight<F>, dh: &mut Tensor<F>, first: usize) {
        let rows = first..first + dlogits.array.nrows();
        w.product(dlogits.view(), false, Onto::Zero, dh.array.slice_mut(s![rows, ..]));
    }

    fn linear_input(&self, dy: &Tensor<F>, w: &Weight<F>, order: Order) -> Tensor<F> {
        let mut dx = self.empty(dy.array.nrows(), order.sizes(w.dim()).0);
        w.product(dy.view(), order == Order::InOut, Onto::Zero, dx.view_mut());
        dx
    }

    fn add_linear_input(&self, dy: &Tensor<F>, w: &Weight<F>, order: Order, dx: &mut Tensor<F>) {
        w.product(dy.view(), order == Order::InOut, Onto::Itself, dx.view_mut());
    }

    fn norm_backward(
        &self,
        dy: &mut Tensor<F>,
        x: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Weight<F>,
        dgain: bool,
        dx: &mut Tensor<F>,
    ) {
        norm::backward(dy.view_mut(), x.view(), stats.view(), &gain.values(), dgain, dx.view_mut());
    }

    fn rms_norm_backward(
        &self,
        dy: &mut Tensor<F>,
        x: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Weight<F>,
        dgain: bool,
        dx: &mut Tensor<F>,
    ) {
        rms_norm::backward(dy.view_mut(), x.view(), stats.view(), &gain.values(), dgain, dx.view_mut());
    }

    fn fold(&self, x: &Tensor<F>, width: usize) -> Tensor<F> {
        let mut y = self.zeros(x.array.nrows(), width);
        rms_norm::fold(x.view(), y.view_mut());
        y
    }

    fn attention_backward(
        &self,
        dout: &Tensor<F>,
        out: &Tensor<F>,
        lse: &Tensor<F>,
        qkv: Qkv<&Tensor<F>>,
        segments: &Segments,
        heads: &Heads,
    ) -> Qkv<Tensor<F>> {
        let mut d = qkv.map(|x| self.empty(x.array.nrows(), x.array.ncols()));
        let (x, into) = (views(qkv, heads.columns()), views_mut(&mut d, heads.columns()));
        attention::backward(dout.view(), out.view(), lse.view(), x, segments, heads, into);
        d
    }

    fn activation_backward(&self, kind: Activation, x: &Tensor<F>, dy: &mut Tensor<F>) {
        activation::backward(kind, x.view(), dy.view_mut());
    }

    fn gated_backward(&self, kind: Activation, x: GateUp<&Tensor<F>>, dh: &Tensor<F>) -> GateUp<Tensor<F>> {
        let inner = inner(x);
        let mut d = x.map(|x| self.empty(x.array.nrows(), x.array.ncols()));
        let ([gate, up], [dgate, dup]) = (views(x, [inner; 2]), views_mut(&mut d, [inner; 2]));
        gated::backward(kind, gate, up, dh.view(), dgate, dup);
        d
    }

    fn add_outer(&self, x: &Tensor<F>, dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        linear::backward_weight(x.take_rows(rows.clone()), dy.take_rows(rows), out.view_mut());
    }

    fn add_rows(&self, ids: &[u32], dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        embedding::backward(&ids[rows.clone()], dy.take_rows(rows), out.view_mut());
    }

    fn add_columns(&self, dy: &Tensor<F>, rows: Range<usize>, out: &mut Tensor<F>) {
        linear::backward_bias(dy.take_rows(rows), out.as_slice_mut());
    }

    fn add_matmul(&self, x: &Tensor<F>, first: usize, w: &Tensor<F>, y: &mut Tensor<F>) {
        let columns = first..first + w.array.nrows();
        matmul(x.array.slice(s![.., columns]), w.view(), Onto::Itself, y.view_mut());
    }

    fn add_gather(&self, ids: &[u32], table: &Tensor<F>, y: &mut Tensor<F>) {
        for (mut row, &id) in y.array.rows_mut().into_iter().zip(ids) {
            row += &table.array.row(id as usize);
        }
    }

    fn add_vector(&self, v: &Tensor<F>, y: &mut Tensor<F>) {
        for mut row in y.array.rows_mut() {
            row += &v.array.row(0);
        }
    }

    fn add_head(&self, h: &Tensor<F>, w: &Tensor<F>, y: &mut Tensor<F>, first: usize) {
        let columns = first..first + w.array.nrows();
        matmul(h.view(), w.array.t(), Onto::Itself, y.array.slice_mut(s![.., columns]));
    }

    fn add_row_dots(&self, a: &Tensor<F>, b: &Tensor<F>, out: &mut Tensor<F>, first: usize) {
        let (rows, cols) = a.array.dim();
        let (a, b) = (a.as_slice(), b.as_slice());
        out.as_slice_mut()[first..first + rows].par_iter_mut().with_min_len(8).enumerate().for_each(|(i, out)| {
            let row = i * cols..(i + 1) * cols;
            *out += F::of(lanes::dot_f64(&a[row.clone()], &b[row]));
        });
    }

    fn norm_jvp(
        &self,
        x: &Tensor<F>,
        x_dot: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Weight<F>,
        gain_dot: Option<&Tensor<F>>,
        bias_dot: Option<&Tensor<F>>,
    ) -> Tensor<F> {
        let mut y_dot = self.empty(x.array.nrows(), x.array.ncols());
        let (gain_dot, bias_dot) = (gain_dot.map(|t| t.as_slice()), bias_dot.map(|t| t.as_slice()));
        norm::jvp(x.view(), x_dot.view(), stats.view(), &gain.values(), gain_dot, bias_dot, y_dot.view_mut());
        y_dot
    }

    fn rms_norm_jvp(
        &self,
        x: &Tensor<F>,
        x_dot: &Tensor<F>,
        stats: &Tensor<F>,
        gain: &Weight<F>,
        gain_dot: Option<&Tensor<F>>,
    ) -> Tensor<F> {
        let mut y_dot = self.empty(x.array.nrows(), x.array.ncols());
        let gain_dot = gain_dot.map(|t| t.as_slice());
        rms_norm::jvp(x.view(), x_dot.view(), stats.view(), &gain.values(), gain_dot, y_dot.view_mut());
        y_dot
    }

    fn gated_jvp(&self, kind: Activation, x: GateUp<&Tensor<F>>, x_dot: GateUp<&Tensor<F>>) -> Tensor<F> {
        let widths = [inner(x); 2];
        let mut h_dot = self.empty(x.iter().next().expect("a tensor").array.nrows(), widths[0]);
        gated::jvp(kind, views(x, widths), views(x_dot, widths), h_dot.view_mut());
        h_dot
    }

    fn attention_jvp(
        &self,
        qkv: Qkv<&Tensor<F>>,
        qkv_dot: Qkv<&Tensor<F>>,
        lse: &Tensor<F>,
        segments: &Segments,
        heads: &Heads,
    ) -> Tensor<F> {
        let mut out_dot = self.empty(segments.rows(), heads.heads * heads.width);
        let [x, x_dot] = [qkv, qkv_dot].map(|x| views(x, heads.columns()));
        attention::jvp(x, x_dot, lse.view(), segments, heads, out_dot.view_mut());
        out_dot
    }

    fn cross_entropy_jvp(
        &self,
        logits: &Tensor<F>,
        logits_dot: &Tensor<F>,
        targets: &[u32],
        losses_dot: &mut Tensor<F>,
        first: usize,
    ) {
        let losses_dot = &mut losses_dot.as_slice_mut()[first..first + targets.len()];
        cross_entropy::jvp(logits.view(), logits_dot.view(), targets, losses_dot);
    }

    fn attention_cached(
        &self,
        qkv: Qkv<&Tensor<F>>,
        keys: &mut Tensor<F>,
        values: &mut Tensor<F>,
        past: usize,
        heads: &Heads,
    ) -> Tensor<F> {
        let [q, k, v] = views(qkv, heads.columns());
        let n = q.nrows();
        keys.array.slice_mut(s![past..past + n, ..]).assign(&k);
        values.array.slice_mut(s![past..past + n, ..]).assign(&v);
        let mut out = self.empty(n, q.ncols());
        let (k, v) = (keys.take_rows(0..past + n), values.take_rows(0..past + n));
        attention::forward_cached([q, k, v], heads, out.view_mut());
        out
    }

    fn token_stats(&self, logits: &Tensor<F>, targets: &[u32], stats: &mut Tensor<F>, first: usize) {
        let rows = stats.array.slice_mut(s![first..first + targets.len(), ..]);
        token_stats::forward(logits.view(), targets, rows);
    }
}

/// The blocks of columns of a projection.
fn views<'a, F: Real, const N: usize>(x: Parts<&'a Tensor<F>, N>, widths: [usize; N]) -> [ArrayView2<'a, F>; N] {
    let mut widths_left = widths.into_iter();
    x.columns(widths).map(|(x, first)| {
        let width = widths_left.next().expect("a width a block");
        x.array.slice(s![.., first..first + width])
    })
}

/// The blocks of columns of a projection, to write to.
fn views_mut<F: Real, const N: usize>(x: &mut Parts<Tensor<F>, N>, widths: [usize; N]) -> [ArrayViewMut2<'_, F>; N] {
    match x {
        Parts::Split(x) => x.each_mut().map(|x| x.array.view_mut()),
        Parts::Fused(x) => {
            let mut rest = Some(x.array.view_mut());
            widths.map(|width| {
                let (block, right) = rest.take().expect("columns to the right").split_at(Axis(1), width);
                rest = Some(right);
                block
            })
        }
    }
}

/// Columns of a gated layer's output.
fn inner<F: Real>(x: GateUp<&Tensor<F>>) -> usize {
    match x {
        Parts::Fused(x) => x.array.ncols() / 2,
        Parts::Split([gate, _]) => gate.array.ncols(),
    }
}
