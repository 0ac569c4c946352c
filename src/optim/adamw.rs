//! AdamW (Loshchilov and Hutter): Adam with decoupled weight decay, tensor by tensor, with idle steps caught up on demand.
//!
//! A group that does not fire has no gradient at that step. What AdamW then does is [`Silent`]: step with a zero gradient, so that momentum
//! runs on and weights decay; or nothing. Zero-gradient steps depend on nothing but the tensor itself, so they wait until someone
//! needs the tensor and are then iterated in registers in one pass over the weights. No closed form: the bits are those of
//! stepping one by one.

use super::elementwise::{self, Constants, Step};
use super::{BLOCK, Gradient, Schedule};
use crate::model::ParamId;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What AdamW does to a tensor at a step that brings it no gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Silent {
    /// A step with a zero gradient: moments decay, momentum moves on, weights decay. Bias correction counts all steps.
    #[default]
    Zero,
    /// Nothing. Bias correction counts the tensor's own gradients.
    None,
}

/// AdamW's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled: weights are multiplied by `1 - lr wd` at every step.
    pub weight_decay: f64,
    /// Forgetting of the first moment.
    pub beta1: f64,
    /// Forgetting of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
}

impl Hyper {
    /// The usual betas .9 and .999 and eps 1e-8.
    pub fn new(learning_rate: f64, weight_decay: f64) -> Self {
        Self { learning_rate, weight_decay, beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Steps applied: all below this (silent zero), or the number of gradients seen (silent none).
    done: u32,
    /// First and second moments; none while both are 0 everywhere.
    moments: Option<(Vec<f32>, Vec<f32>)>,
}

/// First and second moments of a tensor.
pub type Moments<'a> = (&'a [f32], &'a [f32]);

/// The constants of every step of a run: knows no weights.
#[derive(Clone, Debug)]
pub struct Timeline {
    hyper: Hyper,
    schedule: Schedule,
    steps: u32,
    silent: Silent,
    constants: Constants,
    /// `1 - beta1^t`, `1 - beta2^t` for t = 1 .. steps; powers by repeated multiplication.
    corrections: Vec<(f64, f64)>,
}

impl Timeline {
    /// For a run of `steps` steps.
    pub fn new(steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        let mut powers = (1.0, 1.0);
        let corrections = (0..steps)
            .map(|_| {
                powers = (powers.0 * hyper.beta1, powers.1 * hyper.beta2);
                (1.0 - powers.0, 1.0 - powers.1)
            })
            .collect();
        let constants = Constants {
            keep_m: hyper.beta1 as f32,
            take_m: (1.0 - hyper.beta1) as f32,
            keep_v: hyper.beta2 as f32,
            take_v: (1.0 - hyper.beta2) as f32,
            eps: hyper.eps as f32,
        };
        Self { hyper, schedule, steps, silent, constants, corrections }
    }

    /// The constants of all steps.
    pub fn constants(&self) -> Constants {
        self.constants
    }

    /// The constants of the `t`-th update (from 1), made at `step` (from 0).
    fn at(&self, t: u32, step: u32) -> Step {
        let rate = self.schedule.rate(self.hyper.learning_rate, step, self.steps);
        let (c1, c2) = self.corrections[t as usize - 1];
        Step {
            decay: (1.0 - rate * self.hyper.weight_decay) as f32,
            rate: (rate / c1) as f32,
            correction: (1.0 / c2.sqrt()) as f32,
        }
    }

    /// The constants for a gradient at `step` to a tensor that has `done` steps behind it.
    ///
    /// Panics when the step is not below the number of steps, or was applied already.
    pub fn gradient(&self, done: u32, step: u32) -> Step {
        assert!(step < self.steps, "step {step} of a run of {}", self.steps);
        assert!(self.silent == Silent::None || done == step, "step {step} of a tensor comes after step {done}");
        self.at(done + 1, step)
    }

    /// The idle steps due before `step` to a tensor that has `done` steps behind it.
    pub fn idle(&self, done: u32, step: u32) -> Vec<Step> {
        match self.silent {
            Silent::Zero => (done..step).map(|s| self.at(s + 1, s)).collect(),
            Silent::None => Vec::new(),
        }
    }
}

/// AdamW over the tensors of a decoder.
#[derive(Clone, Debug)]
pub struct AdamW {
    timeline: Timeline,
    tensors: Vec<State>,
}

impl AdamW {
    /// For a run of `steps` steps over `tensors` tensors. No moment is allocated before a tensor's first gradient.
    pub fn new(tensors: usize, steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        let timeline = Timeline::new(steps, hyper, schedule, silent);
        Self { timeline, tensors: vec![State::default(); tensors] }
    }

    /// Apply `gradient` to tensor `id` at `step`, after whatever idle steps came before.
    ///
    /// Panics when the step is not below the number of steps, or was applied already.
    pub fn step(&mut self, step: u32, id: ParamId, weights: &mut [f32], gradient: Gradient) {
        self.catch_up(step, id, weights);
        let s = self.timeline.gradient(self.tensors[id.0].done, step);
        let k = self.timeline.constants();
        let state = &mut self.tensors[id.0];
        state.done += 1;
        let (m, v) = state.moments.get_or_insert_with(|| (vec![0.0; weights.len()], vec![0.0; weights.len()]));
        let blocks = weights.par_chunks_mut(BLOCK).zip(m.par_chunks_mut(BLOCK)).zip(v.par_chunks_mut(BLOCK));
        blocks.enumerate().for_each(|(i, ((w, m), v))| {
            let len = w.len();
            gradient.pieces(i * BLOCK, len, |range, g, scale| {
                elementwise::adamw_step(&mut w[range.clone()], &mut m[range.clone()], &mut v[range], g, scale, &s, &k);
            });
        });
    }

    /// Bring tensor `id` to where it stands before `step`: idle steps that are due are taken now.
    pub fn catch_up(&mut self, step: u32, id: ParamId, weights: &mut [f32]) {
        let steps = self.timeline.idle(self.tensors[id.0].done, step);
        if steps.is_empty() {
            return;
        }
        let k = self.timeline.constants();
        let state = &mut self.tensors[id.0];
        state.done = step;
        match &mut state.moments {
            Some((m, v)) => {
                let blocks = weights.par_chunks_mut(BLOCK).zip(m.par_chunks_mut(BLOCK)).zip(v.par_chunks_mut(BLOCK));
                blocks.for_each(|((w, m), v)| elementwise::adamw_idle(w, m, v, &steps, &k));
            }
            // x * 1 = x to the bit.
            None if steps.iter().all(|s| s.decay == 1.0) => {}
            None => weights.par_chunks_mut(BLOCK).for_each(|w| elementwise::decay(w, &steps)),
        }
    }

    /// [`AdamW::catch_up`] for all tensors.
    pub fn catch_up_all<W: AsMut<[f32]>>(&mut self, step: u32, weights: &mut [W]) {
        for (i, w) in weights.iter_mut().enumerate() {
            self.catch_up(step, ParamId(i), w.as_mut());
        }
    }

    /// First and second moments of `id`, `None` while they are 0, and the count that goes with them: for saving a run.
    pub fn state(&self, id: ParamId) -> (u32, Option<Moments<'_>>) {
        let state = &self.tensors[id.0];
        (state.done, state.moments.as_ref().map(|(m, v)| (&m[..], &v[..])))
    }

    /// Put back what [`AdamW::state`] gave.
    pub fn restore(&mut self, id: ParamId, done: u32, moments: Option<(Vec<f32>, Vec<f32>)>) {
        self.tensors[id.0] = State { done, moments };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Direction, DirectionStream};

    const LEN: usize = 40_003;

    fn start() -> Vec<f32> {
        let mut w = vec![0.0; LEN];
        DirectionStream::new(1, 0, 0, Direction::Sphere, LEN).fill(0, &mut w);
        w.iter_mut().for_each(|x| *x *= 4.0);
        w[7] = 0.0;
        w[8] = -0.0;
        w
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// AdamW as one would write it down, one element at a time.
    fn ten_lines(w: &mut [f32], grads: &[(u32, Vec<f32>)], steps: u32, h: Hyper, schedule: Schedule, silent: Silent) {
        for (i, w) in w.iter_mut().enumerate() {
            let (mut m, mut v, mut t, mut b1, mut b2) = (0f32, 0f32, 0, 1f64, 1f64);
            for step in 0..steps {
                let fired = grads.iter().find(|(s, _)| *s == step);
                if fired.is_none() && silent == Silent::None {
                    continue;
                }
                let g = fired.map_or(0.0, |(_, g)| g[i]);
                let lr = schedule.rate(h.learning_rate, step, steps);
                (t, b1, b2) = (t + 1, b1 * h.beta1, b2 * h.beta2);
                m = h.beta1 as f32 * m + (1.0 - h.beta1) as f32 * g;
                v = h.beta2 as f32 * v + (1.0 - h.beta2) as f32 * g * g;
                m = if m.abs() < 2f32.powi(-60) { 0.0 } else { m };
                v = if v.abs() < 2f32.powi(-100) { 0.0 } else { v };
                let denominator = v.sqrt() * (1.0 / (1.0 - b2).sqrt()) as f32 + h.eps as f32;
                *w = *w * (1.0 - lr * h.weight_decay) as f32 - (lr / (1.0 - b1)) as f32 * (m / denominator);
            }
            assert!(t <= steps);
        }
    }

    fn fires() -> Vec<(u32, DirectionStream, f32)> {
        [(3, 1.0), (4, -1.0), (40, 1.0), (900, -1.0)]
            .map(|(s, bit)| (s, DirectionStream::new(5, s, 2, Direction::Sphere, LEN + 77), bit * 1.5))
            .into()
    }

    fn run(hyper: Hyper, schedule: Schedule, silent: Silent, steps: u32) -> Vec<f32> {
        let mut w = start();
        let mut optimizer = AdamW::new(1, steps, hyper, schedule, silent);
        for (s, direction, scale) in &fires() {
            let gradient = Gradient::Along { direction, offset: 77, scale: *scale };
            optimizer.step(*s, ParamId(0), &mut w, gradient);
        }
        optimizer.catch_up(steps, ParamId(0), &mut w);
        w
    }

    #[test]
    fn is_the_ten_line_adamw_to_the_bit() {
        let steps = 1400;
        let hyper = Hyper::new(2e-3, 1e-2);
        let grads: Vec<_> = fires()
            .iter()
            .map(|(s, d, scale)| {
                let mut u = vec![0.0; LEN];
                d.fill(77, &mut u);
                (*s, u.iter().map(|x| scale * x).collect::<Vec<f32>>())
            })
            .collect();
        for schedule in [Schedule::Constant, Schedule::Linear { warmup: 0.01 }] {
            for silent in [Silent::Zero, Silent::None] {
                let mut slow = start();
                ten_lines(&mut slow, &grads, steps, hyper, schedule, silent);
                let fast = run(hyper, schedule, silent, steps);
                assert_eq!(bits(&fast), bits(&slow), "{schedule:?} {silent:?}");
                assert_ne!(bits(&fast), bits(&start()));
            }
        }
    }

    #[test]
    fn catching_up_is_stepping_one_by_one() {
        let (steps, hyper) = (1200, Hyper::new(1e-3, 1e-3));
        let zeros = vec![0.0; LEN];
        let mut lazy = start();
        let mut eager = start();
        let mut a = AdamW::new(1, steps, hyper, Schedule::Linear { warmup: 0.1 }, Silent::Zero);
        let mut b = a.clone();
        let fires = fires();
        for s in 0..steps {
            let fired = fires.iter().find(|f| f.0 == s);
            let gradient = |d| Gradient::Along { direction: d, offset: 3, scale: 1.0 };
            match fired {
                Some((_, d, _)) => {
                    a.step(s, ParamId(0), &mut lazy, gradient(d));
                    b.step(s, ParamId(0), &mut eager, gradient(d));
                }
                None => b.step(s, ParamId(0), &mut eager, Gradient::Dense(&zeros)),
            }
            if s % 333 == 7 {
                a.catch_up_all(s + 1, std::slice::from_mut(&mut lazy));
                assert_eq!(bits(&lazy), bits(&eager), "after step {s}");
            }
        }
        a.catch_up(steps, ParamId(0), &mut lazy);
        assert_eq!(bits(&lazy), bits(&eager));
        let ((_, m), (_, n)) = (a.state(ParamId(0)), b.state(ParamId(0)));
        let ((m, v), (n, u)) = (m.unwrap(), n.unwrap());
        assert_eq!((bits(m), bits(v)), (bits(n), bits(u)));
        // Without a fire since step 900 the first moment is nearly gone, the second is not.
        assert!(m.iter().all(|x| x.abs() < 1e-12) && v.iter().any(|x| *x > 1e-12));
    }

    #[test]
    fn a_tensor_that_never_fired_only_decays() {
        let steps = 100;
        let mut lazy = start();
        let mut eager = start();
        let mut a = AdamW::new(1, steps, Hyper::new(1e-2, 0.1), Schedule::Constant, Silent::Zero);
        let mut b = a.clone();
        let zeros = vec![0.0; LEN];
        (0..steps).for_each(|s| b.step(s, ParamId(0), &mut eager, Gradient::Dense(&zeros)));
        a.catch_up(steps, ParamId(0), &mut lazy);
        assert_eq!(bits(&lazy), bits(&eager));
        assert!(a.state(ParamId(0)).1.is_none());
        assert_ne!(bits(&lazy), bits(&start()));

        let mut none = AdamW::new(1, steps, Hyper::new(1e-2, 0.1), Schedule::Constant, Silent::None);
        let mut still = start();
        none.catch_up(steps, ParamId(0), &mut still);
        assert_eq!(bits(&still), bits(&start()));
    }

    #[test]
    fn moments_die_out_and_are_never_subnormal() {
        let mut w = start();
        let g: Vec<f32> = (0..LEN).map(|i| 10f32.powi(-((i % 45) as i32))).collect();
        let mut a = AdamW::new(1, 40_000, Hyper::new(1e-3, 0.0), Schedule::Constant, Silent::Zero);
        a.step(0, ParamId(0), &mut w, Gradient::Dense(&g));
        for at in [1, 2, 50, 300, 401, 5_000, 40_000] {
            a.catch_up(at, ParamId(0), &mut w);
            let (_, moments) = a.state(ParamId(0));
            let (m, v) = moments.unwrap();
            assert!(m.iter().chain(v).all(|x| !x.is_subnormal() && x.to_bits() != (-0f32).to_bits()));
        }
        let (_, moments) = a.state(ParamId(0));
        assert!(moments.unwrap().0.iter().all(|x| *x == 0.0));
    }

    #[test]
    fn same_bits_at_any_thread_count() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| bits(&run(Hyper::new(2e-3, 1e-2), Schedule::Constant, Silent::Zero, 1000)))
        };
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(5));
    }

    #[test]
    fn state_can_be_put_back() {
        let (d, steps) = (&fires()[0].1, 50);
        let gradient = Gradient::Along { direction: d, offset: 0, scale: 1.0 };
        let mut w = start();
        let mut a = AdamW::new(1, steps, Hyper::new(1e-3, 1e-3), Schedule::Constant, Silent::Zero);
        a.step(3, ParamId(0), &mut w, gradient);
        let (done, moments) = a.state(ParamId(0));
        let mut b = AdamW::new(1, steps, Hyper::new(1e-3, 1e-3), Schedule::Constant, Silent::Zero);
        b.restore(ParamId(0), done, moments.map(|(m, v)| (m.to_vec(), v.to_vec())));
        let mut w2 = w.clone();
        a.step(20, ParamId(0), &mut w, gradient);
        b.step(20, ParamId(0), &mut w2, gradient);
        assert_eq!(bits(&w), bits(&w2));
    }
}
