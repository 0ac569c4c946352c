//! The optimizer: update rules on weights where they lie, in a backend's memory. Nothing passes through the host but the released scalar.
//!
//! On the CPU an update has the same bits everywhere. A device may contract or reorder the arithmetic and differ by rounding: what is
//! published is replayed on the CPU.

use super::{Gradient, Hyper, Schedule, Silent, Timeline};
use crate::backend::{Backend, Memory};
use crate::model::ParamId;
use crate::ops::update::Step;
use serde::{Deserialize, Serialize};

/// How releases reach the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// As gradients of AdamW: the paper's set-up.
    #[default]
    Adamw,
    /// `w -= lr * gradient`: the paper's Algorithm 1. No weight decay; silent groups are untouched. With momentum, `m = momentum m + gradient`
    /// and `w -= lr * m` at every gradient; without, no state.
    Direct,
}

/// First and second moments of a tensor.
type Moments<B> = (<B as Memory>::Tensor, <B as Memory>::Tensor);

/// An update rule with its state, over the tensors of a decoder.
pub struct Updates<B: Backend> {
    rule: Rule,
    tensors: Vec<State<B>>,
}

enum Rule {
    Direct { learning_rate: f64, schedule: Schedule, steps: u32, momentum: f32 },
    AdamW(Timeline),
}

struct State<B: Backend> {
    /// Steps applied: all below this (silent zero), or the number of gradients seen (silent none).
    done: u32,
    /// None while both are 0 everywhere.
    moments: Option<Moments<B>>,
    /// Momentum of the direct route; none while it is 0 everywhere.
    velocity: Option<B::Tensor>,
}

impl<B: Backend> Updates<B> {
    /// The rule of `route` for a run of `steps` steps over `tensors` tensors. No moment is allocated before a tensor's first gradient.
    pub fn new(route: Route, tensors: usize, steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        let rule = match route {
            Route::Adamw => Rule::AdamW(Timeline::new(steps, hyper, schedule, silent)),
            Route::Direct => {
                let Hyper { learning_rate, momentum, .. } = hyper;
                Rule::Direct { learning_rate, schedule, steps, momentum: momentum as f32 }
            }
        };
        let state = || State { done: 0, moments: None, velocity: None };
        Self { rule, tensors: (0..tensors).map(|_| state()).collect() }
    }

    /// AdamW for a run of `steps` steps.
    pub fn adamw(tensors: usize, steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        Self::new(Route::Adamw, tensors, steps, hyper, schedule, silent)
    }

    /// Apply `gradient` to tensor `id` at `step`, after whatever idle steps came before.
    ///
    /// Panics when the step is not below the number of steps, or was applied already.
    pub fn step(&mut self, b: &B, step: u32, id: ParamId, weights: &mut B::Weight, gradient: Gradient<B>) {
        self.catch_up(b, step, id, weights);
        let weights = b.master(weights);
        let (rows, cols) = b.shape(weights);
        let state = &mut self.tensors[id.0];
        match &self.rule {
            &Rule::Direct { learning_rate, schedule, steps, momentum: 0.0 } => {
                let rate = schedule.rate(learning_rate, step, steps);
                gradient.subtract(b, weights, |scale| (rate * f64::from(scale)) as f32);
            }
            &Rule::Direct { learning_rate, schedule, steps, momentum } => {
                let m = state.velocity.get_or_insert_with(|| b.zeros(rows, cols));
                let rate = schedule.rate(learning_rate, step, steps) as f32;
                if let Gradient::Pulled { pullback, tensor, scale } = gradient {
                    return b.momentum_pulled(weights, m, pullback, tensor, [momentum, scale, rate]);
                }
                b.decay(m, &[Step { decay: momentum, rate: 0.0, correction: 1.0 }]);
                gradient.subtract(b, m, |scale| -scale);
                b.subtract(weights, m, 0, rate);
            }
            Rule::AdamW(timeline) => {
                let (s, k) = (timeline.gradient(state.done, step), timeline.constants());
                state.done += 1;
                let (m, v) = state.moments.get_or_insert_with(|| (b.zeros(rows, cols), b.zeros(rows, cols)));
                gradient.blocks(b, (rows, cols), |g, first, scale| b.adamw(weights, (m, v), g, first, scale, &s, &k));
            }
        }
    }

