//! Losses of a decoder on records, and its answers.

pub mod answers;

use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::model::Decoder;
use crate::ranks::{Alone, Ranks, gather_numbers};

/// Rows run at once: enough to keep the matrix products busy, few enough to stay small.
pub const ROWS: usize = 512;

/// One record's loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordLoss {
    /// Sum over the tokens that count.
    pub sum: f64,
    /// How many count.
    pub targets: usize,
}

impl RecordLoss {
    /// Mean over the tokens that count; none where none does.
    pub fn mean(&self) -> Option<f64> {
        (self.targets > 0).then(|| self.sum / self.targets as f64)
    }
}

/// Every record's loss, in order. `done` is called with the number of records finished each time some are.
pub fn losses<B: Backend>(
    decoder: &Decoder<B>,
    examples: &[Example],
    done: impl FnMut(usize),
) -> Result<Vec<RecordLoss>> {
    losses_over(&Alone, decoder, examples, done)
}

/// [`losses`], computed by all `ranks`, which have the same decoder and records: the same numbers, on every one of them.
pub fn losses_over<B: Backend>(
    ranks: &dyn Ranks,
    decoder: &Decoder<B>,
    examples: &[Example],
    mut done: impl FnMut(usize),
) -> Result<Vec<RecordLoss>> {
    let ranges = batches::by_rows(examples, ROWS);
    let mut own = Vec::new();
    for range in ranges.iter().skip(ranks.rank()).step_by(ranks.size()) {
        let batch = batches::batch(&examples[range.clone()]);
        let rows = decoder.backend.download(&decoder.losses(&batch))?;
        if let Some(at) = rows.iter().position(|l| !l.is_finite()) {
            let sample = (0..batch.segments.len()).find(|&i| batch.segments.range(i).contains(&at)).unwrap_or(0);
            return Err(Error::Diverged(format!(
                "the loss of record {} is {}: the weights have overflowed or diverged",
                range.start + sample + 1,
                rows[at]
            )));
        }
        for (i, segment) in batch.segments.iter().enumerate() {
            let sum = rows[segment].iter().map(|&l| l as f64).sum();
            own.push(RecordLoss { sum, targets: batch.targets_of(i) });
        }
        done(range.len());
    }
    if ranks.size() == 1 {
        return Ok(own);
    }
    let numbers: Vec<f64> = own.iter().flat_map(|l| [l.sum, l.targets as f64]).collect();
    let all = gather_numbers(ranks, "losses", &numbers)?;
    let mut left: Vec<_> = all.iter().map(|of| of.chunks_exact(2)).collect();
    let mut losses = Vec::with_capacity(examples.len());
    for (i, range) in ranges.iter().enumerate() {
        losses.extend(
            left[i % ranks.size()].by_ref().take(range.len()).map(|l| RecordLoss { sum: l[0], targets: l[1] as usize }),
        );
    }
    match losses.len() == examples.len() {
        true => Ok(losses),
        false => Err(Error::Rank(format!("the ranks sent {} losses of {} records", losses.len(), examples.len()))),
    }
}

/// Mean over all tokens that count, and their number.
pub fn token_mean(losses: &[RecordLoss]) -> (f64, usize) {
    let targets: usize = losses.iter().map(|l| l.targets).sum();
    (losses.iter().map(|l| l.sum).sum::<f64>() / targets.max(1) as f64, targets)
}
