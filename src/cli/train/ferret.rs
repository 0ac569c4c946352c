//! From arguments to the settings of FERRET.

use super::{Args, ScheduleKind};
use crate::cli::bars::Bars;
use crate::cli::common::grouping;
use crate::error::{Error, Result};
use crate::method::ferret::{BatchPer, Cuts, Engine, MaskKind, Noise, Payload, Release, Settings};
use crate::method::groups::Groups;
use crate::method::{Method, rates};
use crate::model::Config;
use crate::optim::Silent;
use crate::privacy::mi::{self, Accounting};
use crate::progress::Progress;
use crate::rng::Direction;

/// What only FERRET has.
#[derive(clap::Args, Debug)]
pub(super) struct FerretArgs {
    /// Cut the tensors into N groups
    #[arg(long, value_name = "N", conflicts_with = "bucket")]
    pub(super) groups: Option<usize>,
    /// N consecutive tensors a group
    #[arg(long, value_name = "N")]
    pub(super) bucket: Option<usize>,
    /// Whether fired groups share a step's batch or each bit draws its own [default: step; bit with --release rr or gaussian]
    #[arg(long, value_enum)]
    pub(super) batch_per: Option<BatchPer>,
    /// How nats are counted
    ///
    /// As the paper does, s ln 2 nats a bit, or by what the bits of a batch can really tell, flips and noise included.
    #[arg(long, value_name = "COUNT", value_enum, default_value = "paper")]
    pub(super) accounting: Accounting,
    /// What AdamW does to a group that did not fire: run on with a zero gradient, or stand still
    #[arg(long, value_enum, default_value = "zero")]
    pub(super) silent: Silent,
    /// How directions are distributed
    #[arg(long, value_enum, default_value = "sphere")]
    pub(super) direction: Direction,
    /// What a fired group sends; true-gradient is not private, for comparison
    #[arg(long, value_enum, default_value = "sign")]
    pub(super) payload: Payload,
    /// Exactly floor(nats / (s ln 2)) slots fire, so that the budget is never exceeded; or each group by itself, as in the paper, which
    /// meets the budget on average only
    #[arg(long, value_enum, default_value = "exact")]
    pub(super) mask: MaskKind,
    /// Backward, or forward mode in the memory of inference
    #[arg(long, value_enum, default_value = "backward")]
    pub(super) engine: Engine,
    /// What a fire sends [default: bit; ferret-k: level]
    ///
    /// The bit itself (bounded mutual information), the bit by randomised response, or a scalar with Gaussian noise (both also
    /// (eps, delta)-DP); ferret-k: signs, levels or scalars, after the noise.
    #[arg(long, value_name = "KIND", value_enum)]
    pub(super) release: Option<ReleaseKind>,
    /// rr: probability of a flip
    #[arg(long, value_name = "P", conflicts_with = "dp_epsilon")]
    pub(super) flip: Option<f64>,
    /// rr: use the known flip rate to make the update unbiased
    #[arg(long)]
    pub(super) unbiased: bool,
    /// gaussian: standard deviation of the noise in units of C
    #[arg(long, value_name = "S", conflicts_with = "dp_epsilon")]
    pub(super) dither: Option<f64>,
}

/// What a fire releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum ReleaseKind {
    /// The bit
    Bit,
    /// The bit, flipped with a known probability
    Rr,
    /// Sign times C plus Gaussian noise
    Gaussian,
    /// ferret-k: the signs of noised sums
    Sign,
    /// ferret-k: two bits of each noised sum, and one size for all
    Level,
    /// ferret-k: the noised sums, on a grid
    Scalar,
}

impl FerretArgs {
    /// Whether anything is given that belongs to single bits alone.
    pub(super) fn has_own(&self) -> bool {
        self.bucket.is_some()
            || self.batch_per.is_some()
            || self.accounting != Accounting::Paper
            || self.flip.is_some()
            || self.dither.is_some()
            || self.unbiased
            || self.direction != Direction::default()
            || self.payload != Payload::default()
            || self.mask != MaskKind::default()
            || self.engine != Engine::default()
    }
}

