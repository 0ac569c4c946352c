//! What resuming needs beside settings and key: weights, moments, memory, and the step they stand before.
//!
//! ```text
//! ROOT/at-75/tensors.safetensors   weights/NAME, m/NAME, v/NAME, memory/NAME
//! ROOT/current.json                {"step": 75}
//! ```
//! A new folder appears complete, then the pointer is swapped, then the old folder goes: at every moment the pointer names a folder that
//! is whole. Nothing in it is secret beyond the model itself: weights and moments follow from the releases.

use crate::error::{Error, Result};
use crate::fsio;
use crate::model::checkpoint::safetensors::{File, to_stored};
use crate::model::checkpoint::{self, Tensor};
use crate::model::{Layout, ParamId, Weights};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

const POINTER: &str = "current.json";
const TENSORS: &str = "tensors.safetensors";

/// First and second moments of a tensor.
type Owned = (Vec<f32>, Vec<f32>);

/// The same where it lies in host memory, or copied from a device.
type Seen<'a> = (Cow<'a, [f32]>, Cow<'a, [f32]>);

/// Where an unfinished run stands; its weights are apart.
pub struct State {
    /// The next step.
    pub step: u32,
    /// AdamW's moments, tensor by tensor; empty for the direct route.
    pub(super) moments: Vec<Owned>,
    /// What error feedback remembers.
    pub(super) memory: Option<Vec<Vec<f32>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pointer {
    step: u32,
}

impl State {
    /// The state saved under `root`, if there is one; replaces the content of `weights` by the saved one.
    pub fn load(root: &Path, weights: &mut Weights) -> Result<Option<Self>> {
        let Some(step) = current(root)? else { return Ok(None) };
        let file = File::open(&folder(root, step).join(TENSORS))?;
        let tensors = file.tensors()?;
        let read = |kind: &str, layout: &Layout, p: ParamId| -> Result<Option<Vec<f32>>> {
            let spec = layout.spec(p);
            let name = format!("{kind}/{}", spec.name);
            let Ok(view) = tensors.tensor(&name) else { return Ok(None) };
            let values = to_stored(&view, &file, &name)?.into_f32();
            if values.len() != spec.len() {
                let what = format!("{name} has {} numbers, the model {}: is it of this run?", values.len(), spec.len());
                return Err(Error::file(file.path(), what));
            }
            Ok(Some(values))
        };
        let (mut moments, mut memory) = (Vec::new(), Vec::new());
        let Weights { layout, tensors: own, .. } = weights;
        for p in layout.ids() {
            own[p.0] = read("weights", layout, p)?.ok_or_else(|| {
                Error::file(file.path(), format!("has no weights of {}: is it of this run?", layout.spec(p).name))
            })?;
            if let (Some(m), Some(v)) = (read("m", layout, p)?, read("v", layout, p)?) {
                moments.push((m, v));
            }
            memory.extend(read("memory", layout, p)?);
        }
        let whole = |n: usize| n == 0 || n == layout.len();
        if !whole(moments.len()) || !whole(memory.len()) {
            return Err(Error::file(
                file.path(),
                "lacks the moments or the memory of some tensors: is it of this run?",
            ));
        }
        Ok(Some(Self { step, moments, memory: (!memory.is_empty()).then_some(memory) }))
    }
}

/// Save under `root` what stands before `step`.
pub(super) fn save(
    root: &Path,
    step: u32,
    layout: &Layout,
    weights: &[Cow<[f32]>],
    moments: &[Seen],
    memory: Option<&[Cow<[f32]>]>,
) -> Result<()> {
    let before = current(root)?;
    if before == Some(step) {
        return Ok(());
    }
    let new = folder(root, step);
    // What a killed run left is no state: the pointer did not get to name it.
    remove(&new)?;
    let mut tensors: Vec<Tensor> = Vec::new();
    for (p, spec) in layout.specs().iter().enumerate() {
        let mut add = |kind: &str, data| {
            tensors.push((format!("{kind}/{}", spec.name), spec.shape.clone(), Cow::Borrowed(data)));
        };
        add("weights", &*weights[p]);
        if let Some((m, v)) = moments.get(p) {
            add("m", m);
            add("v", v);
        }
        if let Some(memory) = memory {
            add("memory", &memory[p]);
        }
    }
    fsio::fill_folder(&new, |dir| checkpoint::save_tensors(&dir.join(TENSORS), tensors))?;
    let pointer = serde_json::to_string(&Pointer { step }).expect("a number");
    fsio::write(&root.join(POINTER), pointer.as_bytes())?;
    clean(root, step)
}

/// The step that the pointer names.
fn current(root: &Path) -> Result<Option<u32>> {
    let path = root.join(POINTER);
    if !path.exists() {
        return Ok(None);
    }
    let text = fsio::read_text(&path)?;
    let pointer: Pointer = serde_json::from_str(&text).map_err(|e| Error::file(&path, e.to_string()))?;
    Ok(Some(pointer.step))
}

/// Remove everything but the state of `step`.
fn clean(root: &Path, step: u32) -> Result<()> {
    let keep = folder(root, step);
    for entry in std::fs::read_dir(root).map_err(|e| Error::io(root, e))? {
        let path = entry.map_err(|e| Error::io(root, e))?.path();
        if path.is_dir() && path != keep {
            remove(&path)?;
        }
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(dir, e)),
        _ => Ok(()),
    }
}

