//! Shadow models: trained by this engine as the audited model was, on records of the auditor's choosing.
//!
//! [`train_shadow`] trains one; [`Store`] keeps it under the hash of everything it depends on (base, method, seed, records), a FERRET
//! run as its transcript of some kilobytes, any other as a checkpoint. Secret randomness is seeded: shadow models protect nobody.

use super::cache::{examples_sha256, hex};
use crate::audit::stats::Seeded;
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::fsio;
use crate::grad::Sum;
use crate::method::ferret::{
    BatchPer, Engine, Grouping as Cut, MaskKind, Payload, Release, Route, Run, Settings, Trainer, Transcript, replay,
};
use crate::method::groups::{Grouping, Groups};
use crate::method::{Held, Opening, Samples, Sensitive};
use crate::model::checkpoint::{self, SaveOptions};
use crate::model::{Layout, Reduction, Weights};
use crate::optim::{AdamW, Gradient, Hyper, Schedule, Silent};
use crate::privacy::mi;
use crate::privacy::statement::Sampler;
use crate::rng::{Direction, Secret};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Records computed on at once.
const MICRO_BATCH: usize = 8;

/// How a shadow model is trained.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By FERRET. The public seed is the audited run's where there is one, as an adversary would choose.
    Ferret(Settings),
    /// By AdamW on the mean loss of shuffled batches.
    NonPrivate(NonPrivate),
}

/// Settings of plain training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NonPrivate {
    /// Records a batch.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// AdamW's weight decay.
    pub weight_decay: f64,
}

impl Default for NonPrivate {
    /// The paper's: batches of 50, one epoch, 1e-4 linear with a tenth of warm-up, decay 1e-3.
    fn default() -> Self {
        Self {
            batch: 50,
            epochs: 1,
            learning_rate: 1e-4,
            schedule: Schedule::Linear { warmup: 0.1 },
            weight_decay: 1e-3,
        }
    }
}

/// What may be asked to differ from the audited run's settings or the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// FERRET's budget in nats.
    pub epsilon: Option<f64>,
    /// Expected batch size.
    pub batch: Option<u64>,
    /// Passes over the records.
    pub epochs: Option<u32>,
    /// Peak learning rate.
    pub learning_rate: Option<f64>,
}

impl Method {
    /// The method called `name` for models of `layout`, on `records` records. FERRET takes its settings from `transcript` where
    /// there is one of the same method; else its budget is 0.5 nats unless `changes` says otherwise.
    pub fn named(
        name: &str,
        layout: &Layout,
        transcript: Option<&Transcript>,
        changes: Changes,
        records: usize,
    ) -> Result<Self> {
        if name == "nonprivate" {
            let mut plain = NonPrivate::default();
            plain.batch = changes.batch.unwrap_or(plain.batch);
            plain.epochs = changes.epochs.unwrap_or(plain.epochs);
            plain.learning_rate = changes.learning_rate.unwrap_or(plain.learning_rate);
            return Self::NonPrivate(plain).sized(records);
        }
        let own = transcript.filter(|t| t.settings.method == name).map(|t| t.settings.clone());
        let mut settings = match (own, Grouping::of_method(name)) {
            (Some(settings), _) => settings,
            (None, Some(grouping)) => paper(name, Cut::of(&Groups::new(layout, grouping)?.members)?),
            (None, None) => {
                return Err(Error::usage(format!(
                    "shadow models cannot be trained by {name}: ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, \
                     nonprivate, or the method of the audited model's transcript"
                )));
            }
        };
        settings.epsilon = changes.epsilon.unwrap_or(settings.epsilon);
        settings.epochs = changes.epochs.unwrap_or(settings.epochs);
        settings.learning_rate = changes.learning_rate.unwrap_or(settings.learning_rate);
        settings.batch = changes.batch.unwrap_or(settings.batch);
        Self::Ferret(settings).sized(records)
    }

    /// The same for `records` records: as many epochs, batches as large as can be, the same budget.
    pub fn sized(&self, records: usize) -> Result<Self> {
        let n = records as u64;
        let mut method = self.clone();
        match &mut method {
            Self::NonPrivate(plain) => plain.batch = plain.batch.min(n).max(1),
            Self::Ferret(s) => {
                (s.records, s.batch) = (n, s.batch.min(n).max(1));
                let steps = mi::steps(n, s.batch, s.epochs.into())?;
                s.steps = u32::try_from(steps).map_err(|_| Error::usage(format!("{steps} steps are too many")))?;
                s.sampling_rate = s.batch as f64 / n as f64;
                s.p = Settings::fire_probability(s.epsilon, s.groups.len() as u64, steps, s.sampling_rate);
                s.check()?;
            }
        }
        Ok(method)
    }
}

