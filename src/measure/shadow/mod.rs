//! Shadow models: trained by this engine as the audited model was, on records of the auditor's choosing.
//!
//! [`train_shadow`] trains one; [`Store`] keeps it under the hash of everything it depends on (base, method, seed, records), a run of FERRET
//! or FERRET-k as its transcript of some kilobytes, any other as a checkpoint. Secret randomness is seeded: shadow models protect nobody.

mod elsewhere;
mod method;
mod plan;

pub use crate::method::Method;
pub use method::{Changes, Knowledge};
pub use plan::{Plan, Shadows};

use crate::audit::stats::SeededRng;
use crate::backend::Backend;
use crate::data::{Example, examples_sha256};
use crate::error::{Error, Result};
use crate::method::run::{GoOn, drive};
use crate::method::{Record, Sensitive, run};
use crate::model::Weights;
use crate::model::checkpoint::{self, SaveOptions};
use crate::rng::Secret;
use crate::{fsio, hash};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Records computed on at once.
const MICRO_BATCH: u32 = 8;

/// A trained shadow model.
pub struct Shadow {
    /// Its weights.
    pub weights: Weights,
    /// Its run, where that says everything.
    pub record: Option<Record>,
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
    /// The share of the planned steps after which it stops: 1 unless the audited run stopped early.
    pub share: f64,
    /// Decides samples and order.
    pub seed: u64,
}

/// Train one shadow model. `go_on` is asked before every step and stops the work by an error.
pub fn train_shadow<B: Backend>(backend: B, task: Task, go_on: impl FnMut() -> Result<()>) -> Result<Shadow> {
    let (stop, secret) = (task.stop(), Secret::insecure(task.seed));
    let Task { base, base_sha256, method, records, .. } = task;
    let task = run::Task {
        base,
        base_sha256: base_sha256.to_owned(),
        settings: method.clone(),
        stop: Some(stop),
        secret: &secret,
        records: Sensitive::new(records),
    };
    let mut run = task.begin(backend, None)?;
    drive(&mut *run, &mut GoOn(go_on))?;
    let done = run.finish()?;
    // Whole updates and true gradients are in no record.
    let record = Some(done.record).filter(Record::is_rebuildable);
    Ok(Shadow { weights: done.weights.into_form(), record })
}

/// A folder of trained shadow models, by the hash of what made them; or none.
#[derive(Clone, Debug, Default)]
pub struct Store {
    dir: Option<PathBuf>,
    whole: bool,
}

impl Store {
    /// Keep nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Keep models in `dir`, which is made if it is not there.
    pub fn at(dir: &Path) -> Result<Self> {
        fsio::private_folder(dir)?;
        Ok(Self { dir: Some(dir.to_owned()), whole: true })
    }

    /// Keep in `dir` only what takes some kilobytes: transcripts, no checkpoints.
    pub fn light(dir: &Path) -> Result<Self> {
        Ok(Self { whole: false, ..Self::at(dir)? })
    }

    /// Another process keeps models, and this one works for it: `whole` ones too, or only what takes some kilobytes.
    pub fn elsewhere(whole: bool) -> Self {
        Self { dir: None, whole }
    }

    /// Whether checkpoints are kept, here or elsewhere.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The model from the store, or [`train_shadow`] and keep it. Whether it was trained comes with it.
    pub fn get<B: Backend>(
        &self,
        backend: B,
        task: Task,
        go_on: impl FnMut() -> Result<()>,
    ) -> Result<(Weights, bool)> {
        let Some(dir) = &self.dir else { return Ok((train_shadow(backend, task, go_on)?.weights, true)) };
        let key = task.key();
        let (run, model) = (dir.join(format!("{key}.transcript.json")), dir.join(&key));
        if run.is_file() {
            let record = Record::from_transcript(&fsio::read_text(&run)?, &run)?;
            let weights = record.rebuild(task.base, |_| ()).map_err(|e| Error::file(&run, e.to_string()))?;
            return Ok((weights, false));
        }
        if model.is_dir() {
            return Ok((checkpoint::load_folder(&model)?.weights, false));
        }
        let shadow = train_shadow(backend, task, go_on)?;
        match &shadow.record {
            Some(record) => fsio::write(&run, record.to_json()?.as_bytes())?,
            None if !self.whole => {}
            None => checkpoint::save(&model, &shadow.weights, &SaveOptions::fresh(checkpoint::Dtype::F32))?,
        }
        Ok((shadow.weights, true))
    }
}

impl Task<'_> {
    /// Steps that are made.
    fn stop(&self) -> u32 {
        let steps = self.method.steps();
        (f64::from(steps) * self.share).round().clamp(0.0, f64::from(steps)) as u32
    }

    /// The hash of everything that the model depends on.
    pub fn key(&self) -> String {
        let settings = serde_json::to_string(self.method).expect("plain values");
        let mut hash = Sha256::new();
        let (records, stop, seed) = (examples_sha256(self.records), self.stop().to_string(), self.seed.to_string());
        for part in ["shadow 3", self.base_sha256, &settings, &records, &stop, &seed] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash::finish(hash)
    }
}

/// Which of `pool` records each of `shadows` models is trained on: pairs of models take a random half and the other half, so that with
/// an even number every record is in exactly half of them, and every training set has the same size (to one record).
pub fn halves(pool: usize, shadows: usize, seed: u64) -> Vec<Vec<bool>> {
    let mut rng = SeededRng::new(seed);
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
    let mut rng = SeededRng::new(seed);
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
}
