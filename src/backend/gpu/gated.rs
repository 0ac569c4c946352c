//! The gated MLP, and rotary positions: number by number over blocks of columns.

use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::params;
use super::rows::{LANES, kind};
use super::tensor::{Tensor, Window};
use crate::ops::{Activation, GateUp, Parts};
use std::ops::Range;

/// A block of columns: its tensor and its first column.
type Columns<'a> = (&'a Tensor, usize);

/// Columns of a gated layer's output.
pub(super) fn inner(x: GateUp<&Tensor>) -> usize {
    match x {
        Parts::Fused(x) => x.cols / 2,
        Parts::Split([gate, _]) => gate.cols,
    }
}

fn window<'a>((x, first): Columns<'a>, rows: &Range<usize>) -> Window<'a> {
    x.window(rows.clone()).shifted(first)
}

/// Run one of the gated kernels over all rows: `extra` is dh, or the tangents of gate and up.
fn run(c: &Context, kernel: &'static Kernel, act: Activation, x: GateUp<&Tensor>, extra: &[Columns], out: Columns) {
    let cols = inner(x);
    let [gate, up] = x.columns([cols; 2]);
    let lines: Vec<usize> = [gate, up, out].iter().chain(extra).map(|(x, _)| x.cols).collect();
    for rows in c.blocks(0..out.0.rows, &lines) {
        let [gate, up, to] = [gate, up, out].map(|x| window(x, &rows));
        let extra: Vec<Window> = extra.iter().map(|&x| window(x, &rows)).collect();
        let place = |i: usize| extra.get(i).map_or((0, 0), |w| (w.start, w.line));
        let params = params::Gated {
            rows: rows.len() as u32,
            cols: cols as u32,
            gate_start: gate.start,
            gate_line: gate.line,
            up_start: up.start,
            up_line: up.line,
            gate_dot_start: place(0).0,
            gate_dot_line: place(0).1,
            up_dot_start: place(1).0,
            up_dot_line: place(1).1,
            out_start: to.start,
            out_line: to.line,
        };
        let count = rows.len() * cols;
        // What a kernel does not read is not bound.
        let args: Vec<Arg> = kernel
            .bindings
            .iter()
            .map(|&(binding, _)| match binding {
                1 => Arg::Rows(gate),
                2 => Arg::Rows(up),
                3 => Arg::Rows(to),
                i => Arg::Rows(extra[i as usize - 4]),
            })
            .collect();
        c.run(kernel, &[kind(act)], &args, &params, count.div_ceil(LANES), 25.0 * count as f64);
    }
}

pub(super) fn forward(c: &Context, act: Activation, x: GateUp<&Tensor>, h: &Tensor) {
    run(c, &kernels::GATED, act, x, &[], (h, 0));
}

/// Gate and up one after the other: they may be columns of one matrix, which can be bound for writing once.
pub(super) fn backward(c: &Context, act: Activation, x: GateUp<&Tensor>, dh: &Tensor, d: GateUp<&Tensor>) {
    let [dgate, dup] = d.columns([inner(x); 2]);
    run(c, &kernels::GATED_BACKWARD_GATE, act, x, &[(dh, 0)], dgate);
    run(c, &kernels::GATED_BACKWARD_UP, act, x, &[(dh, 0)], dup);
}

pub(super) fn jvp(c: &Context, act: Activation, x: GateUp<&Tensor>, x_dot: GateUp<&Tensor>, h_dot: &Tensor) {
    run(c, &kernels::GATED_JVP, act, x, &x_dot.columns([inner(x); 2]), (h_dot, 0));
}

/// Turn `heads` heads from column `first` on by the rows of `table`.
pub(super) fn rope(c: &Context, x: &Tensor, (first, heads, width): (usize, usize, usize), table: &Tensor, back: bool) {
    assert!(first + heads * width <= x.cols && table.cols <= width && table.rows == x.rows, "heads to be turned");
    for rows in c.blocks(0..x.rows, &[x.cols, table.cols]) {
        let (to, turns) = (window((x, first), &rows), table.window(rows.clone()));
        let count = rows.len() * heads * table.cols / 2;
        let params = params::Rope {
            rows: rows.len() as u32,
            heads: heads as u32,
            width: width as u32,
            pairs: (table.cols / 2) as u32,
            x_start: to.start,
            x_line: to.line,
            table_start: turns.start,
            table_line: turns.line,
            sign: if back { -1.0 } else { 1.0 },
        };
        let args = [Arg::Rows(to), Arg::Rows(turns)];
        c.run(&kernels::ROPE, &[], &args, &params, count.div_ceil(LANES), 6.0 * count as f64);
    }
}
