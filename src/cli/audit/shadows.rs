//! Shadow models of a membership audit: who is trained on what, and what they say.

use super::pair::{Bar, OnDecoder, Pair, Reading, go_on, with_decoder};
use crate::audit::stats::Seeded;
use crate::backend::Backend;
use crate::cli::common::{Compute, Job};
use crate::data::Example;
use crate::error::{Error, Result};
use crate::measure::attacks::ShadowScores;
use crate::measure::shadow::{Changes, Known, Method, Store, Task, halves, in_parallel, subsets};
use crate::measure::{Cache, cached_log_probs, log_probs};
use crate::model::{Decoder, Weights, memory};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// LiRA and RMIA.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Shadow models (LiRA, RMIA)")]
pub(super) struct ShadowArgs {
    /// Train K shadow models. Online (without --shadow-data, or with --shadow-online): on random halves of all candidates, so that
    /// each is in half of the models
    #[arg(long, value_name = "K", default_value_t = 0)]
    shadows: usize,
    /// Records of the same source that are no candidates: shadow models are trained on them, and a fifth is RMIA's population
    #[arg(long, value_name = "FILE", requires = "shadows")]
    shadow_data: Option<PathBuf>,
    /// With --shadow-data: train on the candidates too, as the strongest attack does
    #[arg(long, requires = "shadow_data")]
    shadow_online: bool,
    /// ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, nonprivate, dpsgd, dp-signsgd, signsgd or qsgd [default: the
    /// audited run's own method, with the settings that its folder tells, else nonprivate]
    #[arg(long, value_name = "METHOD")]
    shadow_method: Option<String>,
    /// FERRET's budget in nats [default: the audited run's, else 0.5]
    #[arg(long, value_name = "NATS")]
    shadow_epsilon: Option<f64>,
    /// DPSGD's noise over its clipping bound [default: the audited run's]
    #[arg(long, value_name = "SIGMA")]
    shadow_noise_multiplier: Option<f64>,
    /// Passes over the records [default: the audited run's, else 1]
    #[arg(long, value_name = "N")]
    shadow_epochs: Option<u32>,
    /// Expected batch size [default: the audited run's, else 50]
    #[arg(long, value_name = "N")]
    shadow_batch: Option<u64>,
    /// Peak learning rate [default: the audited run's, else the paper's]
    #[arg(long, value_name = "RATE")]
    shadow_learning_rate: Option<f64>,
    /// Seed of who is trained on what
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    shadow_seed: u64,
    /// Shadow models trained at once [default: as many as threads, if their memory stays below 2 GiB; else one, with all threads]
    #[arg(long, value_name = "N")]
    shadow_jobs: Option<usize>,
    /// A folder that keeps whole shadow models by the hash of their settings and records, for audits of other records too [default:
    /// the audit's cache keeps what they say about these records, and FERRET's transcripts]
    #[arg(long, value_name = "FOLDER")]
    shadow_cache: Option<PathBuf>,
}

