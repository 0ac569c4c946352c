//! `ferret account`: what a mechanism costs, or what it needs, by every accountant.

mod answer;

use super::common::working;
use crate::error::{Error, Result};
use crate::fsio;
use crate::privacy::Sampler;
use crate::privacy::calibrate::{self, Settings};
use crate::privacy::guarantee::{Neighbours, number};
use crate::privacy::mi::{self, batch};
use crate::privacy::{Accountant, Event, Fires, Pld, Rdp};
use answer::{Answer, equation_12, finite};
use serde_json::json;
use std::path::PathBuf;

/// The lattice interval at which PLD figures are usually published.
const USUAL_INTERVAL: f64 = 1e-3;

/// Beyond so many steps the usual interval says more about itself than about the mechanism.
const USUAL_STEPS: u64 = 20_000;

/// What is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mechanism {
    /// Bits as they are: FERRET's. Nats only
    Bit,
    /// Sums of sensitivity 1 with Gaussian noise: DPSGD
    #[value(alias = "dpsgd")]
    Gaussian,
    /// The signs of --bits such sums, clipped together: FERRET-k. (epsilon, delta) is that of the sums, for any number of signs
    #[value(alias = "ferret-k")]
    Signs,
    /// Bits, each flipped with a known probability: FERRET with --release rr
    Rr,
    /// Signs times C with Gaussian noise: FERRET with --release gaussian
    Dither,
}

/// Epsilon of a mechanism at delta, its nats, or the noise that epsilon needs.
///
/// Batches are Poisson and secret; neighbours differ by one record that is replaced by an empty one. RDP gives an upper bound; PLD encloses epsilon
/// between proven bounds. For the Gaussian mechanism `pld` is on the lattice of 1e-3 that published figures use, and
/// `pld_refined` is as tight as a second's work makes it; both are true. Without --sigma, --flip or --dither, give --epsilon and the
/// setting it needs is searched for. --nats charges what the releases can tell about a record given all others, in nats of mutual
/// information, which are another unit.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  ferret account --mechanism gaussian --sampling-rate 0.005 --steps 1000 --sigma 1.0 --delta 1e-5
  ferret account --mechanism gaussian --sampling-rate 0.005 --steps 1000 --epsilon 0.5 --delta 1e-5 --json
  ferret account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 123x1,9x2,1x3 --delta 1e-5
  ferret account --mechanism bit --sampling-rate 0.005 --fires 543 --nats
  ferret account --mechanism dpsgd --sampling-rate 0.005 --steps 1000 --sigma 1.0 --nats
  ferret account --mechanism signs --bits 1024 --sampling-rate 0.005 --steps 1000 --sigma 1.0 --nats --delta 1e-5
  ferret account --add first/privacy.json second/privacy.json
  ferret account --paper-eq12")]
pub struct Args {
    /// What is released
    #[arg(long, value_enum, required_unless_present_any = ["paper_eq12", "add"])]
    mechanism: Option<Mechanism>,
    /// Probability that a record is in a batch
    #[arg(long, value_name = "Q", required_unless_present_any = ["paper_eq12", "add"])]
    sampling_rate: Option<f64>,
    /// Number of noised sums (gaussian, signs)
    #[arg(long, value_name = "T")]
    steps: Option<u64>,
    /// Noise multiplier: standard deviation over sensitivity (gaussian, signs)
    #[arg(long, value_name = "S", conflicts_with = "epsilon")]
    sigma: Option<f64>,
    /// Probability of a flip (rr)
    #[arg(long, value_name = "F", conflicts_with = "epsilon")]
    flip: Option<f64>,
    /// Standard deviation of the noise in units of C (dither)
    #[arg(long, value_name = "S", conflicts_with = "epsilon")]
    dither: Option<f64>,
    /// Number of fires, or steps x bits on one batch: 123x1,9x2,1x3 (bit, rr, dither)
    #[arg(long, value_name = "K")]
    fires: Option<String>,
    /// Signs of each noised sum (signs)
    #[arg(long, value_name = "K")]
    bits: Option<u32>,
    /// The epsilon of (epsilon, delta) to find the noise for
    #[arg(long, visible_aliases = ["dp-epsilon", "target-epsilon"], value_name = "E")]
    epsilon: Option<f64>,
    /// The delta of (epsilon, delta)
    #[arg(long, visible_alias = "target-delta", value_name = "D", required_unless_present_any = ["paper_eq12", "nats", "add"])]
    delta: Option<f64>,
    /// Charge nats of mutual information with a record, given all others
    #[arg(long, conflicts_with_all = ["paper_eq12", "epsilon"])]
    nats: bool,
    /// How batches are drawn, for --nats: (epsilon, delta) is proven for Poisson alone
    #[arg(long, value_enum, default_value = "poisson", requires = "nats")]
    sampler: Sampler,
    /// Compose the statements of several runs on the same records: nats and (eps, delta), at --delta if it is given
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["mechanism", "sampling_rate", "steps", "sigma", "flip", "dither", "fires", "bits", "epsilon", "paper_eq12", "nats"])]
    add: Vec<PathBuf>,
    /// For study: the paper's Eq. (12), which is not a bound, against the true divergence
    #[arg(long, conflicts_with_all = ["mechanism", "sampling_rate", "steps", "sigma", "flip", "dither", "fires", "bits", "epsilon", "delta"])]
    paper_eq12: bool,
    /// Firing probability for --paper-eq12
    #[arg(long, value_name = "P", default_value_t = 7.2e-4, requires = "paper_eq12")]
    fire_probability: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Answer for one mechanism, or compose several.
