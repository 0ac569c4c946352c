//! What resuming needs beside settings and key: the tuned weights, moments, and the residue of error feedback, in one file (see
//! `method::state`) of tensors called `weights/NAME`, `m/NAME`, `v/NAME` and `memory/NAME`.

use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::method::{Tune, state};
use crate::model::checkpoint::safetensors::{File, to_stored};
use crate::model::checkpoint::{self, Tensor};
use crate::model::{Layout, ParamId, Weights};
use std::borrow::Cow;
use std::path::Path;

/// First and second moments of a tensor, where they lie in host memory, or copied from a device.
type Moments<'a> = (Cow<'a, [f32]>, Cow<'a, [f32]>);

/// Where an unfinished run stands; its weights are apart.
pub struct State {
    /// The next step.
    pub step: u32,
    /// AdamW's moments, tuned tensor by tuned tensor; empty for the direct route.
    pub(super) moments: Vec<(Vec<f32>, Vec<f32>)>,
    /// What signs left out so far, for error feedback.
    pub(super) residue: Option<Vec<Vec<f32>>>,
}

impl State {
    /// The state saved under `root`, if there is one; replaces the content of those of `weights` that `tune` names by what was saved.
    pub fn load(root: &Path, tune: &Tune, weights: &mut Weights<impl Scalars>) -> Result<Option<Self>> {
        let Some((step, path)) = state::current(root)? else { return Ok(None) };
        let file = File::open(&path)?;
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
        let (mut moments, mut residue) = (Vec::new(), Vec::new());
        let Weights { layout, tensors: own, .. } = weights;
        let tuned = tune.ids(layout)?;
        for &p in &tuned {
            let saved = read("weights", layout, p)?.ok_or_else(|| {
                Error::file(file.path(), format!("has no weights of {}: is it of this run?", layout.spec(p).name))
            })?;
            own[p.0] = saved.into();
            if let (Some(m), Some(v)) = (read("m", layout, p)?, read("v", layout, p)?) {
                moments.push((m, v));
            }
            residue.extend(read("memory", layout, p)?);
        }
        let whole = |n: usize| n == 0 || n == tuned.len();
        if !whole(moments.len()) || !whole(residue.len()) {
            return Err(Error::file(
                file.path(),
                "lacks the moments or the residue of some tensors: is it of this run?",
            ));
        }
        Ok(Some(Self { step, moments, residue: (!residue.is_empty()).then_some(residue) }))
    }
}

/// Save under `root` what stands before `step`: weights, moments and residue of the parameters `tuned`, in order.
pub(super) fn save(
    root: &Path,
    step: u32,
    layout: &Layout,
    tuned: &[ParamId],
    weights: &[Cow<[f32]>],
    moments: &[Moments],
    residue: Option<&[Cow<[f32]>]>,
) -> Result<()> {
    let mut tensors: Vec<Tensor> = Vec::new();
    for (i, &p) in tuned.iter().enumerate() {
        let spec = layout.spec(p);
        let mut add = |kind: &str, data| {
            tensors.push((format!("{kind}/{}", spec.name), spec.shape.clone(), Cow::Borrowed(data)));
        };
        add("weights", &*weights[i]);
        if let Some((m, v)) = moments.get(i) {
            add("m", m);
            add("v", v);
        }
        if let Some(residue) = residue {
            add("memory", &residue[i]);
        }
    }
    state::save(root, step, "tensors.safetensors", |path| checkpoint::save_tensors(path, tensors))
}
