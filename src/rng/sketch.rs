//! Public sketches: a k x d matrix U of entries 0, +1 and -1, one entry a column, fresh at every step from (seed, step, tensor).
//!
//! Every element of a tensor falls into one of k buckets with a sign, so `(U g)_b = sum of sign(e) g_e over the elements e in bucket b`: signs are
//! fair and pairwise independent, hence `E |U g|² = |g|²`. How bucket and sign of element (row, column) are made:
//!
//! ```text
//! Count     h(row, column),                    s(row, column)            every element its own: Var |U g|² = 2/k (|g|⁴ - sum of g_e⁴)
//! Tensor    (h1(row) + h2(column)) mod k,      s1(row) s2(column)        U xᵀdy is a circular convolution of the sketches of x and dy
//! Grid      h1(row) k2 + h2(column),           s1(row) s2(column)        k = k1 k2, and U xᵀdy is the product (S1 x)ᵀ (S2 dy)
//! ```
//!
//! Tensor is Pham and Pagh's sketch (2013). A vector is a matrix of one row: under Tensor a count sketch turned by one shift; under Grid, where one row would
//! meet k2 buckets alone, it has a count sketch.
//!
//! One word of [`Domain::Sketch`] makes one bucket and one sign ([`Cell`]): in the stream of (step, tensor), words `0 .. rows` are the rows' and `rows .. rows + columns` the
//! columns', and from [`COUNTS`] on lie those of single elements in row-major order. No word serves twice. It takes 32-bit integers alone to read them, so that a
//! shader has the same.
//!
//! What FERRET-k does with it (the sink is [`crate::grad::Sketch`], [`crate::ops::sketch`] clips):
//!
//! ```text
//! let sketch = StepSketch::new(seed, step, kind, k, &shapes)     public, before any data
//! v_i        = U g_i by the sink, clipped in R^k                 sensitive
//! b          = sign(sum of v_i + noise)                          the release: k bits
//! weights   -= eta / sqrt(d) Uᵀ b                                super::Pullback, the same bytes in training and in replay
//! ```

use super::public::{Domain, PublicStream, fill_words};
use serde::{Deserialize, Serialize};

/// The most buckets a sketch may have.
pub const MOST_BUCKETS: usize = 1 << 24;

/// The first word of single elements in a tensor's stream.
pub const COUNTS: u64 = 1 << 40;

/// How elements fall into buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum SketchKind {
    /// Bucket (h1(row) + h2(column)) mod k: from factors, by Fourier transforms.
    #[default]
    Tensor,
    /// Every element its own bucket and sign: needs the gradient itself.
    Count,
    /// Buckets on a grid of k1 x k2: from factors, by a small product.
    Grid,
}

/// A bucket and a sign in one word: bit 31 is set for minus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Cell(u32);

impl Cell {
    /// From a random word: bit 0 is the sign, the 31 others times `buckets`, over 2^31, the bucket.
    #[inline(always)]
    pub fn of(word: u32, buckets: usize) -> Self {
        Self(((u64::from(word >> 1) * buckets as u64) >> 31) as u32 | (word << 31))
    }

    /// Which bucket.
    #[inline(always)]
    pub fn bucket(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    /// Whether the sign is minus.
    #[inline(always)]
    pub fn is_minus(self) -> bool {
        self.0 >> 31 == 1
    }

    /// The cell of an element whose row has this and whose column has `other`, under [`Fold::Sum`].
    #[inline(always)]
    pub fn plus(self, other: Self, k: usize) -> Self {
        let sum = (self.0 & 0x7fff_ffff) + (other.0 & 0x7fff_ffff);
        let bucket = if sum as usize >= k { sum - k as u32 } else { sum };
        Self(bucket | (self.0 ^ other.0) & 0x8000_0000)
    }

    /// +1 or -1.
    pub fn sign(self) -> f64 {
        if self.is_minus() { -1.0 } else { 1.0 }
    }
}

/// The sides k1 <= k2 of a grid of k buckets, as near to a square as k's divisors allow.
pub fn grid_sides(k: usize) -> (usize, usize) {
    let mut side = k.isqrt().max(1);
    while !k.is_multiple_of(side) {
        side -= 1;
    }
    (side, k / side)
}

/// How the hashes of a row and of a column make a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Their sum mod k.
    Sum,
    /// k2 times the row's, plus the column's.
    Grid,
}

