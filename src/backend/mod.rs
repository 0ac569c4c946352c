//! Where the decoder's ops run.
//!
//! [`Backend`] is the list of coarse ops that the decoder, the gradient sinks and the methods are written in. `Cpu<f32>` trains,
//! `Cpu<f64>` checks gradients. A tensor of one backend cannot meet another's: it does not compile.
//!
//! Tensors are matrices in row-major order; a vector is one row. Ops that can fail on a device (out of memory, device lost)
//! do not return errors one by one: they poison the backend, and [`Backend::finish`] or the next download says what happened.

pub mod cpu;
mod cpu_update;
#[cfg(feature = "gpu")]
pub mod gpu;

pub use cpu::Cpu;
#[cfg(feature = "gpu")]
pub use gpu::Gpu;

use crate::error::Result;
use crate::model::Activation;
use crate::ops::Segments;
use crate::ops::clip::ClipFunction;
use crate::ops::compress::Address;
use crate::ops::update::{Constants, Step};
use crate::rng::DirectionStream;
use std::ops::Range;

/// The ops of the decoder. Each mirrors a function in [`crate::ops`], where formula and shapes are documented.
pub trait Backend: Send + Sync {
    /// A matrix in this backend's memory.
    type Tensor: Send + Sync;

    /// Rows and columns.
    fn shape(&self, x: &Self::Tensor) -> (usize, usize);
    /// A matrix of zeros.
    fn zeros(&self, rows: usize, cols: usize) -> Self::Tensor;
    /// A matrix with this content; `data` is row-major and `rows * cols` long.
    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Self::Tensor>;
    /// The content, row-major, waiting for it.
    fn download(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Several contents in one wait.
    fn download_all(&self, all: &[&Self::Tensor]) -> Result<Vec<Vec<f32>>>;
    /// Replace the content of `x` by `data`, row-major.
    fn write(&self, x: &mut Self::Tensor, data: &[f32]) -> Result<()>;
    /// The content itself where it lies in host memory in f32, so that updates need not copy it.
    fn host_mut<'a>(&self, x: &'a mut Self::Tensor) -> Option<&'a mut [f32]>;
    /// A block of a public direction: its elements `offset ..` as a matrix.
    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Self::Tensor;
    /// Rows `ids` of a matrix with `cols` columns whose elements are those of a public direction from `offset` on.
    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Self::Tensor;
    /// Rows `rows` of `x`, copied.
    fn rows(&self, x: &Self::Tensor, rows: Range<usize>) -> Self::Tensor;
    /// Wait for all work and report what went wrong.
    fn finish(&self) -> Result<()>;
    /// Run a chain of ops too small to be waited for one by one, such as the decoding of a token.
    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        ops()
    }

    /// [`crate::ops::embedding::forward`].
    fn embed(&self, ids: &[u32], positions: &[u32], tokens: &Self::Tensor, wpe: &Self::Tensor) -> Self::Tensor;
    /// [`crate::ops::norm::forward`]: output and statistics.
    fn norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        bias: &Self::Tensor,
        eps: f64,
    ) -> (Self::Tensor, Self::Tensor);
    /// [`crate::ops::linear::forward`].
    fn linear(&self, x: &Self::Tensor, w: &Self::Tensor, bias: Option<&Self::Tensor>) -> Self::Tensor;
    /// [`crate::ops::attention::forward`]: output and log-sum-exp.
    fn attention(
        &self,
        qkv: &Self::Tensor,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> (Self::Tensor, Self::Tensor);
    /// [`crate::ops::activation::forward`].
    fn activation(&self, kind: Activation, x: &Self::Tensor) -> Self::Tensor;
    /// [`crate::ops::residual::add`].
    fn add(&self, x: &mut Self::Tensor, branch: &Self::Tensor);
    /// Logits `h Wᵀ` of an output head stored `[V, C]`.
    fn head(&self, h: &Self::Tensor, w: &Self::Tensor) -> Self::Tensor;
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
    /// Backward of [`Backend::head`] to its input, `dlogits W`, into rows `first..` of `dh`.
    fn head_input(&self, dlogits: &Self::Tensor, w: &Self::Tensor, dh: &mut Self::Tensor, first: usize);
    /// [`crate::ops::linear::backward_input`].
    fn linear_input(&self, dy: &Self::Tensor, w: &Self::Tensor) -> Self::Tensor;
    /// [`crate::ops::norm::backward`].
    fn norm_backward(
        &self,
        dy: &mut Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Tensor,
        dgain: bool,
        dx: &mut Self::Tensor,
    );
    /// [`crate::ops::attention::backward`].
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        dout: &Self::Tensor,
        out: &Self::Tensor,
        lse: &Self::Tensor,
        qkv: &Self::Tensor,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> Self::Tensor;
    /// [`crate::ops::activation::backward`].
    fn activation_backward(&self, kind: Activation, x: &Self::Tensor, dy: &mut Self::Tensor);

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
        gain: &Self::Tensor,
        gain_dot: Option<&Self::Tensor>,
        bias_dot: Option<&Self::Tensor>,
    ) -> Self::Tensor;
    /// [`crate::ops::attention::jvp`].
    fn attention_jvp(
        &self,
        qkv: &Self::Tensor,
        qkv_dot: &Self::Tensor,
        lse: &Self::Tensor,
        segments: &Segments,
        heads: usize,
        scale: f64,
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
        qkv: &Self::Tensor,
        keys: &mut Self::Tensor,
        values: &mut Self::Tensor,
        past: usize,
        heads: usize,
        scale: f64,
    ) -> Self::Tensor;

    // Every sample's gradient norm, and clipping. `squares` (but for `add_norm_bounds`, whose output is a column) has the columns of
    // `sample_norm`, `factors` is a column, both with one row a sample of the batch; `first` is the row of the first segment.

    /// [`crate::ops::sample_norm::add_outer`], into rows `first..` of `squares`.
    fn add_outer_squares(
        &self,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        segments: &Segments,
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::add_rows`], into rows `first..` of `squares`.
    fn add_row_squares(
        &self,
        ids: &[u32],
        dy: &Self::Tensor,
        segments: &Segments,
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::add_tied`], into rows `first..` of `squares`. The segments' rows lie from row `head.2` on in
    /// `head`'s x and dy, and from row `rows.2` on in the ids and rows of `rows`.
    fn add_tied_squares(
        &self,
        head: (&Self::Tensor, &Self::Tensor, usize),
        rows: (&[u32], &Self::Tensor, usize),
        segments: &Segments,
        squares: &mut Self::Tensor,
        first: usize,
    );
    /// [`crate::ops::sample_norm::segment_sums`].
    fn segment_sums(&self, dy: &Self::Tensor, segments: &Segments) -> Self::Tensor;
    /// [`crate::ops::clip::bounds`] of a parameter's norms, added to a column of squares.
    fn add_norm_bounds(&self, norms: &Self::Tensor, squares: &mut Self::Tensor);
    /// [`crate::ops::clip::factors`].
    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Self::Tensor);
    /// [`crate::ops::clip::scale_rows`] with rows `first..` of `factors`.
    fn scale_rows(&self, x: &mut Self::Tensor, segments: &Segments, factors: &Self::Tensor, first: usize);
    /// [`crate::ops::clip::drop_rows`] with rows `first..` of `factors`.
    fn drop_rows(&self, x: &mut Self::Tensor, segments: &Segments, factors: &Self::Tensor, first: usize);

    // Audits.

    /// [`crate::ops::token_stats::forward`], into rows `first..` of `stats` (N x 4).
    fn token_stats(&self, logits: &Self::Tensor, targets: &[u32], stats: &mut Self::Tensor, first: usize);

    // Updates and compression: post-processing of what was released, on weights and moments where they lie.

    /// [`crate::ops::update::adamw_step`] on the rows from `first` on, as many as the gradient `g` has; moments are (m, v).
    #[allow(clippy::too_many_arguments)]
    fn adamw(
        &self,
        w: &mut Self::Tensor,
        moments: (&mut Self::Tensor, &mut Self::Tensor),
        g: &Self::Tensor,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    );
    /// [`crate::ops::update::adamw_idle`].
    fn adamw_idle(
        &self,
        w: &mut Self::Tensor,
        moments: (&mut Self::Tensor, &mut Self::Tensor),
        steps: &[Step],
        k: &Constants,
    );
    /// [`crate::ops::update::decay`].
    fn decay(&self, w: &mut Self::Tensor, steps: &[Step]);
    /// [`crate::ops::update::subtract`] on the rows from `first` on, as many as `g` has.
    fn subtract(&self, w: &mut Self::Tensor, g: &Self::Tensor, first: usize, scale: f32);
    /// [`crate::ops::compress::signs`].
    fn signs(&self, x: &mut Self::Tensor, at: Address);
    /// [`crate::ops::compress::signs_with_memory`].
    fn signs_with_memory(&self, x: &mut Self::Tensor, memory: &mut Self::Tensor, at: Address);
    /// [`crate::ops::compress::quantise`].
    fn quantise(&self, x: &mut Self::Tensor, bits: u32, at: Address);
}
