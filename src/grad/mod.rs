//! What backward delivers to.
