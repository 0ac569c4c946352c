//! [`Memory`] on the CPU.

use super::{Cpu, Tensor, Weight};
use crate::backend::Memory;
use crate::error::{Error, Result};
use crate::kernel::{self, Real, Stored};
use crate::rng::DirectionStream;
use ndarray::Array2;
use rayon::prelude::*;
use std::ops::Range;

impl<F: Real> Memory for Cpu<F> {
    type Tensor = Tensor<F>;
    type Weight = Weight<F>;

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
        bytemuck::try_cast_slice_mut(x.as_slice_mut()).ok().filter(|_| self.is_exact())
    }

    fn is_exact(&self) -> bool {
        size_of::<F>() == size_of::<f32>()
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

    fn gather(&self, x: &Tensor<F>, at: &[u32]) -> Tensor<F> {
        let cols = x.array.ncols();
        let (mut y, x) = (self.empty(at.len(), cols), x.as_slice());
        y.as_slice_mut().chunks_exact_mut(cols.max(1)).zip(at).for_each(|(y, &i)| {
            y.copy_from_slice(&x[i as usize * cols..][..cols]);
        });
        y
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }

    fn inside<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        rayon::scope(|_| ops())
    }

    fn chain<R: Send>(&self, ops: impl FnOnce() -> R + Send) -> R {
        kernel::awake(ops)
    }

    fn weight(&self, rows: usize, cols: usize, data: Stored) -> Result<Weight<F>> {
        let found = data.len();
        let narrow = match data {
            Stored::F32(data) => return self.upload(rows, cols, data).map(Weight::Wide),
            Stored::Bf16(data) => Array2::from_shape_vec((rows, cols), data).map(Weight::Bf16),
            Stored::F16(data) => Array2::from_shape_vec((rows, cols), data).map(Weight::F16),
        };
        narrow.map_err(|_| Error::usage(format!("{found} numbers do not fill a matrix of {rows} x {cols}")))
    }

    fn weight_shape(&self, w: &Weight<F>) -> (usize, usize) {
        w.dim()
    }

    fn download_weight(&self, w: &Weight<F>) -> Result<Vec<f32>> {
        match w {
            Weight::Wide(x) => self.download(x),
            _ => Ok(w.values().iter().map(|x| x.f64() as f32).collect()),
        }
    }

    fn take_weight(&self, w: Weight<F>) -> Result<Stored> {
        Ok(match w {
            Weight::Wide(mut x) => match bytemuck::allocation::try_cast_vec::<F, f32>(x.take()) {
                Ok(same) if size_of::<F>() == size_of::<f32>() => Stored::F32(same),
                Ok(_) => unreachable!("a cast keeps the element size"),
                Err((_, wide)) => Stored::F32(wide.iter().map(|x| x.f64() as f32).collect()),
            },
            Weight::Bf16(x) => Stored::Bf16(x.into_raw_vec_and_offset().0),
            Weight::F16(x) => Stored::F16(x.into_raw_vec_and_offset().0),
        })
    }

    fn master<'a>(&self, w: &'a mut Weight<F>) -> &'a mut Tensor<F> {
        if !matches!(w, Weight::Wide(_)) {
            let array = Array2::from_shape_vec(w.dim(), w.values().into_owned()).expect("the length is the shape's");
            *w = Weight::Wide(Tensor { array, pool: self.pool.clone() });
        }
        let Weight::Wide(x) = w else { unreachable!("it was just made one") };
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn a_weight_stays_as_stored_until_its_master_is_asked_for() {
        let b = Cpu::<f32>::new();
        let numbers = [1.5f32, -2.0, 0.25, 3.0, 0.0, -7.0];
        let stored = Stored::Bf16(numbers.map(bf16::from_f32).to_vec());
        assert!(b.weight(2, 2, stored.clone()).is_err());
        let mut w = b.weight(2, 3, stored).unwrap();
        assert_eq!((b.weight_shape(&w), w.bytes()), ((2, 3), 12));
        assert_eq!(b.download_weight(&w).unwrap(), numbers);
        let mut row = [0.0; 3];
        w.row(1, &mut row);
        assert_eq!(row, numbers[3..]);
        b.master(&mut w).as_slice_mut()[4] = 1e-3;
        assert_eq!((b.weight_shape(&w), w.bytes()), ((2, 3), 24));
        assert_eq!(b.download_weight(&w).unwrap()[3..], [3.0, 1e-3, -7.0]);
        let Stored::F32(taken) = b.take_weight(w).unwrap() else { panic!("a master is in f32") };
        assert_eq!(taken[3..], [3.0, 1e-3, -7.0]);
        let narrow = Stored::Bf16(numbers.map(bf16::from_f32).to_vec());
        assert_eq!(b.take_weight(b.weight(2, 3, narrow.clone()).unwrap()).unwrap(), narrow);
        let wide = Cpu::<f64>::new();
        let taken = wide.take_weight(wide.weight(2, 3, Stored::F32(numbers.to_vec())).unwrap()).unwrap();
        assert_eq!(taken, Stored::F32(numbers.to_vec()));
    }
}
