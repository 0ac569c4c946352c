//! The inner loops of the update rules.

use crate::rng::widths::widths;

/// The constants of one AdamW step, computed in f64 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// `1 - lr wd`: what weights are multiplied by.
    pub decay: f32,
    /// `lr / (1 - beta1^t)`.
    pub rate: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    pub correction: f32,
}

/// The constants of all steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// beta1.
    pub keep_m: f32,
    /// `1 - beta1`.
    pub take_m: f32,
    /// beta2.
    pub keep_v: f32,
    /// `1 - beta2`.
    pub take_v: f32,
    /// Added to the denominator.
    pub eps: f32,
}

/// First moments and gradients below this are 0: at eps = 1e-8 they would move a weight by less than 1e-10 learning rates.
pub const TINY_M: f32 = 8.673_617e-19; // 2^-60

/// Second moments below this are 0: their root is 1e-7 of eps = 1e-8.
pub const TINY_V: f32 = 7.888_609e-31; // 2^-100

#[inline(always)]
fn flush(x: f32, tiny: f32) -> f32 {
    if x.abs() < tiny { 0.0 } else { x }
}

/// One step of one element. Flushing is part of the definition: no number here is ever subnormal, so none is slow.
#[inline(always)]
fn adamw(w: f32, m: f32, v: f32, g: f32, s: &Step, k: &Constants) -> (f32, f32, f32) {
    let g = flush(g, TINY_M);
    let m = flush(k.keep_m * m + k.take_m * g, TINY_M);
    let v = flush(k.keep_v * v + (k.take_v * g) * g, TINY_V);
    (w * s.decay - s.rate * (m / (v.sqrt() * s.correction + k.eps)), m, v)
}

/// [`adamw`] without a gradient: the same bits, since `x + 0 = x` and moments are never -0.
#[inline(always)]
fn idle(w: f32, m: f32, v: f32, s: &Step, k: &Constants) -> (f32, f32, f32) {
    let m = flush(k.keep_m * m, TINY_M);
    let v = flush(k.keep_v * v, TINY_V);
    (w * s.decay - s.rate * (m / (v.sqrt() * s.correction + k.eps)), m, v)
}

widths! {
    /// One AdamW step with gradient `scale * g`: with `g` in place of it,
    ///
    /// `m = beta1 m + (1 - beta1) g`, `v = beta2 v + (1 - beta2) g^2`,
    /// `w = w (1 - lr wd) - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)`.
    pub fn adamw_step(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], scale: f32, s: &Step, k: &Constants) {
        for (((w, m), v), &g) in w.iter_mut().zip(m.iter_mut()).zip(v.iter_mut()).zip(g) {
            (*w, *m, *v) = adamw(*w, *m, *v, scale * g, s, k);
        }
    }
}

/// Elements whose weights and moments stay in registers over many steps.
const HELD: usize = 32;

/// Idle steps between two looks at whether the first moments have died out.
const STRIDE: usize = 32;

widths! {
    /// As many AdamW steps without a gradient as there are `steps`, in one pass: bit-identical to [`adamw_step`] with zeros, step by
    /// step. Once the first moments of a piece are all 0, no step moves its weights but by decay, and the division is left out.
    pub fn adamw_idle(w: &mut [f32], m: &mut [f32], v: &mut [f32], steps: &[Step], k: &Constants) {
        let pieces = w.chunks_mut(HELD).zip(m.chunks_mut(HELD)).zip(v.chunks_mut(HELD));
        for ((w, m), v) in pieces {
            let (mut hw, mut hm, mut hv) = ([0f32; HELD], [0f32; HELD], [0f32; HELD]);
            hw[..w.len()].copy_from_slice(w);
            hm[..m.len()].copy_from_slice(m);
            hv[..v.len()].copy_from_slice(v);
            let mut rest = steps;
            while !rest.is_empty() && hm.iter().fold(0, |any, x| any | x.to_bits()) != 0 {
                let (now, later) = rest.split_at(rest.len().min(STRIDE));
                for s in now {
                    for i in 0..HELD {
                        (hw[i], hm[i], hv[i]) = idle(hw[i], hm[i], hv[i], s, k);
                    }
                }
                rest = later;
            }
            for s in rest {
                for i in 0..HELD {
                    hw[i] *= s.decay;
                    hv[i] = flush(k.keep_v * hv[i], TINY_V);
                }
            }
            let n = w.len();
            w.copy_from_slice(&hw[..n]);
            m.copy_from_slice(&hm[..n]);
            v.copy_from_slice(&hv[..n]);
        }
    }
}

widths! {
    /// [`adamw_idle`] for a tensor whose moments are all 0: only decay is left.
    pub fn decay(w: &mut [f32], steps: &[Step]) {
        for w in w.chunks_mut(2 * HELD) {
            let mut held = [0f32; 2 * HELD];
            held[..w.len()].copy_from_slice(w);
            for s in steps {
                for x in &mut held {
                    *x *= s.decay;
                }
            }
            let n = w.len();
            w.copy_from_slice(&held[..n]);
        }
    }
}

widths! {
    /// `w -= scale * g`.
    pub fn subtract(w: &mut [f32], g: &[f32], scale: f32) {
        for (w, &g) in w.iter_mut().zip(g) {
            *w -= scale * g;
        }
    }
}
