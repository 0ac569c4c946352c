//! The decoder's ops, forward, backward and jvp.

use super::Memory;
use crate::ops::{Activation, GateUp, Heads, Order, Qkv, Segments};
use std::ops::Range;

/// The ops of the decoder. Each mirrors a function in [`crate::ops`], where formula and shapes are documented.
pub trait Compute: Memory {
    /// [`crate::ops::embedding::forward`].
    fn embed(&self, ids: &[u32], tokens: &Self::Weight, learned: Option<(&[u32], &Self::Weight)>) -> Self::Tensor;
    /// [`crate::ops::norm::forward`]: output and statistics.
    fn norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Weight,
        bias: &Self::Weight,
        eps: f64,
    ) -> (Self::Tensor, Self::Tensor);
    /// [`crate::ops::rms_norm::forward`]: output and statistics. A gain narrower than the rows normalises each group of columns on
    /// its own.
    fn rms_norm(&self, x: &Self::Tensor, gain: &Self::Weight, eps: f64) -> (Self::Tensor, Self::Tensor);
    /// [`crate::ops::linear::forward`].
    fn linear(&self, x: &Self::Tensor, w: &Self::Weight, order: Order, bias: Option<&Self::Weight>) -> Self::Tensor;
    /// [`Compute::linear`] by several weights and biases of one input.
    fn linears<const N: usize>(
        &self,
        x: &Self::Tensor,
        layers: [(&Self::Weight, Option<&Self::Weight>); N],
        order: Order,
    ) -> [Self::Tensor; N] {
        layers.map(|(w, bias)| self.linear(x, w, order, bias))
    }
    /// [`crate::ops::attention::forward`]: output and log-sum-exp.
    fn attention(&self, qkv: Qkv<&Self::Tensor>, segments: &Segments, heads: &Heads) -> (Self::Tensor, Self::Tensor);
    /// [`crate::ops::rope::turn`] on `heads` heads of `width` columns from column `first` on: a value or a tangent, or, `back`, a gradient.
    /// `table` holds rows of [`crate::ops::rope::Rope::table`].
    fn rope(&self, x: &mut Self::Tensor, first: usize, heads: usize, width: usize, table: &Self::Tensor, back: bool);
    /// [`crate::ops::activation::forward`].
    fn activation(&self, kind: Activation, x: &Self::Tensor) -> Self::Tensor;
    /// [`crate::ops::gated::forward`].
    fn gated(&self, kind: Activation, x: GateUp<&Self::Tensor>) -> Self::Tensor;
    /// [`crate::ops::residual::add`].
    fn add(&self, x: &mut Self::Tensor, branch: &Self::Tensor);
    /// `by * x`.
    fn scaled(&self, x: &Self::Tensor, by: f32) -> Self::Tensor;
    /// Logits `h Wᵀ` of an output head stored `[V, C]`.
    fn head(&self, h: &Self::Tensor, w: &Self::Weight) -> Self::Tensor;
    /// [`crate::ops::cross_entropy::forward`], into rows `first..` of the column `losses`.
    fn cross_entropy(&self, logits: &Self::Tensor, targets: &[u32], losses: &mut Self::Tensor, first: usize);

    /// [`crate::ops::cross_entropy::forward_backward`], into rows `first..` of the column `losses`.
    fn cross_entropy_backward(
        &self,
        logits: &mut Self::Tensor,
        targets: &[u32],
        weights: &[f32],
        losses: &mut Self::Tensor,
        first: usize,
    );
    /// Backward of [`Compute::head`] to its input, `dlogits W`, into rows `first..` of `dh`.
    fn head_input(&self, dlogits: &Self::Tensor, w: &Self::Weight, dh: &mut Self::Tensor, first: usize);
    /// [`crate::ops::linear::backward_input`].
    fn linear_input(&self, dy: &Self::Tensor, w: &Self::Weight, order: Order) -> Self::Tensor;
    /// As [`Compute::linear_input`], `dx += dy Wᵀ`: for the other projections of an input that has several.
    fn add_linear_input(&self, dy: &Self::Tensor, w: &Self::Weight, order: Order, dx: &mut Self::Tensor);
    /// [`crate::ops::norm::backward`].
    fn norm_backward(
        &self,
        dy: &mut Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Weight,
        dgain: bool,
        dx: &mut Self::Tensor,
    );
    /// [`crate::ops::rms_norm::backward`].
    fn rms_norm_backward(
        &self,
        dy: &mut Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Weight,
        dgain: bool,
        dx: &mut Self::Tensor,
    );
    /// The sum of every row's groups of `width` columns (N x width): the rows of a gain's gradient where several groups share it.
    fn fold(&self, x: &Self::Tensor, width: usize) -> Self::Tensor;
    /// [`crate::ops::attention::backward`]: gradients in the shape of `qkv`.
    fn attention_backward(
        &self,
        dout: &Self::Tensor,
        out: &Self::Tensor,
        lse: &Self::Tensor,
        qkv: Qkv<&Self::Tensor>,
        segments: &Segments,
        heads: &Heads,
    ) -> Qkv<Self::Tensor>;
    /// [`crate::ops::activation::backward`].
    fn activation_backward(&self, kind: Activation, x: &Self::Tensor, dy: &mut Self::Tensor);
    /// [`crate::ops::gated::backward`]: gradients in the shape of `x`.
    fn gated_backward(&self, kind: Activation, x: GateUp<&Self::Tensor>, dh: &Self::Tensor) -> GateUp<Self::Tensor>;

    /// `out += x[rows]ᵀ dy[rows]`: the gradient of a weight from its factors.
    fn add_outer(&self, x: &Self::Tensor, dy: &Self::Tensor, rows: Range<usize>, out: &mut Self::Tensor);
    /// `out[ids_i] += dy_i` for i in `rows`: the gradient of an embedding.
    fn add_rows(&self, ids: &[u32], dy: &Self::Tensor, rows: Range<usize>, out: &mut Self::Tensor);
    /// `out += sum of dy[rows]`: the gradient of a bias or gain.
    fn add_columns(&self, dy: &Self::Tensor, rows: Range<usize>, out: &mut Self::Tensor);

    /// `y += x[.., first..] w` for a block of a weight's rows, from row `first` on: a tangent through a weight.
    fn add_matmul(&self, x: &Self::Tensor, first: usize, w: &Self::Tensor, y: &mut Self::Tensor);
    /// `y_i += table[ids_i]`: a tangent through an embedding.
    fn add_gather(&self, ids: &[u32], table: &Self::Tensor, y: &mut Self::Tensor);
    /// `y_i += v` for every row: a tangent through a bias.
    fn add_vector(&self, v: &Self::Tensor, y: &mut Self::Tensor);
    /// `y[.., first..] += h wᵀ` for a block of an output head's rows, from row `first` on: a tangent through the head.
    fn add_head(&self, h: &Self::Tensor, w: &Self::Tensor, y: &mut Self::Tensor, first: usize);
    /// `out_(first + i) += <a_i, b_i>` for every row i, into the column `out`.
    fn add_row_dots(&self, a: &Self::Tensor, b: &Self::Tensor, out: &mut Self::Tensor, first: usize);
    /// [`crate::ops::norm::jvp`].
    fn norm_jvp(
        &self,
        x: &Self::Tensor,
        x_dot: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Weight,
        gain_dot: Option<&Self::Tensor>,
        bias_dot: Option<&Self::Tensor>,
    ) -> Self::Tensor;
    /// [`crate::ops::rms_norm::jvp`].
    fn rms_norm_jvp(
        &self,
        x: &Self::Tensor,
        x_dot: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Weight,
        gain_dot: Option<&Self::Tensor>,
    ) -> Self::Tensor;
    /// [`crate::ops::gated::jvp`].
    fn gated_jvp(&self, kind: Activation, x: GateUp<&Self::Tensor>, x_dot: GateUp<&Self::Tensor>) -> Self::Tensor;
    /// [`crate::ops::attention::jvp`].
    fn attention_jvp(
        &self,
        qkv: Qkv<&Self::Tensor>,
        qkv_dot: Qkv<&Self::Tensor>,
        lse: &Self::Tensor,
        segments: &Segments,
        heads: &Heads,
    ) -> Self::Tensor;
    /// [`crate::ops::cross_entropy::jvp`], into rows `first..` of the column `losses_dot`.
    fn cross_entropy_jvp(
        &self,
        logits: &Self::Tensor,
        logits_dot: &Self::Tensor,
        targets: &[u32],
        losses_dot: &mut Self::Tensor,
        first: usize,
    );

    /// `qkv`'s keys and values into rows `past..` of the cache, and [`crate::ops::attention::forward_cached`].
    fn attention_cached(
        &self,
        qkv: Qkv<&Self::Tensor>,
        keys: &mut Self::Tensor,
        values: &mut Self::Tensor,
        past: usize,
        heads: &Heads,
    ) -> Self::Tensor;

    /// [`crate::ops::token_stats::forward`], into rows `first..` of `stats` (N x 4).
    fn token_stats(&self, logits: &Self::Tensor, targets: &[u32], stats: &mut Self::Tensor, first: usize);
}
