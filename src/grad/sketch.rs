//! `v_i = U g_i` for every sample of a micro-batch: the gradient of each, as FERRET-k's public sketch sees it, without forming it.
//!
//! The step's [`StepSketch`] is drawn before any data is touched. This sink takes the factors of one backward (with the loss weights of
//! [`Reduction::SampleSum`](crate::model::Reduction::SampleSum)) and leaves k numbers a sample:
//!
//! ```text
//! let sketch = StepSketch::new(seed, step, kind, k, &shapes(&layout));
//! for each micro-batch:
//!     let mut sink = Sketch::new(&layout, &sketch, samples, |p| tuned(p));
//!     decoder.backward(&batch, &weights, &mut sink);
//!     for mut v in sink.finish() { ops::sketch::clip(function, C, &mut v); sum += v }      in the order of the records
//! release b = sign(sum + noise); then sketch.pullback(&b, eta / sqrt(d)).subtract(tensor, 0, weights)
//! ```
//!
//! Deliveries of a tied parameter share its buckets and signs, and add up. Under a tensor sketch the deliveries of all layers are added in Fourier space, and
//! [`Sketch::finish`] makes one inverse transform a sample; layers so small that their gradient costs less than the transforms have it formed and hashed
//! instead. Embedding rows, biases and gains are hashed as they are.

use crate::backend::Cpu;
use crate::kernel::Real;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot};
use crate::ops::Segments;
use crate::ops::sketch::{add_elements, add_grid, add_row, add_spectra, from_spectrum};
use crate::rng::sketch::{Cell, Fold, StepSketch, TensorSketch, grid_sides};
use ndarray::ArrayView2;
use rayon::prelude::*;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftNum, FftPlanner};
use std::sync::Arc;

/// The (rows, columns) of every tensor, in the layout's order: what [`StepSketch::new`] asks for.
pub fn shapes(layout: &Layout) -> Vec<(usize, usize)> {
    layout.ids().map(|p| layout.spec(p).matrix()).collect()
}

/// Receives one backward of one micro-batch on the CPU.
pub struct Sketch<'a, F: Real + FftNum> {
    sketch: &'a StepSketch,
    wants: Vec<bool>,
    fft: Arc<dyn Fft<F>>,
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

impl<'a, F: Real + FftNum> Sketch<'a, F> {
    /// For `samples` samples and the parameters that `wants` names; `sketch` has the shapes of `layout`.
    pub fn new(layout: &Layout, sketch: &'a StepSketch, samples: usize, wants: impl Fn(ParamId) -> bool) -> Self {
        let k = sketch.k();
        Self {
            sketch,
            wants: layout.ids().map(wants).collect(),
            fft: FftPlanner::new().plan_fft_forward(k),
            v: vec![0.0; samples * k],
            spectra: vec![Complex::default(); samples * k],
        }
    }

    /// Every sample's v, in order.
    pub fn finish(self) -> Vec<Vec<f64>> {
        let k = self.sketch.k();
        let inverse = FftPlanner::new().plan_fft_inverse(k);
        let samples = self.v.into_par_iter().chunks(k).zip(self.spectra.par_chunks(k));
        samples
            .map(|(mut v, spectrum)| {
                if spectrum.iter().any(|z| *z != Complex::default()) {
                    from_spectrum(&inverse, spectrum, &mut v);
                }
                v
            })
            .collect()
    }

    /// By forming the gradient, a block of rows at a time.
    fn form(&mut self, p: ParamId, x: ArrayView2<F>, dy: ArrayView2<F>, segments: &Segments, first: usize) {
        let (k, tensor) = (self.sketch.k(), self.sketch.tensor(p.0));
        let v = &mut self.v[first * k..][..segments.len() * k];
        let outputs = dy.ncols();
        let cells = |row: usize, out: &mut Vec<Cell>| match tensor {
            TensorSketch::Product { rows, columns, .. } => {
                for (r, out) in out.chunks_exact_mut(outputs).enumerate() {
                    out.iter_mut().zip(columns).for_each(|(out, &c)| *out = rows[row + r].plus(c, k));
                }
            }
            count => count.cells(row * outputs, k, out),
        };
        add_elements(k, (x, dy), segments, cells, v);
    }

    /// Add row `row` of the parameter's gradient to sample i.
    fn row(&mut self, p: ParamId, row: usize, x: &[F], i: usize) {
        let k = self.sketch.k();
        let v = &mut self.v[i * k..][..k];
        match self.sketch.tensor(p.0) {
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
}

impl<F: Real + FftNum> GradSink<Cpu<F>> for Sketch<'_, F> {
    fn wants(&self, p: ParamId) -> bool {
        self.wants[p.0]
    }

    fn outer(&mut self, _: &Cpu<F>, p: ParamId, x: Slot<Cpu<F>>, dy: Slot<Cpu<F>>, rows: Rows) {
        let (x, dy) = (x.get().view(), dy.get().view());
        let (k, first, segments) = (self.sketch.k(), rows.samples.start, rows.segments);
        let own = first * k..(first + segments.len()) * k;
        match self.sketch.tensor(p.0) {
            TensorSketch::Product { fold: Fold::Grid, rows, columns } => {
                add_grid(grid_sides(k), (x, dy), (rows, columns), segments, &mut self.v[own]);
            }
            TensorSketch::Product { fold: Fold::Sum, rows, columns }
                if !forming_is_cheaper(segments.longest(), x.ncols(), dy.ncols(), k) =>
            {
                add_spectra(&self.fft, (x, dy), (rows, columns), segments, &mut self.spectra[own]);
            }
            _ => self.form(p, x, dy, segments, first),
        }
    }

    fn rows(&mut self, _: &Cpu<F>, p: ParamId, ids: &[u32], dy: Slot<Cpu<F>>, rows: Rows) {
        let dy = dy.get();
        let (data, width) = (dy.as_slice(), dy.view().ncols());
        for (i, range) in rows.samples.zip(rows.segments.iter()) {
            for t in range {
                self.row(p, ids[t] as usize, &data[t * width..][..width], i);
            }
        }
    }

    fn vector(&mut self, _: &Cpu<F>, p: ParamId, dy: Slot<Cpu<F>>, rows: Rows) {
        let dy = dy.get();
        let (data, width) = (dy.as_slice(), dy.view().ncols());
        let mut sum = vec![F::zero(); width];
        for (i, range) in rows.samples.zip(rows.segments.iter()) {
            sum.fill(F::zero());
            for row in data[range.start * width..range.end * width].chunks_exact(width) {
                sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
            }
            self.row(p, 0, &sum, i);
        }
    }
}
