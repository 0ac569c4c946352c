//! The norms: layer and root mean square.

use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::params::{self, Params};
use super::rows::LANES;
use super::tensor::{Tensor, Window};
use crate::ops::rms_norm::groups;
use std::ops::Range;

/// Rows of a norm's input, with its gain and their statistics: what all its shaders are given.
struct Block<'a> {
    rows: Range<usize>,
    cols: usize,
    /// Columns that the gain has: all of them, or those of a group.
    width: usize,
    x: Window<'a>,
    gain: Window<'a>,
    stats: Window<'a>,
}

fn blocks<'a>(
    c: &Context,
    x: &'a Tensor,
    gain: &'a Tensor,
    stats: &'a Tensor,
) -> impl Iterator<Item = Block<'a>> + use<'a> {
    c.blocks(0..x.rows, &[x.cols]).into_iter().map(|rows| Block {
        cols: x.cols,
        width: gain.cols,
        x: x.window(rows.clone()),
        gain: gain.whole(),
        stats: stats.window(rows.clone()),
        rows,
    })
}

impl Block<'_> {
    /// The same rows of another tensor.
    fn of<'t>(&self, tensor: &'t Tensor) -> Window<'t> {
        tensor.window(self.rows.clone())
    }

    /// What all three of the layer norm's shaders are told.
    fn layer(&self) -> params::Norm {
        params::Norm {
            rows: self.rows.len() as u32,
            cols: self.cols as u32,
            line: self.x.line / 4,
            start_x: self.x.start,
            start_stats: self.stats.start,
            start_gain: self.gain.start,
            ..Default::default()
        }
    }

    /// What all three of the root mean square norm's shaders are told.
    fn rms(&self) -> params::RmsNorm {
        params::RmsNorm {
            rows: self.rows.len() as u32,
            groups: groups(self.cols, self.width) as u32,
            width: self.width as u32,
            line: self.x.line,
            x_start: self.x.start,
            gain_start: self.gain.start,
            stats_start: self.stats.start,
            stats_line: self.stats.line,
            ..Default::default()
        }
    }

    /// A workgroup for every group of every row, and so many operations a number.
    fn run(&self, c: &Context, kernel: &'static Kernel, args: &[Arg], params: &impl Params, each: f64) {
        let (rows, groups) = (self.rows.len(), groups(self.cols, self.width));
        c.run(kernel, &[], args, params, rows * groups, each * (rows * self.cols) as f64);
    }
}

/// A tensor that may be missing.
fn optional(tensor: Option<&Tensor>) -> Arg<'_> {
    tensor.map_or(Arg::Nothing, |t| Arg::Rows(t.whole()))
}

pub(super) fn layer(c: &Context, x: &Tensor, (gain, bias): (&Tensor, &Tensor), eps: f64, y: &Tensor, stats: &Tensor) {
    for block in blocks(c, x, gain, stats) {
        let (bias, to) = (bias.whole(), block.of(y));
        let params = params::Norm { eps: eps as f32, start_bias: bias.start, start_y: to.start, ..block.layer() };
        let args = [block.x, block.gain, bias, to, block.stats].map(Arg::Rows);
        block.run(c, &kernels::NORM, &args, &params, 8.0);
    }
}

pub(super) fn layer_backward(
    c: &Context,
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    gain: &Tensor,
    dgain: bool,
    dx: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (grad, to) = (block.of(dy), block.of(dx));
        let params = params::Norm { start_y: grad.start, start_dx: to.start, flags: dgain as u32, ..block.layer() };
        let args = [block.x, block.gain, block.stats, grad, to].map(Arg::Rows);
        block.run(c, &kernels::NORM_BACKWARD, &args, &params, 14.0);
    }
}

pub(super) fn layer_jvp(
    c: &Context,
    (x, x_dot): (&Tensor, &Tensor),
    stats: &Tensor,
    gain: &Tensor,
    (gain_dot, bias_dot): (Option<&Tensor>, Option<&Tensor>),
    y_dot: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (tangent, to) = (block.of(x_dot), block.of(y_dot));
        let params = params::Norm {
            start_y: to.start,
            start_dx: tangent.start,
            flags: gain_dot.is_some() as u32 | (bias_dot.is_some() as u32) << 1,
            ..block.layer()
        };
        let [x, gain, stats, tangent, to] = [block.x, block.gain, block.stats, tangent, to].map(Arg::Rows);
        let args = [x, gain, stats, tangent, optional(gain_dot), optional(bias_dot), to];
        block.run(c, &kernels::NORM_JVP, &args, &params, 14.0);
    }
}

pub(super) fn rms(c: &Context, x: &Tensor, gain: &Tensor, eps: f64, y: &Tensor, stats: &Tensor) {
    for block in blocks(c, x, gain, stats) {
        let to = block.of(y);
        let params = params::RmsNorm { eps: eps as f32, y_start: to.start, ..block.rms() };
        let args = [block.x, block.gain, to, block.stats].map(Arg::Rows);
        block.run(c, &kernels::RMS_NORM, &args, &params, 5.0);
    }
}

pub(super) fn rms_backward(
    c: &Context,
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    gain: &Tensor,
    dgain: bool,
    dx: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (grad, to) = (block.of(dy), block.of(dx));
        let params = params::RmsNorm { y_start: grad.start, dx_start: to.start, flag: dgain as u32, ..block.rms() };
        let args = [block.x, block.gain, block.stats, grad, to].map(Arg::Rows);
        block.run(c, &kernels::RMS_NORM_BACKWARD, &args, &params, 10.0);
    }
}

pub(super) fn rms_jvp(
    c: &Context,
    (x, x_dot): (&Tensor, &Tensor),
    stats: &Tensor,
    gain: &Tensor,
    gain_dot: Option<&Tensor>,
    y_dot: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (tangent, to) = (block.of(x_dot), block.of(y_dot));
        let params = params::RmsNorm {
            y_start: to.start,
            dx_start: tangent.start,
            flag: gain_dot.is_some() as u32,
            gain_dot_start: gain_dot.map_or(0, |t| t.whole().start),
            ..block.rms()
        };
        let [x, gain, stats, tangent, to] = [block.x, block.gain, block.stats, tangent, to].map(Arg::Rows);
        let args = [x, gain, stats, tangent, optional(gain_dot), to];
        block.run(c, &kernels::RMS_NORM_JVP, &args, &params, 10.0);
    }
}

/// `y`: the sum of the groups of every row of `x`.
pub(super) fn fold(c: &Context, x: &Tensor, y: &Tensor) {
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (from, to) = (x.window(rows.clone()), y.window(rows.clone()));
        let params = params::RmsNorm {
            rows: rows.len() as u32,
            groups: groups(x.cols, y.cols) as u32,
            width: y.cols as u32,
            line: from.line,
            x_start: from.start,
            y_start: to.start,
            y_line: to.line,
            ..Default::default()
        };
        let threads = (rows.len() * y.cols).div_ceil(LANES);
        c.run(&kernels::FOLD, &[], &[Arg::Rows(from), Arg::Rows(to)], &params, threads, (rows.len() * x.cols) as f64);
    }
}