/// What will be trained.
pub(super) struct Plan {
    method: Method,
    /// Candidates (members, then non-members) and the rest of the shadow data.
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

impl ShadowArgs {
    /// The plan, or none where no shadow models are asked for.
    pub fn plan(
        &self,
        pair: &mut Pair,
        inside: &[Example],
        outside: &[Example],
        reading: Reading,
        known: Known,
        cache: &Cache,
    ) -> Result<Option<Plan>> {
        if self.shadow_batch == Some(0) {
            return Err(Error::usage("--shadow-batch 0: a batch has at least 1 record"));
        }
        if self.shadows == 0 {
            return Ok(None);
        }
        if self.shadows < 2 {
            return Err(Error::usage(
                "--shadows 1: a spread needs at least 2 shadow models, and 16 or more say something",
            ));
        }
        let online = self.shadow_data.is_none() || self.shadow_online;
        let mut pool: Vec<Example> = if online { [inside, outside].concat() } else { Vec::new() };
        let mut population = Vec::new();
        if let Some(path) = &self.shadow_data {
            let mut rest = pair.records(path, reading)?;
            let known: std::collections::HashSet<&[u32]> = inside.iter().chain(outside).map(|e| &e.ids[..]).collect();
            let before = rest.len();
            rest.retain(|e| !known.contains(&e.ids[..]));
            if rest.len() < before {
                let note =
                    format!("{}: {} records are candidates and were left out", path.display(), before - rest.len());
                pair.notes.push(note);
            }
            Seeded::new(self.shadow_seed ^ 0x706f_7075).shuffle(&mut rest);
            population = rest.split_off(rest.len() - rest.len() / 5);
            pool.extend(rest);
        } else {
            pair.notes
                .push("RMIA needs a population that no model was trained on: give --shadow-data to have it".into());
        }
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
                subsets(pool.len(), size, self.shadows, self.shadow_seed)
            }
            _ => halves(pool.len(), self.shadows, self.shadow_seed),
        };
        let name = self.shadow_method.as_deref().or(known.method()).unwrap_or("nonprivate");
        let changes = Changes {
            epsilon: self.shadow_epsilon,
            noise_multiplier: self.shadow_noise_multiplier,
            batch: self.shadow_batch,
            epochs: self.shadow_epochs,
            learning_rate: self.shadow_learning_rate,
        };
        let size = trained[0].iter().filter(|&&t| t).count();
        let method = Method::named(name, &pair.base.weights.layout, known, changes, size)?;
        if online && self.shadows < 4 {
            return Err(Error::usage(format!(
                "--shadows {}: online, each record is in half of the shadow models, and a spread needs two: give at least 4",
                self.shadows
            )));
        }
        // Whoever says how long the shadows train means that.
        let share = if self.shadow_epochs.is_some() { 1.0 } else { known.share(name) };
        let store = match (&self.shadow_cache, cache.dir()) {
            (Some(dir), _) => Store::at(dir)?,
            (None, Some(dir)) => Store::light(&dir.join("shadows"))?,
            (None, None) => Store::none(),
        };
        let jobs = self.shadow_jobs.unwrap_or_else(|| {
            let longest = pool.iter().map(|e| e.ids.len()).max().unwrap_or(1);
            let needs = memory::estimate(&pair.base.weights.config, 8, longest);
            let each = needs.iter().find(|n| n.kind == "non-private, adamw").map_or(u64::MAX, |n| n.total());
            let threads = rayon::current_num_threads();
            if each.saturating_mul(threads as u64) <= 2 << 30 { threads } else { 1 }
        });
        let (seed, fresh) = (self.shadow_seed, AtomicUsize::new(0));
        Ok(Some(Plan { method, pool, trained, population, jobs, store, seed, online, share, fresh }))
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
}

/// Train or fetch every shadow model and score `all` (candidates, then population) by it.
#[allow(clippy::too_many_arguments)]
pub(super) fn scores(
    plan: &Plan,
    pair: &Pair,
    base: Weights,
    all: &[Example],
    candidates: usize,
    members: usize,
    target: Vec<f64>,
    cache: &Cache,
    compute: &Compute,
    quiet: bool,
) -> Result<ShadowScores> {
    let bar = Bar::new(plan.trained.len(), "shadow models", quiet);
    let scored = in_parallel(plan.trained.len(), plan.jobs, |shadow| {
        go_on()?;
        let chosen = plan.pool.iter().zip(&plan.trained[shadow]).filter(|(_, t)| **t).map(|(e, _)| e.clone());
        let records: Vec<Example> = chosen.collect();
        // Settings name the number of records; of an odd pool every other half has one less.
        let method = plan.method.sized(records.len())?;
        let task = Task {
            base: base.clone(),
            base_sha256: &pair.base_sha256,
            method: &method,
            records: &records,
            share: plan.share,
            seed: plan.seed.wrapping_add(shadow as u64 + 1),
        };
        let key = task.key();
        let scores = match cached_log_probs(&key, all, cache) {
            Some(scores) => scores,
            None => {
                let (weights, fresh) = compute.run(Train { store: &plan.store, task })?;
                plan.fresh.fetch_add(usize::from(fresh), Ordering::SeqCst);
                with_decoder(compute, weights, Say { key: &key, all, cache })?
            }
        };
        bar.step(1)?;
        Ok(scores)
    })?;
    let cut = |row: &Vec<f64>| row[..candidates].to_vec();
    let in_pool = |set: &Vec<bool>| if plan.online { set[..candidates].to_vec() } else { vec![false; candidates] };
    Ok(ShadowScores {
        shadows: scored.iter().map(cut).collect(),
        trained: plan.trained.iter().map(in_pool).collect(),
        population: target[candidates..].to_vec(),
        population_shadows: scored.iter().map(|row| row[candidates..].to_vec()).collect(),
        target: target[..candidates].to_vec(),
        members,
    })
}

struct Train<'a> {
    store: &'a Store,
    task: Task<'a>,
}

impl Job for Train<'_> {
    type Output = (Weights, bool);

    fn run<B: Backend>(self, backend: B) -> Result<(Weights, bool)> {
        self.store.get(backend, self.task, go_on)
    }
}

struct Say<'a> {
    key: &'a str,
    all: &'a [Example],
    cache: &'a Cache,
}

impl OnDecoder for Say<'_> {
    type Output = Vec<f64>;

    fn run<B: Backend>(self, decoder: &Decoder<B>) -> Result<Vec<f64>> {
        log_probs(decoder, self.key, self.all, self.cache, |_| go_on())
    }
}
