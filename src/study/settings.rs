//! From a few choices to a method's full settings, the same way for the main job and for studies.

use super::arm::MICRO_BATCH;
use super::spec::{Counting, Sketches};
use crate::error::{Error, Result};
use crate::method::Tune;
use crate::method::dense;
use crate::method::ferret::{self, BatchPer, Cuts, MaskKind, Release};
use crate::method::ferret_k;
use crate::method::groups::{Grouping, Groups};
use crate::model::ParamId;
use crate::optim::{Route, Schedule, Silent};
use crate::privacy::Sampler;
use crate::privacy::calibrate;
use crate::privacy::mi::Accounting;
use crate::privacy::mi::planner::{Ask, USUAL_NOISE};
use crate::rng::Direction;

/// The paper's weight decay.
const WEIGHT_DECAY: f64 = 1e-3;

/// What a study tells every method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choices {
    /// Members N.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the members.
    pub epochs: u32,
    /// Steps, where they are not those of the passes.
    pub steps: Option<u32>,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// Seed of the public randomness.
    pub seed: u64,
}

/// FERRET as the paper has it on the tensors `tuned`: bits through AdamW, idle steps with a zero gradient, directions on the sphere.
pub fn ferret(tuned: &[ParamId], c: &Choices, grouping: Grouping, nats: f64) -> Result<ferret::Settings> {
    Ok(ferret::Settings {
        epsilon: nats,
        records: c.records,
        batch: c.batch,
        epochs: c.epochs,
        steps: c.steps,
        learning_rate: c.learning_rate,
        schedule: c.schedule,
        micro_batch: MICRO_BATCH,
        seed: c.seed,
        ..ferret::Settings::paper("ferret", Cuts::over(tuned, &Groups::tuned(tuned, grouping)?.members)?)
    })
}

/// A method that updates everything at every step.
pub fn dense(c: &Choices, method: dense::Method) -> dense::Settings {
    dense::Settings {
        method,
        tune: Tune::default(),
        adapter: None,
        scales: None,
        records: c.records,
        batch: c.batch,
        epochs: c.epochs,
        steps: c.steps,
        sampler: Sampler::Poisson,
        micro_batch: MICRO_BATCH,
        route: Route::Adamw,
        learning_rate: c.learning_rate,
        schedule: c.schedule,
        weight_decay: WEIGHT_DECAY,
        seed: c.seed,
    }
}

/// DPSGD with the noise that makes the run (`eps`, `delta`)-DP; without an eps, with noise as large as the bound.
pub fn dpsgd(c: &Choices, eps: Option<f64>, delta: f64) -> Result<dense::Settings> {
    let privacy = dense::Privacy {
        noise_multiplier: 1.0,
        clip: 1.0,
        clip_rule: dense::ClipFunction::Automatic,
        clip_style: dense::ClipStyle::Flat,
        clip_groups: None,
    };
    let mut settings = dense(c, dense::Method::Dpsgd(privacy));
    settings.check()?;
    if let (Some(eps), s, steps, dense::Method::Dpsgd(privacy)) =
        (eps, settings.sampling_rate(), settings.steps(), &mut settings.method)
    {
        privacy.noise_multiplier = calibrate::noise_multiplier(eps, delta, s, steps.into())?.pld.upper;
    }
    Ok(settings)
}

/// [`dpsgd`], of whose updates only the signs are applied.
pub fn dp_signsgd(c: &Choices, eps: Option<f64>, delta: f64) -> Result<dense::Settings> {
    let settings = dpsgd(c, eps, delta)?;
    let privacy = settings.method.privacy().expect("DPSGD's").clone();
    Ok(dense::Settings { method: dense::Method::DpSignsgd(privacy), ..settings })
}

/// What the planner is asked for a budget in nats.
fn ask(c: &Choices, nats: f64) -> Ask {
    Ask { records: c.records, epochs: c.epochs.into(), nats: Some(nats), eps_delta: None, noise: USUAL_NOISE }
}

