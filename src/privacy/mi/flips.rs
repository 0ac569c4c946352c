//! Bits that are flipped with a known probability before they are released.

use super::{bits, psi, up};
use crate::privacy::choose::ln_choices;

/// The most bits on one batch whose joint capacity is computed; beyond it the best of three bounds is taken.
pub const MOST_JOINT: u32 = 32;

/// The search for the best law ends when its certificate is within this share of the capacity.
const GAP: f64 = 1e-5;

/// An upper bound on the capacity of k bits on one batch, each flipped with probability `flip`, for a record in the batch with
/// probability `s`: within `GAP` of it up to [`MOST_JOINT`] bits.
///
/// Never above the clean bits' (flips are made from the bits alone), nor s times that of the unsampled channel.
pub fn flipped(s: f64, flip: f64, k: u32) -> f64 {
    if !(2..=MOST_JOINT).contains(&k) || s <= 0.0 || flip >= 0.5 || beyond_floats(flip, k) {
        return quick(s, flip, k);
    }
    quick(s, flip, k).min(Joint::new(s, flip, k).certified())
}

/// The best bound that needs no search: one bit's capacity, and for more the least of what clean bits tell, of what each tells given the
/// sample, and of the divergence from the law without the record.
pub(super) fn quick(s: f64, flip: f64, k: u32) -> f64 {
    if k == 0 || s <= 0.0 || flip >= 0.5 {
        return 0.0;
    }
    let simple = bits::clean(s, k).min(up(s * f64::from(k) * bits::unsampled(flip)));
    match k {
        1 => simple.min(one(s, flip)),
        _ if beyond_floats(flip, k) => simple,
        _ => simple.min(from_without(s, flip, k)),
    }
}

/// Whether [`flipped`] is the capacity, and not only a bound on it.
pub(super) fn is_capacity(flip: f64, k: u32) -> bool {
    k <= 1 || flip >= 0.5 || (k <= MOST_JOINT && !beyond_floats(flip, k))
}

/// Whether the likelihood ratios of k bits leave f64; then the clean bits' charge is as good.
fn beyond_floats(flip: f64, k: u32) -> bool {
    let ln_odds = (-flip).ln_1p() - flip.ln();
    let largest = f64::from(k) * ln_odds;
    largest > 300.0 || largest.is_nan()
}

/// P(+) is f, or f + d with d = s (1-2f): the two divergences from r = f + w d, at the w where they are equal. Any w is a certificate.
fn one(s: f64, f: f64) -> f64 {
    let d = s * (1.0 - 2.0 * f);
    let from = |w: f64, change: f64| {
        let r = f + w * d;
        r * psi(change / r) + (1.0 - r) * psi(-change / (1.0 - r))
    };
    let both = |w: f64| (from(w, -w * d), from(w, (1.0 - w) * d));
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let w = 0.5 * (low + high);
        let (without, with) = both(w);
        if without < with { low = w } else { high = w }
    }
    let (without, with) = both(high);
    up(without.max(with))
}

/// max_x D(P_x || law without the record): by all k bits turned, as to turn fewer is to turn all and to blur the rest.
fn from_without(s: f64, f: f64, k: u32) -> f64 {
    let ln_odds = (-f).ln_1p() - f.ln();
    let term = |m: u32, ln_choose: f64| {
        let (x, k) = (f64::from(m), f64::from(k));
        let ln_mass = ln_choose + x * f.ln() + (k - x) * (-f).ln_1p();
        ln_mass.exp() * psi(s * ((2.0 * x - k) * ln_odds).exp_m1())
    };
    up(ln_choices(k).into_iter().enumerate().map(|(m, c)| term(m as u32, c)).sum::<f64>()) * (1.0 + 1e-9)
}

/// The channel whose input is a word w of k bits and whose output is a flipped word: P_w = (1-s) N_0 + s N_w, N_w the flips around w.
///
/// Permutations of the bits leave N_0 alone, so the best prior depends on the weight j of w alone and the best law r on the weight m of
/// the output. With R = (1-f)/f an output that shares u ones with w and has v outside of it has N_w / N_0 = R^(2u-j). Everything is held
/// relative to N_0 and as a difference from 1, so that a tiny s loses no digits: P_w/N_0 = 1 + s e, e = R^(2u-j) - 1, and
/// r/N_0 = 1 + s g_m, g_m the mean of e over the prior.
struct Joint {
    s: f64,
    k: usize,
    /// By input weight j: (output weight m, N_0 mass, e).
    outcomes: Vec<Vec<(usize, f64, f64)>>,
    /// By input weight j and output weight m: the mean of e over the words of weight j.
    means: Vec<Vec<f64>>,
}

