//! SHA-256, and bytes in lower-case hexadecimal: the names of tensors, transcripts, scores and runs.

use sha2::{Digest, Sha256};

/// `bytes` in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|&b| [b >> 4, b & 15]).map(|d| char::from(DIGITS[usize::from(d)])).collect()
}

/// SHA-256 of `bytes`, in lower-case hexadecimal.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

/// What `hash` was fed, in lower-case hexadecimal.
pub fn finish(hash: Sha256) -> String {
    hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_example_comes_out() {
        assert_eq!(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hex(&[0, 9, 10, 0xff]), "00090aff");
        assert_eq!(finish(Sha256::new().chain_update("a").chain_update("bc")), sha256("abc"));
    }
}
