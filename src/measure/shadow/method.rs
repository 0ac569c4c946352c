//! How a shadow model is trained: as the audited model was, as far as its folder tells.

use super::MICRO_BATCH;
use crate::error::{Error, Result};
use crate::method::dense::{self, ClipFunction, ClipStyle, Privacy, Variant};
use crate::method::ferret::{Cuts, Settings};
use crate::method::groups::{Grouping, Groups};
use crate::method::{Method, Record, Tune, ferret_k};
use crate::model::Layout;
use crate::optim::Schedule;
use crate::privacy::Sampler;
use crate::privacy::statement::{Released, Statement};

/// What the audited model's folder tells about its training.
#[derive(Clone, Copy, Debug, Default)]
pub struct Knowledge<'a> {
    /// Its record: settings, steps, hashes.
    pub record: Option<&'a Record>,
    /// Of any run, one whose other files are gone too: method, sizes, noise, but no learning rate.
    pub statement: Option<&'a Statement>,
}

impl Knowledge<'_> {
    /// The method's name.
    pub fn method(&self) -> Option<&str> {
        self.record.map(Record::name).or(self.statement.map(|s| s.method.as_str()))
    }

    /// How many records it was trained on.
    pub fn records(&self) -> Option<u64> {
        self.run().map(|(method, _)| method.common().records).or(self.statement.map(|s| s.records))
    }

    /// The share of its planned steps that a run by the method `name` made: below 1 where it was told to stop early.
    pub fn share(&self, name: &str) -> f64 {
        self.own(name).map_or(1.0, |(method, steps_run)| f64::from(steps_run) / f64::from(method.steps()))
    }

    /// The method and its settings, and how many steps it made.
    fn run(&self) -> Option<(Method, u32)> {
        self.record.map(|r| (r.method(), r.steps_run()))
    }

    fn own(&self, name: &str) -> Option<(Method, u32)> {
        self.run().filter(|(method, _)| method.name() == name)
    }
}

/// What may be asked to differ from the audited run's settings or the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// FERRET's budget in nats.
    pub epsilon: Option<f64>,
    /// DPSGD's noise over its clipping bound.
    pub noise_multiplier: Option<f64>,
    /// Expected batch size.
    pub batch: Option<u64>,
    /// Passes over the records.
    pub epochs: Option<u32>,
    /// Peak learning rate.
    pub learning_rate: Option<f64>,
}

impl Changes {
    /// The settings with what is to differ.
    fn apply(self, mut method: Method) -> Method {
        let (batch, epochs, rate) = match &mut method {
            Method::Ferret(s) => {
                s.epsilon = self.epsilon.unwrap_or(s.epsilon);
                (&mut s.batch, &mut s.epochs, &mut s.learning_rate)
            }
            Method::FerretK(s) => {
                s.noise_multiplier = self.noise_multiplier.unwrap_or(s.noise_multiplier);
                (&mut s.batch, &mut s.epochs, &mut s.learning_rate)
            }
            Method::Dense(s) => {
                if let (dense::Method::Dpsgd(p) | dense::Method::DpSignsgd(p), Some(noise)) =
                    (&mut s.method, self.noise_multiplier)
                {
                    p.noise_multiplier = noise;
                }
                (&mut s.batch, &mut s.epochs, &mut s.learning_rate)
            }
        };
        *batch = self.batch.unwrap_or(*batch);
        *epochs = self.epochs.unwrap_or(*epochs);
        *rate = self.learning_rate.unwrap_or(*rate);
        method
    }
}

impl Method {
    /// The method called `name` for models of `layout`, on `records` records: settings from `changes`, else from what is `known` of a run
    /// by the same method, else the paper's (FERRET at 0.5 nats).
    pub fn named(name: &str, layout: &Layout, known: Knowledge, changes: Changes, records: usize) -> Result<Method> {
        if let Some((method, _)) = known.own(name) {
            return changes.apply(method).sized(records);
        }
        let statement = known.statement.filter(|s| s.method == name);
        let (batch, epochs) = statement.map_or((50, 1), |s| {
            let batch = (s.sampling_rate * s.records as f64).round().max(1.0);
            let epochs = (s.steps as f64 / (s.records as f64 / batch).ceil()).round().max(1.0);
            (batch as u64, epochs as u32)
        });
        let tune = match statement.and_then(|s| s.tune.as_deref()) {
            Some(text) => text.parse::<Tune>().map_err(Error::usage)?,
            None => Tune::default(),
        };
        if name == ferret_k::NAME {
            let (noise, released) = (changes.noise_multiplier, statement.map(|s| &s.released));
            let settings = ferret_k::Settings { tune, ..sketches(released, noise, batch, epochs)? };
            return changes.apply(Method::FerretK(settings)).sized(records);
        }
        let method = match (dense_method(name, statement, changes)?, Grouping::of_method(name)) {
            (Some(method), _) => {
                let plain = method == dense::Method::Nonprivate;
                Method::Dense(dense::Settings {
                    tune,
                    batch,
                    epochs,
                    sampler: statement.map_or(Sampler::Poisson, |s| s.sampler),
                    micro_batch: MICRO_BATCH,
                    learning_rate: if plain { 1e-4 } else { 2e-4 },
                    schedule: if plain { Schedule::Linear { warmup: 0.1 } } else { Schedule::Constant },
                    ..dense::Settings::usual(method)
                })
            }
            (None, Some(grouping)) => {
                let tuned = tune.ids(layout)?;
                let groups = Cuts::over(&tuned, &Groups::tuned(&tuned, grouping)?.members)?;
                Method::Ferret(Settings { tune, batch, epochs, ..Settings::paper(name, groups) })
            }
            (None, None) => {
                return Err(Error::usage(format!(
                    "shadow models cannot be trained by {name}: ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, ferret-k, \
                 nonprivate, dpsgd, dp-signsgd, signsgd, qsgd, or the method of the audited model's transcript"
                )));
            }
        };
        changes.apply(method).sized(records)
    }
}

