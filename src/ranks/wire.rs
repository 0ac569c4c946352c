//! What a step's exchange costs: bytes and messages of a rank, and the time that a network of given bandwidth and latency takes for them.
//!
//! With R ranks, and everyone's word of 32 bytes first (see [`crate::ranks`]), a rank receives in a step
//!
//! ```text
//! FERRET          8 f m (R - 1) / R            bytes: f fired groups, m micro-batches
//! a sum           2 w n (R - 1) / R            bytes: n numbers of w bytes, each added up by one rank, then given to all
//! a small sum     w n (R - 1)                  bytes, where that is at most 64 KiB: all numbers to all ranks, each of which adds them up
//! ```
//! FERRET-k's sum is of k numbers of 8 bytes, that of a whole update of P tuned parameters of 4.
//!
//! A rank waits for the words, for FERRET's numbers, and for both halves of every piece of a sum: ceil(log2 R) messages each, one after the other. A message beyond 64 KiB is three: MPI announces it,
//! waits for leave to send, and sends it. Open MPI sends to all at once where others go in rounds, so many ranks may be quicker than that. The prediction is messages x latency + bytes / bandwidth: nothing overlaps,
//! nobody else uses the network, and TCP's window is open, which takes some round trips more at the start of a piece where the latency is long.

use crate::error::{Error, Result, quoted};
use std::str::FromStr;

/// The most bytes that MPI sends without asking: Open MPI's default over TCP. Also the most that a rank receives of a sum that goes to all at once: on
/// 10 Gbit/s they take as long as a message.
const UNASKED: usize = 1 << 16;

/// Messages of a message that asks first.
const ASKED: f64 = 3.0;

/// The most bytes of a piece of a sum that one rank sends to another, and that it sends to all others together.
const MESSAGE: usize = 1 << 22;
const BUFFER: usize = 1 << 26;

/// Bytes of a rank's word.
const WORD: usize = 32;

/// Whether a sum of so many bytes goes to all ranks as it is.
pub fn goes_to_all(ranks: usize, bytes: usize) -> bool {
    bytes.saturating_mul(ranks - 1) <= UNASKED
}

/// How a sum is cut where one rank adds up one part of it: into `count` pieces, each of them into a part for every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Pieces, one after the other.
    pub count: usize,
    /// Numbers of a rank's part of a piece. The parts of the last piece may be empty in part.
    pub part: usize,
}

impl Pieces {
    /// Of `total` numbers of `width` bytes: as few pieces as the bounds allow, all as long, so that hardly anything travels that is no number of the sum. A rank
    /// holds two pieces at a time, 128 MiB at most whatever the number of ranks.
    pub fn new(ranks: usize, total: usize, width: usize) -> Self {
        let most = ((BUFFER / ranks).min(MESSAGE) / width).max(1);
        let count = total.div_ceil(most * ranks);
        Self { count, part: total.div_ceil(count.max(1) * ranks) }
    }
}

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
        Self::exchange(ranks, WORD as f64).and(Self::exchange(ranks, 8.0 * numbers / ranks as f64))
    }

    /// Of the sums of `numbers` of `width` bytes, of which every rank has its own: FERRET-k, and whole updates.
    pub fn sums(ranks: u64, numbers: u64, width: usize) -> Self {
        let (size, total) = (ranks as usize, numbers as usize);
        let words = Self::exchange(ranks, WORD as f64);
        if goes_to_all(size, width * total) {
            return words.and(Self::exchange(ranks, (width * total) as f64));
        }
        let Pieces { count, part } = Pieces::new(size, total, width);
        let half = Self::exchange(ranks, (width * part) as f64);
        let pieces = 2.0 * count as f64;
        words.and(Self { bytes: pieces * half.bytes, messages: pieces * half.messages })
    }

    /// Of one message of so many bytes from every rank to every other.
    fn exchange(ranks: u64, bytes: f64) -> Self {
        // Until everyone has everything: ceil(log2 R).
        let rounds = f64::from(ranks.next_power_of_two().trailing_zeros());
        let asked = if bytes > UNASKED as f64 { ASKED } else { 1.0 };
        Self { bytes: bytes * (ranks - 1) as f64, messages: rounds * asked }
    }

    fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, messages: self.messages + other.messages }
    }

    /// Seconds on `network`.
    pub fn seconds(&self, network: Network) -> f64 {
        self.messages * network.latency + self.bytes / network.bandwidth
    }
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

    /// By counting: a step of 8 ranks, 6 groups and 10 micro-batches; sums of sketches; GPT-2's 124 million parameters.
    #[test]
    fn traffic_is_what_is_sent() {
        assert_eq!(Traffic::parts(1, 60.0), Traffic { bytes: 0.0, messages: 0.0 });
        assert_eq!(Traffic::parts(8, 64.0), Traffic { bytes: 7.0 * 32.0 + 56.0 * 8.0, messages: 6.0 });
        assert_eq!(Traffic::sums(5, 256, 8), Traffic { bytes: 4.0 * (32.0 + 8.0 * 256.0), messages: 6.0 });
        // 65,536 bytes go to one other rank as they are, one number more does not; then each adds up half, in messages that are short.
        assert_eq!(Traffic::sums(2, 8192, 8), Traffic { bytes: 32.0 + 65536.0, messages: 2.0 });
        assert_eq!(Traffic::sums(2, 8193, 8), Traffic { bytes: 32.0 + 2.0 * 8.0 * 4097.0, messages: 3.0 });
        // The square of a batch of 4096: what a rank receives hardly grows with the number of ranks.
        let many = Traffic::sums(512, 1 << 24, 8);
        assert!((many.bytes - 2.0 * 8.0 * f64::from(1 << 24)).abs() < 2e6, "{many:?}");
        let gpt2 = Traffic::sums(8, 124_000_000, 4);
        assert!((gpt2.bytes - 868e6).abs() < 1e3 && gpt2.messages == 3.0 + 15.0 * 2.0 * 9.0, "{gpt2:?}");
        assert_eq!(Traffic::sums(1, 124_000_000, 4).messages, 0.0);
        let network: Network = "10gbit,50us".parse().unwrap();
        assert!((gpt2.seconds(network) - (868e6 / 1.25e9 + 273.0 * 50e-6)).abs() < 1e-6);
    }

    /// Every number is in one part, few places are left over, and nothing grows with the number of ranks.
    #[test]
    fn pieces_hold_a_sum_and_stay_within_their_bounds() {
        for ranks in [2, 3, 8, 64, 512, 100_000] {
            for (total, width) in [(1, 4), (8193, 8), (642_544, 4), (124_439_808, 4), (1 << 24, 8)] {
                let Pieces { count, part } = Pieces::new(ranks, total, width);
                assert!(count * part * ranks >= total && (count - 1) * part * ranks < total);
                assert!(count * part * ranks < total + count * ranks, "{ranks} ranks, {total} numbers");
                assert!(part * width <= MESSAGE && part * ranks * width <= BUFFER);
            }
        }
        assert_eq!(Pieces::new(3, 0, 4).part, 0);
    }
}
