//! Two kinds of randomness that must never mix: public (seeded, counter-based) and secret (keyed by the system).
