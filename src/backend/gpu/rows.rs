//! Ops that go row by row or number by number.

use super::Gpu;
use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::params;
use super::tensor::{Tensor, Window};
use crate::ops::Activation;
use crate::rng::{Direction, DirectionStream};
use std::ops::Range;

/// Threads of a workgroup in kernels that have one thread for four numbers.
pub(super) const LANES: usize = 64;
/// Rows that one workgroup sums before the sums are summed.
const COLUMN_CHUNK: usize = 128;

/// Run a kernel with one thread for four numbers over all rows of `y`, reading `x` beside it: the same shape, or one row.
pub(super) fn elementwise(c: &Context, kernel: &'static Kernel, constants: &[u32], x: &Tensor, y: &Tensor, flops: f64) {
    assert_eq!(x.cols, y.cols, "columns of {}", kernel.entry);
    let vector = x.rows == 1 && y.rows != 1;
    for rows in c.blocks(0..y.rows, &[y.cols]) {
        let from = if vector { x.whole() } else { x.window(rows.clone()) };
        let to = y.window(rows.clone());
        let count = rows.len() * y.line() / 4;
        let params =
            params::Elementwise { start_x: from.start, start_y: to.start, count: count as u32, line: to.line / 4 };
        let args = [Arg::Rows(from), Arg::Rows(to)];
        c.run(kernel, constants, &args, &params, count.div_ceil(LANES), flops * 4.0 * count as f64);
    }
}

/// The constant that tells the shader which activation.
pub(super) fn kind(activation: Activation) -> u32 {
    match activation {
        Activation::GeluTanh => 0,
        Activation::GeluErf => 1,
        Activation::Silu => 2,
    }
}

/// `y_i (+)= table[ids_i]`.
pub(super) fn gather(c: &Context, ids: &[u32], table: &Tensor, y: &Tensor, add: bool) {
    assert_eq!((ids.len(), table.cols), (y.rows, y.cols), "shape of gathered rows");
    let line = y.line() / 4;
    for rows in c.blocks(0..y.rows, &[y.cols]) {
        for window in c.blocks(0..table.rows, &[table.cols]) {
            let (from, to) = (table.window(window.clone()), y.window(rows.clone()));
            let params = params::Embedding {
                start_table: from.start,
                start_rows: to.start,
                line: line as u32,
                count: rows.len() as u32,
                first: window.start as u32,
                last: window.end as u32,
                add: add as u32,
                parts: 0,
            };
            let args = [Arg::Rows(from), Arg::Words(&ids[rows.clone()]), Arg::Rows(to)];
            c.run(&kernels::GATHER, &[], &args, &params, (rows.len() * line).div_ceil(LANES), 0.0);
        }
    }
}

/// The rows by id, those of one id ascending; and where each id's rows begin in that list, ids ascending, and the end.
pub(super) fn same_ids(ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    let id = |&i: &u32| ids[i as usize];
    order.sort_by_key(id);
    let starts = |&j: &usize| j == 0 || j == ids.len() || id(&order[j - 1]) != id(&order[j]);
    let begins = (0..=ids.len()).filter(starts).map(|j| j as u32).collect();
    (order, begins)
}

/// `table[ids_i] += dy_i` for i in `rows`. The rows of each id are listed here, so that one thread adds them up in order.
pub(super) fn scatter(c: &Context, ids: &[u32], dy: &Tensor, rows: Range<usize>, table: &Tensor) {
    assert_eq!(dy.cols, table.cols, "columns of scattered rows");
    let line = dy.line() / 4;
    let parts = line.div_ceil(LANES);
    for block in c.blocks(rows, &[dy.cols]) {
        let ids = &ids[block.clone()];
        let (order, begins) = same_ids(ids);
        let distinct: Vec<u32> = begins[..begins.len() - 1].iter().map(|&j| ids[order[j as usize] as usize]).collect();
        for window in c.blocks(0..table.rows, &[table.cols]) {
            let first = distinct.partition_point(|&id| (id as usize) < window.start);
            let last = distinct.partition_point(|&id| (id as usize) < window.end);
            if first == last {
                continue;
            }
            let (from, to) = (dy.window(block.clone()), table.window(window.clone()));
            let params = params::Embedding {
                start_table: to.start,
                start_rows: from.start,
                line: line as u32,
                count: (last - first) as u32,
                first: window.start as u32,
                last: 0,
                add: 1,
                parts: parts as u32,
            };
            let args = [
                Arg::Rows(from),
                Arg::Words(&distinct[first..last]),
                Arg::Words(&begins[first..=last]),
                Arg::Words(&order),
                Arg::Rows(to),
            ];
            c.run(&kernels::SCATTER, &[], &args, &params, (last - first) * parts, 0.0);
        }
    }
}

