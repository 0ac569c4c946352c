//! Where runs happen: a world, what is asked of its models, and the base model's losses.

use crate::data::Example;
use crate::error::Result;
use crate::study::arm::{Measure, Reference};
use crate::study::real::{Probe, ProbePlan};
use crate::study::spec::{Part, Spec};
use crate::study::world::World;
use std::sync::OnceLock;

/// Held-out records on the loss curves.
const ON_CURVE: usize = 100;

/// Which world: seed, whether to tune, candidates, attacked records, what is asked.
pub(super) type Where = (u64, bool, usize, usize, Option<ProbePlan>);

/// A world, what is asked of its models, and the base model's losses on it once they are needed.
pub(super) struct Place {
    pub(super) world: World,
    probe: Option<Probe>,
    reference: OnceLock<Reference>,
}

/// Members that are scored: where a rate is chosen it is by the others, and an attack needs no more than these few.
fn attacked(spec: &Spec) -> usize {
    match spec.part {
        Part::Tuning => spec.audited.min(16),
        Part::Result => spec.audited,
    }
}

impl Place {
    pub(super) fn new(world: World, probe: Option<Probe>) -> Self {
        Self { world, probe, reference: OnceLock::new() }
    }

    /// The base model's losses, computed once.
    pub(super) fn reference(&self, measure: &Measure) -> Result<&Reference> {
        if let Some(known) = self.reference.get() {
            return Ok(known);
        }
        let made = measure.reference()?;
        Ok(self.reference.get_or_init(|| made))
    }

    pub(super) fn measure(&self, spec: &Spec, alone: bool) -> Measure<'_> {
        // A model of which answers are asked is too large to be measured along the way.
        let on_curve = if spec.asked.is_some() { 0 } else { ON_CURVE };
        let probe = self.probe.as_ref().filter(|_| spec.part == Part::Result);
        Measure {
            world: &self.world,
            audited: spec.audited,
            audited_members: attacked(spec),
            on_curve,
            every_step: false,
            prompts: &[],
            probe,
            alone: alone && spec.asked.is_some(),
        }
    }

    /// Rows that measuring a model computes: both sides, the points of the curve, what is asked.
    pub(super) fn rows(&self, spec: &Spec) -> usize {
        let rows = |examples: &[Example], n: usize| examples.iter().take(n).map(|e| e.ids.len()).sum::<usize>();
        let World { nonmembers, .. } = &self.world;
        let measure = self.measure(spec, false);
        let sides = rows(self.world.own_members(), attacked(spec)) + rows(nonmembers, spec.audited);
        sides + 9 * rows(nonmembers, measure.on_curve) + measure.probe.map_or(0, Probe::rows)
    }
}
