//! The update rules on weights that lie in a backend's memory: nothing passes through the host but the released scalar.
//!
//! The arithmetic is that of [`AdamW`](super::AdamW) and [`direct`](super::direct); on the CPU the bits are the same. A device may contract or
//! reorder it and differ by rounding: what is published is replayed on the CPU.

use super::{Hyper, Schedule, Silent, Timeline};
use crate::backend::{Backend, Memory};
use crate::model::ParamId;
use crate::rng::DirectionStream;

/// Elements of a direction that exist at once: 4 MiB in f32.
const BLOCK: usize = 1 << 20;

/// [`Gradient`](super::Gradient) for a tensor in the memory of `B`: already released, so nothing here is sensitive.
pub enum Given<'a, B: Backend> {
    /// `scale * u[offset ..]`: a released scalar along a public direction, which the backend generates.
    Along {
        /// The group's direction.
        direction: &'a DirectionStream,
        /// Where the tensor begins in the group.
        offset: usize,
        /// Bit times C, or the released scalar.
        scale: f32,
    },
    /// `scale * tensor`: a whole gradient.
    Dense {
        /// Of the weights' shape.
        tensor: &'a B::Tensor,
        /// The factor on it.
        scale: f32,
    },
}

impl<B: Backend> Given<'_, B> {
    /// Calls `f(g, first, scale)` for blocks of rows of a matrix of this shape; the gradient of rows `first ..` is `scale * g`.
    fn blocks(&self, b: &B, (rows, cols): (usize, usize), mut f: impl FnMut(&B::Tensor, usize, f32)) {
        match *self {
            Given::Dense { tensor, scale } => f(tensor, 0, scale),
            Given::Along { direction, offset, scale } => {
                let block = (BLOCK / cols.max(1)).max(1);
                for first in (0..rows).step_by(block) {
                    f(&b.direction(direction, offset + first * cols, block.min(rows - first), cols), first, scale);
                }
            }
        }
    }
}

/// First and second moments of a tensor.
type Moments<B> = (<B as Memory>::Tensor, <B as Memory>::Tensor);

/// An update rule with its state, over the tensors of a decoder.
pub struct Updates<B: Backend> {
    rule: Rule,
    tensors: Vec<State<B>>,
}

enum Rule {
    Direct { learning_rate: f64, schedule: Schedule, steps: u32 },
    AdamW(Timeline),
}

struct State<B: Backend> {
    /// As in [`AdamW::state`](super::AdamW::state).
    done: u32,
    /// None while both are 0 everywhere.
    moments: Option<Moments<B>>,
}

impl<B: Backend> Updates<B> {
    /// AdamW for a run of `steps` steps.
    pub fn adamw(tensors: usize, steps: u32, hyper: Hyper, schedule: Schedule, silent: Silent) -> Self {
        Self::new(tensors, Rule::AdamW(Timeline::new(steps, hyper, schedule, silent)))
    }

    /// `w -= lr * gradient` for a run of `steps` steps.
    pub fn direct(tensors: usize, steps: u32, learning_rate: f64, schedule: Schedule) -> Self {
        Self::new(tensors, Rule::Direct { learning_rate, schedule, steps })
    }

    fn new(tensors: usize, rule: Rule) -> Self {
        Self { rule, tensors: (0..tensors).map(|_| State { done: 0, moments: None }).collect() }
    }

    /// Apply `gradient` to tensor `id` at `step`, after whatever idle steps came before.
    pub fn step(&mut self, b: &B, step: u32, id: ParamId, weights: &mut B::Weight, gradient: Given<B>) {
        self.catch_up(b, step, id, weights);
        let weights = b.master(weights);
        let (rows, cols) = b.shape(weights);
        let state = &mut self.tensors[id.0];
        match &self.rule {
            Rule::Direct { learning_rate, schedule, steps } => {
                let rate = schedule.rate(*learning_rate, step, *steps);
                gradient.blocks(b, (rows, cols), |g, first, scale| {
                    b.subtract(weights, g, first, (rate * f64::from(scale)) as f32);
                });
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

    /// [`Updates::catch_up`] for all tensors.
    pub fn catch_up_all(&mut self, b: &B, step: u32, weights: &mut [B::Weight]) {
        for (i, w) in weights.iter_mut().enumerate() {
            self.catch_up(b, step, ParamId(i), w);
        }
    }

    /// First and second moments of every tensor that has had a gradient, in order: for saving a run in which all have.
    pub fn all_moments(&mut self) -> impl Iterator<Item = (&mut B::Tensor, &mut B::Tensor)> {
        self.tensors.iter_mut().filter_map(|t| t.moments.as_mut()).map(|(m, v)| (m, v))
    }

    /// Put back what [`Updates::all_moments`] gave after `done` steps.
    pub fn restore(&mut self, id: ParamId, done: u32, moments: (B::Tensor, B::Tensor)) {
        self.tensors[id.0] = State { done, moments: Some(moments) };
    }

    /// Whether the rule has moments at all.
    pub fn has_moments(&self) -> bool {
        matches!(self.rule, Rule::AdamW(_))
    }
}
