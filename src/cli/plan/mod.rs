//! `ferret plan`: what a run will release and spend, before any record is touched.

mod best;
mod exchange;
mod headroom;
mod run;
mod whole;

use super::common::{TuneArgs, grouping, progress};
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::groups::{Grouping, Groups};
use crate::method::{dense, list};
use crate::model::checkpoint;
use crate::privacy::guarantee::{number, up};
use crate::privacy::mi::planner::USUAL_NOISE;
use crate::privacy::mi::{self, Accounting, Plan, Request, bits};
use crate::privacy::{Accountant, Event, Fires, Pld};
use exchange::Sums;
use serde_json::json;
use std::ffi::OsString;

/// What a private run will release and spend, before it starts.
///
/// FERRET methods have a budget in nats of mutual information (--epsilon, or --nats), and the plan shows the firing probability it
/// buys; dpsgd, dp-signsgd and ferret-k have an (epsilon, delta) (--dp-epsilon), and the plan shows the noise it needs. Steps are
/// epochs times ceil(records / batch). Without a method, give --nats, --dp-epsilon or both: the best batch, bits a batch and flip rate are found, with the command to run.
/// Nats are about one record given all others; copies of a record add up.
/// With --data FILE in place of --records, every flag of `train` is taken, and the plan is of that very run: `train --dry-run`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret plan --method ferret-max --epsilon 0.5 --records 10000 --batch 50 --epochs 5 --model openai-community/gpt2
  ferret plan --method ferret-2 --epsilon 0.5 --records 10000 --batch 50 --epochs 5 --group-count 2 --json
  ferret plan --method dpsgd --dp-epsilon 0.5 --delta 1e-5 --records 10000 --batch 50 --epochs 5
  ferret plan --method ferret-k --dp-epsilon 1 --delta 1e-5 --records 10000 --batch 50 --epochs 5
  ferret plan --method nonprivate --records 10000 --batch 50 --epochs 5 --model openai-community/gpt2
  ferret plan --method dpsgd --dp-epsilon 1 --model my-model --data records.jsonl --batch 50 --clipping per-layer
  ferret plan --nats 1 --records 10000 --epochs 3
  ferret plan --nats 1 --dp-epsilon 1 --delta 1e-5 --records 10000 --epochs 3")]
