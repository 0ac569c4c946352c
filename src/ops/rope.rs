//! Rotary positions: pairs of a head's columns turn by an angle that grows with the row's position.
//!
//! Llama's layout: of the first R columns of a head (all of them, or fewer), column i < R/2 is paired with column i + R/2, and
//!
//! ```text
//! y_i         = x_i cos - x_(i + R/2) sin
//! y_(i + R/2) = x_(i + R/2) cos + x_i sin          angle = position * frequency_i
//! ```
//!
//! What a row turns by is a row of a table, made once a batch by [`Rope::table`] and used by every block. Backward is the transpose, which
//! turns the other way; the jvp turns the tangent as the value.

use super::{ROWS, Segments, slice};
use crate::kernel::{Real, multiversion};
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;
use std::f64::consts::PI;

/// How frequencies are changed for contexts longer than the pretraining's (`rope_scaling` of a config.json).
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all (`default`).
    None,
    /// Divided by a factor (`linear`).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low ones divided by a factor, high ones kept, those between in between (`llama3`).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The pretraining's context.
        original: usize,
    },
    /// A factor for each, one list for texts within the pretraining's context and one for longer ones (`longrope`).
    LongRope {
        /// R/2 divisors for texts of at most `original` tokens.
        short: Vec<f64>,
        /// R/2 divisors for longer texts.
        long: Vec<f64>,
        /// The pretraining's context.
        original: usize,
        /// What cos and sin are multiplied by: see [`longrope_attention`].
        attention: f64,
    },
}

/// What `longrope` multiplies cos and sin by, where the config does not say: sqrt(1 + ln(factor) / ln(original)) for a context that is
/// `factor` times the pretraining's; 1 where it is not longer.
pub fn longrope_attention(factor: f64, original: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + libm::log(factor) / libm::log(original as f64)).sqrt() }
}

/// The frequencies of a model, computed in f64 and kept in f32 as transformers keeps them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    frequencies: Vec<f32>,
    /// Frequencies of texts longer than this many tokens, where they are others.
    long: Option<(usize, Vec<f32>)>,
    attention: f64,
}

impl Rope {
    /// Frequencies `theta^(-2i / rotary)` for i below `rotary / 2`, scaled. `rotary` is even; lists of factors are half as long.
    pub fn new(theta: f64, rotary: usize, scaling: &Scaling) -> Self {
        assert!(rotary.is_multiple_of(2), "columns turn in pairs");
        let plain: Vec<f64> = (0..rotary / 2).map(|i| libm::pow(theta, -2.0 * i as f64 / rotary as f64)).collect();
        let round = |f: Vec<f64>| f.into_iter().map(|f| f as f32).collect::<Vec<f32>>();
        let divided = |factors: &[f64]| {
            assert_eq!(factors.len(), rotary / 2, "a factor a pair of columns");
            round(plain.iter().zip(factors).map(|(f, factor)| f / factor).collect())
        };
        match *scaling {
            Scaling::None => Self { frequencies: round(plain), long: None, attention: 1.0 },
            Scaling::Linear { factor } => {
                let frequencies = round(plain.iter().map(|f| f / factor).collect());
                Self { frequencies, long: None, attention: 1.0 }
            }
            Scaling::Llama3 { factor, low, high, original } => {
                let scaled = |f: f64| {
                    // How many times the pretraining's context holds the wavelength.
                    let turns = original as f64 * f / (2.0 * PI);
                    let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - smooth) * f / factor + smooth * f
                };
                Self { frequencies: round(plain.into_iter().map(scaled).collect()), long: None, attention: 1.0 }
            }
            Scaling::LongRope { ref short, ref long, original, attention } => {
                Self { frequencies: divided(short), long: Some((original, divided(long))), attention }
            }
        }
    }

    /// Columns R of a head that turn.
    pub fn rotary(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Texts longer than this many tokens turn by other frequencies, from their first token on: what was cached of a text before it
    /// grew longer is no longer right.
    pub fn changes_after(&self) -> Option<usize> {
        self.long.as_ref().map(|(length, _)| *length)
    }

    /// The table for rows at `positions` of a text of `length` tokens: R/2 cosines and R/2 sines a row, row-major.
    pub fn table(&self, positions: impl IntoIterator<Item = u32>, length: usize) -> Vec<f32> {
        let frequencies = match &self.long {
            Some((original, long)) if length > *original => long,
            _ => &self.frequencies,
        };
        let mut table = Vec::new();
        for position in positions {
            // The angle is rounded to f32, as transformers rounds it.
            let angle = |f: &f32| f64::from(f * position as f32);
            table.extend(frequencies.iter().map(|f| (libm::cos(angle(f)) * self.attention) as f32));
            table.extend(frequencies.iter().map(|f| (libm::sin(angle(f)) * self.attention) as f32));
        }
        table
    }

    /// The table for the rows of whole texts, each of its own length.
    pub fn tables(&self, segments: &Segments) -> Vec<f32> {
        segments.iter().flat_map(|rows| self.table(0..rows.len() as u32, rows.len())).collect()
    }
}

