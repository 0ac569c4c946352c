//! Which vector instructions are used: asked of the processor once, and one body compiled for each.
//!
//! | [`Isa`] | registers | needs |
//! |---|---|---|
//! | `Avx512` | 32 of 16 lanes | x86-64 with AVX-512 F, BW, DQ and VL |
//! | `Avx2` | 16 of 8 lanes | x86-64 with AVX2 and FMA |
//! | `Neon` | 32 of 4 lanes | every 64-bit ARM |
//! | `Portable` | the compiler's | anything |
//!
//! `FERRET_ISA=avx512|avx2|neon|portable` in the environment chooses a lower one than the processor has, for tests and benches; one that it does not
//! have is passed over. Results do not depend on the choice: a `mul_add` is one rounding everywhere, Rust never contracts `a * b + c` into one and never reorders a
//! sum. (Where a processor has no fused multiply-add at all, matrixmultiply's product rounds twice, and the f32 product has other bits: x86-64 before 2013.)

use crate::error::{Error, Result};
use std::sync::OnceLock;

/// A set of vector instructions, lower ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the compiler takes for granted.
    Portable,
    /// 64-bit ARM's.
    Neon,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, and all below.
    Avx512,
}

impl Isa {
    /// All of them, lower ones first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// As `FERRET_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this processor has it.
    pub fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The highest that is here and not above `limit`.
    fn best(limit: Self) -> Self {
        let here = Self::ALL.into_iter().rfind(|isa| *isa <= limit && isa.is_here());
        here.unwrap_or(Self::Portable)
    }
}

/// What [`limit`] was told.
static LIMIT: OnceLock<Isa> = OnceLock::new();

/// The highest that `FERRET_ISA` allows.
fn asked() -> Isa {
    let name = std::env::var("FERRET_ISA").ok();
    let limit = name.and_then(|name| Isa::ALL.into_iter().find(|isa| isa.name() == name.trim()));
    limit.unwrap_or(Isa::Avx512)
}

/// The instructions that this process uses.
#[inline]
pub fn isa() -> Isa {
    static CHOSEN: OnceLock<Isa> = OnceLock::new();
    *CHOSEN.get_or_init(|| Isa::best(LIMIT.get().map_or(asked(), |limit| asked().min(*limit))))
}

/// The instructions that this process could use, lower ones first.
pub fn usable() -> impl Iterator<Item = Isa> {
    let most = asked();
    Isa::ALL.into_iter().filter(move |isa| *isa <= most && isa.is_here())
}

/// Use none above `most`: processes that work together use what all of them have. To be said before anything is computed.
pub fn limit(most: Isa) -> Result<()> {
    let _ = LIMIT.set(most);
    match isa() {
        used if used <= most => Ok(()),
        used => Err(Error::usage(format!(
            "{} instructions are in use already, and at most {} were to be",
            used.name(),
            most.name()
        ))),
    }
}

/// Whether the processor has a fused multiply-add: without one, the f32 product has other bits.
pub fn fuses() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

/// Compile a function body several times, for the vector widths the machine may have, and pick one at run time.
///
/// The body is inlined into each version, so plain loops over slices vectorise to that width. All versions do the same IEEE operations in the
/// same order, so the choice does not change a bit.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$F:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$F: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body $(<$F: $bound>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx512 $(<$F: $bound>)? ($($arg: $ty),*) $(-> $ret)? { body $(::<$F>)? ($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2 $(<$F: $bound>)? ($($arg: $ty),*) $(-> $ret)? { body $(::<$F>)? ($($arg),*) }
                match $crate::isa::isa() {
                    // SAFETY: the processor was asked for all of it.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512 $(::<$F>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2 $(::<$F>)? ($($arg),*) },
                    _ => {}
                }
            }
            body $(::<$F>)? ($($arg),*)
        }
    };
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_exceeded_and_what_is_not_here_is_passed_over() {
        assert_eq!(Isa::best(Isa::Portable), Isa::Portable);
        for limit in Isa::ALL {
            let best = Isa::best(limit);
            assert!(best <= limit && best.is_here());
            assert!(Isa::ALL.into_iter().all(|isa| isa <= best || isa > limit || !isa.is_here()));
        }
    }
}
