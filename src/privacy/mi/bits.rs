//! Clean bits.

use super::up;
use std::f64::consts::LN_2;

/// The capacity of k clean bits released on one batch that has the record with probability `s`; 0 for no bits.
///
/// With L = ln(2^k - 1): max over q of h(sq) + sq L - q h(s). Its derivative in q vanishes where (1-sq)/(sq) = e^(h(s)/s - L), that
/// is at q <= 1 if s L < -ln(1-s), and the value there is ln(1 + e^(L - h(s)/s)); else q = 1 and it is s L.
/// One bit: ln(1 + s (1-s)^((1-s)/s)), about s/e.
pub fn clean(s: f64, bits: u32) -> f64 {
    if bits == 0 || s <= 0.0 {
        return 0.0;
    }
    let k = f64::from(bits);
    let others = if bits == 1 { 0.0 } else { k * LN_2 + (-(-k * LN_2).exp()).ln_1p() };
    if s >= 1.0 {
        return up(k * LN_2);
    }
    let ln_out = (-s).ln_1p();
    if -ln_out <= s * others {
        return up(s * others);
    }
    // -h(s)/s = ln s + (1-s)/s ln(1-s)
    let exponent = others + s.ln() + (1.0 - s) * ln_out / s;
    up(exponent.exp().ln_1p())
}

/// Capacity of one unsampled bit that is flipped with probability f: ln 2 - h(f).
pub fn unsampled(flip: f64) -> f64 {
    let c = 1.0 - 2.0 * flip;
    // ln 2 - h(f) = sum over n of c^(2n) / (2n (2n-1)): the mean of psi at +c and -c.
    up(0.5 * (super::psi(c) + super::psi(-c)))
}

#[cfg(test)]
pub(in crate::privacy) mod tests {
    use super::*;

    /// Capacity of any channel by Blahut and Arimoto: (lower, upper).
    pub(in crate::privacy) fn capacity(channel: &[Vec<f64>]) -> (f64, f64) {
        let mut prior = vec![1.0 / channel.len() as f64; channel.len()];
        for round in 0.. {
            let law: Vec<f64> =
                (0..channel[0].len()).map(|y| channel.iter().zip(&prior).map(|(p, w)| p[y] * w).sum()).collect();
            let divergence: Vec<f64> = channel
                .iter()
                .map(|p| p.iter().zip(&law).filter(|(p, _)| **p > 0.0).map(|(p, r)| p * (p / r).ln()).sum())
                .collect();
            let lower: f64 = divergence.iter().zip(&prior).map(|(d, w)| d * w).sum();
            let upper = divergence.iter().copied().fold(0.0, f64::max);
            if upper - lower < 1e-9 * upper || round == 200_000 {
                return (lower, upper);
            }
            let total: f64 = prior.iter().zip(&divergence).map(|(w, d)| w * d.exp()).sum();
            prior.iter_mut().zip(&divergence).for_each(|(w, d)| *w *= d.exp() / total);
        }
        unreachable!()
    }

    /// Every record value's word: P_x = (1-s) at `away` + s at word x, over `words` words.
    fn corner(s: f64, words: usize, away: usize) -> Vec<Vec<f64>> {
        (0..words)
            .map(|x| {
                let mut p = vec![0.0; words];
                p[away] += 1.0 - s;
                p[x] += s;
                p
            })
            .collect()
    }

    #[test]
    fn the_worst_world_by_enumeration_is_the_charge() {
        for s in [0.3, 0.05, 0.7, 0.95, 1.0] {
            for k in 1..=3 {
                let (lower, upper) = capacity(&corner(s, 1 << k, 0));
                let charge = clean(s, k);
                assert!(lower <= charge && charge <= upper * (1.0 + 1e-6), "s {s} k {k}: {lower} {charge} {upper}");
                assert!(lower > 0.99 * charge, "s {s} k {k}: {lower} {charge}");
            }
        }
    }

    #[test]
    fn no_world_of_mixed_companions_is_above_the_charge() {
        // Other records drawn or not make A and B_x mixtures: all channels on a grid of probabilities, one bit, four record values.
        let grid = [0.0, 0.2, 0.5, 0.9, 1.0];
        for s in [0.1, 0.5] {
            let charge = clean(s, 1);
            for a in grid {
                for (b, c, d) in [(0.0, 1.0, 0.5), (0.2, 0.9, 1.0), (0.0, 0.2, 0.5), (1.0, 1.0, 0.0)] {
                    let channel: Vec<Vec<f64>> = [b, c, d, 0.5 * (b + c)]
                        .iter()
                        .map(|x| (1.0 - s) * a + s * x)
                        .map(|p| vec![p, 1.0 - p])
                        .collect();
                    assert!(capacity(&channel).0 <= charge, "{s} {a} {b} {c} {d}");
                }
            }
        }
    }

    #[test]
    fn the_closed_forms_and_limits_come_out() {
        for s in [1e-9, 1e-4, 0.005, 0.3] {
            let one = (s * (1.0_f64 - s).powf((1.0 - s) / s)).ln_1p();
            approx::assert_relative_eq!(clean(s, 1), one, max_relative = 1e-6);
            assert!(
                clean(s, 1) < s * LN_2 && clean(s, 2) > 2.0 * clean(s, 1),
                "shared batches cost more than their bits"
            );
            for k in 1..200 {
                assert!(clean(s, k) < clean(s, k + 1) && clean(s, k) < s * f64::from(k) * LN_2 * (1.0 + 1e-11));
                assert!(clean(s, k) < clean(s * 1.001, k));
            }
        }
        approx::assert_relative_eq!(clean(1e-12, 1) * 1e12, (-1.0_f64).exp(), max_relative = 1e-9);
        approx::assert_relative_eq!(clean(1.0, 1), LN_2, max_relative = 1e-11);
        approx::assert_relative_eq!(clean(1.0 - 1e-12, 3), 3.0 * LN_2, max_relative = 1e-9);
        assert_eq!((clean(0.0, 3), clean(0.5, 0)), (0.0, 0.0));
        // What one nat buys of single bits, N = 10,000.
        for (batch, bits) in [(50.0, 543), (5.0, 5436), (1.0, 27182)] {
            assert_eq!((1.0 / clean(batch / 1e4, 1)).round() as u64, bits);
        }
        approx::assert_relative_eq!(unsampled(0.0), LN_2, max_relative = 1e-11);
        assert!(unsampled(0.5) == 0.0 && unsampled(0.499_999) < 3e-12);
    }

    #[test]
    fn copies_of_a_record_add_up_beyond_one_records_charge() {
        // Ten copies, one bit: in the batch with probability 1 - 0.9^10.
        let s = 1.0 - 0.9_f64.powi(10);
        let h = |p: f64| -p * p.ln() - (1.0 - p) * (1.0 - p).ln();
        let coin = h(0.5 * s) - 0.5 * h(s);
        let all = clean(s, 1);
        assert!((coin - 0.308).abs() < 5e-4 && all >= coin && (all - 0.315).abs() < 5e-4, "{coin} {all}");
        assert!(all > 8.0 * clean(0.1, 1) && all > 4.0 * 0.1 * LN_2);
    }
}
