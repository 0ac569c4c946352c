//! Bits and whole numbers as text: base64 (RFC 4648, with padding), in one form only, so that two transcripts of a run are the same bytes.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Four characters for three bytes.
fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, &b| word << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// The bytes that [`encode`] makes `text` from; the error is a sentence.
fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut value = [u8::MAX; 256];
    ALPHABET.iter().enumerate().for_each(|(i, &c)| value[usize::from(c)] = i as u8);
    let body = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 3);
    for four in body.as_bytes().chunks(4) {
        let mut word = 0u32;
        for &c in four {
            if value[usize::from(c)] == u8::MAX {
                return Err(format!("{:?} is no character of base64", char::from(c)));
            }
            word = word << 6 | u32::from(value[usize::from(c)]);
        }
        word <<= 6 * (4 - four.len());
        out.extend(&word.to_be_bytes()[1..four.len()]);
    }
    if encode(&out) != text {
        return Err("is no base64 as this program writes it: was it cut short?".into());
    }
    Ok(out)
}

/// Signs, eight a byte, the first in the lowest bit; 1 stands for plus.
pub(super) fn pack_signs(signs: &[i8]) -> String {
    pack_codes(&signs.iter().map(|&s| u8::from(s > 0)).collect::<Vec<_>>(), 1)
}

/// The `count` signs that [`pack_signs`] packed.
pub(super) fn unpack_signs(text: &str, count: u64) -> Result<Vec<i8>, String> {
    Ok(unpack_codes(text, count, 1)?.into_iter().map(|code| if code == 1 { 1 } else { -1 }).collect())
}

/// Codes of so many bits, one after the other, the first in the lowest bits.
pub(super) fn pack_codes(codes: &[u8], bits: u32) -> String {
    let mut bytes = vec![0u8; (codes.len() * bits as usize).div_ceil(8)];
    for (code, at) in codes.iter().zip((0..).step_by(bits as usize)) {
        (0..bits as usize).for_each(|i| bytes[(at + i) / 8] |= (code >> i & 1) << ((at + i) % 8));
    }
    encode(&bytes)
}

/// The `count` codes that [`pack_codes`] packed.
pub(super) fn unpack_codes(text: &str, count: u64, bits: u32) -> Result<Vec<u8>, String> {
    let bytes = decode(text)?;
    let expected = count.saturating_mul(bits.into()).div_ceil(8);
    if bytes.len() as u64 != expected {
        return Err(format!("holds {} bytes, expected {expected} for {count} of {bits} bits", bytes.len()));
    }
    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
    let end = count as usize * bits as usize;
    if (end..8 * bytes.len()).any(|at| bit(at) == 1) {
        return Err("has bits set after its last release".into());
    }
    let code = |at: usize| (0..bits as usize).fold(0, |code, i| code | bit(at + i) << i);
    Ok((0..end).step_by(bits as usize).map(code).collect())
}

/// Whole numbers, four bytes each, the lowest first.
pub(super) fn pack_numbers(numbers: &[i32]) -> String {
    encode(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
}

/// The `count` numbers that [`pack_numbers`] packed.
pub(super) fn unpack_numbers(text: &str, count: u64) -> Result<Vec<i32>, String> {
    let bytes = decode(text)?;
    if bytes.len() as u64 != count.saturating_mul(4) {
        return Err(format!("holds {} bytes, expected 4 for each of {count} numbers", bytes.len()));
    }
    Ok(bytes.as_chunks().0.iter().map(|four| i32::from_le_bytes(*four)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_own_examples() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        // One form only: no bits after the last byte, no padding too much or too little, nothing else.
        for bad in ["Zg=", "Zg", "Zh==", "Zm9=", "Zm9v=", "Zm9v====", "Z", "====", "Zm 9v", "Zm9v\n", "Zm-_", "é"] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn signs_and_numbers_come_back_and_nothing_else_does() {
        for count in [0, 1, 7, 8, 9, 1024, 1025] {
            let signs: Vec<i8> = (0..count).map(|i| if i * i % 7 < 3 { 1 } else { -1 }).collect();
            let text = pack_signs(&signs);
            assert_eq!(unpack_signs(&text, count as u64).unwrap(), signs);
            assert!(unpack_signs(&text, count as u64 + 8).is_err());
            let numbers: Vec<i32> = signs.iter().map(|&s| i32::from(s) * 1_234_567).chain([i32::MIN]).collect();
            assert_eq!(unpack_numbers(&pack_numbers(&numbers), count as u64 + 1).unwrap(), numbers);
            assert!(unpack_numbers(&pack_numbers(&numbers), count as u64).is_err());
        }
        // Nine signs, and a tenth bit that is set.
        assert!(unpack_signs(&encode(&[0, 2]), 9).unwrap_err().contains("after its last release"));
    }
}
