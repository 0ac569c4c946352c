//! What a run gave away: what the accountants say of its steps, and the statement.

use super::settings::{ClipRule, Method, Privacy, Record, Settings, Variant};
use crate::error::{Error, Result};
use crate::model::Layout;
use crate::privacy::mi::charge_event;
use crate::privacy::statement::{Circumstances, Released, Sampler, Statement, VERSION};
use crate::privacy::{Accountant, Pld, Rdp};
use serde_json::{Value, json};

/// Epsilon at a delta, by accountant; or why there is none.
pub struct Claims {
    delta: f64,
    found: Vec<(&'static str, Result<f64, String>)>,
    /// Nats of mutual information; none where nothing can be promised.
    nats: Option<f64>,
}

impl Claims {
    /// Epsilon by accountant; none where nothing can be promised.
    pub fn json(&self) -> Option<Value> {
        let found = self.found.iter().filter_map(|(name, eps)| Some((name.to_lowercase(), json!(eps.as_ref().ok()?))));
        (!self.found.is_empty()).then(|| Value::Object(found.collect()))
    }

    /// Nats of mutual information with a record, given all others; none where no finite number is proven.
    pub fn nats(&self) -> Option<f64> {
        self.nats.filter(|nats| nats.is_finite())
    }
}

impl Settings {
    /// What `steps` steps cost; nothing where nothing can be promised.
    pub fn claims(&self, steps: u32, delta: f64) -> Result<Claims> {
        let mut found = Vec::new();
        if let Some(event) = self.event(steps) {
            for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
                let epsilon = match accountant.epsilon(&event, delta) {
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
        }
        let nats = self.event(steps).map(|event| charge_event(&event, self.sampler)).transpose()?.map(|c| c.nats);
        Ok(Claims { delta, found, nats })
    }

    /// The statement of a run of `steps_run` steps that cost `spent`, where `planned` was planned for.
    pub fn statement(
        &self,
        layout: &Layout,
        steps_run: u32,
        spent: &Claims,
        planned: Option<&Claims>,
        circumstances: Circumstances,
    ) -> Statement {
        self.statement_by(VERSION, layout, steps_run, spent, planned, circumstances)
    }

    /// [`Settings::statement`] by the rules of `version`.
    fn statement_by(
        &self,
        version: u32,
        layout: &Layout,
        steps_run: u32,
        spent: &Claims,
        planned: Option<&Claims>,
        circumstances: Circumstances,
    ) -> Statement {
        let count = u64::from(steps_run);
        let bits_per_update = self.method.compresses().then(|| self.method.bits_per_update(layout) as f64);
        let released = match self.method.privacy() {
            Some(&Privacy { noise_multiplier, clip, .. }) => {
                Released::NoisedSums { count, noise_multiplier, clip, bits_per_update }
            }
            None => Released::Gradients { count, bits_per_update },
        };
        let mut statement =
            Statement::new(self.method.name(), released, self.sampler, self.records, self.sampling_rate, count)
                .by_rules_of(version);
        if let Some(event) = self.event(steps_run) {
            statement.spent(event);
        }
        for (claims, of) in [(Some(spent), "spent"), (planned, "planned")] {
            let Some(claims) = claims else { continue };
            if let Some(nats) = claims.nats.filter(|_| version > 2) {
                statement.claim_nats(nats, of);
            }
            for (name, epsilon) in &claims.found {
                match epsilon {
                    Ok(eps) => drop(statement.claim(statement.eps_delta(*eps, claims.delta), name, of)),
                    Err(why) => statement.not_met.push(format!("{name}, {of}: {why}")),
                }
            }
        }
        match self.method.privacy() {
            Some(p) if p.clip_rule == ClipRule::None => statement.not_met.push(
                "not private: gradients were not clipped (--clip-function none), so no noise bounds what one record does".into(),
            ),
            Some(p) if !p.holds() => {
                statement.not_met.push("not private: no noise was added (noise multiplier 0)".into());
            }
            Some(_) if self.sampler != Sampler::Poisson => {
                let head = if version < 3 { "not private: the" } else { "The" };
                statement.not_met.push(format!(
                    "{head} noise was chosen as if sampling were Poisson; no (eps, delta) is claimed for this sampler"
                ));
            }
            Some(_) => {}
            None => {
                let what = match self.method {
                    Method::Signsgd { variant: Variant::ErrorFeedback } => "signs of gradients with error feedback",
                    Method::Signsgd { .. } => "signs of gradients",
                    Method::Qsgd { .. } => "rounded gradients",
                    _ => "gradients",
                };
                statement.not_met.push(format!("not private: {what} were released without clipping or noise"));
            }
        }
        statement.finish(circumstances)
    }
}

impl Record {
    /// The statement that a run of this record makes, by the rules of the version of `stated`, and with its delta and circumstances:
    /// what no one can recompute. `layout` is that of its model.
    pub fn restate(&self, layout: &Layout, stated: &Statement) -> Result<Statement> {
        let (settings, delta) = (&self.settings, stated.delta().unwrap_or(1e-5));
        let (spent, planned) = (settings.claims(self.steps_run, delta)?, settings.claims(settings.steps, delta)?);
        let circumstances = stated.circumstances();
        let mut made =
            settings.statement_by(stated.version, layout, self.steps_run, &spent, Some(&planned), circumstances);
        made.tuned_sha256 = Some(self.tuned_sha256.clone()).filter(|_| stated.version > 1);
        Ok(made)
    }
}
