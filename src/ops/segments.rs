//! Ragged batches: the samples' rows end to end, with offsets instead of padding.

use std::ops::Range;

/// Where each sample's rows begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    offsets: Vec<usize>,
}

impl Segments {
    /// Segments of these lengths, end to end. A length may be 0.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut offsets = vec![0];
        offsets.extend(lengths.into_iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        }));
        Self { offsets }
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no segment at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows over all segments.
    pub fn rows(&self) -> usize {
        self.offsets[self.len()]
    }

    /// The rows of segment `i`.
    pub fn range(&self, i: usize) -> Range<usize> {
        self.offsets[i]..self.offsets[i + 1]
    }

    /// The rows of every segment in turn.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.offsets.windows(2).map(|w| w[0]..w[1])
    }

    /// The longest segment.
    pub fn longest(&self) -> usize {
        self.iter().map(|r| r.len()).max().unwrap_or(0)
    }

    /// The offsets: `len() + 1` of them, from 0 to `rows()`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The index of each row within its segment.
    pub fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter().flat_map(|r| 0..r.len() as u32)
    }

    /// Whole segments in order, grouped so that a group has at most `rows` rows, or is one longer segment.
    pub fn chunks(&self, rows: usize) -> Vec<Range<usize>> {
        let mut chunks = Vec::new();
        let mut start = 0;
        for i in 0..self.len() {
            if i > start && self.offsets[i + 1] - self.offsets[start] > rows {
                chunks.push(start..i);
                start = i;
            }
        }
        if start < self.len() {
            chunks.push(start..self.len());
        }
        chunks
    }

    /// Segments `which` alone, their rows counted from 0.
    pub fn slice(&self, which: Range<usize>) -> Self {
        let base = self.offsets[which.start];
        Self { offsets: self.offsets[which.start..=which.end].iter().map(|o| o - base).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_segment_once_in_order() {
        let s = Segments::from_lengths([3, 0, 5, 9, 1, 1, 0]);
        assert_eq!(s.rows(), 19);
        assert_eq!(s.chunks(8), vec![0..3, 3..4, 4..7]);
        assert_eq!(s.chunks(1), vec![0..1, 1..2, 2..3, 3..4, 4..5, 5..7]);
        assert_eq!(s.chunks(100), vec![0..7]);
        assert_eq!(s.slice(2..4), Segments::from_lengths([5, 9]));
        assert_eq!(s.positions().collect::<Vec<_>>().len(), 19);
        assert!(Segments::from_lengths([]).chunks(4).is_empty());
    }
}
