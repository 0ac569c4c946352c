//! [`Memory`] on the CPU.

use super::{Cpu, Tensor};
use crate::backend::Memory;
use crate::error::{Error, Result};
use crate::kernel::{self, Real, Stored};
use crate::rng::DirectionStream;
use ndarray::Array2;
use rayon::prelude::*;
use std::ops::Range;

impl<F: Real> Memory for Cpu<F> {
    type Tensor = Tensor<F>;
    type Weight = Tensor<F>;

    fn shape(&self, x: &Tensor<F>) -> (usize, usize) {
        x.array.dim()
    }

    fn zeros(&self, rows: usize, cols: usize) -> Tensor<F> {
        let mut x = self.empty(rows, cols);
        x.as_slice_mut().fill(F::zero());
        x
    }

    fn upload(&self, rows: usize, cols: usize, data: Vec<f32>) -> Result<Tensor<F>> {
        let found = data.len();
        // A Vec<f32> is used as it is; other scalars are converted.
        let data = match bytemuck::allocation::try_cast_vec::<f32, F>(data) {
            Ok(same) if size_of::<F>() == size_of::<f32>() => same,
            Ok(_) => unreachable!("a cast keeps the element size"),
            Err((_, data)) => data.into_iter().map(|x| F::of(x as f64)).collect(),
        };
        let array = Array2::from_shape_vec((rows, cols), data)
            .map_err(|_| Error::usage(format!("{found} numbers do not fill a matrix of {rows} x {cols}")))?;
        Ok(Tensor { array, pool: self.pool.clone() })
    }

    fn download(&self, x: &Tensor<F>) -> Result<Vec<f32>> {
        Ok(x.as_slice().iter().map(|x| x.f64() as f32).collect())
    }

    fn download_all(&self, all: &[&Tensor<F>]) -> Result<Vec<Vec<f32>>> {
        all.iter().map(|x| self.download(x)).collect()
    }

    fn write(&self, x: &mut Tensor<F>, data: &[f32]) -> Result<()> {
        let to = x.as_slice_mut();
        if to.len() != data.len() {
            return Err(Error::usage(format!("{} numbers do not fill a matrix of {}", data.len(), to.len())));
        }
        to.iter_mut().zip(data).for_each(|(to, &from)| *to = F::of(from as f64));
        Ok(())
    }

    fn host_mut<'a>(&self, x: &'a mut Tensor<F>) -> Option<&'a mut [f32]> {
        bytemuck::try_cast_slice_mut(x.as_slice_mut()).ok().filter(|_| size_of::<F>() == size_of::<f32>())
    }

    fn direction(&self, direction: &DirectionStream, offset: usize, rows: usize, cols: usize) -> Tensor<F> {
        const PIECE: usize = 1 << 13;
        let mut u = self.empty(rows, cols);
        u.as_slice_mut().par_chunks_mut(PIECE).enumerate().for_each(|(i, out)| {
            let mut piece = [0.0; PIECE];
            let piece = &mut piece[..out.len()];
            direction.fill(offset + i * PIECE, piece);
            out.iter_mut().zip(piece).for_each(|(to, from)| *to = F::of(*from as f64));
        });
        u
    }

    fn direction_rows(&self, direction: &DirectionStream, offset: usize, ids: &[u32], cols: usize) -> Tensor<F> {
        let mut u = self.empty(ids.len(), cols);
        let rows = u.as_slice_mut().par_chunks_mut(cols.max(1)).zip(ids);
        rows.for_each_init(
            || vec![0.0; cols],
            |row, (out, &id)| {
                direction.fill(offset + id as usize * cols, row);
                out.iter_mut().zip(&*row).for_each(|(to, &from)| *to = F::of(from.into()));
            },
        );
        u
    }

    fn rows(&self, x: &Tensor<F>, rows: Range<usize>) -> Tensor<F> {
        let mut y = self.empty(rows.len(), x.array.ncols());
        y.array.assign(&x.take_rows(rows));
        y
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }

    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        kernel::awake(ops)
    }

    fn weight(&self, rows: usize, cols: usize, data: Stored) -> Result<Tensor<F>> {
        self.upload(rows, cols, data.into_f32())
    }

    fn weight_shape(&self, w: &Tensor<F>) -> (usize, usize) {
        self.shape(w)
    }

    fn download_weight(&self, w: &Tensor<F>) -> Result<Vec<f32>> {
        self.download(w)
    }

    fn master<'a>(&self, w: &'a mut Tensor<F>) -> &'a mut Tensor<F> {
        w
    }
}
