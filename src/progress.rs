//! What long work tells whoever waits for it. The library draws nothing: the program's bars are an implementation of [`Progress`].

use crate::error::Result;

/// Hears how work goes on, and may stop it.
///
/// Work comes in parts, one after the other: each is announced by its name and length and then moves on by steps. What moves is told
/// from any thread. Every method does nothing unless it is written, so that `impl Progress for Mine {}` is one that is not interested.
pub trait Progress: Sync {
    /// A part of the work begins: `length` steps of `what` ("records", "shadow models").
    fn begin(&self, what: &str, length: u64) {
        let _ = (what, length);
    }

    /// `steps` more are done. An error stops the work there and is what the work returns.
    fn advance(&self, steps: u64) -> Result<()> {
        let _ = steps;
        Ok(())
    }

    /// What may stand beside the part that goes on; `text` is asked only where someone looks. Nothing that a record decides comes this way
    /// unless the method hides nothing.
    fn beside(&self, text: &dyn Fn() -> String) {
        let _ = text;
    }

    /// The part that began last is over.
    fn end(&self) {}

    /// The name of the graphics device that computes.
    fn device(&self, name: &str) {
        let _ = name;
    }

    /// A sentence that a reader should see, though nothing failed.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

/// For work that nobody waits for: tells nothing and never stops it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unheard;

impl Progress for Unheard {}
