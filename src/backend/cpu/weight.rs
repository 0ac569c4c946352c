//! Parameters on the CPU: tensors, or as a checkpoint stores them.

use super::Tensor;
use crate::kernel::gemm::{FEW_ROWS, few_rows_serial, share};
use crate::kernel::{Narrow, Onto, Real, matmul, matmul_narrow};
use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// A parameter. What is stored in two bytes stays so until [`Memory::master`](crate::backend::Memory::master) is asked for, and is widened where it is read.
pub enum Weight<F: Real> {
    /// In the numbers of activations: a master that can be changed.
    Wide(Tensor<F>),
    /// As stored.
    Bf16(Array2<bf16>),
    /// As stored.
    F16(Array2<f16>),
}

impl<F: Real> From<Tensor<F>> for Weight<F> {
    fn from(x: Tensor<F>) -> Self {
        Weight::Wide(x)
    }
}

fn widened<F: Real, H: Narrow>(narrow: &Array2<H>) -> Vec<F> {
    let mut wide = vec![F::zero(); narrow.len()];
    H::widen(crate::ops::slice(narrow), &mut wide);
    wide
}

impl<F: Real> Weight<F> {
    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        match self {
            Weight::Wide(x) => x.view().dim(),
            Weight::Bf16(x) => x.dim(),
            Weight::F16(x) => x.dim(),
        }
    }

    /// All elements, row-major; a copy where they are stored in fewer bytes.
    pub fn values(&self) -> Cow<'_, [F]> {
        match self {
            Weight::Wide(x) => Cow::Borrowed(x.as_slice()),
            Weight::Bf16(x) => Cow::Owned(widened(x)),
            Weight::F16(x) => Cow::Owned(widened(x)),
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let (rows, cols) = self.dim();
        rows * cols * if let Weight::Wide(_) = self { size_of::<F>() } else { 2 }
    }

    /// Row `i` into `to`.
    pub fn row(&self, i: usize, to: &mut [F]) {
        let range = i * to.len()..(i + 1) * to.len();
        match self {
            Weight::Wide(x) => to.copy_from_slice(&x.as_slice()[range]),
            Weight::Bf16(x) => bf16::widen(&crate::ops::slice(x)[range], to),
            Weight::F16(x) => f16::widen(&crate::ops::slice(x)[range], to),
        }
    }

    /// `c <- a W + onto`, or `a Wᵀ` where it is `transposed`.
    pub fn product(&self, a: ArrayView2<F>, transposed: bool, onto: Onto<F>, c: ArrayViewMut2<F>) {
        match self {
            Weight::Wide(w) if transposed => matmul(a, w.view().reversed_axes(), onto, c),
            Weight::Wide(w) => matmul(a, w.view(), onto, c),
            Weight::Bf16(w) => matmul_narrow(a, w.view(), transposed, onto, c),
            Weight::F16(w) => matmul_narrow(a, w.view(), transposed, onto, c),
        }
    }

    /// Whether a product of `rows` rows reads the numbers where they lie, a share of its columns on each thread.
    fn reads_few(&self, rows: usize, transposed: bool) -> bool {
        let (inputs, outputs) = self.dim();
        (1..=FEW_ROWS).contains(&rows)
            && inputs * outputs > 0
            && match self {
                Weight::Wide(_) => true,
                Weight::Bf16(_) => transposed && bf16::reads_few::<F>(),
                Weight::F16(_) => false,
            }
    }

    /// [`Weight::product`] of the columns `range` of C alone, on the calling thread, where it [reads a few rows](Weight::reads_few).
    fn share(&self, a: ArrayView2<F>, transposed: bool, range: Range<usize>, onto: Onto<F>, c: ArrayViewMut2<F>) {
        let onto = onto.columns(range.clone());
        match self {
            Weight::Wide(w) if transposed => {
                few_rows_serial(a, w.view().slice(s![range, ..]).reversed_axes(), onto, c);
            }
            Weight::Wide(w) => few_rows_serial(a, w.view().slice(s![.., range]), onto, c),
            Weight::Bf16(w) => bf16::few_rows_serial(a, w.slice(s![range, ..]), onto, c),
            Weight::F16(_) => unreachable!("asked before"),
        }
    }
}

/// [`Weight::product`] by several weights. Of a few rows every thread has its share of each product, so that threads meet once and not once a weight.
pub fn products<F: Real, const N: usize>(
    a: ArrayView2<F>,
    transposed: bool,
    layers: [(&Weight<F>, Onto<F>, ArrayViewMut2<F>); N],
) {
    if !layers.iter().all(|(w, ..)| w.reads_few(a.nrows(), transposed)) {
        return layers.into_iter().for_each(|(w, onto, c)| w.product(a, transposed, onto, c));
    }
    let mut shares: Vec<Vec<_>> = (0..rayon::current_num_threads()).map(|_| Vec::with_capacity(N)).collect();
    for (w, onto, mut rest) in layers {
        let (columns, width) = (rest.ncols(), share(rest.ncols()));
        for (of_thread, start) in shares.iter_mut().zip((0..columns).step_by(width)) {
            let (c, after) = rest.split_at(Axis(1), width.min(columns - start));
            rest = after;
            of_thread.push((w, start..start + c.ncols(), onto, c));
        }
    }
    shares.into_par_iter().for_each(|products| {
        products.into_iter().for_each(|(w, range, onto, c)| w.share(a, transposed, range, onto, c));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Cpu, Memory};
    use crate::kernel::lanes::tests::noise;

    /// Weights of three widths, stored in every way.
    fn stored(k: usize, n: usize, seed: u64) -> [Weight<f32>; 3] {
        let x = noise::<f32>(k, n, seed);
        let wide = Cpu::<f32>::new().upload(k, n, x.iter().copied().collect()).unwrap();
        [Weight::Wide(wide), Weight::Bf16(x.mapv(bf16::from_f32)), Weight::F16(x.mapv(f16::from_f32))]
    }

    #[test]
    fn products_side_by_side_have_the_bits_of_one_after_the_other() {
        let (k, widths) = (300, [576, 70, 1]);
        for threads in [1, 2, 3, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for (rows, transposed) in [(1, true), (1, false), (4, true), (3, false), (5, true), (0, true)] {
                let a = noise::<f32>(rows, k, 9);
                let each = widths.map(|n| if transposed { stored(n, k, 1) } else { stored(k, n, 1) });
                let row = noise::<f32>(1, widths[0], 2);
                // All alike, and all different.
                for kinds in [[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [1, 0, 1]] {
                    let layers: [&Weight<f32>; 3] = std::array::from_fn(|i| &each[i][kinds[i]]);
                    let onto = [Onto::Row(crate::ops::slice(&row)), Onto::Zero, Onto::Itself];
                    let mut want = widths.map(|n| noise::<f32>(rows, n, 4));
                    let mut got = want.clone();
                    for (i, c) in want.iter_mut().enumerate() {
                        layers[i].product(a.view(), transposed, onto[i], c.view_mut());
                    }
                    let mut into = got.iter_mut();
                    let all = std::array::from_fn(|i| (layers[i], onto[i], into.next().unwrap().view_mut()));
                    pool.install(|| products::<f32, 3>(a.view(), transposed, all));
                    assert_eq!(got, want, "{rows} rows, transposed {transposed}, {kinds:?}, {threads} threads");
                }
            }
        }
    }
}
