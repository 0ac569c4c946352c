//! The CPU: [`crate::ops`] on ndarray, with buffers that are reused from step to step.

mod compute;
mod memory;
mod sample_norms;
mod sketches;
mod updates;
mod weight;

pub use weight::Weight;

use crate::kernel::Real;
use crate::ops;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Runs ops on the calling process' rayon threads.
#[derive(Clone, Default)]
pub struct Cpu<F: Real = f32> {
    pool: Arc<Pool<F>>,
}

/// Buffers waiting to be used again. After the first step of a run every tensor comes from here.
#[derive(Default)]
struct Pool<F> {
    free: Mutex<Vec<Vec<F>>>,
}

impl<F: Real> Pool<F> {
    /// A buffer of `len` elements: the smallest waiting one that fits without wasting more than half of it, content stale;
    /// else a new one, in exchange for the largest that was too small, so that the pool does not outgrow its use.
    fn take(&self, len: usize) -> Vec<F> {
        let mut free = self.free.lock().expect("no panic while holding the pool");
        let fits = |b: &Vec<F>| b.capacity() >= len && b.capacity() <= 2 * len.max(512);
        let best = (0..free.len()).filter(|&i| fits(&free[i])).min_by_key(|&i| free[i].capacity());
        if let Some(i) = best {
            let mut buffer = free.swap_remove(i);
            drop(free);
            buffer.resize(len, F::zero());
            return buffer;
        }
        let largest_too_small =
            (0..free.len()).filter(|&i| free[i].capacity() < len).max_by_key(|&i| free[i].capacity());
        if let Some(i) = largest_too_small {
            free.swap_remove(i);
        }
        drop(free);
        vec![F::zero(); len]
    }
}

/// A matrix on the CPU; its buffer goes back to the pool when it is dropped.
pub struct Tensor<F: Real> {
    array: Array2<F>,
    pool: Arc<Pool<F>>,
}

impl<F: Real> Drop for Tensor<F> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.array).into_raw_vec_and_offset().0;
        if buffer.capacity() > 0 {
            self.pool.free.lock().expect("no panic while holding the pool").push(buffer);
        }
    }
}

impl<F: Real> Tensor<F> {
    /// The matrix.
    pub fn view(&self) -> ArrayView2<'_, F> {
        self.array.view()
    }

    /// The matrix, to write to.
    pub fn view_mut(&mut self) -> ArrayViewMut2<'_, F> {
        self.array.view_mut()
    }

    /// All elements, row-major.
    pub fn as_slice(&self) -> &[F] {
        ops::slice(&self.array)
    }

    /// All elements, row-major, to write to.
    pub fn as_slice_mut(&mut self) -> &mut [F] {
        ops::slice_mut(&mut self.array)
    }

    /// The content, row-major, without a copy; what stays is empty.
    pub fn take(&mut self) -> Vec<F> {
        std::mem::take(&mut self.array).into_raw_vec_and_offset().0
    }

    fn take_rows(&self, rows: Range<usize>) -> ArrayView2<'_, F> {
        self.array.slice(s![rows, ..])
    }
}

impl<F: Real> Cpu<F> {
    /// A backend with an empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// A matrix with stale content, for ops that overwrite all of it.
    fn empty(&self, rows: usize, cols: usize) -> Tensor<F> {
        let array =
            Array2::from_shape_vec((rows, cols), self.pool.take(rows * cols)).expect("the length is the shape's");
        Tensor { array, pool: self.pool.clone() }
    }
}
