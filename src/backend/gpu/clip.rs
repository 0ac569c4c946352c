//! Every sample's gradient norm, and clipping.

use super::Gpu;
use super::attention::groups;
use super::context::{Arg, Context};
use super::kernels::{self, Kernel};
use super::mass::{self, LONG, deep, gathered, long_gram, product_roundings};
use super::matmul::{Factor, Target, matmul};
use super::params::{Clip, SampleNorm};
use super::rows::{LANES, columns, row_dots, same_ids};
use super::tensor::{Tensor, Window};
use crate::backend::SampleNorms;
use crate::ops::Segments;
use crate::ops::clip::{ClipFunction, GAMMA, underflow};
use crate::ops::sample_norm::COLUMNS;
use std::ops::Range;

/// Side of a tile.
const TILE: usize = 32;

/// Norms are rounded up by this many units in the last place. On the CPU [`crate::ops::clip::SLACK`] suffices; here drivers may err by some
/// more in roots and quotients.
const SLACK: f64 = 64.0;

/// What sample_norm.wgsl is told of the rows that it reads, two factors of so many columns each; the rest is zero.
pub(super) fn factors_of(a: Option<(Window, usize)>, b: Option<(Window, usize)>) -> SampleNorm {
    let factor = |f: Option<(Window, usize)>| {
        f.map_or((0, 0, 0, 0.0), |(w, cols)| (w.start, w.line, cols as u32, mass::floor(cols)))
    };
    let ((start_a, line_a, cols_a, floor_a), (start_b, line_b, cols_b, floor_b)) = (factor(a), factor(b));
    SampleNorm { start_a, line_a, cols_a, floor_a, start_b, line_b, cols_b, floor_b, ..Default::default() }
}

/// Partial sums of several samples: `begins` says where each sample's begin.
struct Partials {
    sums: Tensor,
    begins: Vec<u32>,
}

/// `squares_(first + i) += the sum of sample i's partial sums`.
fn collect(c: &Context, partials: &Partials, squares: &Tensor, first: usize) {
    let samples = partials.begins.len() - 1;
    let to = squares.window(first..first + samples);
    let params = SampleNorm { work: samples as u32, start_out: to.start, ..Default::default() };
    let args = [Arg::Words(&partials.begins), Arg::Rows(partials.sums.whole()), Arg::Rows(to)];
    c.run(&kernels::COLLECT, &[], &args, &params, samples, 0.0);
}

/// Whether the Gram matrices of a sample cost less than its gradient; as in [`crate::ops::sample_norm`].
fn ghost_is_cheaper(rows: usize, inputs: usize, outputs: usize) -> bool {
    rows * (inputs + outputs) < 2 * inputs * outputs
}

/// Tiles of every sample, and where each sample's begin.
fn tiles(segments: &Segments, of: impl Fn(usize) -> Vec<(usize, usize)>) -> (Vec<u32>, Vec<u32>) {
    let (mut items, mut begins) = (Vec::new(), vec![0]);
    for range in segments.iter() {
        for (r, s) in of(range.len()) {
            items.extend([range.start, range.len(), r, s].map(|x| x as u32));
        }
        begins.push(items.len() as u32 / 4);
    }
    (items, begins)
}

/// As [`groups`]; samples too long for one binding come alone, marked.
fn fitting(c: &Context, segments: &Segments, columns: usize) -> Vec<(Range<usize>, Range<usize>, Segments, bool)> {
    let fit = c.blocks(0..segments.rows(), &[columns]).first().map_or(0, Range::len);
    let chunk = |samples: Range<usize>| {
        let rows = segments.offsets()[samples.start]..segments.offsets()[samples.end];
        let fits = rows.len() <= fit;
        (samples.clone(), rows, segments.slice(samples), fits)
    };
    segments.chunks(fit.max(1)).into_iter().map(chunk).filter(|(_, rows, ..)| !rows.is_empty()).collect()
}

/// Both Gram matrices by the windowed product, for one sample with more rows than a binding shows.
fn long_outer(gpu: &Gpu, x: &Tensor, dy: &Tensor, rows: Range<usize>, squares: &Tensor, at: usize) {
    let (c, n) = (&gpu.context, rows.len());
    let gram = |x: &Tensor| {
        let g = gpu.empty(n, n);
        c.clear(&g);
        for first in (0..x.cols).step_by(LONG) {
            let columns = first..(first + LONG).min(x.cols);
            let (a, b) = (Factor::plain(x).rows(rows.clone()), Factor::transposed(x).rows(rows.clone()));
            matmul(c, a.columns(columns.clone()), b.columns(columns), None, Target::sum(&g));
        }
        g
    };
    let (gx, gdy, sums) = (gram(x), gram(dy), gpu.empty(n, 1));
    c.clear(&sums);
    row_dots(c, &gx, &gdy, &sums, 0);
    // A column's numbers lie four apart, with zeros between them.
    collect(c, &Partials { sums, begins: vec![0, 4 * n as u32] }, squares, at);
}

