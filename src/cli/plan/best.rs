//! The best run for a budget: batch, bits on it and flips, and what other methods would make of the same budget.

use super::Args;
use crate::cli::common::working;
use crate::error::{Error, Result};
use crate::fsio;
use crate::privacy::guarantee::{number, up};
use crate::privacy::mi::planner::{Ask, Choice, Limit};
use crate::privacy::mi::{self, Accounting, bits, gaussian};
use crate::privacy::statement::Sampler;
use crate::privacy::{Accountant, Event, Rdp};
use serde_json::json;

/// Batch sizes at which the dense methods are shown.
const DENSE: [u64; 5] = [10, 50, 200, 1000, 5000];

/// What a dense method would need at one batch size.
#[derive(Debug, serde::Serialize)]
struct Dense {
    batch: u64,
    steps: u64,
    /// For the budget in nats, and by RDP for (epsilon, delta); the larger is what is needed.
    noise_multiplier: f64,
    /// Signs a step at which FERRET-k with this noise makes half of its greatest progress.
    half_way_signs: f64,
}

/// Plan without a method: find what to run.
pub fn run(args: &Args) -> Result<()> {
    let ask = Ask {
        records: args.records,
        epochs: args.epochs,
        nats: args.nats,
        eps_delta: args.dp_epsilon.map(|eps| (eps, args.delta)),
        noise: args.gradient_noise,
    };
    let (choices, dense) = {
        let _shown = working("planning", args.quiet);
        let dense =
            DENSE.into_iter().filter(|b| *b <= ask.records).map(|b| dense(&ask, b)).collect::<Result<Vec<_>>>()?;
        (ask.choices()?, dense)
    };
    let best = choices[0];
    let line = train_line(&best, args.epochs);
    if args.json {
        let out = json!({
            "best": best, "train": line, "others": choices[1..], "gradient_noise": ask.noise, "dense": dense, "given": mi::GIVEN,
        });
        return fsio::print(&format!("{out}\n"));
    }
    fsio::print(&text(&ask, &choices, &dense, &line))
}

/// The command. Train's --epsilon is the paper's count, s ln 2 a bit; half a bit more keeps rounding from losing one.
fn train_line(c: &Choice, epochs: u64) -> String {
    let bits = c.batches as f64 * f64::from(c.bits) + 0.5;
    let epsilon = bits * c.sampling_rate * std::f64::consts::LN_2;
    let release = if c.flip > 0.0 { format!("--release rr --flip {:.6} ", c.flip) } else { String::new() };
    let sampler = if c.sampler == Sampler::Uniform { "uniform" } else { "poisson" };
    format!(
        "ferret train --method ferret --groups {} --batch {} --epochs {epochs} --sampler {sampler} {release}--batch-per step --mask \
         exact --epsilon {epsilon} --model MODEL --data FILE --out FOLDER",
        c.bits, c.batch
    )
}

fn dense(ask: &Ask, batch: u64) -> Result<Dense> {
    let steps = mi::steps(ask.records, batch, ask.epochs)?;
    let rate = batch as f64 / ask.records as f64;
    let enough = |z: f64| -> Result<bool> {
        if ask.nats.is_some_and(|nats| gaussian::divergence(rate, z).upper * steps as f64 > nats) {
            return Ok(false);
        }
        let Some((eps, delta)) = ask.eps_delta else { return Ok(true) };
        let event = Event::SubsampledGaussian { noise_multiplier: z, sampling_rate: rate, steps };
        match Rdp::default().epsilon(&event, delta) {
            Ok(b) => Ok(b.upper <= eps),
            Err(Error::Privacy(_)) => Ok(false),
            Err(e) => Err(e),
        }
    };
    let (mut low, mut high) = ((0.05_f64).ln(), (1e7_f64).ln());
    while high - low > 2e-3 {
        let middle = 0.5 * (low + high);
        if enough(middle.exp())? { high = middle } else { low = middle }
    }
    let (z, b, x) = (high.exp(), batch as f64, ask.noise);
    Ok(Dense { batch, steps, noise_multiplier: z, half_way_signs: b * b * (1.0 + x / b) / (z * z * (1.0 + x)) })
}

fn text(ask: &Ask, choices: &[Choice], dense: &[Dense], train: &str) -> String {
    let best = choices[0];
    let mut budget = Vec::new();
    budget.extend(ask.nats.map(|nats| format!("{nats} nats of mutual information")));
    budget.extend(ask.eps_delta.map(|(eps, delta)| format!("({eps}, {delta:e})-differential privacy")));
    let mut out = format!(
        "the best FERRET run on {} records, {} passes, within {}\n",
        ask.records,
        ask.epochs,
        budget.join(" and ")
    );
    let mut line = |name: &str, value: String| out += &format!("  {name:<42}{value}\n");
    let drawn = match best.sampler {
        Sampler::Poisson => format!("Poisson: {:.0} % of the batches are empty", 100.0 * (-(best.batch as f64)).exp()),
        _ => "uniform: only nats are asked, and no batch is empty".to_owned(),
    };
    line("batch B", format!("{}, {drawn}", best.batch));
    line("bits on each batch", best.bits.to_string());
    line("each flipped with probability", number(best.flip));
    line("batches that release", format!("{} of {}", best.batches, best.most_batches));
    line("spends", format!("{} nats, {}", number(best.nats), mi::GIVEN));
    if let Some(epsilon) = best.epsilon {
        line("and proves, by RDP", format!("epsilon {:.4}; PLD may allow fewer flips", up(epsilon, 4)));
    }
    line("worth", format!("{:.0} clean bits, for gradient noise x = {}", best.equivalents, ask.noise));
    line(
        "limited by",
        match best.limit {
            Limit::Budget => "the budget: more of it would buy fewer flips, or more bits".into(),
            Limit::Compute => {
                "compute: all gradients are used, and flips cost little; more passes would buy more".into()
            }
        },
    );
    out += &format!("\nTo run it (train's --epsilon counts s ln 2 nats a bit, as the paper does):\n  {train}\n");
    out += "\nThe best at other batch sizes\n\n     batch  bits      flip   batches     worth\n";
    for c in &choices[1..] {
        out += &format!(
            "  {:>8}  {:>4}  {:>8}  {:>8}  {:>8.0}\n",
            c.batch,
            c.bits,
            number(c.flip),
            c.batches,
            c.equivalents
        );
    }
    if let Some(nats) = ask.nats {
        out += "\nClean bits at B = 50, one a batch\n";
        let rate = (50.0 / ask.records as f64).min(1.0);
        for (name, accounting, one) in [
            ("the paper's accounting", Accounting::Paper, mi::charge(rate, 1)),
            ("exact accounting", Accounting::Exact, bits::clean(rate, 1)),
        ] {
            let bought = (nats / one).floor();
            let worth = bought / (1.0 + ask.noise / 50.0);
            out += &format!("  {name:<42}{bought} bits, worth {worth:.0}");
            out += if accounting == Accounting::Paper { ": s ln 2 a bit\n" } else { "\n" };
        }
    }
    out += "\nOther methods within the same budget, Poisson batches: DPSGD's noise multiplier, and the signs a step at which FERRET-k\n\
            (k public directions, clipped together, the same noise once) makes half of its greatest progress, 2/pi of DPSGD's\n\n\
            \x20    batch     steps     noise     signs\n";
    for d in dense {
        out += &format!(
            "  {:>8}  {:>8}  {:>8.4}  {:>8.0}\n",
            d.batch,
            d.steps,
            up(d.noise_multiplier, 4),
            d.half_way_signs.max(1.0)
        );
    }
    out
}
