//! `y = x + branch`: forward and jvp add, backward hands `dy` to both sides unchanged.

use super::for_row_blocks;
use crate::kernel::{Real, lanes};
use ndarray::{ArrayView2, ArrayViewMut2};

/// `x += branch`. The same function is the jvp (on tangents) and the join of two gradients.
///
/// Shapes: both (N, C).
pub fn add<F: Real>(mut x: ArrayViewMut2<F>, branch: ArrayView2<F>) {
    assert_eq!(x.dim(), branch.dim(), "the two sides of a residual");
    let (cols, branch) = (x.ncols(), super::slice(&branch));
    for_row_blocks(&mut x, |row, block| {
        lanes::add(&branch[row * cols..][..block.len()], block);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;

    #[test]
    fn adds_every_element() {
        for (n, c) in [(0, 3), (1, 1), (33, 7)] {
            let (a, b) = (noise::<f32>(n, c, 1), noise::<f32>(n, c, 2));
            let mut x = a.clone();
            add(x.view_mut(), b.view());
            assert_eq!(x, a + b);
        }
    }
}
