//! What a run gave away: from its settings to what the accountants say of it, and the statement.

use super::settings::{Release, Settings};
use super::transcript::Transcript;
use crate::error::{Error, Result};
use crate::grad::ClipFunction;
use crate::method::{claims, scales};
use crate::privacy::Sampler;
use crate::privacy::statement::{Circumstances, Released, Statement, VERSION};

/// The method's name.
pub const NAME: &str = "ferret-k";

/// The version of the first statements of this method. Earlier rules ask for less.
const OLDEST: u32 = 3;

impl Settings {
    /// The statement of a run that stops after `stop` steps, with what was planned beside what was spent; (eps, delta) is claimed at
    /// `delta`.
    pub fn statement(&self, stop: u32, delta: f64, circumstances: Circumstances) -> Result<Statement> {
        self.statement_by(VERSION, stop, delta, circumstances)
    }

    /// [`Settings::statement`] by the rules of `version`.
    fn statement_by(&self, version: u32, stop: u32, delta: f64, circumstances: Circumstances) -> Result<Statement> {
        let released = Released::NoisedSketches {
            count: self.count_fires(stop, u64::MAX),
            numbers: self.bits_per_step,
            signs: self.release == Release::Sign,
            levels: self.release == Release::Level,
            noise_multiplier: self.noise_multiplier,
            clip: self.clip,
        };
        let mut statement =
            Statement::new(NAME, released, self.sampler, self.records, self.sampling_rate(), stop.into())
                .by_rules_of(version)
                .of_tensors(self.tune.to_string());
        claims::claim(&mut statement, self.event(stop), self.event(self.steps()), delta)?;
        if self.clip_rule == ClipFunction::None {
            statement.not_met.push(
                "not private: sketches were not clipped (clip function none), so no noise bounds what one record does"
                    .into(),
            );
        } else if !self.holds() {
            statement.not_met.push("not private: no noise was added (noise multiplier 0)".into());
        } else if self.sampler != Sampler::Poisson {
            statement.not_met.push(
                "The noise was chosen as if sampling were Poisson; no (eps, delta) is claimed for this sampler".into(),
            );
        }
        let mut statement = statement.finish(circumstances);
        if self.scales.is_some() {
            statement.assumptions.push(scales::are_public("the sketch"));
        }
        Ok(statement)
    }

    /// What a user should know before the run.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "{} numbers a step, noise multiplier {:.4}, clipping bound {}",
            self.bits_per_step, self.noise_multiplier, self.clip
        )];
        if self.scales.is_some() {
            notes.push(scales::note("the sketch has"));
        }
        if !self.holds() {
            notes.push("not private: without clipping or without noise nothing is promised".into());
        }
        if self.sampler != Sampler::Poisson {
            notes.push("(eps, delta) is proven for Poisson sampling only: the statement will promise nats of mutual information alone".into());
        }
        notes
    }
}