pub struct Args {
    /// As in `train`; without one the best run is looked for
    ///
    /// ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, ferret, ferret-k, dpsgd, dp-signsgd, nonprivate, signsgd or qsgd.
    #[arg(long, required_unless_present_any = ["nats", "dp_epsilon"])]
    method: Option<String>,
    /// FERRET: budget in nats, as in `train`; the same as --nats
    #[arg(long, value_name = "NATS", requires = "method", conflicts_with = "nats")]
    epsilon: Option<f64>,
    /// How nats are counted, as in `train`
    ///
    /// FERRET: charge s ln 2 nats a bit as the paper does, or what the bits of a batch can really tell.
    #[arg(long, value_name = "COUNT", value_enum, default_value = "paper")]
    accounting: Accounting,
    /// Budget in nats of mutual information; without a method, of the best run
    #[arg(long, value_name = "NATS")]
    nats: Option<f64>,
    /// The epsilon of (epsilon, delta)
    ///
    /// FERRET with --release rr or gaussian: find the flip or dither beside --epsilon; without a method: the budget of the best run.
    #[arg(long, visible_alias = "target-epsilon", value_name = "E")]
    dp_epsilon: Option<f64>,
    #[command(flatten)]
    release: run::ReleaseArgs,
    /// dpsgd, dp-signsgd, ferret-k: this noise instead of an epsilon, whose epsilon is then found
    #[arg(long, value_name = "S", requires = "method", conflicts_with_all = ["epsilon", "nats", "dp_epsilon"])]
    noise_multiplier: Option<f64>,
    /// For the best run and ferret-k: variance of one record's gradient over the square of the mean gradient
    #[arg(long, value_name = "X", default_value_t = USUAL_NOISE)]
    gradient_noise: f64,
    /// The delta of (epsilon, delta)
    ///
    /// For FERRET, of what flips would buy.
    #[arg(long, visible_alias = "target-delta", value_name = "D", default_value_t = 1e-5)]
    delta: f64,
    /// Number of records N
    #[arg(long, value_name = "N")]
    records: u64,
    /// Expected batch size B [default: 50, as in `train`; of the best run, what is best]
    #[arg(long, short = 'b', visible_alias = "per-device-train-batch-size", value_name = "B", requires = "method")]
    batch: Option<u64>,
    /// Passes over the records
    #[arg(long, short = 'e', visible_alias = "num-train-epochs", value_name = "N", default_value_t = 3)]
    epochs: u64,
    /// `embedded`, a folder, a hub name, or preset:NAME: its groups
    ///
    /// Take the groups from this model: `embedded`, a folder in the Hugging Face layout, a hub name, or preset:NAME for a shape by name.
    #[arg(long, short = 'm', value_name = "FOLDER|NAME", conflicts_with = "group_count")]
    model: Option<String>,
    /// Number of groups G, instead of a model
    #[arg(long, value_name = "G")]
    group_count: Option<u64>,
    #[command(flatten, next_help_heading = "With --model: what of it is tuned")]
    tune: TuneArgs,
    /// With --model: cut its tensors into so many groups
    #[arg(long, value_name = "N", requires = "model", conflicts_with = "bucket")]
    groups: Option<usize>,
    /// With --model: so many consecutive tensors a group
    #[arg(long, value_name = "N", requires = "model")]
    bucket: Option<usize>,
    #[command(flatten, next_help_heading = "On many machines")]
    ranks: exchange::RankArgs,
    /// Print one JSON object
    #[arg(long, help_heading = "Running")]
    json: bool,
    /// No progress
    #[arg(long, short = 'q', help_heading = "Running")]
    quiet: bool,
}

/// `arguments`; or, where they are of `plan` and name records, those of the `train` that they plan.
pub(super) fn expand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_data = |a: &OsString| {
        let a = a.to_string_lossy();
        a == "--data" || a.starts_with("--data=") || a.starts_with("-d")
    };
    if arguments.get(1).is_some_and(|verb| verb == "plan") && arguments.iter().any(is_data) {
        arguments[1] = "train".into();
        arguments.push("--dry-run".into());
    }
    arguments
}

/// Tell what the asked-for run, or the best one, releases and spends.
pub fn run(args: Args) -> Result<()> {
    let Some(method) = args.method.as_deref() else { return best::run(&args) };
    let batch = args.batch.unwrap_or(50);
    match method {
        "dpsgd" | "dp-signsgd" | "ferret-k" => {
            if let Some(noise) = args.noise_multiplier {
                return whole::with_noise(&args, method, noise, batch);
            }
            // Scripts of earlier versions say --epsilon.
            let epsilon = args.dp_epsilon.or(args.epsilon);
            let (Some(epsilon), None) = (epsilon, args.nats) else {
                return Err(Error::Usage(format!(
                    "--method {method} is planned by --dp-epsilon and --delta: give both"
                )));
            };
            whole::noised(&args, method, epsilon, batch)
        }
        name if name == "ferret" || Grouping::of_method(name).is_some() => {
            match (args.nats.or(args.epsilon), args.dp_epsilon) {
                (Some(nats), None) => ferret(&args, name, nats, batch),
                (Some(nats), Some(_)) if args.release.is_noisy() => ferret(&args, name, nats, batch),
                _ => Err(Error::Usage(format!(
                    "--method {method} is planned by --epsilon, its budget in nats: give that, or no method to look for the best run"
                ))),
            }
        }
        "nonprivate" => whole::open(&args, dense::Method::Nonprivate, batch),
        "signsgd" => whole::open(&args, dense::Method::Signsgd { variant: dense::Variant::default() }, batch),
        "qsgd" => whole::open(&args, dense::Method::Qsgd { bits: 8 }, batch),
        other => Err(Error::Usage(format!("--method {other:?}: expected {}", list::NAMES.join(", ")))),
    }
}

