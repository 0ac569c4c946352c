//! Matrices in device memory, and the parts of them that shaders see.

use super::context::Context;
use std::ops::Range;
use std::sync::Arc;

/// A matrix in device memory, row-major, rows padded to a multiple of four numbers; what the padding holds is unknown. Its buffer
/// goes back to the pool when it is dropped: commands run in the order of recording, so whoever gets the buffer next comes later.
pub struct Tensor {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// `None` only while dropping.
    buffer: Option<wgpu::Buffer>,
    context: Arc<Context>,
}

/// Rows of a tensor as a shader's storage binding.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    /// Bytes: where the binding starts, and its length.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Where the first row starts in the binding, in numbers; a multiple of four.
    pub(super) start: u32,
    /// Numbers from row to row.
    pub(super) line: u32,
}

impl Window<'_> {
    /// The same binding, `numbers` further on.
    pub(super) fn shifted(self, numbers: usize) -> Self {
        Self { start: self.start + numbers as u32, ..self }
    }
}

/// Numbers from row to row of a matrix with `cols` columns.
pub(super) fn line(cols: usize) -> usize {
    cols.next_multiple_of(4)
}

impl Tensor {
    pub(super) fn new(context: &Arc<Context>, rows: usize, cols: usize) -> Self {
        let buffer = Some(context.allocate(rows, cols));
        Self { rows, cols, buffer, context: context.clone() }
    }

    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        self.buffer.as_ref().expect("a tensor has its buffer until it is dropped")
    }

    /// Numbers from row to row.
    pub(super) fn line(&self) -> usize {
        line(self.cols)
    }

    /// Where row `row` starts, in bytes.
    pub(super) fn byte(&self, row: usize) -> u64 {
        (row * self.line()) as u64 * 4
    }

    /// Rows `rows` for a shader. They must fit a binding: see [`Context::blocks`].
    pub(super) fn window(&self, rows: Range<usize>) -> Window<'_> {
        // An empty range binds the beginning, which always exists.
        let rows = if rows.is_empty() { 0..0 } else { rows };
        let from = self.byte(rows.start);
        let offset = from - from % self.context.alignment;
        let size = (self.byte(rows.end) - offset).max(16);
        let (start, line) = (((from - offset) / 4) as u32, self.line() as u32);
        Window { buffer: self.buffer(), offset, size, start, line }
    }

    /// All rows for a shader.
    pub(super) fn whole(&self) -> Window<'_> {
        self.window(0..self.rows)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.context.give_back(buffer);
        }
    }
}
