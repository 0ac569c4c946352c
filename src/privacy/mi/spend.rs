//! How far a budget in nats goes in a FERRET run: what its bits cost by either accounting, whatever is done to them.

use super::batch::{Release, charge};
use super::budget::{Accounting, largest, mean_of_binomial};
use super::{bits, flips};
use crate::error::Result;
use crate::privacy::Sampler;
use crate::privacy::event::Fires;
use std::f64::consts::LN_2;

/// Up to so many bits on a batch their joint charge is computed for a plan; beyond, one that is quick to compute and not below it.
const MOST_PLANNED: u32 = 6;

/// What is released of a FERRET run's bits, and how they are charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spender {
    /// How bits are charged.
    pub accounting: Accounting,
    /// What is done to a bit; its number of bits is of no account.
    pub release: Release,
    /// s = B / N.
    pub sampling_rate: f64,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Whether the bits of a step share its batch.
    pub shared: bool,
}

impl Spender {
    /// Nats that `fires` cost: so many batches with so many bits each.
    pub fn spent(&self, fires: &[Fires]) -> Result<f64> {
        match self.accounting {
            Accounting::Paper => Ok(super::charge(self.sampling_rate, Fires::total(fires))),
            Accounting::Exact => {
                Ok(super::batch::charge_fires(self.release, self.sampling_rate, self.sampler, fires)?.nats)
            }
        }
    }

    /// Nats that `k` bits of one step cost, or a little more.
    fn step(&self, k: u32) -> Result<f64> {
        let s = self.sampling_rate;
        match (self.accounting, self.release) {
            (Accounting::Paper, _) => Ok(s * f64::from(k) * LN_2),
            (_, _) if !self.shared => Ok(f64::from(k) * charge(with(self.release, 1), s, self.sampler)?.nats),
            (_, Release::Bits { flip, .. }) if k > MOST_PLANNED && flip > 0.0 && self.sampler != Sampler::Shuffle => {
                // Flips outside their range are refused below.
                charge(with(self.release, 1), s, self.sampler)?;
                Ok(flips::quick(s, flip, k))
            }
            (_, release) => Ok(charge(with(release, k), s, self.sampler)?.nats),
        }
    }

    /// The largest probability with which each of `groups` groups may fire at each of `steps` steps, so that `budget` nats are spent on average.
    pub fn probability(&self, budget: f64, groups: u64, steps: u64) -> Result<f64> {
        let (g, t) = (groups as f64, steps as f64);
        if self.accounting == Accounting::Paper || !self.shared {
            return Ok((budget / (g * t * self.step(1)?)).min(1.0));
        }
        let mut known: Vec<f64> = Vec::new();
        let most = u32::try_from(groups).unwrap_or(u32::MAX);
        let mut mean = |p: f64| -> Result<f64> {
            if p >= 1.0 {
                return Ok(t * self.step(most)?);
            }
            let (_, to) = mean_of_binomial(groups, p, |_| 0.0);
            while known.len() as u64 <= to {
                known.push(if known.is_empty() { 0.0 } else { self.step(known.len() as u32)? });
            }
            Ok(t * mean_of_binomial(groups, p, |k| known[k as usize]).0)
        };
        if mean(1.0)? <= budget {
            return Ok(1.0);
        }
        largest(budget, mean)
    }

    /// So many bits never cost more than `budget` nats, however the mask spreads them over `steps` steps of `groups` groups.
    ///
    /// c_k bits of one batch cost at most k times the dearest share c_j / j of any j <= `groups`.
    pub fn slots(&self, budget: f64, groups: u64, steps: u64) -> Result<u64> {
        let all = groups.saturating_mul(steps);
        let most = u32::try_from(groups).unwrap_or(u32::MAX);
        let shared = self.accounting == Accounting::Exact && self.shared;
        let whole = if shared {
            charge(with(self.release, most), self.sampling_rate, self.sampler)?.nats
        } else {
            self.step(most)?
        };
        if whole * steps as f64 <= budget {
            return Ok(all);
        }
        let mut share: f64 = 0.0;
        for k in 1..=if shared { most.min(MOST_PLANNED) } else { 1 } {
            share = share.max(self.step(k)? / f64::from(k));
        }
        if shared && most > MOST_PLANNED {
            // Given the sample, bits of one batch tell no more than each by itself.
            let unsampled = match self.release {
                Release::Bits { flip, .. } => bits::unsampled(flip),
                _ => bits::unsampled(0.0),
            };
            share = share.max(self.sampling_rate * unsampled);
        }
        Ok(((budget / share) as u64).min(all))
    }
}

