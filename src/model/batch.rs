//! A ragged batch: the samples' tokens end to end.

use crate::ops::Segments;
use crate::ops::cross_entropy::IGNORE;

/// Tokens to run and targets to predict. Row i is fed `ids[i]` and, unless ignored, should predict `targets[i]`.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The token of each row.
    pub ids: Vec<u32>,
    /// The position of each row in its sample.
    pub positions: Vec<u32>,
    /// What each row should predict, or [`IGNORE`].
    pub targets: Vec<u32>,
    /// Which rows belong to which sample.
    pub segments: Segments,
}

/// What a loss is averaged over; decides the weight of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Mean over all target tokens of the batch.
    TokenMean,
    /// Mean over samples of each sample's mean over its target tokens.
    SampleMean,
    /// Sum over samples of each sample's mean over its target tokens: what per-sample methods clip.
    SampleSum,
}

impl Batch {
    /// One sample a pair of tokens and targets of the same length.
    pub fn new<'a>(samples: impl IntoIterator<Item = (&'a [u32], &'a [u32])>) -> Self {
        let (mut ids, mut targets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (sample, wanted) in samples {
            assert_eq!(sample.len(), wanted.len(), "a target for each token");
            ids.extend_from_slice(sample);
            targets.extend_from_slice(wanted);
            lengths.push(sample.len());
        }
        let segments = Segments::from_lengths(lengths);
        Self { positions: segments.positions().collect(), ids, targets, segments }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Target tokens of sample `i`.
    pub fn targets_of(&self, i: usize) -> usize {
        self.targets[self.segments.range(i)].iter().filter(|&&t| t != IGNORE).count()
    }

    /// Each row's weight in the loss. A sample without targets weighs nothing.
    pub fn weights(&self, reduction: Reduction) -> Vec<f32> {
        let total = self.targets.iter().filter(|&&t| t != IGNORE).count() as f64;
        let mut weights = Vec::with_capacity(self.rows());
        for (i, range) in self.segments.iter().enumerate() {
            let own = self.targets_of(i).max(1) as f64;
            let weight = match reduction {
                Reduction::TokenMean => 1.0 / total.max(1.0),
                Reduction::SampleMean => 1.0 / (own * self.segments.len() as f64),
                Reduction::SampleSum => 1.0 / own,
            };
            weights.extend(range.map(|row| if self.targets[row] == IGNORE { 0.0 } else { weight as f32 }));
        }
        weights
    }

    /// Each sample's mean loss, from the losses of all rows. A sample without targets has loss 0.
    pub fn sample_means(&self, row_losses: &[f32]) -> Vec<f64> {
        (0..self.segments.len())
            .map(|i| {
                let sum: f64 = row_losses[self.segments.range(i)].iter().map(|&l| l as f64).sum();
                sum / self.targets_of(i).max(1) as f64
            })
            .collect()
    }
}
