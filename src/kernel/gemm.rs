//! `C <- A B + beta C` for any strides, split over rayon by the rows or columns of C.
//!
//! An element of C is one sum over k, in blocks whose size does not depend on where the element lies, so neither the split
//! nor the thread count changes a bit (tested). Transposes are strides: nothing is copied but what
//! the serial product packs.

use super::Real;
use ndarray::{ArrayView2, ArrayViewMut2, Axis};

/// Products below this many multiply-adds are not worth a second thread.
const SERIAL_BELOW: usize = 1 << 18;

/// `C <- A B + beta C` on all threads. `beta` is 0 (C's old content, even NaN, is ignored) or 1.
pub fn matmul<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, beta: F, c: ArrayViewMut2<F>) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    let threads = rayon::current_num_threads();
    if threads == 1 || m * k * n < SERIAL_BELOW {
        return matmul_serial(a, b, beta, c);
    }
    split(a, b, beta, c, threads);
}

/// Halve the longer side of C until there is a piece a thread, each piece at least a packing block wide.
fn split<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, beta: F, c: ArrayViewMut2<F>, pieces: usize) {
    let (m, n) = c.dim();
    if pieces <= 1 || m.max(n) < 64 {
        return matmul_serial(a, b, beta, c);
    }
    let left = pieces / 2;
    // Cuts fall on multiples of 32, where micro-kernel tiles end.
    let cut = |len: usize| (len * left / pieces).next_multiple_of(32).min(len);
    if n >= m {
        let at = cut(n);
        let (b0, b1) = b.split_at(Axis(1), at);
        let (c0, c1) = c.split_at(Axis(1), at);
        rayon::join(|| split(a, b0, beta, c0, left), || split(a, b1, beta, c1, pieces - left));
    } else {
        let at = cut(m);
        let (a0, a1) = a.split_at(Axis(0), at);
        let (c0, c1) = c.split_at(Axis(0), at);
        rayon::join(|| split(a0, b, beta, c0, left), || split(a1, b, beta, c1, pieces - left));
    }
}

/// [`matmul`] on the calling thread alone.
pub fn matmul_serial<F: Real>(a: ArrayView2<F>, b: ArrayView2<F>, beta: F, c: ArrayViewMut2<F>) {
    scaled_matmul_serial(F::one(), a, b, beta, c);
}

/// `C <- alpha A B + beta C` on the calling thread alone.
pub fn scaled_matmul_serial<F: Real>(alpha: F, a: ArrayView2<F>, b: ArrayView2<F>, beta: F, mut c: ArrayViewMut2<F>) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    assert_eq!(b.nrows(), k, "inner sizes of a product");
    assert_eq!(c.dim(), (m, n), "size of a product");
    let (sa, sb, sc) = (a.strides(), b.strides(), c.strides());
    let (sa, sb, sc) = ((sa[0], sa[1]), (sb[0], sb[1]), (sc[0], sc[1]));
    // SAFETY: the views are valid for their shapes and strides, the sizes agree, and `c` is borrowed mutably.
    unsafe {
        F::gemm(m, k, n, alpha, (a.as_ptr(), sa.0, sa.1), (b.as_ptr(), sb.0, sb.1), beta, (c.as_mut_ptr(), sc.0, sc.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::elementwise::tests::noise;
    use ndarray::Array2;

    fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
    }

    #[test]
    fn equals_the_definition_for_odd_sizes_and_transposes() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 7), (65, 129, 33), (0, 4, 3), (4, 0, 3), (130, 70, 200)] {
            let (a, b) = (noise::<f64>(m, k, 1), noise::<f64>(n, k, 2));
            let mut c = Array2::from_elem((m, n), f64::NAN);
            matmul(a.view(), b.t(), 0.0, c.view_mut());
            for ((i, j), &got) in c.indexed_iter() {
                let want: f64 = (0..k).map(|l| a[[i, l]] * b[[j, l]]).sum();
                assert!((got - want).abs() < 1e-12, "{m}x{k}x{n}");
            }
            let once = c.clone();
            matmul(a.view(), b.t(), 1.0, c.view_mut());
            assert!(c.iter().zip(&once).all(|(c, o)| (c - 2.0 * o).abs() < 1e-12));
        }
    }

    #[test]
    fn any_thread_count_gives_the_same_bits() {
        for (m, k, n) in [(130, 700, 515), (515, 300, 129), (257, 64, 1031)] {
            let (a, b) = (noise::<f32>(m, k, 3), noise::<f32>(k, n, 4));
            let run = |threads| {
                in_pool(threads, || {
                    let mut c = Array2::from_elem((m, n), 0.5);
                    matmul(a.view(), b.view(), 1.0, c.view_mut());
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
