//! Numbers as a checkpoint stores them, and products with a matrix of them: widened a block at a time, into scratch that stays in cache, so that
//! memory is read once and in the width of the file.

use super::gemm::{FEW_ROWS, KC, Onto, by_rows, matmul_serial, over_columns};
use super::{Real, multiversion};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

/// Numbers in the type they were stored in.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// Four bytes each.
    F32(Vec<f32>),
    /// The upper two bytes of an f32.
    Bf16(Vec<bf16>),
    /// IEEE half precision.
    F16(Vec<f16>),
}

impl Stored {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Stored::F32(x) => x.len(),
            Stored::Bf16(x) => x.len(),
            Stored::F16(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Widened, which every one of these types can be without error.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Stored::F32(x) => x,
            Stored::Bf16(x) => x.to_f32_vec(),
            Stored::F16(x) => x.to_f32_vec(),
        }
    }
}

impl From<Vec<f32>> for Stored {
    fn from(x: Vec<f32>) -> Self {
        Stored::F32(x)
    }
}

impl From<Stored> for Vec<f32> {
    fn from(x: Stored) -> Self {
        x.into_f32()
    }
}

/// Numbers in the type they are stored in, borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum View<'a> {
    /// Four bytes each.
    F32(&'a [f32]),
    /// The upper two bytes of an f32.
    Bf16(&'a [bf16]),
    /// IEEE half precision.
    F16(&'a [f16]),
}

impl<'a> View<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            View::F32(x) => x.len(),
            View::Bf16(x) => x.len(),
            View::F16(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them in f32; a copy where they are stored in two bytes.
    pub fn widened(&self) -> Cow<'a, [f32]> {
        match *self {
            View::F32(x) => Cow::Borrowed(x),
            View::Bf16(x) => Cow::Owned(x.to_f32_vec()),
            View::F16(x) => Cow::Owned(x.to_f32_vec()),
        }
    }

    /// Run `f` on all of them in f32, in order, a few at a time where they must be widened; until it fails.
    pub fn pieces<E>(&self, mut f: impl FnMut(&[f32]) -> Result<(), E>) -> Result<(), E> {
        const PIECE: usize = 1 << 14;
        match *self {
            View::F32(x) => f(x),
            View::Bf16(x) => x.chunks(PIECE).try_for_each(|x| f(&x.to_f32_vec())),
            View::F16(x) => x.chunks(PIECE).try_for_each(|x| f(&x.to_f32_vec())),
        }
    }
}

/// A parameter's numbers in host memory: in f32, or as they are stored.
pub trait Scalars: Clone + Send + Sync + From<Vec<f32>> + From<Stored> + Into<Stored> {
    /// Look at them.
    fn view(&self) -> View<'_>;
}

impl Scalars for Vec<f32> {
    fn view(&self) -> View<'_> {
        View::F32(self)
    }
}

impl Scalars for Stored {
    fn view(&self) -> View<'_> {
        match self {
            Stored::F32(x) => View::F32(x),
            Stored::Bf16(x) => View::Bf16(x),
            Stored::F16(x) => View::F16(x),
        }
    }
}

/// Two bytes that widen to a number without error.
pub trait Narrow: Copy + Send + Sync {
    /// `wide_i <- narrow_i`.
    fn widen<F: Real>(narrow: &[Self], wide: &mut [F]);
    /// Whether [`Narrow::few_rows_serial`] is there.
    fn reads_few<F: Real>() -> bool {
        false
    }
    /// `C <- A Wᵀ + onto` of a few rows, none of the sizes 0, on the calling thread, W read from where it lies. Rows of W and C are runs.
    fn few_rows_serial<F: Real>(_a: ArrayView2<F>, _w: ArrayView2<Self>, _onto: Onto<F>, _c: ArrayViewMut2<F>) {
        unreachable!("asked before")
    }
}

impl Narrow for bf16 {
    fn widen<F: Real>(narrow: &[Self], wide: &mut [F]) {
        widen_bf16(bytemuck::cast_slice(narrow), wide);
    }