/// The tiles (r, s) with s <= r.
fn triangle(n: usize) -> Vec<(usize, usize)> {
    (0..n).flat_map(|r| (0..=r).map(move |s| (r, s))).collect()
}

fn rectangle(m: usize, n: usize) -> Vec<(usize, usize)> {
    (0..m).flat_map(|r| (0..n).map(move |s| (r, s))).collect()
}

/// Tiles of the products of every sample's rows of the head with its rows of the embedding, eight numbers each, and where each sample's begin.
fn tied_tiles(heads: &Segments, segments: &Segments) -> (Vec<u32>, Vec<u32>) {
    let (mut items, mut begins) = (Vec::new(), vec![0]);
    for (head, rows) in heads.iter().zip(segments.iter()) {
        for (r, s) in rectangle(head.len().div_ceil(TILE), rows.len().div_ceil(TILE)) {
            items.extend([head.start, head.len(), r, s, rows.start, rows.len(), 0, 0].map(|x| x as u32));
        }
        begins.push(items.len() as u32 / 8);
    }
    (items, begins)
}

/// One sample with more rows of logits than a binding shows: `2 <x E, dy>` by rows, with E the embedding's gradient.
fn long_tied(
    gpu: &Gpu,
    (x, dy, head): (&Tensor, &Tensor, Range<usize>),
    (ids, demb, rows): (&[u32], &Tensor, Range<usize>),
    squares: &Tensor,
    at: usize,
) {
    let (c, n) = (&gpu.context, head.len());
    let [table, along, own] = [x.cols, n, n].map(|rows| gpu.empty(rows, dy.cols));
    let sums = gpu.empty(n, 1);
    c.clear(&table);
    c.clear(&sums);
    super::rows::scatter(c, ids, demb, rows, &table);
    matmul(c, Factor::plain(x).rows(head.clone()), Factor::plain(&table), None, Target::new(&along));
    c.copy_rows(dy, head, &own);
    for _ in 0..2 {
        row_dots(c, &along, &own, &sums, 0);
    }
    collect(c, &Partials { sums, begins: vec![0, 4 * n as u32] }, squares, at);
}

/// [`crate::ops::clip::scale_rows`] or, unless `scale`, [`crate::ops::clip::drop_rows`].
fn clip_rows(c: &Context, x: &Tensor, segments: &Segments, factors: &Tensor, first: usize, scale: bool) {
    let owners: Vec<u32> = segments.iter().enumerate().flat_map(|(i, r)| r.map(move |_| i as u32)).collect();
    let factors = factors.window(first..first + segments.len());
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let to = x.window(rows.clone());
        let count = rows.len() * x.line() / 4;
        let params = Clip {
            count: count as u32,
            line: to.line / 4,
            start_x: to.start,
            start_factors: factors.start,
            kind: scale as u32,
            ..Default::default()
        };
        let args = [Arg::Rows(to), Arg::Rows(factors), Arg::Words(&owners[rows])];
        c.run(&kernels::CLIP_ROWS, &[], &args, &params, count.div_ceil(LANES), count as f64 * 4.0);
    }
}

