//! Which groups fire at which steps: public, drawn before any data is touched.

use super::public::{Domain, PublicStream};
use super::{below, threshold};
use rand_chacha::rand_core::RngCore;
use rayon::prelude::*;
use std::collections::HashSet;

/// How the fires of a run are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mask {
    /// Every (step, group) fires by itself with probability `p`.
    Bernoulli {
        /// Probability of a fire.
        p: f64,
    },
    /// Exactly so many of the run's (step, group) slots fire, drawn without replacement; all, if there are fewer.
    Exact {
        /// Number of fires.
        slots: u64,
    },
}

/// The run's fires, ordered by step, then by group.
///
/// Bernoulli: (t, g) fires when the 64-bit word at (mask, t), words `2 g` (low) and `2 g + 1` (high), is below p 2^64. The fires of a step
/// do not depend on how many steps or groups there are. Exact: Floyd's sample of `slots` numbers from T G, number
/// `t G + g` standing for (t, g), from the stream of [`Domain::Slots`].
pub fn plan_fires(seed: u64, steps: u32, groups: u32, mask: Mask) -> Vec<(u32, u32)> {
    match mask {
        Mask::Bernoulli { p } => (0..steps).flat_map(|t| step_fires(seed, t, groups, p)).collect(),
        Mask::Exact { slots } => {
            let total = u64::from(steps) * u64::from(groups);
            if slots >= total {
                return (0..steps).flat_map(|t| (0..groups).map(move |g| (t, g))).collect();
            }
            let mut rng = PublicStream::new(seed, Domain::Slots, 0, 0).at(0);
            let mut drawn = HashSet::new();
            for last in total.saturating_sub(slots)..total {
                let slot = below(last + 1, || rng.next_u64());
                drawn.insert(if drawn.contains(&slot) { last } else { slot });
            }
            let mut fires: Vec<_> = drawn.into_iter().collect();
            fires.sort_unstable();
            let groups = u64::from(groups);
            fires.into_iter().map(|slot| ((slot / groups) as u32, (slot % groups) as u32)).collect()
        }
    }
}

/// Whether (step, group) fires under the Bernoulli mask.
pub fn bernoulli_fires(seed: u64, step: u32, group: u32, p: f64) -> bool {
    let Some(cut) = threshold(p) else { return true };
    PublicStream::new(seed, Domain::Mask, step, 0).at(2 * u64::from(group)).next_u64() < cut
}

fn step_fires(seed: u64, step: u32, groups: u32, p: f64) -> impl Iterator<Item = (u32, u32)> {
    let cut = threshold(p);
    let mut rng = PublicStream::new(seed, Domain::Mask, step, 0).at(0);
    (0..groups).filter(move |_| cut.is_none_or(|cut| rng.next_u64() < cut)).map(move |g| (step, g))
}

/// (step, group) slots walked over between two looks at the count: a few milliseconds' work.
const WINDOW: u64 = 1 << 20;

/// How many fires [`plan_fires`] lists, without listing them. Stops soon after `most` are passed: a count above `most` says only
/// that there are more.
pub fn count_fires(seed: u64, steps: u32, groups: u32, mask: Mask, most: u64) -> u64 {
    let total = u64::from(steps) * u64::from(groups);
    let cut = match mask {
        Mask::Exact { slots } => return slots.min(total),
        Mask::Bernoulli { p } => threshold(p),
    };
    let (Some(cut), false) = (cut, groups == 0) else { return total };
    let of_step = |step: u32| {
        let mut rng = PublicStream::new(seed, Domain::Mask, step, 0).at(0);
        (0..groups).filter(|_| rng.next_u64() < cut).count() as u64
    };
    let (at_once, mut from, mut count) = (WINDOW.div_ceil(groups.into()) as u32, 0, 0);
    while from < steps && count <= most && cut > 0 {
        let to = from.saturating_add(at_once).min(steps);
        count += (from..to).into_par_iter().map(of_step).sum::<u64>();
        from = to;
    }
    count
}

