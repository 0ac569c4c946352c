//! Files that zstd packed: frames one after the other, and frames that hold nothing of the text.

use crate::guard;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use std::io::Read;

/// What `packed` unfolds to, or the first bytes of it, one more than `most`; none where it is not whole, or wants a window above 128 MiB.
pub(super) fn unfold(packed: &[u8], most: u64) -> Option<Vec<u8>> {
    guard::call(|| frames(packed, most)).flatten()
}

fn frames(mut rest: &[u8], most: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while !rest.is_empty() && out.len() as u64 <= most {
        let mut frame = match StreamingDecoder::new(&mut rest) {
            Ok(frame) => frame,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                rest = rest.get(length as usize..)?;
                continue;
            }
            Err(_) => return None,
        };
        let left = most + 1 - out.len() as u64;
        let read = frame.by_ref().take(left).read_to_end(&mut out).ok()?;
        let whole = frame.decoder.is_finished();
        let (told, found) = (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
        if (read as u64) < left && (!whole || told.is_some_and(|told| Some(told) != found)) {
            return None;
        }
    }
    Some(out)
}