pub fn run(args: Args) -> Result<()> {
    if args.paper_eq12 {
        return equation_12(args.fire_probability, args.json);
    }
    if !args.add.is_empty() {
        return super::compose::run(&args.add, args.delta, args.json, args.quiet);
    }
    let ask = Ask::new(&args)?;
    if args.nats {
        return ask.nats(&args);
    }
    let answer = {
        let _shown = working("accounting", args.quiet);
        match args.epsilon {
            None => ask.epsilon()?,
            Some(epsilon) => ask.setting(epsilon)?,
        }
    };
    if args.json {
        return fsio::print(&format!("{}\n", answer.json()));
    }
    let what = match args.epsilon {
        None => "epsilon",
        Some(_) => ask.setting_name().0,
    };
    let title = format!("{what} at delta = {:e}, {}, Poisson sampling\n", ask.delta()?, Neighbours::ReplaceByEmpty);
    fsio::print(&(title + &answer.text()))
}

/// The question, checked.
struct Ask {
    mechanism: Mechanism,
    rate: f64,
    delta: Option<f64>,
    steps: u64,
    bits: u32,
    fires: Vec<Fires>,
    setting: Option<f64>,
}

/// A refusal is an answer; anything else is a mistake in the question.
fn answered<T>(found: Result<T>) -> Result<Result<T, String>> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Error::Privacy(why)) => Ok(Err(why)),
        Err(e) => Err(e),
    }
}

impl Ask {
    fn new(args: &Args) -> Result<Self> {
        let missing = |what: &str| Error::Usage(format!("{what}: see ferret account --help"));
        let mechanism = args.mechanism.ok_or_else(|| missing("--mechanism is missing"))?;
        let rate = args.sampling_rate.ok_or_else(|| missing("--sampling-rate is missing"))?;
        let given = [("--sigma", args.sigma), ("--flip", args.flip), ("--dither", args.dither)];
        let (own, counted) = match mechanism {
            Mechanism::Bit if !args.nats => {
                return Err(Error::usage(
                    "--mechanism bit has no (epsilon, delta) beyond the (0, delta) of `ferret plan`: give --nats",
                ));
            }
            Mechanism::Bit => ("no setting", "--fires"),
            Mechanism::Gaussian | Mechanism::Signs => ("--sigma", "--steps"),
            Mechanism::Rr => ("--flip", "--fires"),
            Mechanism::Dither => ("--dither", "--fires"),
        };
        let name = format!("{mechanism:?}").to_lowercase();
        if let Some((other, _)) = given.iter().find(|(n, v)| *n != own && v.is_some()) {
            return Err(Error::Usage(format!("{other} does not belong to --mechanism {name}: it takes {own}")));
        }
        let setting = given.iter().find(|(n, _)| *n == own).and_then(|(_, v)| *v);
        if setting.is_none() && args.epsilon.is_none() && mechanism != Mechanism::Bit {
            return Err(Error::Usage(format!("--mechanism {name} needs {own}, or --epsilon to find it")));
        }
        let (steps, fires) = match (counted, args.steps, &args.fires) {
            ("--steps", Some(steps), None) => (steps, Vec::new()),
            ("--fires", None, Some(fires)) => (0, Fires::parse(fires)?),
            _ => return Err(Error::Usage(format!("--mechanism {name} is counted by {counted}, and by it alone"))),
        };
        let bits = match (mechanism, args.bits) {
            (Mechanism::Signs, Some(bits)) if bits > 0 => bits,
            (Mechanism::Signs, _) => return Err(Error::usage("--mechanism signs needs --bits: the signs of each sum")),
            (_, None) => 0,
            (_, Some(_)) => return Err(Error::Usage(format!("--bits does not belong to --mechanism {name}"))),
        };
        Ok(Self { mechanism, rate, delta: args.delta, steps, bits, fires, setting })
    }

    fn delta(&self) -> Result<f64> {
        self.delta.ok_or_else(|| Error::usage("--delta is missing: see ferret account --help"))
    }

