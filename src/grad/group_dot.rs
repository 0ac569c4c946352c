//! `<gradient, u>` for the fired groups of a FERRET step, row by row, without forming a gradient.
//!
//! For a weight, `<xᵀ dy, U> = sum over rows of <x_i U, dy_i>`. U is a public direction that is regenerated a block of rows at
//! a time, so neither it nor the gradient ever exists whole. The same blocks serve forward mode, where `x U` is the tangent.

use crate::backend::Backend;
use crate::model::{GradSink, Layout, ParamId, Rows, Slot, Tangents};
use crate::ops::Segments;
use crate::rng::DirectionStream;

/// Elements of a direction that exist at once: 4 MiB in f32.
const BLOCK: usize = 1 << 20;

/// A group's direction over its parameters, end to end.
pub struct GroupDirection {
    stream: DirectionStream,
    /// Parameter, where it begins in the direction, rows and columns.
    members: Vec<(ParamId, usize, usize, usize)>,
}

impl GroupDirection {
    /// The direction `stream` over `members`, in that order.
    pub fn new(stream: DirectionStream, members: &[ParamId], layout: &Layout) -> Self {
        let mut offset = 0;
        let members = members
            .iter()
            .map(|&p| {
                let (rows, cols) = layout.spec(p).matrix();
                let member = (p, offset, rows, cols);
                offset += rows * cols;
                member
            })
            .collect();
        assert_eq!(offset, stream.dim(), "a direction as long as its group");
        Self { stream, members }
    }

    fn member(&self, p: ParamId) -> Option<(usize, usize, usize)> {
        self.members.iter().find(|m| m.0 == p).map(|&(_, offset, rows, cols)| (offset, rows, cols))
    }

    /// Run `f(first row, block)` over the blocks of p's part of the direction.
    fn blocks<B: Backend>(&self, b: &B, p: ParamId, mut f: impl FnMut(usize, B::Tensor)) {
        let Some((offset, rows, cols)) = self.member(p) else { return };
        let step = (BLOCK / cols).max(1);
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            f(first, b.direction(&self.stream, offset + first * cols, count, cols));
        }
    }

    /// Rows `ids` of p's part of the direction.
    fn gathered<B: Backend>(&self, b: &B, p: ParamId, ids: &[u32]) -> Option<B::Tensor> {
        self.member(p).map(|(offset, _, cols)| b.direction_rows(&self.stream, offset, ids, cols))
    }
}

impl<B: Backend> Tangents<B> for GroupDirection {
    fn moves(&self, p: ParamId) -> bool {
        self.member(p).is_some()
    }

    fn vector(&self, b: &B, p: ParamId) -> Option<B::Tensor> {
        self.member(p).map(|(offset, rows, cols)| b.direction(&self.stream, offset, rows, cols))
    }

    fn matmul(&self, b: &B, p: ParamId, x: &B::Tensor, y: &mut B::Tensor) {
        self.blocks(b, p, |first, u| b.add_matmul(x, first, &u, y));
    }

    fn gather(&self, b: &B, p: ParamId, ids: &[u32], y: &mut B::Tensor) {
        if let Some(rows) = self.gathered(b, p, ids) {
            b.add(y, &rows);
        }
    }

    fn head(&self, b: &B, p: ParamId, h: &B::Tensor, y: &mut B::Tensor) {
        self.blocks(b, p, |first, u| b.add_head(h, &u, y, first));
    }
}

/// Takes the inner product of every row's gradient with each fired group's direction.
pub struct GroupDot<'a, B: Backend> {
    groups: &'a [GroupDirection],
    /// One column of N numbers a group.
    dots: Vec<B::Tensor>,
    /// The samples of the batch.
    segments: Segments,
}

impl<'a, B: Backend> GroupDot<'a, B> {
    /// For a batch with these segments.
    pub fn new(b: &B, groups: &'a [GroupDirection], segments: &Segments) -> Self {
        let dots = groups.iter().map(|_| b.zeros(segments.rows(), 1)).collect();
        Self { groups, dots, segments: segments.clone() }
    }

    /// Each group's column: shares of the inner product, of which a sample's rows hold those of that sample.
    pub fn into_rows(self) -> Vec<B::Tensor> {
        self.dots
    }

    /// Add `<along_i, dy_i>` for every row i delivered, `along` being what `make` gives for each group that holds `p`.
    fn each(&mut self, b: &B, p: ParamId, dy: &B::Tensor, rows: &Rows, make: impl Fn(&GroupDirection) -> B::Tensor) {
        let own = self.segments.slice(rows.samples.clone());
        let first = self.segments.offsets()[rows.samples.start];
        // Where a sample has fewer rows here than in the batch, to the first of its rows.
        let at: Option<Vec<u32>> = (own != *rows.segments).then(|| {
            let starts = own.iter().zip(rows.segments.iter());
            starts.flat_map(|(own, here)| (first + own.start..).take(here.len())).map(|row| row as u32).collect()
        });
        for (group, dots) in self.groups.iter().zip(&mut self.dots).filter(|(g, _)| g.member(p).is_some()) {
            let along = make(group);
            match &at {
                None => b.add_row_dots(&along, dy, dots, first),
                Some(at) => {
                    let mut shares = b.zeros(at.len(), 1);
                    b.add_row_dots(&along, dy, &mut shares, 0);
                    b.add_rows(at, &shares, 0..at.len(), dots);
                }
            }
        }
    }
}

impl<B: Backend> GradSink<B> for GroupDot<'_, B> {
    fn wants(&self, p: ParamId) -> bool {
        self.groups.iter().any(|g| g.member(p).is_some())
    }

    fn outer(&mut self, b: &B, p: ParamId, x: Slot<B>, dy: Slot<B>, rows: Rows) {
        let (n, cols) = b.shape(dy.get());
        self.each(b, p, dy.get(), &rows, |group| {
            let mut along = b.zeros(n, cols);
            group.blocks(b, p, |row, u| b.add_matmul(x.get(), row, &u, &mut along));
            along
        });
    }

    fn rows(&mut self, b: &B, p: ParamId, ids: &[u32], dy: Slot<B>, rows: Rows) {
        self.each(b, p, dy.get(), &rows, |group| group.gathered(b, p, ids).expect("a group that holds it"));
    }

    fn vector(&mut self, b: &B, p: ParamId, dy: Slot<B>, rows: Rows) {
        let (n, cols) = b.shape(dy.get());
        self.each(b, p, dy.get(), &rows, |group| {
            let mut along = b.zeros(n, cols);
            group.blocks(b, p, |_, u| b.add_vector(&u, &mut along));
            along
        });
    }
}
