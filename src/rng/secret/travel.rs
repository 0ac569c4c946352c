//! The one way in which a key leaves its process: to the other ranks of the same run ([`crate::ranks`]), which are one holder of the records.

use super::Secret;
use crate::error::{Error, Result};
use std::sync::atomic::AtomicBool;

impl Secret {
    /// The key, and whether it came from a seed: for the other ranks of this run, and nobody else.
    pub(crate) fn to_ranks(&self) -> [u8; 33] {
        let mut bytes = [0; 33];
        bytes[..32].copy_from_slice(&self.key);
        bytes[32] = u8::from(self.insecure);
        bytes
    }

    /// What [`Secret::to_ranks`] sent.
    pub(crate) fn from_ranks(bytes: &[u8]) -> Result<Self> {
        match (bytes.first_chunk(), bytes) {
            (Some(&key), [.., insecure @ (0 | 1)]) if bytes.len() == 33 => {
                Ok(Self { key, insecure: *insecure == 1, claimed: AtomicBool::new(false) })
            }
            _ => Err(Error::Rank(format!("the first rank sent {} bytes as a key of 33", bytes.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SecretDomain;

    #[test]
    fn what_arrives_draws_the_same_words() {
        for secret in [Secret::insecure(3), Secret::from_system().unwrap()] {
            let there = Secret::from_ranks(&secret.to_ranks()).unwrap();
            assert_eq!(there.is_insecure(), secret.is_insecure());
            let draw = |s: &Secret| s.stream(SecretDomain::Noise, 5, 7).next_u64();
            assert_eq!(draw(&there), draw(&secret));
        }
        for broken in [&[0u8; 32][..], &[0; 34], &[], &[2; 33]] {
            assert!(Secret::from_ranks(broken).is_err());
        }
    }
}
