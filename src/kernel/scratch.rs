//! Memory that a thread keeps from call to call: a fresh page costs more than the numbers that are written to it.

use super::Real;
use ndarray::ArrayViewMut2;
use std::cell::RefCell;

thread_local! {
    /// What waits to be used again, short ones first.
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// `N` buffers of `len` numbers with stale content, kept by the thread for the next call.
///
/// Inside `f` it may be called again, be it by other work that the thread takes on while it waits: buffers in use are not among those that wait.
pub fn with_scratch<F: Real, const N: usize>(len: usize, f: impl FnOnce([&mut [F]; N])) {
    let words = (len * size_of::<F>()).div_ceil(8);
    let mut buffers = [(); N].map(|()| take(words));
    f(buffers.each_mut().map(|b| &mut bytemuck::cast_slice_mut::<u64, F>(b)[..len]));
    buffers.into_iter().for_each(give);
}

/// The shortest that is long enough, or the longest, made longer.
fn take(words: usize) -> Vec<u64> {
    let mut buffer = FREE.with_borrow_mut(|free| {
        let at = free.partition_point(|b| b.len() < words).min(free.len().saturating_sub(1));
        if free.is_empty() { Vec::new() } else { free.remove(at) }
    });
    if buffer.len() < words {
        // What it held is of no use: there is nothing to copy.
        buffer = vec![0; words];
    }
    buffer
}

fn give(buffer: Vec<u64>) {
    FREE.with_borrow_mut(|free| free.insert(free.partition_point(|b| b.len() < buffer.len()), buffer));
}

/// The first `rows * cols` elements of `scratch` as a matrix.
pub fn block<F>(scratch: &mut [F], rows: usize, cols: usize) -> ArrayViewMut2<'_, F> {
    ArrayViewMut2::from_shape((rows, cols), &mut scratch[..rows * cols]).expect("scratch is long enough")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_but_not_while_they_are_in_use() {
        let address = |x: &[f32]| x.as_ptr() as usize;
        let mut first = [0; 2];
        with_scratch::<f32, 2>(30, |[a, b]| {
            a.fill(1.0);
            b.fill(2.0);
            with_scratch::<f64, 1>(5, |[c]| c.fill(3.0));
            assert!(a.iter().all(|&x| x == 1.0) && b.iter().all(|&x| x == 2.0));
            first = [address(a), address(b)];
        });
        with_scratch::<f32, 2>(20, |[a, b]| {
            let mut again = [address(a), address(b)];
            first.sort();
            again.sort();
            assert_eq!(again, first);
        });
        assert_eq!(FREE.with_borrow(Vec::len), 3);
    }
}
