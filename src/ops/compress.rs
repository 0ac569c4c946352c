//! Fewer bits an update: signs, and random rounding. In place, on released or non-private gradients in host memory.
//!
//! Element-wise with fixed blocks and public randomness by position, so that the same gradient gives the same bits at any
//! thread count and after any resumption.

use super::update::BLOCK;
use crate::rng::{Domain, PublicStream};
use rayon::prelude::*;

/// Elements that share a norm in [`quantise`]: that of the QSGD paper's experiments with 4 and 8 bits.
pub const BUCKET: usize = 512;

/// Where the public randomness of a tensor at a step is found.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The run's public seed.
    pub seed: u64,
    /// The step of the run, from 0.
    pub step: u32,
    /// The tensor's number in the layout.
    pub tensor: u32,
}

impl Address {
    /// The coin of element i is bit `i mod 32` of word `i / 32`; FERRET's coins have group 0.
    pub(crate) fn coins(&self) -> PublicStream {
        PublicStream::new(self.seed, Domain::Coin, self.step, 1 + self.tensor)
    }

    /// Element i is rounded by word i.
    pub(crate) fn rounding(&self) -> PublicStream {
        PublicStream::new(self.seed, Domain::Rounding, self.step, self.tensor)
    }
}

/// `x = sign(x)`: 1 or -1, by a public coin where x is neither above nor below 0, so that an element is one bit.
pub fn signs(x: &mut [f32], at: Address) {
    x.par_chunks_mut(BLOCK).enumerate().for_each(|(i, x)| {
        let mut ties = false;
        for x in x.iter_mut() {
            // What is not a number is a tie too.
            *x = if *x > 0.0 {
                1.0
            } else if *x < 0.0 {
                -1.0
            } else {
                0.0
            };
            ties |= *x == 0.0;
        }
        if ties {
            let mut words = [0; BLOCK / 32];
            at.coins().words((i * BLOCK / 32) as u64, &mut words);
            for (j, x) in x.iter_mut().enumerate().filter(|(_, x)| **x == 0.0) {
                *x = if words[j / 32] >> (j % 32) & 1 == 1 { 1.0 } else { -1.0 };
            }
        }
    });
}

/// Sign with error feedback (Karimireddy et al. 2019), with `e` the residue:
/// `p = x + e`, `x = mean(|p|) sign(p)`, `e = p - x`.
///
/// The residue is in units of the gradient, not of the step, so that AdamW can follow; with a constant learning rate and the direct
/// route that is the same.
pub fn signs_with_residue(x: &mut [f32], residue: &mut [f32], at: Address) {
    let sums: Vec<f64> = x
        .par_chunks_mut(BLOCK)
        .zip(residue.par_chunks_mut(BLOCK))
        .map(|(x, residue)| {
            let mut sum = 0.0;
            for (x, e) in x.iter_mut().zip(residue) {
                *e += *x;
                *x = *e;
                sum += f64::from(e.abs());
            }
            sum
        })
        .collect();
    let size = (sums.iter().sum::<f64>() / x.len().max(1) as f64) as f32;
    signs(x, at);
    x.par_chunks_mut(BLOCK).zip(residue.par_chunks_mut(BLOCK)).for_each(|(x, residue)| {
        for (x, e) in x.iter_mut().zip(residue) {
            *x *= size;
            *e -= *x;
        }
    });
}

/// QSGD (Alistarh et al. 2017) with `bits` bits an element, one of them its sign: L = 2^(bits - 1) - 1 levels of the norm of
/// its bucket of [`BUCKET`] elements.
///
/// `x = |b| sign(x) k / L`, where `k` is `L |x| / |b|` rounded up with the probability of its fractional part, so that the expectation
/// is x.
pub fn quantise(x: &mut [f32], bits: u32, at: Address) {
    let levels = f64::from((1u32 << (bits - 1)) - 1);
    let stream = at.rounding();
    x.par_chunks_mut(BUCKET).enumerate().for_each(|(i, x)| {
        let norm = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
        if norm == 0.0 {
            return x.fill(0.0);
        }
        let mut words = [0; BUCKET];
        stream.words((i * BUCKET) as u64, &mut words[..x.len()]);
        for (x, word) in x.iter_mut().zip(words) {
            let exact = f64::from(x.abs()) / f64::from(norm) * levels;
            let low = exact.floor();
            let up = f64::from(word) < (exact - low) * 4_294_967_296.0;
            // The norm's rounding can put the largest element a little above the last level.
            let level = if up { low + 1.0 } else { low }.min(levels);
            *x = (f64::from(norm) * level / levels) as f32 * x.signum();
        }
    });
}
