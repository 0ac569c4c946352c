//! [`Sketches`] on the GPU: sums in the device's memory, read once a micro-batch.
//!
//! A gradient `x_iᵀ dy_i` is formed, sample by sample, and hashed; where a product of count sketches of x and dy is smaller, that. Of a count sketch every element
//! has a bucket of its own, and a device without atomic additions cannot scatter in a fixed order: its factors come to the host.

use super::sketch::{self, Lists, words};
use super::{Gpu, Tensor};
use crate::backend::{Compute, Cpu, Memory, SampleNorms, Sketches, Updates};
use crate::error::Result;
use crate::ops::Segments;
use crate::ops::update::Step;
use crate::rng::sketch::{Cell, Fold, TensorSketch, grid_sides};
use crate::rng::{Pullback, SketchKind, StepSketch};

/// Elements of a pullback that exist at once: 4 MiB.
const BLOCK: usize = 1 << 20;

/// What the sketches of some samples are added up in.
pub struct Sums {
    /// k numbers a sample.
    v: Tensor,
    /// The host's, for what comes to it.
    host: Option<(Cpu<f32>, <Cpu<f32> as Sketches>::Sums)>,
}

/// How a tensor's columns fall into buckets.
struct Buckets {
    lists: Lists,
    /// Columns of the grid; 0 where buckets add up.
    side: usize,
}

/// U's columns for a tensor, as the shaders take them; none where every element has its own.
fn buckets(sketch: &StepSketch, tensor: usize) -> Option<(&[Cell], Buckets)> {
    let (k1, k2) = grid_sides(sketch.k());
    debug_assert_eq!(k1 * k2, sketch.k());
    match sketch.tensor(tensor) {
        TensorSketch::Product { fold: Fold::Sum, rows, columns } => {
            Some((rows, Buckets { lists: Lists::of(columns, sketch.k()), side: 0 }))
        }
        TensorSketch::Product { fold: Fold::Grid, rows, columns } => {
            Some((rows, Buckets { lists: Lists::of(columns, k2), side: k2 }))
        }
        TensorSketch::Count { .. } => None,
    }
}

impl Gpu {
    /// The content in the memory of `host`; none on a device that has failed, which is told by whoever waits next.
    fn fetch(&self, host: &Cpu<f32>, x: &Tensor) -> Option<<Cpu<f32> as Memory>::Tensor> {
        host.upload(x.rows, x.cols, self.download(x).ok()?).ok()
    }

    /// Count sketches of all rows.
    fn folded(&self, x: &Tensor, cells: &[Cell], buckets: usize) -> Tensor {
        let out = self.empty(x.rows, buckets);
        sketch::fold(&self.context, x, &Lists::of(cells, buckets), &out);
        out
    }
}

impl Sketches for Gpu {
    type Sums = Sums;

    fn sketch_sums(&self, sketch: &StepSketch, samples: usize) -> Sums {
        let host = (sketch.kind() == SketchKind::Count).then(|| {
            let host = Cpu::new();
            let sums = host.sketch_sums(sketch, samples);
            (host, sums)
        });
        Sums { v: self.zeros(samples, sketch.k()), host }
    }

