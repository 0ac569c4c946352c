//! `C <- A B + beta C` for any strides, split over rayon by the rows or columns of C.
//!
//! An element of C is one sum over k, in blocks whose size does not depend on where the element lies, so neither the split
//! nor the thread count changes a bit (tested). Transposes are strides: nothing is copied but what
//! the serial product packs.

use super::{Real, lanes};
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;
use std::ops::Range;

/// Products below this many multiply-adds are not worth a second thread.
pub(crate) const SERIAL_BELOW: usize = 1 << 18;

/// Products of at most this many rows read B where it lies: packing it would cost more than the product.
pub(crate) const FEW_ROWS: usize = 4;

/// An element's sum over k is formed in blocks of this many, each from zero: what matrixmultiply does, and so everyone here.
pub(crate) const KC: usize = 256;

/// At most how often a term of an element's sum over k is rounded in `C <- A B + C`: its product (which a fused multiply-add does not
/// round), the sum of its block, and the sum of blocks, where the `terms` that are not zero may lie anywhere among zeros.
pub fn roundings(terms: usize) -> usize {
    1 + terms.min(KC) + terms.div_ceil(KC) + 1
}

/// What a product is added to.
#[derive(Clone, Copy, Debug)]
pub enum Onto<'a, F> {
    /// Nothing: C's old content, even NaN, is ignored.
    Zero,
    /// What C holds.
    Itself,
    /// This row, in every row of C.
    Row(&'a [F]),
}

impl<F: Copy> Onto<'_, F> {
    /// The part of it under these columns.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        if let Onto::Row(row) = self { Onto::Row(&row[range]) } else { self }
    }
}

/// One side of a diagonal of a matrix, with the diagonal.
#[derive(Clone, Copy, Debug)]
pub enum Triangle {
    /// Columns `..= i + offset` of row i.
    Lower(usize),
    /// Columns `i - offset ..` of row i.
    Upper(usize),
}

#[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Triangle {
    /// The columns, of `width`, that it has in any of these rows.
    pub(crate) fn columns(self, rows: Range<usize>, width: usize) -> Range<usize> {
        match self {
            Triangle::Lower(offset) => 0..(rows.end + offset).min(width),
            Triangle::Upper(offset) => rows.start.saturating_sub(offset).min(width)..width,
        }
    }
}

/// What of a product `C <- A B` there is to do. It is a hint: the rest may be done as well, and where it is left out no bit of what is asked for changes.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// A is zero outside.
    Left(Triangle),
    /// C is wanted inside alone, and may hold anything outside.
    Out(Triangle),
}

#[cfg(all(feature = "tiles", any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Part {
    /// Of k terms, those that sums in these rows of C have.
    pub(crate) fn terms(self, rows: Range<usize>, k: usize) -> Range<usize> {
        if let Part::Left(triangle) = self { triangle.columns(rows, k) } else { 0..k }
    }

    /// Of n columns of C, those that are wanted in these rows.
    pub(crate) fn wanted(self, rows: Range<usize>, n: usize) -> Range<usize> {
        if let Part::Out(triangle) = self { triangle.columns(rows, n) } else { 0..n }
    }
}

/// `C <- A B + onto` on all threads.
pub fn matmul<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, c: ArrayViewMut2<F>) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    let threads = rayon::current_num_threads();
    if (1..=FEW_ROWS).contains(&m) && n >= 64 && c.strides()[1] == 1 {
        few_rows(a, b, onto, c);
    } else if threads == 1 || m * k * n < SERIAL_BELOW {
        matmul_serial(a, b, onto, c);
    } else {
        split(a, b, onto, c, threads);
    }
}

