//! Public words by address: (seed, domain, step, group, word).
//!
//! The words are ChaCha with 8 rounds, the reduced cipher that `rand_chacha` calls `ChaCha8Rng`: nothing here is secret, so the
//! margin of 20 rounds would buy nothing. The sixteen 32-bit words of a block's input are
//!
//! ```text
//! word   0..4   "expa" "nd 3" "2-by" "te k"   the cipher's constant
//! word   4, 5   seed, low half first
//! word   6      domain
//! word   7      0
//! word   8..12  "ferr" "et p" "ubli" "c v1"   little-endian, the format's name
//! word  12, 13  number of the block, low half first
//! word  14      group
//! word  15      step
//! ```
//!
//! and its sixteen output words are words `16 k .. 16 k + 16` of the stream, k the block's number. Seed, domain, step, group and block
//! each have words of their own in the input, so two addresses are never the same block: no word is used twice.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a public word is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Domain {
    /// Which groups fire under the Bernoulli mask; words `2 g, 2 g + 1` of the step's stream (group 0) decide group g.
    Mask = 1,
    /// Which slots the exact mask draws: one stream a run (step 0, group 0).
    Slots = 2,
    /// Directions: one stream a (step, group).
    Direction = 3,
    /// Coins for ties: bit 31 of word g of the step's stream (group 0); one bit an element in the stream of group 1 + tensor for signs of
    /// whole gradients.
    Coin = 4,
    /// Random rounding of quantised gradients: one stream a (step, tensor), one word an element.
    Rounding = 5,
    /// Buckets and signs of sketches: one stream a (step, tensor), laid out in [`super::sketch`].
    Sketch = 6,
    /// Fresh adapters: one stream a tensor (step 0, the tensor's number as group), one word a number.
    Adapter = 7,
}

/// One stream of public words: everything of the address but the word's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicStream {
    seed: u64,
    domain: Domain,
    step: u32,
    group: u32,
}

impl PublicStream {
    /// The stream at this address.
    pub fn new(seed: u64, domain: Domain, step: u32, group: u32) -> Self {
        Self { seed, domain, step, group }
    }

    /// Words 4 to 15 of the input of block 0: the cipher's key, eight words; the counter, group and step.
    pub fn input(&self) -> [u32; 12] {
        let name = |i: usize| u32::from_le_bytes(*b"ferret public v1".as_chunks().0.get(i).expect("four chunks"));
        let (low, high) = (self.seed as u32, (self.seed >> 32) as u32);
        [low, high, self.domain as u32, 0, name(0), name(1), name(2), name(3), 0, 0, self.group, self.step]
    }

    /// The generator at word `word` of the stream.
    pub fn at(&self, word: u64) -> ChaCha8Rng {
        let mut bytes = [0; 32];
        for (to, k) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.input()) {
            *to = k.to_le_bytes();
        }
        let mut rng = ChaCha8Rng::from_seed(bytes);
        rng.set_stream(u64::from(self.step) << 32 | u64::from(self.group));
        rng.set_word_pos(u128::from(word));
        rng
    }

    /// Words `word ..` of the stream, as many as `out` holds.
    pub fn words(&self, word: u64, out: &mut [u32]) {
        fill_words(&mut self.at(word), out);
    }
}

/// The generator's next words, in order, whatever the machine's byte order.
pub(crate) fn fill_words(rng: &mut impl RngCore, out: &mut [u32]) {
    rng.fill_bytes(bytemuck::cast_slice_mut(out));
    if cfg!(target_endian = "big") {
        out.iter_mut().for_each(|w| *w = w.swap_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The cipher from its definition, on the block input that the module documents.
    fn chacha8_block(stream: &PublicStream, block: u64) -> [u32; 16] {
        let mut input = [0u32; 16];
        for (w, c) in input.iter_mut().zip([b"expa", b"nd 3", b"2-by", b"te k"]) {
            *w = u32::from_le_bytes(*c);
        }
        input[4..].copy_from_slice(&stream.input());
        input[12..14].copy_from_slice(&[block as u32, (block >> 32) as u32]);
        let mut x = input;
        let mut quarter = |a: usize, b: usize, c: usize, d: usize| {
            x[a] = x[a].wrapping_add(x[b]);
            x[d] = (x[d] ^ x[a]).rotate_left(16);
            x[c] = x[c].wrapping_add(x[d]);
            x[b] = (x[b] ^ x[c]).rotate_left(12);
            x[a] = x[a].wrapping_add(x[b]);
            x[d] = (x[d] ^ x[a]).rotate_left(8);
            x[c] = x[c].wrapping_add(x[d]);
            x[b] = (x[b] ^ x[c]).rotate_left(7);
        };
        for _ in 0..4 {
            for i in 0..4 {
                quarter(i, 4 + i, 8 + i, 12 + i);
            }
            for i in 0..4 {
                quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
            }
        }
        std::array::from_fn(|i| x[i].wrapping_add(input[i]))
    }

    #[test]
    fn the_block_input_is_as_documented() {
        let stream = PublicStream::new(0x0123_4567_89ab_cdef, Domain::Direction, 7, 9);
        let mut words = [0; 48];
        stream.words(32, &mut words);
        for k in 0..3 {
            assert_eq!(words[16 * k..16 * k + 16], chacha8_block(&stream, 2 + k as u64));
        }
        let far = (1u64 << 32) + 5;
        stream.words(16 * far, &mut words[..16]);
        assert_eq!(words[..16], chacha8_block(&stream, far));
    }

    #[test]
    fn any_word_can_be_had_at_any_time() {
        let stream = PublicStream::new(1, Domain::Mask, 2, 3);
        let mut all = [0; 300];
        stream.words(0, &mut all);
        for (start, len) in [(0, 1), (15, 2), (17, 64), (63, 130), (299, 1)] {
            let mut part = vec![0; len];
            stream.words(start as u64, &mut part);
            assert_eq!(part, all[start..start + len]);
        }
    }

    #[test]
    fn no_word_is_used_twice() {
        // Blocks are equal exactly when their inputs are; 256 of 512 bits suffice to tell the outputs of two inputs apart.
        let mut seen = HashSet::new();
        let mut streams = 0;
        for seed in [0, 1, 1 << 32] {
            for domain in
                [Domain::Mask, Domain::Slots, Domain::Direction, Domain::Coin, Domain::Rounding, Domain::Sketch]
            {
                for step in [0, 1, 2, 3, 255] {
                    for group in [0, 1, 2, 3, 255] {
                        let mut words = [0; 64];
                        PublicStream::new(seed, domain, step, group).words(0, &mut words);
                        for block in words.as_chunks::<16>().0 {
                            assert!(seen.insert(<[u32; 8]>::try_from(&block[..8]).unwrap()));
                        }
                        streams += 1;
                    }
                }
            }
        }
        assert_eq!(seen.len(), 4 * streams);
    }

    #[test]
    fn pinned() {
        let mut words = [0; 4];
        PublicStream::new(42, Domain::Direction, 3, 5).words(0, &mut words);
        assert_eq!(words, [818_317_411, 1_164_845_925, 2_159_061_190, 1_844_459_753]);
    }
}
