//! Methods with one release a step, of all that is tuned: noised sums, and updates without any promise.

use super::Args;
use super::exchange::{self, Sums};
use crate::cli::common::working;
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::{dense, ferret_k};
use crate::model::checkpoint;
use crate::privacy::Sampler;
use crate::privacy::guarantee::{Neighbours, number, up};
use crate::privacy::mi;
use crate::privacy::{Accountant, Event, Pld, calibrate};
use crate::study::table::thousands;
use serde_json::json;

/// Methods without a budget: how much is computed, and that nothing is promised.
pub(super) fn open(args: &Args, method: dense::Method, batch: u64) -> Result<()> {
    let name = method.name();
    if args.epsilon.or(args.nats).or(args.dp_epsilon).or(args.noise_multiplier).is_some() {
        return Err(Error::Usage(format!("--method {name} is not private and has no budget: leave it out")));
    }
    let steps = mi::steps(args.records, batch, args.epochs)?;
    let (rate, gradients) = (batch as f64 / args.records as f64, steps.saturating_mul(batch));
    let bits = match &args.model {
        None => None,
        Some(model) => {
            let layout = args.tune.layout(&checkpoint::read_config(model)?)?;
            Some(method.bits_per_update(&layout, &args.tune.tune.ids(&layout)?))
        }
    };
    let exchange = exchange::of(args, batch, Sums::Whole)?;
    if args.json {
        let mut out = json!({
            "method": name, "private": false, "steps": steps, "sampling_rate": rate, "record_gradients": gradients,
        });
        if let Some(bits) = bits {
            out["bits_per_update"] = json!(bits);
        }
        if let Some(exchange) = &exchange {
            out["exchange"] = json!(exchange);
        }
        return fsio::print(&format!("{out}\n"));
    }
    let bits = bits.map_or(String::new(), |bits| format!("\x20 bits an update           {}\n", thousands(bits)));
    fsio::print(&format!(
        "{name}, which promises nothing: what the records say may be read off the model\n\
         \x20 steps                    {steps}\n\
         \x20 sampling rate            {rate}\n\
         \x20 gradients of a record    {}, on average\n{bits}{}",
        thousands(gradients),
        exchange.map_or(String::new(), |e| e.text())
    ))
}

/// dpsgd, dp-signsgd and ferret-k: noise on a clipped sum, once a step.
pub(super) fn noised(args: &Args, method: &str, epsilon: f64, batch: u64) -> Result<()> {
    let steps = mi::steps(args.records, batch, args.epochs)?;
    let rate = batch as f64 / args.records as f64;
    let needed = {
        let _shown = working("finding the noise", args.quiet);
        calibrate::noise_multiplier(epsilon, args.delta, rate, steps)?
    };
    let (rdp, pld) = (needed.rdp, needed.pld.upper);
    let event = Event::SubsampledGaussian { noise_multiplier: pld, sampling_rate: rate, steps };
    let nats = mi::charge_event(&event, Sampler::Poisson)?.nats;
    // FERRET-k: four fifths of its greatest progress, see the planner.
    let signs = (method == "ferret-k").then(|| mi::signs_per_step(batch, pld, args.gradient_noise));
    let exchange = exchange::of(args, batch, sums(method, batch, pld))?;
    if args.json {
        let mut out = json!({
            "noise_multiplier_rdp": rdp, "noise_multiplier_pld": pld, "steps": steps, "sampling_rate": rate,
            "epsilon": epsilon, "delta": args.delta, "nats_spent": nats,
        });
        if let Some(signs) = signs {
            out["signs_per_step"] = json!(signs);
        }
        if let Some(exchange) = &exchange {
            out["exchange"] = json!(exchange);
        }
        return fsio::print(&format!("{out}\n"));
    }
    let signs = signs.map_or(String::new(), |signs| {
        format!(
            "\x20 signs a step             {signs}, any number for the same privacy; so many make four fifths of the progress at gradient noise \
             x = {}\n\x20 levels a step            {}, of two bits, where none is named\n",
            args.gradient_noise,
            ferret_k::Settings::usual_bits(ferret_k::Release::default(), batch, pld)
        )
    });
    fsio::print(&format!(
        "{method} at ({}, {:e})-differential privacy, {}, Poisson sampling\n\
         \x20 steps                    {steps}\n\
         \x20 sampling rate            {rate}\n\
         \x20 noise multiplier, RDP    {:.4}\n\
         \x20 noise multiplier, PLD    {:.4}   (proven to suffice; below {:.4} proven not to)\n\
         \x20 tells a record, at most  {} nats with PLD's noise, {}\n{signs}{}",
        epsilon,
        args.delta,
        Neighbours::ReplaceByEmpty,
        up(rdp, 4),
        up(pld, 4),
        needed.pld.lower,
        number(nats),
        mi::GIVEN,
        exchange.map_or(String::new(), |e| e.text())
    ))
}

/// What ranks sum in a step: of FERRET-k as many numbers as `train` takes by itself.
fn sums(method: &str, batch: u64, noise: f64) -> Sums {
    match method {
        ferret_k::NAME => {
            Sums::Sketches(ferret_k::Settings::usual_bits(ferret_k::Release::default(), batch, noise).into())
        }
        _ => Sums::Whole,
    }
}

/// What the noise that was named costs.
pub(super) fn with_noise(args: &Args, method: &str, noise: f64, batch: u64) -> Result<()> {
    let steps = mi::steps(args.records, batch, args.epochs)?;
    let rate = batch as f64 / args.records as f64;
    let event = Event::SubsampledGaussian { noise_multiplier: noise, sampling_rate: rate, steps };
    let nats = mi::charge_event(&event, args.release.sampler())?.nats;
    let epsilon = {
        let _shown = working("accounting", args.quiet);
        Pld::default().epsilon(&event, args.delta)?
    };
    let exchange = exchange::of(args, batch, sums(method, batch, noise))?;
    if args.json {
        let mut out = json!({
            "noise_multiplier": noise, "steps": steps, "sampling_rate": rate, "epsilon_spent": epsilon.upper,
            "epsilon_at_least": epsilon.lower, "delta": args.delta, "nats_spent": nats,
        });
        if let Some(exchange) = &exchange {
            out["exchange"] = json!(exchange);
        }
        return fsio::print(&format!("{out}\n"));
    }
    fsio::print(&format!(
        "{method} with noise multiplier {noise}, Poisson sampling\n\
         \x20 steps                    {steps}\n\
         \x20 sampling rate            {rate}\n\
         \x20 spends                   ({}, {:e})-differential privacy, {}\n\
         \x20 tells a record, at most  {} nats, {}\n{}",
        up(epsilon.upper, 4),
        args.delta,
        Neighbours::ReplaceByEmpty,
        number(nats),
        mi::GIVEN,
        exchange.map_or(String::new(), |e| e.text())
    ))
}
