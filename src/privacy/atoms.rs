//! A step with few outcomes: flipped bits on one batch. Its curve is linear between the outcomes' losses.

use super::choose::{self, ln_choices};
use super::curve::WithError;

/// The outcomes of one step, losses rising. What they gain is kept apart from their masses, so that a tiny sampling rate loses no digits:
/// with t = e^l, the terms of H and W are m (r - t), which near 1 is m (r - 1) - m (t - 1).
#[derive(Clone, Debug)]
pub(super) struct Atoms {
    list: Vec<Atom>,
    /// What a sum of terms may be rounded by, as a share of the sum of their sizes.
    ///
    /// With u half of `EPSILON`, logarithms good to two last bits and D the largest |ln C| + k |ln f|, in whose place no sum on the way is
    /// larger: the exponent of a mass errs by what [`choose::error`] says of ln C, by 5 u of each of its two other parts and by u of each of
    /// two sums, 7 u D; x = (2a-k) ln((1-f)/f) by 6 u D, and so do r and r - 1 relatively; the sum of k + 1 terms by k u; and each term by some last
    /// bits of its own. In all less than 64 + 3 k + 8 D times `EPSILON`.
    error: f64,
}

#[derive(Clone, Copy, Debug)]
struct Atom {
    /// ln r, r the likelihood ratio.
    loss: f64,
    /// m, the mass without the record.
    mass: f64,
    /// m r, the mass with it.
    with: f64,
    /// m (r - 1), what it adds.
    gain: f64,
}

impl Atoms {
    /// k flipped bits on one batch, by the number a of bits that show the record's side: without the record C(k,a) f^a (1-f)^(k-a), with it and
    /// in the batch C(k,a) f^(k-a) (1-f)^a, and so r = 1 + q (e^x - 1), x = (2a-k) ln((1-f)/f).
    pub(super) fn flips(flip: f64, q: f64, bits: u32) -> Self {
        let k = f64::from(bits);
        // 1 - 2f is exact where the logarithms would cancel.
        let ln_odds = if flip > 0.25 { ((1.0 - 2.0 * flip) / flip).ln_1p() } else { (-flip).ln_1p() - flip.ln() };
        let mut digits = 0.0_f64;
        let atom = |(i, ln_choose): (usize, f64)| {
            let a = i as f64;
            let mass = (ln_choose + a * flip.ln() + (k - a) * (-flip).ln_1p()).exp();
            let turned = (ln_choose + (k - a) * flip.ln() + a * (-flip).ln_1p()).exp();
            digits = digits.max(ln_choose - k * flip.ln());
            let x = (2.0 * a - k) * ln_odds;
            let rise = q * x.exp_m1();
            // Where e^x is beyond f64, the mass without the record is nothing beside the one with it.
            let gain = if x < 1.0 { mass * rise } else { q * (turned - mass) };
            let loss = match (q == 1.0, rise.is_finite()) {
                (true, _) => x,
                // 1 + q (e^x - 1) without what cancels there.
                (false, true) if rise < -0.5 => ((1.0 - q) + q * x.exp()).ln(),
                (false, true) => rise.ln_1p(),
                // e^x overflows; q e^x need not.
                (false, false) if q.ln() + x < 40.0 => (q.ln() + x).exp().ln_1p(),
                (false, false) => q.ln() + x,
            };
            Atom { loss, mass, with: (1.0 - q) * mass + q * turned, gain }
        };
        let list: Vec<Atom> = ln_choices(bits).into_iter().enumerate().map(atom).collect();
        Self { list, error: choose::error(bits) + f64::EPSILON * (64.0 + k + 8.0 * digits) }
    }

    /// The losses, rising.
    pub(super) fn losses(&self) -> impl DoubleEndedIterator<Item = f64> {
        self.list.iter().map(|a| a.loss)
    }

    /// H(e^l): what lies above l.
    pub(super) fn stick(&self, l: f64) -> WithError {
        self.excess(self.beyond(l), l, 1.0)
    }

    /// W(e^l): what lies below l.
    pub(super) fn rest(&self, l: f64) -> WithError {
        self.excess(self.before(l), l, -1.0)
    }

    /// Q(loss > l).
    pub(super) fn above(&self, l: f64) -> f64 {
        self.beyond(l).iter().map(|a| a.mass).sum()
    }

    /// Q(loss < l).
    pub(super) fn below(&self, l: f64) -> f64 {
        self.before(l).iter().map(|a| a.mass).sum()
    }