/// `release` of so many bits.
fn with(release: Release, bits: u32) -> Release {
    match release {
        Release::Bits { flip, .. } => Release::Bits { flip, bits },
        Release::Scalars { dither, .. } => Release::Scalars { dither, bits },
        Release::Signs { noise_multiplier, .. } => Release::Signs { noise_multiplier, bits },
        Release::Sum { .. } => release,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Release = Release::Bits { flip: 0.0, bits: 1 };

    fn exact(release: Release, shared: bool) -> Spender {
        Spender { accounting: Accounting::Exact, release, sampling_rate: 0.01, sampler: Sampler::Poisson, shared }
    }

    #[test]
    fn by_the_papers_accounting_every_bit_costs_s_ln_2() {
        for release in [CLEAN, Release::Bits { flip: 0.1, bits: 1 }, Release::Scalars { dither: 1.0, bits: 1 }] {
            let paper = Spender { accounting: Accounting::Paper, ..exact(release, true) };
            assert_eq!(paper.slots(0.5, 16, 60).unwrap(), (0.5 / (0.01 * LN_2)) as u64);
            assert_eq!(paper.probability(0.5, 16, 60).unwrap(), 0.5 / (16.0 * 60.0 * 0.01 * LN_2));
            assert_eq!(paper.spent(&[Fires { steps: 3, bits: 2 }]).unwrap(), 0.01 * 6.0 * LN_2);
        }
    }

    /// Whatever the mask does with its slots, the budget is kept; and where no batch is shared it is spent to the last bit.
    #[test]
    fn slots_never_cost_more_than_the_budget_by_trying_every_arrangement() {
        let releases = [CLEAN, Release::Bits { flip: 0.1, bits: 1 }, Release::Scalars { dither: 1.0, bits: 1 }];
        for release in releases {
            for shared in [false, true] {
                let spender = exact(release, shared);
                for groups in [1_u32, 2, 3] {
                    let one = spender.step(1).unwrap();
                    let budget = 5.5 * one;
                    let slots = spender.slots(budget, groups.into(), 6).unwrap();
                    if !shared || groups == 1 {
                        assert_eq!(slots, 5.min(6 * u64::from(groups)), "{release:?}");
                    }
                    assert!(slots >= 1 || groups > 1, "{release:?} {groups}");
                    // Every way to put the slots on six steps.
                    let ways = (groups + 1).pow(6);
                    for way in 0..ways {
                        let counts: Vec<u32> = (0..6).map(|i| way / (groups + 1).pow(i) % (groups + 1)).collect();
                        if u64::from(counts.iter().sum::<u32>()) != slots {
                            continue;
                        }
                        let fires: Vec<Fires> = counts
                            .iter()
                            .map(|&k| match shared {
                                true => Fires { steps: 1, bits: k },
                                false => Fires { steps: k.into(), bits: 1 },
                            })
                            .collect();
                        let spent = spender.spent(&fires).unwrap();
                        assert!(spent <= budget * (1.0 + 1e-9), "{release:?} {shared} {counts:?}: {spent} of {budget}");
                    }
                }
                assert_eq!(spender.slots(1e9, 7, 50).unwrap(), 350);
                // A budget that pays for every slot, to the last one.
                let twelve = if shared {
                    charge(with(release, 12), 0.01, Sampler::Poisson).unwrap().nats
                } else {
                    12.0 * spender.step(1).unwrap()
                };
                assert_eq!(spender.slots(50.0 * twelve * (1.0 + 1e-9), 12, 50).unwrap(), 600, "{release:?}");
            }
        }
    }

    #[test]
    fn the_probability_spends_the_budget_on_average() {
        // Brute force over the masks of three groups.
        for release in [CLEAN, Release::Bits { flip: 0.2, bits: 1 }] {
            let spender = exact(release, true);
            let budget = 0.3 * 40.0 * spender.step(3).unwrap();
            let p = spender.probability(budget, 3, 40).unwrap();
            let mean: f64 = (0..8_u32)
                .map(|mask| {
                    let k = mask.count_ones();
                    p.powi(k as i32)
                        * (1.0 - p).powi(3 - k as i32)
                        * spender.spent(&[Fires { steps: 1, bits: k }]).unwrap()
                })
                .sum();
            approx::assert_relative_eq!(40.0 * mean, budget, max_relative = 1e-6);
        }
        let alone = exact(CLEAN, false);
        approx::assert_relative_eq!(
            alone.probability(0.05, 3, 40).unwrap(),
            0.05 / (120.0 * bits::clean(0.01, 1)),
            max_relative = 1e-9
        );
        assert_eq!(alone.probability(1e9, 3, 40).unwrap(), 1.0);
        // Many groups and flips: quick, and never more than the budget by the joint charge of what fires.
        let many = exact(Release::Bits { flip: 0.05, bits: 1 }, true);
        let p = many.probability(0.5, 200, 1000).unwrap();
        assert!(p > 0.0 && p < 1.0, "{p}");
    }

    #[test]
    fn what_is_quick_to_compute_is_never_below_the_joint_charge() {
        for (s, f) in [(0.01, 0.1), (0.3, 0.3), (0.001, 0.01)] {
            for k in [1, 2, 7, 12, 20] {
                assert!(flips::quick(s, f, k) >= flips::flipped(s, f, k) * (1.0 - 1e-9), "{s} {f} {k}");
            }
        }
    }
}
