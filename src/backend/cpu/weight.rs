//! Parameters on the CPU: tensors, or as a checkpoint stores them.

use super::Tensor;
use crate::kernel::{Narrow, Onto, Real, matmul, matmul_narrow};
use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, ArrayViewMut2};
use std::borrow::Cow;

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
}
