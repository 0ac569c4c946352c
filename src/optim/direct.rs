//! Algorithm 1 of the paper: `w -= lr * gradient`, no state, no weight decay. Silent groups are untouched.

use super::{BLOCK, Gradient, elementwise};
use rayon::prelude::*;

/// `w -= rate * gradient`.
pub fn step(weights: &mut [f32], gradient: Gradient, rate: f64) {
    weights.par_chunks_mut(BLOCK).enumerate().for_each(|(i, w)| {
        let len = w.len();
        gradient.pieces(i * BLOCK, len, |range, g, scale| {
            elementwise::subtract(&mut w[range], g, (rate * f64::from(scale)) as f32);
        });
    });
}
