//! What a step's exchange between ranks costs: bytes on the wire, and the time of a network for them.

use super::Args;
use crate::error::{Error, Result};
use crate::model::checkpoint;
use crate::ranks::wire::{Network, Traffic};

/// Flags of a run on many ranks.
#[derive(clap::Args, Debug)]
pub(super) struct RankArgs {
    /// Also tell what a step sends on R ranks (MPI)
    ///
    /// With --model beside what a whole update would send.
    #[arg(long, value_name = "R", requires = "method")]
    ranks: Option<u64>,
    /// With --ranks: the network, like 10gbit,50us
    ///
    /// Its bits a second and the time of a message, to predict the time of a step's exchange.
    #[arg(long, value_name = "BITS,TIME", requires = "ranks")]
    network: Option<Network>,
    /// With --ranks: records computed on at once, as in `train`
    #[arg(long, value_name = "N", default_value_t = 8)]
    micro_batch: u64,
}

/// What is summed over ranks in a step.
pub(super) enum Sums {
    /// An inner product a fired group and micro-batch; so many groups fire.
    Fired(f64),
    /// So many sums of sketches.
    Sketches(u64),
    /// Every tuned parameter.
    Whole,
}

/// What a rank receives in a step.
#[derive(Debug, serde::Serialize)]
pub(super) struct Exchange {
    ranks: u64,
    bytes: f64,
    messages: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_update_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_update_seconds: Option<f64>,
}

/// The exchange of a step on as many ranks as were asked for; none where none were.
pub(super) fn of(args: &Args, batch: u64, sums: Sums) -> Result<Option<Exchange>> {
    let RankArgs { ranks, network, micro_batch } = args.ranks;
    let Some(ranks) = ranks else { return Ok(None) };
    if ranks == 0 || micro_batch == 0 {
        return Err(Error::usage("--ranks and --micro-batch count from 1"));
    }
    let parameters = match &args.model {
        None => None,
        Some(model) => {
            let layout = args.tune.layout(&checkpoint::read_config(model)?)?;
            Some(layout.scalars_of(&args.tune.tune.ids(&layout)?) as u64)
        }
    };
    let whole = parameters.map(|parameters| Traffic::sums(ranks, parameters, 4));
    let own = match (sums, whole) {
        (Sums::Fired(groups), _) => Traffic::parts(ranks, groups * batch.div_ceil(micro_batch) as f64),
        (Sums::Sketches(k), _) => Traffic::sums(ranks, k, 8),
        (Sums::Whole, Some(whole)) => whole,
        (Sums::Whole, None) => {
            return Err(Error::usage("--ranks: how much a whole update sends is the model's size: give --model"));
        }
    };
    let seconds = |traffic: Traffic| network.map(|network| traffic.seconds(network));
    Ok(Some(Exchange {
        ranks,
        bytes: own.bytes,
        messages: own.messages,
        seconds: seconds(own),
        whole_update_bytes: whole.map(|w| w.bytes),
        whole_update_seconds: whole.and_then(seconds),
    }))
}

impl Exchange {
    /// As lines of text.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "\nOn {} ranks, a rank receives in a step\n  {} in {} messages, one after the other{}\n",
            self.ranks,
            bytes(self.bytes),
            self.messages,
            time(self.seconds)
        );
        if let Some(whole) = self.whole_update_bytes.filter(|whole| *whole != self.bytes) {
            out += &format!("  {} if it were a whole update{}\n", bytes(whole), time(self.whole_update_seconds));
        }
        out
    }
}

fn bytes(n: f64) -> String {
    match n {
        n if n < 1e4 => format!("{n:.0} bytes"),
        n if n < 1e7 => format!("{:.1} kB", n / 1e3),
        n => format!("{:.0} MB", n / 1e6),
    }
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or(String::new(), |s| format!(": predicted {:.3} ms on this network", 1e3 * s))
}