/// Halve the longer side of C until there is a piece a thread, each piece at least a packing block wide.
fn split<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, c: ArrayViewMut2<F>, pieces: usize) {
    let (m, n) = c.dim();
    if pieces <= 1 || m.max(n) < 64 {
        return matmul_serial(a, b, onto, c);
    }
    let left = pieces / 2;
    // Cuts fall where micro-kernel tiles end, or, of the widest, where one of its vectors does: pieces as long as each other save more than a
    // narrow tile costs.
    let cut = |len: usize, tile: usize| (len * left / pieces).next_multiple_of(tile).min(len);
    if n >= m {
        let at = cut(n, 16);
        let (b0, b1) = b.split_at(Axis(1), at);
        let (c0, c1) = c.split_at(Axis(1), at);
        let (left_onto, right_onto) = (onto.columns(0..at), onto.columns(at..n));
        rayon::join(|| split(a, b0, left_onto, c0, left), || split(a, b1, right_onto, c1, pieces - left));
    } else {
        let at = cut(m, 24);
        let (a0, a1) = a.split_at(Axis(0), at);
        let (c0, c1) = c.split_at(Axis(0), at);
        rayon::join(|| split(a0, b, onto, c0, left), || split(a1, b, onto, c1, pieces - left));
    }
}

/// [`matmul`] on the calling thread alone.
pub fn matmul_serial<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, c: ArrayViewMut2<F>) {
    matmul_part(Part::Whole, F::one(), a, b, onto, c);
}

/// `C <- alpha A B + onto`, or a part of it, on the calling thread alone.
pub fn matmul_part<F: Real>(
    part: Part,
    alpha: F,
    a: ArrayView2<F>,
    b: ArrayView2<F>,
    onto: Onto<F>,
    mut c: ArrayViewMut2<F>,
) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    assert_eq!(b.nrows(), k, "inner sizes of a product");
    assert_eq!(c.dim(), (m, n), "size of a product");
    if let Onto::Row(row) = onto {
        assert_eq!(row.len(), n, "size of the row under a product");
    }
    let (sa, sb, sc) = (a.strides(), b.strides(), c.strides());
    let (sa, sb, sc) = ((sa[0], sa[1]), (sb[0], sb[1]), (sc[0], sc[1]));
    // SAFETY: the views are valid for their shapes and strides, the sizes agree, and `c` is borrowed mutably.
    unsafe {
        let (a, b) = ((a.as_ptr(), sa.0, sa.1), (b.as_ptr(), sb.0, sb.1));
        F::gemm((m, k, n), part, alpha, a, b, onto, (c.as_mut_ptr(), sc.0, sc.1));
    }
}

/// The product of a few rows, as in decoding: columns are split over threads, and every number of B is read once, from where it lies.
///
/// Sums are formed as in larger products: a row decoded alone has the same bits as in its text.
fn few_rows<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, mut c: ArrayViewMut2<F>) {
    let (k, n) = (a.ncols(), b.ncols());
    assert_eq!(b.nrows(), k, "inner sizes of a product");
    assert_eq!(c.dim(), (a.nrows(), n), "size of a product");
    over_columns(&mut c, |range, c| {
        few_rows_serial(a, b.slice_axis(Axis(1), ndarray::Slice::from(range.clone())), onto.columns(range), c);
    });
}

/// Columns that a thread has of a product of a few rows: cuts fall where cache lines may end, and vectors do.
pub(crate) fn share(columns: usize) -> usize {
    columns.div_ceil(rayon::current_num_threads()).next_multiple_of(32).max(64)
}

/// Split the columns of C over threads, a [`share`] each.
pub(super) fn over_columns<F: Real>(c: &mut ArrayViewMut2<F>, work: impl Fn(Range<usize>, ArrayViewMut2<F>) + Sync) {
    let width = share(c.ncols());
    let columns: Vec<_> = c.axis_chunks_iter_mut(Axis(1), width).collect();
    columns.into_par_iter().enumerate().for_each(|(i, c)| work(i * width..i * width + c.ncols(), c));
}

/// [`few_rows`] on the calling thread alone.
pub(crate) fn few_rows_serial<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, c: ArrayViewMut2<F>) {
    if b.strides()[1] == 1 { by_rows(a, b, onto, c) } else { matmul_serial(a, b, onto, c) }
}

