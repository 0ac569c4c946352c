#![doc = include_str!("../docs/tour/0-tour.md")]

#[doc = include_str!("../docs/tour/1-product.md")]
pub mod product {}

#[doc = include_str!("../docs/tour/2-attention.md")]
pub mod attention {}

#[doc = include_str!("../docs/tour/3-norms.md")]
pub mod norms {}

#[doc = include_str!("../docs/tour/4-bits.md")]
pub mod bits {}

#[doc = include_str!("../docs/tour/5-noise.md")]
pub mod noise {}

#[doc = include_str!("../docs/tour/6-run.md")]
pub mod run {}

#[doc = include_str!("../docs/tour/7-attack.md")]
pub mod attack {}