/// Turn every head of every row in place; the other way where `back` asks for it, which is the gradient's way.
///
/// Shapes: `x`: (N, H W), heads side by side, columns adjacent; `table`: (N, R), R <= W.
pub fn turn<F: Real>(mut x: ArrayViewMut2<F>, table: ArrayView2<F>, width: usize, back: bool) {
    let rotary = table.ncols();
    assert!(rotary <= width && x.ncols().is_multiple_of(width), "{rotary} columns of heads of width {width}");
    assert_eq!(x.nrows(), table.nrows(), "a row of the table a row");
    if rotary == 0 {
        return;
    }
    let table = slice(&table);
    x.axis_chunks_iter_mut(Axis(0), ROWS).into_par_iter().enumerate().for_each(|(i, mut rows)| {
        for (row, turns) in rows.rows_mut().into_iter().zip(table[i * ROWS * rotary..].chunks_exact(rotary)) {
            turn_row(row.into_slice().expect("adjacent columns"), turns, width, back);
        }
    });
}

multiversion! {
    fn turn_row<F: Real>(row: &mut [F], turns: &[F], width: usize, back: bool) {
        let (cos, sin) = turns.split_at(turns.len() / 2);
        let sign = if back { -F::one() } else { F::one() };
        for head in row.chunks_exact_mut(width) {
            let (left, right) = head[..turns.len()].split_at_mut(cos.len());
            for ((a, b), (&cos, &sin)) in left.iter_mut().zip(right).zip(cos.iter().zip(sin)) {
                let sin = sign * sin;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lanes::tests::noise;
    use crate::ops::check::{Op, check};
    use ndarray::{Array2, s};

    #[test]
    fn equals_the_definition_and_leaves_other_columns_alone() {
        let (heads, width, first) = (3, 10, 4);
        let rope = Rope::new(10000.0, 6, &Scaling::None);
        let segments = Segments::from_lengths([0, 1, 40]);
        let table = Array2::from_shape_vec((41, 6), rope.tables(&segments)).unwrap().mapv(f64::from);
        let x = noise::<f64>(41, first + heads * width + 2, 1);
        let mut y = x.clone();
        turn(y.slice_mut(s![.., first..first + heads * width]), table.view(), width, false);
        for (i, position) in segments.positions().enumerate() {
            for j in 0..x.ncols() {
                let inside = (first..first + heads * width).contains(&j) && (j - first) % width < 6;
                let want = if inside {
                    let at = (j - first) % width;
                    let angle = f64::from(position) * 10000f64.powf(-2.0 * (at % 3) as f64 / 6.0);
                    let other = if at < 3 { -x[[i, j + 3]] } else { x[[i, j - 3]] };
                    x[[i, j]] * angle.cos() + other * angle.sin()
                } else {
                    x[[i, j]]
                };
                assert!((y[[i, j]] - want).abs() < 2e-5, "row {i} column {j}: {}, not {want}", y[[i, j]]);
                assert!(inside || y[[i, j]] == x[[i, j]]);
            }
        }
    }

    #[test]
    fn gradients_and_tangents_agree() {
        for (n, heads, width, rotary) in [(1, 1, 2, 2), (5, 3, 7, 4), (35, 2, 16, 16), (0, 2, 4, 2), (3, 1, 5, 0)] {
            let rope = Rope::new(500.0, rotary, &Scaling::Linear { factor: 2.0 });
            let table = rope.table((0..n as u32).map(|i| 3 * i + 1), 0).into_iter().map(f64::from).collect();
            let table = Array2::from_shape_vec((n, rotary), table).unwrap();
            let turned = |x: &Array2<f64>, back: bool| {
                let mut y = x.clone();
                turn(y.view_mut(), table.view(), width, back);
                y
            };
            check(&Op {
                inputs: vec![noise(n, heads * width, 1)],
                forward: &|v| turned(&v[0], false),
                backward: &|_, dy| vec![turned(dy, true)],
                jvp: &|_, d| turned(&d[0], false),
            });
        }
    }

    /// Frequencies that transformers computed for the same settings.
    #[test]
    fn scalings_divide_what_they_should() {
        let plain = Rope::new(1e4, 8, &Scaling::None);
        assert_eq!(plain.frequencies, [1.0, 0.1, 0.01, 0.001]);
        assert_eq!(plain.changes_after(), None);
        let linear = Rope::new(1e4, 8, &Scaling::Linear { factor: 4.0 });
        assert_eq!(linear.frequencies, [0.25, 0.025, 0.0025, 0.00025]);
        // Wavelengths 6.3, 63, 628, 6283 in a context of 1024: turns 163, 16.3, 1.63, 0.163 between 1 and 4.
        let llama3 = Rope::new(1e4, 8, &Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 1024 });
        let smooth = (10.24 / (2.0 * PI) - 1.0) / 3.0;
        let between = (0.01 * ((1.0 - smooth) / 8.0 + smooth)) as f32;
        assert_eq!(llama3.frequencies, [1.0, 0.1, between, 0.001 / 8.0]);
        let (short, long) = (vec![1.0, 2.0, 1.0, 1.0], vec![4.0; 4]);
        let longrope = Rope::new(1e4, 8, &Scaling::LongRope { short, long, original: 16, attention: 1.5 });
        assert_eq!(longrope.changes_after(), Some(16));
        let row = |length| longrope.table([2], length);
        assert_eq!(row(16)[1], ((0.1f32).cos() * 1.5));
        assert!((row(17)[1] - (0.05f32).cos() * 1.5).abs() < 1e-6 && (row(17)[5] - (0.05f32).sin() * 1.5).abs() < 1e-6);
        let segments = Segments::from_lengths([16, 17]);
        let both = longrope.tables(&segments);
        assert_eq!(both[2 * 8..3 * 8], row(16));
        assert_eq!(both[18 * 8..19 * 8], row(17));
        assert_eq!(longrope_attention(0.5, 4096), 1.0);
        assert!((longrope_attention(32.0, 4096) - 1.190_238_071_423_808).abs() < 1e-12);
    }
}