/// U's columns for one tensor.
#[derive(Clone, Debug)]
pub enum TensorSketch {
    /// From hashes of rows and columns.
    Product {
        /// How they are put together.
        fold: Fold,
        /// A cell a row: of k buckets, or of k1.
        rows: Vec<Cell>,
        /// A cell a column: of k buckets, or of k2.
        columns: Vec<Cell>,
    },
    /// A word an element.
    Count {
        /// Where the words are.
        words: PublicStream,
        /// Columns of the tensor.
        columns: usize,
    },
}

/// U at one step, for tensors of the given shapes (rows, columns).
#[derive(Clone, Debug)]
pub struct StepSketch {
    k: usize,
    kind: SketchKind,
    tensors: Vec<TensorSketch>,
    scales: Option<Vec<f32>>,
}

impl StepSketch {
    /// The sketch of (seed, step). Panics unless `1 <= k <= MOST_BUCKETS`.
    pub fn new(seed: u64, step: u32, kind: SketchKind, k: usize, shapes: &[(usize, usize)]) -> Self {
        assert!((1..=MOST_BUCKETS).contains(&k), "a sketch of 1 to {MOST_BUCKETS} buckets, not {k}");
        let tensor = |(tensor, &(rows, columns)): (usize, &(usize, usize))| {
            let words = PublicStream::new(seed, Domain::Sketch, step, tensor as u32);
            let cells = |first: usize, count: usize, buckets: usize| {
                let mut all = vec![0; count];
                words.words(first as u64, &mut all);
                all.into_iter().map(|word| Cell::of(word, buckets)).collect()
            };
            let (k1, k2) = grid_sides(k);
            let product = |fold, k1, k2| TensorSketch::Product {
                fold,
                rows: cells(0, rows, k1),
                columns: cells(rows, columns, k2),
            };
            match kind {
                SketchKind::Tensor => product(Fold::Sum, k, k),
                SketchKind::Grid if rows > 1 => product(Fold::Grid, k1, k2),
                _ => TensorSketch::Count { words, columns },
            }
        };
        Self { k, kind, tensors: shapes.iter().enumerate().map(tensor).collect(), scales: None }
    }

    /// The same with entries of ±s, an s for each tensor; none: of ±1, as they are.
    pub fn with_scales(self, scales: Option<Vec<f32>>) -> Self {
        Self { scales, ..self }
    }

    /// s of a tensor; none where entries are ±1. Whoever adds up U g multiplies what a tensor delivers by it, and whoever applies `Uᵀ b` that.
    pub fn scale(&self, tensor: usize) -> Option<f32> {
        self.scales.as_ref().map(|scales| scales[tensor])
    }

    /// Number of buckets.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How elements fall into them.
    pub fn kind(&self) -> SketchKind {
        self.kind
    }

    /// U's columns for tensor `index`.
    pub fn tensor(&self, index: usize) -> &TensorSketch {
        &self.tensors[index]
    }

    /// Bucket and sign of one element: the definition, but for the tensor's scale.
    pub fn cell(&self, tensor: usize, row: usize, column: usize) -> (usize, f64) {
        match &self.tensors[tensor] {
            TensorSketch::Product { fold, rows, columns } => {
                let (r, c) = (rows[row], columns[column]);
                let bucket = match fold {
                    Fold::Sum => (r.bucket() + c.bucket()) % self.k,
                    Fold::Grid => r.bucket() * grid_sides(self.k).1 + c.bucket(),
                };
                (bucket, r.sign() * c.sign())
            }
            count @ TensorSketch::Count { columns, .. } => {
                let mut cell = [Cell(0)];
                count.cells(row * columns + column, self.k, &mut cell);
                (cell[0].bucket(), cell[0].sign())
            }
        }
    }
}

