//! Which shadow models an audit compares with: who is trained on what, and what they say.

use super::{Changes, Known, Method, Store, Task, halves, in_parallel, subsets};
use crate::audit::stats::Seeded;
use crate::backend::{Backend, Device, Job};
use crate::data::Example;
use crate::error::{Error, Result};
use crate::measure::attacks::ShadowScores;
use crate::measure::pair::{OnDecoder, with_decoder};
use crate::measure::{Cache, cached_log_probs, log_probs};
use crate::model::{Decoder, Weights, memory};
use crate::progress::Progress;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Shadows {
    /// How many shadow models.
    pub count: usize,
    /// Records of the same source that are no candidates: shadow models are trained on them, and a fifth is RMIA's population.
    pub others: Option<Vec<Example>>,
    /// Train on the candidates too, as the strongest attack does. Without other records that is the only way.
    pub online: bool,
    /// The method's name; none: the audited run's own, else `nonprivate`.
    pub method: Option<String>,
    /// What differs from the audited run's settings.
    pub changes: Changes,
    /// Decides who is trained on what.
    pub seed: u64,
    /// How many are trained at once; none: as many as threads, if their memory stays below 2 GiB, else one, with all threads.
    pub jobs: Option<usize>,
    /// Where trained models are kept.
    pub store: Store,
}

/// What will be trained.
pub struct Plan {
    method: Method,
    /// Candidates (members, then non-members) and the rest of the other records.
    pool: Vec<Example>,
    /// `[shadow][pool record]`.
    trained: Vec<Vec<bool>>,
    /// RMIA's population.
    pub population: Vec<Example>,
    jobs: usize,
    store: Store,
    seed: u64,
    online: bool,
    share: f64,
    /// How many were really trained, the others being found.
    fresh: AtomicUsize,
}

impl Shadows {
    /// Who is trained on what, and by which settings, for an audit of these candidates on models like `base`. The second value is a
    /// note for the reader.
    pub fn plan(
        self,
        base: &Weights,
        members: &[Example],
        nonmembers: &[Example],
        known: Known,
    ) -> Result<(Plan, Option<String>)> {
        let Self { count, others, online, method, changes, seed, jobs, store } = self;
        if changes.batch == Some(0) {
            return Err(Error::usage("`shadow_batch` 0: a batch has at least 1 record"));
        }
        if count < 2 {
            return Err(Error::usage(format!(
                "`shadows` {count}: a spread needs at least 2 shadow models, and 16 or more say something"
            )));
        }
        let online = online || others.is_none();
        let mut pool: Vec<Example> = if online { [members, nonmembers].concat() } else { Vec::new() };
        let mut population = Vec::new();
        let note = match others {
            Some(mut rest) => {
                let candidates: HashSet<&[u32]> = members.iter().chain(nonmembers).map(|e| &e.ids[..]).collect();
                let before = rest.len();
                rest.retain(|e| !candidates.contains(&e.ids[..]));
                let dropped = before - rest.len();
                Seeded::new(seed ^ 0x706f_7075).shuffle(&mut rest);
                population = rest.split_off(rest.len() - rest.len() / 5);
                pool.extend(rest);
                (dropped > 0).then(|| format!("{dropped} records for shadow models are candidates and were left out"))
            }
            None => Some("RMIA needs a population that no model was trained on: give `shadow_data` to have it".into()),
        };
        if pool.len() < 4 {
            return Err(Error::usage(format!(
                "{} records to train shadow models on: at least 4 are needed",
                pool.len()
            )));
        }
        let trained = match (online, known.records()) {
            (false, Some(records)) => {
                // Like the audited run where there are enough records, yet different from each other.
                let size = (records as usize).min(pool.len().div_ceil(2));
                subsets(pool.len(), size, count, seed)
            }
            _ => halves(pool.len(), count, seed),
        };
        let name = method.as_deref().or(known.method()).unwrap_or("nonprivate");
        let size = trained[0].iter().filter(|&&t| t).count();
        let method = Method::named(name, &base.layout, known, changes, size)?;
        if online && count < 4 {
            return Err(Error::usage(format!(
                "`shadows` {count}: online, each record is in half of the shadow models, and a spread needs two: give at least 4"
            )));
        }
        // Whoever says how long the shadows train means that.
        let share = if changes.epochs.is_some() { 1.0 } else { known.share(name) };
        let jobs = jobs.unwrap_or_else(|| {
            let longest = pool.iter().map(|e| e.ids.len()).max().unwrap_or(1);
            let needs = memory::estimate(&base.config, 8, longest);
            let each = needs.iter().find(|n| n.kind == "non-private, adamw").map_or(u64::MAX, |n| n.total());
            let threads = rayon::current_num_threads();
            if each.saturating_mul(threads as u64) <= 2 << 30 { threads } else { 1 }
        });
        let fresh = AtomicUsize::new(0);
        Ok((Plan { method, pool, trained, population, jobs, store, seed, online, share, fresh }, note))
    }
}

