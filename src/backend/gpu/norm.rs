//! The norms: layer and root mean square.

use super::context::{Arg, Context};
use super::kernels;
use super::params;
use super::rows::LANES;
use super::tensor::Tensor;
use crate::ops::rms_norm::groups;
use std::ops::Range;

fn work(rows: &Range<usize>, x: &Tensor, each: f64) -> f64 {
    each * (rows.len() * x.cols) as f64
}

/// What all three of the layer norm's shaders are told.
fn layer_params(rows: &Range<usize>, x: &Tensor, gain: &Tensor, stats: &Tensor) -> params::Norm {
    let from = x.window(rows.clone());
    params::Norm {
        rows: rows.len() as u32,
        cols: x.cols as u32,
        line: from.line / 4,
        start_x: from.start,
        start_stats: stats.window(rows.clone()).start,
        start_gain: gain.whole().start,
        ..Default::default()
    }
}

pub(super) fn layer(c: &Context, x: &Tensor, (gain, bias): (&Tensor, &Tensor), eps: f64, y: &Tensor, stats: &Tensor) {
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (bias, to) = (bias.whole(), y.window(rows.clone()));
        let params = params::Norm {
            eps: eps as f32,
            start_bias: bias.start,
            start_y: to.start,
            ..layer_params(&rows, x, gain, stats)
        };
        let (from, stats) = (x.window(rows.clone()), stats.window(rows.clone()));
        let args = [Arg::Rows(from), Arg::Rows(gain.whole()), Arg::Rows(bias), Arg::Rows(to), Arg::Rows(stats)];
        c.run(&kernels::NORM, &[], &args, &params, rows.len(), work(&rows, x, 8.0));
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
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (grad, to) = (dy.window(rows.clone()), dx.window(rows.clone()));
        let params = params::Norm {
            start_y: grad.start,
            start_dx: to.start,
            flags: dgain as u32,
            ..layer_params(&rows, x, gain, stats)
        };
        let (from, stats) = (x.window(rows.clone()), stats.window(rows.clone()));
        let args = [Arg::Rows(from), Arg::Rows(gain.whole()), Arg::Rows(stats), Arg::Rows(grad), Arg::Rows(to)];
        c.run(&kernels::NORM_BACKWARD, &[], &args, &params, rows.len(), work(&rows, x, 14.0));
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
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (tangent, to) = (x_dot.window(rows.clone()), y_dot.window(rows.clone()));
        let params = params::Norm {
            start_y: to.start,
            start_dx: tangent.start,
            flags: gain_dot.is_some() as u32 | (bias_dot.is_some() as u32) << 1,
            ..layer_params(&rows, x, gain, stats)
        };
        let args = [
            Arg::Rows(x.window(rows.clone())),
            Arg::Rows(gain.whole()),
            Arg::Rows(stats.window(rows.clone())),
            Arg::Rows(tangent),
            gain_dot.map_or(Arg::Nothing, |t| Arg::Rows(t.whole())),
            bias_dot.map_or(Arg::Nothing, |t| Arg::Rows(t.whole())),
            Arg::Rows(to),
        ];
        c.run(&kernels::NORM_JVP, &[], &args, &params, rows.len(), work(&rows, x, 14.0));
    }
}

/// What all three of the root mean square norm's shaders are told.
fn rms_params(rows: &Range<usize>, x: &Tensor, gain: &Tensor, stats: &Tensor) -> params::RmsNorm {
    let (from, of) = (x.window(rows.clone()), stats.window(rows.clone()));
    params::RmsNorm {
        rows: rows.len() as u32,
        groups: groups(x.cols, gain.cols) as u32,
        width: gain.cols as u32,
        line: from.line,
        x_start: from.start,
        gain_start: gain.whole().start,
        stats_start: of.start,
        stats_line: of.line,
        ..Default::default()
    }
}

pub(super) fn rms(c: &Context, x: &Tensor, gain: &Tensor, eps: f64, y: &Tensor, stats: &Tensor) {
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let to = y.window(rows.clone());
        let params = params::RmsNorm { eps: eps as f32, y_start: to.start, ..rms_params(&rows, x, gain, stats) };
        let stats = stats.window(rows.clone());
        let args = [Arg::Rows(x.window(rows.clone())), Arg::Rows(gain.whole()), Arg::Rows(to), Arg::Rows(stats)];
        let groups = rows.len() * params.groups as usize;
        c.run(&kernels::RMS_NORM, &[], &args, &params, groups, work(&rows, x, 5.0));
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
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (grad, to) = (dy.window(rows.clone()), dx.window(rows.clone()));
        let params = params::RmsNorm {
            y_start: grad.start,
            dx_start: to.start,
            flag: dgain as u32,
            ..rms_params(&rows, x, gain, stats)
        };
        let (from, stats) = (x.window(rows.clone()), stats.window(rows.clone()));
        let args = [Arg::Rows(from), Arg::Rows(gain.whole()), Arg::Rows(stats), Arg::Rows(grad), Arg::Rows(to)];
        let groups = rows.len() * params.groups as usize;
        c.run(&kernels::RMS_NORM_BACKWARD, &[], &args, &params, groups, work(&rows, x, 10.0));
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
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let (tangent, to) = (x_dot.window(rows.clone()), y_dot.window(rows.clone()));
        let params = params::RmsNorm {
            y_start: to.start,
            dx_start: tangent.start,
            flag: gain_dot.is_some() as u32,
            gain_dot_start: gain_dot.map_or(0, |t| t.whole().start),
            ..rms_params(&rows, x, gain, stats)
        };
        let args = [
            Arg::Rows(x.window(rows.clone())),
            Arg::Rows(gain.whole()),
            Arg::Rows(stats.window(rows.clone())),
            Arg::Rows(tangent),
            gain_dot.map_or(Arg::Nothing, |t| Arg::Rows(t.whole())),
            Arg::Rows(to),
        ];
        let groups = rows.len() * params.groups as usize;
        c.run(&kernels::RMS_NORM_JVP, &[], &args, &params, groups, work(&rows, x, 10.0));
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
        c.run(&kernels::FOLD, &[], &[Arg::Rows(from), Arg::Rows(to)], &params, threads, work(&rows, x, 1.0));
    }
}
