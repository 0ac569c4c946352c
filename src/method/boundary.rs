//! The boundary between what depends on private records and what may leave the program.
//!
//! Records, the sample drawn from them, gradients, losses and even the realised batch size are [`Sensitive`]. It can be
//! carried and put together, but it prints nothing, dereferences to nothing and cannot be copied out. It opens only against
//! an [`Opening`], and there are few of those: search for `Opening::` to read every place where private data
//! turns into something public, and for `or_failed`, which lets out whether a computation succeeded and nothing else.
//!
//! What the compiler holds, for every crate that uses this one:
//! ```compile_fail,E0277
//! let secret = ferret::method::Sensitive::new(7);
//! println!("{:?}", secret); // no Debug
//! ```
//! ```compile_fail,E0614
//! let secret = ferret::method::Sensitive::new(7);
//! let seven: i32 = *secret; // no Deref
//! ```
//! ```compile_fail,E0599
//! let secret = ferret::method::Sensitive::new(7);
//! let twin = secret.clone(); // no Clone
//! ```
//! ```compile_fail,E0616
//! let secret = ferret::method::Sensitive::new(7);
//! let seven = secret.0; // no field
//! ```
//! ```compile_fail,E0624
//! let mut copy = 0;
//! let secret = ferret::method::Sensitive::new(7);
//! secret.map(|x| copy = x); // a closure that captures would carry it out: methods only
//! ```
//! ```compile_fail,E0624
//! let key = ferret::method::Opening::release("because I want to"); // methods only
//! ```
//! ```compile_fail,E0624
//! let key = ferret::method::Opening::evaluation("to have a look"); // this crate's audits and declared logs only
//! ```
//! ```compile_fail,E0423
//! let key = ferret::method::Opening(()); // made by the functions above only
//! ```
//!
//! What remains a convention, to be read and not proven: inside `method`, a closure given to `map` could write to what it captures,
//! and inside this crate whoever names `Opening::evaluation` must really show the result to the holder of the records alone (its
//! uses are the leakage meter and the logs that a statement declares). Whoever holds the records needs no opening to compute on
//! them: the type guards what a run makes of them, not the file they came from. Time, memory and power are not values and not
//! guarded.

use crate::error::Result;

/// A value that depends on private records.
pub struct Sensitive<T>(T);

impl<T> Sensitive<T> {
    /// Mark `value` as depending on private records.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Compute on it; the result is as sensitive. For methods alone: `f` may capture, and must not carry anything out.
    pub(in crate::method) fn map<U>(self, f: impl FnOnce(T) -> U) -> Sensitive<U> {
        Sensitive(f(self.0))
    }

    /// Borrow it, still closed.
    pub fn as_ref(&self) -> Sensitive<&T> {
        Sensitive(&self.0)
    }

    /// Put two together.
    pub fn zip<U>(self, other: Sensitive<U>) -> Sensitive<(T, U)> {
        Sensitive((self.0, other.0))
    }

    /// Take it out. `opening` says why that is allowed.
    pub fn open(self, _opening: &Opening) -> T {
        self.0
    }
}

impl<T, U> Sensitive<(T, U)> {
    /// Take the two apart.
    pub fn unzip(self) -> (Sensitive<T>, Sensitive<U>) {
        (Sensitive(self.0.0), Sensitive(self.0.1))
    }
}

impl<T> Sensitive<Result<T>> {
    /// What was computed, still closed; or why it could not be. Failing is public: it depends on the machine (a lost device, another rank), and on the
    /// data only where a device runs out of memory.
    pub(in crate::method) fn or_failed(self) -> Result<Sensitive<T>> {
        self.open(&Opening::release("whether the computation succeeded")).map(Sensitive)
    }
}

impl<T> Sensitive<Vec<T>> {
    /// Borrow the whole list, still closed.
    pub fn as_slice(&self) -> Sensitive<&[T]> {
        Sensitive(&self.0)
    }
}

/// The right to open a [`Sensitive`].
pub struct Opening(());

impl Opening {
    /// For a method that turns `_what` into its release, within what its accountant charges.
    pub(in crate::method) fn release(_what: &'static str) -> Self {
        Self(())
    }

    /// For methods and outputs that are labelled as not private: `_what` leaves as it is, and the statement says so.
    pub(in crate::method) fn non_private(_what: &'static str) -> Self {
        Self(())
    }

    /// For audits and logs whose results are for whoever holds the records: `_what` is measured, not published.
    pub(crate) fn evaluation(_what: &'static str) -> Self {
        Self(())
    }
}