/// Arguments of other methods are refused, not passed over.
pub(super) fn refuse_strangers(args: &Args) -> Result<()> {
    let d = &args.dense;
    if let Some(what) = args.ferret_k.given() {
        return Err(Error::usage(format!("{what} belongs to ferret-k, not to {}: leave it out", args.method)));
    }
    let strangers = d.noise_multiplier.is_some()
        || d.accountant.is_some()
        || d.clipping.is_some()
        || d.clip_function.is_some()
        || d.scales.asked()
        || d.variant.is_some()
        || d.bits.is_some();
    if strangers {
        return Err(Error::usage(format!(
            "--noise-multiplier, --accountant, --clipping, --clip-function, --scales, --scales-from, --variant and --bits belong to dpsgd and the other methods \
             with whole updates, not to {}",
            args.method
        )));
    }
    Ok(())
}

/// The settings that the arguments and the data make.
pub(super) fn settings(args: &Args, config: &Config, records: u64, bars: &Bars) -> Result<Method> {
    let grouping = grouping(&args.method, args.ferret.groups, args.ferret.bucket)?;
    let layout = args.tune.layout(config)?;
    let tuned = args.tune.tune.ids(&layout)?;
    let groups = Groups::tuned(&tuned, grouping)?;
    let Some(epsilon) = args.epsilon else {
        return Err(Error::usage(
            "--epsilon NATS is needed: the budget of the run in nats of mutual information, such as 1",
        ));
    };
    let noisy = args.ferret.release.is_some_and(|r| r != ReleaseKind::Bit);
    let route = args.route.unwrap_or_default();
    let mut settings = Settings {
        method: args.method.clone(),
        tune: args.tune.tune.clone(),
        adapter: args.tune.adapter(config)?,
        groups: Cuts::over(&tuned, &groups.members)?,
        epsilon,
        accounting: args.ferret.accounting,
        records,
        batch: args.batch,
        epochs: args.epochs,
        steps: None,
        mask: args.ferret.mask,
        direction: args.ferret.direction,
        release: Release::Bit,
        payload: args.ferret.payload,
        clip: args.clip,
        route,
        silent: args.ferret.silent,
        learning_rate: args.learning_rate.unwrap_or(1.0),
        schedule: args.schedule(ScheduleKind::Constant),
        weight_decay: args.decay(route),
        sampler: args.sampler,
        batch_per: args.ferret.batch_per.unwrap_or(if noisy { BatchPer::Bit } else { BatchPer::Step }),
        engine: args.ferret.engine,
        micro_batch: args.micro_batch,
        seed: args.seed,
    };
    settings.check()?;
    settings.release = release(args, &settings, bars)?;
    settings.check()?;
    settings.learning_rate = args.learning_rate.unwrap_or_else(|| rates::ferret(&settings, layout.scalars()));
    settings.check()?;
    let s = settings.sampling_rate();
    if settings.mask == MaskKind::Exact && settings.count_fires(settings.steps(), 0) == 0 {
        return Err(Error::usage(format!(
            "--epsilon {epsilon} does not pay for one bit at s = {s:.4} (s ln 2 = {:.4} nats): raise it, or make the batch smaller; or \
             spend it on average only, with --mask bernoulli",
            mi::charge(s, 1)
        )));
    }
    Ok(Method::Ferret(settings))
}

/// What was asked to be released, or the least noise that the accountant proves to suffice for the planned fires.
fn release(args: &Args, settings: &Settings, bars: &Bars) -> Result<Release> {
    let f = &args.ferret;
    let calibrated = |noise: Noise, what: &str| match args.dp_epsilon {
        Some(eps) => {
            bars.begin("finding the noise", 0);
            settings.calibrated(noise, eps, args.delta, args.max_steps.unwrap_or(u32::MAX))
        }
        None => Err(Error::usage(format!("give --{what}, or --dp-epsilon and --delta to have it found"))),
    };
    match f.release.unwrap_or(ReleaseKind::Bit) {
        ReleaseKind::Bit if f.flip.or(f.dither).or(args.dp_epsilon).is_some() => {
            Err(Error::usage("--flip, --dither and --dp-epsilon belong to --release rr or gaussian"))
        }
        ReleaseKind::Bit => Ok(Release::Bit),
        ReleaseKind::Sign | ReleaseKind::Level | ReleaseKind::Scalar => {
            Err(Error::usage(format!("--release sign, level and scalar are ferret-k's, not {}'s", args.method)))
        }
        ReleaseKind::Rr => match f.flip {
            Some(flip) => Ok(Release::Rr { flip, unbiased: f.unbiased }),
            None => calibrated(Noise::Flips { unbiased: f.unbiased }, "flip"),
        },
        ReleaseKind::Gaussian => match f.dither {
            Some(dither) => Ok(Release::Gaussian { dither }),
            None => calibrated(Noise::Dither, "dither"),
        },
    }
}
