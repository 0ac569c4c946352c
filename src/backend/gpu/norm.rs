//! The norms: layer and root mean square.

use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::params;
use super::rows::LANES;
use super::tensor::{Tensor, Window};
use crate::ops::rms_norm::groups;
use std::ops::Range;

/// A norm's kernel, and how many operations it takes a number.
type Cost = (&'static Kernel, f64);

/// Rows of a norm's input, with its gain and their statistics, and what all shaders of both norms are told of them.
struct Block<'a> {
    rows: Range<usize>,
    cols: usize,
    x: Window<'a>,
    gain: Window<'a>,
    stats: Window<'a>,
    params: params::Norm,
}

fn blocks<'a>(
    c: &Context,
    x: &'a Tensor,
    gain: &'a Tensor,
    stats: &'a Tensor,
) -> impl Iterator<Item = Block<'a>> + use<'a> {
    c.blocks(0..x.rows, &[x.cols]).into_iter().map(|rows| {
        let (cols, width) = (x.cols, gain.cols);
        let [x, gain, stats] = [x.window(rows.clone()), gain.whole(), stats.window(rows.clone())];
        let params = params::Norm {
            rows: rows.len() as u32,
            groups: groups(cols, width) as u32,
            width: width as u32,
            line: x.line,
            start_x: x.start,
            start_gain: gain.start,
            start_stats: stats.start,
            line_stats: stats.line,
            ..Default::default()
        };
        Block { rows, cols, x, gain, stats, params }
    })
}

impl Block<'_> {
    /// The same rows of another tensor.
    fn of<'t>(&self, tensor: &'t Tensor) -> Window<'t> {
        tensor.window(self.rows.clone())
    }

    /// A workgroup for every group of every row.
    fn run(&self, c: &Context, (kernel, each): Cost, args: &[Arg], params: params::Norm) {
        let groups = self.rows.len() * params.groups as usize;
        c.run(kernel, &[], args, &params, groups, each * (self.rows.len() * self.cols) as f64);
    }
}

/// The layer norm with a bias, the root mean square norm without.
pub(super) fn forward(
    c: &Context,
    x: &Tensor,
    gain: &Tensor,
    bias: Option<&Tensor>,
    eps: f64,
    y: &Tensor,
    stats: &Tensor,
) {
    let kernel = if bias.is_some() { (&kernels::NORM, 8.0) } else { (&kernels::RMS_NORM, 5.0) };
    for block in blocks(c, x, gain, stats) {
        let (bias, to) = (bias.map(Tensor::whole), block.of(y));
        let start_bias = bias.map_or(0, |bias| bias.start);
        let params = params::Norm { eps: eps as f32, start_bias, start_y: to.start, ..block.params };
        let given = [block.x, block.gain].into_iter().chain(bias);
        let args: Vec<Arg> = given.chain([to, block.stats]).map(Arg::Rows).collect();
        block.run(c, kernel, &args, params);
    }
}

pub(super) fn backward(
    c: &Context,
    kernel: Cost,
    dy: &Tensor,
    (x, stats): (&Tensor, &Tensor),
    gain: &Tensor,
    dgain: bool,
    dx: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (grad, to) = (block.of(dy), block.of(dx));
        let params = params::Norm { start_y: grad.start, start_dx: to.start, flags: dgain as u32, ..block.params };
        let args = [block.x, block.gain, block.stats, grad, to].map(Arg::Rows);
        block.run(c, kernel, &args, params);
    }
}

/// `dots`: the tangents of the gain and, of a layer norm, of the bias.
pub(super) fn jvp(
    c: &Context,
    kernel: Cost,
    (x, x_dot): (&Tensor, &Tensor),
    stats: &Tensor,
    gain: &Tensor,
    dots: &[Option<&Tensor>],
    y_dot: &Tensor,
) {
    for block in blocks(c, x, gain, stats) {
        let (tangent, to) = (block.of(x_dot), block.of(y_dot));
        let flags = dots.iter().enumerate().map(|(i, dot)| u32::from(dot.is_some()) << i).sum();
        let params = params::Norm { start_y: to.start, start_dx: tangent.start, flags, ..block.params };
        let mut args = [block.x, block.gain, block.stats, tangent].map(Arg::Rows).to_vec();
        args.extend(dots.iter().map(|dot| dot.map_or(Arg::Nothing, |dot| Arg::Rows(dot.whole()))));
        args.push(Arg::Rows(to));
        block.run(c, kernel, &args, params);
    }
}

/// `y`: the sum of the groups of every row of `x`.
pub(super) fn fold(c: &Context, x: &Tensor, y: &Tensor) {
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (from, to) = (x.window(rows.clone()), y.window(rows.clone()));
        let params = params::Norm {
            rows: rows.len() as u32,
            groups: groups(x.cols, y.cols) as u32,
            width: y.cols as u32,
            line: from.line,
            start_x: from.start,
            start_y: to.start,
            line_y: to.line,
            ..Default::default()
        };
        let threads = (rows.len() * y.cols).div_ceil(LANES);
        c.run(&kernels::FOLD, &[], &[Arg::Rows(from), Arg::Rows(to)], &params, threads, (rows.len() * x.cols) as f64);
    }
}
