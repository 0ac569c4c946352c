//! [`Backend`] for the GPU: each op names its windows and its kernel.

use super::attention::{self, Shape};
use super::context::Arg;
use super::matmul::{Factor, Target, matmul};
use super::{Gpu, Tensor, clip, kernels, rows, update};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::model::Activation;
use crate::ops::Segments;
use crate::ops::clip::ClipFunction;
use crate::ops::compress::Address;
use crate::ops::update::{Constants, Step};
use crate::rng::DirectionStream;
use std::ops::Range;

impl Gpu {
    fn matmul(&self, a: Factor, b: Factor, bias: Option<&Tensor>, c: Target) {
        matmul(&self.context, a, b, bias, c);
    }
}

impl Backend for Gpu {
    type Tensor = Tensor;

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn zeros(&self, rows: usize, cols: usize) -> Tensor {
        let x = self.empty(rows, cols);
        self.context.clear(&x);
        x
    }

    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Tensor> {
        if data.len() != rows * cols {
            return Err(Error::usage(format!("{} numbers do not fill a matrix of {rows} x {cols}", data.len())));
        }
        let x = self.empty(rows, cols);
        self.context.write(&x, &data)?;
        Ok(x)
    }

    fn download(&self, x: &Tensor) -> Result<Vec<f32>> {
        self.context.read(x)
    }

    fn download_all(&self, all: &[&Tensor]) -> Result<Vec<Vec<f32>>> {
        self.context.read_all(all)
    }

    fn write(&self, x: &mut Tensor, data: &[f32]) -> Result<()> {
        if data.len() != x.rows * x.cols {
            return Err(Error::usage(format!(
                "{} numbers do not fill a matrix of {} x {}",
                data.len(),
                x.rows,
                x.cols
            )));
        }
        self.context.write(x, data)
    }

    fn host_mut<'a>(&self, _: &'a mut Tensor) -> Option<&'a mut [f32]> {
        None
    }

    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Tensor {
        assert!(offset + rows * cols <= direction.dim(), "elements of a direction");
        let u = self.empty(rows, cols);
        rows::direction(&self.context, direction, offset, &u);
        u
    }

    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Tensor {
        let u = self.empty(ids.len(), cols);
        rows::direction_rows(&self.context, direction, offset, ids, &u);
        u
    }

    fn rows(&self, x: &Tensor, rows: Range<usize>) -> Tensor {
        let y = self.empty(rows.len(), x.cols);
        self.context.copy_rows(x, rows, &y);
        y
    }

    fn finish(&self) -> Result<()> {
        self.context.finish()
    }

    fn embed(&self, ids: &[u32], positions: &[u32], tokens: &Tensor, wpe: &Tensor) -> Tensor {
        let x = self.empty(ids.len(), tokens.cols);
        rows::gather(&self.context, ids, tokens, &x, false);
        rows::gather(&self.context, positions, wpe, &x, true);
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

    fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let y = self.empty(x.rows, w.cols);
        self.matmul(Factor::plain(x), Factor::plain(w), bias, Target::new(&y));
        y
    }

    fn attention(&self, qkv: &Tensor, segments: &Segments, heads: usize, scale: f64) -> (Tensor, Tensor) {
        let width = qkv.cols / 3;
        let (out, lse) = (self.empty(qkv.rows, width), self.empty(qkv.rows, heads));
        attention::forward(&self.context, qkv, segments, Shape { heads, width, scale }, &out, &lse);
        (out, lse)
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

    fn linear_input(&self, dy: &Tensor, w: &Tensor) -> Tensor {
        let dx = self.empty(dy.rows, w.rows);
        self.matmul(Factor::plain(dy), Factor::transposed(w), None, Target::new(&dx));
        dx
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
        qkv: &Tensor,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> Tensor {
        let (delta, dqkv) = (self.empty(qkv.rows, heads), self.empty(qkv.rows, qkv.cols));
        let shape = Shape { heads, width: qkv.cols / 3, scale };
        attention::backward(&self.context, dout, out, lse, qkv, segments, shape, &delta, &dqkv);
        dqkv
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
        qkv: &Tensor,
        qkv_dot: &Tensor,
        lse: &Tensor,
        segments: &Segments,
        heads: usize,
        scale: f64,
    ) -> Tensor {
        let width = qkv.cols / 3;
        let out_dot = self.empty(qkv.rows, width);
        attention::jvp(&self.context, qkv, qkv_dot, lse, segments, Shape { heads, width, scale }, &out_dot);
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
        qkv: &Tensor,
        keys: &mut Tensor,
        values: &mut Tensor,
        past: usize,
        heads: usize,
        scale: f64,
    ) -> Tensor {
        let width = qkv.cols / 3;
        let (out, lse) = (self.empty(qkv.rows, width), self.empty(qkv.rows, heads));
        attention::cached(&self.context, qkv, (keys, values), past, Shape { heads, width, scale }, &out, &lse);
        out
    }

    // Every sample's gradient norm, and clipping.

    fn add_outer_squares(&self, x: &Tensor, dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        clip::outer(&self.context, x, dy, segments, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        clip::rows(&self.context, ids, dy, segments, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn add_tied_squares(
        &self,
        head: (&Tensor, &Tensor, usize),
        rows: (&[u32], &Tensor, usize),
        segments: &Segments,
        squares: &mut Tensor,
        first: usize,
    ) {
        clip::tied(&self.context, head, rows, segments, squares, first, &|rows, cols| self.empty(rows, cols));
    }

    fn segment_sums(&self, dy: &Tensor, segments: &Segments) -> Tensor {
        let sums = self.empty(segments.len(), dy.cols);
        clip::segment_sums(&self.context, dy, segments, &sums, &|rows, cols| self.empty(rows, cols));
        sums
    }

    fn add_norm_bounds(&self, norms: &Tensor, squares: &mut Tensor) {
        clip::bounds(&self.context, norms, squares);
    }

    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Tensor) {
        clip::factors(&self.context, function, bound, squares);
    }

    fn scale_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip::clip_rows(&self.context, x, segments, factors, first, true);
    }

    fn drop_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip::clip_rows(&self.context, x, segments, factors, first, false);
    }

    // Audits.

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

    // Updates and compression.

    fn adamw(
        &self,
        w: &mut Tensor,
        (m, v): (&mut Tensor, &mut Tensor),
        g: &Tensor,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    ) {
        update::adamw(&self.context, w, (m, v), g, first, scale, s, k);
    }

    fn adamw_idle(&self, w: &mut Tensor, (m, v): (&mut Tensor, &mut Tensor), steps: &[Step], k: &Constants) {
        update::adamw_idle(&self.context, w, (m, v), steps, k);
    }

    fn decay(&self, w: &mut Tensor, steps: &[Step]) {
        update::decay(&self.context, w, steps);
    }

    fn subtract(&self, w: &mut Tensor, g: &Tensor, first: usize, scale: f32) {
        update::subtract(&self.context, w, g, first, scale);
    }

    fn signs(&self, x: &mut Tensor, at: Address) {
        update::signs(&self.context, x, None, at, &|rows, cols| self.empty(rows, cols));
    }

    fn signs_with_memory(&self, x: &mut Tensor, memory: &mut Tensor, at: Address) {
        update::signs(&self.context, x, Some(memory), at, &|rows, cols| self.empty(rows, cols));
    }

    fn quantise(&self, x: &mut Tensor, bits: u32, at: Address) {
        update::quantise(&self.context, x, bits, at);
    }
}
