//! The rows of a batch that have a target. Above the last block's attention no row sees another, so all that lies there, the output head above all, is
//! computed for these rows alone: instruction records are mostly prompt.

use super::batch::Batch;
use super::sink::Rows;
use crate::backend::Backend;
use crate::ops::Segments;
use crate::ops::cross_entropy::IGNORE;
use std::borrow::Cow;

/// A batch's rows with a target, in order. Where that is all of them nothing is copied.
pub(super) struct ScoredRows<'a> {
    batch: &'a Batch,
    fewer: Option<Fewer>,
}

/// Fewer than all.
struct Fewer {
    /// Where they lie in the batch.
    at: Vec<u32>,
    targets: Vec<u32>,
    segments: Segments,
}

impl<'a> ScoredRows<'a> {
    /// Those of `batch`.
    pub(super) fn new(batch: &'a Batch) -> Self {
        if !batch.targets.contains(&IGNORE) {
            return Self::all(batch);
        }
        let at: Vec<u32> = (0..).zip(&batch.targets).filter(|(_, t)| **t != IGNORE).map(|(i, _)| i).collect();
        let targets = at.iter().map(|&i| batch.targets[i as usize]).collect();
        let segments = Segments::from_lengths((0..batch.segments.len()).map(|i| batch.targets_of(i)));
        Self { batch, fewer: Some(Fewer { at, targets, segments }) }
    }

    /// All rows of `batch`, with and without a target.
    pub(super) fn all(batch: &'a Batch) -> Self {
        Self { batch, fewer: None }
    }

    /// Which of them belong to which sample.
    pub(super) fn segments(&self) -> &Segments {
        self.fewer.as_ref().map_or(&self.batch.segments, |fewer| &fewer.segments)
    }

    /// What each should predict.
    pub(super) fn targets(&self) -> &[u32] {
        self.fewer.as_ref().map_or(&self.batch.targets, |fewer| &fewer.targets)
    }

    /// As a sink is told of them.
    pub(super) fn rows(&self) -> Rows<'_> {
        Rows { samples: 0..self.segments().len(), segments: self.segments() }
    }

    /// Their weights, of those of all rows.
    pub(super) fn weights<'w>(&self, weights: &'w [f32]) -> Cow<'w, [f32]> {
        match &self.fewer {
            None => Cow::Borrowed(weights),
            Some(fewer) => fewer.at.iter().map(|&i| weights[i as usize]).collect(),
        }
    }

    /// Their rows of `x`, which has all; nothing where they are all.
    pub(super) fn pick<B: Backend>(&self, b: &B, x: &B::Tensor) -> Option<B::Tensor> {
        self.fewer.as_ref().map(|fewer| b.gather(x, &fewer.at))
    }

    /// All rows, of `x`, which has theirs; the others are zero. Nothing where they are all.
    pub(super) fn put<B: Backend>(&self, b: &B, x: &B::Tensor) -> Option<B::Tensor> {
        self.fewer.as_ref().map(|fewer| {
            let mut all = b.zeros(self.batch.rows(), b.shape(x).1);
            b.add_rows(&fewer.at, x, 0..fewer.at.len(), &mut all);
            all
        })
    }
}
