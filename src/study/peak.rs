//! The most memory that this process had, where the system tells.

use std::fs;

/// Count the peak from now on.
pub fn forget() {
    // 5 resets the peak and nothing else; where that is not allowed, an older peak stays, which is not below the new one.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that were resident at the peak.
pub fn bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}
