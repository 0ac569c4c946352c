//! Device buffers that are used again.
//!
//! Sizes are rounded up to classes, and a buffer serves only its own class: a step that asks for the same sizes in the same order
//! as the one before finds every buffer waiting, and allocates nothing.

use std::collections::HashMap;

/// Buffers waiting, by size class.
#[derive(Default)]
pub(super) struct Pool {
    free: HashMap<u64, Vec<wgpu::Buffer>>,
    /// Bytes that wait, and bytes that exist.
    waiting: u64,
    total: u64,
    /// Buffers ever made.
    pub(super) made: u64,
}

/// Waiting memory beyond this and beyond what is in use is given back before more is asked for.
const SLACK: u64 = 256 << 20;

/// The class of a size: the next of 4, 5, 6, 7 times a power of two, at least 256 bytes, a multiple of 256 above 1 KiB.
pub(super) fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(256);
    let quarter = (bytes.next_power_of_two() / 8).max(64);
    bytes.next_multiple_of(quarter).next_multiple_of(256)
}

impl Pool {
    /// A waiting buffer of this class, or one that `make` makes. The content is stale.
    pub(super) fn take(&mut self, class: u64, make: impl FnOnce(u64) -> wgpu::Buffer) -> wgpu::Buffer {
        if let Some(buffer) = self.free.get_mut(&class).and_then(Vec::pop) {
            self.waiting -= class;
            return buffer;
        }
        if self.waiting > SLACK.max(self.total - self.waiting) {
            for (class, buffers) in self.free.drain() {
                self.total -= class * buffers.len() as u64;
            }
            self.waiting = 0;
        }
        self.total += class;
        self.made += 1;
        make(class)
    }

    /// Give a buffer back.
    pub(super) fn put(&mut self, buffer: wgpu::Buffer) {
        self.waiting += buffer.size();
        self.free.entry(buffer.size()).or_default().push(buffer);
    }

    /// Bytes that exist, waiting or in use.
    pub(super) fn bytes(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn classes_fit_and_waste_little() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, 154_389_504, 5_000_000_000]) {
            let class = class(bytes);
            assert!(class >= bytes && class.is_multiple_of(256));
            assert!(class <= bytes.max(1024) * 5 / 4 + 256, "{bytes} takes {class}");
            assert_eq!(super::class(class), class, "{bytes}");
        }
    }
}
