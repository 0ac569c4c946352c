//! What a run gave away: what the accountants say of its steps, and the statement.

use super::settings::{Method, Privacy, Record, Settings, Variant};
use crate::error::Result;
use crate::grad::ClipFunction;
use crate::method::{claims, scales};
use crate::model::Layout;
use crate::privacy::Sampler;
use crate::privacy::statement::{Circumstances, Released, Statement, VERSION};

impl Settings {
    /// The statement of a run that stops after `stop` steps, with what was planned beside what was spent; (eps, delta) is claimed at
    /// `delta`. `layout` is that of its model.
    pub fn statement(&self, layout: &Layout, stop: u32, delta: f64, circumstances: Circumstances) -> Result<Statement> {
        self.statement_by(VERSION, layout, stop, delta, circumstances)
    }

    /// [`Settings::statement`] by the rules of `version`.
    fn statement_by(
        &self,
        version: u32,
        layout: &Layout,
        stop: u32,
        delta: f64,
        circumstances: Circumstances,
    ) -> Result<Statement> {
        let count = u64::from(stop);
        let bits_per_update = match self.method.compresses() {
            true => Some(self.method.bits_per_update(layout, &self.tune.ids(layout)?) as f64),
            false => None,
        };
        let released = match self.method.privacy() {
            Some(&Privacy { noise_multiplier, clip, .. }) => {
                Released::NoisedSums { count, noise_multiplier, clip, bits_per_update }
            }
            None => Released::Gradients { count, bits_per_update },
        };
        let mut statement =
            Statement::new(self.method.name(), released, self.sampler, self.records, self.sampling_rate(), count)
                .by_rules_of(version)
                .of_tensors(self.tune.to_string());
        claims::claim(&mut statement, self.event(stop), self.event(self.steps()), delta)?;
        match self.method.privacy() {
            Some(p) if p.clip_rule == ClipFunction::None => statement.not_met.push(
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
        let mut statement = statement.finish(circumstances);
        if let Some(given) = &self.scales {
            given.check_count(self.tune.ids(layout)?.len())?;
            statement.assumptions.push(scales::are_public("gradients"));
        }
        Ok(statement)
    }
}

impl Settings {
    /// What a user should know before the run.
    pub fn notes(&self) -> Vec<String> {
        let Some(privacy) = self.method.privacy() else {
            return vec![format!("{} is not private", self.method.name())];
        };
        let mut notes =
            vec![format!("noise multiplier {:.4}, clipping bound {}", privacy.noise_multiplier, privacy.clip)];
        if self.scales.is_some() {
            notes.push(scales::note("gradients have"));
        }
        if !privacy.holds() {
            notes.push("not private: without clipping or without noise nothing is promised".into());
        }
        if self.sampler != Sampler::Poisson {
            notes.push("(eps, delta) is proven for Poisson sampling only: the statement will promise nats of mutual information alone".into());
        }
        notes
    }
}

impl Record {
    /// The statement that a run of this record makes, by the rules of the version of `stated`, and with its delta and circumstances:
    /// what no one can recompute. `layout` is that of its model.
    pub fn restate(&self, layout: &Layout, stated: &Statement) -> Result<Statement> {
        let (delta, circumstances) = (stated.delta().unwrap_or(1e-5), stated.circumstances());
        let mut made = self.settings.statement_by(stated.version, layout, self.steps_run, delta, circumstances)?;
        made.tuned_sha256 = Some(self.tuned_sha256.clone()).filter(|_| stated.version > 1);
        Ok(made)
    }
}
