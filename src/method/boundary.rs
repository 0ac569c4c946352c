//! The boundary between what depends on private records and what may leave the program.
//!
//! Records, the sample drawn from them, gradients, losses and even the realised batch size are [`Sensitive`]. It can be
//! carried and computed on, but it prints nothing, dereferences to nothing and cannot be copied out. It opens only against
//! an [`Opening`], and there are few of those: search for `Opening::` to read every place where private data
//! turns into something public.
//!
//! ```compile_fail
//! let secret = ferret::method::Sensitive::new(7);
//! println!("{:?}", secret); // no Debug
//! ```
//! ```compile_fail
//! let secret = ferret::method::Sensitive::new(7);
//! let seven: i32 = *secret; // no Deref
//! ```
//! ```compile_fail
//! let key = ferret::method::Opening::release("because I want to"); // methods only
//! ```

/// A value that depends on private records.
pub struct Sensitive<T>(T);

impl<T> Sensitive<T> {
    /// Mark `value` as depending on private records.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Compute on it; the result is as sensitive.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Sensitive<U> {
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

    /// For evaluation and audits, whose results are for whoever holds the records: `_what` is measured, not published.
    pub fn evaluation(_what: &'static str) -> Self {
        Self(())
    }
}
