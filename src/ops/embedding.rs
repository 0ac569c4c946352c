//! Token and position embedding: `x_i = wte[id_i] + wpe[position_i]`, or the former alone where positions are not learned.

use super::for_row_blocks;
use crate::kernel::{Real, lanes};
use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

/// `x_i = tokens[id_i] + table[position_i]` with learned positions, `(positions, table)`; `x_i = tokens[id_i]` without. A table is a function
/// that copies out a row, because it may be stored in fewer bits.
///
/// Shapes: `ids`, `positions`: N; rows and `x`: (N, C). Ids and positions are in range.
pub fn forward<F: Real>(
    ids: &[u32],
    tokens: impl Fn(u32, &mut [F]) + Sync,
    learned: Option<(&[u32], impl Fn(u32, &mut [F]) + Sync)>,
    mut x: ArrayViewMut2<F>,
) {
    let c = x.ncols().max(1);
    for_row_blocks(&mut x, |first, block| {
        let mut position = vec![F::zero(); if learned.is_some() { c } else { 0 }];
        for (i, x) in block.chunks_exact_mut(c).enumerate() {
            tokens(ids[first + i], x);
            if let Some((positions, table)) = &learned {
                table(positions[first + i], &mut position);
                lanes::add(&position, x);
            }
        }
    });
}

/// Backward of [`forward`] to one table: `dtable[id_i] += dx_i`, in order of i, so that repeated ids add up the same way
/// every time.
///
/// Shapes: `ids`: N; `dx`: (N, C); `dtable`: (V, C).
pub fn backward<F: Real>(ids: &[u32], dx: ArrayView2<F>, mut dtable: ArrayViewMut2<F>) {
    let c = dx.ncols();
    assert_eq!(ids.len(), dx.nrows());
    // Bands of the table's columns are independent; each thread walks all tokens over its band.
    const BAND: usize = 128;
    dtable.axis_chunks_iter_mut(ndarray::Axis(1), BAND).into_par_iter().enumerate().for_each(|(b, mut band)| {
        let columns = b * BAND..(b * BAND + BAND).min(c);
        for (i, &id) in ids.iter().enumerate() {
            let from = dx.slice(ndarray::s![i, columns.clone()]);
            let mut to = band.row_mut(id as usize);
            to += &from;
        }
    });
}

/// Directional derivative: [`forward`] on the tables' tangents; absent tangents are zero.
///
/// Shapes: as in [`forward`].
pub fn jvp<F: Real>(
    ids: &[u32],
    positions: &[u32],
    tokens_dot: Option<ArrayView2<F>>,
    wpe_dot: Option<ArrayView2<F>>,
    mut x_dot: ArrayViewMut2<F>,
) {
    x_dot.fill(F::zero());
    for (table, index) in [(tokens_dot, ids), (wpe_dot, positions)] {
        if let Some(table) = table {
            for (mut row, &i) in x_dot.rows_mut().into_iter().zip(index) {
                row += &table.row(i as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::Array2;

    fn copy<F: Real>(table: &Array2<F>) -> impl Fn(u32, &mut [F]) + Sync {
        |i, to| to.copy_from_slice(table.row(i as usize).to_slice().unwrap())
    }

    #[test]
    fn gradients_and_tangents_agree() {
        let (v, p, c) = (7, 5, 131);
        for ids in [vec![], vec![6], vec![0, 3, 3, 6, 3]] {
            let positions: Vec<u32> = (0..ids.len() as u32).collect();
            check(&Op {
                inputs: vec![noise(v, c, 1), noise(p, c, 2)],
                forward: &|w| {
                    let mut x = Array2::zeros((ids.len(), c));
                    forward(&ids, copy(&w[0]), Some((&positions, copy(&w[1]))), x.view_mut());
                    x
                },
                backward: &|_, dy| {
                    let (mut dt, mut dp) = (Array2::zeros((v, c)), Array2::zeros((p, c)));
                    backward(&ids, dy.view(), dt.view_mut());
                    backward(&positions, dy.view(), dp.view_mut());
                    vec![dt, dp]
                },
                jvp: &|_, d| {
                    let mut x = Array2::from_elem((ids.len(), c), f64::NAN);
                    jvp(&ids, &positions, Some(d[0].view()), Some(d[1].view()), x.view_mut());
                    x
                },
            });
        }
    }

    #[test]
    fn tokens_alone_are_rows_of_their_table() {
        let tokens = noise::<f32>(7, 5, 1);
        let mut x = Array2::zeros((3, 5));
        let nothing = None::<(&[u32], fn(u32, &mut [f32]))>;
        forward(&[6, 0, 6], copy(&tokens), nothing, x.view_mut());
        for (row, id) in x.rows().into_iter().zip([6, 0, 6]) {
            assert_eq!(row, tokens.row(id));
        }
    }
}
