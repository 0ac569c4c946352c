//! The leakage meter: what FERRET's released bits really said about the records that made them.
//!
//! A fired group releases `b = sign(S)`, `S = sum of a_i over the batch`, `a_i = <g_i, u>` record i's share, a public
//! coin standing in for `sign(0)`. Record i is *decisive* for the bit when `sign(S) != sign(S - a_i)`: its absence
//! would have flipped it.
//!
//! **What decisiveness leaks.** Let record i be a candidate whose membership is a fair coin M, and take part with
//! probability s when a member (Poisson sampling). Give the adversary everything else: the record's value, all other
//! records, who else was in the batch. Given that, the bit is one value without i and, if i is decisive, the other
//! with it.
//! - The adversary also knows whether i was drawn (*batch known*): a decisive, drawn record's coin is revealed, `ln 2`
//!   nats; so a bit leaks `s P[decisive] ln 2`. The accountant charges `s ln 2`: it takes every record as decisive for
//!   every bit. Measured over charged is `P[decisive]`.
//! - The sampling is secret, as it should be (*batch secret*): the bit differs with probability s for a member and 0
//!   for a non-member, so it leaks `P[decisive] (h(s/2) - h(s)/2)`, about half as much for small s.
//! - Randomised response with flip probability f: `h((f + f')/2) - (h(f) + h(f'))/2`, with f' = f + d(1 - 2f) the
//!   chance of the other symbol for a member, d = 1 when the batch is known and s when it is secret. Charged: `s (ln 2 -
//!   h(f))`.
//!
//! Under Poisson sampling the draw of i is independent of the others', so the drawn records' decisiveness estimates
//! `P[decisive]` without bias. Values add over bits as an upper estimate (chain rule, each term conditioned on the
//! rest). They are conditional on all other records and so do not add up over records to the information in the bit.
//!
//! The meter reads private shares: its numbers are an audit, not a release.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};

use super::stats::{entropy, mean_variance, proportion_lower, proportion_upper};
use crate::{Error, Result};

/// Collects released bits one by one.
#[derive(Debug, Clone)]
pub struct Meter {
    rate: f64,
    flip: f64,
    /// `(drawn, decisive)` of each bit.
    bits: Vec<(u64, u64)>,
    /// `(drawn, decisive)` of each record that was ever drawn.
    records: BTreeMap<u64, (u64, u64)>,
}

/// What the meter read. Nats of information about one record's membership, over the whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Leakage {
    /// Bits released.
    pub bits: u64,
    /// Records drawn, summed over bits.
    pub drawn: u64,
    /// How often a drawn record's absence would have flipped the bit.
    pub flip_rate: f64,
    /// Its 95 % interval, bits being the independent units.
    pub flip_rate_ci: [f64; 2],
    /// Share of bits for which at least one drawn record was decisive.
    pub bits_with_a_decisive_record: f64,
    /// `s K (ln 2 - h(f))`.
    pub charged_nats: f64,
    /// Mean over records, batch known to the adversary.
    pub leaked_nats_batch_known: f64,
    /// Its 95 % interval.
    pub leaked_nats_batch_known_ci: [f64; 2],
    /// Mean over records, batch secret.
    pub leaked_nats_batch_secret: f64,
    /// The record that was decisive most often, and how often: the worst case seen, not an expectation.
    pub most_decisive: Option<(u64, u64)>,
    /// `most_decisive`'s nats given the draws that really happened.
    pub most_decisive_nats: f64,
}

/// The released sign, by the rule of the release: `coin` decides zero.
fn sign(sum: f64, coin: bool) -> bool {
    if sum == 0.0 { coin } else { sum > 0.0 }
}

impl Meter {
    /// `rate` is the sampling probability s of a record and bit, `flip` the probability of randomised response (0 for
    /// plain FERRET).
    pub fn new(rate: f64, flip: f64) -> Result<Self> {
        if !(rate > 0.0 && rate <= 1.0 && (0.0..=0.5).contains(&flip)) {
            return Err(Error::usage(format!(
                "the leakage meter needs a sampling rate in (0, 1] and a flip probability in [0, 0.5], found {rate} and {flip}"
            )));
        }
        Ok(Self { rate, flip, bits: Vec::new(), records: BTreeMap::new() })
    }

