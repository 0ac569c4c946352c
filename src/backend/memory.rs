//! Tensors and weights: where numbers lie, and how they get there and back.

use crate::error::Result;
use crate::kernel::Stored;
use crate::rng::DirectionStream;
use std::ops::Range;

/// Numbers in a backend's memory.
pub trait Memory: Send + Sync {
    /// A matrix in this backend's memory.
    type Tensor: Send + Sync;
    /// A parameter. It may be stored in fewer bits than a tensor's numbers, which are widened where they are read.
    type Weight: Send + Sync;

    /// Rows and columns.
    fn shape(&self, x: &Self::Tensor) -> (usize, usize);
    /// A matrix of zeros.
    fn zeros(&self, rows: usize, cols: usize) -> Self::Tensor;
    /// A matrix with this content; `data` is row-major and `rows * cols` long.
    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Self::Tensor>;
    /// The content, row-major, waiting for it.
    fn download(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Several contents in one wait.
    fn download_all(&self, all: &[&Self::Tensor]) -> Result<Vec<Vec<f32>>>;
    /// Replace the content of `x` by `data`, row-major.
    fn write(&self, x: &mut Self::Tensor, data: &[f32]) -> Result<()>;
    /// The content itself where it lies in host memory in f32, so that updates need not copy it.
    fn host_mut<'a>(&self, x: &'a mut Self::Tensor) -> Option<&'a mut [f32]>;
    /// Whether all content lies there: what is updated has the bits that replay gives, and sums over rows are f64.
    fn is_exact(&self) -> bool;
    /// Change the contents of `all` on the host: where they lie there, in place.
    fn on_host(&self, all: Vec<&mut Self::Tensor>, change: impl FnOnce(&mut [&mut [f32]]) -> Result<()>) -> Result<()> {
        if self.is_exact() {
            let mut parts: Vec<&mut [f32]> =
                all.into_iter().map(|x| self.host_mut(x).expect("host memory, as was just asked")).collect();
            return change(&mut parts);
        }
        let mut parts = self.download_all(&all.iter().map(|x| &**x).collect::<Vec<_>>())?;
        change(&mut parts.iter_mut().map(|x| &mut x[..]).collect::<Vec<_>>())?;
        all.into_iter().zip(&parts).try_for_each(|(x, part)| self.write(x, part))
    }
    /// A block of a public direction: its elements `offset ..` as a matrix.
    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Self::Tensor;
    /// Rows `ids` of a matrix with `cols` columns whose elements are those of a public direction from `offset` on.
    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Self::Tensor;
    /// Rows `rows` of `x`, copied.
    fn rows(&self, x: &Self::Tensor, rows: Range<usize>) -> Self::Tensor;
    /// Rows `at` of `x`, copied.
    fn gather(&self, x: &Self::Tensor, at: &[u32]) -> Self::Tensor;
    /// Wait for all work and report what went wrong.
    fn finish(&self) -> Result<()>;
    /// Run many ops on a thread of the backend's own, where it has such: any other thread would wait twice for each, for one that takes it over.
    fn inside<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        ops()
    }
    /// Run a chain of ops too small to be waited for one by one, such as the decoding of a token.
    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        ops()
    }

    /// A parameter with this content, kept as it is stored where the backend can; `data` is row-major and `rows * cols` long.
    fn weight(&self, rows: usize, cols: usize, data: Stored) -> Result<Self::Weight>;
    /// Rows and columns of a parameter.
    fn weight_shape(&self, w: &Self::Weight) -> (usize, usize);
    /// A parameter's content in f32, row-major, waiting for it.
    fn download_weight(&self, w: &Self::Weight) -> Result<Vec<f32>>;
    /// A parameter's content as it lies in memory, given away: without a copy where that is the host's.
    fn take_weight(&self, w: Self::Weight) -> Result<Stored>;
    /// A parameter as a tensor that can be changed. One stored in fewer bits is widened for good on the first call: from then on it is its
    /// own f32 master.
    fn master<'a>(&self, w: &'a mut Self::Weight) -> &'a mut Self::Tensor;
}
