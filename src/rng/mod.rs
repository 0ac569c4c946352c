//! Two kinds of randomness that must never mix.
//!
//! **Public** randomness ([`public`], and on it [`mask`] and [`direction`]) depends on `--seed`, step and group alone. It
//! is known to everyone, part of the transcript, and drawn before any data is touched. Every word has an address, so any
//! part of it can be had at any time, on any device.
//!
//! **Secret** randomness ([`secret`]) decides which records are sampled, what noise is added and which bits are flipped. Its key
//! comes from the operating system and is never published.
//!
//! Both are ChaCha key streams of `rand_chacha`. What is built on them (uniforms, Gaussians, signs) is written in
//! [`math`] with IEEE additions, multiplications, divisions and square roots only, so that the same words give the same bytes on
//! every machine.

pub mod direction;
pub mod gauss;
pub mod mask;
pub mod math;
pub mod public;
pub mod pullback;
pub mod secret;
pub mod sketch;

pub use direction::{Direction, DirectionStream};
pub use mask::{Mask, coin, count_fires, plan_fires};
pub use public::{Domain, PublicStream};
pub use pullback::Pullback;
pub(crate) use secret::{Place, ShardKey};
pub use secret::{Secret, SecretDomain, SecretStream};
pub use sketch::{SketchKind, StepSketch};

/// `P(word < threshold) = p` for a uniform 64-bit word; `None` stands for certainty, which no word reaches.
///
/// Exact for every `p` in [0, 1): scaling by 2^64 loses nothing and the cut-off is below 2^-64.
pub(crate) fn threshold(p: f64) -> Option<u64> {
    (p < 1.0).then_some((p * 18_446_744_073_709_551_616.0) as u64)
}

/// Uniform on `0..bound` from 64-bit words, without bias: the high half of `word * bound`, words in the short last
/// interval rejected (Lemire). `bound` must not be 0.
pub(crate) fn below(bound: u64, mut word: impl FnMut() -> u64) -> u64 {
    let reject = bound.wrapping_neg() % bound;
    loop {
        let product = u128::from(word()) * u128::from(bound);
        if product as u64 >= reject {
            return (product >> 64) as u64;
        }
    }
}

/// Put `items` into a random order, each equally likely (Fisher and Yates, from the end), by 64-bit words.
pub(crate) fn shuffle<T>(items: &mut [T], mut word: impl FnMut() -> u64) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(i as u64 + 1, &mut word) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_is_the_share_of_words() {
        assert_eq!(threshold(0.0), Some(0));
        assert_eq!(threshold(0.5), Some(1 << 63));
        assert_eq!(threshold(0.25 + 2f64.powi(-40)), Some((1 << 62) + (1 << 24)));
        assert_eq!(threshold(1.0), None);
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let mut count = [0usize; 7];
        for _ in 0..70_000 {
            count[below(7, &mut next) as usize] += 1;
        }
        // Six standard deviations of Binomial(70,000, 1/7).
        assert!(
            count.iter().all(|&c| (c as f64 - 10_000.0).abs() < 6.0 * (70_000.0f64 * 6.0 / 49.0).sqrt()),
            "{count:?}"
        );
        // All six orders of three, evenly.
        let mut orders = std::collections::HashMap::<[u8; 3], usize>::new();
        for _ in 0..60_000 {
            let mut three = [0, 1, 2];
            shuffle(&mut three, &mut next);
            *orders.entry(three).or_default() += 1;
        }
        let deviation = 6.0 * (60_000.0f64 * 5.0 / 36.0).sqrt();
        assert!(orders.len() == 6 && orders.values().all(|&c| (c as f64 - 10_000.0).abs() < deviation), "{orders:?}");
        // A word in the short last interval must be drawn again: 2^64 = 1 mod 3, so product-low 0 is refused.
        let mut words = [0u64, u64::MAX].into_iter();
        assert_eq!(below(3, || words.next().unwrap()), 2);
    }
}
