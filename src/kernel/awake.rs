//! Keep every thread of the pool awake over a chain of small parallel ops.
//!
//! An idle rayon thread sleeps after some microseconds, and waking it takes as long as reading a megabyte: too long between the
//! products of one decoded token. Here the others stay and ask for work until the chain is over.

use rayon::Yield;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// Whether this thread is inside [`awake`] already, as its caller or asking for work.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sets a flag when dropped, whether by a return or by a panic.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Run `f` on a thread of the pool, and let none of the others sleep until it returns.
pub fn awake<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let others = rayon::current_num_threads() - 1;
    if others == 0 || INSIDE.get() {
        return f();
    }
    let over = AtomicBool::new(false);
    rayon::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|_| ask_for_work(&over));
        }
        let inside = INSIDE.replace(true);
        let _finally = Finally(|| {
            INSIDE.set(inside);
            over.store(true, Ordering::Release);
        });
        f()
    })
}

/// Take on what the pool has to do until it is `over`. A thread that waits inside `f`, or asks already, must not begin to: it would
/// never come back to what others wait for.
fn ask_for_work(over: &AtomicBool) {
    if INSIDE.replace(true) {
        return;
    }
    let _finally = Finally(|| INSIDE.set(false));
    while !over.load(Ordering::Acquire) {
        if rayon::yield_now() != Some(Yield::Executed) {
            // Other programs go first.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    #[test]
    fn results_and_panics_come_through_at_any_thread_count_and_depth() {
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let sum = || (0..1000u64).into_par_iter().map(|i| (0..i % 7).into_par_iter().sum::<u64>()).sum::<u64>();
            let want = sum();
            pool.install(|| {
                for _ in 0..50 {
                    assert_eq!(awake(|| (0..4).map(|_| awake(sum)).collect::<Vec<_>>()), [want; 4]);
                }
                let both = rayon::join(|| awake(sum), || awake(sum));
                assert_eq!(both, (want, want));
            });
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.install(|| awake(|| panic!("out")))));
            assert!(caught.is_err());
            assert_eq!(pool.install(|| awake(sum)), want, "after a panic");
        }
    }
}
