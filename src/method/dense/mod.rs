//! The methods that release a whole update at every step: DPSGD, plain training, and the compressed ones.
//!
//! ```text
//! nonprivate   g = mean over the batch of the records' gradients
//! dpsgd        g = (sum over the batch of clipped gradients + N(0, (sigma C)²)) / expected batch size
//! signsgd      sign(g), or with error feedback, or by majority vote        one bit a coordinate
//! qsgd         g, rounded at random to a few levels of its norm            2 to 8 bits a coordinate
//! dp-signsgd   sign of dpsgd's g: post-processing, so as private as dpsgd  one bit a coordinate
//! ```
//! The update then goes through the optimizer, which sees nothing else.
//!
//! # What DPSGD's privacy rests on here
//! A record's contribution is clipped as a whole ([`crate::grad::Clipping`]); noise is drawn once a logical batch, not once a
//! micro-batch; the sum is divided by the *expected* batch size, since the realised one is secret; a batch that comes out
//! empty releases noise alone and is charged as any other. Sample, noise, loss and batch size stay [`Sensitive`](super::Sensitive).
//! What floating point leaves open is said in [`crate::rng::secret`] and [`crate::ops::clip`]; one thing more: the clipped gradients are added in
//! f32, so that taking a record away can also change how the others are rounded, by some 1e-7 of the sum.

pub mod settings;
pub mod state;
mod statement;
pub mod trainer;

pub use crate::grad::ClipFunction;
pub use crate::ops::compress;
pub use settings::{ClipStyle, Method, Privacy, RECORD, Record, Settings, Variant};
pub use state::State;
pub use trainer::Trainer;
