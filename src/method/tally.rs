//! Sums over the rows of a step's micro-batches.

use crate::backend::Backend;
use crate::error::Result;
use crate::model::Batch;

/// `a + b` as a [`Tally`] adds them up: in f64 on the host, in f32 on a device.
pub(in crate::method) fn sum<B: Backend>(backend: &B, a: f64, b: f64) -> f64 {
    if backend.is_exact() { a + b } else { f64::from(a as f32 + b as f32) }
}

/// A few numbers, each a sum over rows (`sum of w_i x_i`, or of `x_i`), added up over micro-batches. In host memory they are f64; on a
/// device they stay where the rows are and are read all at once, so that nothing else of a step is read back.
enum Tally<B: Backend> {
    Host(Vec<f64>),
    /// 1 x 1 each.
    Device(Vec<B::Tensor>),
}

impl<B: Backend> Tally<B> {
    /// `count` zeros.
    fn new(b: &B, count: usize) -> Self {
        match b.is_exact() {
            true => Self::Host(vec![0.0; count]),
            false => Self::Device((0..count).map(|_| b.zeros(1, 1)).collect()),
        }
    }

    /// Add the column `rows` (N x 1) to number `i`, each row times its weight if there are `weights`.
    fn add(&mut self, b: &B, i: usize, rows: &B::Tensor, weights: Option<&[f32]>) -> Result<()> {
        match (self, weights) {
            (Self::Host(sums), weights) => {
                let rows = b.download(rows)?;
                sums[i] += match weights {
                    None => rows.iter().map(|&x| f64::from(x)).sum::<f64>(),
                    Some(w) => rows.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>(),
                };
            }
            (Self::Device(sums), None) => b.add_columns(rows, 0..b.shape(rows).0, &mut sums[i]),
            (Self::Device(sums), Some(w)) => {
                let mut products = b.zeros(w.len(), 1);
                b.add_row_dots(rows, &b.upload(w.len(), 1, w.to_vec())?, &mut products, 0);
                b.add_columns(&products, 0..w.len(), &mut sums[i]);
            }
        }
        Ok(())
    }

    /// The numbers.
    fn read(self, b: &B) -> Result<Vec<f64>> {
        match self {
            Self::Host(sums) => Ok(sums),
            Self::Device(sums) => {
                let read = b.download_all(&sums.iter().collect::<Vec<_>>())?;
                Ok(read.iter().map(|x| f64::from(x[0])).collect())
            }
        }
    }
}

/// What depends on the realised batch. By default it is that of no batch.
#[derive(Default)]
pub struct Private {
    /// Records in the batch (of all bits together).
    pub records: usize,
    /// Tokens fed.
    pub tokens: usize,
    /// Mean over the batch's records of their mean token loss; none where it was not computed.
    pub loss: Option<f64>,
}

impl Private {
    /// How many numbers [`Sums::read`] gives besides the inner products: the sum of losses, whether there is one, records and tokens.
    pub(in crate::method) const NUMBERS: usize = 4;

    /// The `dots` inner products of what [`Sums::read`] gave, or a sum of such, and the rest; of which nothing is known where it is not there.
    pub(in crate::method) fn split(mut numbers: Vec<f64>, dots: usize) -> (Vec<f64>, Self) {
        let private = match numbers[dots..] {
            [loss, losses, records, tokens] => Self {
                records: records as usize,
                tokens: tokens as usize,
                loss: (losses > 0.0 && records > 0.0).then(|| loss / records),
            },
            _ => Self::default(),
        };
        numbers.truncate(dots);
        (numbers, private)
    }

    /// Of all batches together.
    pub(in crate::method) fn joined(batches: impl IntoIterator<Item = Self>) -> Self {
        batches.into_iter().fold(Self::default(), Self::join)
    }

    fn join(self, other: Self) -> Self {
        let records = self.records + other.records;
        let weighted = |p: &Self| p.loss.map(|l| l * p.records as f64);
        let loss = match (weighted(&self), weighted(&other)) {
            (None, None) => None,
            (a, b) => Some((a.unwrap_or(0.0) + b.unwrap_or(0.0)) / records.max(1) as f64),
        };
        Self { records, tokens: self.tokens + other.tokens, loss }
    }
}

/// What is summed over a step's micro-batches: some inner products, and the records' losses.
pub(in crate::method) struct Sums<B: Backend> {
    records: usize,
    tokens: usize,
    /// The inner products, then the loss.
    tally: Tally<B>,
    dots: usize,
    losses: bool,
}

impl<B: Backend> Sums<B> {
    /// Nothing yet, of `dots` inner products.
    pub(in crate::method) fn new(b: &B, dots: usize) -> Self {
        Self { records: 0, tokens: 0, tally: Tally::new(b, dots + 1), dots, losses: false }
    }

    /// A micro-batch, with the losses of its rows and each row's weight in its record's mean, if they were computed.
    pub(in crate::method) fn add(&mut self, b: &B, batch: &Batch, losses: Option<(&B::Tensor, &[f32])>) -> Result<()> {
        self.records += batch.segments.len();
        self.tokens += batch.rows();
        if let Some((losses, means)) = losses {
            self.losses = true;
            self.tally.add(b, self.dots, losses, Some(means))?;
        }
        Ok(())
    }

    /// Add rows to inner product `i`, each times its weight if there are `weights`.
    pub(in crate::method) fn add_dot(
        &mut self,
        b: &B,
        i: usize,
        rows: &B::Tensor,
        weights: Option<&[f32]>,
    ) -> Result<()> {
        self.tally.add(b, i, rows, weights)
    }

    /// The inner products, and the numbers that [`Private::split`] understands.
    pub(in crate::method) fn read(self, b: &B) -> Result<Vec<f64>> {
        let Self { records, tokens, tally, losses, .. } = self;
        let mut read = tally.read(b)?;
        read.extend([f64::from(u8::from(losses)), records as f64, tokens as f64]);
        Ok(read)
    }
}
