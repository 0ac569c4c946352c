//! The best run for a budget: batch, bits on it and flips, and what other methods would make of the same budget.

use super::Args;
use crate::cli::common::working;
use crate::error::Result;
use crate::fsio;
use crate::privacy::Sampler;
use crate::privacy::guarantee::{Neighbours, number, up};
use crate::privacy::mi::planner::{Ask, Choice, Limit, NoisySums};
use crate::privacy::mi::{self, Accounting, bits};
use serde_json::json;

/// Plan without a method: find what to run.
pub fn run(args: &Args) -> Result<()> {
    let ask = Ask {
        records: args.records,
        epochs: args.epochs,
        nats: args.nats,
        eps_delta: args.dp_epsilon.map(|eps| (eps, args.delta)),
        noise: args.gradient_noise,
    };
    let (choices, sums) = {
        let _shown = working("planning", args.quiet);
        (ask.choices()?, ask.noisy_sums()?)
    };
    let best = choices[0];
    let line = train_line(&ask, &best);
    if args.json {
        let out = json!({
            "best": best, "train": line, "others": choices[1..], "gradient_noise": ask.noise, "dense": sums, "given": mi::GIVEN,
        });
        return fsio::print(&format!("{out}\n"));
    }
    fsio::print(&text(&ask, &choices, &sums, &line))
}

/// The command. Its budget is the one asked for, or just above what the bits cost, so that rounding loses none of them.
fn train_line(ask: &Ask, c: &Choice) -> String {
    let nats = ask.nats.map_or_else(|| number(c.nats * (1.0 + 1e-6)), |nats| nats.to_string());
    let release = if c.flip > 0.0 { format!("--release rr --flip {} ", c.flip) } else { String::new() };
    let sampler = if c.sampler == Sampler::Uniform { "uniform" } else { "poisson" };
    let delta = ask.eps_delta.map_or(String::new(), |(_, delta)| format!("--delta {delta} "));
    format!(
        "ferret train --method ferret --groups {} --batch {} --epochs {} --sampler {sampler} {release}--batch-per step --mask exact \
         --accounting exact --epsilon {nats} {delta}--model MODEL --data FILE --out FOLDER",
        c.bits, c.batch, ask.epochs
    )
}

fn text(ask: &Ask, choices: &[Choice], sums: &[NoisySums], train: &str) -> String {
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
    line("each flipped with probability", best.flip.to_string());
    line("batches that release", format!("{} of {}", best.batches, best.most_batches));
    line("spends", format!("{} nats, {}", number(best.nats), mi::GIVEN));
    if let Some(epsilon) = best.epsilon {
        let by = if best.bits == 1 { "exactly" } else { "by RDP; PLD may allow fewer flips" };
        line("and proves", format!("epsilon {:.4}, {by}, {}", up(epsilon, 4), Neighbours::ReplaceByEmpty));
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
    out += &format!("\nTo run it:\n  {train}\n");
    out += "\nThe best at other batch sizes\n\n     batch  bits      flip   batches     worth\n";
    for c in &choices[1..] {
        out += &format!("  {:>8}  {:>4}  {:>8}  {:>8}  {:>8.0}\n", c.batch, c.bits, c.flip, c.batches, c.equivalents);
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
    out += "\nOther methods within the same budget, Poisson batches, all parameters: DPSGD's noise multiplier, and FERRET-k with the same\n\
            noise and so many signs a step (k public directions, clipped together, noise once). Worth is in the same clean bits; DPSGD's is\n\
            at most that, and takes a number for every parameter\n\n\
            \x20    batch     steps     noise       nats     signs  FERRET-k     DPSGD\n";
    for d in sums {
        out += &format!(
            "  {:>8}  {:>8}  {:>8}  {:>9}  {:>8}  {:>8.0}  {:>8.0}\n",
            d.batch,
            d.steps,
            d.noise_multiplier,
            number(d.nats),
            d.signs,
            d.ferret_k,
            d.dpsgd
        );
    }
    out
}
