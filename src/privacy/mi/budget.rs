//! FERRET's budget in nats of mutual information, given all other records.
//!
//! The paper's accounting: a fired group releases one bit, at most ln 2 nats; a record is in its batch with probability s; the chain rule
//! adds over groups and steps. So a run with firing probability p spends at most G T s p ln 2 nats on any one record on average, and once K
//! bits have been released, s K ln 2. The exact accounting charges each batch's bits their joint capacity, see [`bits`](super::bits).
//! Nats of mutual information are not (eps, delta).

use super::bits::clean;
use crate::error::{Error, Result};
use std::f64::consts::LN_2;

/// How bits are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// s ln 2 a bit: the paper's upper bound.
    #[default]
    Paper,
    /// What the bits of one batch can tell at most, jointly: a capacity.
    Exact,
}

impl Accounting {
    /// Whether it is the paper's.
    pub fn is_paper(&self) -> bool {
        *self == Self::Paper
    }
}

/// What a plan starts from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Budget in nats of mutual information.
    pub epsilon: f64,
    /// Groups G.
    pub groups: u64,
    /// Records N, taken as public.
    pub records: u64,
    /// Expected batch size B.
    pub batch: u64,
    /// Passes over the records.
    pub epochs: u64,
}

/// FERRET's plan: known before any record is touched.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Plan {
    /// Groups G.
    pub groups: u64,
    /// Steps T.
    pub steps: u64,
    /// s = B / N.
    pub sampling_rate: f64,
    /// How bits are charged.
    pub accounting: Accounting,
    /// Firing probability, at most 1: p* = epsilon / (G T s ln 2) by the paper's accounting; by the exact one what spends epsilon on
    /// average if the bits of a step share its batch.
    pub p: f64,
    /// What p = 1 spends: G T s ln 2 by the paper's accounting.
    pub ceiling: f64,
    /// G T p.
    pub expected_bits: f64,
    /// Probability 1 - (1-p)^G that a step fires at all.
    pub step_fires_probability: f64,
    /// The undithered release is (0, this)-DP: 1 - (1 - s P_fire)^T.
    pub delta_zero: f64,
    /// sqrt(epsilon / B): mean membership advantage, in expectation over coin-flip membership.
    pub advantage_bound: f64,
    /// Nats planned to be spent, on average over Bernoulli masks: epsilon, or the ceiling if that is lower.
    pub nats_spent: f64,
    /// What the plan spends on average by the paper's accounting.
    pub nats_paper: f64,
    /// What the plan spends on average by the exact accounting, bits of a step on one batch.
    pub nats_exact: f64,
    /// Single bits, a batch each, that never spend more than epsilon: the slots of an exact mask.
    pub slots: u64,
}

/// Steps of `epochs` passes over `records` in batches of `batch`: epochs times ceil(N / B).
///
/// With Poisson batches of rate B/N a pass is N/B steps on average; rounding up makes it never less than the passes asked for,
/// and agrees with the shuffled sampler, whose last batch of a pass may be short.
pub fn steps(records: u64, batch: u64, epochs: u64) -> Result<u64> {
    if batch == 0 || records == 0 || batch > records {
        return Err(Error::Usage(format!(
            "a batch of {batch} from {records} records: the batch must have at least one record and at most all of them"
        )));
    }
    records.div_ceil(batch).checked_mul(epochs).ok_or_else(|| Error::usage("more steps than 64 bits can count"))
}

/// [`steps`] of a run that is to be made.
pub fn run_steps(records: u64, batch: u64, epochs: u32) -> Result<u32> {
    let steps = steps(records, batch, epochs.into())?;
    u32::try_from(steps).map_err(|_| Error::usage(format!("{steps} steps are too many")))
}

/// Nats charged to any one record for `bits` released bits on batches of rate `sampling_rate`.
pub fn charge(sampling_rate: f64, bits: u64) -> f64 {
    sampling_rate * bits as f64 * LN_2
}

impl Plan {
    /// The largest firing probability within the budget, by the paper's accounting.
    pub fn new(request: Request) -> Result<Self> {
        Self::by(Accounting::Paper, request)
    }

