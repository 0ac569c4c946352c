//! What a step's exchange costs: bytes and messages of a rank, and the time that a network of given bandwidth and latency takes for them.
//!
//! With R ranks, and everyone's word of 32 bytes first (see [`crate::ranks`]), a rank receives in a step
//!
//! ```text
//! FERRET          8 f m (R - 1) / R        bytes: f fired groups, m micro-batches
//! FERRET-k        8 k (R - 1)              bytes: k sums
//! whole updates   2 x 4 P (R - 1) / R      bytes: P tuned parameters, summed piece by piece, then given to all
//! ```
//! and waits ceil(log2 R) times the latency for a gather, R - 1 times for a piece of a sum. The prediction is messages x latency + bytes / bandwidth: nothing overlaps, and nobody else uses the
//! network.

use crate::error::{Error, Result, quoted};
use std::str::FromStr;

/// Numbers of one rank's part of a sum that travel at once: 1 MiB.
pub const PIECE: usize = 1 << 18;

/// Bytes of a rank's word.
const WORD: f64 = 32.0;

/// What a rank receives in a step, and how many messages it waits for one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: f64,
    /// Messages.
    pub messages: f64,
}

impl Traffic {
    /// Of `numbers` of 8 bytes, which the ranks have in equal parts and all get: FERRET.
    pub fn parts(ranks: u64, numbers: f64) -> Self {
        let others = (ranks - 1) as f64;
        Self::words(ranks).and(Self { bytes: 8.0 * numbers * others / ranks as f64, messages: rounds(ranks) })
    }

    /// Of `numbers` of 8 bytes that every rank has, and all get: FERRET-k.
    pub fn sums(ranks: u64, numbers: f64) -> Self {
        Self::parts(ranks, numbers * ranks as f64)
    }

    /// Of a sum of `parameters` of 4 bytes: whole updates.
    pub fn whole(ranks: u64, parameters: f64) -> Self {
        let others = (ranks - 1) as f64;
        let pieces = if ranks == 1 { 0.0 } else { (parameters / (PIECE as f64 * ranks as f64)).ceil() };
        Self::words(ranks).and(Self {
            bytes: 2.0 * 4.0 * parameters * others / ranks as f64,
            messages: pieces * (others + rounds(ranks)),
        })
    }

    fn words(ranks: u64) -> Self {
        Self { bytes: WORD * (ranks - 1) as f64, messages: rounds(ranks) }
    }

    fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, messages: self.messages + other.messages }
    }

    /// Seconds on `network`.
    pub fn seconds(&self, network: Network) -> f64 {
        self.messages * network.latency + self.bytes / network.bandwidth
    }
}

/// Messages one after the other until everyone has everything: ceil(log2 R).
fn rounds(ranks: u64) -> f64 {
    f64::from(ranks.next_power_of_two().trailing_zeros())
}

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Bytes a second, in each direction, of each rank.
    pub bandwidth: f64,
    /// Seconds until a message arrives.
    pub latency: f64,
}

impl FromStr for Network {
    type Err = Error;

    /// `10gbit,50us`: bits a second, and the time of a message.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!(
                "a network is bits a second and the time of a message, like 10gbit,50us (kbit, mbit, gbit; ns, us, ms, s), not {}",
                quoted(text)
            ))
        };
        let number = |text: &str, units: &[(&str, f64)]| -> Option<f64> {
            let (digits, unit) = text.trim().split_at(text.trim().find(|c: char| c.is_ascii_alphabetic())?);
            let scale = units.iter().find(|(name, _)| *name == unit)?.1;
            digits.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0).map(|x| x * scale)
        };
        let (bits, time) = text.split_once(',').ok_or_else(wrong)?;
        let bits = number(bits, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]).ok_or_else(wrong)?;
        let latency = number(time, &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)]).ok_or_else(wrong)?;
        Ok(Self { bandwidth: bits / 8.0, latency })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_nonsense_is_not() {
        assert_eq!("10gbit,50us".parse::<Network>().unwrap(), Network { bandwidth: 1.25e9, latency: 50.0 * 1e-6 });
        assert_eq!(" 2.5 mbit, 3ms".parse::<Network>().unwrap(), Network { bandwidth: 312_500.0, latency: 3.0 * 1e-3 });
        for wrong in [
            "",
            "10gbit",
            "10,50us",
            "gbit,us",
            "10gbit,50",
            "-1gbit,50us",
            "0gbit,1us",
            "infgbit,1us",
            "1tbit,1us",
            "1gbit;1us",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    /// By counting: a step of 8 ranks, 6 groups and 10 micro-batches; 256 sums; GPT-2's 124 million parameters.
    #[test]
    fn traffic_is_what_is_sent() {
        assert_eq!(Traffic::parts(1, 60.0), Traffic { bytes: 0.0, messages: 0.0 });
        assert_eq!(Traffic::parts(8, 64.0), Traffic { bytes: 7.0 * 32.0 + 56.0 * 8.0, messages: 6.0 });
        assert_eq!(Traffic::sums(5, 256.0), Traffic { bytes: 4.0 * (32.0 + 8.0 * 256.0), messages: 6.0 });
        let gpt2 = Traffic::whole(8, 124e6);
        assert!((gpt2.bytes - 868e6).abs() < 1e3 && gpt2.messages == 3.0 + 60.0 * 10.0, "{gpt2:?}");
        assert_eq!(Traffic::whole(1, 124e6).messages, 0.0);
        let network: Network = "10gbit,50us".parse().unwrap();
        assert!((gpt2.seconds(network) - (868e6 / 1.25e9 + 603.0 * 50e-6)).abs() < 1e-6);
    }
}
