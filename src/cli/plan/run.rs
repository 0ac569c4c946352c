//! The run as `train` would make it, with the same flags: its bits, its noise and what it promises.

use super::Args;
use crate::cli::train::ReleaseKind;
use crate::error::{Error, Result};
use crate::method::ferret::{BatchPer, Cuts, MaskKind, Noise, Release, Settings};
use crate::privacy::Sampler;
use crate::privacy::guarantee::Guarantee;
use crate::privacy::mi::Request;
use crate::privacy::statement::Circumstances;

/// Flags that decide what is released, as in `train`.
#[derive(clap::Args, Debug)]
pub(super) struct ReleaseArgs {
    /// What a fire sends, as in `train`
    ///
    /// FERRET: the bit itself, the bit by randomised response, or a scalar with Gaussian noise.
    #[arg(long, value_name = "KIND", value_enum, default_value = "bit")]
    release: ReleaseKind,
    /// rr: probability of a flip; or --dp-epsilon to have it found
    #[arg(long, value_name = "P", conflicts_with = "dp_epsilon")]
    flip: Option<f64>,
    /// gaussian: standard deviation of the noise in units of C; or --dp-epsilon to have it found
    #[arg(long, value_name = "S", conflicts_with = "dp_epsilon")]
    dither: Option<f64>,
    /// FERRET: whether fired groups share a step's batch or each bit draws its own [default: step; bit with --release rr or gaussian]
    #[arg(long, value_enum)]
    batch_per: Option<BatchPer>,
    /// FERRET: exactly as many bits as the budget pays for, or each group by itself, as in the paper
    #[arg(long, value_enum, default_value = "exact")]
    mask: MaskKind,
    /// How batches are drawn
    #[arg(long, value_enum, default_value = "poisson")]
    sampler: Sampler,
    /// Seed of the public randomness: which bits share a batch depends on it
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl ReleaseArgs {
    /// Whether bits are hidden.
    pub(super) fn is_noisy(&self) -> bool {
        self.release != ReleaseKind::Bit
    }

    /// How batches are drawn.
    pub(super) fn sampler(&self) -> Sampler {
        self.sampler
    }

    /// Whether any of them was given.
    pub(super) fn is_given(&self) -> bool {
        self.is_noisy()
            || self.flip.is_some()
            || self.dither.is_some()
            || self.batch_per.is_some()
            || self.mask != MaskKind::default()
            || self.sampler != Sampler::default()
    }
}

/// Slots up to which a run is drawn to see what fires: all in a fraction of a second.
const MOST: u64 = 2_000_000;

/// What a run would be.
#[derive(Debug, serde::Serialize)]
pub(super) struct PlannedRun {
    /// Bits, or scalars.
    bits: u64,
    /// Batches they are computed on.
    batches: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    flip: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dither: Option<f64>,
    /// What the statement would promise.
    guarantees: Vec<Guarantee>,
}

/// The run that `train` would make of the same flags; none where it is too large to be drawn here and no flag asks for it.
pub(super) fn planned(args: &Args, method: &str, request: Request) -> Result<Option<PlannedRun>> {
    let given = &args.release;
    let slots =
        request.groups.saturating_mul(request.records.div_ceil(request.batch.max(1)).saturating_mul(request.epochs));
    if slots > MOST && !given.is_given() {
        return Ok(None);
    }
    let epochs =
        u32::try_from(request.epochs).map_err(|_| Error::usage(format!("--epochs {} are too many", request.epochs)))?;
    let mut settings = Settings {
        epsilon: request.epsilon,
        accounting: args.accounting,
        records: request.records,
        batch: request.batch,
        epochs,
        mask: given.mask,
        sampler: given.sampler,
        batch_per: given.batch_per.unwrap_or(if given.is_noisy() { BatchPer::Bit } else { BatchPer::Step }),
        seed: given.seed,
        ..Settings::paper(method, Cuts::try_from(format!("{}x1", request.groups)).map_err(Error::Usage)?)
    };
    settings.check()?;
    let found = |noise| match args.dp_epsilon {
        Some(eps) => settings.calibrated(noise, eps, args.delta, u32::MAX),
        None => {
            Err(Error::usage("--release rr or gaussian needs --flip or --dither, or --dp-epsilon to have it found"))
        }
    };
    settings.release = match (given.release, given.flip, given.dither) {
        (ReleaseKind::Bit, None, None) => Release::Bit,
        (ReleaseKind::Rr, Some(flip), None) => Release::Rr { flip, unbiased: false },
        (ReleaseKind::Rr, None, None) => found(Noise::Flips { unbiased: false })?,
        (ReleaseKind::Gaussian, None, Some(dither)) => Release::Gaussian { dither },
        (ReleaseKind::Gaussian, None, None) => found(Noise::Dither)?,
        _ => return Err(Error::usage("--flip belongs to --release rr, and --dither to --release gaussian")),
    };
    settings.check()?;
    let fires = settings.shared(&settings.fires(u32::MAX));
    let statement = settings.statement(settings.steps(), args.delta, Circumstances::default())?;
    let (flip, dither) = match settings.release {
        Release::Bit => (None, None),
        Release::Rr { flip, .. } => (Some(flip), None),
        Release::Gaussian { dither } => (None, Some(dither)),
    };
    Ok(Some(PlannedRun {
        bits: fires.iter().map(|f| f.steps * u64::from(f.bits)).sum(),
        batches: fires.iter().map(|f| f.steps).sum(),
        flip,
        dither,
        guarantees: statement.claims.iter().map(|c| c.guarantee).collect(),
    }))
}

impl PlannedRun {
    /// As lines of text.
    pub(super) fn text(&self) -> String {
        let mut out = format!("\nAs `ferret train` would run it: {} bits on {} batches", self.bits, self.batches);
        if let Some(flip) = self.flip {
            out += &format!(", each flipped with probability {flip:.6}");
        }
        if let Some(dither) = self.dither {
            out += &format!(", each with noise of {dither:.4} C");
        }
        out += "\n";
        for guarantee in &self.guarantees {
            out += &format!("  {guarantee}\n");
        }
        out
    }
}
