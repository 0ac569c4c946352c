//! Public directions: a unit vector for every (seed, step, group), regenerated in pieces and never stored whole.
//!
//! A group covers its tensors end to end; the direction runs over their concatenation, `dim` elements long.
//! The inner product and the update each regenerate the pieces they need.

use super::gauss;
use super::public::{Domain, PublicStream};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// How directions are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Uniform on the sphere: Gaussians, normalised.
    #[default]
    Sphere,
    /// Signs over sqrt(d): exact on any device.
    Rademacher,
}

/// Elements that one task sums for the norm. Part of the definition: it shapes the tree.
const LEAF: usize = 1 << 16;

/// Elements generated at once.
const BATCH: usize = 2 * gauss::PAIRS;

/// The direction of one (seed, step, group), by element.
#[derive(Clone, Debug)]
pub struct DirectionStream {
    words: PublicStream,
    kind: Direction,
    dim: usize,
    scale: f32,
}

impl DirectionStream {
    /// The direction with `dim` elements. For the sphere, computes the norm once, in parallel.
    ///
    /// `u = z / |z|`: `|z|^2` is a sum in f64 over a fixed tree (in a leaf of 2^16 elements 16 running sums, element i to sum i mod
    /// 16; then halves, then halves of the leaves), so it has the same bits at any thread count; `1 / |z|` is rounded to f32.
    pub fn new(seed: u64, step: u32, group: u32, kind: Direction, dim: usize) -> Self {
        let words = PublicStream::new(seed, Domain::Direction, step, group);
        let mut stream = Self { words, kind, dim, scale: 1.0 };
        let square = match kind {
            Direction::Sphere => stream.square(),
            Direction::Rademacher => dim as f64,
        };
        // An empty group has no direction; nothing reads the scale.
        stream.scale = if dim == 0 { 0.0 } else { (1.0 / square.sqrt()) as f32 };
        stream
    }

    /// The stream of words, the distribution and the factor on every element: what a device needs to regenerate it.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) fn parts(&self) -> (&PublicStream, Direction, f32) {
        (&self.words, self.kind, self.scale)
    }

    /// Number of elements.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Elements `offset ..` into `out`. Panics when that runs past the end.
    ///
    /// Whole ChaCha blocks are computed: offsets and lengths that are multiples of 16 (sphere) or 512 (Rademacher) waste nothing.
    pub fn fill(&self, offset: usize, out: &mut [f32]) {
        assert!(offset + out.len() <= self.dim, "elements {offset}..{} of {}", offset + out.len(), self.dim);
        match self.kind {
            Direction::Sphere => self.fill_sphere(offset, out),
            Direction::Rademacher => self.fill_signs(offset, out),
        }
    }

    fn fill_sphere(&self, offset: usize, out: &mut [f32]) {
        let mut rng = self.words.at((offset / gauss::BLOCK * gauss::BLOCK) as u64);
        let mut words = [0; BATCH];
        let mut z = [0.0; BATCH];
        let mut skip = offset % gauss::BLOCK;
        let mut done = 0;
        while done < out.len() {
            let whole = (skip + out.len() - done).next_multiple_of(gauss::BLOCK).min(BATCH);
            let take = (whole - skip).min(out.len() - done);
            super::public::fill_words(&mut rng, &mut words[..whole]);
            if take == BATCH {
                gauss::from_blocks(&words, self.scale, &mut out[done..done + BATCH]);
            } else {
                gauss::from_blocks(&words[..whole], self.scale, &mut z[..whole]);
                out[done..done + take].copy_from_slice(&z[skip..skip + take]);
            }
            done += take;
            skip = 0;
        }
    }

    /// Bit `i mod 32` of word `i / 32` is element i's sign: 1 for plus.
    fn fill_signs(&self, offset: usize, out: &mut [f32]) {
        let mut rng = self.words.at((offset / 32) as u64);
        let mut words = [0u32; 64];
        let scale = self.scale.to_bits();
        let mut skip = offset % 32;
        let mut done = 0;
        while done < out.len() {
            let take = (32 * words.len() - skip).min(out.len() - done);
            let used = (skip + take).div_ceil(32);
            super::public::fill_words(&mut rng, &mut words[..used]);
            for (i, u) in out[done..done + take].iter_mut().enumerate() {
                let bit = words[(skip + i) / 32] >> ((skip + i) % 32) & 1;
                *u = f32::from_bits(scale | (bit ^ 1) << 31);
            }
            done += take;
            skip = 0;
        }
    }

    fn square(&self) -> f64 {
        let leaves: Vec<f64> = (0..self.dim.div_ceil(LEAF))
            .into_par_iter()
            .map(|leaf| {
                let end = (LEAF * (leaf + 1)).min(self.dim);
                let mut z = [0.0; BATCH];
                let mut sums = [0.0; 16];
                for offset in (LEAF * leaf..end).step_by(BATCH) {
                    let len = BATCH.min(end - offset);
                    self.fill(offset, &mut z[..len]);
                    z[len..].fill(0.0);
                    add_squares(&z, &mut sums);
                }
                tree(&sums)
            })
            .collect();
        tree(&leaves)
    }
}

