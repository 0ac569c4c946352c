//! Post-processing of releases: update rules and schedules. Sees no data.
//!
//! An update is element-wise IEEE arithmetic on f32, in the order written, without fused multiply-add, so that the same releases
//! give the same bytes on every machine, at every thread count and vector width. Work is cut into fixed blocks.

pub mod adamw;
pub mod direct;
pub mod memory;
pub mod schedule;

pub use crate::ops::update as elementwise;
pub use adamw::{AdamW, Hyper, Silent, Timeline};
pub use memory::{Given, Updates};
pub use schedule::Schedule;

use crate::rng::DirectionStream;

/// What an update rule is given for one tensor: already released, so nothing here is sensitive.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a> {
    /// `scale * u[offset ..]`: a released scalar along a public direction, regenerated block by block.
    Along {
        /// The group's direction.
        direction: &'a DirectionStream,
        /// Where the tensor begins in the group.
        offset: usize,
        /// Bit times C, or the released scalar.
        scale: f32,
    },
    /// A whole gradient: DPSGD's noised sum, or, for methods that are not private, the true one.
    Dense(&'a [f32]),
}

pub(crate) use crate::ops::update::BLOCK;

/// Elements of a direction kept at a time.
pub(crate) const PIECE: usize = 1 << 10;

impl Gradient<'_> {
    /// Calls `f(range, g, scale)` for the pieces of elements `start .. start + len`; the gradient of `range` is `scale * g`.
    pub(crate) fn pieces(&self, start: usize, len: usize, mut f: impl FnMut(std::ops::Range<usize>, &[f32], f32)) {
        match *self {
            Gradient::Dense(g) => f(0..len, &g[start..start + len], 1.0),
            Gradient::Along { direction, offset, scale } => {
                let mut u = [0.0; PIECE];
                let mut at = 0;
                while at < len {
                    // Pieces begin where batches of the direction do, after the first.
                    let take = (PIECE - (offset + start + at) % PIECE).min(len - at);
                    direction.fill(offset + start + at, &mut u[..take]);
                    f(at..at + take, &u[..take], scale);
                    at += take;
                }
            }
        }
    }
}
