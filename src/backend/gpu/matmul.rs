//! Matrix products: which tiles of which windows.

use super::context::{Arg, Context};
use super::kernels;
use super::params;
use super::tensor::Tensor;
use std::cell::Cell;
use std::ops::Range;

thread_local! {
    /// Whether this thread decodes, see [`decoding`].
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// Let products of one row take a kernel of their own in `ops`. It adds up in another order than tiles do, so a record's numbers would depend on whether others
/// are computed with it: only for decoding, never where a record's share in a sum is bounded.
pub(super) fn decoding<R>(ops: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            DECODES.set(self.0);
        }
    }
    let _back = Back(DECODES.replace(true));
    ops()
}

/// Side of the tile of the product that a workgroup makes; also the columns of a product with one row, where B is plain.
const TILE: usize = 64;
/// Columns that a workgroup makes of a product with one row, where B is transposed.
const VECTOR_ROWS: usize = 16;

/// A block of a matrix as a factor.
pub(super) struct Factor<'a> {
    tensor: &'a Tensor,
    rows: Range<usize>,
    columns: Range<usize>,
    transposed: bool,
}

impl<'a> Factor<'a> {
    /// The whole matrix.
    pub(super) fn plain(tensor: &'a Tensor) -> Self {
        Self { tensor, rows: 0..tensor.rows, columns: 0..tensor.cols, transposed: false }
    }

    /// The whole matrix, transposed.
    pub(super) fn transposed(tensor: &'a Tensor) -> Self {
        Self { transposed: true, ..Self::plain(tensor) }
    }

    /// Only these rows, counted as they are stored.
    pub(super) fn rows(self, rows: Range<usize>) -> Self {
        Self { rows, ..self }
    }

    /// Only these columns, counted as they are stored.
    pub(super) fn columns(self, columns: Range<usize>) -> Self {
        Self { columns, ..self }
    }

    /// Rows and columns as a factor.
    fn shape(&self) -> (usize, usize) {
        let (r, c) = (self.rows.len(), self.columns.len());
        if self.transposed { (c, r) } else { (r, c) }
    }
}

/// Where a product goes: rows `first_row..` and columns `first_column..` of a matrix.
pub(super) struct Target<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) first_row: usize,
    pub(super) first_column: usize,
    /// Add to what is there, or overwrite.
    pub(super) add: bool,
}

impl<'a> Target<'a> {
    /// Overwrite the whole matrix.
    pub(super) fn new(tensor: &'a Tensor) -> Self {
        Self { tensor, first_row: 0, first_column: 0, add: false }
    }

    /// Add to the whole matrix.
    pub(super) fn sum(tensor: &'a Tensor) -> Self {
        Self { add: true, ..Self::new(tensor) }
    }
}

/// `C <- A B (+ bias) (+ C)`. Stored rows of each matrix go by in windows that fit a binding: windows over k are added up in order.
pub(super) fn matmul(x: &Context, a: Factor, b: Factor, bias: Option<&Tensor>, c: Target) {
    let ((m, k), (k_b, n)) = (a.shape(), b.shape());
    assert_eq!(k, k_b, "inner sizes of a product");
    assert!(c.first_row + m <= c.tensor.rows && c.first_column + n <= c.tensor.cols, "size of a product");
    let (mut m_lines, mut k_lines, mut n_lines) = (vec![c.tensor.cols], vec![], vec![]);
    if a.transposed { &mut k_lines } else { &mut m_lines }.push(a.tensor.cols);
    if b.transposed { &mut n_lines } else { &mut k_lines }.push(b.tensor.cols);
    // Without a term the product is zero, which still has to be written.
    let k_blocks = if k == 0 { std::iter::once(0..0).collect() } else { blocks(x, k, &k_lines) };
    for rows in blocks(x, m, &m_lines) {
        for columns in blocks(x, n, &n_lines) {
            for (i, terms) in k_blocks.iter().enumerate() {
                let a_rows = if a.transposed { terms } else { &rows };
                let b_rows = if b.transposed { &columns } else { terms };
                // What is not stored as rows is a block of columns.
                let a_column = a.columns.start + if a.transposed { rows.start } else { terms.start };
                let b_column = b.columns.start + if b.transposed { terms.start } else { columns.start };
                assert!(b_column.is_multiple_of(4), "only the left factor may begin between two vec4s");
                let a_window = a.tensor.window(offset(a_rows, a.rows.start)).shifted(a_column);
                let b_window = b.tensor.window(offset(b_rows, b.rows.start)).shifted(b_column);
                let c_window = c.tensor.window(offset(&rows, c.first_row)).shifted(c.first_column + columns.start);
                let bias = bias.filter(|_| i == 0).map(|t| t.whole().shifted(columns.start));
                let flops = 2.0 * rows.len() as f64 * columns.len() as f64 * terms.len() as f64;
                let args = [
                    Arg::Rows(a_window),
                    Arg::Rows(b_window),
                    bias.map_or(Arg::Nothing, Arg::Rows),
                    Arg::Rows(c_window),
                ];
                let add = (c.add || i > 0) as u32;
                if rows.len() == 1 && !a.transposed && DECODES.get() {
                    let params = params::Matvec {
                        n: columns.len() as u32,
                        k: terms.len() as u32,
                        line_b: b_window.line,
                        start_a: a_window.start,
                        start_b: b_window.start,
                        start_c: c_window.start,
                        start_bias: bias.map_or(0, |w| w.start),
                        add,
                        has_bias: bias.is_some() as u32,
                    };
                    let groups = columns.len().div_ceil(if b.transposed { VECTOR_ROWS } else { TILE });
                    x.run(&kernels::MATVEC, &[b.transposed as u32], &args, &params, groups, flops);
                    continue;
                }
                let tiles_n = columns.len().div_ceil(TILE);
                let tiles = rows.len().div_ceil(TILE) * tiles_n;
                let shifted_a = !a_column.is_multiple_of(4);
                let constants = [a.transposed as u32, b.transposed as u32, shifted_a as u32];
                let params = params::Linear {
                    m: rows.len() as u32,
                    n: columns.len() as u32,
                    k: terms.len() as u32,
                    line_a: a_window.line,
                    line_b: b_window.line,
                    line_c: c_window.line,
                    start_a: a_window.start,
                    start_b: b_window.start,
                    start_c: c_window.start,
                    start_bias: bias.map_or(0, |w| w.start),
                    add,
                    has_bias: bias.is_some() as u32,
                    tiles_n: tiles_n as u32,
                    tiles: tiles as u32,
                };
                x.run(&kernels::MATMUL, &constants, &args, &params, tiles, flops);
            }
        }
    }
}

/// As [`Context::blocks`]; what no matrix stores as rows is one block.
fn blocks(x: &Context, len: usize, lines: &[usize]) -> Vec<Range<usize>> {
    match lines {
        [] if len > 0 => std::iter::once(0..len).collect(),
        _ => x.blocks(0..len, lines),
    }
}

fn offset(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