    fn reads_few<F: Real>() -> bool {
        F::reads_bf16()
    }

    fn few_rows_serial<F: Real>(a: ArrayView2<F>, w: ArrayView2<Self>, onto: Onto<F>, mut c: ArrayViewMut2<F>) {
        let ((m, k), n) = (a.dim(), w.nrows());
        assert!(w.ncols() == k && c.dim() == (m, n), "sizes of a product");
        // A row of one number has any stride.
        assert!((k == 1 || w.strides()[1] == 1) && (n == 1 || c.strides()[1] == 1), "rows that are runs");
        if let Onto::Row(row) = onto {
            assert_eq!(row.len(), n, "size of the row under a product");
        }
        let from = (a.as_ptr(), a.strides()[0], a.strides()[1]);
        let to = (c.as_mut_ptr(), c.strides()[0]);
        // SAFETY: the sizes agree, the views are valid for their shapes and strides, rows of W and C are runs, and `c` is borrowed mutably.
        unsafe { F::gemm_bf16((m, k, n), from, (w.as_ptr().cast(), w.strides()[0]), onto, to) };
    }
}

multiversion! {
    fn widen_bf16<F: Real>(narrow: &[u16], wide: &mut [F]) {
        for (wide, &bits) in wide.iter_mut().zip(narrow) {
            *wide = F::of(f64::from(f32::from_bits(u32::from(bits) << 16)));
        }
    }
}

impl Narrow for f16 {
    fn widen<F: Real>(narrow: &[Self], wide: &mut [F]) {
        let mut piece = [0f32; KC];
        for (narrow, wide) in narrow.chunks(KC).zip(wide.chunks_mut(KC)) {
            narrow.convert_to_f32_slice(&mut piece[..narrow.len()]);
            wide.iter_mut().zip(&piece).for_each(|(wide, &x)| *wide = F::of(f64::from(x)));
        }
    }
}

/// `C <- A B + onto` on all threads, where B is `w`, or its transpose: the bits of [`matmul`](super::matmul) with `w` widened.
///
/// Shapes: `a`: (m, k); `w`: (k, n), or (n, k) where it is `transposed`, its rows contiguous; `c`: (m, n).
pub fn matmul_narrow<F: Real, H: Narrow>(
    a: ArrayView2<F>,
    w: ArrayView2<H>,
    transposed: bool,
    onto: Onto<F>,
    mut c: ArrayViewMut2<F>,
) {
    let (m, k) = a.dim();
    let n = if transposed { w.nrows() } else { w.ncols() };
    assert_eq!(if transposed { w.ncols() } else { w.nrows() }, k, "inner sizes of a product");
    assert_eq!(c.dim(), (m, n), "size of a product");
    // Few rows are bound by memory: their blocks stay in the first cache. Many are bound by arithmetic: their blocks amortise packing.
    let few = m <= FEW_ROWS;
    if few && transposed && H::reads_few::<F>() && c.strides()[1] == 1 && w.strides()[1] == 1 && m * k * n > 0 {
        return over_columns(&mut c, |columns, c| {
            H::few_rows_serial(a, w.slice(s![columns.clone(), ..]), onto.columns(columns), c);
        });
    }
    let width = match (few, transposed) {
        (true, true) => 16,
        (true, false) => 128,
        (false, _) => n.div_ceil(rayon::current_num_threads()).next_multiple_of(64).min(512),
    };
    let tasks: Vec<_> = c.axis_chunks_iter_mut(Axis(1), width).collect();
    // Neighbouring blocks go to one thread, which then reads memory in order.
    let each = tasks.len().div_ceil(4 * rayon::current_num_threads()).max(1);
    tasks.into_par_iter().enumerate().with_min_len(if few { each } else { 1 }).for_each(|(i, mut c)| {
        let columns = i * width..i * width + c.ncols();
        let onto = onto.columns(columns.clone());
        if k == 0 {
            return matmul_serial(a, ArrayView2::from_shape((0, c.ncols()), &[]).expect("no rows"), onto, c);
        }
        // An element's sum is formed in blocks of KC, and may be cut between them.
        let depth = if few { KC } else { 4 * KC };
        for start in (0..k).step_by(depth) {
            let terms = start..(start + depth).min(k);
            let onto = if start > 0 { Onto::Itself } else { onto };
            let a = a.slice(s![.., terms.clone()]);
            with_block(w, transposed, &terms, &columns, |b| {
                if few && !transposed {
                    by_rows(a, b, onto, c.view_mut());
                } else {
                    matmul_serial(a, b, onto, c.view_mut());
                }
            });
        }
    });
}