/// FERRET that tells no more than `nats`, on uniform batches, which are never empty. The passes bound its record gradients, however its bits
/// are counted.
pub fn within(tuned: &[ParamId], c: &Choices, nats: f64, counted: Counting) -> Result<ferret::Settings> {
    let (bits, flip) = match counted {
        Counting::Paper | Counting::Exact => (1, 0.0),
        Counting::Flipped => {
            let tensors = u32::try_from(tuned.len()).unwrap_or(u32::MAX);
            let choice = ask(c, nats).at_batch(c.batch, tensors)?.ok_or_else(|| {
                Error::usage(format!("{nats} nats do not pay for one bit on batches of {}: raise the budget", c.batch))
            })?;
            (choice.bits, choice.flip)
        }
    };
    let settings = ferret::Settings {
        accounting: if counted == Counting::Paper { Accounting::Paper } else { Accounting::Exact },
        release: if flip > 0.0 { Release::Rr { flip, unbiased: false } } else { Release::Bit },
        mask: MaskKind::Exact,
        sampler: Sampler::Uniform,
        silent: Silent::None,
        direction: Direction::Rademacher,
        ..ferret(tuned, c, Grouping::Count(bits as usize), nats)?
    };
    settings.check()?;
    Ok(settings)
}

/// DPSGD that tells no more than `nats`.
pub fn dpsgd_within(c: &Choices, nats: f64) -> Result<dense::Settings> {
    let mut settings = dpsgd(c, None, 0.0)?;
    if let dense::Method::Dpsgd(privacy) = &mut settings.method {
        privacy.noise_multiplier = ask(c, nats).noisy_sums_at(c.batch)?.noise_multiplier;
    }
    Ok(settings)
}

/// FERRET-k that tells no more than `nats`: levels by the direct route.
pub fn ferret_k_within(c: &Choices, nats: f64) -> Result<ferret_k::Settings> {
    let z = ask(c, nats).noisy_sums_at(c.batch)?.noise_multiplier;
    sketched(c, &Sketches::usual(0.0, None), |_| Ok(z))
}

/// FERRET-k with the noise that makes the run (eps, `delta`)-DP; if it is not to be `calibrated`, with noise as large as the bound.
pub fn ferret_k(c: &Choices, of: &Sketches, calibrated: bool, delta: f64) -> Result<ferret_k::Settings> {
    sketched(c, of, |settings| {
        if !calibrated {
            return Ok(settings.noise_multiplier);
        }
        let (s, steps) = (settings.sampling_rate(), settings.steps());
        Ok(calibrate::noise_multiplier(of.eps, delta, s, steps.into())?.pld.upper)
    })
}

/// FERRET-k with a noise that is found when all but the number of bits is known.
fn sketched(
    c: &Choices,
    of: &Sketches,
    noise: impl Fn(&ferret_k::Settings) -> Result<f64>,
) -> Result<ferret_k::Settings> {
    let mut settings = ferret_k::Settings {
        records: c.records,
        batch: c.batch,
        epochs: c.epochs,
        steps: c.steps,
        release: of.release,
        route: of.route,
        momentum: of.momentum,
        weight_decay: if of.route == Route::Adamw { WEIGHT_DECAY } else { 0.0 },
        learning_rate: c.learning_rate,
        schedule: c.schedule,
        micro_batch: MICRO_BATCH,
        seed: c.seed,
        ..ferret_k::Settings::usual(1.0)
    };
    settings.check()?;
    settings.noise_multiplier = noise(&settings)?;
    let usual = ferret_k::Settings::usual_bits(of.release, c.batch, settings.noise_multiplier);
    settings.bits_per_step = of.bits.unwrap_or(usual);
    settings.check()?;
    Ok(settings)
}

/// Flips that make the bits of these settings (`eps`, `delta`)-DP, each bit with a batch of its own.
pub fn with_flips(mut s: ferret::Settings, eps: f64, delta: f64) -> Result<ferret::Settings> {
    s.batch_per = BatchPer::Bit;
    let fires = s.shared(&s.fires(s.steps()));
    if !fires.is_empty() {
        let flip = calibrate::flip(eps, delta, s.sampling_rate(), &fires)?.pld.upper;
        s.release = Release::Rr { flip, unbiased: false };
    }
    Ok(s)
}

/// Gaussian noise that makes the scalars of these settings (`eps`, `delta`)-DP, each with a batch of its own.
pub fn with_dither(mut s: ferret::Settings, eps: f64, delta: f64) -> Result<ferret::Settings> {
    s.batch_per = BatchPer::Bit;
    let fires = s.shared(&s.fires(s.steps()));
    if !fires.is_empty() {
        let dither = calibrate::dither(eps, delta, s.sampling_rate(), &fires)?.pld.upper;
        s.release = Release::Gaussian { dither };
    }
    Ok(s)
}