fn folder(root: &Path, step: u32) -> PathBuf {
    root.join(format!("at-{step}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::Preset;

    fn weights(value: f32) -> Weights {
        let mut weights = Weights::zeros(crate::model::Config { layers: 0, ..Preset::Tiny.config() });
        weights.tensors.iter_mut().for_each(|t| t.fill(value));
        weights
    }

    fn put(root: &Path, step: u32, value: f32) -> Result<()> {
        let w = weights(value);
        let tensors: Vec<Cow<[f32]>> = w.tensors.iter().map(|t| Cow::Borrowed(&t[..])).collect();
        let moments: Vec<_> = tensors.iter().map(|t| (t.clone(), t.clone())).collect();
        save(root, step, &w.layout, &tensors, &moments, None)
    }

    fn get(root: &Path) -> Option<(u32, f32)> {
        let mut w = weights(0.0);
        let state = State::load(root, &mut w).unwrap()?;
        let value = w.tensors[0][0];
        assert!(w.tensors.iter().flatten().all(|x| *x == value));
        assert!(state.moments.iter().all(|(m, v)| m.iter().chain(v).all(|x| *x == value)) && state.memory.is_none());
        Some((state.step, value))
    }

    /// Whatever a killed run leaves, the pointer names a state that is whole.
    #[test]
    fn what_a_killed_run_left_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        assert!(get(&root).is_none());
        put(&root, 5, 1.0).unwrap();
        assert_eq!(get(&root), Some((5, 1.0)));
        // Killed while the next folder was written: a temporary folder, or a whole one that the pointer does not name.
        std::fs::create_dir(root.join(".ferret-x")).unwrap();
        std::fs::write(root.join(".ferret-x/tensors.safetensors"), b"half").unwrap();
        std::fs::create_dir(root.join("at-10")).unwrap();
        std::fs::write(root.join("at-10/tensors.safetensors"), b"of another try").unwrap();
        assert_eq!(get(&root), Some((5, 1.0)));
        put(&root, 10, 2.0).unwrap();
        assert_eq!(get(&root), Some((10, 2.0)));
        let left: Vec<_> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        // Killed before the old folder was gone.
        std::fs::create_dir(root.join("at-5")).unwrap();
        assert_eq!(get(&root), Some((10, 2.0)));
        // A disk that fills up while saving leaves the old state.
        std::fs::write(root.join("at-15"), b"in the way").unwrap();
        assert!(put(&root, 15, 3.0).is_err());
        assert_eq!(get(&root), Some((10, 2.0)));
    }
}
