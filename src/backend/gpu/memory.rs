//! [`Memory`] on the GPU.

use super::{Gpu, Tensor, matmul, rows};
use crate::backend::Memory;
use crate::error::{Error, Result};
use crate::kernel::Stored;
use crate::rng::DirectionStream;
use std::ops::Range;

impl Memory for Gpu {
    type Tensor = Tensor;
    type Weight = Tensor;

    fn shape(&self, x: &Tensor) -> (usize, usize) {
        (x.rows, x.cols)
    }

    fn zeros(&self, rows: usize, cols: usize) -> Tensor {
        let x = self.empty(rows, cols);
        self.context.clear(&x);
        x
    }

    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Tensor> {
        if data.len() != rows * cols {
            return Err(Error::usage(format!("{} numbers do not fill a matrix of {rows} x {cols}", data.len())));
        }
        let x = self.empty(rows, cols);
        self.context.write(&x, &data)?;
        Ok(x)
    }

    fn download(&self, x: &Tensor) -> Result<Vec<f32>> {
        self.context.read(x)
    }

    fn download_all(&self, all: &[&Tensor]) -> Result<Vec<Vec<f32>>> {
        self.context.read_all(all)
    }

    fn write(&self, x: &mut Tensor, data: &[f32]) -> Result<()> {
        if data.len() != x.rows * x.cols {
            return Err(Error::usage(format!(
                "{} numbers do not fill a matrix of {} x {}",
                data.len(),
                x.rows,
                x.cols
            )));
        }
        self.context.write(x, data)
    }

    fn host_mut<'a>(&self, _: &'a mut Tensor) -> Option<&'a mut [f32]> {
        None
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Tensor {
        assert!(offset + rows * cols <= direction.dim(), "elements of a direction");
        let u = self.empty(rows, cols);
        rows::direction(&self.context, direction, offset, &u);
        u
    }

    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Tensor {
        let u = self.empty(ids.len(), cols);
        rows::direction_rows(&self.context, direction, offset, ids, &u);
        u
    }

    fn rows(&self, x: &Tensor, rows: Range<usize>) -> Tensor {
        let y = self.empty(rows.len(), x.cols);
        self.context.copy_rows(x, rows, &y);
        y
    }

    fn gather(&self, x: &Tensor, at: &[u32]) -> Tensor {
        let y = self.empty(at.len(), x.cols);
        rows::gather(&self.context, at, x, &y, false);
        y
    }

    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        matmul::decoding(ops)
    }

    fn finish(&self) -> Result<()> {
        self.context.finish()
    }

    fn weight(&self, rows: usize, cols: usize, data: Stored) -> Result<Tensor> {
        self.upload(rows, cols, data.into_f32())
    }

    fn weight_shape(&self, w: &Tensor) -> (usize, usize) {
        self.shape(w)
    }

    fn download_weight(&self, w: &Tensor) -> Result<Vec<f32>> {
        self.download(w)
    }

    fn take_weight(&self, w: Tensor) -> Result<Stored> {
        self.download(&w).map(Stored::F32)
    }

    fn master<'a>(&self, w: &'a mut Tensor) -> &'a mut Tensor {
        w
    }
}
