//! Sketches of gradients from their factors, and their clipping: `v_i = U g_i` in R^k without the gradient g_i.
//!
//! With a count sketch of x of a row t, `(S1 x)_b = sum of s1(j) x_j over the j in bucket b`, and one of dy, the sketch of `x_iᵀ dy_i` is
//!
//! ```text
//! Tensor    sum_t of the circular convolution S1 x_t * S2 dy_t
//! Grid      (S1 x_i)ᵀ (S2 dy_i), k1 x k2
//! ```
//!
//! A convolution is a product of Fourier transforms. Two real vectors a and b make one complex transform: with `Z = F(a + i b)`,
//! `F(a) F(b) = (Z(f)² - conj Z(-f)²) / 4i`. The right side is linear in Z², so Z² is added up over rows, layers and deliveries ([`add_spectra`]), and one inverse
//! transform a sample comes at the end ([`from_spectrum`]). A row costs `I + O + O(k log k)`, where its share of the gradient costs `2 I O`.
//!
//! Z² holds a² and b² beside their product: a and b are first brought to one size by powers of two `2^e` and `2^-e`, which leave the product alone.
//!
//! Rounding here is no matter of privacy: what is clipped, summed and released is v_i as computed.

use super::Segments;
use super::clip::ClipFunction;
use super::sample_norm::gamma;
use crate::kernel::{Fourier, Onto, Real, matmul_serial};
use crate::rng::sketch::Cell;
use ndarray::{Array2, ArrayView2, s};
use rayon::prelude::*;
use rustfft::num_complex::Complex;
use std::ops::Range;

/// Rows that one task transforms. Part of the definition: it shapes the sums.
const ROWS: usize = 16;

/// `out[bucket] += sign x` over the elements of a row.
#[inline(always)]
fn count<F: Real>(x: &[F], cells: &[Cell], mut out: impl FnMut(usize, F)) {
    for (&x, &cell) in x.iter().zip(cells) {
        out(cell.bucket(), if cell.is_minus() { -x } else { x });
    }
}

/// Which segments an op is for, by the number of their rows. Never by anything of other segments: what a record adds to a sum would then depend on
/// who is beside it, and its bound would bound nothing.
pub type Takes<'a> = &'a (dyn Fn(usize) -> bool + Sync);

/// The pieces of the segments that are taken, [`ROWS`] rows at most each, with their segment.
fn pieces(segments: &Segments, takes: Takes) -> Vec<(usize, Range<usize>)> {
    let mut all = Vec::new();
    for (i, range) in segments.iter().enumerate().filter(|(_, range)| takes(range.len())) {
        all.extend(range.clone().step_by(ROWS).map(|start| (i, start..(start + ROWS).min(range.end))));
    }
    all
}

/// `spectra_i += sum of Z² over the rows of segment i`, k numbers a segment, for those that are taken.
///
/// Shapes: `x`: (N, I); `dy`: (N, O); `cells`: of the I rows and the O columns of the weight.
pub fn add_spectra<F: Real>(
    fft: &dyn Fourier<F>,
    (x, dy): (ArrayView2<F>, ArrayView2<F>),
    (x_cells, dy_cells): (&[Cell], &[Cell]),
    (segments, takes): (&Segments, Takes),
    spectra: &mut [Complex<f64>],
) {
    let k = fft.length();
    let zero = Complex::new(F::zero(), F::zero());
    let pieces = pieces(segments, takes);
    let parts: Vec<Vec<Complex<F>>> = pieces
        .par_iter()
        .with_max_len(1)
        .map(|(_, rows)| {
            let (mut sum, mut z) = (vec![zero; k], vec![zero; k]);
            let mut scratch = vec![zero; fft.scratch()];
            for t in rows.clone() {
                let (x, dy) = (x.row(t), dy.row(t));
                z.fill(zero);
                count(x.to_slice().expect("contiguous rows"), x_cells, |b, x| z[b].re += x);
                count(dy.to_slice().expect("contiguous rows"), dy_cells, |b, dy| z[b].im += dy);
                let Some([up, down]) = balance(&z) else { continue };
                z.iter_mut().for_each(|z| *z = Complex::new(z.re * up, z.im * down));
                fft.run(&mut z, &mut scratch);
                sum.iter_mut().zip(&z).for_each(|(sum, &z)| *sum += z * z);
            }
            sum
        })
        .collect();
    for ((i, _), part) in pieces.iter().zip(parts) {
        for (to, from) in spectra[i * k..][..k].iter_mut().zip(part) {
            *to += Complex::new(from.re.f64(), from.im.f64());
        }
    }
}

