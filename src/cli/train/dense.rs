//! From arguments to the settings of the methods that release a whole update at every step.

use super::scales::ScalesArgs;
use super::{Args, ScheduleKind};
use crate::cli::bars::Bars;
use crate::error::{Error, Result};
use crate::method::dense::{ClipFunction, ClipStyle, Method, Privacy, Settings, Variant};
use crate::method::{list, rates};
use crate::model::Config;
use crate::optim::Silent;
use crate::privacy::{calibrate, mi};
use crate::progress::Progress;

/// What only the methods with whole updates have.
#[derive(clap::Args, Debug)]
pub(super) struct DenseArgs {
    /// dpsgd, dp-signsgd, ferret-k: standard deviation of the noise in units of C, instead of --dp-epsilon; 0 is not private
    #[arg(long, value_name = "S", conflicts_with = "dp_epsilon")]
    pub(super) noise_multiplier: Option<f64>,
    /// Which accountant finds the noise for --dp-epsilon [default: pld]
    #[arg(long, value_enum)]
    pub(super) accountant: Option<AccountantKind>,
    /// dpsgd, dp-signsgd: which norms of a record's gradient are clipped together [default: flat]
    #[arg(long, value_enum)]
    pub(super) clipping: Option<ClipStyle>,
    /// dpsgd, dp-signsgd, ferret-k: the factor on a record's gradient, or sketch, of norm n [default: automatic]
    #[arg(long, value_enum)]
    pub(super) clip_function: Option<ClipFunction>,
    #[command(flatten)]
    pub(super) scales: ScalesArgs,
    /// signsgd: which of the algorithms of this name [default: plain]
    #[arg(long, value_enum)]
    pub(super) variant: Option<Variant>,
    /// qsgd: bits a coordinate, 2 to 8, its sign included [default: 8]
    #[arg(long, value_name = "N")]
    pub(super) bits: Option<u32>,
}

/// Who finds the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AccountantKind {
    /// Privacy-loss distributions: the least noise that is proven to suffice
    Pld,
    /// Rényi divergences: the classical bound, more noise
    Rdp,
}

/// Arguments of other methods are refused, not passed over.
pub(super) fn refuse_strangers(args: &Args) -> Result<()> {
    let (f, d, method) = (&args.ferret, &args.dense, args.method.as_str());
    let private = matches!(method, "dpsgd" | "dp-signsgd");
    if args.epsilon.is_some() {
        return Err(Error::usage(if private {
            format!(
                "--epsilon is FERRET's budget in nats of mutual information: {method} takes --dp-epsilon and --delta, or \
                 --noise-multiplier"
            )
        } else {
            format!("--epsilon: {method} is not private and has no budget")
        }));
    }
    let ferret = f.has_own() || f.silent != Silent::default() || f.release.is_some();
    if let Some(what) = args.ferret_k.given() {
        return Err(Error::usage(format!("{what} belongs to ferret-k, not to {method}: leave it out")));
    }
    let given = [
        (ferret, "arguments of FERRET", false),
        (args.dp_epsilon.is_some() && !private, "--dp-epsilon", false),
        (d.noise_multiplier.is_some() && !private, "--noise-multiplier", false),
        (d.accountant.is_some() && !private, "--accountant", false),
        (d.clipping.is_some() && !private, "--clipping", false),
        (d.clip_function.is_some() && !private, "--clip-function", false),
        (f.groups.is_some() && !private, "--groups", false),
        (d.scales.asked(), "--scales and --scales-from", method == "dpsgd"),
        (d.variant.is_some(), "--variant", method == "signsgd"),
        (d.bits.is_some(), "--bits", method == "qsgd"),
    ];
    match given.iter().find(|g| g.0 && !g.2) {
        Some((_, what, _)) => Err(Error::usage(format!("--method {method} has no use for {what}: leave it out"))),
        None => Ok(()),
    }
}

/// The settings that the arguments and the data make.
pub(super) fn settings(args: &Args, config: &Config, records: u64, bars: &Bars) -> Result<list::Method> {
    let steps = mi::run_steps(records, args.batch, args.epochs)?;
    let d = &args.dense;
    let privacy = || -> Result<Privacy> {
        Ok(Privacy {
            noise_multiplier: noise_multiplier(args, args.batch as f64 / records as f64, steps.into(), bars)?,
            clip: args.clip,
            clip_rule: d.clip_function.unwrap_or_default(),
            clip_style: d.clipping.unwrap_or_default(),
            clip_groups: args.ferret.groups.map(|n| n.try_into().unwrap_or(u32::MAX)),
        })
    };
    let method = match args.method.as_str() {
        "dpsgd" => Method::Dpsgd(privacy()?),
        "dp-signsgd" => Method::DpSignsgd(privacy()?),
        "signsgd" => Method::Signsgd { variant: d.variant.unwrap_or_default() },
        "qsgd" => Method::Qsgd { bits: d.bits.unwrap_or(8) },
        _ => Method::Nonprivate,
    };
    let (plain, route) = (method == Method::Nonprivate, args.route.unwrap_or_default());
    let layout = &args.tune.layout(config)?;
    let tuned = args.tune.tune.ids(layout)?;
    let usual = rates::dense(&method, route, args.batch, layout.scalars(), layout.scalars_of(&tuned));
    let settings = Settings {
        method,
        tune: args.tune.tune.clone(),
        adapter: args.tune.adapter(config)?,
        scales: d.scales.given(),
        records,
        batch: args.batch,
        epochs: args.epochs,
        steps: None,
        sampler: args.sampler,
        micro_batch: args.micro_batch,
        route,
        learning_rate: args.learning_rate.unwrap_or(usual),
        schedule: args.schedule(if plain { ScheduleKind::Linear } else { ScheduleKind::Constant }),
        weight_decay: args.decay(route),
        seed: args.seed,
    };
    settings.check()?;
    settings.scales.as_ref().map_or(Ok(()), |scales| scales.check_count(tuned.len()))?;
    if let Some(privacy) = settings.method.privacy() {
        privacy.clipping(layout, &tuned)?;
    }
    Ok(list::Method::Dense(settings))
}

/// The noise that was asked for, or the least that the accountant proves to suffice for the planned steps.
pub(super) fn noise_multiplier(args: &Args, sampling_rate: f64, steps: u64, bars: &Bars) -> Result<f64> {
    match (args.dp_epsilon, args.dense.noise_multiplier) {
        (_, Some(_)) if args.dense.accountant.is_some() => {
            Err(Error::usage("--accountant finds the noise for --dp-epsilon: leave it out with --noise-multiplier"))
        }
        (_, Some(sigma)) => Ok(sigma),
        (Some(epsilon), None) => {
            bars.begin("finding the noise", 0);
            let found = calibrate::noise_multiplier(epsilon, args.delta, sampling_rate, steps)?;
            Ok(match args.dense.accountant.unwrap_or(AccountantKind::Pld) {
                AccountantKind::Pld => found.pld.upper,
                AccountantKind::Rdp => found.rdp,
            })
        }
        (None, None) => Err(Error::usage(format!(
            "--method {} needs --dp-epsilon E (with --delta) or --noise-multiplier S",
            args.method
        ))),
    }
}
