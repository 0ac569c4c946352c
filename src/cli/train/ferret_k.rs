//! From arguments to the settings of FERRET-k.

use super::dense::noise_multiplier;
use super::ferret::ReleaseKind;
use super::{Args, ScheduleKind};
use crate::cli::bars::Bars;
use crate::error::{Error, Result};
use crate::method::ferret_k::settings::USUAL_MOMENTUM;
use crate::method::ferret_k::{Release, Settings};
use crate::method::{Method, rates};
use crate::model::Config;
use crate::optim::Route;
use crate::rng::SketchKind;

/// What only FERRET-k has.
#[derive(clap::Args, Debug)]
pub(super) struct FerretKArgs {
    /// Signs, levels or scalars that a step releases, k [default: the power of two below 4 B² (1 + 3 / B) / 4 z² or 32 B, the larger, from 64 to 65536, for
    /// batches of B and noise z; of levels half as many]; any number costs the same (eps, delta)
    #[arg(long, value_name = "K")]
    pub(super) bits_per_step: Option<u32>,
    /// How weights fall into k buckets: tensor (from a layer's factors, by Fourier transforms), grid (by a small product), or count (every weight by
    /// itself, from its gradient) [default: tensor]
    #[arg(long, value_enum)]
    pub(super) sketch: Option<SketchKind>,
    /// --route direct: what is kept of the sum of earlier updates [default: 0.7]
    #[arg(long, value_name = "SHARE")]
    pub(super) momentum: Option<f64>,
    /// The probability that a step computes anything; which ones do is public [default: 1]
    #[arg(long = "fire", value_name = "P")]
    pub(super) p: Option<f64>,
}

impl FerretKArgs {
    /// One that was given, where none belongs.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            (self.bits_per_step.is_some(), "--bits-per-step"),
            (self.sketch.is_some(), "--sketch"),
            (self.momentum.is_some(), "--momentum"),
            (self.p.is_some(), "--fire"),
        ];
        given.iter().find(|g| g.0).map(|g| g.1)
    }
}

/// Arguments of other methods are refused, not passed over.
pub(super) fn refuse_strangers(args: &Args) -> Result<()> {
    let (f, d) = (&args.ferret, &args.dense);
    if args.epsilon.is_some() {
        return Err(Error::usage(
            "--epsilon is FERRET's budget in nats of mutual information: ferret-k takes --dp-epsilon and --delta, or \
             --noise-multiplier",
        ));
    }
    let given = [
        (f.has_own(), "arguments of FERRET's single bits"),
        (f.groups.is_some(), "--groups"),
        (d.clipping.is_some(), "--clipping: a sketch is clipped as a whole"),
        (d.variant.is_some(), "--variant"),
        (d.bits.is_some(), "--bits; --bits-per-step says how many"),
    ];
    match given.iter().find(|g| g.0) {
        Some((_, what)) => Err(Error::usage(format!("--method ferret-k has no use for {what}: leave it out"))),
        None => Ok(()),
    }
}

/// The settings that the arguments and the data make.
pub(super) fn settings(args: &Args, config: &Config, records: u64, bars: &Bars) -> Result<Method> {
    let layout = args.tune.layout(config)?;
    let tuned = args.tune.tune.ids(&layout)?;
    let (k, route) = (&args.ferret_k, args.route.unwrap_or(Route::Direct));
    let direct = route == Route::Direct;
    let mut settings = Settings {
        tune: args.tune.tune.clone(),
        adapter: args.tune.adapter(config)?,
        sketch: k.sketch.unwrap_or_default(),
        scales: args.dense.scales.given(),
        release: match args.ferret.release {
            None => Release::default(),
            Some(ReleaseKind::Sign) => Release::Sign,
            Some(ReleaseKind::Scalar) => Release::Scalar,
            Some(ReleaseKind::Level) => Release::Level,
            Some(_) => {
                return Err(Error::usage("--method ferret-k releases sign, level or scalar: give one as --release"));
            }
        },
        clip: args.clip,
        clip_rule: args.dense.clip_function.unwrap_or_default(),
        p: k.p.unwrap_or(1.0),
        records,
        batch: args.batch,
        epochs: args.epochs,
        sampler: args.sampler,
        micro_batch: args.micro_batch,
        route,
        momentum: k.momentum.unwrap_or(if direct { USUAL_MOMENTUM } else { 0.0 }),
        silent: args.ferret.silent,
        schedule: args.schedule(ScheduleKind::Constant),
        weight_decay: args.decay(route),
        seed: args.seed,
        ..Settings::usual(1.0)
    };
    settings.check()?;
    settings.scales.as_ref().map_or(Ok(()), |scales| scales.check_count(tuned.len()))?;
    let fires = settings.count_fires(settings.steps(), u64::MAX);
    if fires == 0 {
        return Err(Error::usage(format!(
            "no step of {} fires with --fire {}: raise it, or take another --seed",
            settings.steps(),
            settings.p
        )));
    }
    settings.noise_multiplier = noise_multiplier(args, settings.sampling_rate(), fires, bars)?;
    settings.bits_per_step = k
        .bits_per_step
        .unwrap_or_else(|| Settings::usual_bits(settings.release, args.batch, settings.noise_multiplier));
    settings.learning_rate = args.learning_rate.unwrap_or_else(|| rates::ferret_k(&settings, layout.scalars()));
    settings.check()?;
    Ok(Method::FerretK(settings))
}