/// `C <- A B + onto` where B's rows are runs: they are added up in long vectors, block by block of k.
pub(super) fn by_rows<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, onto: Onto<F>, mut c: ArrayViewMut2<F>) {
    let (a, mut sums) = (a.as_standard_layout(), vec![F::zero(); b.ncols()]);
    for (a, mut c) in a.rows().into_iter().zip(c.rows_mut()) {
        let (a, c) = (a.to_slice().expect("standard layout"), c.as_slice_mut().expect("adjacent columns"));
        match onto {
            Onto::Zero => c.fill(F::zero()),
            Onto::Itself => {}
            Onto::Row(row) => c.copy_from_slice(row),
        }
        for (block, a) in a.chunks(KC).enumerate() {
            sums.fill(F::zero());
            let row = |p| b.row(block * KC + p).to_slice().expect("adjacent columns");
            lanes::add_combination(a, row, &mut sums);
            lanes::add(&sums, c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use ndarray::Array2;

    fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
    }

    #[test]
    fn equals_the_definition_for_odd_sizes_and_transposes() {
        for (m, k, n) in
            [(1, 1, 1), (3, 5, 7), (1, 130, 200), (3, 77, 131), (65, 129, 33), (0, 4, 3), (4, 0, 3), (130, 70, 200)]
        {
            let (a, b) = (noise::<f64>(m, k, 1), noise::<f64>(n, k, 2));
            let mut c = Array2::from_elem((m, n), f64::NAN);
            matmul(a.view(), b.t(), Onto::Zero, c.view_mut());
            for ((i, j), &got) in c.indexed_iter() {
                let want: f64 = (0..k).map(|l| a[[i, l]] * b[[j, l]]).sum();
                assert!((got - want).abs() < 1e-12, "{m}x{k}x{n}");
            }
            let once = c.clone();
            let (row, plain) = (noise::<f64>(1, n, 3), b.t().as_standard_layout().to_owned());
            for b in [b.t(), plain.view()] {
                let mut shifted = c.clone();
                matmul(a.view(), b, Onto::Row(row.as_slice().unwrap()), shifted.view_mut());
                assert!(((shifted - &c) - &row).iter().all(|e| e.abs() < 1e-12), "{m}x{k}x{n}");
            }
            matmul(a.view(), b.t(), Onto::Itself, c.view_mut());
            assert!(c.iter().zip(&once).all(|(c, o)| (c - 2.0 * o).abs() < 1e-12));
        }
    }

    #[test]
    fn a_row_alone_has_the_bits_it_has_among_others() {
        let (a, b, bias) = (noise::<f32>(40, 700, 5), noise::<f32>(700, 515, 6), noise::<f32>(1, 515, 7));
        let bt = b.t().as_standard_layout().to_owned();
        for b in [b.view(), bt.t()] {
            let product = |a: ArrayView2<f32>| {
                let mut c = Array2::zeros((a.nrows(), 515));
                matmul(a, b, Onto::Row(bias.as_slice().unwrap()), c.view_mut());
                c
            };
            let all = product(a.view());
            for rows in 1..6 {
                let part = ndarray::Slice::from(3..3 + rows);
                assert_eq!(product(a.slice_axis(Axis(0), part)), all.slice_axis(Axis(0), part), "{rows} rows");
            }
        }
    }

    #[test]
    fn any_thread_count_gives_the_same_bits() {
        for (m, k, n) in [(130, 700, 515), (515, 300, 129), (257, 64, 1031), (2, 700, 1031)] {
            let (a, b) = (noise::<f32>(m, k, 3), noise::<f32>(k, n, 4));
            let run = |threads| {
                in_pool(threads, || {
                    let mut c = Array2::from_elem((m, n), 0.5);
                    matmul(a.view(), b.view(), Onto::Itself, c.view_mut());
                    c
                })
            };
            let one = run(1);
            for threads in [2, 3, 5, 8] {
                assert_eq!(one, run(threads), "{threads} threads, {m}x{k}x{n}");
            }
        }
    }
}