impl Joint {
    fn new(s: f64, f: f64, bits: u32) -> Self {
        let k = bits as usize;
        let ln_odds = (-f).ln_1p() - f.ln();
        let choose: Vec<Vec<f64>> = (0..=bits).map(ln_choices).collect();
        let mut means = vec![vec![0.0; k + 1]; k + 1];
        let outcomes = (0..=k)
            .map(|j| {
                let mut list = Vec::new();
                for u in 0..=j {
                    for v in 0..=k - j {
                        let m = u + v;
                        let ln_count = choose[j][u] + choose[k - j][v];
                        let mass = (ln_count + m as f64 * f.ln() + (k - m) as f64 * (-f).ln_1p()).exp();
                        let e = ((2.0 * u as f64 - j as f64) * ln_odds).exp_m1();
                        // Of the C(k, m) outputs of weight m so many share u ones with w.
                        means[j][m] += (ln_count - choose[k][m]).exp() * e;
                        list.push((m, mass, e));
                    }
                }
                list
            })
            .collect();
        Self { s, k, outcomes, means }
    }

    /// D(P_w || r) for each weight of w, r the law that the prior makes.
    fn divergences(&self, prior: &[f64]) -> Vec<f64> {
        let s = self.s;
        let g: Vec<f64> =
            (0..=self.k).map(|m| prior.iter().zip(&self.means).map(|(w, mean)| w * mean[m]).sum()).collect();
        let of = |list: &Vec<(usize, f64, f64)>| {
            list.iter()
                .map(|&(m, mass, e)| {
                    let r = 1.0 + s * g[m];
                    mass * r * psi(s * (e - g[m]) / r)
                })
                .sum()
        };
        self.outcomes.iter().map(of).collect()
    }

    /// The smallest max_w D(P_w || r) found. Any prior makes a certificate; the search is Blahut's and Arimoto's with a step
    /// that grows while the information does, as theirs (1) takes 1/capacity rounds.
    fn certified(&self) -> f64 {
        let spread = 0.01 / self.k as f64;
        let mut prior = vec![spread; self.k + 1];
        (prior[0], prior[self.k]) = (0.5, 0.5);
        normalise(&mut prior);
        let information = |prior: &[f64], d: &[f64]| -> f64 { prior.iter().zip(d).map(|(w, d)| w * d).sum() };
        let mut d = self.divergences(&prior);
        let mut now = information(&prior, &d);
        let (mut best, mut step) = (f64::INFINITY, 1.0);
        for _ in 0..1000 {
            let top = d.iter().copied().fold(0.0, f64::max);
            best = best.min(top);
            if best - now <= GAP * best || step * top < 1e-6 {
                break;
            }
            let mut next: Vec<f64> = prior.iter().zip(&d).map(|(w, d)| w * (step * (d - top)).exp()).collect();
            normalise(&mut next);
            let at = self.divergences(&next);
            let then = information(&next, &at);
            if then >= now {
                (prior, d, now) = (next, at, then);
                step *= 2.0;
            } else {
                step *= 0.3;
            }
        }
        best * (1.0 + 1e-9)
    }
}

fn normalise(weights: &mut [f64]) {
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= total);
}

#[cfg(test)]
mod tests {
    use super::super::bits::tests::capacity;
    use super::*;

    /// The channel in full: 2^k words in, 2^k out.
    fn channel(s: f64, f: f64, k: u32) -> Vec<Vec<f64>> {
        let flips = |from: u32, to: u32| -> f64 {
            (0..k).map(|b| if (from ^ to) >> b & 1 == 1 { f } else { 1.0 - f }).product()
        };
        (0..1u32 << k).map(|w| (0..1u32 << k).map(|y| (1.0 - s) * flips(0, y) + s * flips(w, y)).collect()).collect()
    }

    #[test]
    fn the_worst_world_by_enumeration_is_the_charge() {
        for (s, f, k) in [
            (0.3, 0.1, 1),
            (0.05, 0.02, 1),
            (1.0, 0.2, 1),
            (0.3, 0.1, 2),
            (0.1, 0.02, 3),
            (0.5, 0.3, 3),
            (0.9, 0.05, 2),
            (1.0, 0.1, 3),
            (0.2, 0.15, 4),
        ] {
            let (lower, upper) = capacity(&channel(s, f, k));
            let charge = flipped(s, f, k);
            assert!(lower <= charge && charge <= upper * (1.0 + 1e-3), "{s} {f} {k}: {lower} {charge} {upper}");
            assert!(charge <= lower * 1.01, "{s} {f} {k}: {lower} {charge}");
        }
    }