    /// Bring tensor `id` to where it stands before `step`: idle steps that are due are taken now, iterated in registers.
    pub fn catch_up(&mut self, b: &B, step: u32, id: ParamId, weights: &mut B::Weight) {
        let Rule::AdamW(timeline) = &self.rule else { return };
        let state = &mut self.tensors[id.0];
        let steps = timeline.idle(state.done, step);
        if steps.is_empty() {
            return;
        }
        state.done = step;
        match &mut state.moments {
            Some((m, v)) => b.adamw_idle(b.master(weights), (m, v), &steps, &timeline.constants()),
            // x * 1 = x to the bit.
            None if steps.iter().all(|s| s.decay == 1.0) => {}
            None => b.decay(b.master(weights), &steps),
        }
    }

    /// First and second moments of every tensor that has had a gradient, in order: for saving a run in which all have.
    pub fn all_moments(&mut self) -> impl Iterator<Item = (&mut B::Tensor, &mut B::Tensor)> {
        self.tensors.iter_mut().filter_map(|t| t.moments.as_mut()).map(|(m, v)| (m, v))
    }

    /// Put back what [`Updates::all_moments`] gave after `done` steps.
    pub fn restore(&mut self, id: ParamId, done: u32, moments: (B::Tensor, B::Tensor)) {
        self.tensors[id.0] = State { done, moments: Some(moments), velocity: None };
    }

