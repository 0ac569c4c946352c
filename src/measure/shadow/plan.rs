//! Which shadow models an audit compares with: who is trained on what, and what they say.

use super::elsewhere::{Entry, rebuild};
use super::{Changes, Knowledge, Method, Shadow, Store, Task, halves, subsets, train_shadow};
use crate::audit::stats::SeededRng;
use crate::backend::{Backend, Device, Job};
use crate::data::Example;
use crate::error::{Error, Result};
use crate::measure::attacks::ShadowScores;
use crate::measure::pair::{OnDecoder, with_decoder};
use crate::measure::tokens::keep_log_probs;
use crate::measure::{Cache, cached_log_probs, log_probs};
use crate::model::{Decoder, Weights, footprint};
use crate::progress::Progress;
use crate::ranks::pieces::{StopCheck, spread};
use crate::ranks::{Ranks, broadcast, gather_numbers};
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
        known: Knowledge,
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
                SeededRng::new(seed ^ 0x706f_7075).shuffle(&mut rest);
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
            let needs = footprint::estimate(&base.config, 8, longest);
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

    /// What decides the scores of every shadow model, in a few words: ranks compare it.
    pub(in crate::measure) fn identity(&self) -> String {
        let sets: Vec<u8> = self.trained.iter().flatten().map(|&t| u8::from(t)).collect();
        let pool = crate::data::examples_sha256(&self.pool);
        format!("{} {} {pool} {} {}", self.describe(), self.seed, crate::hash::sha256(sets), self.store.is_whole())
    }

    /// Train or fetch every shadow model and score `all` (members, candidates that are none, then population) by it. `split` is where
    /// the members end and where the candidates do; `target` are the audited model's scores.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::measure) fn scores(
        &self,
        ranks: &dyn Ranks,
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
        let cache = cache.here();
        progress.begin("shadow models", self.trained.len() as u64);
        let of = |shadow: usize| Piece { plan: self, base: &base, base_sha256, shadow };
        let mut scored: Vec<Vec<f64>> = Vec::with_capacity(self.trained.len());
        let mut found = Vec::new();
        for shadow in 0..self.trained.len() {
            let key = if ranks.is_first() { of(shadow).key()? } else { String::new() };
            let kept = ranks.is_first().then(|| cached_log_probs(&key, all, &cache)).flatten();
            let kept =
                gather_numbers(ranks, "scores that are kept", kept.as_deref().unwrap_or_default())?.swap_remove(0);
            if kept.is_empty() {
                found.push((
                    shadow,
                    if ranks.is_first() { self.store.find(&key)? } else { Entry::Nothing { fresh: true } },
                ));
            } else {
                progress.advance(1)?;
            }
            scored.push(kept);
        }
        let told = broadcast(ranks, "shadow models that are kept", &serde_json::to_vec(&found).expect("strings"))?;
        let found: Vec<(usize, Entry)> = serde_json::from_slice(&told)
            .map_err(|e| Error::Rank(format!("the first rank told of no shadow models ({e})")))?;
        let fresh = found.iter().filter(|f| f.1 == Entry::Nothing { fresh: true }).count();
        let work = |at: usize, halted: StopCheck| {
            let (shadow, found) = &found[at];
            let go_on = || match halted() {
                true => Err(Error::Interrupted("given up".into())),
                false => progress.advance(0),
            };
            go_on()?;
            let piece = of(*shadow);
            let (records, method) = piece.records()?;
            let task = piece.task(&records, &method);
            let key = task.key();
            let (weights, record) = match found {
                _ if ranks.is_first() => {
                    (device.run(Train { store: &self.store, task, go_on: &go_on }, progress)?.0, None)
                }
                Entry::Transcript(text) => (rebuild(text, task)?, None),
                Entry::Nothing { .. } => {
                    let Shadow { weights, record } = device.run(Fresh { task, go_on: &go_on }, progress)?;
                    (weights, Some(record))
                }
            };
            let say = Say { key: &key, all, cache: &cache, go_on: &go_on };
            match record {
                None => self.store.parcel(&with_decoder(device, weights, say, progress)?, None),
                Some(record) => {
                    let scores = with_decoder(device, weights.clone(), say, progress)?;
                    self.store.parcel(&scores, Some(&Shadow { weights, record }))
                }
            }
        };
        let done = |at: usize, parcel: Vec<u8>| {
            let shadow = found[at].0;
            let (_, method) = of(shadow).records()?;
            let key = if ranks.is_first() { of(shadow).key()? } else { String::new() };
            scored[shadow] = self.store.unpack(&parcel, all.len(), &key, &base, &method)?;
            if ranks.is_first() {
                keep_log_probs(&key, all, &cache, &scored[shadow])?;
            }
            progress.advance(1)
        };
        spread(ranks, "shadow models", found.len(), self.jobs, work, done)?;
        self.fresh.store(fresh, Ordering::SeqCst);
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

/// One shadow model of a plan.
struct Piece<'a> {
    plan: &'a Plan,
    base: &'a Weights,
    base_sha256: &'a str,
    shadow: usize,
}

impl<'a> Piece<'a> {
    /// What it learns from, and how.
    fn records(&self) -> Result<(Vec<Example>, Method)> {
        let chosen =
            self.plan.pool.iter().zip(&self.plan.trained[self.shadow]).filter(|(_, t)| **t).map(|(e, _)| e.clone());
        let records: Vec<Example> = chosen.collect();
        // Settings name the number of records; of an odd pool every other half has one less.
        let method = self.plan.method.sized(records.len())?;
        Ok((records, method))
    }

    fn task(&self, records: &'a [Example], method: &'a Method) -> Task<'a> {
        let Self { plan, base, base_sha256, shadow } = *self;
        let seed = plan.seed.wrapping_add(shadow as u64 + 1);
        Task { base: base.clone(), base_sha256, method, records, share: plan.share, seed }
    }

    fn key(&self) -> Result<String> {
        let (records, method) = self.records()?;
        let Self { plan, base, base_sha256, shadow } = *self;
        Ok(Piece { plan, base, base_sha256, shadow }.task(&records, &method).key())
    }
}

/// Whether to go on.
type GoOn<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// From the store, or trained and kept there.
struct Train<'a> {
    store: &'a Store,
    task: Task<'a>,
    go_on: GoOn<'a>,
}

impl Job for Train<'_> {
    type Output = (Weights, bool);

    fn run<B: Backend>(self, backend: B) -> Result<(Weights, bool)> {
        self.store.get(backend, self.task, self.go_on)
    }
}

/// Trained, and kept by another process.
struct Fresh<'a> {
    task: Task<'a>,
    go_on: GoOn<'a>,
}

impl Job for Fresh<'_> {
    type Output = Shadow;

    fn run<B: Backend>(self, backend: B) -> Result<Shadow> {
        train_shadow(backend, self.task, self.go_on)
    }
}

struct Say<'a> {
    key: &'a str,
    all: &'a [Example],
    cache: &'a Cache,
    go_on: GoOn<'a>,
}

impl OnDecoder for Say<'_> {
    type Output = Vec<f64>;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Vec<f64>> {
        log_probs(decoder, self.key, self.all, self.cache, |_| (self.go_on)())
    }
}
