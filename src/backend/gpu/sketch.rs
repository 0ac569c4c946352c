//! Sketches and their pullbacks: which windows of which tensors.

use super::context::{Arg, Context};
use super::kernels;
use super::params::Sketch;
use super::rows::LANES;
use super::tensor::Tensor;
use crate::rng::PublicStream;
use crate::rng::sketch::{COUNTS, Cell};

/// The columns of every bucket, one after the other, each with its sign in bit 31; and where each bucket's begin, and the end.
pub(super) struct Lists {
    begins: Vec<u32>,
    list: Vec<u32>,
}

impl Lists {
    /// Of columns with these cells, in `buckets` buckets.
    pub(super) fn of(cells: &[Cell], buckets: usize) -> Self {
        let mut begins = vec![0u32; buckets + 1];
        cells.iter().for_each(|c| begins[c.bucket() + 1] += 1);
        (0..buckets).for_each(|b| begins[b + 1] += begins[b]);
        let (mut next, mut list) = (begins.clone(), vec![0; cells.len()]);
        for (column, cell) in cells.iter().enumerate() {
            let place = &mut next[cell.bucket()];
            list[*place as usize] = column as u32 | u32::from(cell.is_minus()) << 31;
            *place += 1;
        }
        Self { begins, list }
    }

    /// Column b alone in bucket b.
    pub(super) fn identity(buckets: usize) -> Self {
        Self { begins: (0..=buckets as u32).collect(), list: (0..buckets as u32).collect() }
    }
}

/// Cells as shaders read them.
pub(super) fn words(cells: &[Cell]) -> &[u32] {
    bytemuck::cast_slice(cells)
}

/// `out_(t, b)` = the sum of the columns of row t in bucket b, with their signs.
pub(super) fn fold(c: &Context, x: &Tensor, lists: &Lists, out: &Tensor) {
    for rows in c.blocks(0..x.rows, &[x.cols, out.cols]) {
        let (from, to) = (x.window(rows.clone()), out.window(rows.clone()));
        let params = Sketch {
            rows: rows.len() as u32,
            k: out.cols as u32,
            start_x: from.start,
            line_x: from.line,
            start_out: to.start,
            line_out: to.line,
            ..Sketch::default()
        };
        let args = [Arg::Rows(from), Arg::Words(&lists.begins), Arg::Words(&lists.list), Arg::Rows(to)];
        let groups = (rows.len() * out.cols).div_ceil(LANES);
        c.run(&kernels::SKETCH_FOLD, &[], &args, &params, groups, (rows.len() * x.cols) as f64);
    }
}

/// Row `at` of `out` += the matrix g, rows `rows` of it, hashed: `cells` has one a row; with a `side`, buckets lie on a grid of so many columns.
pub(super) fn hash(
    c: &Context,
    (g, rows): (&Tensor, std::ops::Range<usize>),
    (cells, lists, side): (&[u32], &Lists, usize),
    out: &Tensor,
    at: usize,
) {
    let first = rows.start;
    for rows in c.blocks(rows, &[g.cols]) {
        let (from, to) = (g.window(rows.clone()), out.window(at..at + 1));
        let params = Sketch {
            rows: rows.len() as u32,
            k: out.cols as u32,
            side: side as u32,
            start_x: from.start,
            line_x: from.line,
            start_out: to.start,
            ..Sketch::default()
        };
        let args = [
            Arg::Rows(from),
            Arg::Words(&lists.begins),
            Arg::Words(&lists.list),
            Arg::Rows(to),
            Arg::Words(&cells[rows.start - first..rows.end - first]),
        ];
        let flops = (rows.len() * (g.cols + out.cols)) as f64;
        c.run(&kernels::SKETCH_HASH, &[], &args, &params, out.cols.div_ceil(LANES), flops);
    }
}

/// The numbers of elements' buckets, with their signs.
pub(super) fn pull(c: &Context, rows: &[u32], columns: &[u32], side: usize, numbers: &[u32], out: &Tensor) {
    for own in c.blocks(0..out.rows, &[out.cols]) {
        let (to, count) = (out.window(own.clone()), own.len() * out.cols);
        let params = Sketch {
            rows: own.len() as u32,
            cols: out.cols as u32,
            k: numbers.len() as u32,
            side: side as u32,
            start_out: to.start,
            line_out: to.line,
            ..Sketch::default()
        };
        let args = [Arg::Rows(to), Arg::Words(&rows[own]), Arg::Words(columns), Arg::Words(numbers)];
        c.run(&kernels::SKETCH_PULL, &[], &args, &params, count.div_ceil(LANES), count as f64);
    }
}

/// The same where elements from `first` on have words of their own.
pub(super) fn pull_count(c: &Context, stream: &PublicStream, first: usize, numbers: &[u32], out: &Tensor) {
    for own in c.blocks(0..out.rows, &[out.cols]) {
        let (to, count) = (out.window(own.clone()), own.len() * out.cols);
        let word = COUNTS + (first + own.start * out.cols) as u64;
        let (block, skip) = (word / 16, word % 16);
        let blocks = (skip as usize + count).div_ceil(16);
        let params = Sketch {
            stream: stream.input(),
            block_low: block as u32,
            block_high: (block >> 32) as u32,
            skip: skip as u32,
            blocks: blocks as u32,
            rows: own.len() as u32,
            cols: out.cols as u32,
            k: numbers.len() as u32,
            start_out: to.start,
            line_out: to.line,
            ..Sketch::default()
        };
        let args = [Arg::Rows(to), Arg::Words(numbers)];
        c.run(&kernels::SKETCH_PULL_COUNT, &[], &args, &params, blocks.div_ceil(LANES), 60.0 * count as f64);
    }
}
