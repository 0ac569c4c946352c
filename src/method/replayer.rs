//! From releases to weights: the one way, for training and for replay, wherever the weights lie.
//!
//! A method whose run is its transcript says in its plan what a release does to the weights ([`Replayable`]); the rest is said here, once.

use super::rebuild;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::model::{Layout, ParamId, Weights};
use crate::optim::Updates;

/// A public plan by which releases alone lead to weights: FERRET's and FERRET-k's.
pub trait Replayable: Sized {
    /// What the run was told.
    type Settings: Clone + PartialEq;
    /// What releases together: a group at a step, or a step.
    type Fire: Copy;
    /// What was released, fire by fire.
    type Releases: Clone;

    /// Of a run on weights of this layout.
    fn of(layout: &Layout, settings: &Self::Settings) -> Result<Self>;
    /// Steps T that the run was planned for.
    fn steps(&self) -> u32;
    /// The parameters that may change, in order.
    fn tuned(&self) -> impl Iterator<Item = ParamId> + '_;
    /// The optimizer of `tensors` tensors, at its beginning.
    fn updates<B: Backend>(&self, tensors: usize) -> Updates<B>;
    /// [`Replayer::apply`].
    fn apply<B: Backend>(
        replayer: &mut Replayer<Self, B>,
        b: &B,
        fires: &[Self::Fire],
        releases: &Self::Releases,
        weights: &mut [B::Weight],
        progress: impl FnMut(u32),
    ) -> Result<()>;
}

/// Applies releases, step by step, to weights in the memory of `B`, which come in layout order.
///
/// Steps without a fire need no call. With AdamW, where what is silent runs on with a zero gradient, they still move weights:
/// [`Replayer::catch_up`] makes up for them before someone reads the weights; a tensor that gets a gradient is brought up by itself.
pub struct Replayer<P, B: Backend> {
    pub(super) plan: P,
    pub(super) updates: Updates<B>,
    /// Every step below this is over.
    next: u32,
}

impl<P: Replayable, B: Backend> Replayer<P, B> {
    /// At the beginning of a run on weights of this layout.
    pub fn new(layout: &Layout, settings: &P::Settings) -> Result<Self> {
        let plan = P::of(layout, settings)?;
        Ok(Self { updates: plan.updates(layout.len()), plan, next: 0 })
    }

    /// What it follows.
    pub fn plan(&self) -> &P {
        &self.plan
    }

    /// Refuse a step that is over or beyond the run.
    pub(super) fn is_ahead(&self, step: u32) -> Result<()> {
        let steps = self.plan.steps();
        if step < self.next || step >= steps {
            return Err(Error::usage(format!("step {step} is not among {}..{steps}", self.next)));
        }
        Ok(())
    }

    /// `step` is over.
    pub(super) fn pass(&mut self, step: u32) {
        self.next = step + 1;
    }

    /// Bring all tuned weights to where they stand before `step`, or at the run's end. Frozen ones do not even decay.
    pub fn catch_up(&mut self, b: &B, step: u32, weights: &mut [B::Weight]) {
        let step = step.min(self.plan.steps());
        for id in self.plan.tuned() {
            self.updates.catch_up(b, step, id, &mut weights[id.0]);
        }
    }

    /// Apply recorded releases to their fires; `progress` hears of each step before it is made. For replay, and for resuming a run.
    pub fn apply(
        &mut self,
        b: &B,
        fires: &[P::Fire],
        releases: &P::Releases,
        weights: &mut [B::Weight],
        progress: impl FnMut(u32),
    ) -> Result<()> {
        P::apply(self, b, fires, releases, weights, progress)
    }
}

/// The weights that these releases lead to after `stop` steps, on the CPU. There is one copy of them in memory at any time, and what no release
/// touches stays as it is stored.
pub(super) fn follow<P: Replayable, T: Scalars>(
    weights: Weights<T>,
    settings: &P::Settings,
    fires: &[P::Fire],
    releases: &P::Releases,
    stop: u32,
    progress: impl FnMut(u32),
) -> Result<Weights<T>> {
    let mut replayer = Replayer::<P, _>::new(&weights.layout, settings)?;
    rebuild::on_host(weights, |b, params| {
        replayer.apply(b, fires, releases, params, progress)?;
        replayer.catch_up(b, stop, params);
        Ok(())
    })
}
