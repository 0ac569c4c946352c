//! Numbers as a checkpoint stores them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Numbers in the type they were stored in.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// Four bytes each.
    F32(Vec<f32>),
    /// The upper two bytes of an f32.
    Bf16(Vec<bf16>),
    /// IEEE half precision.
    F16(Vec<f16>),
}

impl Stored {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Stored::F32(x) => x.len(),
            Stored::Bf16(x) => x.len(),
            Stored::F16(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Widened, which every one of these types can be without error.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Stored::F32(x) => x,
            Stored::Bf16(x) => x.to_f32_vec(),
            Stored::F16(x) => x.to_f32_vec(),
        }
    }
}
