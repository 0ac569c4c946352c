//! `ferret account`: what a mechanism costs, or what it needs, by every accountant.

use super::common::working;
use crate::error::{Error, Result};
use crate::fsio;
use crate::privacy::calibrate::{self, Settings};
use crate::privacy::guarantee::up;
use crate::privacy::{Accountant, Bounds, Event, Fires, Pld, Rdp, eq12};
use serde_json::json;
use std::path::PathBuf;

/// The lattice interval at which PLD figures are usually published.
const USUAL_INTERVAL: f64 = 1e-3;

/// Beyond so many steps the usual interval says more about itself than about the mechanism.
const USUAL_STEPS: u64 = 20_000;

/// What is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mechanism {
    /// Sums of sensitivity 1 with Gaussian noise: DPSGD
    Gaussian,
    /// Bits, each flipped with a known probability: FERRET with --release rr
    Rr,
    /// Signs times C with Gaussian noise: FERRET with --release gaussian
    Dither,
}

/// Epsilon of a mechanism at delta, or the noise that epsilon needs.
///
/// Batches are Poisson and secret; neighbours differ by one record added or removed. RDP gives an upper bound; PLD encloses epsilon
/// between proven bounds. For the Gaussian mechanism `pld` is on the lattice of 1e-3 that published figures use, and
/// `pld_refined` is as tight as a second's work makes it; both are true. Without --sigma, --flip or --dither, give --epsilon and the
/// setting it needs is searched for.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret account --mechanism gaussian --sampling-rate 0.005 --steps 1000 --sigma 1.0 --delta 1e-5
  ferret account --mechanism gaussian --sampling-rate 0.005 --steps 1000 --epsilon 0.5 --delta 1e-5 --json
  ferret account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 123x1,9x2,1x3 --delta 1e-5
  ferret account --add first/privacy.json second/privacy.json
  ferret account --paper-eq12")]
pub struct Args {
    /// What is released
    #[arg(long, value_enum, required_unless_present_any = ["paper_eq12", "add"])]
    mechanism: Option<Mechanism>,
    /// Probability that a record is in a batch
    #[arg(long, value_name = "Q", required_unless_present_any = ["paper_eq12", "add"])]
    sampling_rate: Option<f64>,
    /// Number of noised sums (gaussian)
    #[arg(long, value_name = "T")]
    steps: Option<u64>,
    /// Noise multiplier: standard deviation over sensitivity (gaussian)
    #[arg(long, value_name = "S", conflicts_with = "epsilon")]
    sigma: Option<f64>,
    /// Probability of a flip (rr)
    #[arg(long, value_name = "F", conflicts_with = "epsilon")]
    flip: Option<f64>,
    /// Standard deviation of the noise in units of C (dither)
    #[arg(long, value_name = "S", conflicts_with = "epsilon")]
    dither: Option<f64>,
    /// Number of fires, or steps x bits on one batch: 123x1,9x2,1x3 (rr, dither)
    #[arg(long, value_name = "K")]
    fires: Option<String>,
    /// The epsilon to find the noise for
    #[arg(long, value_name = "E")]
    epsilon: Option<f64>,
    /// Delta
    #[arg(long, value_name = "D", required_unless_present_any = ["paper_eq12", "add"])]
    delta: Option<f64>,
    /// Compose the statements of several runs on the same records: nats and (eps, delta), at --delta if it is given
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["mechanism", "sampling_rate", "steps", "sigma", "flip", "dither", "fires", "epsilon", "paper_eq12"])]
    add: Vec<PathBuf>,
    /// For study: the paper's Eq. (12), which is not a bound, against the true divergence
    #[arg(long, conflicts_with_all = ["mechanism", "sampling_rate", "steps", "sigma", "flip", "dither", "fires", "epsilon", "delta"])]
    paper_eq12: bool,
    /// Firing probability for --paper-eq12
    #[arg(long, value_name = "P", default_value_t = 7.2e-4, requires = "paper_eq12")]
    fire_probability: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long)]
    quiet: bool,
}

/// Run the verb.
pub fn run(args: Args) -> Result<()> {
    if args.paper_eq12 {
        return equation_12(args.fire_probability, args.json);
    }
    if !args.add.is_empty() {
        return super::compose::run(&args.add, args.delta, args.json, args.quiet);
    }
    let ask = Ask::new(&args)?;
    let answer = {
        let _shown = working("accounting", args.quiet);
        match args.epsilon {
            None => ask.epsilon()?,
            Some(epsilon) => ask.setting(epsilon)?,
        }
    };
    if args.json {
        let mut out = json!({ "rdp": answer.rdp, "pld": answer.pld });
        if let Some(refined) = answer.refined {
            out["pld_refined"] = json!(refined);
        }
        return fsio::print(&format!("{out}\n"));
    }
    let what = match args.epsilon {
        None => "epsilon",
        Some(_) => ask.setting_name(),
    };
    let mut text = format!("{what} at delta = {:e}, one record added or removed, Poisson sampling\n", ask.delta);
    text += &format!("  RDP            {:.4}\n", up(answer.rdp, 4));
    let line = |name: &str, b: Bounds| {
        format!("  {name}{:.4}   (not below {:.4})\n", up(b.upper, 4), (1e4 * b.lower).floor() / 1e4)
    };
    if let Some(refined) = answer.refined {
        text += &line("PLD at 1e-3    ", answer.pld);
        text += &line("PLD refined    ", refined);
    } else {
        text += &line("PLD            ", answer.pld);
    }
    fsio::print(&text)
}

/// The question, checked.
struct Ask {
    mechanism: Mechanism,
    rate: f64,
    delta: f64,
    steps: u64,
    fires: Vec<Fires>,
    setting: Option<f64>,
}

