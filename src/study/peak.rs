//! The most memory that this process had, where the system tells.

use std::fs;

/// Count the peak from now on.
pub fn forget() {
    give_back();
    // 5 resets the peak and nothing else; where that is not allowed, an older peak stays, which is not below the new one.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes that were resident at the peak.
pub fn bytes() -> Option<u64> {
    kibibytes("VmHWM:")?.checked_mul(1024)
}

fn kibibytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Return to the system what the allocator keeps of freed memory: it is resident, and would count towards a peak that has no use for it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: glibc's, of this signature; it locks the arenas itself and touches free memory only.
    unsafe { malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Rows of a matrix, small enough for the heap, held down by one that is alive at its end: the heap cannot shrink by itself.
    #[test]
    fn freed_memory_is_no_part_of_the_next_peak() {
        let mut rows: Vec<Vec<u8>> = (0..4096).map(|_| vec![1; 64 << 10]).collect();
        rows.drain(..4095);
        let kept = kibibytes("VmRSS:").unwrap();
        forget();
        let (left, peak) = (kibibytes("VmRSS:").unwrap(), bytes().unwrap() / 1024);
        // Other tests run beside this one: their memory comes and goes, but is not 256 MiB.
        assert!(left + (128 << 10) < kept, "{left} KiB of {kept} stay");
        assert!(peak < kept, "{peak} KiB, of which {kept} were there before");
        drop(rows);
    }
}
