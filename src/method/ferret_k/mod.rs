//! FERRET-k: thousands of bits from one batch at one price, by sketching.
//!
//! ```text
//! step t:  U, k x d, public, from (seed, t): every tuned weight falls into one of k buckets, with a sign   crate::rng::sketch
//!          for each record i of a secret Poisson batch:  v_i = U g_i, k numbers; scaled to |v_i| <= C      crate::grad::Sketch, crate::ops::sketch::clip
//!          S = sum of v_i + z C N(0, 1)^k, drawn once                                                      [`Trainer`]
//!          release b = sign(S), k bits; or two bits a bucket and one size r; or S on a public grid, k scalars   [`levels`]
//!          weights -= eta / sqrt(d) Uᵀ b; or with momentum, or as a gradient of AdamW                      [`Replayer`]
//! ```
//! That is FERRET with k public groups whose bits share one noisy release. A run is still base, settings, seed and bits ([`Transcript`]), and the
//! [`Replayer`] makes the weights of training and of replay alike, to the byte. A step that the public mask leaves out (`p` below 1) touches no record.
//!
//! # What is guaranteed, and why
//!
//! 1. U, which steps fire, and ties' coins follow from the public seed: they are the same for neighbouring data sets, and can be conditioned on.
//! 2. Fix a step and all that was released before it: the weights, and with them the function g -> U g of a record, are then fixed.
//! 3. A record that is in the batch adds its v to the sum, one that is not adds 0: a v that is not finite counts as 0, and clipping leaves |v| <= C, rounding
//!    included, since the norm that it divides by is never below the true one.
//! 4. Contributions are added as integers on a grid, rounded towards 0 ([`sum`]): nothing is lost, so the sums with and without a record differ by its v
//!    alone, and |v| <= C still.
//! 5. So S is a Gaussian mechanism of sensitivity C and noise z C on a Poisson sample of rate q = B / N. In R^k only the distance of two means counts, and
//!    it is at most C whatever k is: rotate it onto one axis, the other k - 1 numbers are the same noise in both worlds.
//! 6. That is the step of DPSGD, for which the accountants (PLD, RDP) prove their (eps, delta), in both directions of the neighbours.
//! 7. Signs, r and the levels that follow from it, the grid, sqrt(d), momentum, schedules and AdamW see S and public numbers only: post-processing adds nothing.
//! 8. Steps depend on each other through what was released only: adaptive composition of T such steps, silent ones left out, is what the accountants compose.
//! 9. Hence a run is (eps, delta)-DP with the eps of DPSGD at the same q, z and number of computed steps, for any k, either sketch, any route.
//! 10. Nats of mutual information follow from the same step (`crate::privacy::mi`): what k noisy signs, or k noised numbers, can tell of one record given the others.
//!     Levels are charged as the numbers that they are made from.
//!
//! U's entries may be ±s in place of ±1, one s for each tensor ([`scales`](super::scales)): U is still public, and clipping, noise and all that follows are of U g as it then is.
//! It rests on s being public, as all settings are: from public text and the base model, never from the records.
//!
//! The realised batch size is in no release: a sign needs none, and scalars are divided by the planned B.
//!
//! # What it costs
//!
//! The noise on a step is z sqrt(k) / B of the signal where DPSGD's is z sqrt(d) / B, and a step moves along k directions out of d: up to k of about (B / z)²
//! more bits are nearly free, beyond that they are noise ([`Settings::usual_bits`]). The sketch of a linear layer comes from its factors: I + O + O(k log k) operations
//! a token for [`SketchKind::Tensor`](crate::rng::SketchKind), a product of k1 x k2 for [`SketchKind::Grid`](crate::rng::SketchKind), where the gradient takes 2 I O;
//! [`SketchKind::Count`](crate::rng::SketchKind) forms and hashes it. No gradient is kept and no norm of one is needed. A release of signs is k bits a step, of levels
//! 2 k + 32, of scalars 32 k: 1,000 steps of 1,024 are 128 KB, 260 KB and 4.1 MB.
//!
//! # When to use which
//!
//! FERRET's single bits have the smallest release, and nats of mutual information alone, unless they are flipped. FERRET-k is for (eps, delta) at perplexities
//! near DPSGD's with a transcript of kilobytes that anyone can replay. DPSGD is best where all d numbers of a step may be released and nobody needs to verify the run.
//! Levels are the default: in trials in the bytes of 2,048 signs a step they ended 4 % and more of perplexity lower where noise counts (eps up to 1), and no higher where it
//! does not (FINDINGS.md). Signs are for a few bytes a step, where r would weigh more than they do; scalars, at 16 times the bytes of levels, for whoever has them.

pub mod levels;
mod packed;
pub mod plan;
pub mod replay;
pub mod settings;
mod statement;
pub mod sum;
pub mod trainer;
pub mod transcript;

pub use levels::Levels;
pub use plan::Plan;
pub use replay::{Replayer, replay};
pub use settings::{Release, Settings};
pub use statement::NAME;
pub use sum::Total;
pub use trainer::Trainer;
pub use transcript::{Releases, Transcript};
