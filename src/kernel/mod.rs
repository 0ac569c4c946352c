//! The few hot loops: matrix products in tiles of our own or by matrixmultiply, split over rayon, vectorised exp, fixed-shape reductions.
//!
//! Everything here gives the same bits at any thread count: work is split over outputs, never over a sum.

mod awake;
pub mod elementwise;
pub mod gemm;
pub mod gram;
pub mod real;
#[cfg(all(feature = "tiles", target_arch = "x86_64"))]
pub mod tiles;

pub use awake::awake;
pub use gemm::{Onto, matmul, matmul_serial};
pub use gram::Gram;
pub use real::Real;

/// Compile a function body several times, for the vector widths the machine may have, and pick one at run time.
///
/// The body is inlined into each version, so plain loops over slices vectorise to that width. All versions do the same
/// IEEE operations in the same order (`mul_add` is fused everywhere), so the choice does not change a bit.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<F: Real>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name<F: $crate::kernel::Real>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<F: $crate::kernel::Real>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn wide<F: $crate::kernel::Real>($($arg: $ty),*) $(-> $ret)? { body::<F>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn medium<F: $crate::kernel::Real>($($arg: $ty),*) $(-> $ret)? { body::<F>($($arg),*) }
                if std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the features were just detected.
                    return unsafe { wide::<F>($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the features were just detected.
                    return unsafe { medium::<F>($($arg),*) };
                }
            }
            body::<F>($($arg),*)
        }
    };
}
pub(crate) use multiversion;