fn ferret(args: &Args, method: &str, epsilon: f64, batch: u64) -> Result<()> {
    let groups = group_count(args, method)?;
    let request = Request { epsilon, groups, records: args.records, batch, epochs: args.epochs };
    let plan = Plan::by(args.accounting, request)?;
    let headroom = match &args.model {
        None => None,
        Some(model) => {
            let layout = args.tune.layout(&checkpoint::read_config(model)?)?;
            Some(headroom::rows(&args.tune.tune.ids(&layout)?, args.accounting, request)?)
        }
    };
    let run = run::planned(args, method, request)?;
    let firing = plan.expected_bits / (plan.steps as f64 * plan.step_fires_probability);
    let exchange = exchange::of(args, batch, Sums::Fired(firing))?;
    let offers = offers(args.accounting, request, args.delta, args.quiet)?;
    if args.json {
        let mut out = serde_json::to_value(plan).map_err(|e| Error::Usage(e.to_string()))?;
        out["run"] = json!(run);
        out["would_buy"] = json!(offers);
        if let Some(exchange) = &exchange {
            out["exchange"] = json!(exchange);
        }
        if let Some(rows) = &headroom {
            out["headroom"] = json!(rows);
        }
        return fsio::print(&format!("{out}\n"));
    }
    let mut text =
        format!("{method} with a budget of {epsilon} nats of mutual information with a record, {}\n", mi::GIVEN);
    let mut line = |name: &str, value: String| text += &format!("  {name:<42}{value}\n");
    line("groups G", plan.groups.to_string());
    line("steps T", plan.steps.to_string());
    line("sampling rate s", plan.sampling_rate.to_string());
    line("firing probability p", format!("{:.4e}", plan.p));
    let ceiling = match args.accounting {
        Accounting::Paper => "ceiling G T s ln 2",
        Accounting::Exact => "ceiling, every group at every step",
    };
    line(ceiling, format!("{:.4} nats", plan.ceiling));
    line("bits released, on average", format!("{:.1}", plan.expected_bits));
    line("probability that a step fires", format!("{:.4}", plan.step_fires_probability));
    line(
        "without flips or noise",
        format!("(0, {:.4})-DP, Poisson sampling, and that is tight", up(plan.delta_zero, 4)),
    );
    line(
        "mean membership advantage, at most",
        format!("{:.4} in expectation, for coin-flip membership", up(plan.advantage_bound, 4)),
    );
    let on_average = if plan.clamped() { "" } else { ", on average over Bernoulli masks" };
    line("spent, the paper's s ln 2 a bit", format!("{} nats{on_average}", number(plan.nats_paper)));
    line("spent, exactly", format!("{} nats{on_average}, bits of a step on one batch", number(plan.nats_exact)));
    let one = match args.accounting {
        Accounting::Paper => mi::charge(plan.sampling_rate, 1),
        Accounting::Exact => bits::clean(plan.sampling_rate, 1),
    };
    line(
        "with an exact mask, never more than",
        format!("{} nats: {} bits with a batch each", number(one * plan.slots as f64), plan.slots),
    );
    if plan.clamped() {
        text += &format!(
            "\nThe budget is at or above the ceiling: every group fires at every step (p = 1), and {:.4} nats are spent, not {epsilon}.\n",
            plan.nats_spent
        );
    } else {
        text += "\nA Bernoulli mask meets the budget on average only: what a run really spends depends on its seed, and may be more.\n";
    }
    if args.accounting == Accounting::Exact {
        text += &format!("To run it: train --accounting exact --epsilon {epsilon}\n");
    }
    text += &run.map_or(String::new(), |run| run.text());
    text += &exchange.map_or(String::new(), |e| e.text());
    text += &format!(
        "\nWhat other batch sizes would buy with the same records, epochs and nats: bits, and the epsilon of\n\
         (epsilon, {:e})-DP if each bit has a batch of its own and is flipped with the probability above it\n\n  {:>6}  {:>8}  {:>10}",
        args.delta, "batch", "bits", "(0, delta)"
    );
    for flip in FLIPS {
        text += &format!("  {:>8}", format!("{} %", 100.0 * flip));
    }
    for o in &offers {
        text += &format!("\n  {:>6}  {:>8}  {:>10.3}", o.batch, o.bits, up(o.delta_zero, 3));
        for f in &o.flips {
            text += &format!("  {:>8.3}", up(f.epsilon, 3));
        }
    }
    text += "\n\nWhat other budgets would buy at this batch size\n\n    nats      bits  (0, delta)  advantage\n";
    for epsilon in [0.1, 0.5, 1.0, 2.0, 8.0] {
        let p = Plan::by(args.accounting, Request { epsilon, ..request })?;
        let note = if p.clamped() { format!("  only {:.3} nats can be spent", p.nats_spent) } else { String::new() };
        text += &format!(
            "  {epsilon:>6}  {:>8.0}  {:>10.3}  {:>9.3}{note}\n",
            p.expected_bits,
            up(p.delta_zero, 3),
            up(p.advantage_bound, 3)
        );
    }
    if let Some(rows) = &headroom {
        text += &headroom::text(rows, epsilon);
    }
    fsio::print(&text)
}

