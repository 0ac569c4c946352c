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

    /// `m = share m + scale Uᵀ b` and `w -= rate m` for the whole tensor `index`, a task at a time: what it reads is still in the cache when it is
    /// read again.
    pub fn momentum(&self, index: usize, [share, scale, rate]: [f32; 3], m: &mut [f32], w: &mut [f32]) {
        let walk = self.walk(index);
        let tasks = m.par_chunks_mut(walk.task).zip(w.par_chunks_mut(walk.task)).enumerate();
        tasks.for_each(|(i, (m, w))| {
            walk.on(i * walk.task, m, |m, u| *m = *m * share + scale * u);
            w.iter_mut().zip(m).for_each(|(w, m)| *w -= rate * *m);
        });
    }

    fn each(&self, index: usize, first: usize, x: &mut [f32], f: impl Fn(&mut f32, f32) + Sync) {
        let walk = self.walk(index);
        let start = first * walk.width;
        x.par_chunks_mut(walk.task).enumerate().for_each(|(i, x)| walk.on(start + i * walk.task, x, &f));
    }

    fn walk(&self, index: usize) -> Walk<'_> {
        let (tensor, k) = (self.sketch.tensor(index), self.sketch.k());
        match tensor {
            TensorSketch::Product { fold, columns, .. } => {
                let (table, period, step) = match fold {
                    Fold::Sum => (&self.sums[..], 2 * k, 1),
                    Fold::Grid => (&self.once[..], k, grid_sides(k).1),
                };
                let width = columns.len();
                let task = ((TASK / width.max(1)).max(1) * width).max(1);
                let columns = columns.iter().map(|&c| place(c, 1, period) as u32).collect();
                Walk { tensor, k, table, period, step, columns, width, task }
            }
            &TensorSketch::Count { columns: width, .. } => {
                Walk { tensor, k, table: &self.once, period: k, step: 1, columns: Vec::new(), width, task: TASK }
            }
        }
    }
}

/// Where a cell's number begins in a table of this period.
fn place(cell: Cell, step: usize, period: usize) -> usize {
    cell.bucket() * step + if cell.is_minus() { period } else { 0 }
}

/// A tensor's elements in order, each with its element of `Uᵀ b`.
struct Walk<'a> {
    tensor: &'a TensorSketch,
    k: usize,
    table: &'a [f32],
    period: usize,
    /// Between the places of neighbouring buckets of rows.
    step: usize,
    /// The place of every column of a product sketch.
    columns: Vec<u32>,
    width: usize,
    /// Elements of a task: whole rows of a product sketch.
    task: usize,
}

impl Walk<'_> {
    /// Calls `f` on the elements x, which begin at element `start` of the tensor: of a product sketch, where a row does.
    fn on(&self, start: usize, x: &mut [f32], f: impl Fn(&mut f32, f32)) {
        match self.tensor {
            TensorSketch::Product { rows, .. } => {
                for (row, x) in rows[start / self.width.max(1)..].iter().zip(x.chunks_mut(self.width.max(1))) {
                    let table = &self.table[place(*row, self.step, self.period)..];
                    x.iter_mut().zip(&self.columns).for_each(|(x, &c)| f(x, table[c as usize]));
                }
            }
            count @ TensorSketch::Count { .. } => {
                let mut cells = [Cell::of(0, 1); 1024];
                for (j, x) in x.chunks_mut(cells.len()).enumerate() {
                    let cells = &mut cells[..x.len()];
                    count.cells(start + 1024 * j, self.k, cells);
                    x.iter_mut().zip(cells).for_each(|(x, cell)| f(x, self.table[place(*cell, 1, self.period)]));
                }
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
                        if first == 0 {
                            let mut m: Vec<f32> = (0..want.len()).map(|i| 1.0 - i as f32 * 0.01).collect();
                            let kept: Vec<f32> = m.iter().zip(&want).map(|(m, u)| m * 0.9 + 0.7 * u).collect();
                            let moved: Vec<f32> = w.iter().zip(&kept).map(|(w, m)| w - 0.3 * m).collect();
                            pullback.momentum(tensor, [0.9, 0.7, 0.3], &mut m, &mut w);
                            assert_eq!((m, w), (kept, moved));
                        }
                    }
                }
            }
        }
    }
}
