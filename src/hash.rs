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

/// The 32 bytes of what [`hex`] wrote; none where it is anything else.
pub fn bytes(hex: &str) -> Option<[u8; 32]> {
    let digits = hex.as_bytes();
    let digit = |d: u8| char::from(d).to_digit(16).map(|d| d as u8);
    let mut out = [0; 32];
    if digits.len() != 2 * out.len() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_example_comes_out() {
        assert_eq!(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hex(&[0, 9, 10, 0xff]), "00090aff");
        assert_eq!(hex(&bytes(&sha256("abc")).unwrap()), sha256("abc"));
        assert!(["", "0", &sha256("abc")[1..], &sha256("abc").replace('a', "x")].iter().all(|x| bytes(x).is_none()));
        assert_eq!(finish(Sha256::new().chain_update("a").chain_update("bc")), sha256("abc"));
    }
}