    #[test]
    fn a_batch_with_companions_that_turn_bits_is_never_above_the_charge() {
        // Two other records, each drawn with probability s, that turn a bit of their own: A and B_x are mixtures.
        let (s, f) = (0.3, 0.1);
        let base = channel(1.0, f, 2);
        let mixed = |with: u32| -> Vec<f64> {
            let weights = [(0b00, 0.49), (0b01, 0.21), (0b10, 0.21), (0b11, 0.09)];
            (0..4).map(|y| weights.iter().map(|(w, p)| p * base[(w ^ with) as usize][y]).sum()).collect()
        };
        let away = mixed(0);
        let worlds: Vec<Vec<f64>> =
            (0..4).map(|x| mixed(x).iter().zip(&away).map(|(b, a)| s * b + (1.0 - s) * a).collect()).collect();
        assert!(capacity(&worlds).0 < flipped(s, f, 2));
    }

    #[test]
    fn what_one_nat_buys_comes_out() {
        for (batch, f, bits) in [
            (50.0, 0.001, 991),
            (50.0, 0.005, 2370),
            (50.0, 0.02, 7587),
            (50.0, 0.1, 45795),
            (5.0, 0.001, 39781),
            (5.0, 0.005, 170357),
            (5.0, 0.02, 688535),
            (1.0, 0.001, 842035),
        ] {
            let buys = 1.0 / flipped(batch / 1e4, f, 1);
            assert!((buys / f64::from(bits) - 1.0).abs() < 5e-4, "B {batch} f {f}: {buys}");
        }
        assert!((1.0 / flipped(1e-4, 0.01, 1) / 8e6 - 1.0).abs() < 0.05);
    }

    #[test]
    fn limits_are_met() {
        for s in [1e-12, 1e-6, 0.005, 0.4, 1.0] {
            approx::assert_relative_eq!(one(s, 1e-300), bits::clean(s, 1), max_relative = 1e-6);
            approx::assert_relative_eq!(flipped(s, 1e-30, 3), bits::clean(s, 3), max_relative = 1e-5);
            assert_eq!((flipped(s, 0.5, 3), flipped(s, 0.1, 0)), (0.0, 0.0));
        }
        for (s, f) in [(1e-9, 0.1), (1e-6, 0.01), (1e-12, 0.4)] {
            let second = s * s * (1.0 - 2.0 * f) * (1.0 - 2.0 * f) / (8.0 * f * (1.0 - f));
            approx::assert_relative_eq!(flipped(s, f, 1), second, max_relative = 1e-3);
            // k turned bits: R^... the second moment grows to the power k, less the 1 that is no news.
            let one = 1.0 + (1.0 - 2.0 * f) * (1.0 - 2.0 * f) / (f * (1.0 - f));
            if s * one * one < 1e-4 {
                approx::assert_relative_eq!(flipped(s, f, 2), s * s / 8.0 * (one * one - 1.0), max_relative = 1e-2);
            }
        }
    }

    #[test]
    fn bits_that_share_a_batch_are_charged_jointly() {
        let (s, f) = (0.005, 0.1);
        let ratio = flipped(s, f, 4) / (4.0 * flipped(s, f, 1));
        assert!((ratio - 24.0).abs() < 1.0, "{ratio}");
        for k in 2..=4 {
            let over = from_without(s, f, k) / flipped(s, f, k);
            assert!((3.5..6.5).contains(&over), "{k}: {over}");
        }
    }

    #[test]
    fn charges_rise_with_rate_and_bits_and_fall_with_flips() {
        for s in [1e-9, 1e-4, 0.005, 0.2] {
            for f in [1e-4, 0.01, 0.1, 0.3] {
                let mut before = 0.0;
                for k in 1..=12 {
                    let here = flipped(s, f, k);
                    assert!(here > before * (1.0 + 1e-4), "s {s} f {f} k {k}: {here} after {before}");
                    assert!(flipped(s * 1.01, f, k) > here, "s {s} f {f} k {k}");
                    assert!(flipped(s, f * 1.02, k) < here * (1.0 + 2.0 * GAP), "s {s} f {f} k {k}");
                    assert!(here <= bits::clean(s, k));
                    before = here;
                }
            }
        }
        let many = [32, 33, 40, 100, 512].map(|k| flipped(0.005, 0.1, k));
        assert!(many.windows(2).all(|w| w[0] < w[1]), "{many:?}");
    }
}
