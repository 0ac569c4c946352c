//! Updates and compression on the CPU: [`crate::ops::update`] and [`crate::ops::compress`] over fixed blocks, on all threads.
//!
//! They are defined on f32. A backend of another precision goes there and back, so that its weights stay numbers that f32 has.

use super::cpu::Tensor;
use crate::kernel::Real;
use crate::ops::update::{self, BLOCK, Constants, Step};
use rayon::prelude::*;

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
pub(super) fn adamw<F: Real>(
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
pub(super) fn adamw_idle<F: Real>(
    w: &mut Tensor<F>,
    (m, v): (&mut Tensor<F>, &mut Tensor<F>),
    steps: &[Step],
    k: &Constants,
) {
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
pub(super) fn decay<F: Real>(w: &mut Tensor<F>, steps: &[Step]) {
    in_f32(w, |w| w.par_chunks_mut(BLOCK).for_each(|w| update::decay(w, steps)));
}

/// `w -= scale * g` from row `first` on.
pub(super) fn subtract<F: Real>(w: &mut Tensor<F>, g: &Tensor<F>, first: usize, scale: f32) {
    let start = first * w.view().ncols();
    let range = start..start + g.as_slice().len();
    read(g, |g| {
        in_f32(w, |w| {
            let pieces = w[range].par_chunks_mut(BLOCK).zip(g.par_chunks(BLOCK));
            pieces.for_each(|(w, g)| update::subtract(w, g, scale));
        });
    });
}