    /// Q(`from` < loss < `to`), at most: what lies within rounding of the ends is counted.
    pub(super) fn between(&self, from: f64, to: f64) -> f64 {
        let (from, to) = (from - 1e-12 * from.abs(), to + 1e-12 * to.abs());
        self.beyond(from).iter().take_while(|a| a.loss < to).map(|a| a.mass * (1.0 + 1e-12)).sum()
    }

    fn beyond(&self, l: f64) -> &[Atom] {
        &self.list[self.list.partition_point(|a| a.loss <= l)..]
    }

    fn before(&self, l: f64) -> &[Atom] {
        &self.list[..self.list.partition_point(|a| a.loss < l)]
    }

    /// The sum of `sign` m (r - t) over `atoms`, t = e^l, and a bound on what is rounded.
    fn excess(&self, atoms: &[Atom], l: f64, sign: f64) -> WithError {
        // Far below 0 both r and t are small, and their differences from 1 are not.
        let far = l < -std::f64::consts::LN_2;
        let level = if far { l.exp() } else { l.exp_m1() };
        let (mut sum, mut size) = (0.0, 0.0);
        for a in atoms {
            let reached = if far { a.with } else { a.gain };
            sum += sign * (reached - a.mass * level);
            size += reached.abs() + a.mass * level.abs();
        }
        // Masses near 0 are rounded by the smallest number there is, and not by a share of themselves.
        let smallest = f64::from_bits(1) * atoms.len() as f64 * (1.0 + level.abs());
        (f64::max(sum, 0.0), self.error * size + smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All words of k bits, one by one: without the record, and with it. Differences of the two are formed before anything is rounded.
    #[test]
    fn the_curve_is_that_of_all_words_however_small_the_rate() {
        for (flip, bits) in [(0.1_f64, 1_u32), (0.3, 3), (0.49, 6), (0.001, 4)] {
            for q in [1.0, 0.2, 1e-6, 1e-12] {
                let atoms = Atoms::flips(flip, q, bits);
                let words: Vec<[f64; 3]> = (0..1_u32 << bits)
                    .map(|word| {
                        let chance = |ones: u32| flip.powi(ones as i32) * (1.0 - flip).powi((bits - ones) as i32);
                        let (without, turned) = (chance(word.count_ones()), chance(bits - word.count_ones()));
                        [without, (1.0 - q) * without + q * turned, q * (turned - without)]
                    })
                    .collect();
                for l in [0.0, 1e-13, 0.3 * q, 0.1, 2.0, 12.0] {
                    let sum = |l: f64, sign: f64| -> f64 {
                        let term = |&[m, with, gain]: &[f64; 3]| {
                            sign * if l.abs() < 1.0 { gain - m * l.exp_m1() } else { with - m * l.exp() }
                        };
                        words.iter().map(|word| term(word).max(0.0)).sum()
                    };
                    for (found, truth) in [(atoms.stick(l), sum(l, 1.0)), (atoms.rest(-l), sum(-l, -1.0))] {
                        let off = (found.0 - truth).abs();
                        assert!(off <= found.1 + 1e-15 * truth, "{flip} {bits} {q} {l}: {found:?} for {truth}");
                        assert!(found.1 <= 1e-12 * q + 1e-12 * l, "{flip} {bits} {q} {l}: {found:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn ratios_beyond_floats_have_their_mass_and_their_loss() {
        for q in [1e-9, 0.5, 1.0] {
            let atoms = Atoms::flips(1e-3, q, 512);
            assert!(atoms.losses().all(|l| l.is_finite()));
            // All turned: k ln((1-f)/f), and the record's share of the mass.
            let last = atoms.losses().next_back().unwrap();
            approx::assert_relative_eq!(last, 512.0 * 999.0_f64.ln() + q.ln(), max_relative = 1e-12);
            approx::assert_relative_eq!(atoms.stick(600.0).0, q, max_relative = 1e-9);
        }
    }

    /// Without the record the tail's masses are below what a float holds in full; t = e^608 makes much of what they are rounded by.
    #[test]
    fn masses_that_floats_round_away_are_charged() {
        let (value, error) = Atoms::flips(0.2335, 1.0, 512).stick(608.29);
        assert!(value + error >= 1.9e-60 && error < 1e-15, "{value:e} +- {error:e}");
    }
}
