//! The inner loops of the update rules: AdamW, with and without a gradient, and `w -= scale g`.

use crate::isa::multiversion;

/// Elements of a task.
pub(crate) const BLOCK: usize = 1 << 14;

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

multiversion! {
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
const HELD: usize = 64;

/// Idle steps between two looks at what is left of the first moments.
const STRIDE: usize = 32;

/// What bounds the idle steps of a stride, for [`Bounds::unmoved`].
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The largest `rate`.
    rate: f32,
    /// The smallest `correction`.
    correction: f32,
    /// What is left of a weight at least, rounding included: the product of the decays, a little less.
    weight: f32,
    /// What is left of a second moment at least, flushing apart: `beta2^32`, a little less.
    v: f32,
}

impl Bounds {
    fn new(steps: &[Step], k: &Constants) -> Self {
        let mut b = Self { rate: 0.0, correction: f32::INFINITY, weight: 0.999, v: 0.999 };
        for s in steps {
            b.rate = b.rate.max(s.rate);
            b.correction = b.correction.min(s.correction);
            // Rounding a product takes at most 2^-24 of it: 2^-19 over 32 steps, and as much again here.
            b.weight *= s.decay.clamp(0.0, 1.0);
            b.v *= k.keep_v;
        }
        b
    }

    /// Whether no step of the stride can move the weight but by its decay.
    ///
    /// |m| only falls, so the move is at most `x = rate |m| / (sqrt(v_low) correction + eps)`. Where `x < 2^-26 |w_low|` it is below half
    /// the distance from w to its neighbours on either side, and `w - x` rounds to w.
    #[inline(always)]
    fn unmoved(&self, w: f32, m: f32, v: f32, eps: f32) -> bool {
        let w_low = w.abs() * self.weight;
        // A second moment that may be flushed on the way counts as 0.
        let v_low = flush(v * self.v, 2.0 * TINY_V);
        let x = 1.01 * (self.rate * m.abs()) / (v_low.sqrt() * self.correction + eps);
        (m == 0.0) | ((x < w_low * (1.0 / 67_108_864.0)) & (w_low > 1e-25))
    }
}

multiversion! {
    /// As many AdamW steps without a gradient as there are `steps`, in one pass: bit-identical to [`adamw_step`] with zeros, step by
    /// step. Where the first moments of a piece have become too small to move its weights, root and division are left out.
    pub fn adamw_idle(w: &mut [f32], m: &mut [f32], v: &mut [f32], steps: &[Step], k: &Constants) {
        let strides: Vec<(&[Step], Bounds)> = steps.chunks(STRIDE).map(|s| (s, Bounds::new(s, k))).collect();
        let pieces = w.chunks_mut(HELD).zip(m.chunks_mut(HELD)).zip(v.chunks_mut(HELD));
        for ((w, m), v) in pieces {
            let (mut hw, mut hm, mut hv) = ([0f32; HELD], [0f32; HELD], [0f32; HELD]);
            hw[..w.len()].copy_from_slice(w);
            hm[..m.len()].copy_from_slice(m);
            hv[..v.len()].copy_from_slice(v);
            for &(stride, bounds) in &strides {
                let mut moved = 0u32;
                for i in 0..HELD {
                    moved |= u32::from(!bounds.unmoved(hw[i], hm[i], hv[i], k.eps));
                }
                if moved != 0 {
                    for s in stride {
                        for i in 0..HELD {
                            (hw[i], hm[i], hv[i]) = idle(hw[i], hm[i], hv[i], s, k);
                        }
                    }
                } else {
                    for s in stride {
                        for i in 0..HELD {
                            hw[i] *= s.decay;
                            hm[i] = flush(k.keep_m * hm[i], TINY_M);
                            hv[i] = flush(k.keep_v * hv[i], TINY_V);
                        }
                    }
                }
            }
            let n = w.len();
            w.copy_from_slice(&hw[..n]);
            m.copy_from_slice(&hm[..n]);
            v.copy_from_slice(&hv[..n]);
        }
    }
}

multiversion! {
    /// [`adamw_idle`] for a tensor whose moments are all 0: only decay is left.
    pub fn decay(w: &mut [f32], steps: &[Step]) {
        for w in w.chunks_mut(HELD) {
            let mut held = [0f32; HELD];
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

multiversion! {
    /// `w -= scale * g`.
    pub fn subtract(w: &mut [f32], g: &[f32], scale: f32) {
        for (w, &g) in w.iter_mut().zip(g) {
            *w -= scale * g;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(x: &mut u64) -> u32 {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        (*x >> 20) as u32
    }

    /// Weights and moments of all sizes, near and far from where a move is lost in rounding.
    #[test]
    fn leaving_out_what_moves_nothing_changes_no_bit() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        let mut quiet = 0;
        for round in 0..400 {
            let r = &mut seed;
            let mut number = |low: i32, high: i32| {
                let unit = 1.0 + word(r) as f32 / 4_294_967_296.0;
                let sign = if word(r) & 1 == 1 { 1.0 } else { -1.0 };
                sign * unit * 2f32.powi(low + (word(r) % (high - low) as u32) as i32)
            };
            // The piece's sizes are drawn together, so that whole pieces become quiet at the same time.
            let m_size = number(-58, -8).abs();
            let mut w: Vec<f32> = (0..HELD).map(|_| number(-6, 2)).collect();
            let mut m: Vec<f32> = (0..HELD).map(|_| flush(m_size * number(-1, 1), TINY_M)).collect();
            let mut v: Vec<f32> = (0..HELD).map(|_| flush(number(-99, -20).abs(), TINY_V)).collect();
            match round % 4 {
                0 => {}
                1 => w.iter_mut().for_each(|w| *w = w.signum() * 2f32.powi(w.abs().log2() as i32)),
                2 => (w[5], m[5]) = (0.0, if round % 8 == 2 { 0.0 } else { m[5] }),
                _ => (w[9], m[9], v[9]) = (1e-30, 1e-17, 0.0),
            }
            let k = Constants { keep_m: 0.9, take_m: 0.1, keep_v: 0.999, take_v: 0.001, eps: 1e-8 };
            let t = 1 + word(&mut seed) % 3000;
            let steps: Vec<Step> = (t..t + 70)
                .map(|t| Step {
                    decay: [1.0, 1.0 - 2e-7, 0.99, 0.5][round / 4 % 4],
                    rate: 1e-3 * (1.0 + (t as f32 * 0.3).sin()),
                    correction: (1.0 / (1.0 - 0.999f64.powi(t as i32)).sqrt()) as f32,
                })
                .collect();
            let bounds = Bounds::new(&steps[..STRIDE], &k);
            quiet += usize::from((0..HELD).all(|i| bounds.unmoved(w[i], m[i], v[i], k.eps)));
            let (mut w2, mut m2, mut v2) = (w.clone(), m.clone(), v.clone());
            for s in &steps {
                adamw_step(&mut w2, &mut m2, &mut v2, &[0.0; HELD], 1.0, s, &k);
            }
            adamw_idle(&mut w, &mut m, &mut v, &steps, &k);
            for (a, b) in [(&w, &w2), (&m, &m2), (&v, &v2)] {
                assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "round {round}");
            }
        }
        assert!(
            (40..360).contains(&quiet),
            "{quiet} of 400 pieces were quiet from the start: the test needs both kinds"
        );
    }
}