    /// One fired group: the drawn records' ids and shares `<g_i, u>`, and the public coin for a zero sum.
    pub fn add(&mut self, ids: &[u64], shares: &[f64], coin: bool) -> Result<()> {
        if ids.len() != shares.len() {
            return Err(Error::usage(format!("{} record ids came with {} shares of a bit", ids.len(), shares.len())));
        }
        if let Some(at) = shares.iter().position(|a| !a.is_finite()) {
            return Err(Error::usage(format!("record {}'s share of a bit is {}", ids[at], shares[at])));
        }
        let total: f64 = shares.iter().sum();
        let released = sign(total, coin);
        let mut decisive_here = 0;
        for (index, &id) in ids.iter().enumerate() {
            // Summed anew without the record: total - share would leave rounding where an exact zero belongs.
            let rest: f64 = shares[..index].iter().sum::<f64>() + shares[index + 1..].iter().sum::<f64>();
            let decisive = u64::from(sign(rest, coin) != released);
            decisive_here += decisive;
            let tally = self.records.entry(id).or_default();
            tally.0 += 1;
            tally.1 += decisive;
        }
        self.bits.push((ids.len() as u64, decisive_here));
        Ok(())
    }

    /// Membership information of one decisive record in one bit, nats, when its presence changes the bit with
    /// probability `d`.
    fn information(&self, d: f64) -> f64 {
        let other = self.flip + d * (1.0 - 2.0 * self.flip);
        (entropy(0.5 * (self.flip + other)) - 0.5 * (entropy(self.flip) + entropy(other))).max(0.0)
    }

    /// The reading so far.
    pub fn read(&self) -> Leakage {
        let bits = self.bits.len() as u64;
        let drawn: u64 = self.bits.iter().map(|b| b.0).sum();
        let decisive: u64 = self.bits.iter().map(|b| b.1).sum();
        let flip_rate = if drawn == 0 { 0.0 } else { decisive as f64 / drawn as f64 };
        let flip_rate_ci = self.flip_rate_interval(drawn, flip_rate);
        let known = self.rate * bits as f64 * self.information(1.0);
        let secret = bits as f64 * self.information(self.rate);
        // Of equals the first, so that the same run names the same record.
        let most =
            self.records.iter().map(|(&id, tally)| (id, tally.1)).max_by_key(|&(id, n)| (n, std::cmp::Reverse(id)));
        Leakage {
            bits,
            drawn,
            flip_rate,
            flip_rate_ci,
            bits_with_a_decisive_record: self.bits.iter().filter(|b| b.1 > 0).count() as f64 / bits.max(1) as f64,
            charged_nats: self.rate * bits as f64 * (LN_2 - entropy(self.flip)),
            leaked_nats_batch_known: known * flip_rate,
            leaked_nats_batch_known_ci: flip_rate_ci.map(|rate| known * rate),
            leaked_nats_batch_secret: secret * flip_rate,
            most_decisive: most.filter(|&(_, n)| n > 0),
            most_decisive_nats: most.map_or(0.0, |(_, n)| n as f64 * self.information(1.0)),
        }
    }

