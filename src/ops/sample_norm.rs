//! Squared norms of every sample's gradient, from the factors of that gradient.
//!
//! Sample i's gradient of a linear weight is `G_i = x_iᵀ dy_i`, a sum over its T rows. Its squared norm is
//!
//! ```text
//! |G_i|² = <x_i x_iᵀ, dy_i dy_iᵀ>        ghost: two T x T Gram matrices, T² (I + O) multiply-adds, halved by symmetry
//!        = sum of squares of x_iᵀ dy_i    materialised: T I O multiply-adds, in tiles that are thrown away
//! ```
//!
//! and [`add_outer`] takes the cheaper of the two for each sample. Sums over a Gram matrix or a tile run in double precision;
//! partial sums are added in a fixed order, so that the thread count changes no bit.

use super::attention::{block, with_scratch};
use super::{Segments, slice};
use crate::kernel::{Gram, Onto, Real, elementwise, matmul_serial, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2, s};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a tile of `G`, or of an inner product with it, worked on at a time.
const BLOCK: usize = 64;

/// Columns of a tile of `G`.
const TILE: usize = 1024;

/// A factor's columns are shared out in pieces of at least this many ...
const PIECE: usize = 768;

/// ... and in at most so many pieces, each of which has a Gram matrix of its own for a while.
const PIECES: usize = 8;

/// Whether the Gram matrices of a sample of `rows` rows cost less than its gradient (I, O) itself.
///
/// Multiply-adds: half of `T² (I + O)` against `T I O`.
fn ghost_is_cheaper(rows: usize, inputs: usize, outputs: usize) -> bool {
    rows * (inputs + outputs) < 2 * inputs * outputs
}

/// `squares_i += |x_iᵀ dy_i|²` for every segment i.
///
/// Shapes: `x`: (N, I); `dy`: (N, O); `squares`: one number a segment.
pub fn add_outer<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>, segments: &Segments, squares: &mut [F]) {
    let (inputs, outputs) = (x.ncols(), dy.ncols());
    let (ghost, other): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|&i| ghost_is_cheaper(segments.range(i).len(), inputs, outputs));
    add_ghost(x, dy, segments, &ghost, squares);
    let mut tiles = Vec::new();
    for i in other {
        for rows in blocks(inputs, BLOCK) {
            tiles.extend(blocks(outputs, TILE).map(|columns| (i, (rows.clone(), columns))));
        }
    }
    add_tasks(tiles, squares, |i, (rows, columns)| {
        let range = segments.range(*i);
        tile(x.slice(s![range.clone(), rows.clone()]), dy.slice(s![range, columns.clone()]))
    });
}

/// [`add_outer`] for segments `which`, by Gram matrices. Threads share a deep matrix by its columns, in pieces that depend
/// on nothing but its depth.
fn add_ghost<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>, segments: &Segments, which: &[usize], squares: &mut [F]) {
    let mut tasks = Vec::new();
    for &i in which {
        for factor in [x, dy] {
            let size = factor.ncols().div_ceil(PIECES).max(PIECE);
            let rows = factor.slice_move(s![segments.range(i), ..]);
            tasks.extend(blocks(factor.ncols(), size).map(|columns| (rows, columns)));
        }
    }
    let mut grams = tasks
        .into_par_iter()
        .with_max_len(1)
        .map(|(rows, columns)| Gram::new(rows, columns))
        .collect::<Vec<_>>()
        .into_iter();
    for &i in which {
        let [gx, gdy] = [x, dy].map(|factor| {
            let size = factor.ncols().div_ceil(PIECES).max(PIECE);
            let mut whole = grams.next().expect("a piece of each factor");
            (1..factor.ncols().div_ceil(size)).for_each(|_| whole.add(&grams.next().expect("every piece")));
            whole
        });
        squares[i] += F::of(gx.dot(&gdy));
    }
}

/// Sum of squares of `xᵀ dy`.
fn tile<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>) -> f64 {
    let mut total = 0.0;
    with_scratch(x.ncols() * dy.ncols(), |scratch, _| {
        let mut g = block(scratch, x.ncols(), dy.ncols());
        matmul_serial(x.reversed_axes(), dy, Onto::Zero, g.view_mut());
        total = slice(&g).chunks(TILE).map(|row| wide_dot(row, row)).sum();
    });
    total
}