/// Row `at` of `out` += the sum of dy's rows: sums of chunks of rows, and their sum.
pub(super) fn columns(gpu: &Gpu, dy: &Tensor, rows: Range<usize>, out: &Tensor, at: usize) {
    let c = &gpu.context;
    assert_eq!(dy.cols, out.cols, "columns of a sum");
    let line = dy.line() / 4;
    let parts = line.div_ceil(LANES);
    let sum = |x: &Tensor, rows: Range<usize>, chunk: usize, to: Window, add: bool| {
        let from = x.window(rows.clone());
        let params = params::Reduce {
            rows: rows.len() as u32,
            cols: x.cols as u32,
            line: line as u32,
            start_a: from.start,
            start_b: 0,
            start_out: to.start,
            chunk: chunk as u32,
            parts: parts as u32,
            add: add as u32,
        };
        let groups = rows.len().div_ceil(chunk) * parts;
        c.run(&kernels::COLUMNS, &[], &[Arg::Rows(from), Arg::Rows(to)], &params, groups, (rows.len() * x.cols) as f64);
    };
    for block in c.blocks(rows, &[dy.cols]) {
        let chunks = block.len().div_ceil(COLUMN_CHUNK);
        if chunks == 1 {
            sum(dy, block.clone(), COLUMN_CHUNK, out.window(at..at + 1), true);
        } else {
            let partial = gpu.empty(chunks, dy.cols);
            sum(dy, block, COLUMN_CHUNK, partial.whole(), false);
            sum(&partial, 0..chunks, chunks, out.window(at..at + 1), true);
        }
    }
}

/// `out_(first + i) += <a_i, b_i>`.
pub(super) fn row_dots(c: &Context, a: &Tensor, b: &Tensor, out: &Tensor, first: usize) {
    assert_eq!((a.rows, a.cols), (b.rows, b.cols), "shapes of row dots");
    for rows in c.blocks(0..a.rows, &[a.cols]) {
        let (a_window, b_window) = (a.window(rows.clone()), b.window(rows.clone()));
        let to = out.window(first + rows.start..first + rows.end);
        let params = params::Reduce {
            rows: rows.len() as u32,
            cols: a.cols as u32,
            line: a_window.line / 4,
            start_a: a_window.start,
            start_b: b_window.start,
            start_out: to.start,
            ..Default::default()
        };
        let args = [Arg::Rows(a_window), Arg::Rows(b_window), Arg::Rows(to)];
        c.run(&kernels::ROW_DOTS, &[], &args, &params, rows.len(), 2.0 * (rows.len() * a.cols) as f64);
    }
}

/// Row i is elements `offset + ids_i cols ..` of a direction.
pub(super) fn direction_rows(c: &Context, stream: &DirectionStream, offset: usize, ids: &[u32], out: &Tensor) {
    let (kind, per_block, told) = about(stream, out);
    for rows in c.blocks(0..out.rows, &[out.cols]) {
        let to = out.window(rows.clone());
        let first = |&id: &u32| offset + id as usize * out.cols;
        let begin =
            |at: usize| [(at / per_block) as u32, ((at / per_block) as u64 >> 32) as u32, (at % per_block) as u32, 0];
        let begins: Vec<u32> = ids[rows.clone()].iter().flat_map(|id| begin(first(id))).collect();
        let skip = ids[rows.clone()].iter().map(|id| first(id) % per_block).max().unwrap_or(0);
        let blocks = (skip + out.cols).div_ceil(per_block);
        let params = params::Direction {
            count: rows.len() as u32,
            line: to.line,
            start: to.start,
            blocks: blocks as u32,
            ..told
        };
        let threads = rows.len() * blocks;
        let args = [Arg::Rows(to), Arg::Words(&begins)];
        let flops = 60.0 * (rows.len() * out.cols) as f64;
        c.run(&kernels::DIRECTION_ROWS, &[kind], &args, &params, threads.div_ceil(LANES), flops);
    }
}

/// The shader's constant, the elements that a block of words gives, and what does not change from window to window of `out`.
fn about(stream: &DirectionStream, out: &Tensor) -> (u32, usize, params::Direction) {
    let (words, kind, scale) = stream.parts();
    let (kind, per_block) = match kind {
        Direction::Sphere => (0, 16),
        Direction::Rademacher => (1, 512),
    };
    let cols = out.cols as u32;
    let told = params::Direction { stream: words.input(), cols, scale, ..Default::default() };
    (kind, per_block, told)
}

/// Elements `offset ..` of a direction.
pub(super) fn direction(c: &Context, stream: &DirectionStream, offset: usize, out: &Tensor) {
    let (kind, per_block, told) = about(stream, out);
    for rows in c.blocks(0..out.rows, &[out.cols]) {
        let (to, first, count) = (out.window(rows.clone()), offset + rows.start * out.cols, rows.len() * out.cols);
        let (block, skip) = (first / per_block, first % per_block);
        let blocks = (skip + count).div_ceil(per_block);
        let params = params::Direction {
            block_low: block as u32,
            block_high: (block as u64 >> 32) as u32,
            skip: skip as u32,
            count: count as u32,
            line: to.line,
            start: to.start,
            blocks: blocks as u32,
            ..told
        };
        let flops = 60.0 * count as f64;
        c.run(&kernels::DIRECTION, &[kind], &[Arg::Rows(to)], &params, blocks.div_ceil(LANES), flops);
    }
}
