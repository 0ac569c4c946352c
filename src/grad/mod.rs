//! What backward delivers to: [`Sum`] adds up, [`PerSample`] materialises every sample's gradient (the oracle of the tests),
//! [`Norms`] takes every sample's norm without its gradient and keeps the factors for the clipped sum ([`Clipping`]),
//! [`GroupDot`] projects on FERRET's directions, [`Sketch`] on FERRET-k's sketches. [`Scaled`] stands before another.
//! [`TensorTangents`] and [`GroupDirection`] are the mirror image: tangents for [`Decoder::jvp`](crate::model::Decoder::jvp).

mod clip;
mod group_dot;
mod norms;
mod per_sample;
mod scaled;
mod sketch;
mod sum;
mod tangents;

pub use clip::{ClipFunction, Clipping, Factors, Partition};
pub use group_dot::{GroupDirection, GroupDot};
pub use norms::Norms;
pub use per_sample::PerSample;
pub use scaled::Scaled;
pub use sketch::{Sketch, shapes};
pub use sum::Sum;
pub use tangents::TensorTangents;