/// `squares_i += sum over distinct ids v of |sum of dy_t where id_t = v|²`: the squared norm of an embedding's gradient.
///
/// Shapes: `ids`: N; `dy`: (N, C); `squares`: one number a segment.
pub fn add_rows<F: Real>(ids: &[u32], dy: ArrayView2<F>, segments: &Segments, squares: &mut [F]) {
    let (c, dy) = (dy.ncols(), slice(&dy));
    (squares, segments.offsets().par_windows(2)).into_par_iter().for_each(|(square, ends)| {
        let mut order: Vec<usize> = (ends[0]..ends[1]).collect();
        order.sort_by_key(|&t| ids[t]);
        let mut total = 0.0;
        with_scratch(c, |sum, _| {
            for same in order.chunk_by(|&a, &b| ids[a] == ids[b]) {
                sum.copy_from_slice(&dy[same[0] * c..][..c]);
                for &t in &same[1..] {
                    elementwise::axpy(F::one(), &dy[t * c..][..c], sum);
                }
                total += wide_dot(sum, sum);
            }
        });
        *square += F::of(total);
    });
}

/// What an embedding that is also the output head adds to the squared norm beyond that of its two parts:
/// `squares_i += 2 <H_i, E_i>`, where `H_i = x_iᵀ dy_i` comes from the head (x = dlogits, dy = h) and `E_i` from the
/// embedding: `<H_i, E_i> = sum_{t,s} x[t, id_s] <dy_t, demb_s>`.
///
/// Shapes: `x`: (N, V); `dy`, `demb`: (N, C); `ids`: N; `squares`: one number a segment.
pub fn add_tied<F: Real>(
    x: ArrayView2<F>,
    dy: ArrayView2<F>,
    ids: &[u32],
    demb: ArrayView2<F>,
    segments: &Segments,
    squares: &mut [F],
) {
    let tasks = segments.iter().enumerate().flat_map(|(i, range)| blocks(range.len(), BLOCK).map(move |b| (i, b)));
    add_tasks(tasks.collect(), squares, |i, rows| {
        let range = segments.range(*i);
        let (ids, demb) = (&ids[range.clone()], demb.slice(s![range.clone(), ..]));
        let rows = range.start + rows.start..range.start + rows.end;
        let (x, dy) = (x.slice(s![rows.clone(), ..]), dy.slice(s![rows, ..]));
        let mut total = 0.0;
        with_scratch(dy.nrows() * ids.len(), |scratch, _| {
            let mut products = block(scratch, dy.nrows(), ids.len());
            matmul_serial(dy, demb.reversed_axes(), Onto::Zero, products.view_mut());
            for (products, x) in products.rows().into_iter().zip(x.rows()) {
                total += products.iter().zip(ids).map(|(p, &id)| p.f64() * x[id as usize].f64()).sum::<f64>();
            }
        });
        2.0 * total
    });
}

/// Each segment's sum of rows, `sums_i = sum of dy_t over t in segment i`: every sample's gradient of a bias or gain.
///
/// Shapes: `dy`: (N, O); `sums`: (segments, O), overwritten.
pub fn segment_sums<F: Real>(dy: ArrayView2<F>, segments: &Segments, mut sums: ArrayViewMut2<F>) {
    let (cols, dy) = (dy.ncols(), slice(&dy));
    let rows: Vec<_> = super::slice_mut(&mut sums).chunks_exact_mut(cols).zip(segments.iter()).collect();
    rows.into_par_iter().for_each(|(sum, range)| {
        sum.fill(F::zero());
        for row in dy[range.start * cols..range.end * cols].chunks_exact(cols) {
            elementwise::axpy(F::one(), row, sum);
        }
    });
}

/// `squares_i += sum of task(i, ..)` over the tasks of segment i, in their order.
fn add_tasks<F: Real, T: Send + Sync>(
    tasks: Vec<(usize, T)>,
    squares: &mut [F],
    run: impl Fn(&usize, &T) -> f64 + Sync + Send,
) {
    let parts: Vec<f64> = tasks.par_iter().with_max_len(1).map(|(i, task)| run(i, task)).collect();
    let mut totals = vec![0.0; squares.len()];
    for ((i, _), part) in tasks.iter().zip(parts) {
        totals[*i] += part;
    }
    squares.iter_mut().zip(totals).for_each(|(square, total)| *square += F::of(total));
}

