//! The only door to crates that a malformed file can make panic: tokenizers, and the decoders of the feature `formats`.
//!
//! A `tokenizer.json` that is cut off inside `"decoder"`, or has a broken Precompiled normaliser, makes its crate panic while it is read or
//! used; so does a damaged Parquet file. A file is no reason for this program to panic, so [`call`] turns that into an ordinary error. What a
//! panic says may quote the text that was being read: it is neither printed nor kept.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many calls of [`call`] this thread is in.
    static INSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Leaves [`call`], unwinding or not.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
    }
}

/// Run `f`, which calls such a crate and no code of ours that could panic; none where it panicked.
///
/// The process's panic hook is wrapped once, and stays silent only for threads that are in here: panics of others are printed as
/// before. `f` may leave behind nothing that is read after a panic but a tokenizer's own caches, which are behind locks that are
/// only ever tried.
pub(crate) fn call<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if INSIDE.get() == 0 {
                before(info);
            }
        }));
    });
    INSIDE.set(INSIDE.get() + 1);
    let _inside = Inside;
    catch_unwind(AssertUnwindSafe(f)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_no_answer_and_others_are_not_swallowed() {
        assert_eq!(call(|| 7), Some(7));
        assert_eq!(call(|| -> u32 { panic!("the text of a record") }), None);
        assert_eq!(INSIDE.get(), 0);
        assert_eq!(call(|| call(|| -> u32 { panic!("inner") })), Some(None));
        assert!(std::panic::catch_unwind(|| panic!("ours")).is_err());
    }
}