/// The paper's settings; sizes are filled in by the caller.
fn paper(name: &str, groups: Cut) -> Settings {
    Settings {
        method: name.into(),
        groups,
        epsilon: 0.5,
        records: 1,
        batch: 50,
        epochs: 1,
        steps: 1,
        sampling_rate: 1.0,
        p: 1.0,
        mask: MaskKind::Bernoulli,
        direction: Direction::Sphere,
        release: Release::Bit,
        payload: Payload::Sign,
        clip: 1.0,
        route: Route::Adamw,
        silent: Silent::Zero,
        learning_rate: 2e-4,
        schedule: Schedule::Constant,
        weight_decay: 1e-3,
        sampler: Sampler::Poisson,
        batch_per: BatchPer::Step,
        engine: Engine::Backward,
        seed: 0,
    }
}

/// A trained shadow model.
pub struct Shadow {
    /// Its weights.
    pub weights: Weights,
    /// Its run, where that says everything.
    pub transcript: Option<Transcript>,
}

/// What a shadow model is made of.
pub struct Task<'a> {
    /// The model it begins at.
    pub base: Weights,
    /// SHA-256 of the base model's tensors.
    pub base_sha256: &'a str,
    /// How it is trained.
    pub method: &'a Method,
    /// What it learns from: as many records as the method's settings say.
    pub records: &'a [Example],
    /// Decides samples and order.
    pub seed: u64,
}

/// Train one shadow model. `go_on` is asked before every step and stops the work by an error.
pub fn train_shadow<B: Backend>(backend: B, task: Task, mut go_on: impl FnMut() -> Result<()>) -> Result<Shadow> {
    let Task { base, base_sha256, method, records, seed } = task;
    let secret = Secret::insecure(seed);
    match method {
        Method::Ferret(settings) => {
            let run = Run {
                base,
                base_sha256: base_sha256.to_owned(),
                settings: settings.clone(),
                releases: None,
                secret: &secret,
                records: Sensitive::new(records),
                micro_batch: MICRO_BATCH,
            };
            let mut trainer = Trainer::new(backend, run)?;
            while trainer.next_fire().is_some() {
                go_on()?;
                trainer.step()?;
            }
            let (weights, transcript) = trainer.finish(settings.steps)?;
            // True gradients are in no transcript.
            Ok(Shadow { weights, transcript: (settings.payload == Payload::Sign).then_some(transcript) })
        }
        Method::NonPrivate(plain) => {
            let weights = train_plain(backend, base, plain, records, &secret, go_on)?;
            Ok(Shadow { weights, transcript: None })
        }
    }
}

/// AdamW on the mean over a shuffled batch of each record's mean token loss.
fn train_plain<B: Backend>(
    backend: B,
    base: Weights,
    plain: &NonPrivate,
    records: &[Example],
    secret: &Secret,
    mut go_on: impl FnMut() -> Result<()>,
) -> Result<Weights> {
    let opening = Opening::evaluation("shadow models, trained on the auditor's records");
    let samples = Samples::new(secret, Sampler::Shuffle, records.len(), plain.batch as usize)?;
    let steps = mi::steps(records.len() as u64, plain.batch, plain.epochs.into())?;
    let steps = u32::try_from(steps).map_err(|_| Error::usage(format!("{steps} steps are too many")))?;
    let hyper = Hyper::new(plain.learning_rate, plain.weight_decay);
    let mut adamw = AdamW::new(base.layout.len(), steps, hyper, plain.schedule, Silent::Zero);
    let mut held = Held::new(backend, base)?;
    for step in 0..steps {
        go_on()?;
        let chosen = samples.draw(step, 0).open(&opening);
        let decoder = held.decoder();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let mut sum = Sum::new(b, layout, |_| true);
        for chunk in chosen.chunks(MICRO_BATCH) {
            let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
            let mut weights = batch.weights(Reduction::SampleSum);
            weights.iter_mut().for_each(|w| *w /= chosen.len() as f32);
            decoder.backward(&batch, &weights, &mut sum);
        }
        let gradients =
            layout.ids().map(|p| b.download(sum.get(p).expect("all are asked for"))).collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = layout.ids().collect();
        drop(sum);
        held.update(
            |_| true,
            |weights| {
                for ((&id, weights), gradient) in ids.iter().zip(weights.iter_mut()).zip(&gradients) {
                    adamw.step(step, id, weights, Gradient::Dense(gradient));
                }
                Ok(())
            },
        )?;
    }
    held.into_weights()
}

/// A folder of trained shadow models, by the hash of what made them; or none.
#[derive(Clone, Debug, Default)]
pub struct Store {
    dir: Option<PathBuf>,
}

impl Store {
    /// Keep nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Keep models in `dir`, which is made if it is not there.
    pub fn at(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        Ok(Self { dir: Some(dir.to_owned()) })
    }

