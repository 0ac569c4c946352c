//! Sums of clipped sketches without rounding.
//!
//! Floating-point addition rounds by what is there already: taking one record away could change how the others are rounded. So contributions are added as
//! whole multiples of a unit, a power of two some 2^-32 of the clipping bound, rounded towards 0, which lengthens nothing. Sums then depend neither on the order nor on
//! micro-batches, and differ by one record's contribution exactly.

/// Contributions that one unit divides: 2^32 units to the largest power of two that is not above C.
const DIGITS: i32 = 32;

/// The most records whose sum fits the digits of a double.
pub const MOST_RECORDS: u64 = 1 << 19;

/// A sum of vectors of k numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    unit: f64,
    sum: Vec<i64>,
}

impl Total {
    /// 0, of `k` numbers; contributions are of length `bound` at most, which is neither tiny nor huge.
    pub fn new(k: usize, bound: f64) -> Self {
        let exponent = ((bound.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        Self { unit: f64::from_bits(((1023 + exponent - DIGITS) as u64) << 52), sum: vec![0; k] }
    }

    /// Add `v`, every number rounded towards 0. Dividing by a power of two is exact.
    pub fn add(&mut self, v: &[f64]) {
        for (sum, v) in self.sum.iter_mut().zip(v) {
            // Only sketches that nothing clips could be beyond the integers.
            *sum = sum.saturating_add((v / self.unit) as i64);
        }
    }

    /// Its whole numbers of units: what ranks add up.
    pub fn units(&mut self) -> &mut [i64] {
        &mut self.sum
    }

    /// The numbers.
    pub fn read(self) -> Vec<f64> {
        self.sum.into_iter().map(|sum| sum as f64 * self.unit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Secret;
    use crate::rng::SecretDomain;

    fn vectors(count: usize, k: usize) -> Vec<Vec<f64>> {
        let mut random = Secret::insecure(3).stream(SecretDomain::Noise, 0, 0);
        (0..count).map(|_| (0..k).map(|_| random.gaussian() / (k as f64).sqrt()).collect()).collect()
    }

    #[test]
    fn sums_are_those_of_the_numbers_and_have_no_order() {
        for bound in [1.0, 0.3, 7.5, 1e-9] {
            let all: Vec<Vec<f64>> =
                vectors(1000, 7).into_iter().map(|v| v.into_iter().map(|x| x * bound).collect()).collect();
            let (mut there, mut back, mut plain) = (Total::new(7, bound), Total::new(7, bound), vec![0.0; 7]);
            all.iter().for_each(|v| there.add(v));
            all.iter().rev().for_each(|v| back.add(v));
            all.iter().for_each(|v| plain.iter_mut().zip(v).for_each(|(p, v)| *p += v));
            assert_eq!(there, back);
            assert!(there.read().iter().zip(plain).all(|(a, b)| (a - b).abs() < 1e-6 * bound));
        }
    }

    /// With and without a record: the difference is that record's, and no longer than it was.
    #[test]
    fn one_record_more_moves_the_sum_by_no_more_than_its_length() {
        let (all, extra) = (vectors(300, 12), vectors(301, 12).pop().unwrap());
        for scale in [1.0, 1e-7, 0.999] {
            let own: Vec<f64> = extra.iter().map(|x| x * scale).collect();
            let mut without = Total::new(12, 1.0);
            all.iter().for_each(|v| without.add(v));
            let mut with = without.clone();
            with.add(&own);
            // Both are multiples of one unit and far below 2^53 of them: their difference is exact.
            let moved: Vec<f64> = with.read().iter().zip(without.read()).map(|(a, b)| a - b).collect();
            assert!(moved.iter().zip(&own).all(|(m, x)| m.abs() <= x.abs() && (m - x).abs() <= 2f64.powi(-32)));
            assert!(moved.iter().zip(&own).any(|(m, x)| m != x), "the test needs numbers between two units");
        }
    }
}
