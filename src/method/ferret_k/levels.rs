//! Noised sums as levels: two bits each, and one size for all of a step.
//!
//! ```text
//! r      sqrt(mean of S_j²) in units of C / 1024, rounded, at least 1
//! code   1 where S_j is plus (of 0: the public coin), and 2 more where |S_j| is at least t r
//! worth  ± y r, by the lower size or the upper one
//! ```
//! t and y are those of Lloyd and Max: the least mean square error for a Gaussian of deviation 1, which S is where noise prevails, and nearly so where hundreds of weights
//! share a bucket. They keep 0.88 of S's square, where signs and r would keep 0.64, and three bits 0.97: at equal bytes, in trials, no better than two.
//! r is rounded first, and codes follow from it: both are plain functions of S. Training and replay multiply the same integers with the same constants, to the same bits.

use crate::error::{Error, Result};
use crate::method::ferret::sign_or_coin;
use crate::method::ferret::transcript::GRID;

/// Bits of a code.
pub const BITS: u32 = 2;

/// t: where the upper level begins, in units of r.
const THRESHOLD: f64 = 0.9816;

/// y: the lower level and the upper one.
const SIZES: [f64; 2] = [0.4528, 1.5104];

/// What steps released, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// r of every step, in units of C / 1024.
    pub sizes: Vec<i32>,
    /// k codes a step.
    pub codes: Vec<u8>,
}

impl Levels {
    /// Of one step's noised sums, in units of C.
    pub fn of(sums: &[f64], coin: impl Fn(u32) -> i8) -> Self {
        let square = sums.iter().map(|x| x * x).sum::<f64>() / sums.len().max(1) as f64;
        let size = ((square.sqrt() * GRID).round() as i32).max(1);
        let threshold = THRESHOLD * (f64::from(size) / GRID);
        let code = |(x, bucket): (&f64, u32)| {
            u8::from(sign_or_coin(*x, coin(bucket)) > 0) | u8::from(x.abs() >= threshold) << 1
        };
        Self { sizes: vec![size], codes: sums.iter().zip(0..).map(code).collect() }
    }

    /// The k numbers of the i-th step, in units of C.
    pub fn numbers(&self, i: usize, k: usize) -> Vec<f32> {
        let worth = SIZES.map(|y| y * (f64::from(self.sizes[i]) / GRID));
        let number = |&code: &u8| {
            let worth = worth[usize::from(code >> 1)];
            (if code & 1 == 1 { worth } else { -worth }) as f32
        };
        self.codes[i * k..][..k].iter().map(number).collect()
    }