    /// The model from the store, or [`train_shadow`] and keep it.
    pub fn get<B: Backend>(&self, backend: B, task: Task, go_on: impl FnMut() -> Result<()>) -> Result<Weights> {
        let Some(dir) = &self.dir else { return Ok(train_shadow(backend, task, go_on)?.weights) };
        let key = task.key();
        let (run, model) = (dir.join(format!("{key}.transcript.json")), dir.join(&key));
        if run.is_file() {
            let transcript = Transcript::from_json(&fsio::read_text(&run)?, &run)?;
            return replay(task.base, &transcript, |_| ()).map_err(|e| Error::file(&run, e.to_string()));
        }
        if model.is_dir() {
            return Ok(checkpoint::load_folder(&model)?.weights);
        }
        let shadow = train_shadow(backend, task, go_on)?;
        match &shadow.transcript {
            Some(transcript) => fsio::write(&run, transcript.to_json()?.as_bytes())?,
            None => checkpoint::save(&model, &shadow.weights, &SaveOptions::fresh(checkpoint::Dtype::F32))?,
        }
        Ok(shadow.weights)
    }
}

impl Task<'_> {
    /// The hash of everything that the model depends on.
    fn key(&self) -> String {
        let settings = serde_json::to_string(self.method).expect("plain values");
        let mut hash = Sha256::new();
        let (records, seed) = (examples_sha256(self.records), self.seed.to_string());
        for part in ["shadow 1", self.base_sha256, &settings, &records, &seed] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hex(hash)
    }
}

/// Which of `pool` records each of `shadows` models is trained on: pairs of models take a random half and the other half, so that with
/// an even number every record is in exactly half of them, and every training set has the same size (to one record).
pub fn halves(pool: usize, shadows: usize, seed: u64) -> Vec<Vec<bool>> {
    let mut rng = Seeded::new(seed);
    let mut sets = Vec::with_capacity(shadows + 1);
    while sets.len() < shadows {
        let mut order: Vec<usize> = (0..pool).collect();
        rng.shuffle(&mut order);
        let mut first = vec![false; pool];
        order[..pool.div_ceil(2)].iter().for_each(|&i| first[i] = true);
        let second = first.iter().map(|x| !x).collect();
        sets.extend([first, second]);
    }
    sets.truncate(shadows);
    sets
}

/// Random subsets of `size` of `pool` records, one a shadow model.
pub fn subsets(pool: usize, size: usize, shadows: usize, seed: u64) -> Vec<Vec<bool>> {
    let mut rng = Seeded::new(seed);
    (0..shadows)
        .map(|_| {
            let mut order: Vec<usize> = (0..pool).collect();
            rng.shuffle(&mut order);
            let mut set = vec![false; pool];
            order[..size.min(pool)].iter().for_each(|&i| set[i] = true);
            set
        })
        .collect()
}

/// Run `work(0) .. work(count - 1)` by `workers` at a time, each on its share of the threads; results in order. Numbers do not depend on
/// how many work: the engine gives the same bits at any thread count. After an error nothing new is begun.
pub fn in_parallel<T: Send>(count: usize, workers: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let workers = workers.clamp(1, count.max(1));
    if workers == 1 {
        return (0..count).map(work).collect();
    }
    let threads = (rayon::current_num_threads() / workers).max(1);
    let (next, results) = (AtomicUsize::new(0), Mutex::new((0..count).map(|_| None).collect::<Vec<_>>()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                loop {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    if index >= count {
                        break;
                    }
                    let result = match &pool {
                        Ok(pool) => pool.install(|| work(index)),
                        Err(e) => Err(Error::usage(format!("no threads for a shadow model: {e}"))),
                    };
                    if result.is_err() {
                        next.store(count, Ordering::SeqCst);
                    }
                    results.lock().expect("no panic while holding the results")[index] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().expect("no panic while holding the results");
    let mut all = Vec::with_capacity(count);
    for result in results.into_iter().flatten() {
        all.push(result?);
    }
    match all.len() == count {
        true => Ok(all),
        false => Err(Error::usage("a shadow model was not trained")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_balance_records_and_sizes() {
        for (pool, shadows) in [(10, 4), (11, 6), (1, 2), (8, 3)] {
            let sets = halves(pool, shadows, 3);
            assert_eq!(sets.len(), shadows);
            for set in &sets {
                let size = set.iter().filter(|&&x| x).count();
                assert!(size == pool / 2 || size == pool.div_ceil(2), "{size} of {pool}");
            }
            if shadows % 2 == 0 {
                for i in 0..pool {
                    assert_eq!(sets.iter().filter(|s| s[i]).count(), shadows / 2);
                }
            }
        }
        assert_eq!(halves(40, 4, 1), halves(40, 4, 1));
        assert_ne!(halves(40, 4, 1), halves(40, 4, 2));
        assert!(subsets(20, 7, 5, 1).iter().all(|s| s.iter().filter(|&&x| x).count() == 7));
    }

    #[test]
    fn work_is_done_once_in_order_and_stops_at_an_error() {
        for workers in [1, 2, 3, 50] {
            let done = AtomicUsize::new(0);
            let squares = in_parallel(7, workers, |i| {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(i * i)
            });
            assert_eq!(squares.unwrap(), [0, 1, 4, 9, 16, 25, 36]);
            assert_eq!(done.into_inner(), 7);
            let failed = in_parallel(7, workers, |i| if i == 3 { Err(Error::usage("three")) } else { Ok(i) });
            assert_eq!(failed.unwrap_err().to_string(), "three");
        }
    }
}
