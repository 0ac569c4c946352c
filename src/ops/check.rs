//! What every op must pass: central differences in f64, and `<dy, jvp v> = <backward dy, v>`.

use crate::kernel::lanes::tests::noise;
use ndarray::Array2;

type Array = Array2<f64>;
type Arrays = [Array];

/// An op as functions of its differentiable inputs.
pub(crate) struct Op<'a> {
    pub inputs: Vec<Array2<f64>>,
    pub forward: &'a dyn Fn(&Arrays) -> Array2<f64>,
    pub backward: &'a dyn Fn(&Arrays, &Array) -> Vec<Array>,
    pub jvp: &'a dyn Fn(&Arrays, &Arrays) -> Array2<f64>,
}

fn dot(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
    (a * b).sum()
}

/// Fails unless backward, jvp and finite differences tell the same story.
pub(crate) fn check(op: &Op) {
    let v: Vec<Array2<f64>> =
        op.inputs.iter().enumerate().map(|(i, x)| noise(x.nrows(), x.ncols(), 90 + i as u64)).collect();
    let y = (op.forward)(&op.inputs);
    let dy = noise(y.nrows(), y.ncols(), 89);
    let grads = (op.backward)(&op.inputs, &dy);
    let y_dot = (op.jvp)(&op.inputs, &v);
    // Fourth-order central differences along v.
    let at = |h: f64| (op.forward)(&op.inputs.iter().zip(&v).map(|(x, v)| x + &(v * h)).collect::<Vec<_>>());
    let h = 1e-3;
    let numeric = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
    let scale = numeric.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
    for (got, want) in y_dot.iter().zip(&numeric) {
        assert!((got - want).abs() <= 1e-7 * scale, "jvp {got}, central difference {want}");
    }
    let forward_mode = dot(&dy, &y_dot);
    let reverse_mode: f64 = grads.iter().zip(&v).map(|(g, v)| dot(g, v)).sum();
    let size = (dot(&dy, &dy) * dot(&y_dot, &y_dot)).sqrt().max(1e-12);
    assert!(
        (forward_mode - reverse_mode).abs() <= 1e-10 * size,
        "<dy, jvp v> {forward_mode}, <backward dy, v> {reverse_mode}"
    );
    // Each input on its own, so that two errors cannot cancel.
    for i in 0..v.len() {
        let only: Vec<_> = v.iter().enumerate().map(|(j, v)| if i == j { v.clone() } else { v * 0.0 }).collect();
        let (f, r) = (dot(&dy, &(op.jvp)(&op.inputs, &only)), dot(&grads[i], &v[i]));
        assert!((f - r).abs() <= 1e-10 * size, "input {i}: <dy, jvp v> {f}, <backward dy, v> {r}");
    }
}