    /// Whether the rule has moments at all.
    pub fn has_moments(&self) -> bool {
        matches!(self.rule, Rule::AdamW(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::kernel::Stored;
    use crate::rng::{Direction, DirectionStream, SketchKind, StepSketch};

    /// Rows and columns of the one tensor here.
    const SHAPE: (usize, usize) = (3, 13_337);
    const LEN: usize = SHAPE.0 * SHAPE.1;

    /// A tensor with its optimizer, in host memory.
    struct One {
        b: Cpu,
        w: <Cpu as Memory>::Weight,
        updates: Updates<Cpu>,
    }

    impl One {
        fn new(steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
            let b = Cpu::new();
            let w = b.weight(SHAPE.0, SHAPE.1, Stored::F32(start())).unwrap();
            Self { b, w, updates: Updates::adamw(1, steps, hyper, schedule, silent) }
        }

        fn along(&mut self, step: u32, direction: &DirectionStream, offset: usize, scale: f32) {
            let gradient = Gradient::Along { direction, offset, scale };
            self.updates.step(&self.b, step, ParamId(0), &mut self.w, gradient);
        }

        fn dense(&mut self, step: u32, gradient: &[f32]) {
            let tensor = &self.b.upload(SHAPE.0, SHAPE.1, gradient.to_vec()).unwrap();
            self.updates.step(&self.b, step, ParamId(0), &mut self.w, Gradient::Whole { tensor, scale: 1.0 });
        }

        fn catch_up(&mut self, step: u32) {
            self.updates.catch_up(&self.b, step, ParamId(0), &mut self.w);
        }

        fn bits(&self) -> Vec<u32> {
            bits(&self.b.download_weight(&self.w).unwrap())
        }

        fn moments(&self) -> Option<(&[f32], &[f32])> {
            self.updates.tensors[0].moments.as_ref().map(|(m, v)| (m.as_slice(), v.as_slice()))
        }
    }

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

    fn run(hyper: Hyper, schedule: Schedule, silent: Silent, steps: u32) -> Vec<u32> {
        let mut one = One::new(steps, hyper, schedule, silent);
        for (s, direction, scale) in &fires() {
            one.along(*s, direction, 77, *scale);
        }
        one.catch_up(steps);
        one.bits()
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
                assert_eq!(fast, bits(&slow), "{schedule:?} {silent:?}");
                assert_ne!(fast, bits(&start()));
            }
        }
    }

    #[test]
    fn catching_up_is_stepping_one_by_one() {
        let (steps, hyper, linear) = (1200, Hyper::new(1e-3, 1e-3), Schedule::Linear { warmup: 0.1 });
        let zeros = vec![0.0; LEN];
        let [mut lazy, mut eager] = [(); 2].map(|()| One::new(steps, hyper, linear, Silent::Zero));
        let fires = fires();
        for s in 0..steps {
            match fires.iter().find(|f| f.0 == s) {
                Some((_, d, _)) => [&mut lazy, &mut eager].into_iter().for_each(|one| one.along(s, d, 3, 1.0)),
                None => eager.dense(s, &zeros),
            }
            if s % 333 == 7 {
                lazy.catch_up(s + 1);
                assert_eq!(lazy.bits(), eager.bits(), "after step {s}");
            }
        }
        lazy.catch_up(steps);
        assert_eq!(lazy.bits(), eager.bits());
        let ((m, v), (n, u)) = (lazy.moments().unwrap(), eager.moments().unwrap());
        assert_eq!((bits(m), bits(v)), (bits(n), bits(u)));
        // Without a fire since step 900 the first moment is nearly gone, the second is not.
        assert!(m.iter().all(|x| x.abs() < 1e-12) && v.iter().any(|x| *x > 1e-12));
    }

    #[test]
    fn a_tensor_that_never_fired_only_decays() {
        let (steps, hyper) = (100, Hyper::new(1e-2, 0.1));
        let [mut lazy, mut eager] = [(); 2].map(|()| One::new(steps, hyper, Schedule::Constant, Silent::Zero));
        let zeros = vec![0.0; LEN];
        (0..steps).for_each(|s| eager.dense(s, &zeros));
        lazy.catch_up(steps);
        assert_eq!(lazy.bits(), eager.bits());
        assert!(lazy.moments().is_none());
        assert_ne!(lazy.bits(), bits(&start()));

        let mut none = One::new(steps, hyper, Schedule::Constant, Silent::None);
        none.catch_up(steps);
        assert_eq!(none.bits(), bits(&start()));
    }

    #[test]
    fn moments_die_out_and_are_never_subnormal() {
        let g: Vec<f32> = (0..LEN).map(|i| 10f32.powi(-((i % 45) as i32))).collect();
        let mut one = One::new(40_000, Hyper::new(1e-3, 0.0), Schedule::Constant, Silent::Zero);
        one.dense(0, &g);
        for at in [1, 2, 50, 300, 401, 5_000, 40_000] {
            one.catch_up(at);
            let (m, v) = one.moments().unwrap();
            assert!(m.iter().chain(v).all(|x| !x.is_subnormal() && x.to_bits() != (-0f32).to_bits()));
        }
        assert!(one.moments().unwrap().0.iter().all(|x| *x == 0.0));
    }

    #[test]
    fn same_bits_at_any_thread_count() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(Hyper::new(2e-3, 1e-2), Schedule::Constant, Silent::Zero, 1000))
        };
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(5));
    }

    #[test]
    fn state_can_be_put_back() {
        let (d, hyper) = (&fires()[0].1, Hyper::new(1e-3, 1e-3));
        let [mut a, mut b] = [(); 2].map(|()| One::new(50, hyper, Schedule::Constant, Silent::Zero));
        a.along(3, d, 0, 1.0);
        let copy = |x: &[f32]| b.b.upload(SHAPE.0, SHAPE.1, x.to_vec()).unwrap();
        let (m, v) = a.moments().map(|(m, v)| (copy(m), copy(v))).unwrap();
        b.w = b.b.weight(SHAPE.0, SHAPE.1, Stored::F32(a.b.download_weight(&a.w).unwrap())).unwrap();
        b.updates.restore(ParamId(0), 4, (m, v));
        [&mut a, &mut b].into_iter().for_each(|one| one.along(20, d, 0, 1.0));
        assert_eq!(a.bits(), b.bits());
    }

    /// More elements than a block has: what is generated block by block is the direction as it is.
    #[test]
    fn a_direction_in_blocks_is_the_whole_one() {
        let (b, rows, cols) = (Cpu::<f32>::new(), 1100, 1000);
        let direction = DirectionStream::new(5, 1, 2, Direction::Rademacher, 5 + rows * cols);
        let mut u = vec![0.0; rows * cols];
        direction.fill(5, &mut u);
        let tensor = &b.upload(rows, cols, u).unwrap();
        for route in [Route::Adamw, Route::Direct] {
            let step = |gradient| {
                let mut w = b.weight(rows, cols, Stored::F32(vec![0.0; rows * cols])).unwrap();
                let (hyper, silent) = (Hyper::new(1e-2, 0.0), Silent::None);
                Updates::new(route, 1, 9, hyper, Schedule::Constant, silent).step(&b, 1, ParamId(0), &mut w, gradient);
                bits(&b.download_weight(&w).unwrap())
            };
            let along = step(Gradient::Along { direction: &direction, offset: 5, scale: -1.5 });
            assert_eq!(along, step(Gradient::Whole { tensor, scale: -1.5 }), "{route:?}");
        }
    }

    /// With momentum and without, along a pullback, a direction and a matrix: the lines one would write down, to the bit.
    #[test]
    fn the_direct_route_is_its_two_lines_to_the_bit() {
        let (b, rows, cols, k) = (Cpu::<f32>::new(), 1100, 1000, 33);
        let schedule = Schedule::Linear { warmup: 0.25 };
        let numbers: Vec<f32> = (0..k).map(|i| (i as f32).sin()).collect();
        for momentum in [0.0, 0.5] {
            let hyper = Hyper { momentum, ..Hyper::new(0.3, 0.0) };
            let mut updates = Updates::new(Route::Direct, 1, 9, hyper, schedule, Silent::Zero);
            let mut w = b.weight(rows, cols, Stored::F32(vec![0.1; rows * cols])).unwrap();
            let (mut slow, mut m) = (vec![0.1f32; rows * cols], vec![0f32; rows * cols]);
            for step in [1, 2, 5, 8] {
                let sketch = StepSketch::new(3, step, SketchKind::Tensor, k, &[(rows, cols)]);
                let pullback = sketch.pullback(&numbers, 1.0);
                let direction = DirectionStream::new(5, step, 2, Direction::Sphere, rows * cols);
                let mut g = vec![0.0; rows * cols];
                let (gradient, scale) = match step {
                    5 => {
                        direction.fill(0, &mut g);
                        (Gradient::Along { direction: &direction, offset: 0, scale: 0.7 }, 0.7f32)
                    }
                    _ => {
                        pullback.fill(0, 0, &mut g);
                        (Gradient::Pulled { pullback: &pullback, tensor: 0, scale: 0.01 }, 0.01)
                    }
                };
                updates.step(&b, step, ParamId(0), &mut w, gradient);
                let rate = schedule.rate(0.3, step, 9);
                for ((w, m), g) in slow.iter_mut().zip(&mut m).zip(&g) {
                    if momentum == 0.0 {
                        *w -= (rate * f64::from(scale)) as f32 * g;
                    } else {
                        *m = *m * 0.5 + scale * g;
                        *w -= rate as f32 * *m;
                    }
                }
            }
            updates.catch_up(&b, 9, ParamId(0), &mut w);
            assert_eq!(bits(&b.download_weight(&w).unwrap()), bits(&slow), "momentum {momentum}");
        }
    }
}