/// FERRET-k as far as a statement tells.
fn sketches(
    released: Option<&Released>,
    noise_multiplier: Option<f64>,
    batch: u64,
    epochs: u32,
) -> Result<ferret_k::Settings> {
    let stated = released.and_then(|r| match *r {
        Released::NoisedSketches { numbers, signs, levels, noise_multiplier, clip, .. } => {
            Some((numbers, ferret_k::Release::stated(signs, levels), noise_multiplier, clip))
        }
        _ => None,
    });
    let noise = noise_multiplier.or(stated.map(|s| s.2)).ok_or_else(|| {
        Error::usage("shadow models by ferret-k need `shadow_noise_multiplier`: no statement tells the audited run's")
    })?;
    let usual = ferret_k::Settings { batch, epochs, micro_batch: MICRO_BATCH, ..ferret_k::Settings::usual(noise) };
    let bits_per_step = ferret_k::Settings::usual_bits(usual.release, batch, noise);
    Ok(match stated {
        None => ferret_k::Settings { bits_per_step, ..usual },
        Some((bits_per_step, release, _, clip)) => ferret_k::Settings { bits_per_step, release, clip, ..usual },
    })
}

/// The dense method of this name; none for other names.
fn dense_method(name: &str, statement: Option<&Statement>, changes: Changes) -> Result<Option<dense::Method>> {
    let privacy = || {
        let (noise, clip) = match statement.map(|s| &s.released) {
            Some(&Released::NoisedSums { noise_multiplier, clip, .. }) => (Some(noise_multiplier), clip),
            _ => (None, 1.0),
        };
        let noise_multiplier = changes.noise_multiplier.or(noise).ok_or_else(|| {
            Error::usage(format!(
                "shadow models by {name} need `shadow_noise_multiplier`: no statement tells the audited run's"
            ))
        })?;
        let (clip_rule, clip_style) = (ClipFunction::default(), ClipStyle::default());
        Ok(Privacy { noise_multiplier, clip, clip_rule, clip_style, clip_groups: None })
    };
    Ok(Some(match name {
        "nonprivate" => dense::Method::Nonprivate,
        "dpsgd" => dense::Method::Dpsgd(privacy()?),
        "dp-signsgd" => dense::Method::DpSignsgd(privacy()?),
        "signsgd" => dense::Method::Signsgd { variant: Variant::Plain },
        "qsgd" => dense::Method::Qsgd { bits: 8 },
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::Preset;

    #[test]
    fn settings_come_from_flags_then_the_run_then_the_paper() {
        let layout = Layout::new(&Preset::Tiny.config());
        let released = Released::NoisedSums { count: 40, noise_multiplier: 1.3, clip: 0.5, bits_per_update: None };
        let statement = Statement::new("dpsgd", released, Sampler::Poisson, 400, 0.05, 40);
        let known = Knowledge { statement: Some(&statement), ..Knowledge::default() };
        let Method::Dense(s) = Method::named("dpsgd", &layout, known, Changes::default(), 100).unwrap() else {
            panic!()
        };
        assert_eq!((s.records, s.batch, s.epochs, s.steps(), s.sampling_rate()), (100, 20, 2, 10, 0.2));
        let privacy = s.method.privacy().unwrap();
        assert_eq!((privacy.noise_multiplier, privacy.clip), (1.3, 0.5));
        let changes = Changes { batch: Some(7), noise_multiplier: Some(2.0), epochs: Some(3), ..Changes::default() };
        let Method::Dense(s) = Method::named("dpsgd", &layout, known, changes, 100).unwrap() else { panic!() };
        assert_eq!((s.batch, s.steps(), s.method.privacy().unwrap().noise_multiplier), (7, 45, 2.0));
        // Nothing of another method's run is taken over.
        let Method::Dense(s) = Method::named("nonprivate", &layout, known, Changes::default(), 30).unwrap() else {
            panic!()
        };
        assert_eq!((s.batch, s.epochs, s.learning_rate), (30, 1, 1e-4));
        let none = Knowledge::default();
        let error = Method::named("dpsgd", &layout, none, Changes::default(), 100).unwrap_err().to_string();
        assert!(error.contains("`shadow_noise_multiplier`"), "{error}");
        let Method::Ferret(s) = Method::named("ferret-2", &layout, none, Changes::default(), 100).unwrap() else {
            panic!()
        };
        assert_eq!((s.groups.len(), s.records, s.steps(), s.epsilon), (2, 100, 2, 0.5));
        assert!(Method::named("magic", &layout, none, Changes::default(), 100).is_err());
        // A batch of nothing is not taken for one of 1.
        for name in ["ferret-2", "nonprivate"] {
            let changes = Changes { batch: Some(0), ..Changes::default() };
            let error = Method::named(name, &layout, none, changes, 100).unwrap_err().to_string();
            assert!(error.contains("a batch of 0"), "{error}");
        }
    }
}
