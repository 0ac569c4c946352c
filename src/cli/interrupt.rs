//! Ctrl-C: the first asks the running work to stop at the next safe place, the second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C (and a polite kill) asks instead of ending the program.
pub fn listen() {
    // Fails only if a handler exists already, which is then this one.
    let _ = ctrlc::set_handler(|| {
        let again = ASKED.swap(true, Ordering::SeqCst);
        let ranks = super::ranks::world();
        if ranks.size() > 1 && (again || !ranks.is_first()) {
            // Launchers ask more than once for one reason, and see to the rest themselves.
            return;
        }
        if again {
            std::process::exit(130);
        }
        crate::fsio::tell("\nferret: stopping after this step; press Ctrl-C again to stop at once");
    });
}

/// Whether to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
