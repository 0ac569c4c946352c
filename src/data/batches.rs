//! From examples to ragged batches.

use super::Example;
use crate::model::Batch;
use crate::ops::cross_entropy::IGNORE;
use std::ops::Range;

/// The examples as one batch: every token but the last is fed, and predicts the next one where that counts. An example of
/// fewer than two tokens is an empty sample.
pub fn batch<'a>(examples: impl IntoIterator<Item = &'a Example>) -> Batch {
    let samples: Vec<(&[u32], Vec<u32>)> = examples
        .into_iter()
        .map(|example| {
            let fed = example.ids.len().saturating_sub(1);
            let targets = (0..fed).map(|i| if example.learn[i + 1] { example.ids[i + 1] } else { IGNORE }).collect();
            (&example.ids[..fed], targets)
        })
        .collect();
    Batch::new(samples.iter().map(|(ids, targets)| (*ids, targets.as_slice())))
}

/// Consecutive examples, as many as make `rows` rows; at least one.
pub fn by_rows(examples: &[Example], rows: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut count) = (0, 0);
    for (i, example) in examples.iter().enumerate() {
        let fed = example.ids.len().saturating_sub(1);
        if i > start && count + fed > rows {
            ranges.push(start..i);
            (start, count) = (i, 0);
        }
        count += fed;
    }
    if start < examples.len() {
        ranges.push(start..examples.len());
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_predict_the_next_token_where_it_counts() {
        let a = Example { ids: vec![5, 6, 7], learn: vec![false, false, true] };
        let (b, c) = (Example::all(vec![9]), Example::all(vec![1, 2]));
        let batch = batch([&a, &b, &c]);
        assert_eq!(batch.ids, [5, 6, 1]);
        assert_eq!(batch.targets, [IGNORE, 7, 2]);
        assert_eq!(batch.positions, [0, 1, 0]);
        assert_eq!(batch.segments.offsets(), [0, 2, 2, 3]);
    }

    #[test]
    fn ranges_cover_every_example_once() {
        let examples: Vec<Example> = [3, 1, 9, 2, 2].map(|n| Example::all(vec![0; n])).to_vec();
        assert_eq!(by_rows(&examples, 4), [0..2, 2..3, 3..5]);
        assert_eq!(by_rows(&examples, 100), vec![0..5]);
        assert!(by_rows(&[], 4).is_empty());
    }
}
