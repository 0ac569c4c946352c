//! Randomised response with a batch of its own for every bit: the sum of K losses takes K + 1 values, so epsilon is exact.

use super::accountant::{Bounds, larger};

/// The most bits summed one by one; beyond it lgamma rounds too much, and the lattice answers.
pub const MOST: u64 = 10_000_000_000;

/// The smallest delta: the weights that make it must be far above the end of the floats.
pub const LEAST_DELTA: f64 = 1e-250;

/// Epsilon at `delta` of `bits` bits flipped with probability `flip`, each on a Poisson batch of its own.
///
/// The bounds differ only by what is rounded. With u half of `EPSILON`, p the probability of a loss upwards and D = ln K! + K (|ln p| +
/// |ln(1-p)|): a weight's logarithm is three lgammas, good to 4 u of what is at most 2 ln K! together, and two products, 5 u each, in
/// four sums no larger than D: 17 u D. The other weights follow from the first in up to K steps, and so does their sum: 8 u a step
/// and 4 u of its logarithms, and D is above 1.3 K. So delta is known up to 32 u D of itself, and the bounds are epsilon at so much more and
/// less: at [`MOST`] bits D makes it 1e-3, hence the limit. The place of a sum of losses is rounded by a few u of its two parts. No
/// coefficient is a sum of as many logarithms as there are bits.
pub fn epsilon(flip: f64, sampling_rate: f64, bits: u64, delta: f64) -> Bounds {
    let (f, q) = (flip, sampling_rate);
    // With the record in the batch, its side shows with probability 1 - f; without it, with f.
    let (turned, stayed) = (f + q * (1.0 - 2.0 * f), (1.0 - q) * (1.0 - f) + q * f);
    let ln_ratio = |change: f64, with: f64, without: f64| {
        if change.abs() < 0.5 { change.ln_1p() } else { with.ln() - without.ln() }
    };
    let high = ln_ratio(q * (1.0 - 2.0 * f) / f, turned, f);
    let low = ln_ratio(-q * (1.0 - 2.0 * f) / (1.0 - f), stayed, 1.0 - f);
    let remove = Walk { up: high, down: low, p_up: turned, p_down: stayed };
    let add = Walk { up: -low, down: -high, p_up: 1.0 - f, p_down: f };
    let (a, b) = (remove.epsilon(bits, delta), add.epsilon(bits, delta));
    Bounds { lower: a.lower.max(b.lower), upper: larger(a.upper, b.upper) }
}

/// K independent losses, each `up` or `down`.
struct Walk {
    up: f64,
    down: f64,
    p_up: f64,
    p_down: f64,
}

