//! From a few choices to a method's full settings, the same way for the main job and for studies.

use super::arm::MICRO_BATCH;
use crate::error::Result;
use crate::method::dense;
use crate::method::ferret::{self, BatchPer, Cuts, Release, Route};
use crate::method::groups::{Grouping, Groups};
use crate::model::Layout;
use crate::optim::Schedule;
use crate::privacy::statement::Sampler;
use crate::privacy::{calibrate, mi};

/// The paper's weight decay.
const WEIGHT_DECAY: f64 = 1e-3;

/// What every method is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Members N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the members.
    pub epochs: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// Seed of the public randomness.
    pub seed: u64,
}

impl Common {
    /// Steps of the run.
    pub fn steps(&self) -> Result<u32> {
        mi::run_steps(self.records, self.batch, self.epochs)
    }

    fn sampling_rate(&self) -> f64 {
        self.batch as f64 / self.records as f64
    }
}

/// FERRET as the paper has it: bits through AdamW, idle steps with a zero gradient, directions on the sphere.
pub fn ferret(layout: &Layout, c: &Common, grouping: Grouping, nats: f64) -> Result<ferret::Settings> {
    let settings = ferret::Settings {
        epsilon: nats,
        records: c.records,
        batch: c.batch,
        epochs: c.epochs,
        steps: c.steps()?,
        learning_rate: c.learning_rate,
        schedule: c.schedule,
        seed: c.seed,
        ..ferret::Settings::paper("ferret", Cuts::of(&Groups::new(layout, grouping)?.members)?)
    };
    Ok(settings.planned())
}

/// A method that updates everything at every step, for `steps` steps.
pub fn dense(c: &Common, method: dense::Method, steps: u32) -> dense::Settings {
    dense::Settings {
        method,
        records: c.records,
        batch: c.batch,
        epochs: c.epochs,
        steps,
        sampling_rate: c.sampling_rate(),
        sampler: Sampler::Poisson,
        micro_batch: MICRO_BATCH,
        route: Route::Adamw,
        learning_rate: c.learning_rate,
        schedule: c.schedule,
        weight_decay: WEIGHT_DECAY,
        seed: c.seed,
    }
}

/// DPSGD with the noise that makes `steps` steps (`eps`, `delta`)-DP; without an eps, with noise as large as the bound.
pub fn dpsgd(c: &Common, eps: Option<f64>, delta: f64, steps: u32) -> Result<dense::Settings> {
    let noise = match eps {
        Some(eps) => calibrate::noise_multiplier(eps, delta, c.sampling_rate(), steps.into())?.pld.upper,
        None => 1.0,
    };
    let privacy = dense::Privacy {
        noise_multiplier: noise,
        clip: 1.0,
        clip_rule: dense::ClipRule::Automatic,
        clip_style: dense::ClipStyle::Flat,
        clip_groups: None,
    };
    Ok(dense(c, dense::Method::Dpsgd(privacy), steps))
}

/// Flips that make the bits of these settings (`eps`, `delta`)-DP, each bit with a batch of its own.
pub fn with_flips(mut s: ferret::Settings, eps: f64, delta: f64) -> Result<ferret::Settings> {
    s.batch_per = BatchPer::Bit;
    let fires = s.shared(&s.fires(s.steps));
    if !fires.is_empty() {
        let flip = calibrate::flip(eps, delta, s.sampling_rate, &fires)?.pld.upper;
        s.release = Release::Rr { flip, unbiased: false };
    }
    Ok(s)
}

/// Gaussian noise that makes the scalars of these settings (`eps`, `delta`)-DP, each with a batch of its own.
pub fn with_dither(mut s: ferret::Settings, eps: f64, delta: f64) -> Result<ferret::Settings> {
    s.batch_per = BatchPer::Bit;
    let fires = s.shared(&s.fires(s.steps));
    if !fires.is_empty() {
        let dither = calibrate::dither(eps, delta, s.sampling_rate, &fires)?.pld.upper;
        s.release = Release::Gaussian { dither };
    }
    Ok(s)
}
