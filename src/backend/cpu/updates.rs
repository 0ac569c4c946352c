//! [`Updates`] on the CPU: [`crate::ops::update`] and [`crate::ops::compress`] over fixed blocks, on all threads.
//!
//! They are defined on f32. A backend of another precision goes there and back, so that its weights stay numbers that f32 has.

use super::{Cpu, Tensor};
use crate::backend::Updates;
use crate::kernel::Real;
use crate::ops::compress::{self, Address};
use crate::ops::update::{self, BLOCK, Constants, Step};
use rayon::prelude::*;

impl<F: Real> Updates for Cpu<F> {
    fn adamw(
        &self,
        w: &mut Tensor<F>,
        moments: (&mut Tensor<F>, &mut Tensor<F>),
        g: &Tensor<F>,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    ) {
        adamw(w, moments, g, first, scale, s, k);
    }

    fn adamw_idle(&self, w: &mut Tensor<F>, moments: (&mut Tensor<F>, &mut Tensor<F>), steps: &[Step], k: &Constants) {
        adamw_idle(w, moments, steps, k);
    }

    fn decay(&self, w: &mut Tensor<F>, steps: &[Step]) {
        decay(w, steps);
    }

    fn subtract(&self, w: &mut Tensor<F>, g: &Tensor<F>, first: usize, scale: f32) {
        subtract(w, g, first, scale);
    }

    fn signs(&self, x: &mut Tensor<F>, at: Address) {
        in_f32(x, |x| compress::signs(x, at));
    }

    fn signs_with_residue(&self, x: &mut Tensor<F>, residue: &mut Tensor<F>, at: Address) {
        in_f32(x, |x| in_f32(residue, |residue| compress::signs_with_residue(x, residue, at)));
    }

    fn quantise(&self, x: &mut Tensor<F>, bits: u32, at: Address) {
        in_f32(x, |x| compress::quantise(x, bits, at));
    }
}

/// Run `f` on the content in f32.
pub(super) fn in_f32<F: Real>(x: &mut Tensor<F>, f: impl FnOnce(&mut [f32])) {
    let slice = x.as_slice_mut();
    if size_of::<F>() == size_of::<f32>()
        && let Ok(same) = bytemuck::try_cast_slice_mut::<F, f32>(slice)
    {
        return f(same);
    }
    let mut copy: Vec<f32> = slice.iter().map(|x| x.f64() as f32).collect();
    f(&mut copy);
    slice.iter_mut().zip(copy).for_each(|(to, from)| *to = F::of(from.into()));
}

/// The content in f32, to read.
fn read<F: Real, R>(x: &Tensor<F>, f: impl FnOnce(&[f32]) -> R) -> R {
    match bytemuck::try_cast_slice::<F, f32>(x.as_slice()) {
        Ok(same) if size_of::<F>() == size_of::<f32>() => f(same),
        _ => f(&x.as_slice().iter().map(|x| x.f64() as f32).collect::<Vec<_>>()),
    }
}

/// One AdamW step of the elements from row `first` on, as many as `g` has.
#[allow(clippy::too_many_arguments)]
fn adamw<F: Real>(
    w: &mut Tensor<F>,
    (m, v): (&mut Tensor<F>, &mut Tensor<F>),
    g: &Tensor<F>,
    first: usize,
    scale: f32,
    s: &Step,
    k: &Constants,
) {
    let start = first * w.view().ncols();
    let range = start..start + g.as_slice().len();
    read(g, |g| {
        in_f32(w, |w| {
            in_f32(m, |m| {
                in_f32(v, |v| {
                    let (w, m, v) = (&mut w[range.clone()], &mut m[range.clone()], &mut v[range]);
                    let moments = m.par_chunks_mut(BLOCK).zip(v.par_chunks_mut(BLOCK));
                    w.par_chunks_mut(BLOCK).zip(moments).zip(g.par_chunks(BLOCK)).for_each(|((w, (m, v)), g)| {
                        update::adamw_step(w, m, v, g, scale, s, k);
                    });
                });
            });
        });
    });
}

/// AdamW steps without a gradient.
fn adamw_idle<F: Real>(w: &mut Tensor<F>, (m, v): (&mut Tensor<F>, &mut Tensor<F>), steps: &[Step], k: &Constants) {
    in_f32(w, |w| {
        in_f32(m, |m| {
            in_f32(v, |v| {
                let moments = m.par_chunks_mut(BLOCK).zip(v.par_chunks_mut(BLOCK));
                w.par_chunks_mut(BLOCK).zip(moments).for_each(|(w, (m, v))| update::adamw_idle(w, m, v, steps, k));
            });
        });
    });
}

/// AdamW steps without a gradient or moments.
fn decay<F: Real>(w: &mut Tensor<F>, steps: &[Step]) {
    in_f32(w, |w| w.par_chunks_mut(BLOCK).for_each(|w| update::decay(w, steps)));
}

/// `w -= scale * g` from row `first` on.
fn subtract<F: Real>(w: &mut Tensor<F>, g: &Tensor<F>, first: usize, scale: f32) {
    let start = first * w.view().ncols();
    let range = start..start + g.as_slice().len();
    read(g, |g| {
        in_f32(w, |w| {
            let pieces = w[range].par_chunks_mut(BLOCK).zip(g.par_chunks(BLOCK));
            pieces.for_each(|(w, g)| update::subtract(w, g, scale));
        });
    });
}
