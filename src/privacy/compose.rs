//! What several runs on the same records give away together.
//!
//! Nats of mutual information given all other records add up, by the chain rule, however later runs depend on earlier releases. For
//! (eps, delta) the events that statements carry are accounted for as one composition; what has no event is added by basic composition:
//!
//! ```text
//! events E_1 .. E_k at delta_x            (eps_x, delta_x)                 by PLD and by RDP
//! stated (eps_i, delta_i), no event       (sum eps_i, sum delta_i)
//! bits as they are, (0, delta_j)          (0, 1 - prod (1 - delta_j))      total variation: a coupling holds while every one of them does
//! together                                (eps_x + sum eps_i, delta_x + sum delta_i + 1 - prod (1 - delta_j))
//! ```

use super::accountant::Accountant;
use super::event::Sampler;
use super::event::{Event, Fires};
use super::guarantee::{Guarantee, Neighbours};
use super::pld::Pld;
use super::rdp::Rdp;
use super::statement::{Claim, Released, Statement};
use crate::error::{Error, Result};
use serde::Serialize;

/// What is promised of several runs together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Composed {
    /// How many statements were composed.
    pub runs: usize,
    /// The promises, each of all runs together; nats first.
    pub claims: Vec<Claim>,
    /// What a reader must know: promises that cannot be composed, and why.
    pub notes: Vec<String>,
}

/// How a run's (eps, delta) enters.
enum Part {
    /// Through what its accountants were told.
    Event(Event),
    /// As it is stated.
    Stated { eps: f64, delta: f64 },
    /// As a total variation.
    Variation { delta: f64 },
    /// It has none.
    Missing,
}

/// Compose the statements of runs on the same records, in any order; later runs may depend on what earlier ones released.
///
/// `delta` is that of the whole. Without one it is the largest that an accountant was asked for, plus what is added to it.
/// Refuses what cannot be composed: a run that promises nothing, records that are not the same unit.
pub fn compose(statements: &[Statement], delta: Option<f64>) -> Result<Composed> {
    let [first, ..] = statements else { return Err(Error::usage("there is no statement to compose")) };
    let name = |i: usize| format!("statement {} ({})", i + 1, statements[i].method);
    for (i, s) in statements.iter().enumerate() {
        if !s.is_private() {
            return Err(Error::Privacy(format!(
                "{} promises nothing, so nothing is promised of all of them together",
                name(i)
            )));
        }
        if (s.windows, s.users) != (first.windows, first.users) {
            return Err(Error::Privacy(format!(
                "a record of {} is {}, of {} {}: their promises are about different things",
                name(0),
                unit(first),
                name(i),
                unit(s)
            )));
        }
        if let Some(c) = s.claims.iter().find(|c| !relation_is_common(s, &c.guarantee)) {
            return Err(Error::Privacy(format!(
                "{} promises \"{}\": neighbours of another kind",
                name(i),
                c.guarantee
            )));
        }
    }
    let mut notes = Vec::new();
    if statements.iter().any(|s| s.records != first.records) {
        notes.push(
            "the runs had different numbers of records: the sum is for a record that all of them used".to_owned(),
        );
    }
    for (i, s) in statements.iter().enumerate() {
        let same = |t: &&Statement| t.tuned_sha256.is_some() && t.tuned_sha256 == s.tuned_sha256;
        if statements[..i].iter().any(|t| same(&t)) {
            notes.push(format!("{} is of the same model as one before it: it is counted again", name(i)));
        }
    }
    let mut claims = Vec::new();
    let nats: Vec<Option<f64>> = statements.iter().map(nats_spent).collect();
    match nats.iter().position(Option::is_none) {
        None => {
            let nats = nats.iter().flatten().sum();
            claims.push(claim(Guarantee::MutualInformation { nats }, "sum"));
        }
        Some(i) => notes.push(format!("{} states no nats of mutual information: there is no sum of them", name(i))),
    }
    let parts: Vec<Part> = statements.iter().map(part).collect();
    match parts.iter().position(|p| matches!(p, Part::Missing)) {
        None => claims.extend(eps_delta(&parts, statements, delta, &mut notes)?),
        Some(i) => notes.push(format!("{} states no (eps, delta): there is none of all of them together", name(i))),
    }
    if claims.is_empty() {
        return Err(Error::Privacy(format!("the statements have no kind of promise in common: {}", notes.join("; "))));
    }
    Ok(Composed { runs: statements.len(), claims, notes })
}

/// What a record stands for.
fn unit(statement: &Statement) -> &'static str {
    match statement {
        Statement { users: true, .. } => "a user",
        Statement { windows: true, .. } => "a window of a text",
        _ => "a line of the data",
    }
}

/// N is public in every statement: what version 1 called "added or removed" is a record replaced by an empty one.
fn relation_is_common(statement: &Statement, guarantee: &Guarantee) -> bool {
    match guarantee {
        Guarantee::EpsDelta { neighbours, .. } => {
            *neighbours == Neighbours::ReplaceByEmpty
                || (statement.version == 1 && *neighbours == Neighbours::AddOrRemoveOne)
        }
        _ => true,
    }
}

