//! Scores, attacks and their error bars. Knows no tensors.
