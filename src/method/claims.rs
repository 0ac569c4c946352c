//! What the accountants say of noised sums, in a statement: spent and planned, nats and (eps, delta).

use crate::error::{Error, Result};
use crate::privacy::Sampler;
use crate::privacy::mi::charge_event;
use crate::privacy::statement::Statement;
use crate::privacy::{Accountant, Event, Pld, Rdp};

/// What an event costs: epsilon by accountant, or why there is none; and nats of mutual information, where they are proven.
#[derive(Clone, Default)]
struct Claims {
    found: Vec<(&'static str, Result<f64, String>)>,
    nats: Option<f64>,
}

impl Claims {
    /// At `delta`; nothing where nothing can be promised.
    fn of(event: Option<&Event>, sampler: Sampler, delta: f64) -> Result<Self> {
        let Some(event) = event else { return Ok(Self::default()) };
        let mut found = Vec::new();
        for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
            let epsilon = match accountant.epsilon(event, delta) {
                Ok(bounds) if bounds.upper.is_finite() => Ok(bounds.upper),
                Ok(_) => Err(format!(
                    "{} finds no finite epsilon at delta {delta}: the noise is too small",
                    accountant.name()
                )),
                Err(Error::Privacy(why)) => Err(why),
                Err(e) => return Err(e),
            };
            found.push((accountant.name(), epsilon));
        }
        Ok(Self { found, nats: Some(charge_event(event, sampler)?.nats) })
    }
}

/// State what was `spent` beside what was `planned`; (eps, delta) is claimed at `delta`. Nothing is claimed of what has no event.
pub(super) fn claim(statement: &mut Statement, spent: Option<Event>, planned: Option<Event>, delta: f64) -> Result<()> {
    let (sampler, version) = (statement.sampler, statement.version);
    let cost = Claims::of(spent.as_ref(), sampler, delta)?;
    let plan = if spent == planned { cost.clone() } else { Claims::of(planned.as_ref(), sampler, delta)? };
    if let Some(event) = spent {
        statement.spent(event);
    }
    for (claims, of) in [(cost, "spent"), (plan, "planned")] {
        if let Some(nats) = claims.nats.filter(|_| version > 2) {
            statement.claim_nats(nats, of);
        }
        for (name, epsilon) in claims.found {
            match epsilon {
                Ok(eps) => drop(statement.claim(statement.eps_delta(eps, delta), name, of)),
                Err(why) => statement.not_met.push(format!("{name}, {of}: {why}")),
            }
        }
    }
    Ok(())
}
