//! A new op with its backward and its jvp, written as this crate writes them, and checked the way it checks its own.
//!
//! `cargo run --example new_op`
//!
//! The op is SiLU: `silu(x) = x σ(x)`, so `silu'(x) = σ(x) (1 + x (1 - σ(x)))`. Shapes: everything is (N, C).

use ndarray::{Array2, ArrayView2, ArrayViewMut2, Zip};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `y = silu(x)`. Outputs are written into views that the caller owns, so that a step reuses its memory.
pub fn forward(x: ArrayView2<f64>, y: ArrayViewMut2<f64>) {
    Zip::from(y).and(x).for_each(|y, &x| *y = x * sigmoid(x));
}

/// Backward of [`forward`], in place: `dy <- dy ∘ silu'(x)`.
pub fn backward(x: ArrayView2<f64>, dy: ArrayViewMut2<f64>) {
    Zip::from(dy).and(x).for_each(|dy, &x| {
        let s = sigmoid(x);
        *dy *= s * (1.0 + x * (1.0 - s));
    });
}

/// The directional derivative, `ẏ = silu'(x) ∘ ẋ`: for an element-wise op the same product, of a tangent instead of a gradient.
pub fn jvp(x: ArrayView2<f64>, x_dot: ArrayViewMut2<f64>) {
    backward(x, x_dot);
}

fn main() {
    // Odd sizes, one row, none.
    for (n, c) in [(1, 1), (5, 7), (0, 3)] {
        let at = |seed: usize| {
            Array2::from_shape_fn((n, c), |(i, j)| (((i * 31 + j * 17 + seed * 7) as f64) * 1.3).sin() * 2.0)
        };
        let (x, dy, v) = (at(1), at(2), at(3));

        // 1. The jvp is the limit of differences: fourth-order central ones, to 1e-7.
        let value = |h: f64| {
            let mut y = Array2::zeros((n, c));
            forward((&x + &(&v * h)).view(), y.view_mut());
            y
        };
        let h = 1e-3;
        let differences = (8.0 * (value(h) - value(-h)) - (value(2.0 * h) - value(-2.0 * h))) / (12.0 * h);
        let mut y_dot = v.clone();
        jvp(x.view(), y_dot.view_mut());
        for (got, want) in y_dot.iter().zip(&differences) {
            assert!((got - want).abs() < 1e-7, "jvp {got}, differences {want}");
        }

        // 2. Backward is the jvp's transpose: <dy, jvp v> = <backward dy, v>.
        let mut dx = dy.clone();
        backward(x.view(), dx.view_mut());
        let (forward_mode, reverse_mode) = ((&dy * &y_dot).sum(), (&dx * &v).sum());
        assert!((forward_mode - reverse_mode).abs() < 1e-10, "{forward_mode} {reverse_mode}");
        println!("({n}, {c}): <dy, jvp v> = {forward_mode:.9} = <backward dy, v>");
    }
    // From here: a method in the trait `Backend`, a shader beside it, and the decoder. CONTRIBUTING.md has the list.
}
