//! From a base model and releases to tuned weights on the CPU: what every replay does around its own updates.

use crate::backend::{Cpu, Memory};
use crate::error::{Error, Result};
use crate::kernel::Scalars;
use crate::method::transcript::Transcript;
use crate::model::adapter::Adapter;
use crate::model::{Weights, checkpoint};

/// `weights` after `updates` on the CPU. There is one copy of them in memory at any time, and what no update touches stays as it is stored.
pub(super) fn on_host<T: Scalars>(
    mut weights: Weights<T>,
    updates: impl FnOnce(&Cpu<f32>, &mut [<Cpu<f32> as Memory>::Weight]) -> Result<()>,
) -> Result<Weights<T>> {
    let b = Cpu::<f32>::new();
    let shapes = weights.layout.specs().iter().map(|s| s.matrix());
    let tensors = std::mem::take(&mut weights.tensors);
    let sent = tensors.into_iter().zip(shapes).map(|(t, (rows, cols))| b.weight(rows, cols, t.into()));
    let mut params = sent.collect::<Result<Vec<_>>>()?;
    updates(&b, &mut params)?;
    weights.tensors = params.into_iter().map(|w| Ok(b.take_weight(w)?.into())).collect::<Result<_>>()?;
    Ok(weights)
}

/// What `follow` makes of `base`, with the run's `adapter` on it if it has one, drawn from `seed`. Refuses another base than the transcript's, an
/// unfinished run, and a result that is not the one that the transcript names.
pub(super) fn checked<T: Scalars, S, R>(
    base: Weights<T>,
    transcript: &Transcript<S, R>,
    (adapter, seed): (Option<&Adapter>, u64),
    follow: impl FnOnce(Weights<T>) -> Result<Weights<T>>,
) -> Result<Weights<T>> {
    let began = &transcript.base_sha256;
    let Some(tuned) = &transcript.tuned_sha256 else {
        return Err(Error::usage("the transcript is of an unfinished run: finish it with `resume` first"));
    };
    let found = checkpoint::tensors_sha256(&base);
    if found != *began {
        return Err(Error::usage(format!(
            "the run began at tensors with SHA-256 {began}, this base model has {found}: give the one it was trained from"
        )));
    }
    let weights = follow(match adapter {
        Some(adapter) => adapter.attach(base, seed)?,
        None => base,
    })?;
    let found = checkpoint::tensors_sha256(&weights);
    if found != *tuned {
        return Err(Error::usage(format!(
            "the transcript leads to tensors with SHA-256 {found}, not to the {tuned} it names: it was tampered with, or written by \
             a program that computed otherwise"
        )));
    }
    Ok(weights)
}