impl Plan {
    /// For the report.
    pub fn describe(&self) -> Value {
        json!({
            "count": self.trained.len(), "online": self.online, "method": self.method, "pool": self.pool.len(),
            "trained_on": self.trained[0].iter().filter(|&&t| t).count(), "population": self.population.len(),
            "share_of_steps": self.share, "trained_now": self.fresh.load(Ordering::SeqCst),
        })
    }

    /// Train or fetch every shadow model and score `all` (members, candidates that are none, then population) by it. `split` is where
    /// the members end and where the candidates do; `target` are the audited model's scores.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::measure) fn scores(
        &self,
        base: Weights,
        base_sha256: &str,
        all: &[Example],
        split: (usize, usize),
        target: Vec<f64>,
        cache: &Cache,
        device: Device,
        progress: &dyn Progress,
    ) -> Result<ShadowScores> {
        let (members, candidates) = split;
        progress.begin("shadow models", self.trained.len() as u64);
        let scored = in_parallel(self.trained.len(), self.jobs, |shadow| {
            progress.advance(0)?;
            let chosen = self.pool.iter().zip(&self.trained[shadow]).filter(|(_, t)| **t).map(|(e, _)| e.clone());
            let records: Vec<Example> = chosen.collect();
            // Settings name the number of records; of an odd pool every other half has one less.
            let method = self.method.sized(records.len())?;
            let task = Task {
                base: base.clone(),
                base_sha256,
                method: &method,
                records: &records,
                share: self.share,
                seed: self.seed.wrapping_add(shadow as u64 + 1),
            };
            let key = task.key();
            let scores = match cached_log_probs(&key, all, cache) {
                Some(scores) => scores,
                None => {
                    let (weights, fresh) = device.run(Train { store: &self.store, task, progress }, progress)?;
                    self.fresh.fetch_add(usize::from(fresh), Ordering::SeqCst);
                    with_decoder(device, weights, Say { key: &key, all, cache, progress }, progress)?
                }
            };
            progress.advance(1)?;
            Ok(scores)
        })?;
        progress.end();
        let cut = |row: &Vec<f64>| row[..candidates].to_vec();
        let in_pool = |set: &Vec<bool>| if self.online { set[..candidates].to_vec() } else { vec![false; candidates] };
        Ok(ShadowScores {
            shadows: scored.iter().map(cut).collect(),
            trained: self.trained.iter().map(in_pool).collect(),
            population: target[candidates..].to_vec(),
            population_shadows: scored.iter().map(|row| row[candidates..].to_vec()).collect(),
            target: target[..candidates].to_vec(),
            members,
        })
    }
}

struct Train<'a> {
    store: &'a Store,
    task: Task<'a>,
    progress: &'a dyn Progress,
}

impl Job for Train<'_> {
    type Output = (Weights, bool);

    fn run<B: Backend>(self, backend: B) -> Result<(Weights, bool)> {
        self.store.get(backend, self.task, || self.progress.advance(0))
    }
}

struct Say<'a> {
    key: &'a str,
    all: &'a [Example],
    cache: &'a Cache,
    progress: &'a dyn Progress,
}

impl OnDecoder for Say<'_> {
    type Output = Vec<f64>;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Vec<f64>> {
        log_probs(decoder, self.key, self.all, self.cache, |_| self.progress.advance(0))
    }
}
