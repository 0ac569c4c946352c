//! Squared norms of every sample's gradient, from the factors of that gradient, and what rounding can have done to them.
//!
//! Sample i's gradient of a linear weight is `G_i = x_iᵀ dy_i`, a sum over its T rows. Its squared norm is
//!
//! ```text
//! |G_i|² = <x_i x_iᵀ, dy_i dy_iᵀ>        ghost: two T x T Gram matrices, T² (I + O) multiply-adds, halved by symmetry
//!        = sum of squares of x_iᵀ dy_i    materialised: T I O multiply-adds, in tiles that are thrown away
//! ```
//!
//! and [`add_outer`] takes the cheaper of the two for each sample. Products and sums run in double precision, in which products of f32 are
//! exact; partial sums are added in a fixed order, so that the thread count changes no bit.
//!
//! # A bound that rounding cannot break
//!
//! Both formulas add up terms that may cancel, and so does the product of the scaled factors that is applied in the end: a record whose
//! tokens' gradients nearly cancel has a norm far below its terms. So a sample has [`COLUMNS`] numbers for each parameter:
//!
//! ```text
//! square       |G|² as computed
//! mass         M >= sum over its rows t of |x_t| |dy_t|, of everything delivered for the parameter
//! roundings    d: how often a term of an element of G is rounded while the clipped sum is formed in F
//! error        e, such that |G|² <= square + e M²
//! ```
//!
//! What is applied under the factor f has at most the norm `f (sqrt(square + e M²) + γ(d) M)`, the bound of [`super::clip`]. For, with u the
//! unit roundoff and `γ(d) = d u / (1 - d u)`:
//!
//! - A sum of products in which a term is rounded d times is `sum_t (1 + θ_t) a_t b_t` with `|θ_t| <= γ(d)`. The error of element (j, k) of
//!   the product of f's scaled rows is at most `γ(d) f sum_t |x_tj| |dy_tk|`, and as a matrix that is at most
//!   `γ(d) f sum_t |x_t| |dy_t| <= γ(d) f M`. The scaling of the rows is one of the d.
//! - By the same rule an entry of a Gram matrix is off by at most `γ |x_t| |x_s|`, and `<x xᵀ, dy dyᵀ>` by at most
//!   `γ sum_ts |x_t| |x_s| |dy_t| |dy_s| = γ M²`; a sum of squares of `xᵀ dy` likewise. γ is that of double precision, for as many roundings as there are.
//! - The tied term is off by at most `γ sum_ts |x[t, id_s]| |dy_t| |demb_s| <= γ M_head M_rows`, and `(M_head + M_rows)²` bounds all of a tied parameter's
//!   errors: masses add up.
//!
//! Underflow is [`super::clip`]'s. A row whose square F cannot hold makes the mass infinite, and the sample is removed.

use super::{Segments, slice};
use crate::kernel::scratch::{block, with_scratch};
use crate::kernel::{Gram, Onto, Real, gemm, lanes, matmul_serial, multiversion};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use rayon::prelude::*;
use std::ops::Range;

/// Numbers of a sample: square, mass, roundings, error.
pub const COLUMNS: usize = 4;

/// Rows of a tile of `G`, or of an inner product with it, worked on at a time.
const BLOCK: usize = 64;

/// Columns of a tile of `G`.
const TILE: usize = 1024;

/// A factor's columns are shared out in pieces of at least this many ...
const PIECE: usize = 768;

/// ... and in at most so many pieces, each of which has a Gram matrix of its own for a while.
const PIECES: usize = 8;

/// `d u / (1 - d u)` for the unit roundoff u: how far d roundings can move a number, of its size.
pub fn gamma(roundings: f64, unit: f64) -> f64 {
    let moved = roundings * unit;
    if moved < 0.5 { moved / (1.0 - moved) } else { f64::INFINITY }
}

/// The smallest number of F that is not below x, or close above it; NaN stays NaN.
pub(super) fn up<F: Real>(x: f64) -> F {
    let y = F::of(x);
    if y.f64() >= x { y } else { y + y.abs() * F::epsilon() + F::min_positive_value() }
}

/// What a delivery adds to a sample's row, but for the square.
struct Share {
    mass: f64,
    /// In F, of the product to come.
    roundings: usize,
    /// In double precision, of the square and the mass.
    sums: usize,
}

/// The unit roundoff of double precision.
const UNIT: f64 = f64::EPSILON / 2.0;

impl Share {
    fn add_to<F: Real>(self, square: f64, row: &mut [F]) {
        let error = gamma(self.sums as f64, UNIT);
        row[0] += F::of(square);
        row[1] = up(row[1].f64() + self.mass * (1.0 + error));
        row[2] += F::of(self.roundings as f64);
        row[3] = up(row[3].f64() + 2.0 * error);
    }
}

/// `|a| |b|` from two squares; infinite unless F holds both squares.
fn mass<F: Real>(a: f64, b: f64) -> f64 {
    let most = F::max_value().f64();
    if a <= most && b <= most { a.sqrt() * b.sqrt() } else { f64::INFINITY }
}