/// Powers of two that bring the real and the imaginary parts to one size and have the product 1; none if either is all zero.
fn balance<F: Real>(z: &[Complex<F>]) -> Option<[F; 2]> {
    let largest = |part: fn(&Complex<F>) -> F| {
        z.iter().map(part).fold(0.0, |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x.abs().f64()) })
    };
    let (a, b) = (largest(|z| z.re), largest(|z| z.im));
    if a == 0.0 || b == 0.0 {
        return None;
    }
    // What is not finite stays so, whatever its size. An exponent by repeated halving of the ratio's: no transcendental.
    let exponent = |x: f64| ((x.to_bits() >> 52 & 0x7ff) as i32) - 1023;
    let e = ((exponent(b) - exponent(a)) / 2).clamp(-500, 500);
    let power = |e: i32| f64::from_bits(((1023 + e) as u64) << 52);
    Some([F::of(power(e)), F::of(power(-e))])
}

/// The sketch whose Z² was added up, onto `v`.
pub fn from_spectrum(inverse: &dyn Fourier<f64>, spectrum: &[Complex<f64>], v: &mut [f64]) {
    let k = spectrum.len();
    let quarter = Complex::new(0.0, -0.25 / k as f64);
    let mut product: Vec<_> = (0..k).map(|f| (spectrum[f] - spectrum[(k - f) % k].conj()) * quarter).collect();
    let mut scratch = vec![Complex::default(); inverse.scratch()];
    inverse.run(&mut product, &mut scratch);
    v.iter_mut().zip(product).for_each(|(v, p)| *v += p.re);
}

/// `v_i += (S1 x_i)ᵀ (S2 dy_i)` for every segment i, k1 x k2 numbers a segment.
///
/// Shapes: as in [`add_spectra`].
pub fn add_grid<F: Real>(
    (k1, k2): (usize, usize),
    (x, dy): (ArrayView2<F>, ArrayView2<F>),
    (x_cells, dy_cells): (&[Cell], &[Cell]),
    segments: &Segments,
    v: &mut [f64],
) {
    let sketch = |factor: ArrayView2<F>, cells: &[Cell], buckets: usize| {
        let mut out = Array2::zeros((factor.nrows(), buckets));
        let rows: Vec<_> = out.outer_iter_mut().zip(factor.outer_iter()).collect();
        rows.into_par_iter().with_min_len(ROWS).for_each(|(mut out, row)| {
            let out = out.as_slice_mut().expect("contiguous rows");
            count(row.to_slice().expect("contiguous rows"), cells, |b, x| out[b] += x);
        });
        out
    };
    let (a, b) = (sketch(x, x_cells, k1), sketch(dy, dy_cells, k2));
    v.par_chunks_mut(k1 * k2).zip(segments.offsets().par_windows(2)).for_each(|(v, ends)| {
        let rows = ends[0]..ends[1];
        let mut g = Array2::<F>::zeros((k1, k2));
        let a = a.slice(s![rows.clone(), ..]);
        matmul_serial(a.reversed_axes(), b.slice(s![rows, ..]), Onto::Zero, g.view_mut());
        v.iter_mut().zip(&g).for_each(|(v, g)| *v += g.f64());
    });
}

/// Elements of a gradient that a task of [`add_elements`] forms and hashes.
const ELEMENTS: usize = 1 << 16;

/// `v_i += U (x_iᵀ dy_i)` for every segment i that is taken by forming the gradient, a block of its rows at a time: `cells(first row, out)` gives the cells
/// of whole rows, once for all segments.
///
/// Shapes: `x`: (N, I); `dy`: (N, O); `v`: k numbers a segment.
pub fn add_elements<F: Real>(
    k: usize,
    (x, dy): (ArrayView2<F>, ArrayView2<F>),
    (segments, takes): (&Segments, Takes),
    cells: impl Fn(usize, &mut Vec<Cell>) + Sync,
    v: &mut [f64],
) {
    let own = |(_, range): &(usize, Range<usize>)| !range.is_empty() && takes(range.len());
    if !segments.iter().enumerate().any(|segment| own(&segment)) {
        return;
    }
    let (inputs, outputs) = (x.ncols(), dy.ncols());
    let block = (ELEMENTS / outputs.max(1)).max(1);
    // As many partial sums as there are bands, whatever the number of blocks.
    let bands = inputs.div_ceil(block).clamp(1, 16);
    let parts: Vec<Vec<f64>> = (0..bands)
        .into_par_iter()
        .with_max_len(1)
        .map(|band| {
            let mut part = vec![0.0; v.len()];
            let (mut hashed, mut g) = (Vec::new(), Array2::<F>::zeros((block.min(inputs), outputs)));
            for first in (0..inputs).step_by(block).skip(band).step_by(bands) {
                let rows = first..(first + block).min(inputs);
                hashed.resize(rows.len() * outputs, Cell::of(0, 1));
                cells(first, &mut hashed);
                for (i, range) in segments.iter().enumerate().filter(own) {
                    let x = x.slice(s![range.clone(), rows.clone()]);
                    let mut g = g.slice_mut(s![..rows.len(), ..]);
                    matmul_serial(x.reversed_axes(), dy.slice(s![range, ..]), Onto::Zero, g.view_mut());
                    let part = &mut part[i * k..][..k];
                    count(g.as_slice().expect("whole rows"), &hashed, |b, g| part[b] += g.f64());
                }
            }
            part
        })
        .collect();
    parts.iter().for_each(|part| v.iter_mut().zip(part).for_each(|(v, p)| *v += p));
}