/// The public coin, +1 or -1, that decides ties of (step, group): an inner product that is 0 or no number, an empty batch.
pub fn coin(seed: u64, step: u32, group: u32) -> i8 {
    let word = PublicStream::new(seed, Domain::Coin, step, 0).at(u64::from(group)).next_u32();
    if word >> 31 == 1 { 1 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bernoulli_counts_are_binomial() {
        // The paper's setting at eps = 0.5: G = 200, T = 1000, 144 expected fires; six standard deviations over 40 seeds together,
        // and their variance that of a binomial.
        let (steps, groups) = (1000, 200);
        let p = 0.5 / (f64::from(steps * groups) * 0.005 * std::f64::consts::LN_2);
        let mean = p * f64::from(steps * groups);
        let counts: Vec<f64> =
            (0..40).map(|seed| plan_fires(seed, steps, groups, Mask::Bernoulli { p }).len() as f64).collect();
        let average = counts.iter().sum::<f64>() / 40.0;
        assert!((average - mean).abs() < 6.0 * (mean * (1.0 - p) / 40.0).sqrt(), "{average}, expected {mean}");
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 40.0;
        // Chi-square on 40 degrees of freedom: 10^-9 quantiles are about 7.6 and 118.
        assert!(variance > mean * 0.19 && variance < mean * 2.95, "{variance}, expected {mean}");
    }

    #[test]
    fn fires_are_spread_evenly() {
        let fires = plan_fires(7, 500, 20, Mask::Bernoulli { p: 0.3 });
        for g in 0..20 {
            let n = fires.iter().filter(|f| f.1 == g).count() as f64;
            assert!((n - 150.0).abs() < 6.0 * (500.0f64 * 0.21).sqrt(), "group {g} fired {n} times");
        }
        // Neighbouring slots fire together as often as chance has it.
        let set: HashSet<_> = fires.iter().copied().collect();
        for (dt, dg) in [(0, 1), (1, 0), (1, 1)] {
            let both = fires.iter().filter(|&&(t, g)| set.contains(&(t + dt, g + dg))).count() as f64;
            let n = f64::from((500 - dt) * (20 - dg));
            assert!((both - n * 0.09).abs() < 6.0 * (n * 0.09).sqrt(), "({dt}, {dg}): {both} of {n}");
        }
    }

    #[test]
    fn bernoulli_is_random_access() {
        let fires = plan_fires(3, 30, 17, Mask::Bernoulli { p: 0.4 });
        let mut one_by_one = Vec::new();
        for t in 0..30 {
            for g in 0..17 {
                if bernoulli_fires(3, t, g, 0.4) {
                    one_by_one.push((t, g));
                }
            }
        }
        assert_eq!(fires, one_by_one);
        assert_eq!(fires[..], plan_fires(3, 60, 17, Mask::Bernoulli { p: 0.4 })[..fires.len()]);
        assert_eq!(plan_fires(3, 2, 2, Mask::Bernoulli { p: 1.0 }), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert!(plan_fires(3, 100, 100, Mask::Bernoulli { p: 0.0 }).is_empty());
    }

    #[test]
    fn fires_are_counted_as_they_are_listed_and_no_further_than_asked() {
        for (steps, groups, p) in [(500, 20, 0.3), (30, 17, 0.0), (7, 3, 1.0), (9, 0, 0.5), (4000, 300, 1e-3)] {
            let listed = plan_fires(5, steps, groups, Mask::Bernoulli { p }).len() as u64;
            assert_eq!(count_fires(5, steps, groups, Mask::Bernoulli { p }, u64::MAX), listed);
            assert_eq!(count_fires(5, steps, groups, Mask::Exact { slots: 40 }, 0), 40.min((steps * groups).into()));
        }
        // 10^11 slots: listed they would take 800 GB, and the walk alone minutes.
        for p in [1.0, 1.0 - 1e-9, 0.5] {
            assert!(count_fires(5, 100_000_000, 1000, Mask::Bernoulli { p }, 3) > 3);
        }
    }

    #[test]
    fn exact_draws_that_many_distinct_slots() {
        for (steps, groups, slots) in [(10, 7, 0), (10, 7, 1), (10, 7, 33), (10, 7, 70), (10, 7, 90), (1000, 200, 144)]
        {
            let fires = plan_fires(1, steps, groups, Mask::Exact { slots });
            assert_eq!(fires.len() as u64, slots.min(u64::from(steps * groups)));
            assert!(fires.is_sorted() && fires.windows(2).all(|w| w[0] != w[1]));
            assert!(fires.iter().all(|&(t, g)| t < steps && g < groups));
        }
        // Every slot equally likely: 6 of 12 drawn by 4000 seeds.
        let mut hits = [0.0; 12];
        for seed in 0..4000 {
            for (t, g) in plan_fires(seed, 4, 3, Mask::Exact { slots: 6 }) {
                hits[(t * 3 + g) as usize] += 1.0;
            }
        }
        assert!(hits.iter().all(|h: &f64| (h - 2000.0).abs() < 6.0 * 1000.0f64.sqrt()), "{hits:?}");
    }

    #[test]
    fn coins_are_fair_and_not_the_mask() {
        let coins: Vec<i8> = (0..100).flat_map(|t| (0..100).map(move |g| coin(1, t, g))).collect();
        let sum: i32 = coins.iter().map(|&c| i32::from(c)).sum();
        assert!(sum.abs() < 600, "{sum}");
        let agree: i32 = (0..100)
            .flat_map(|t| (0..100).map(move |g| (t, g)))
            .map(|(t, g)| i32::from(coin(1, t, g)) * if bernoulli_fires(1, t, g, 0.5) { 1 } else { -1 })
            .sum();
        assert!(agree.abs() < 600, "{agree}");
    }

    #[test]
    fn pinned() {
        assert_eq!(
            plan_fires(42, 100, 10, Mask::Bernoulli { p: 0.005 }),
            [(20, 1), (21, 0), (35, 7), (64, 2), (70, 8)]
        );
        assert_eq!(plan_fires(42, 100, 10, Mask::Exact { slots: 4 }), [(16, 2), (22, 0), (50, 2), (95, 0)]);
        assert_eq!((0..8).map(|g| coin(42, 0, g)).collect::<Vec<i8>>(), [1, 1, -1, -1, 1, -1, -1, 1]);
    }
}