impl TensorSketch {
    /// The cells of elements `first ..` of a tensor whose elements have their own.
    pub fn cells(&self, first: usize, k: usize, out: &mut [Cell]) {
        let TensorSketch::Count { words, .. } = self else { panic!("elements of this sketch share their rows' cells") };
        let mut rng = words.at(COUNTS + first as u64);
        let mut batch = [0; 256];
        for out in out.chunks_mut(batch.len()) {
            let batch = &mut batch[..out.len()];
            fill_words(&mut rng, batch);
            out.iter_mut().zip(batch).for_each(|(cell, word)| *cell = Cell::of(*word, k));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [SketchKind; 3] = [SketchKind::Tensor, SketchKind::Count, SketchKind::Grid];

    /// Over steps: the square is right on average, and spread as the sketch's theory says.
    #[test]
    fn squares_are_kept_on_average_with_the_stated_variance() {
        let (rows, columns, k, steps) = (12, 10, 16, 20_000u32);
        let g: Vec<f64> = (0..rows * columns).map(|i| ((i * i) as f64 * 0.37).sin() + 0.2).collect();
        let square: f64 = g.iter().map(|g| g * g).sum();
        let fourth: f64 = g.iter().map(|g| g.powi(4)).sum();
        for kind in KINDS {
            let squares: Vec<f64> = (0..steps)
                .map(|step| {
                    let sketch = StepSketch::new(5, step, kind, k, &[(rows, columns)]);
                    let mut v = vec![0.0; k];
                    for (e, g) in g.iter().enumerate() {
                        let (bucket, sign) = sketch.cell(0, e / columns, e % columns);
                        v[bucket] += sign * g;
                    }
                    v.iter().map(|v| v * v).sum::<f64>() / square
                })
                .collect();
            let n = f64::from(steps);
            let mean = squares.iter().sum::<f64>() / n;
            let variance = squares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
            assert!((mean - 1.0).abs() < 6.0 * (variance / n).sqrt(), "{kind:?}: mean {mean}");
            let count = 2.0 / k as f64 * (1.0 - fourth / square.powi(2));
            match kind {
                // The error of a variance is about sqrt(kurtosis / n) of it.
                SketchKind::Count => assert!((variance / count - 1.0).abs() < 0.15, "{variance}, not {count}"),
                // Never better than a count sketch; Pham and Pagh bound the tensor sketch's by 8 / k.
                SketchKind::Tensor => assert!((0.85 * count..8.0 / k as f64).contains(&variance), "{variance}"),
                SketchKind::Grid => assert!(variance > 0.85 * count, "{variance}"),
            }
        }
    }

    #[test]
    fn buckets_and_signs_are_even_and_unlike_from_step_to_step_and_tensor_to_tensor() {
        for kind in KINDS {
            let (k, n) = (8, 4000);
            let sketch = |step| StepSketch::new(1, step, kind, k, &[(n, 2), (n, 2)]);
            let (one, two) = (sketch(0), sketch(1));
            let mut cells = vec![0usize; 2 * k];
            let mut same = [0; 2];
            for r in 0..n {
                let (bucket, sign) = one.cell(0, r, 0);
                cells[2 * bucket + usize::from(sign < 0.0)] += 1;
                same[0] += usize::from(one.cell(0, r, 0) == two.cell(0, r, 0));
                same[1] += usize::from(one.cell(0, r, 0) == one.cell(1, r, 0));
            }
            let expected = n as f64 / (2 * k) as f64;
            // Under the grid one column meets the k1 buckets of its own k2.
            if kind != SketchKind::Grid {
                let chi2: f64 = cells.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
                assert!(chi2 < 60.0, "{kind:?}: {chi2} on 15 degrees of freedom");
                assert!(same.iter().all(|&s| (s as f64 - expected).abs() < 6.0 * expected.sqrt()), "{same:?}");
            }
        }
    }

    #[test]
    fn grids_are_as_square_as_their_number_allows() {
        assert_eq!([1, 2, 7, 12, 1024, 1000].map(grid_sides), [(1, 1), (1, 2), (1, 7), (3, 4), (32, 32), (25, 40)]);
    }

    /// The words of a run published today must be the words of its replay.
    #[test]
    fn pinned() {
        let of = |kind| {
            let sketch = StepSketch::new(42, 3, kind, 1024, &[(4, 5), (300, 200)]);
            [(0, 0), (17, 0), (17, 199), (299, 1)].map(|(r, c)| sketch.cell(1, r, c))
        };
        // From an implementation of the cipher in another language.
        assert_eq!(
            KINDS.map(of),
            [
                [(396, 1.0), (523, -1.0), (465, 1.0), (221, 1.0)],
                [(93, 1.0), (1013, -1.0), (950, -1.0), (333, 1.0)],
                [(632, 1.0), (760, -1.0), (759, 1.0), (565, 1.0)]
            ]
        );
    }
}
