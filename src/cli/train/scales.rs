//! Public scales, of ferret-k and dpsgd: given, or from public text.

use super::Args;
use crate::cli::bars::Bars;
use crate::cli::ranks;
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::Stored;
use crate::method::{Method, Scales};
use crate::model::Weights;
use crate::progress::Progress;
use std::path::{Path, PathBuf};

/// How each tensor's gradient counts before it is clipped.
#[derive(clap::Args, Debug)]
pub(super) struct ScalesArgs {
    /// dpsgd, ferret-k: public records or text, whose gradients at the base model give every tuned tensor a scale before clipping. For ferret-k in a study 12 % less perplexity
    /// at epsilon 0.5, 4 % at 1, 5 % more at 8, with a rate 1.4 times as large. Never the records themselves: the promise rests on it [default: no scales]
    #[arg(long, value_name = "FILE", conflicts_with = "scales")]
    scales_from: Option<PathBuf>,
    /// dpsgd, ferret-k: the scales themselves, one whole number e for each tuned tensor in the order of `ferret inspect`: 2^(e/4). Public numbers, as all settings are
    #[arg(long, value_name = "E,E,..", value_delimiter = ',', allow_hyphen_values = true)]
    scales: Option<Vec<i8>>,
}

impl ScalesArgs {
    /// Whether any are asked for.
    pub(super) fn asked(&self) -> bool {
        self.scales_from.is_some() || self.scales.is_some()
    }

    /// Those that are given as such.
    pub(super) fn given(&self) -> Option<Scales> {
        self.scales.clone().map(Scales)
    }
}

/// The method with scales from the records that --scales-from names, where it does.
pub(super) fn scaled(
    args: &Args,
    method: Method,
    base: &Weights<Stored>,
    records: &Dataset,
    open: impl Fn(&Path) -> Result<Dataset>,
    bars: &Bars,
) -> Result<Method> {
    let Some(path) = &args.dense.scales.scales_from else { return Ok(method) };
    // Read as the records are, so that those of the same text have the same tokens.
    let public = open(path)?;
    bars.begin("gradients of the public text", 0);
    let scales = Scales::measure(&method, base, &public.examples, records.records())
        .map_err(|e| Error::file(path, e.to_string()))?;
    bars.end();
    if ranks::is_first() && !args.quiet {
        let list: Vec<String> = scales.0.iter().map(i8::to_string).collect();
        fsio::tell(&format!("note: scales from {}: --scales={}", path.display(), list.join(",")));
    }
    method.with_scales(scales)
}