impl Walk {
    /// delta(ε) = sum_i w_i (1 - e^(ε - S_i))+ over S_i = i up + (K - i) down is linear in e^ε between the S_i. Going down
    /// from the largest, delta(S_(i-1)) = delta(S_i) + (1 - e^-g) B_i, g = up - down, B_i = sum_(k >= i) w_k e^-(S_k - S_i).
    fn epsilon(&self, count: u64, delta: f64) -> Bounds {
        let k = count as f64;
        let (ln_up, ln_down) = (self.p_up.ln(), self.p_down.ln());
        let ln_all = libm::lgamma(k + 1.0);
        let error = 16.0 * f64::EPSILON * (64.0 + ln_all + k * (ln_up.abs() + ln_down.abs()));
        let gap = self.up - self.down;
        let place = |i: u64| i as f64 * self.up + (k - i as f64) * self.down;
        let ln_weight = |i: u64| {
            let x = i as f64;
            ln_all - libm::lgamma(x + 1.0) - libm::lgamma(k - x + 1.0) + x * ln_up + (k - x) * ln_down
        };
        // Above the likeliest count weights only fall: what begins below e^-60 delta has, all together, no say.
        let nothing = delta.ln() - 60.0;
        let (mut some, mut first) = (((k + 1.0) * self.p_up).min(k) as u64, count);
        if ln_weight(first) >= nothing {
            some = first;
        }
        while first - some > 1 {
            let middle = some + (first - some) / 2;
            if ln_weight(middle) < nothing { first = middle } else { some = middle }
        }
        let (begin, odds) = (ln_weight(first).exp(), (ln_down - ln_up).exp());
        let crossing = |target: f64| {
            let (mut at, mut weight, mut own) = (0.0, 0.0, begin);
            for i in (0..=first).rev() {
                let s = place(i);
                // `at` is delta at s; `weight` is B of the next higher place.
                let before = at;
                at += -(-gap).exp_m1() * weight;
                if at > target {
                    // Between s and s + gap: delta falls from `at` to `before` linearly in e^ε.
                    let share = (at - target) / (at - before);
                    // e^gap itself may be beyond f64.
                    let rise = if gap < 600.0 {
                        (share * gap.exp_m1()).ln_1p()
                    } else {
                        larger(0.0, gap + share.ln()) + 1e-12
                    };
                    return larger(0.0, s + rise);
                }
                if at.is_nan() {
                    return f64::INFINITY;
                }
                if s <= 0.0 {
                    return 0.0;
                }
                weight = own + (-gap).exp() * weight;
                // C(k, i-1) from C(k, i).
                own *= i as f64 / (k - i as f64 + 1.0) * odds;
            }
            // Below the smallest sum, still positive: delta(ε) = 1 - e^(ε - s) B.
            0.0
        };
        // A sum of k losses is rounded by some last bits of its parts.
        let slip = 8.0 * f64::EPSILON * (first as f64 * self.up.abs() + k * self.down.abs());
        let (low, high) = (crossing(delta * (1.0 + error)), crossing(delta / (1.0 + error)));
        Bounds { lower: (low - slip).max(0.0), upper: if high > 0.0 { high + slip } else { 0.0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_critique_come_out() {
        for (flip, rate, bits, want, digits) in [
            (0.055, 0.005, 144, 1.0136, 5e-5),
            (0.13, 0.005, 144, 0.5070, 5e-5),
            (0.02, 0.005, 144, 2.05, 5e-3),
            (0.02, 0.0005, 1443, 0.50, 5e-3),
            (0.02, 0.0001, 7213, 0.20, 5e-3),
            (0.01, 0.0001, 7213, 0.30, 5e-3),
        ] {
            let b = epsilon(flip, rate, bits, 1e-5);
            assert!((b.upper - want).abs() <= digits && b.upper - b.lower < 1e-9, "{flip} {rate} {bits}: {b:?}");
        }
    }

    #[test]
    fn flips_too_rare_for_the_ratio_are_still_an_epsilon() {
        // The bit tells all: one fire loses ln(q (1-f) / f), and delta lies far below q.
        for flip in [1e-310, 5e-324, 1e-200] {
            let b = epsilon(flip, 0.01, 100, 1e-5);
            let single = (0.01_f64).ln() - flip.ln();
            assert!(b.lower > single - 20.0 && b.upper.is_finite() && b.lower <= b.upper, "{flip}: {b:?}");
            assert!(epsilon(flip, 0.01, 1, 0.011).upper < 1e-9);
        }
    }

    #[test]
    fn a_billion_bits_are_summed_where_they_weigh_anything() {
        let begun = std::time::Instant::now();
        // Many small losses are nearly Gaussian: noise sqrt(f (1-f)) / (q (1-2f) sqrt(K)) of the sum, in closed form.
        for (flip, q, bits) in [(0.1_f64, 1e-5, 1_000_000_000), (0.3, 1e-4, 30_000_000), (0.45, 3e-6, 5_000_000_000)] {
            let noise = (flip * (1.0 - flip)).sqrt() / (q * (1.0 - 2.0 * flip) * (bits as f64).sqrt());
            let delta = 1e-6;
            let b = epsilon(flip, q, bits, delta);
            let stick = |eps: f64| crate::privacy::normal::hockey_stick(noise, eps).0;
            assert!(stick(1.01 * b.upper) < delta && stick(0.99 * b.lower) > delta, "{flip} {q} {bits}: {b:?}");
            assert!(b.lower <= b.upper && b.upper - b.lower < 1e-2 * b.upper, "{b:?}");
        }
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
        // The window changes nothing where all weights count.
        let b = epsilon(0.3, 0.4, 50, 1e-3);
        assert!(b.upper - b.lower < 1e-9 && b.upper > 1.0, "{b:?}");
    }

    #[test]
    fn few_bits_agree_with_every_outcome_counted() {
        let (flip, q, bits): (f64, f64, u32) = (0.2, 0.3, 6);
        let single =
            [(1.0 - flip, 1.0 + q * (flip / (1.0 - flip) - 1.0)), (flip, 1.0 + q * ((1.0 - flip) / flip - 1.0))];
        let stick = |eps: f64, with: bool| -> f64 {
            (0..1u32 << bits)
                .map(|word| {
                    let (mut without, mut ratio) = (1.0, 1.0);
                    for b in 0..bits {
                        let (mass, r) = single[(word >> b & 1) as usize];
                        without *= mass;
                        ratio *= r;
                    }
                    let (p, r) = if with { (without * ratio, ratio) } else { (without, 1.0 / ratio) };
                    (p * (1.0 - eps.exp() / r)).max(0.0)
                })
                .sum()
        };
        for delta in [0.2, 1e-2, 1e-4] {
            let eps = epsilon(flip, q, u64::from(bits), delta).upper;
            let worst = stick(eps, true).max(stick(eps, false));
            approx::assert_relative_eq!(worst, delta, max_relative = 1e-9);
        }
        let (lower, upper) = (epsilon(flip, q, 6, 0.9).lower, epsilon(flip, q, 6, 0.9).upper);
        assert_eq!((lower, upper), (0.0, 0.0));
    }
}