/// Run `f` on a block of B, widened.
fn with_block<F: Real, H: Narrow>(
    w: ArrayView2<H>,
    transposed: bool,
    terms: &Range<usize>,
    columns: &Range<usize>,
    f: impl FnOnce(ArrayView2<F>),
) {
    thread_local!(static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) });
    let (rows, cols) = if transposed { (columns, terms) } else { (terms, columns) };
    let len = rows.len() * cols.len();
    SCRATCH.with_borrow_mut(|scratch| {
        let words = (len * size_of::<F>()).div_ceil(8);
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        let block = &mut bytemuck::cast_slice_mut::<u64, F>(scratch)[..len];
        let from = w.slice(s![rows.clone(), cols.clone()]);
        for (from, to) in from.rows().into_iter().zip(block.chunks_exact_mut(cols.len())) {
            H::widen(from.to_slice().expect("contiguous rows"), to);
        }
        let block = ArrayView2::from_shape((rows.len(), cols.len()), &*block).expect("the length is the shape's");
        f(if transposed { block.reversed_axes() } else { block });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::kernel::matmul;
    use ndarray::Array2;

    fn check<H: Narrow>(narrow: impl Fn(f32) -> H, wide: impl Fn(H) -> f32) {
        for (m, k, n) in [
            (1, 1, 1),
            (1, 700, 515),
            (1, 523, 41),
            (2, 13, 19),
            (3, 130, 67),
            (4, 1300, 40),
            (5, 77, 131),
            (40, 1300, 600),
            (0, 4, 3),
            (2, 0, 70),
        ] {
            for transposed in [false, true] {
                let shape = if transposed { (n, k) } else { (k, n) };
                let w = noise::<f32>(shape.0, shape.1, 2).mapv(&narrow);
                let widened = w.mapv(&wide);
                let b = if transposed { widened.t() } else { widened.view() };
                let (a, row) = (noise::<f32>(m, k, 1), noise::<f32>(1, n, 3));
                for onto in [Onto::Zero, Onto::Itself, Onto::Row(row.as_slice().unwrap())] {
                    let mut want = noise::<f32>(m, n, 4);
                    let mut got = want.clone();
                    matmul(a.view(), b, onto, want.view_mut());
                    matmul_narrow(a.view(), w.view(), transposed, onto, got.view_mut());
                    assert_eq!(got, want, "{m} x {k} x {n}, transposed {transposed}, {onto:?}");
                }
            }
        }
    }

    #[test]
    fn products_have_the_bits_of_widened_ones() {
        check(bf16::from_f32, bf16::to_f32);
        check(f16::from_f32, f16::to_f32);
    }

    #[test]
    fn every_pattern_of_bits_widens_without_error() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = Array2::<f32>::zeros((1, all.len()));
        let same = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
        bf16::widen(bytemuck::cast_slice(&all), wide.as_slice_mut().unwrap());
        assert!(all.iter().zip(&wide).all(|(&bits, &x)| same(x, bf16::from_bits(bits).to_f32())));
        f16::widen(bytemuck::cast_slice(&all), wide.as_slice_mut().unwrap());
        assert!(all.iter().zip(&wide).all(|(&bits, &x)| same(x, f16::from_bits(bits).to_f32())));
    }
}