    /// Clopper-Pearson with the effective sample size `p (1-p) / var`, the variance being that of a ratio over bits:
    /// records of one batch stand or fall together, so there may be fewer independent observations than draws, but at
    /// least about one a bit.
    fn flip_rate_interval(&self, drawn: u64, rate: f64) -> [f64; 2] {
        if drawn == 0 {
            return [0.0, 1.0];
        }
        let k = self.bits.len() as f64;
        let mean_drawn = drawn as f64 / k;
        let residuals: Vec<f64> = self.bits.iter().map(|&(n, d)| (d as f64 - rate * n as f64) / mean_drawn).collect();
        let variance = mean_variance(&residuals).1 / k;
        let binomial = rate * (1.0 - rate);
        let effective = if variance > 0.0 { binomial / variance } else { k };
        let effective = effective.clamp(k.min(drawn as f64), drawn as f64);
        [proportion_lower(rate * effective, effective, 0.025), proportion_upper(rate * effective, effective, 0.025)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::stats::SeededRng;

    #[test]
    fn decisive_records_by_hand() {
        let mut meter = Meter::new(0.1, 0.0).unwrap();
        meter.add(&[1, 2, 3], &[1.0, -0.5, 0.25], true).unwrap(); // S = 0.75: only record 1 turns it.
        meter.add(&[2, 4], &[2.0, 3.0], true).unwrap(); // nobody alone
        meter.add(&[5], &[-1.0], true).unwrap(); // without it the coin says +: decisive
        meter.add(&[5], &[-1.0], false).unwrap(); // the coin agrees: not decisive
        meter.add(&[], &[], true).unwrap(); // an empty batch releases its coin
        meter.add(&[6, 7, 8], &[0.1, 0.2, -0.3], true).unwrap();
        let reading = meter.read();
        assert_eq!(meter.bits[..5], [(3, 1), (2, 0), (1, 1), (1, 0), (0, 0)]);
        assert_eq!((reading.bits, reading.drawn), (6, 10));
        assert!((reading.charged_nats - 0.6 * LN_2).abs() < 1e-12);
        assert!((reading.leaked_nats_batch_known - reading.flip_rate * reading.charged_nats).abs() < 1e-12);
        assert_eq!(reading.most_decisive, Some((1, 1)));
        assert!(meter.add(&[1], &[], true).is_err() && meter.add(&[1], &[f64::NAN], true).is_err());
    }

    #[test]
    fn a_batch_of_one_leaks_half_of_what_is_charged() {
        // One record a bit: it is decisive when its sign differs from the coin's.
        let mut meter = Meter::new(0.01, 0.0).unwrap();
        let mut rng = SeededRng::new(3);
        for step in 0..4000 {
            meter.add(&[step], &[rng.normal()], rng.below(2) == 0).unwrap();
        }
        let reading = meter.read();
        assert!(reading.flip_rate_ci[0] < 0.5 && 0.5 < reading.flip_rate_ci[1], "{reading:?}");
        assert!(reading.leaked_nats_batch_secret < reading.leaked_nats_batch_known);
    }

    #[test]
    fn flip_rate_of_gaussian_shares_matches_its_integral_and_is_covered() {
        // Shares iid normal, B = 25: P[sign(S) != sign(S - a)] = angle / pi with cos(angle) = sqrt(24/25).
        let want = (24f64 / 25.0).sqrt().acos() / std::f64::consts::PI;
        let mut rng = SeededRng::new(11);
        let ids: Vec<u64> = (0..25).collect();
        let (mut covered, mut mean) = (0, 0.0);
        for _ in 0..200 {
            let mut meter = Meter::new(0.005, 0.0).unwrap();
            for _ in 0..150 {
                let shares: Vec<f64> = ids.iter().map(|_| rng.normal()).collect();
                meter.add(&ids, &shares, true).unwrap();
            }
            let reading = meter.read();
            covered += u32::from(reading.flip_rate_ci[0] <= want && want <= reading.flip_rate_ci[1]);
            mean += reading.flip_rate / 200.0;
        }
        // One reading's deviation is about 0.01, the mean's 0.0007.
        assert!((mean - want).abs() < 0.0022, "{mean} against {want}");
        assert!((184..=200).contains(&covered), "{covered} of 200 intervals");
    }

    #[test]
    fn information_is_that_of_the_simulated_channel() {
        // The joint table of (coin, released bit) for a decisive record, by enumeration.
        for (rate, flip) in [(0.3, 0.0), (0.3, 0.1), (0.005, 0.02)] {
            let meter = Meter::new(rate, flip).unwrap();
            let other_if_member = rate * (1.0 - flip) + (1.0 - rate) * flip;
            let joint = [[0.5 * (1.0 - flip), 0.5 * flip], [0.5 * (1.0 - other_if_member), 0.5 * other_if_member]];
            let mut information = 0.0;
            for row in joint {
                for (symbol, p) in row.into_iter().enumerate() {
                    if p > 0.0 {
                        information += p * (p / (0.5 * (joint[0][symbol] + joint[1][symbol]))).ln();
                    }
                }
            }
            assert!((meter.information(rate) - information).abs() < 1e-12);
            assert!(meter.information(rate) <= rate * (LN_2 - entropy(flip)) + 1e-15, "never above the charge");
        }
        assert!((Meter::new(0.2, 0.0).unwrap().information(1.0) - LN_2).abs() < 1e-12);
    }
}