/// What each accountant answers: epsilons, or settings.
struct Answer {
    rdp: f64,
    pld: Bounds,
    refined: Option<Bounds>,
}

impl Ask {
    fn new(args: &Args) -> Result<Self> {
        let missing = |what: &str| Error::Usage(format!("{what}: see ferret account --help"));
        let mechanism = args.mechanism.ok_or_else(|| missing("--mechanism is missing"))?;
        let (rate, delta) =
            args.sampling_rate.zip(args.delta).ok_or_else(|| missing("--sampling-rate or --delta is missing"))?;
        let given = [("--sigma", args.sigma), ("--flip", args.flip), ("--dither", args.dither)];
        let (own, counted) = match mechanism {
            Mechanism::Gaussian => ("--sigma", "--steps"),
            Mechanism::Rr => ("--flip", "--fires"),
            Mechanism::Dither => ("--dither", "--fires"),
        };
        let name = format!("{mechanism:?}").to_lowercase();
        if let Some((other, _)) = given.iter().find(|(n, v)| *n != own && v.is_some()) {
            return Err(Error::Usage(format!("{other} does not belong to --mechanism {name}: it takes {own}")));
        }
        let setting = given.iter().find(|(n, _)| *n == own).and_then(|(_, v)| *v);
        if setting.is_none() && args.epsilon.is_none() {
            return Err(Error::Usage(format!("--mechanism {name} needs {own}, or --epsilon to find it")));
        }
        let (steps, fires) = match (counted, args.steps, &args.fires) {
            ("--steps", Some(steps), None) => (steps, Vec::new()),
            ("--fires", None, Some(fires)) => (0, Fires::parse(fires)?),
            _ => return Err(Error::Usage(format!("--mechanism {name} is counted by {counted}, and by it alone"))),
        };
        Ok(Self { mechanism, rate, delta, steps, fires, setting })
    }

    fn setting_name(&self) -> &'static str {
        match self.mechanism {
            Mechanism::Gaussian => "noise multiplier",
            Mechanism::Rr => "flip probability",
            Mechanism::Dither => "dither in units of C",
        }
    }

    fn event(&self, setting: f64) -> Event {
        let sampling_rate = self.rate;
        match self.mechanism {
            Mechanism::Gaussian => {
                Event::SubsampledGaussian { noise_multiplier: setting, sampling_rate, steps: self.steps }
            }
            Mechanism::Rr => {
                Event::SubsampledRandomisedResponse { flip: setting, sampling_rate, fires: self.fires.clone() }
            }
            Mechanism::Dither => Event::dithered(setting, sampling_rate, &self.fires),
        }
    }

    /// Whether figures at the usual interval are worth giving.
    fn usual(&self) -> bool {
        self.mechanism == Mechanism::Gaussian && self.steps <= USUAL_STEPS
    }

    fn epsilon(&self) -> Result<Answer> {
        let event = self.event(self.setting.unwrap_or_default());
        let rdp = Rdp::default().epsilon(&event, self.delta)?.upper;
        let refined = Pld::default().epsilon(&event, self.delta)?;
        let usual = if self.usual() { Pld::at_interval(USUAL_INTERVAL).epsilon(&event, self.delta).ok() } else { None };
        Ok(Answer::new(rdp, refined, usual.map(|b| b.upper)))
    }

    fn setting(&self, epsilon: f64) -> Result<Answer> {
        let Settings { rdp, pld } = match self.mechanism {
            Mechanism::Gaussian => calibrate::noise_multiplier(epsilon, self.delta, self.rate, self.steps)?,
            Mechanism::Rr => calibrate::flip(epsilon, self.delta, self.rate, &self.fires)?,
            Mechanism::Dither => calibrate::dither(epsilon, self.delta, self.rate, &self.fires)?,
        };
        let usual = if self.usual() {
            let accountant = Pld::at_interval(USUAL_INTERVAL);
            calibrate::sufficient(&accountant, pld.upper, epsilon, self.delta, |s| self.event(s)).ok()
        } else {
            None
        };
        Ok(Answer::new(rdp, pld, usual))
    }
}

impl Answer {
    /// The usual interval's figure stands in for the refined one unless it is more than a tenth worse.
    fn new(rdp: f64, refined: Bounds, usual: Option<f64>) -> Self {
        match usual {
            Some(upper) if upper <= 1.1 * refined.upper => Self {
                rdp,
                pld: Bounds { lower: refined.lower, upper: upper.max(refined.upper) },
                refined: Some(refined),
            },
            _ => Self { rdp, pld: refined, refined: None },
        }
    }
}

fn equation_12(p: f64, json: bool) -> Result<()> {
    if !(p > 0.0 && p <= 1.0) {
        return Err(Error::Usage(format!("--fire-probability must lie in (0, 1], found {p}")));
    }
    let rows = eq12::table(p);
    if json {
        let out = json!({ "is_a_bound": false, "fire_probability": p, "rows": rows });
        return fsio::print(&format!("{out}\n"));
    }
    let mut text = format!(
        "The paper's Eq. (12), for study. It is NOT a bound: its proof uses p <= p^alpha, which is false.\n\
         Rényi divergence of one dithered group that fires with probability p = {p:e}:\n\n\
         {:>9}  {:>5}  {:>10}  {:>10}\n",
        "sigma / C", "alpha", "Eq. (12)", "true"
    );
    for r in rows {
        let verdict = if r.fails { "claims less than is true" } else { "vacuous" };
        text += &format!("{:>9}  {:>5}  {:>10.1e}  {:>10.1e}  {verdict}\n", r.sigma, r.order, r.claimed, r.correct);
    }
    text += "\nFor a true (eps, delta) use --mechanism dither or rr.\n";
    fsio::print(&text)
}