crate::isa::multiversion! {
    /// `sums[i mod 16] += z[i]^2`, in order.
    fn add_squares(z: &[f32; BATCH], sums: &mut [f64; 16]) {
        let mut running = *sums;
        for row in z.as_chunks::<16>().0 {
            for (s, &x) in running.iter_mut().zip(row) {
                let x = f64::from(x);
                *s += x * x;
            }
        }
        *sums = running;
    }
}

/// Sum by halves: `tree(a ++ b) = tree(a) + tree(b)`, `a` the longer by one when the length is odd.
pub(crate) fn tree(terms: &[f64]) -> f64 {
    match terms {
        [] => 0.0,
        [x] => *x,
        _ => {
            let (a, b) = terms.split_at(terms.len().div_ceil(2));
            tree(a) + tree(b)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(seed: u64, step: u32, group: u32, kind: Direction, dim: usize) -> Vec<f32> {
        let mut u = vec![0.0; dim];
        DirectionStream::new(seed, step, group, kind, dim).fill(0, &mut u);
        u
    }

    #[test]
    fn norm_is_one() {
        for kind in [Direction::Sphere, Direction::Rademacher] {
            for dim in [1, 2, 15, 16, 17, 768, 1023, 1024, 1025, 65_536, 65_537, 300_001] {
                let u = whole(3, 1, 4, kind, dim);
                let square: f64 = u.iter().map(|&x| f64::from(x).powi(2)).sum();
                assert!((square - 1.0).abs() < 1e-6, "{kind:?} {dim}: {square}");
            }
        }
        whole(3, 1, 4, Direction::Sphere, 0);
    }

    #[test]
    fn pieces_are_the_whole() {
        for kind in [Direction::Sphere, Direction::Rademacher] {
            let dim = 10_007;
            let u = whole(9, 8, 7, kind, dim);
            let stream = DirectionStream::new(9, 8, 7, kind, dim);
            for (start, len) in
                [(0, 1), (1, 1), (15, 2), (16, 1024), (31, 1), (31, 33), (1000, 3000), (1024, 2048), (10_006, 1)]
            {
                let mut part = vec![0.0; len];
                stream.fill(start, &mut part);
                assert_eq!(part, u[start..start + len], "{kind:?} {start}+{len}");
            }
        }
    }

    #[test]
    fn same_bits_at_any_thread_count() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| whole(1, 2, 3, Direction::Sphere, 500_000))
        };
        let one = on(1);
        assert_eq!(one, on(2));
        assert_eq!(one, on(5));
    }

    /// Six standard errors: a false alarm in 10^9 trials.
    fn close(what: &str, got: f64, expected: f64, standard_error: f64) {
        assert!(
            (got - expected).abs() < 6.0 * standard_error,
            "{what}: {got}, expected {expected} +- {standard_error}"
        );
    }

    #[test]
    fn moments_of_the_sphere() {
        // sqrt(d) u_i is Gaussian to O(1/d): moments 0, 1, 0, 3 with variances 1, 2, 15, 96.
        let d = 1_000_000;
        let n = d as f64;
        let u: Vec<f64> = whole(11, 0, 0, Direction::Sphere, d).iter().map(|&x| f64::from(x) * n.sqrt()).collect();
        let moment = |k| u.iter().map(|x| x.powi(k)).sum::<f64>() / n;
        close("mean", moment(1), 0.0, (1.0 / n).sqrt());
        close("third", moment(3), 0.0, (15.0 / n).sqrt());
        close("fourth", moment(4), 3.0, (96.0 / n).sqrt());
        for cut in [0.0, 0.5, 1.0, 2.0, 3.0] {
            let tail = 0.5 * libm::erfc(cut / std::f64::consts::SQRT_2);
            for sign in [1.0, -1.0] {
                let share = u.iter().filter(|&&x| sign * x > cut).count() as f64 / n;
                close("tail", share, tail, (tail * (1.0 - tail) / n).sqrt());
            }
        }
        // Neighbours, and the two halves of a Box-Muller pair (8 apart), are uncorrelated; so are their squares.
        for lag in [1, 7, 8, 16, 1024] {
            let pairs = (d - lag) as f64;
            let dot = u.iter().zip(&u[lag..]).map(|(a, b)| a * b).sum::<f64>() / pairs;
            close("correlation", dot, 0.0, (1.0 / pairs).sqrt());
            let squares = u.iter().zip(&u[lag..]).map(|(a, b)| (a * a - 1.0) * (b * b - 1.0)).sum::<f64>() / pairs;
            close("correlation of squares", squares, 0.0, (4.0 / pairs).sqrt());
        }
    }

    #[test]
    fn uniform_on_a_small_sphere() {
        // In three dimensions every coordinate is uniform on [-1, 1] (Archimedes): a chi-square over 20 cells.
        let n = 40_000;
        for axis in 0..3 {
            let mut cells = [0usize; 20];
            for step in 0..n {
                let u = whole(5, step, 0, Direction::Sphere, 3);
                cells[(((u[axis] + 1.0) * 10.0) as usize).min(19)] += 1;
            }
            let expected = f64::from(n) / 20.0;
            let chi2: f64 = cells.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
            assert!(chi2 < 64.0, "axis {axis}: {chi2} on 19 degrees of freedom");
        }
    }

    #[test]
    fn directions_are_pairwise_independent() {
        // <u, u'> has mean 0 and variance 1/d over steps, groups and seeds, for both kinds.
        let d = 512;
        for kind in [Direction::Sphere, Direction::Rademacher] {
            let all: Vec<Vec<f32>> = (0..8u32)
                .flat_map(|step| (0..8u32).flat_map(move |g| (0..2u64).map(move |seed| (seed, step, g))))
                .map(|(seed, step, g)| whole(seed, step, g, kind, d))
                .collect();
            let mut dots = Vec::new();
            for (i, a) in all.iter().enumerate() {
                for b in &all[..i] {
                    dots.push(a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>() * (d as f64).sqrt());
                }
            }
            let n = dots.len() as f64;
            close("mean", dots.iter().sum::<f64>() / n, 0.0, (1.0 / n).sqrt());
            close("variance", dots.iter().map(|x| x * x).sum::<f64>() / n, 1.0, (2.0 / n).sqrt());
            assert!(dots.iter().all(|x| x.abs() < 6.5));
        }
    }

    #[test]
    fn rademacher_is_fair_and_exact() {
        let d = 100_000;
        let u = whole(2, 2, 2, Direction::Rademacher, d);
        let value = (1.0 / (d as f64).sqrt()) as f32;
        assert!(u.iter().all(|&x| x == value || x == -value));
        let plus = u.iter().filter(|&&x| x > 0.0).count() as f64;
        close("plus", plus / d as f64, 0.5, 0.5 / (d as f64).sqrt());
    }

    #[test]
    fn pinned() {
        let bits = |kind| whole(42, 3, 5, kind, 100_000)[..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(Direction::Sphere), [3_141_340_584, 3_122_182_337, 3_144_758_755, 997_759_187]);
        assert_eq!(bits(Direction::Rademacher), [995_049_015, 995_049_015, 3_142_532_663, 3_142_532_663]);
    }
}