    /// The largest firing probability within the budget.
    pub fn by(accounting: Accounting, request: Request) -> Result<Self> {
        let Request { epsilon, groups, records, batch, epochs } = request;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            return Err(Error::Usage(format!("epsilon must be a positive number of nats, found {epsilon}")));
        }
        let steps = steps(records, batch, epochs)?;
        if groups == 0 || steps == 0 {
            return Err(Error::Usage(format!("{groups} groups over {steps} steps: both must be at least 1")));
        }
        let sampling_rate = batch as f64 / records as f64;
        let slots = groups as f64 * steps as f64;
        let exact = |p: f64| steps as f64 * mean_charge(sampling_rate, groups, p);
        let (ceiling, p, one) = match accounting {
            Accounting::Paper => {
                let ceiling = slots * sampling_rate * LN_2;
                (ceiling, (epsilon / ceiling).min(1.0), sampling_rate * LN_2)
            }
            Accounting::Exact => {
                let ceiling = exact(1.0);
                let p = if epsilon >= ceiling { 1.0 } else { largest(epsilon, |p| Ok(exact(p)))? };
                (ceiling, p, clean(sampling_rate, 1))
            }
        };
        let step_fires_probability = complement_of_power(p, groups);
        let nats_spent = epsilon.min(ceiling);
        let nats_paper = slots * p * sampling_rate * LN_2;
        Ok(Self {
            groups,
            steps,
            sampling_rate,
            accounting,
            p,
            ceiling,
            expected_bits: slots * p,
            step_fires_probability,
            delta_zero: delta_zero(sampling_rate, step_fires_probability, steps),
            // K bits of at most ln 2 each, spread over N records, by whatever accounting they were planned.
            advantage_bound: (slots * p * LN_2 / records as f64).sqrt(),
            nats_spent,
            nats_paper,
            nats_exact: exact(p),
            slots: ((epsilon / one) as u64).min(groups.saturating_mul(steps)),
        })
    }

    /// Whether the budget was above the ceiling, so that p is 1 and less is spent than asked for.
    pub fn clamped(&self) -> bool {
        self.p >= 1.0
    }
}

/// 1 - (1 - s P_fire)^T: the probability that a record was in some batch that released anything. The release without
/// flips or noise is (0, this)-DP, and that is tight.
pub fn delta_zero(sampling_rate: f64, step_fires_probability: f64, steps: u64) -> f64 {
    complement_of_power(sampling_rate * step_fires_probability, steps)
}

/// The same for `fired` steps that are known to have fired: 1 - (1 - s)^fired.
pub fn delta_zero_realised(sampling_rate: f64, fired: u64) -> f64 {
    complement_of_power(sampling_rate, fired)
}

/// E c_K(s), c_k the joint charge of k clean bits and K ~ Binomial(`groups`, p): what a step costs on average.
fn mean_charge(s: f64, groups: u64, p: f64) -> f64 {
    let charge = |k: u64| clean(s, k.min(u32::MAX.into()) as u32);
    if p >= 1.0 { charge(groups) } else { mean_of_binomial(groups, p, charge).0 }
}

/// E f(K) of K ~ Binomial(n, p), p < 1, over all K that matter, and the largest of those.
pub(super) fn mean_of_binomial(n: u64, p: f64, f: impl Fn(u64) -> f64) -> (f64, u64) {
    let count = n as f64;
    let ln_all = libm::lgamma(count + 1.0);
    let (mean, spread) = (count * p, (count * p * (1.0 - p)).sqrt());
    let (from, to) = ((mean - 12.0 * spread - 12.0).max(0.0) as u64, (mean + 12.0 * spread + 30.0).min(count) as u64);
    let total = (from..=to)
        .map(|k| {
            let x = k as f64;
            let ln_choose = ln_all - libm::lgamma(x + 1.0) - libm::lgamma(count - x + 1.0);
            (ln_choose + x * p.ln() + (count - x) * (-p).ln_1p()).exp() * f(k)
        })
        .sum();
    (total, to)
}

/// The largest p in (0, 1) with `spends`(p) <= `budget`, `spends` rising.
pub(super) fn largest(budget: f64, mut spends: impl FnMut(f64) -> Result<f64>) -> Result<f64> {
    let (mut low, mut high) = (-700.0_f64, 0.0_f64);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if spends(middle.exp())? <= budget { low = middle } else { high = middle }
    }
    Ok(low.exp())
}

