//! [`Sketches`] on the CPU: sums in double precision.
//!
//! Under a tensor sketch the deliveries of all layers are added in Fourier space, and one inverse transform a sample comes at the end; layers so small that
//! their gradient costs less than the transforms have it formed and hashed instead. Embedding rows, biases and gains are hashed as they are.

use super::updates::in_f32;
use super::{Cpu, Tensor};
use crate::backend::Sketches;
use crate::error::Result;
use crate::kernel::{Fourier, Real, fourier};
use crate::ops::Segments;
use crate::ops::sketch::{Takes, add_elements, add_grid, add_row, add_spectra, from_spectrum};
use crate::rng::sketch::{Cell, Fold, TensorSketch, grid_sides};
use crate::rng::{Pullback, StepSketch};
use ndarray::ArrayView2;
use rayon::prelude::*;
use rustfft::num_complex::Complex;
use std::sync::Arc;

/// What is added up of some samples.
pub struct Sums<F> {
    fourier: Arc<dyn Fourier<F>>,
    /// k numbers a sample.
    v: Vec<f64>,
    /// Sums of Z² (see [`crate::ops::sketch`]), k a sample.
    spectra: Vec<Complex<f64>>,
}

/// Whether the transforms of a sample's `rows` rows cost more than its gradient (I, O), hashed: in additions, of which a matrix product makes
/// some 8 while they make one.
fn forming_is_cheaper(rows: usize, inputs: usize, outputs: usize, k: usize) -> bool {
    let transforms = rows * (inputs + outputs + 2 * k * (k.ilog2() as usize + 1));
    rows * inputs * outputs / 8 + 2 * inputs * outputs < transforms
}

/// By forming the gradient, a block of rows at a time.
fn form<F: Real>(
    (k, tensor): (usize, &TensorSketch),
    factors: (ArrayView2<F>, ArrayView2<F>),
    (segments, takes): (&Segments, Takes),
    v: &mut [f64],
) {
    let outputs = factors.1.ncols();
    let cells = |row: usize, out: &mut Vec<Cell>| match tensor {
        TensorSketch::Product { rows, columns, .. } => {
            for (r, out) in out.chunks_exact_mut(outputs).enumerate() {
                out.iter_mut().zip(columns).for_each(|(out, &c)| *out = rows[row + r].plus(c, k));
            }
        }
        count => count.cells(row * outputs, k, out),
    };
    add_elements(k, factors, (segments, takes), cells, v);
}

/// Add row `row` of a gradient to one sample's v.
fn add<F: Real>((k, tensor): (usize, &TensorSketch), row: usize, x: &[F], v: &mut [f64]) {
    match tensor {
        TensorSketch::Product { fold, rows, columns } => {
            let (r, side) = (rows[row], grid_sides(k).1);
            let bucket = |c: Cell| match fold {
                Fold::Sum => r.plus(c, k).bucket(),
                Fold::Grid => r.bucket() * side + c.bucket(),
            };
            add_row(x, columns.iter().map(|&c| (bucket(c), r.is_minus() != c.is_minus())), v);
        }
        count => {
            let mut cells = vec![Cell::of(0, 1); x.len()];
            count.cells(row * x.len(), k, &mut cells);
            add_row(x, cells.iter().map(|c| (c.bucket(), c.is_minus())), v);
        }
    }
}

impl<F: Real> Sketches for Cpu<F> {
    type Sums = Sums<F>;

    fn sketch_sums(&self, sketch: &StepSketch, samples: usize) -> Sums<F> {
        let k = sketch.k();
        let spectra = vec![Complex::default(); samples * k];
        Sums { fourier: F::fourier(k), v: vec![0.0; samples * k], spectra }
    }

    fn sketch_outer(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        x: &Tensor<F>,
        dy: &Tensor<F>,
        segments: &Segments,
        first: usize,
        sums: &mut Sums<F>,
    ) {
        let (k, factors) = (sketch.k(), (x.view(), dy.view()));
        let own = first * k..(first + segments.len()) * k;
        match sketch.tensor(tensor) {
            TensorSketch::Product { fold: Fold::Grid, rows, columns } => {
                add_grid(grid_sides(k), factors, (rows, columns), segments, &mut sums.v[own]);
            }
            other @ TensorSketch::Product { fold: Fold::Sum, rows, columns } => {
                // By the sample's own length: what it adds may not depend on who is beside it.
                let formed = |length| forming_is_cheaper(length, factors.0.ncols(), factors.1.ncols(), k);
                let transformed = |length| !formed(length);
                let spectra = &mut sums.spectra[own.clone()];
                add_spectra(&*sums.fourier, factors, (rows, columns), (segments, &transformed), spectra);
                form((k, other), factors, (segments, &formed), &mut sums.v[own]);
            }
            other => form((k, other), factors, (segments, &|_| true), &mut sums.v[own]),
        }
    }

    fn sketch_rows(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        ids: &[u32],
        dy: &Tensor<F>,
        segments: &Segments,
        first: usize,
        sums: &mut Sums<F>,
    ) {
        let (data, width, k) = (dy.as_slice(), dy.view().ncols(), sketch.k());
        let own = &mut sums.v[first * k..][..segments.len() * k];
        own.par_chunks_mut(k).zip(segments.offsets().par_windows(2)).for_each(|(v, ends)| {
            for t in ends[0]..ends[1] {
                add((k, sketch.tensor(tensor)), ids[t] as usize, &data[t * width..][..width], v);
            }
        });
    }

    fn sketch_vector(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        dy: &Tensor<F>,
        segments: &Segments,
        first: usize,
        sums: &mut Sums<F>,
    ) {
        let (data, width, k) = (dy.as_slice(), dy.view().ncols(), sketch.k());
        let own = &mut sums.v[first * k..][..segments.len() * k];
        own.par_chunks_mut(k).zip(segments.offsets().par_windows(2)).for_each(|(v, ends)| {
            let mut sum = vec![F::zero(); width];
            for row in data[ends[0] * width..ends[1] * width].chunks_exact(width.max(1)) {
                sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
            }
            add((k, sketch.tensor(tensor)), 0, &sum, v);
        });
    }

    fn sketches(&self, sketch: &StepSketch, sums: Sums<F>) -> Result<Vec<Vec<f64>>> {
        let k = sketch.k();
        let inverse = fourier::backward(k);
        let samples = sums.v.into_par_iter().chunks(k).zip(sums.spectra.par_chunks(k));
        Ok(samples
            .map(|(mut v, spectrum)| {
                if spectrum.iter().any(|z| *z != Complex::default()) {
                    from_spectrum(&*inverse, spectrum, &mut v);
                }
                v
            })
            .collect())
    }

    fn pulled(&self, pullback: &Pullback, tensor: usize, first: usize, rows: usize, cols: usize) -> Tensor<F> {
        let mut out = self.empty(rows, cols);
        in_f32(&mut out, |out| pullback.fill(tensor, first, out));
        out
    }

    fn subtract_pulled(&self, w: &mut Tensor<F>, pullback: &Pullback, tensor: usize, scale: f32) {
        in_f32(w, |w| pullback.subtract(tensor, 0, scale, w));
    }

    fn momentum_pulled(
        &self,
        w: &mut Tensor<F>,
        m: &mut Tensor<F>,
        pullback: &Pullback,
        tensor: usize,
        factors: [f32; 3],
    ) {
        in_f32(w, |w| in_f32(m, |m| pullback.momentum(tensor, factors, m, w)));
    }
}