/// Whether the Gram matrices of a sample of `rows` rows cost less than its gradient (I, O) itself.
///
/// Multiply-adds: half of `T² (I + O)` against `T I O`.
fn ghost_is_cheaper(rows: usize, inputs: usize, outputs: usize) -> bool {
    rows * (inputs + outputs) < 2 * inputs * outputs
}

/// `square_i += |x_iᵀ dy_i|²`, and its bounds, for every segment i.
///
/// Shapes: `x`: (N, I); `dy`: (N, O); `norms`: [`COLUMNS`] numbers a segment.
pub fn add_outer<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>, segments: &Segments, norms: &mut [F]) {
    let (inputs, outputs) = (x.ncols(), dy.ncols());
    let (ghost, other): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|&i| ghost_is_cheaper(segments.range(i).len(), inputs, outputs));
    add_ghost(x, dy, segments, &ghost, norms);
    for i in other {
        let [x, dy] = [x, dy].map(|factor| factor.slice(s![segments.range(i), ..]).mapv(F::f64));
        let tiles: Vec<_> = blocks(inputs, BLOCK)
            .flat_map(|rows| blocks(outputs, TILE).map(move |columns| (rows.clone(), columns)))
            .collect();
        let parts: Vec<f64> = tiles
            .into_par_iter()
            .with_max_len(1)
            .map(|(rows, columns)| tile(x.slice(s![.., rows]), dy.slice(s![.., columns])))
            .collect();
        let delivered = Share {
            mass: (0..x.nrows()).map(|t| mass::<F>(row_square(&x, t), row_square(&dy, t))).sum(),
            roundings: gemm::roundings(x.nrows()) + 1,
            // A term of a row's square, of an element and of the sum of tiles.
            sums: inputs + outputs + x.nrows() + parts.len() + BLOCK * TILE,
        };
        delivered.add_to(parts.iter().sum(), &mut norms[i * COLUMNS..][..COLUMNS]);
    }
}

/// [`add_outer`] for segments `which`, by Gram matrices. Threads share a deep matrix by its columns, in pieces that depend
/// on nothing but its depth.
fn add_ghost<F: Real>(x: ArrayView2<F>, dy: ArrayView2<F>, segments: &Segments, which: &[usize], norms: &mut [F]) {
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
        let rows = segments.range(i).len();
        let delivered = Share {
            mass: gx.diagonal().zip(gdy.diagonal()).map(|(a, b)| mass::<F>(a, b)).sum(),
            roundings: gemm::roundings(rows) + 1,
            // A term of both entries, of their product and of the sum over T² of them.
            sums: x.ncols() + dy.ncols() + rows * rows + PIECES,
        };
        delivered.add_to(gx.dot(&gdy), &mut norms[i * COLUMNS..][..COLUMNS]);
    }
}

fn row_square(x: &Array2<f64>, t: usize) -> f64 {
    let row = x.row(t);
    let row = row.to_slice().expect("contiguous rows");
    wide_dot(row, row)
}

/// Sum of squares of `xᵀ dy`.
fn tile(x: ArrayView2<f64>, dy: ArrayView2<f64>) -> f64 {
    let mut total = 0.0;
    with_scratch(x.ncols() * dy.ncols(), |[scratch]| {
        let mut g = block(scratch, x.ncols(), dy.ncols());
        matmul_serial(x.reversed_axes(), dy, Onto::Zero, g.view_mut());
        total = slice(&g).chunks(TILE).map(|row| wide_dot(row, row)).sum();
    });
    total
}

/// `square_i += sum over distinct ids v of |sum of dy_t where id_t = v|²`, and its bounds: the squared norm of an embedding's gradient.
///
/// Shapes: `ids`: N; `dy`: (N, C); `norms`: [`COLUMNS`] numbers a segment.
pub fn add_rows<F: Real>(ids: &[u32], dy: ArrayView2<F>, segments: &Segments, norms: &mut [F]) {
    let (c, dy) = (dy.ncols(), slice(&dy));
    (norms.par_chunks_exact_mut(COLUMNS), segments.offsets().par_windows(2)).into_par_iter().for_each(|(row, ends)| {
        let mut order: Vec<usize> = (ends[0]..ends[1]).collect();
        order.sort_by_key(|&t| ids[t]);
        let (mut total, mut size, mut most) = (0.0, 0.0, 0);
        let mut sum = vec![0.0; c];
        for same in order.chunk_by(|&a, &b| ids[a] == ids[b]) {
            sum.fill(0.0);
            for &t in same {
                let row = &dy[t * c..][..c];
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.f64());
                size += mass::<F>(wide_dot(row, row), 1.0);
            }
            total += wide_dot(&sum, &sum);
            most = most.max(same.len());
        }
        // Added to the table one by one, and once more to what the output head has left there.
        let delivered = Share { mass: size, roundings: most + 2, sums: c + order.len() };
        delivered.add_to(total, row);
    });
}

