//! What backward delivers to: [`Sum`] adds up, [`PerSample`] materialises every sample's gradient (the oracle of the tests),
//! [`GroupDot`] projects on FERRET's directions.
//! [`Dense`] and [`GroupDirection`] are the mirror image: tangents for [`Decoder::jvp`](crate::model::Decoder::jvp).

mod dense;
mod group_dot;
mod per_sample;
mod sum;

pub use dense::Dense;
pub use group_dot::{GroupDirection, GroupDot};
pub use per_sample::PerSample;
pub use sum::Sum;