/// `v[bucket] += sign x` for one row of elements.
pub fn add_row<F: Real>(x: &[F], cells: impl Iterator<Item = (usize, bool)>, v: &mut [f64]) {
    for (x, (bucket, minus)) in x.iter().zip(cells) {
        v[bucket] += if minus { -x.f64() } else { x.f64() };
    }
}

/// Scale `v` by the factor that `function` gives its norm, so that `|v| <= bound` however it was rounded; the factor.
///
/// A v that is not finite counts as 0. The norm is that of v as it stands, in double precision: rounding moves a sum of k squares by at most γ(k + 3) of it, root and
/// scaling by three more units, all of which are added to the norm.
pub fn clip(function: ClipFunction, bound: f64, v: &mut [f64]) -> f64 {
    let square: f64 = v.iter().map(|v| v * v).sum();
    let norm = square.sqrt() * (1.0 + gamma(v.len() as f64 + 8.0, f64::EPSILON / 2.0));
    let finite = square.is_finite();
    let factor = if finite { function.factor(norm, bound) } else { 0.0 };
    if finite {
        v.iter_mut().for_each(|v| *v *= factor);
    } else {
        v.fill(0.0);
    }
    factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;

    #[test]
    fn clipped_sketches_never_exceed_the_bound() {
        for seed in 0..300 {
            let scale = 10f64.powi(seed as i32 % 40 - 20);
            let v = noise::<f64>(1, 1 + (seed as usize * 37) % 700, seed) * scale;
            for function in [ClipFunction::Abadi, ClipFunction::Automatic] {
                let mut clipped = v.clone().into_raw_vec_and_offset().0;
                let factor = clip(function, 1.0, &mut clipped);
                // Sorted and compensated, so that the judge does not round.
                let (mut sum, mut rest) = (0.0f64, 0.0);
                for v in &clipped {
                    let (term, low) = (v * v, v.mul_add(*v, -(v * v)));
                    let next = sum + term;
                    rest += low + if sum >= term { (sum - next) + term } else { (term - next) + sum };
                    sum = next;
                }
                assert!((sum + rest).sqrt() <= 1.0, "{function:?}, {scale:e}: {:e}", (sum + rest).sqrt() - 1.0);
                assert!(v.iter().zip(&clipped).all(|(v, c)| v * factor == *c));
            }
        }
        for bad in [f64::NAN, f64::INFINITY, 1e200] {
            let mut v = [1.0, bad, 2.0];
            assert_eq!(clip(ClipFunction::Automatic, 1.0, &mut v), 0.0);
            assert_eq!(v, [0.0; 3]);
            // Nor without clipping.
            let mut v = [1.0, bad, 2.0];
            clip(ClipFunction::None, 1.0, &mut v);
            assert_eq!(v, [0.0; 3]);
        }
    }

    #[test]
    fn factors_of_any_sizes_are_balanced_without_changing_their_product() {
        for (a, b) in [(1e-20f32, 1e15), (3.0, 5.0), (1e30, 1e-30), (f32::MIN_POSITIVE, 1.0)] {
            let z = [Complex::new(a, 0.0), Complex::new(0.0, -b)];
            let [up, down] = balance(&z).unwrap();
            assert_eq!(up * down, 1.0);
            assert!((0.2..5.0).contains(&((a * up) / (b * down))), "{a:e} {b:e}");
        }
        assert!(balance(&[Complex::new(1.0f32, 0.0)]).is_none());
    }
}