/// 1 - (1 - x)^n without cancellation.
fn complement_of_power(x: f64, n: u64) -> f64 {
    if x >= 1.0 { if n > 0 { 1.0 } else { 0.0 } } else { -(n as f64 * (-x).ln_1p()).exp_m1() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(epsilon: f64, groups: u64) -> Plan {
        Plan::new(Request { epsilon, groups, records: 10_000, batch: 50, epochs: 5 }).unwrap()
    }

    #[test]
    fn the_papers_figures_come_out() {
        for (epsilon, bits, delta, advantage) in
            [(0.1, 29.0, 0.13, 0.045), (0.5, 144.0, 0.49, 0.10), (1.0, 289.0, 0.71, 0.14), (2.0, 577.0, 0.89, 0.20)]
        {
            let p = plan(epsilon, 200);
            assert_eq!((p.steps, p.sampling_rate), (1000, 0.005));
            assert_eq!(p.expected_bits.round(), bits);
            assert!((p.delta_zero - delta).abs() < 0.005, "{}", p.delta_zero);
            assert!((p.advantage_bound - advantage).abs() < 0.005);
            assert_eq!(p.nats_spent, epsilon);
        }
        for (groups, ceiling, p) in [(200, 693.0, 7.2e-4), (100, 347.0, 1.4e-3), (50, 173.0, 2.9e-3), (2, 6.93, 0.072)]
        {
            let plan = plan(0.5, groups);
            approx::assert_relative_eq!(plan.ceiling, ceiling, max_relative = 2e-3);
            approx::assert_relative_eq!(plan.p, p, max_relative = 0.035);
        }
    }

    #[test]
    fn the_exact_accounting_plans_more_bits_for_the_same_nats() {
        let request = Request { epsilon: 1.0, groups: 200, records: 10_000, batch: 50, epochs: 5 };
        let (paper, exact) =
            (Plan::by(Accounting::Paper, request).unwrap(), Plan::by(Accounting::Exact, request).unwrap());
        assert_eq!((paper.slots, exact.slots), (288, 542));
        approx::assert_relative_eq!(exact.nats_exact, 1.0, max_relative = 1e-6);
        assert!(exact.nats_exact <= 1.0 && paper.nats_exact < 1.0 && exact.nats_paper > 1.2, "{exact:?}");
        // Bits of a step share its batch: dearer than one by one, cheaper than the paper's.
        assert!(exact.expected_bits > paper.expected_bits && exact.expected_bits < 543.0, "{exact:?}");
        // One group: no batch is shared, and p spends 1/c_1 bits.
        let alone = Plan::by(Accounting::Exact, Request { groups: 1, ..request }).unwrap();
        approx::assert_relative_eq!(alone.expected_bits, 1.0 / clean(0.005, 1), max_relative = 1e-6);
        // Brute force over the masks of three groups.
        let p = 0.3_f64;
        let sum: f64 = (0..8_u32)
            .map(|mask| {
                let k = mask.count_ones();
                p.powi(k as i32) * (1.0 - p).powi(3 - k as i32) * clean(0.1, k)
            })
            .sum();
        approx::assert_relative_eq!(mean_charge(0.1, 3, p), sum, max_relative = 1e-9);
        let high = Plan::by(Accounting::Exact, Request { epsilon: 1e9, ..request }).unwrap();
        assert!(high.clamped() && (high.ceiling / (1000.0 * clean(0.005, 200)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_budget_above_the_ceiling_is_clamped_and_said() {
        let p = Plan::new(Request { epsilon: 2.0, groups: 2, records: 10_000, batch: 50, epochs: 1 }).unwrap();
        assert!(p.clamped() && p.p == 1.0 && p.step_fires_probability == 1.0);
        approx::assert_relative_eq!(p.nats_spent, 2.0 * LN_2, max_relative = 1e-12);
        approx::assert_relative_eq!(charge(p.sampling_rate, 400), p.ceiling, max_relative = 1e-12);
        assert!(!plan(0.5, 200).clamped());
    }

    #[test]
    fn records_that_do_not_divide_round_each_pass_up() {
        assert_eq!(steps(101, 50, 2).unwrap(), 6);
        assert!(steps(10, 11, 1).is_err() && steps(10, 0, 1).is_err());
    }
}
