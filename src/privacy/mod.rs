//! Events, accountants, guarantees and statements. Knows no tensors.
