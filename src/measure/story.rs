//! A FERRET run told step by step: what fired, which way, how far the weights moved and what that did to the loss.
//!
//! It follows the transcript as replay does, and so needs no record of the run. The loss is measured on records that the reader brings.

use crate::backend::{Cpu, Memory};
use crate::data::Example;
use crate::error::{Error, Result};
use crate::eval;
use crate::kernel::Stored;
use crate::method::ferret::{Payload, Releases, Replayer, Transcript};
use crate::model::{Decoder, Layout, ParamId, Weights, checkpoint};

/// One release.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Fire {
    /// The group, from 0.
    pub group: u32,
    /// Its tensors' names.
    pub tensors: Vec<String>,
    /// What was released: +1, -1 or a noisy scalar.
    pub released: f64,
}

/// A step in which something fired.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Moment {
    /// The step, from 0.
    pub step: u32,
    /// What was released, groups in rising order.
    pub fires: Vec<Fire>,
    /// Length of the weights' move since the step told before, idle steps between them included.
    pub moved: f64,
    /// Mean token loss after it, where there are records to measure on.
    pub loss: Option<f64>,
}

/// Tell the run of `transcript` from `base`: the loss before it, each step with a fire to `tell`, whose error ends the story. The end must be the
/// model that the transcript names.
pub fn tell(
    base: &Weights,
    transcript: &Transcript,
    held_out: Option<&[Example]>,
    mut tell: impl FnMut(&Moment) -> Result<()>,
) -> Result<Option<f64>> {
    transcript.check()?;
    if transcript.settings.payload != Payload::Sign {
        return Err(Error::usage("the run sent true gradients, which no transcript holds: there is nothing to tell"));
    }
    let found = checkpoint::tensors_sha256(base);
    if found != transcript.base_sha256 {
        return Err(Error::usage(format!(
            "the run began at tensors with SHA-256 {}, this base model has {found}: give the one it was trained from",
            transcript.base_sha256
        )));
    }
    let adapted;
    let base = match &transcript.settings.adapter {
        Some(adapter) => {
            adapted = adapter.attach(base.clone(), transcript.settings.seed)?;
            &adapted
        }
        None => base,
    };
    let b = Cpu::<f32>::new();
    let layout = &base.layout;
    let loss = |weights: &Weights| -> Result<Option<f64>> {
        let Some(records) = held_out else { return Ok(None) };
        let decoder = Decoder::new(Cpu::<f32>::new(), weights.clone())?;
        Ok(Some(eval::token_mean(&eval::losses(&decoder, records, |_| ())?).0))
    };
    let before = loss(base)?;
    let mut replayer = Replayer::new(layout, &transcript.settings)?;
    let shapes = layout.specs().iter().map(|s| s.matrix());
    let sent = base.tensors.iter().zip(shapes).map(|(t, (rows, cols))| b.weight(rows, cols, Stored::F32(t.clone())));
    let mut params = sent.collect::<Result<Vec<_>>>()?;
    let mut at = base.clone();
    let fires = transcript.fires();
    let mut done = 0;
    for fired in fires.chunk_by(|a, b| a.0 == b.0) {
        let step = fired[0].0;
        let releases = slice(&transcript.releases, done, fired.len());
        replayer.apply(&b, fired, &releases, &mut params, |_| ())?;
        replayer.catch_up(&b, step + 1, &mut params);
        let mut square = 0.0;
        for (tensor, param) in at.tensors.iter_mut().zip(&params) {
            let new = param.values();
            square += new.iter().zip(tensor.iter()).map(|(n, o)| f64::from(n - o).powi(2)).sum::<f64>();
            tensor.copy_from_slice(&new);
        }
        let fires = fired.iter().enumerate().map(|(i, &(_, group))| Fire {
            group,
            tensors: names(layout, replayer.plan().members(group)),
            released: value(&releases, i),
        });
        let moment = Moment { step, fires: fires.collect(), moved: square.sqrt(), loss: loss(&at)? };
        tell(&moment)?;
        done += fired.len();
    }
    replayer.catch_up(&b, transcript.steps_run, &mut params);
    for (tensor, param) in at.tensors.iter_mut().zip(&params) {
        tensor.copy_from_slice(&param.values());
    }
    let found = checkpoint::tensors_sha256(&at);
    match &transcript.tuned_sha256 {
        Some(named) if *named != found => Err(Error::usage(format!(
            "the transcript leads to tensors with SHA-256 {found}, not to the {named} it names: it was tampered with"
        ))),
        _ => Ok(before),
    }
}

fn names(layout: &Layout, ids: &[ParamId]) -> Vec<String> {
    ids.iter().map(|&id| layout.spec(id).name.clone()).collect()
}

/// The releases of fires `from` on.
fn slice(all: &Releases, from: usize, count: usize) -> Releases {
    match all {
        Releases::Bits(bits) => Releases::Bits(bits[from..from + count].to_vec()),
        Releases::Scalars(scalars) => Releases::Scalars(scalars[from..from + count].to_vec()),
    }
}

fn value(releases: &Releases, i: usize) -> f64 {
    match releases {
        Releases::Bits(bits) => bits[i].into(),
        Releases::Scalars(scalars) => scalars[i].into(),
    }
}