    /// Nats, and epsilon too where a delta was given.
    fn nats(&self, args: &Args) -> Result<()> {
        let setting = self.setting.unwrap_or_default();
        let (release, fires) = match self.mechanism {
            Mechanism::Bit => (mi::Release::Bits { flip: 0.0, bits: 1 }, self.fires.clone()),
            Mechanism::Rr => (mi::Release::Bits { flip: setting, bits: 1 }, self.fires.clone()),
            Mechanism::Dither => (mi::Release::Scalars { dither: setting, bits: 1 }, self.fires.clone()),
            Mechanism::Gaussian => {
                (mi::Release::Sum { noise_multiplier: setting }, vec![Fires { steps: self.steps, bits: 1 }])
            }
            Mechanism::Signs => {
                let bits = self.bits;
                (mi::Release::Signs { noise_multiplier: setting, bits }, vec![Fires { steps: self.steps, bits }])
            }
        };
        let charge = batch::charge_fires(release, self.rate, args.sampler, &fires)?;
        let counted = matches!(self.mechanism, Mechanism::Bit | Mechanism::Rr | Mechanism::Dither);
        let bits = counted.then(|| Fires::total(&fires));
        let paper = bits.map(|bits| mi::charge(self.rate, bits));
        // In d dimensions the capacity of Poisson sums is at most this over d below the bound.
        let gap = (self.mechanism == Mechanism::Gaussian && args.sampler == Sampler::Poisson)
            .then(|| mi::gaussian::gap(self.rate, setting, 1.0) * self.steps as f64);
        let epsilon = match (self.delta, self.mechanism) {
            (Some(_), mechanism) if mechanism != Mechanism::Bit && args.sampler == Sampler::Poisson => {
                let _shown = working("accounting", args.quiet);
                Some(self.epsilon()?)
            }
            _ => None,
        };
        if args.json {
            let mut out = json!({ "nats": finite(charge.nats), "capacity": charge.exact, "given": mi::GIVEN });
            out["nats_paper"] = json!(paper);
            out["gap_in_one_dimension"] = json!(gap.map(finite));
            if let (Some(answer), Some(all)) = (&epsilon, out.as_object_mut()) {
                all.extend(answer.json().as_object().cloned().unwrap_or_default());
            }
            return fsio::print(&format!("{out}\n"));
        }
        let kind = if charge.exact { "a capacity: the worst case attains it" } else { "an upper bound" };
        let mut text = format!("nats of mutual information with a record, {}\n", mi::GIVEN);
        text += &format!("  charged        {}   ({kind})\n", number(charge.nats));
        if let Some(paper) = paper {
            text += &format!("  the paper's    {}   (s ln 2 a bit)\n", number(paper));
        }
        if let Some(gap) = gap {
            text += &format!("  tight within   {} / d for a release of d numbers\n", number(gap));
        }
        if let Some(answer) = epsilon {
            let delta = self.delta()?;
            text += &format!(
                "\nepsilon at delta = {delta:e}, {}: another unit\n{}",
                Neighbours::ReplaceByEmpty,
                answer.text()
            );
        }
        fsio::print(&text)
    }

    /// The setting that is searched for, for readers and in JSON.
    fn setting_name(&self) -> (&'static str, &'static str) {
        match self.mechanism {
            Mechanism::Bit => ("bits", "bits"),
            Mechanism::Gaussian | Mechanism::Signs => ("noise multiplier", "noise_multiplier"),
            Mechanism::Rr => ("flip probability", "flip"),
            Mechanism::Dither => ("dither in units of C", "dither"),
        }
    }

    fn event(&self, setting: f64) -> Event {
        let sampling_rate = self.rate;
        match self.mechanism {
            Mechanism::Gaussian => {
                Event::SubsampledGaussian { noise_multiplier: setting, sampling_rate, steps: self.steps }
            }
            Mechanism::Signs => {
                let bits = self.bits;
                Event::SubsampledSigns { noise_multiplier: setting, bits, sampling_rate, steps: self.steps }
            }
            Mechanism::Bit | Mechanism::Rr => {
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
        let (event, delta) = (self.event(self.setting.unwrap_or_default()), self.delta()?);
        let rdp = answered(Rdp::default().epsilon(&event, delta))?.map(|b| b.upper);
        let refined = answered(Pld::default().epsilon(&event, delta))?;
        if let (Err(_), Err(why)) = (&rdp, &refined) {
            return Err(Error::Privacy(why.clone()));
        }
        let usual = if self.usual() { Pld::at_interval(USUAL_INTERVAL).epsilon(&event, delta).ok() } else { None };
        Ok(Answer::new("epsilon", rdp, refined, usual.map(|b| b.upper)))
    }

    fn setting(&self, epsilon: f64) -> Result<Answer> {
        let delta = self.delta()?;
        let Settings { rdp, pld } = match self.mechanism {
            Mechanism::Gaussian | Mechanism::Signs => {
                calibrate::noise_multiplier(epsilon, delta, self.rate, self.steps)?
            }
            Mechanism::Bit | Mechanism::Rr => calibrate::flip(epsilon, delta, self.rate, &self.fires)?,
            Mechanism::Dither => calibrate::dither(epsilon, delta, self.rate, &self.fires)?,
        };
        let usual = if self.usual() {
            let accountant = Pld::at_interval(USUAL_INTERVAL);
            calibrate::sufficient(&accountant, pld.upper, epsilon, delta, |s| self.event(s)).ok()
        } else {
            None
        };
        Ok(Answer::new(self.setting_name().1, Ok(rdp), Ok(pld), usual))
    }
}