/// `0..len` in pieces of `size`.
fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..(start + size).min(len))
}

multiversion! {
    /// `sum_i a_i b_i` in double precision.
    fn wide_dot<F: Real>(a: &[F], b: &[F]) -> f64 {
        assert_eq!(a.len(), b.len());
        elementwise::lane_sum([a, b], |[a, b]| a.f64() * b.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use ndarray::Array2;

    fn lengths() -> Segments {
        Segments::from_lengths([5, 0, 1, 64, 65, 130])
    }

    fn close(got: &[f64], want: impl Fn(Range<usize>) -> f64, segments: &Segments) {
        for (got, range) in got.iter().zip(segments.iter()) {
            // Every op adds to what is there.
            let want = 3.0 + want(range.clone());
            assert!((got - want).abs() <= 1e-11 * want.abs(), "rows {range:?}: {got}, not {want}");
        }
    }

    #[test]
    fn outer_equals_the_definition_by_both_ways() {
        let segments = lengths();
        // 20 x 9 is materialised from T = 13 on, 130 x 1100 (several tiles) never, 3 x 2000 almost always.
        for (inputs, outputs) in [(20, 9), (130, 1100), (3, 2000), (1, 1)] {
            let (x, dy) = (noise::<f64>(segments.rows(), inputs, 1), noise::<f64>(segments.rows(), outputs, 2));
            let mut squares = vec![3.0; segments.len()];
            add_outer(x.view(), dy.view(), &segments, &mut squares);
            let want = |r: Range<usize>| {
                let g = x.slice(s![r.clone(), ..]).t().dot(&dy.slice(s![r, ..]));
                g.iter().map(|g| g * g).sum()
            };
            close(&squares, want, &segments);
        }
    }

    #[test]
    fn the_cheaper_way_is_taken() {
        assert!(ghost_is_cheaper(128, 768, 2304) && ghost_is_cheaper(1024, 768, 50257));
        assert!(!ghost_is_cheaper(128, 128, 128) && !ghost_is_cheaper(1, 1, 1));
    }

    /// The gradient of a table of 7 rows.
    fn table(ids: &[u32], dy: &Array2<f64>, range: Range<usize>) -> Array2<f64> {
        let mut g = Array2::zeros((7, dy.ncols()));
        for t in range {
            let mut row = g.row_mut(ids[t] as usize);
            row += &dy.row(t);
        }
        g
    }

    #[test]
    fn rows_and_ties_equal_the_definition() {
        let segments = lengths();
        let n = segments.rows();
        let ids: Vec<u32> = (0..n).map(|i| (i * i % 7) as u32).collect();
        let (x, h, demb) = (noise::<f64>(n, 7, 1), noise::<f64>(n, 33, 2), noise::<f64>(n, 33, 3));
        let mut squares = vec![3.0; segments.len()];
        add_rows(&ids, demb.view(), &segments, &mut squares);
        close(&squares, |r| table(&ids, &demb, r).iter().map(|g| g * g).sum(), &segments);
        let mut squares = vec![3.0; segments.len()];
        add_tied(x.view(), h.view(), &ids, demb.view(), &segments, &mut squares);
        let want = |r: Range<usize>| {
            let head = x.slice(s![r.clone(), ..]).t().dot(&h.slice(s![r.clone(), ..]));
            2.0 * (head * table(&ids, &demb, r)).sum()
        };
        close(&squares, want, &segments);
    }

    #[test]
    fn sums_equal_the_definition() {
        let segments = lengths();
        let dy = noise::<f64>(segments.rows(), 9, 1);
        let mut sums = Array2::from_elem((segments.len(), 9), f64::NAN);
        segment_sums(dy.view(), &segments, sums.view_mut());
        for (row, range) in sums.rows().into_iter().zip(segments.iter()) {
            let want = dy.slice(s![range, ..]).sum_axis(ndarray::Axis(0));
            assert!(row.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
}
