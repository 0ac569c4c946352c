//! Shadow models that other ranks train: what a rank sends of one, and what the first rank, which keeps them, makes of it.
//!
//! ```text
//! one byte       what follows the scores: nothing, a transcript, the weights
//! 8 a record     what the model says about the records
//! the rest       the transcript's text, or the weights, 4 bytes each
//! ```

use super::{Method, Shadow, Store, Task};
use crate::error::{Error, Result};
use crate::fsio;
use crate::method::Record;
use crate::model::checkpoint::{self, SaveOptions};
use crate::model::{Layout, Weights};
use std::path::{Path, PathBuf};

/// What the first rank has of a shadow model whose scores it does not have.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) enum Entry {
    /// Nothing, or a checkpoint, which is too large to send: whoever needs it and has it not trains it.
    Nothing {
        /// Whether it must be trained.
        fresh: bool,
    },
    /// Its transcript.
    Transcript(String),
}

/// Sent of a trained model, so that it can be kept.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Content {
    Nothing = 0,
    Transcript = 1,
    Weights = 2,
}

impl Store {
    fn paths(&self, key: &str) -> Option<(PathBuf, PathBuf)> {
        self.dir.as_ref().map(|dir| (dir.join(format!("{key}.transcript.json")), dir.join(key)))
    }

    /// What is there under `key`.
    pub(super) fn find(&self, key: &str) -> Result<Entry> {
        Ok(match self.paths(key) {
            Some((run, _)) if run.is_file() => Entry::Transcript(fsio::read_text(&run)?),
            Some((_, model)) => Entry::Nothing { fresh: !model.is_dir() },
            None => Entry::Nothing { fresh: true },
        })
    }

    /// What to send of a model that was trained here, for the store of the first rank; `scores` come first.
    pub(super) fn parcel(&self, scores: &[f64], shadow: Option<&Shadow>) -> Result<Vec<u8>> {
        let (kept, rest) = match shadow {
            Some(Shadow { record: Some(record), .. }) => (Content::Transcript, record.to_json()?.into_bytes()),
            Some(Shadow { record: None, weights }) if self.whole => {
                (Content::Weights, weights.tensors.iter().flatten().flat_map(|x| x.to_le_bytes()).collect())
            }
            _ => (Content::Nothing, Vec::new()),
        };
        let scores = scores.iter().flat_map(|x| x.to_le_bytes());
        Ok(std::iter::once(kept as u8).chain(scores).chain(rest).collect())
    }

    /// The scores of `records` records in a parcel; what else it holds of the model is kept, where this process keeps models and does not have it.
    pub(super) fn unpack(
        &self,
        parcel: &[u8],
        records: usize,
        key: &str,
        base: &Weights,
        method: &Method,
    ) -> Result<Vec<f64>> {
        let broken = || Error::Rank("a rank sent no shadow model".into());
        let (kept, rest) = parcel.split_first().ok_or_else(broken)?;
        let (scores, rest) = rest.split_at_checked(8 * records).ok_or_else(broken)?;
        let scores = scores.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
        let Some((run, model)) = self.paths(key) else { return Ok(scores) };
        if *kept == Content::Transcript as u8 && !run.is_file() {
            let text = std::str::from_utf8(rest).map_err(|_| broken())?;
            Record::from_transcript(text, &run)?;
            fsio::write(&run, text.as_bytes())?;
        }
        if *kept == Content::Weights as u8 && !model.is_dir() {
            save(&model, base, method, rest)?;
        }
        Ok(scores)
    }
}

/// Write the checkpoint of a model whose numbers are `bytes`, end to end.
fn save(dir: &Path, base: &Weights, method: &Method, bytes: &[u8]) -> Result<()> {
    let config = match method.adapter() {
        Some(adapter) => adapter.on(&base.config)?,
        None => base.config.clone(),
    };
    let layout = Layout::new(&config);
    if bytes.len() != 4 * layout.scalars() {
        return Err(Error::Rank(format!(
            "a rank sent {} bytes of a model of {} scalars",
            bytes.len(),
            layout.scalars()
        )));
    }
    let mut numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")));
    let tensors = layout.specs().iter().map(|spec| numbers.by_ref().take(spec.len()).collect::<Vec<_>>()).collect();
    checkpoint::save(dir, &Weights { config, layout, tensors }, &SaveOptions::fresh(checkpoint::Dtype::F32))
}

/// The model that the first rank's transcript leads to.
pub(super) fn rebuild(text: &str, task: Task) -> Result<Weights> {
    let name = Path::new("the first rank's transcript");
    Record::from_transcript(text, name)?.rebuild(task.base, |_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::data::Example;
    use crate::measure::shadow::train_shadow;
    use crate::measure::shadow::{Changes, Knowledge};

    /// What arrives is what one process would have kept.
    #[test]
    fn a_parcel_holds_scores_and_what_the_store_keeps() {
        let base = checkpoint::load("tests/fixtures/gpt2_tiny").unwrap().weights;
        let records: Vec<Example> = (0..12).map(|i| Example::all(vec![i, i + 1, i + 2])).collect();
        let scores = [0.1, -7.25, f64::MIN_POSITIVE];
        let changes = Changes { batch: Some(4), ..Changes::default() };
        for (name, whole) in [("ferret-max", false), ("nonprivate", true), ("nonprivate", false)] {
            let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let open = |i: usize| if whole { Store::at(dirs[i].path()) } else { Store::light(dirs[i].path()) };
            let [one, first] = [0, 1].map(|i| open(i).unwrap());
            let method = Method::named(name, &base.layout, Knowledge::default(), changes, records.len()).unwrap();
            let hash = checkpoint::tensors_sha256(&base);
            let task = || Task {
                base: base.clone(),
                base_sha256: &hash,
                method: &method,
                records: &records,
                share: 1.0,
                seed: 3,
            };
            let key = task().key();
            let (weights, fresh) = one.get(Cpu::<f32>::new(), task(), || Ok(())).unwrap();
            assert!(fresh);
            let shadow = train_shadow(Cpu::<f32>::new(), task(), || Ok(())).unwrap();
            let parcel = Store::elsewhere(whole).parcel(&scores, Some(&shadow)).unwrap();
            assert_eq!(first.unpack(&parcel, 3, &key, &base, &method).unwrap(), scores);
            assert_eq!(first.find(&key).unwrap(), one.find(&key).unwrap());
            let (there, fresh) = first.get(Cpu::<f32>::new(), task(), || Ok(())).unwrap();
            assert_eq!((there.tensors == weights.tensors, fresh), (true, name == "nonprivate" && !whole));
            if let Entry::Transcript(text) = first.find(&key).unwrap() {
                assert!(rebuild(&text, task()).unwrap().tensors == weights.tensors);
            }
            for broken in
                [&[][..], &parcel[..10], &[&parcel[..], &[0]].concat()[..]].iter().take(if whole { 3 } else { 2 })
            {
                let fresh = tempfile::tempdir().unwrap();
                let store = if whole { Store::at(fresh.path()) } else { Store::light(fresh.path()) };
                assert!(store.unwrap().unpack(broken, 3, &key, &base, &method).is_err());
            }
        }
    }
}