impl Transcript {
    /// The statement that a run of this transcript makes, by the rules of the version of `stated`, and with its delta and circumstances:
    /// what no one can recompute.
    pub fn restate(&self, stated: &Statement) -> Result<Statement> {
        if stated.version < OLDEST {
            return Err(Error::Privacy(format!(
                "the statement is of version {}, and those of {NAME} begin at {OLDEST}: it is not what the run wrote",
                stated.version
            )));
        }
        let (delta, circumstances) = (stated.delta().unwrap_or(1e-5), stated.circumstances());
        let mut made = self.settings.statement_by(stated.version, self.steps_run, delta, circumstances)?;
        made.tuned_sha256.clone_from(&self.tuned_sha256);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::dense;
    use crate::model::Layout;
    use crate::model::init::Preset;
    use crate::optim::Route;
    use crate::privacy::guarantee::Guarantee;

    fn claims(statement: &Statement, of: &str) -> Vec<(String, f64, f64)> {
        let claims = statement.claims.iter().filter(|c| c.of == of);
        let pairs = claims.filter_map(|c| match c.guarantee {
            Guarantee::EpsDelta { eps, delta, .. } => Some((c.accountant.clone(), eps, delta)),
            _ => None,
        });
        pairs.collect()
    }

    /// For any k, signs, levels or scalars: the (eps, delta) of DPSGD with the same sampling rate, noise and steps, to the last digit.
    #[test]
    fn eps_and_delta_are_dpsgds() {
        let layout = Layout::new(&Preset::Tiny.config());
        let settings = Settings { records: 1600, epochs: 3, ..Settings::usual(1.52) };
        let privacy = dense::Privacy {
            noise_multiplier: 1.52,
            clip: 1.0,
            clip_rule: ClipFunction::Automatic,
            clip_style: dense::ClipStyle::Flat,
            clip_groups: None,
        };
        let common = settings.common();
        let dpsgd = dense::Settings {
            method: dense::Method::Dpsgd(privacy),
            tune: settings.tune.clone(),
            adapter: None,
            scales: None,
            records: 1600,
            batch: 50,
            epochs: 3,
            steps: None,
            sampler: Sampler::Poisson,
            micro_batch: 8,
            route: Route::Adamw,
            learning_rate: 1e-3,
            schedule: common.schedule,
            weight_decay: 0.0,
            seed: 0,
        };
        for stop in [96, 40] {
            let theirs = dpsgd.statement(&layout, stop, 1e-5, Circumstances::default()).unwrap();
            for (bits_per_step, release) in
                [(1, Release::Sign), (1024, Release::Sign), (1024, Release::Level), (1024, Release::Scalar)]
            {
                let own = Settings { bits_per_step, release, ..settings.clone() };
                let own = own.statement(stop, 1e-5, Circumstances::default()).unwrap();
                for of in ["spent", "planned"] {
                    assert_eq!(claims(&own, of), claims(&theirs, of));
                    assert_eq!(claims(&own, of).len(), 2);
                }
                assert!(own.nats_charged.unwrap() <= theirs.nats_charged.unwrap());
                assert!(own.not_met.is_empty() && own.is_private());
            }
        }
        let theirs = dpsgd.statement(&layout, 96, 1e-5, Circumstances::default()).unwrap();
        let eps = claims(&theirs, "spent")[0].1;
        assert!((0.95..1.0).contains(&eps), "{eps}: some 0.967 by any accountant");
    }

    #[test]
    fn silent_steps_spend_nothing_and_what_is_not_protected_promises_nothing() {
        let settings = Settings { records: 1600, epochs: 3, ..Settings::usual(1.5) };
        let eps = |s: &Settings| claims(&s.statement(96, 1e-5, Circumstances::default()).unwrap(), "spent")[0].1;
        let half = Settings { p: 0.5, ..settings.clone() };
        let as_many = Settings { steps: Some(half.count_fires(96, u64::MAX) as u32), ..settings.clone() };
        assert_eq!(eps(&half), claims(&as_many.statement(96, 1e-5, Circumstances::default()).unwrap(), "spent")[0].1);
        assert!(eps(&half) < eps(&settings));
        for open in [
            Settings { noise_multiplier: 0.0, ..settings.clone() },
            Settings { clip_rule: ClipFunction::None, ..settings.clone() },
        ] {
            let statement = open.statement(96, 1e-5, Circumstances::default()).unwrap();
            assert!(!statement.is_private() && statement.not_met[0].starts_with("not private"), "{statement:?}");
            assert!(statement.event.is_none() && statement.nats_charged.is_none());
        }
        let shuffled = Settings { sampler: Sampler::Shuffle, ..settings };
        let statement = shuffled.statement(96, 1e-5, Circumstances::default()).unwrap();
        assert!(statement.is_private() && claims(&statement, "spent").is_empty() && statement.not_met.len() == 2);
        // A run in which no step computes releases nothing.
        let none = Settings { p: 1e-9, ..shuffled };
        assert_eq!(none.statement(96, 1e-5, Circumstances::default()).unwrap().nats_charged, Some(0.0));
    }

    #[test]
    fn no_statement_is_older_than_the_method() {
        let settings = Settings { records: 1600, epochs: 3, ..Settings::usual(1.5) };
        let transcript = Transcript {
            base_sha256: String::new(),
            tuned_sha256: None,
            releases: super::super::Releases::none(settings.release),
            settings,
            steps_run: 0,
        };
        let mut stated = transcript.settings.statement(0, 1e-5, Circumstances::default()).unwrap();
        transcript.restate(&stated).unwrap();
        stated.version = OLDEST - 1;
        assert!(transcript.restate(&stated).unwrap_err().to_string().contains("begin at 3"));
    }
}