    fn sketch_outer(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        x: &Tensor,
        dy: &Tensor,
        segments: &Segments,
        first: usize,
        Sums { v, host }: &mut Sums,
    ) {
        let TensorSketch::Product { fold, rows, columns } = sketch.tensor(tensor) else {
            let (host, sums) = host.as_mut().expect("matrices have cells of their own under a count sketch alone");
            if let (Some(x), Some(dy)) = (self.fetch(host, x), self.fetch(host, dy)) {
                host.sketch_outer(sketch, tensor, &x, &dy, segments, first, sums);
            }
            return;
        };
        let k = sketch.k();
        let ((k1, k2), side) = match fold {
            Fold::Sum => ((k, k), 0),
            Fold::Grid => (grid_sides(k), grid_sides(k).1),
        };
        let small = (k1 * k2 < x.cols * dy.cols).then(|| (self.folded(x, rows, k1), self.folded(dy, columns, k2)));
        // Of sketched factors, row and column b are bucket b.
        let plain: Vec<u32> = (0..k1 as u32).collect();
        let (x, dy, cells, lists) = match &small {
            Some((x, dy)) => (x, dy, &plain[..], Lists::identity(k2)),
            None => (x, dy, words(rows), Lists::of(columns, k2)),
        };
        for (i, range) in segments.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let mut g = self.zeros(x.cols, dy.cols);
            self.add_outer(x, dy, range, &mut g);
            sketch::hash(&self.context, (&g, 0..g.rows), (cells, &lists, side), v, first + i);
        }
    }

    fn sketch_rows(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        ids: &[u32],
        dy: &Tensor,
        segments: &Segments,
        first: usize,
        Sums { v, host }: &mut Sums,
    ) {
        let Some((rows, buckets)) = buckets(sketch, tensor) else {
            let (host, sums) = host.as_mut().expect("matrices have cells of their own under a count sketch alone");
            if let Some(dy) = self.fetch(host, dy) {
                host.sketch_rows(sketch, tensor, ids, &dy, segments, first, sums);
            }
            return;
        };
        let cells: Vec<Cell> = ids.iter().map(|&id| rows[id as usize]).collect();
        for (i, range) in segments.iter().enumerate() {
            let own = (&words(&cells)[range.clone()], &buckets.lists, buckets.side);
            sketch::hash(&self.context, (dy, range), own, v, first + i);
        }
    }

    fn sketch_vector(
        &self,
        sketch: &StepSketch,
        tensor: usize,
        dy: &Tensor,
        segments: &Segments,
        first: usize,
        Sums { v, .. }: &mut Sums,
    ) {
        // A vector's elements are few, and may have cells of their own.
        let (row, buckets) = buckets(sketch, tensor).map_or_else(
            || {
                let mut cells = vec![Cell::of(0, 1); dy.cols];
                sketch.tensor(tensor).cells(0, sketch.k(), &mut cells);
                (Cell::of(0, 1), Buckets { lists: Lists::of(&cells, sketch.k()), side: 0 })
            },
            |(rows, buckets)| (rows[0], buckets),
        );
        let sums = self.segment_sums(dy, segments);
        for i in 0..segments.len() {
            let own = (words(std::slice::from_ref(&row)), &buckets.lists, buckets.side);
            sketch::hash(&self.context, (&sums, i..i + 1), own, v, first + i);
        }
    }

    fn sketches(&self, sketch: &StepSketch, Sums { v, host }: Sums) -> Result<Vec<Vec<f64>>> {
        let k = sketch.k();
        let read = self.download(&v)?;
        let mut all: Vec<Vec<f64>> = read.chunks(k).map(|v| v.iter().map(|&x| f64::from(x)).collect()).collect();
        if let Some((host, sums)) = host {
            for (v, own) in all.iter_mut().zip(host.sketches(sketch, sums)?) {
                v.iter_mut().zip(own).for_each(|(v, own)| *v += own);
            }
        }
        Ok(all)
    }

    fn pulled(&self, pullback: &Pullback, tensor: usize, first: usize, rows: usize, cols: usize) -> Tensor {
        let out = self.empty(rows, cols);
        let (sketch, numbers) = (pullback.sketch(), bytemuck::cast_slice(pullback.numbers()));
        match sketch.tensor(tensor) {
            TensorSketch::Product { fold, rows: of_rows, columns } => {
                let side = if *fold == Fold::Grid { grid_sides(sketch.k()).1 } else { 0 };
                sketch::pull(&self.context, &words(of_rows)[first..first + rows], words(columns), side, numbers, &out);
            }
            TensorSketch::Count { words, .. } => {
                sketch::pull_count(&self.context, words, first * cols, numbers, &out);
            }
        }
        out
    }

    fn subtract_pulled(&self, w: &mut Tensor, pullback: &Pullback, tensor: usize, scale: f32) {
        let (rows, cols) = (w.rows, w.cols);
        let block = (BLOCK / cols.max(1)).max(1);
        for first in (0..rows).step_by(block) {
            let u = self.pulled(pullback, tensor, first, block.min(rows - first), cols);
            self.subtract(w, &u, first, scale);
        }
    }

    fn momentum_pulled(
        &self,
        w: &mut Tensor,
        m: &mut Tensor,
        pullback: &Pullback,
        tensor: usize,
        [share, scale, rate]: [f32; 3],
    ) {
        self.decay(m, &[Step { decay: share, rate: 0.0, correction: 1.0 }]);
        self.subtract_pulled(m, pullback, tensor, -scale);
        self.subtract(w, m, 0, rate);
    }
}