/// What an embedding that is also the output head adds to the squared norm beyond that of its two parts:
/// `square_i += 2 <H_i, E_i>`, where `H_i = x_iᵀ dy_i` comes from the head (x = dlogits, dy = h) and `E_i` from the
/// embedding: `<H_i, E_i> = sum_{t,s} x[t, id_s] <dy_t, demb_s>`. The head's rows t need not be the embedding's rows s: the samples are the same.
///
/// Shapes: `x`: (M, V); `dy`: (M, C); `ids`: N; `demb`: (N, C); `norms`: [`COLUMNS`] numbers a segment.
pub fn add_tied<F: Real>(
    (x, dy, heads): (ArrayView2<F>, ArrayView2<F>, &Segments),
    (ids, demb, segments): (&[u32], ArrayView2<F>, &Segments),
    norms: &mut [F],
) {
    assert_eq!(heads.len(), segments.len(), "the same samples");
    let wide = demb.mapv(F::f64);
    let tasks: Vec<(usize, Range<usize>)> =
        heads.iter().enumerate().flat_map(|(i, range)| blocks(range.len(), BLOCK).map(move |b| (i, b))).collect();
    let product = |(i, rows): &(usize, Range<usize>)| {
        let range = segments.range(*i);
        let (ids, demb) = (&ids[range.clone()], wide.slice(s![range.clone(), ..]));
        let first = heads.range(*i).start;
        let rows = first + rows.start..first + rows.end;
        let (x, dy) = (x.slice(s![rows.clone(), ..]), dy.slice(s![rows, ..]).mapv(F::f64));
        let mut total = 0.0;
        with_scratch(dy.nrows() * ids.len(), |[scratch]| {
            let mut products = block(scratch, dy.nrows(), ids.len());
            matmul_serial(dy.view(), demb.reversed_axes(), Onto::Zero, products.view_mut());
            for (products, x) in products.rows().into_iter().zip(x.rows()) {
                total += products.iter().zip(ids).map(|(p, &id)| p * x[id as usize].f64()).sum::<f64>();
            }
        });
        2.0 * total
    };
    let parts: Vec<f64> = tasks.par_iter().with_max_len(1).map(product).collect();
    let mut totals = vec![0.0; segments.len()];
    for ((i, _), part) in tasks.iter().zip(parts) {
        totals[*i] += part;
    }
    for (i, (row, total)) in norms.chunks_exact_mut(COLUMNS).zip(totals).enumerate() {
        row[0] += F::of(total);
        let sums = dy.ncols() + heads.range(i).len() * segments.range(i).len();
        // Three squares that may cancel have been rounded to F, and their sums.
        row[3] = up(row[3].f64() + gamma(sums as f64, UNIT) + 4.0 * F::epsilon().f64());
    }
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
            lanes::axpy(F::one(), row, sum);
        }
    });
}

/// `0..len` in pieces of `size`.
fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..(start + size).min(len))
}

multiversion! {
    /// `sum_i a_i b_i` in double precision.
    fn wide_dot<F: Real>(a: &[F], b: &[F]) -> f64 {
        assert_eq!(a.len(), b.len());
        lanes::lane_sum([a, b], |[a, b]| a.f64() * b.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use ndarray::Array2;

    fn lengths() -> Segments {
        Segments::from_lengths([5, 0, 1, 64, 65, 130])
    }

    fn threes(segments: &Segments) -> Vec<f64> {
        vec![3.0; COLUMNS * segments.len()]
    }

    fn close(got: &[f64], want: impl Fn(Range<usize>) -> f64, segments: &Segments) {
        for (got, range) in got.iter().step_by(COLUMNS).zip(segments.iter()) {
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
            let mut norms = threes(&segments);
            add_outer(x.view(), dy.view(), &segments, &mut norms);
            let want = |r: Range<usize>| {
                let g = x.slice(s![r.clone(), ..]).t().dot(&dy.slice(s![r, ..]));
                g.iter().map(|g| g * g).sum()
            };
            close(&norms, want, &segments);
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
        let mut norms = threes(&segments);
        add_rows(&ids, demb.view(), &segments, &mut norms);
        close(&norms, |r| table(&ids, &demb, r).iter().map(|g| g * g).sum(), &segments);
        let mut norms = threes(&segments);
        // The head has rows of its own.
        let heads = Segments::from_lengths([2, 0, 1, 70, 0, 31]);
        let (x, h) = (x.slice(s![..heads.rows(), ..]), h.slice(s![..heads.rows(), ..]));
        add_tied((x, h, &heads), (&ids, demb.view(), &segments), &mut norms);
        let want = |r: Range<usize>| {
            let head = heads.range(segments.iter().position(|other| other == r).unwrap());
            let head = x.slice(s![head.clone(), ..]).t().dot(&h.slice(s![head, ..]));
            2.0 * (head * table(&ids, &demb, r)).sum()
        };
        close(&norms, want, &segments);
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