fn group_count(args: &Args, method: &str) -> Result<u64> {
    if !args.tune.tune.is_all() && args.model.is_none() {
        return Err(Error::usage("--tune names tensors of a model: give --model, and no --group-count"));
    }
    if let Some(count) = args.group_count {
        return Ok(count);
    }
    let Some(model) = &args.model else {
        return Err(Error::usage("the plan needs the number of groups: give --model or --group-count"));
    };
    let grouping = grouping(method, args.groups, args.bucket)?;
    let layout = args.tune.layout(&checkpoint::read_config(model)?)?;
    Ok(Groups::tuned(&args.tune.tune.ids(&layout)?, grouping)?.len() as u64)
}

/// Flip probabilities the comparison shows.
const FLIPS: [f64; 4] = [0.01, 0.02, 0.055, 0.13];

/// What a batch size would buy.
#[derive(Debug, serde::Serialize)]
struct Offer {
    batch: u64,
    sampling_rate: f64,
    bits: u64,
    delta_zero: f64,
    flips: Vec<Flip>,
}

/// Epsilon at the plan's delta for flipped bits.
#[derive(Debug, serde::Serialize)]
struct Flip {
    flip: f64,
    epsilon: f64,
    delta: f64,
}

fn offers(accounting: Accounting, request: Request, delta: f64, quiet: bool) -> Result<Vec<Offer>> {
    let mut batches: Vec<u64> = vec![1, 2, 5, 10, 20, 50, 100, request.batch];
    batches.retain(|&b| b <= request.records);
    batches.sort_unstable();
    batches.dedup();
    let pld = Pld::default();
    let bar = progress((batches.len() * FLIPS.len()) as u64, "accounting", quiet);
    let offers = batches
        .into_iter()
        .map(|batch| {
            let plan = Plan::by(accounting, Request { batch, ..request })?;
            let bits = plan.expected_bits.floor() as u64;
            let flips = FLIPS
                .into_iter()
                .map(|flip| {
                    let fires = vec![Fires { steps: bits, bits: 1 }];
                    let event = Event::SubsampledRandomisedResponse { flip, sampling_rate: plan.sampling_rate, fires };
                    let epsilon = pld.epsilon(&event, delta)?.upper;
                    bar.inc(1);
                    Ok(Flip { flip, epsilon, delta })
                })
                .collect::<Result<_>>()?;
            Ok(Offer { batch, sampling_rate: plan.sampling_rate, bits, delta_zero: plan.delta_zero, flips })
        })
        .collect();
    bar.finish_and_clear();
    offers
}
