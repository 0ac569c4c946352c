//! Discrete Fourier transforms of any length, by rustfft.

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftNum, FftPlanner};
use std::sync::Arc;

/// `Z(f) = sum over n of z(n) e^(-2 pi i f n / k)`, of one length k; or, backward, with the other sign in the exponent, and k times too large.
pub trait Fourier<F>: Send + Sync {
    /// The length k.
    fn length(&self) -> usize;
    /// How many numbers [`Fourier::run`] needs beside its own.
    fn scratch(&self) -> usize;
    /// Transform in place.
    fn run(&self, z: &mut [Complex<F>], scratch: &mut [Complex<F>]);
}

impl<F: FftNum> Fourier<F> for Arc<dyn Fft<F>> {
    fn length(&self) -> usize {
        self.len()
    }

    fn scratch(&self) -> usize {
        self.get_inplace_scratch_len()
    }

    fn run(&self, z: &mut [Complex<F>], scratch: &mut [Complex<F>]) {
        self.process_with_scratch(z, scratch);
    }
}

/// The transform of length `k`.
pub(super) fn forward<F: FftNum>(k: usize) -> Arc<dyn Fourier<F>> {
    Arc::new(FftPlanner::new().plan_fft_forward(k))
}

/// The way back, up to the factor 1 / k.
pub fn backward(k: usize) -> Arc<dyn Fourier<f64>> {
    Arc::new(FftPlanner::new().plan_fft_inverse(k))
}