    /// Refuse what no step releases: a size below 1, codes of more bits, and a step that is not k codes and a size.
    pub(super) fn check(&self, k: usize) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        if let Some(size) = self.sizes.iter().find(|size| **size < 1) {
            return refuse(format!("a step's size is {size}, expected 1 or more"));
        }
        if let Some(code) = self.codes.iter().find(|code| **code >> BITS > 0) {
            return refuse(format!("{code} was released, expected codes of {BITS} bits"));
        }
        let (sizes, codes) = (self.sizes.len(), self.codes.len());
        if sizes.saturating_mul(k) != codes {
            return refuse(format!("{sizes} sizes are listed for {codes} codes, expected one for {k}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privacy::Sampler;
    use crate::privacy::mi::{self, batch::charge};

    /// The integral of f times the normal density from a to b, by the midpoints of short steps.
    fn normal(a: f64, b: f64, f: impl Fn(f64) -> f64) -> f64 {
        let (n, h) = (20_000, (b - a) / 20_000.0);
        let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        (0..n).map(|i| a + (f64::from(i) + 0.5) * h).map(|t| h * f(t) * density(t)).sum()
    }

    /// Lloyd and Max: each size is the mean of what falls to it, and the threshold lies midway between the two.
    #[test]
    fn threshold_and_sizes_are_those_of_the_least_error() {
        let mut kept = 0.0;
        for (ends, y) in [(0.0, THRESHOLD), (THRESHOLD, 9.0)].into_iter().zip(SIZES) {
            let mass = normal(ends.0, ends.1, |_| 1.0);
            assert!((normal(ends.0, ends.1, |x| x) / mass - y).abs() < 1e-4, "{y}");
            kept += 2.0 * mass * y * y;
        }
        assert!((kept - 0.8825).abs() < 1e-4, "{kept}");
        assert!((SIZES[0] + SIZES[1] - 2.0 * THRESHOLD).abs() < 1e-4);
    }

    #[test]
    fn codes_follow_from_the_rounded_size() {
        // r = sqrt((4 · 0.01 + 4) / 5) = 0.8989, 920 units: 0.8984.
        let levels = Levels::of(&[0.1, -0.1, 0.1, -0.1, -2.0], |_| 1);
        assert_eq!((&levels.sizes, &levels.codes), (&vec![920], &vec![1, 0, 1, 0, 2]));
        let r = 920.0 / 1024.0;
        let numbers = [0.4528, -0.4528, 0.4528, -0.4528, -1.5104].map(|y| (y * r) as f32);
        assert_eq!(levels.numbers(0, 5), numbers);
        // A sum at the threshold itself is of the upper level, one next to it is not: 0.9816 of the rounded size, where the true one is 0.8988.
        let at = 0.9816 * r;
        let rest = ((5.0 * 0.8988f64.powi(2) - at * at) / 4.0).sqrt();
        for (x, code) in [(at, 3), (at.next_down(), 1)] {
            let levels = Levels::of(&[x, rest, rest, -rest, -rest], |_| 1);
            assert_eq!((levels.sizes[0], levels.codes[0]), (920, code));
        }
    }

    #[test]
    fn nothing_is_the_least_size_and_the_coin() {
        for sums in [&[][..], &[0.0, -0.0, 0.0]] {
            let levels = Levels::of(sums, |bucket| if bucket == 1 { 1 } else { -1 });
            assert_eq!((levels.sizes, levels.codes), (vec![1], [0, 1, 0][..sums.len()].to_vec()));
        }
        // What is no number takes the coin, and everything stays finite.
        for bad in [f64::NAN, f64::INFINITY] {
            let levels = Levels::of(&[bad, 1.0], |_| 1);
            levels.check(2).unwrap();
            assert!(levels.numbers(0, 2).iter().all(|x| x.is_finite()), "{levels:?}");
        }
    }

    /// Two sums by brute force: a record that is drawn moves them by 1 in any direction, and what levels then tell of it stays below the charge of the sums.
    #[test]
    fn levels_never_tell_more_than_is_charged() {
        let mut closest = 0.0f64;
        for (q, z) in [(0.3, 0.5), (0.05, 1.0), (0.5, 2.0)] {
            let charged = charge(mi::Release::Sum { noise_multiplier: z }, q, Sampler::Poisson).unwrap().nats;
            for centre in [(0.0, 0.0), (0.6, -0.5)] {
                // The chance of a point in the world without the record, and with it.
                let h = 0.04 * z;
                let at = |i: i32, j: i32| (f64::from(i) * h, f64::from(j) * h);
                for angle in [0.0, 0.8, 2.0, 4.4] {
                    let (x, y) = (f64::cos(angle), f64::sin(angle));
                    let mut laws = std::collections::BTreeMap::<(i32, Vec<u8>), [f64; 2]>::new();
                    let end = (6.0 / 0.04 + 1.6 / h) as i32;
                    for (i, j) in (-end..=end).flat_map(|i| (-end..=end).map(move |j| (i, j))) {
                        let (a, b) = at(i, j);
                        let density = |x: f64, y: f64| {
                            let square = (a - centre.0 - x).powi(2) + (b - centre.1 - y).powi(2);
                            h * h * (-square / (2.0 * z * z)).exp() / (std::f64::consts::TAU * z * z)
                        };
                        let (away, drawn) = (density(0.0, 0.0), density(x, y));
                        let levels = Levels::of(&[a, b], |_| 1);
                        let law = laws.entry((levels.sizes[0], levels.codes)).or_default();
                        *law = [law[0] + away, law[1] + (1.0 - q) * away + q * drawn];
                    }
                    let (away, with) = laws.values().fold((0.0, 0.0), |sum, law| (sum.0 + law[0], sum.1 + law[1]));
                    assert!((away - 1.0f64).abs() < 1e-6 && (with - 1.0f64).abs() < 1e-6, "{away} {with}");
                    let told: f64 = laws.values().filter(|l| l[1] > 0.0).map(|l| l[1] * (l[1] / l[0]).ln()).sum();
                    assert!(told <= charged, "{q} {z} {centre:?} {angle}: {told} above {charged}");
                    closest = closest.max(told / charged);
                }
            }
        }
        assert!(closest > 0.5, "the test needs worlds that come near: {closest}");
    }

    #[test]
    fn what_no_step_releases_is_refused() {
        let good = Levels { sizes: vec![5, 1], codes: vec![3, 0, 1, 2] };
        good.check(2).unwrap();
        for (bad, sentence) in [
            (Levels { sizes: vec![5, 0], ..good.clone() }, "size is 0"),
            (Levels { sizes: vec![-5, 1], ..good.clone() }, "size is -5"),
            (Levels { codes: vec![3, 0, 4, 2], ..good.clone() }, "4 was released"),
            (Levels { sizes: vec![5], ..good.clone() }, "1 sizes"),
        ] {
            let error = bad.check(2).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