fn claim(guarantee: Guarantee, accountant: &str) -> Claim {
    Claim { guarantee, accountant: accountant.into(), of: "spent".into() }
}

/// The least nats that were proven to be spent at most; none where none are stated, or not a number of them.
fn nats_spent(statement: &Statement) -> Option<f64> {
    let nats = statement.claims.iter().filter(|c| c.of == "spent").filter_map(|c| match c.guarantee {
        Guarantee::MutualInformation { nats } if nats >= 0.0 => Some(nats),
        _ => None,
    });
    nats.reduce(f64::min)
}

fn part(statement: &Statement) -> Part {
    let spent = |variation: bool| {
        let own = move |c: &&Claim| c.of == "spent" && (c.accountant == "total variation") == variation;
        let pairs = statement.claims.iter().filter(own).filter_map(|c| match c.guarantee {
            Guarantee::EpsDelta { eps, delta, .. } if eps >= 0.0 && (0.0..=1.0).contains(&delta) => Some((eps, delta)),
            _ => None,
        });
        pairs.reduce(|a, b| if b.0 < a.0 { b } else { a })
    };
    match (spent(false), spent(true)) {
        (Some((eps, delta)), _) => match event(statement) {
            Some(event) => Part::Event(event),
            None => Part::Stated { eps, delta },
        },
        (None, Some((0.0, delta))) => Part::Variation { delta },
        // Nothing left the boundary.
        (None, None) if statement.released.is_nothing() && statement.sampler == Sampler::Poisson => {
            Part::Variation { delta: 0.0 }
        }
        _ => Part::Missing,
    }
}

/// What the accountants were told; of version 1, which does not say, where it follows from what was released.
fn event(statement: &Statement) -> Option<Event> {
    if statement.event.is_some() {
        return statement.event.clone();
    }
    let sampling_rate = statement.sampling_rate;
    let alone = |count: u64, batches: u64| (count == batches).then(|| vec![Fires { steps: count, bits: 1 }]);
    match statement.released {
        Released::NoisedSums { count, noise_multiplier, .. } => {
            Some(Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps: count })
        }
        Released::NoisedSketches { count, numbers: bits, noise_multiplier, .. } => {
            Some(Event::SubsampledSigns { noise_multiplier, bits, sampling_rate, steps: count })
        }
        Released::FlippedBits { count, batches, flip } => {
            let fires = alone(count, batches)?;
            Some(Event::SubsampledRandomisedResponse { flip, sampling_rate, fires })
        }
        Released::DitheredScalars { count, batches, dither } => {
            Some(Event::dithered(dither, sampling_rate, &alone(count, batches)?))
        }
        Released::Bits { .. } | Released::Gradients { .. } => None,
    }
}

impl Released {
    fn is_nothing(&self) -> bool {
        matches!(
            self,
            Self::Bits { count: 0, .. } | Self::FlippedBits { count: 0, .. } | Self::DitheredScalars { count: 0, .. }
        )
    }
}

fn eps_delta(
    parts: &[Part],
    statements: &[Statement],
    delta: Option<f64>,
    notes: &mut Vec<String>,
) -> Result<Vec<Claim>> {
    let (mut events, mut eps, mut added, mut ln_coupled) = (Vec::new(), 0.0, 0.0, 0.0);
    for part in parts {
        match part {
            Part::Event(event) => events.push(event.clone()),
            Part::Stated { eps: e, delta: d } => (eps, added) = (eps + e, added + d),
            Part::Variation { delta } => ln_coupled += (-delta).ln_1p(),
            Part::Missing => {}
        }
    }
    added += -f64::exp_m1(ln_coupled);
    if events.is_empty() {
        if delta.is_some_and(|delta| delta < added) {
            return Err(Error::Privacy(format!("the runs' deltas add up to {added:e}, above the delta asked for")));
        }
        return Ok(vec![claim(Guarantee::eps_delta(eps, added.min(1.0)), "basic composition")]);
    }
    let asked = statements.iter().filter_map(Statement::delta).fold(0.0, f64::max);
    let own = delta.map_or(asked, |delta| delta - added);
    if own.is_nan() || own <= 0.0 {
        return Err(Error::Privacy(format!(
            "the runs that cannot be composed exactly have deltas that add up to {added:e}: give a `delta` above that, or none"
        )));
    }
    let event = Event::Composed(events);
    let mut claims = Vec::new();
    for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
        match accountant.epsilon(&event, own) {
            Ok(bounds) if bounds.upper.is_finite() => {
                let together = Guarantee::eps_delta(eps + bounds.upper, (own + added).min(1.0));
                claims.push(claim(together, accountant.name()));
            }
            Ok(_) => notes.push(format!("{} finds no finite epsilon at delta {own:e}", accountant.name())),
            Err(Error::Privacy(why)) => notes.push(format!("{}: {why}", accountant.name())),
            Err(e) => return Err(e),
        }
    }
    Ok(claims)
}