impl SampleNorms for Gpu {
    fn add_outer_squares(&self, x: &Tensor, dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        let c = &self.context;
        for (samples, rows, segments, fits) in fitting(c, segments, x.cols.max(dy.cols)) {
            if !fits {
                long_outer(self, x, dy, rows, squares, first + samples.start);
                continue;
            }
            let (wx, wdy) = (x.window(rows.clone()), dy.window(rows));
            let pass = |kernel: &'static Kernel, of: &dyn Fn(usize) -> Vec<(usize, usize)>, flops: f64| {
                let (items, begins) = tiles(&segments, of);
                let work = items.len() / 4;
                if work == 0 {
                    return;
                }
                let sums = self.empty(1, work);
                let params = SampleNorm { work: work as u32, ..factors_of(Some((wx, x.cols)), Some((wdy, dy.cols))) };
                let args = [Arg::Rows(wx), Arg::Rows(wdy), Arg::Words(&items), Arg::Rows(sums.whole())];
                c.run(kernel, &[], &args, &params, work, work as f64 * flops);
                collect(c, &Partials { sums, begins }, squares, first + samples.start);
            };
            let area = (2 * TILE * TILE) as f64;
            pass(
                &kernels::SAMPLE_GRAM,
                &|n| if ghost_is_cheaper(n, x.cols, dy.cols) { triangle(n.div_ceil(TILE)) } else { Vec::new() },
                area * (x.cols + dy.cols) as f64,
            );
            let longest = segments.longest();
            pass(
                &kernels::SAMPLE_SQUARES,
                &|n| match n {
                    0 => Vec::new(),
                    _ if ghost_is_cheaper(n, x.cols, dy.cols) => Vec::new(),
                    _ => rectangle(x.cols.div_ceil(TILE), dy.cols.div_ceil(TILE)),
                },
                area * longest as f64,
            );
        }
        let rounding = |i: usize| {
            let n = segments.range(i).len();
            let error = if c.blocks(0..n, &[x.cols.max(dy.cols)]).len() > 1 {
                long_gram(x.cols) + long_gram(dy.cols) + n.div_ceil(256) + gathered(4 * n)
            } else if ghost_is_cheaper(n, x.cols, dy.cols) {
                deep(x.cols) + deep(dy.cols) + gathered(n.div_ceil(TILE).pow(2))
            } else {
                2 * (n + 1) + gathered(x.cols.div_ceil(TILE) * dy.cols.div_ceil(TILE))
            };
            (product_roundings(c, n, &[x.cols, dy.cols]), error)
        };
        mass::add(self, (Some(x), dy), segments, squares, first, rounding);
    }

    fn add_row_squares(&self, ids: &[u32], dy: &Tensor, segments: &Segments, squares: &mut Tensor, first: usize) {
        let c = &self.context;
        for (samples, rows, segments, fits) in fitting(c, segments, dy.cols) {
            if !fits {
                // Says so.
                groups(c, &segments, dy.cols);
                return;
            }
            let from = dy.window(rows.clone());
            let (mut order, mut lists, mut begins) = (Vec::new(), vec![0], vec![0]);
            for range in segments.iter() {
                let (own, own_lists) = same_ids(&ids[rows.start + range.start..rows.start + range.end]);
                let before = order.len() as u32;
                order.extend(own.iter().map(|&i| range.start as u32 + i));
                lists.extend(own_lists[1..].iter().map(|&end| before + end));
                begins.push(lists.len() as u32 - 1);
            }
            let work = lists.len() - 1;
            let sums = self.empty(1, work);
            let params = SampleNorm { work: work as u32, ..factors_of(Some((from, dy.cols)), None) };
            let args = [Arg::Rows(from), Arg::Words(&lists), Arg::Words(&order), Arg::Rows(sums.whole())];
            c.run(&kernels::SAMPLE_ROWS, &[], &args, &params, work, 0.0);
            collect(c, &Partials { sums, begins }, squares, first + samples.start);
        }
        let windows = c.blocks(0..dy.rows, &[dy.cols]).len();
        let rounding = |i: usize| {
            let range = segments.range(i);
            let (_, lists) = same_ids(&ids[range.clone()]);
            let most = lists.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0);
            (most + windows + 3, 2 * most + dy.cols.div_ceil(256) + gathered(range.len()))
        };
        mass::add(self, (None, dy), segments, squares, first, rounding);
    }

    fn add_tied_squares(
        &self,
        (x, dy, head_row, heads): (&Tensor, &Tensor, usize, &Segments),
        (ids, demb, row, segments): (&[u32], &Tensor, usize, &Segments),
        squares: &mut Tensor,
        first: usize,
    ) {
        let c = &self.context;
        assert_eq!(heads.len(), segments.len(), "the same samples");
        // The longer of a sample's two.
        let longest = Segments::from_lengths(heads.iter().zip(segments.iter()).map(|(a, b)| a.len().max(b.len())));
        for (samples, _, _, fits) in fitting(c, &longest, x.cols.max(dy.cols)) {
            let own = |from: usize, segments: &Segments| {
                from + segments.offsets()[samples.start]..from + segments.offsets()[samples.end]
            };
            let (head, rows) = (own(head_row, heads), own(row, segments));
            if head.is_empty() || rows.is_empty() {
                continue;
            }
            if !fits {
                long_tied(self, (x, dy, head), (ids, demb, rows), squares, first + samples.start);
                continue;
            }
            let (wx, wdy, wdemb) = (x.window(head.clone()), dy.window(head), demb.window(rows.clone()));
            let (items, begins) = tied_tiles(&heads.slice(samples.clone()), &segments.slice(samples.clone()));
            let work = items.len() / 8;
            let sums = self.empty(1, work);
            let params = SampleNorm {
                work: work as u32,
                start_c: wx.start,
                line_c: wx.line,
                ..factors_of(Some((wdy, dy.cols)), Some((wdemb, demb.cols)))
            };
            let args = [
                Arg::Rows(wdy),
                Arg::Rows(wdemb),
                Arg::Words(&items),
                Arg::Words(&ids[rows]),
                Arg::Rows(wx),
                Arg::Rows(sums.whole()),
            ];
            let flops = (work * 2 * TILE * TILE * dy.cols) as f64;
            c.run(&kernels::SAMPLE_TIED, &[], &args, &params, work, flops);
            collect(c, &Partials { sums, begins }, squares, first + samples.start);
        }
        // Of a long sample a term is rounded in the table's sums, the product with it and the rows' dots. Eight more, for the three squares that may
        // cancel.
        let rounding = |i: usize| {
            let n = longest.range(i).len();
            let long = 2 * n + dy.cols.div_ceil(256) + gathered(4 * n);
            (0, (deep(dy.cols) + gathered(n.div_ceil(TILE).pow(2))).max(long) + 8)
        };
        mass::add_bounds(
            c,
            (&self.empty(1, 4), &vec![0; segments.len() + 1]),
            segments,
            squares,
            first,
            (rounding, 1.0),
        );
    }

    fn segment_sums(&self, dy: &Tensor, segments: &Segments) -> Tensor {
        let (c, sums) = (&self.context, self.empty(segments.len(), dy.cols));
        // What has no rows is not visited, and what has too many for a binding is added up.
        c.clear(&sums);
        let parts = (dy.line() / 4).div_ceil(LANES);
        for (samples, rows, segments, fits) in fitting(c, segments, dy.cols) {
            if !fits {
                columns(self, dy, rows, &sums, samples.start);
                continue;
            }
            let (from, to) = (dy.window(rows), sums.window(samples.clone()));
            let begins: Vec<u32> = segments.offsets().iter().map(|&o| o as u32).collect();
            let params = SampleNorm {
                work: samples.len() as u32,
                start_out: to.start,
                parts: parts as u32,
                ..factors_of(Some((from, dy.cols)), None)
            };
            let args = [Arg::Rows(from), Arg::Words(&begins), Arg::Rows(to)];
            let flops = (segments.rows() * dy.cols) as f64;
            c.run(&kernels::SEGMENT_SUMS, &[], &args, &params, samples.len() * parts, flops);
        }
        sums
    }

    fn add_norm_bounds(&self, norms: &Tensor, squares: &mut Tensor) {
        assert_eq!((norms.rows, norms.cols), (squares.rows, COLUMNS), "the columns of each sample's norms");
        let up = 1.0 + 4.0 * f64::from(f32::EPSILON);
        for rows in self.context.blocks(0..squares.rows, &[1]) {
            let (x, from) = (squares.window(rows.clone()), norms.window(rows.clone()));
            let (count, start_x, start_factors) = (rows.len() as u32, x.start, from.start);
            let params = Clip { count, line: 1, start_x, start_factors, up: up as f32, ..Default::default() };
            let args = [Arg::Rows(x), Arg::Rows(from)];
            self.context.run(&kernels::NORM_BOUNDS, &[], &args, &params, rows.len().div_ceil(LANES), 0.0);
        }
    }

    fn clip_factors(&self, function: ClipFunction, bound: f64, squares: &mut Tensor) {
        let (kind, gamma) = match function {
            ClipFunction::Abadi => (0, 1e-6 + underflow::<f32>()),
            ClipFunction::Automatic => (1, GAMMA + underflow::<f32>()),
            ClipFunction::None => (2, 0.0),
        };
        let up = 1.0 + SLACK * f32::EPSILON as f64;
        for rows in self.context.blocks(0..squares.rows, &[1]) {
            let x = squares.window(rows.clone());
            let params = Clip {
                count: rows.len() as u32,
                line: 1,
                start_x: x.start,
                start_factors: 0,
                kind,
                bound: bound as f32,
                gamma: gamma as f32,
                up: up as f32,
            };
            self.context.run(&kernels::CLIP_FACTORS, &[], &[Arg::Rows(x)], &params, rows.len().div_ceil(LANES), 0.0);
        }
    }

    fn scale_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip_rows(&self.context, x, segments, factors, first, true);
    }

    fn drop_rows(&self, x: &mut Tensor, segments: &Segments, factors: &Tensor, first: usize) {
        clip_rows(&self.context, x, segments, factors, first, false);
    }
}
