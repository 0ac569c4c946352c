//! What backward delivers to: [`Sum`] adds up, [`PerSample`] materialises every sample's gradient (the oracle of the tests).
//! [`Dense`] is the mirror image: given tangents for [`Decoder::jvp`](crate::model::Decoder::jvp).

mod dense;
mod per_sample;
mod sum;

pub use dense::Dense;
pub use per_sample::PerSample;
pub use sum::Sum;
