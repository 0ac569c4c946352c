//! `Uᵀ b`: what a release of FERRET-k does to the weights, element by element.

use super::sketch::{Cell, Fold, SketchKind, StepSketch, TensorSketch, grid_sides};
use rayon::prelude::*;

/// Elements of a task of [`Pullback`].
const TASK: usize = 1 << 15;

/// `scale Uᵀ b`: element e is `scale b[bucket(e)]` with e's sign.
///
/// The product `scale b` is rounded once for each bucket, a sign changes no digit, and an update is one IEEE product and one subtraction: the same bytes on
/// every machine.
/// An element costs the read of a table that stays in the cache. With a period P = 2k (b twice, so that a sum of two buckets needs no remainder), or k for
/// the grid, the table is (b, -b, b) and an element of a product sketch lies at `row + column`, where minus adds P to either.
pub struct Pullback<'a> {
    sketch: &'a StepSketch,
    /// b, -b, b.
    once: Vec<f32>,
    /// The same with each b twice.
    sums: Vec<f32>,
}

impl StepSketch {
    /// `scale Uᵀ b`, for element-wise use.
    pub fn pullback(&self, b: &[f32], scale: f32) -> Pullback<'_> {
        assert_eq!(b.len(), self.k(), "a number for each bucket");
        let scaled: Vec<f32> = b.iter().map(|b| b * scale).collect();
        let minus: Vec<f32> = scaled.iter().map(|b| -b).collect();
        let twice = |b: &[f32]| [b, b].concat();
        Pullback {
            sketch: self,
            once: [&scaled[..], &minus, &scaled].concat(),
            sums: if self.kind() == SketchKind::Tensor {
                [twice(&scaled), twice(&minus), twice(&scaled)].concat()
            } else {
                Vec::new()
            },
        }
    }
}

impl Pullback<'_> {
    /// U.
    pub fn sketch(&self) -> &StepSketch {
        self.sketch
    }

    /// `scale b`.
    pub fn numbers(&self) -> &[f32] {
        &self.once[..self.sketch.k()]
    }

    /// Rows `first ..` of tensor `index` into `out`.
    pub fn fill(&self, index: usize, first: usize, out: &mut [f32]) {
        self.each(index, first, out, |x, u| *x = u);
    }

    /// Subtract `scale` times rows `first ..` of tensor `index` from `w`.
    pub fn subtract(&self, index: usize, first: usize, scale: f32, w: &mut [f32]) {
        self.each(index, first, w, |x, u| *x -= scale * u);
    }

    fn each(&self, index: usize, first: usize, x: &mut [f32], f: impl Fn(&mut f32, f32) + Sync) {
        let k = self.sketch.k();
        match self.sketch.tensor(index) {
            TensorSketch::Product { fold, rows, columns } => {
                let (table, period, step) = match fold {
                    Fold::Sum => (&self.sums, 2 * k, 1),
                    Fold::Grid => (&self.once, k, grid_sides(k).1),
                };
                let place = |cell: Cell, step: usize| cell.bucket() * step + if cell.is_minus() { period } else { 0 };
                let columns: Vec<u32> = columns.iter().map(|&c| place(c, 1) as u32).collect();
                let width = columns.len();
                let block = (TASK / width.max(1)).max(1);
                x.par_chunks_mut((block * width).max(1)).enumerate().for_each(|(i, x)| {
                    for (r, x) in x.chunks_mut(width).enumerate() {
                        let table = &table[place(rows[first + i * block + r], step)..];
                        x.iter_mut().zip(&columns).for_each(|(x, &c)| f(x, table[c as usize]));
                    }
                });
            }
            count @ TensorSketch::Count { columns, .. } => {
                let first = first * columns;
                x.par_chunks_mut(TASK).enumerate().for_each(|(i, x)| {
                    let mut cells = [Cell::of(0, 1); 1024];
                    for (j, x) in x.chunks_mut(cells.len()).enumerate() {
                        let cells = &mut cells[..x.len()];
                        count.cells(first + i * TASK + 1024 * j, k, cells);
                        for (x, cell) in x.iter_mut().zip(cells) {
                            f(x, self.once[cell.bucket() + if cell.is_minus() { k } else { 0 }]);
                        }
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pullback_is_the_transpose_element_by_element() {
        let shapes = [(5, 7), (1, 300), (40, 1), (130, 261), (0, 4)];
        for kind in [SketchKind::Tensor, SketchKind::Count, SketchKind::Grid] {
            for k in [1, 2, 7, 12, 64, 1000] {
                let sketch = StepSketch::new(9, 3, kind, k, &shapes);
                let b: Vec<f32> = (0..k).map(|i| (i as f32 * 0.7).sin()).collect();
                let pullback = sketch.pullback(&b, 0.1);
                for (tensor, &(rows, columns)) in shapes.iter().enumerate() {
                    for first in [0, rows / 2] {
                        let want: Vec<f32> = (first..rows)
                            .flat_map(|r| (0..columns).map(move |c| (r, c)))
                            .map(|(r, c)| {
                                let (bucket, sign) = sketch.cell(tensor, r, c);
                                sign as f32 * (b[bucket] * 0.1)
                            })
                            .collect();
                        let mut got = vec![f32::NAN; want.len()];
                        pullback.fill(tensor, first, &mut got);
                        assert_eq!(got, want, "{kind:?}, {k} buckets, tensor {tensor}");
                        let mut w: Vec<f32> = (0..want.len()).map(|i| i as f32 * 0.3).collect();
                        let moved: Vec<f32> = w.iter().zip(&want).map(|(w, u)| w - 0.7 * u).collect();
                        pullback.subtract(tensor, first, 0.7, &mut w);
                        assert_eq!(w, moved);
                    }
                }
            }
        }
    }
}
