//! What a set of instructions must offer, and the entry points compiled for it.

use super::Onto;

/// A tile's arguments: depth, alpha, rows of A and how far apart they are, panel of B, what to add to, C, its stride, columns of C that are there.
pub(super) type Tile = unsafe fn(usize, f32, (*const f32, isize), *const f32, Onto<f32>, *mut f32, isize, usize);

/// Vectors of one set of instructions. Methods are inlined into functions compiled for that set, and may be called nowhere else.
///
/// # Safety
/// `WIDTH` is the number of lanes of `Vector` and of vectors in `Square`.
pub(super) unsafe trait Lanes: Copy {
    /// Lanes of a vector.
    const WIDTH: usize;
    /// Columns of a tile: a multiple of `WIDTH` and a divisor of [`super::NC`].
    const NR: usize;
    /// Rows of the block of A that stays in the second cache: a multiple of [`super::MR`].
    const MC: usize;
    /// [Slabs](Lanes::load_slab) that are held at a time, beside their sums: 2 or 4.
    const SLABS: usize;
    /// A register.
    type Vector: Copy;
    /// As many registers as one has lanes.
    type Square: AsRef<[Self::Vector]> + AsMut<[Self::Vector]> + Copy;

    /// A tile of so many rows (1 to [`super::MR`]) and vectors (1 to NR / WIDTH).
    fn tile(rows: usize, vectors: usize) -> Tile;
    /// Zeros.
    unsafe fn zero() -> Self::Vector;
    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::Vector;
    /// A whole vector from anywhere.
    unsafe fn load(src: *const f32) -> Self::Vector;
    /// Each lane's first two bytes as the upper half of a number: of two bf16, the first.
    unsafe fn first_halves(x: Self::Vector) -> Self::Vector;
    /// Each lane's last two bytes as the upper half of a number: of two bf16, the second.
    unsafe fn second_halves(x: Self::Vector) -> Self::Vector;
    /// The first `count` lanes from anywhere (all of them from WIDTH on), then zeros.
    unsafe fn load_part(src: *const f32, count: usize) -> Self::Vector;
    /// A whole vector to anywhere.
    unsafe fn store(dst: *mut f32, x: Self::Vector);
    /// The first `count` lanes (all of them from WIDTH on) to anywhere.
    unsafe fn store_part(dst: *mut f32, count: usize, x: Self::Vector);
    /// `a b + c`, rounded once.
    unsafe fn fused(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// A square of zeros.
    unsafe fn zeros() -> Self::Square;
    /// Rows become columns.
    unsafe fn transposed(x: Self::Square) -> Self::Square;
    /// WIDTH rows, so many bytes apart, as columns.
    #[inline(always)]
    unsafe fn load_turned(src: *const f32, apart: isize) -> Self::Square {
        // SAFETY: the caller's promise.
        unsafe {
            let mut rows = Self::zeros();
            for (i, row) in rows.as_mut().iter_mut().enumerate() {
                *row = Self::load(src.byte_offset(i as isize * apart));
            }
            Self::transposed(rows)
        }
    }
    /// The first 16 bytes of WIDTH rows, so many bytes apart, as columns of four bytes each.
    unsafe fn load_slab(src: *const f32, apart: isize) -> [Self::Vector; 4];
    /// Ask for the line of `src`.
    unsafe fn prefetch(src: *const f32);
    /// Ask for the line of `src`, no nearer than the second cache. More of these can be on their way at once: as many as fill the memory's bandwidth.
    unsafe fn prefetch_far(src: *const f32);
}

/// A number as a matrix stores it; zero is its default.
pub(super) trait Element<L: Lanes>: Copy + Default {
    /// How many fill a lane.
    const EACH: usize;
    /// The `e`-th number of each lane, widened.
    unsafe fn part(x: L::Vector, e: usize) -> L::Vector;
}

impl<L: Lanes> Element<L> for f32 {
    const EACH: usize = 1;

    #[inline(always)]
    unsafe fn part(x: L::Vector, _: usize) -> L::Vector {
        x
    }
}

/// The upper half of an f32: bf16.
impl<L: Lanes> Element<L> for u16 {
    const EACH: usize = 2;

    #[inline(always)]
    unsafe fn part(x: L::Vector, e: usize) -> L::Vector {
        // SAFETY: the caller has these instructions.
        unsafe { if e == 0 { L::first_halves(x) } else { L::second_halves(x) } }
    }
}

/// The entry points of one set of instructions: [`super::product`], [`super::few`] and [`super::tile`] compiled for it.
macro_rules! compiled {
    ($lanes:ty, $features:literal, $($vectors:literal)+) => {
        /// [`super::sgemm`].
        ///
        /// # Safety
        /// As there, on a machine with these instructions.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn sgemm(
            size: (usize, usize, usize),
            part: super::Part,
            alpha: f32,
            a: super::Matrix,
            b: super::Matrix,
            onto: super::Onto<f32>,
            c: (*mut f32, isize),
        ) {
            // SAFETY: the caller's promise.
            unsafe { super::product::<$lanes>(size, part, alpha, a, b, onto, c) }
        }

        /// [`super::sgemm_bf16`].
        ///
        /// # Safety
        /// As there, on a machine with these instructions.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn sgemm_bf16(
            size: (usize, usize, usize),
            a: super::Matrix,
            b: (*const u16, isize),
            onto: super::Onto<f32>,
            c: (*mut f32, isize),
        ) {
            // SAFETY: the caller's promise.
            unsafe { super::few::<$lanes, u16>(size, 1.0, a, b, onto, c) }
        }

        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments)]
        unsafe fn tile<const R: usize, const V: usize>(
            k: usize,
            alpha: f32,
            a: (*const f32, isize),
            b: *const f32,
            onto: super::Onto<f32>,
            c: *mut f32,
            stride: isize,
            columns: usize,
        ) {
            // SAFETY: the caller's promise.
            unsafe { super::tile::<$lanes, R, V>(k, alpha, a, b, onto, c, stride, columns) }
        }

        /// [`tile`] by rows - 1 and vectors - 1.
        const TILES: [[super::Tile; [$($vectors),+].len()]; super::MR] = [
            [$(tile::<1, $vectors>),+],
            [$(tile::<2, $vectors>),+],
            [$(tile::<3, $vectors>),+],
            [$(tile::<4, $vectors>),+],
            [$(tile::<5, $vectors>),+],
            [$(tile::<6, $vectors>),+],
        ];
    };
}
pub(super) use compiled;
