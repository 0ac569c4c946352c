//! What changes weights after a release, op by op.

use crate::gpu::{copy, matrix, milliseconds, versus};
use ferret::backend::{Compute, Cpu, Gpu, Memory, Updates};
use ferret::ops::compress::Address;
use ferret::ops::update::{Constants, Step};

#[allow(unused_mut)]
pub fn run(gpu: &Gpu) {
    let (n, c) = (512, 1024);
    let k = Constants { keep_m: 0.9, take_m: 0.1, keep_v: 0.999, take_v: 0.001, eps: 1e-8 };
    let step = Step { decay: 0.9999, rate: 1e-3, correction: 3.0 };
    let at = Address { seed: 1, step: 2, tensor: 3 };
    let idle = vec![step; 100];
    // Weights, moments and a gradient; every run starts from the same.
    versus!(gpu, "adamw", |b| [1, 2, 3, 4].map(|i| matrix(b, n, c, i)), |b, t| {
        let (mut w, mut m, mut v) = (copy(b, &t[0]), copy(b, &t[1]), b.zeros(n, c));
        b.adamw(&mut w, (&mut m, &mut v), &t[3], 0, 1.0, &step, &k);
        w
    });
    versus!(gpu, "adamw, 100 idle steps", |b| [1, 2].map(|i| matrix(b, n, c, i)), |b, t| {
        let (mut w, mut m, mut v) = (copy(b, &t[0]), copy(b, &t[1]), b.zeros(n, c));
        b.adamw(&mut w, (&mut m, &mut v), &t[1], 0, 1.0, &step, &k);
        b.adamw_idle(&mut w, (&mut m, &mut v), &idle, &k);
        w
    });
    versus!(gpu, "decay, 100 steps", |b| [matrix(b, n, c, 1)], |b, t| {
        let mut w = copy(b, &t[0]);
        b.decay(&mut w, &idle);
        w
    });
    versus!(gpu, "direct update", |b| [matrix(b, n, c, 1), matrix(b, n, c, 2)], |b, t| {
        let mut w = copy(b, &t[0]);
        b.subtract(&mut w, &t[1], 0, 0.5);
        w
    });
    versus!(gpu, "signs", |b| [matrix(b, n, c, 1)], |b, t| {
        let mut x = copy(b, &t[0]);
        b.signs(&mut x, at);
        x
    });
    versus!(gpu, "signs, error feedback", |b| [matrix(b, n, c, 1), matrix(b, n, c, 2)], |b, t| {
        let (mut x, mut residue) = (copy(b, &t[0]), copy(b, &t[1]));
        b.signs_with_residue(&mut x, &mut residue, at);
        x
    });
    versus!(gpu, "rounding to 8 bits", |b| [matrix(b, n, c, 1)], |b, t| {
        let mut x = copy(b, &t[0]);
        b.quantise(&mut x, 8, at);
        // A word may round an element to the next level on one side: a little of a row's inner product.
        let mut out = b.zeros(n, 1);
        b.add_row_dots(&x, &t[0], &mut out, 0);
        out
    });
}
