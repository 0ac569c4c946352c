//! The hash of examples: by tokens and by which of them count.

use super::Example;
use sha2::{Digest, Sha256};

/// Add `examples` to a hash.
pub fn add_examples(hash: &mut Sha256, examples: &[Example]) {
    for example in examples {
        hash.update((example.ids.len() as u64).to_le_bytes());
        example.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        example.learn.iter().for_each(|&l| hash.update([u8::from(l)]));
    }
}

/// SHA-256 of examples, in lower-case hexadecimal.
pub fn examples_sha256(examples: &[Example]) -> String {
    let mut hash = Sha256::new();
    add_examples(&mut hash, examples);
    crate::hash::finish(hash)
}
