//! Damaged and hostile files, thousands of each kind, given to the library's readers: no panic, no allocation that the file's size does
//! not explain, and nothing accepted that means something else than it says.
//!
//! Everything is seeded: a failure names its case, and the same case fails again. Set `FERRET_FUZZ` to a number to run so many times as
//! many cases.

#[path = "../common/mod.rs"]
mod common;
mod mutate;
mod readers;
mod transcripts;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mutations of each kind of file, at least.
const CASES: u64 = 3200;

/// Bytes that all readers together may hold at once: inputs have some kilobytes, and the largest checkpoint here 200.
const MOST: usize = 96 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is handed on to the system's allocator, with the layouts it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Run `read` on every case of `make`; `read` says what is wrong with what it accepted. How many were accepted comes back.
fn fuzz<T>(
    what: &str,
    cases: u64,
    make: impl Fn(u64) -> T,
    show: impl Fn(&T) -> String,
    mut read: impl FnMut(&T) -> Result<bool, String>,
) -> u64 {
    let times: u64 = std::env::var("FERRET_FUZZ").ok().and_then(|t| t.parse().ok()).unwrap_or(1);
    let mut accepted = 0;
    for case in 0..cases * times {
        let input = make(case);
        let fail = |why: String| -> ! { panic!("{what}, case {case}: {why}\n{}", show(&input)) };
        match catch_unwind(AssertUnwindSafe(|| read(&input))) {
            Ok(Ok(taken)) => accepted += u64::from(taken),
            Ok(Err(why)) => fail(why),
            Err(_) => fail("a panic".into()),
        }
        let peak = PEAK.load(Ordering::Relaxed);
        if peak > MOST {
            fail(format!("{peak} bytes were held at once"));
        }
    }
    println!("{what}: {accepted} of {} accepted", cases * times);
    accepted
}

/// The bytes as text that a message can show.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(3000)]).into_owned();
    text.escape_debug().to_string()
}
