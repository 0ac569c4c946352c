//! Every product against the order of summation, spelt out.

use super::*;
use crate::kernel::gemm::Triangle;
use crate::kernel::lanes::tests::noise;
use ndarray::{Array2, ArrayView2, s};

type Product = unsafe fn((usize, usize, usize), Part, f32, Matrix, Matrix, Onto<f32>, (*mut f32, isize));

/// The products of this machine, whichever of them the process uses.
fn products() -> Vec<(Isa, Product)> {
    let all: &[(Isa, Product)] = &[
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, avx512::sgemm),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, avx2::sgemm),
        #[cfg(target_arch = "aarch64")]
        (Isa::Neon, neon::sgemm),
    ];
    let (here, missing): (Vec<_>, Vec<_>) = all.iter().partition(|(isa, _)| isa.is_here());
    missing.iter().for_each(|(isa, _)| eprintln!("skipped: this machine has no {}", isa.name()));
    here
}

fn tiled(f: Product, alpha: f32, a: ArrayView2<f32>, b: ArrayView2<f32>, onto: Onto<f32>, c: &mut Array2<f32>) {
    tiled_part(f, Part::Whole, alpha, a, b, onto, c);
}

fn tiled_part(
    f: Product,
    part: Part,
    alpha: f32,
    a: ArrayView2<f32>,
    b: ArrayView2<f32>,
    onto: Onto<f32>,
    c: &mut Array2<f32>,
) {
    let (size, stride) = ((a.nrows(), a.ncols(), b.ncols()), c.strides()[0]);
    let parts = |x: &ArrayView2<f32>| (x.as_ptr(), x.strides()[0], x.strides()[1]);
    // SAFETY: the views are valid, and the product is of this machine.
    unsafe { f(size, part, alpha, parts(&a), parts(&b), onto, (c.as_mut_ptr(), stride)) }
}

/// The order of summation, spelt out.
fn reference(alpha: f32, a: ArrayView2<f32>, b: ArrayView2<f32>, onto: Onto<f32>, c: &mut Array2<f32>) {
    for ((i, j), c) in c.indexed_iter_mut() {
        let mut old = match onto {
            Onto::Zero => 0.0,
            Onto::Itself => *c,
            Onto::Row(row) => row[j],
        };
        for start in (0..a.ncols()).step_by(KC) {
            let block = start..a.ncols().min(start + KC);
            let sum = block.fold(0.0f32, |sum, p| a[[i, p]].mul_add(b[[p, j]], sum));
            old = alpha.mul_add(sum, old);
        }
        *c = old;
    }
}

/// Odd sizes around every block's edge, each factor plain, transposed, and with a stride in both directions.
#[test]
fn every_product_sums_in_the_stated_order_to_the_bit() {
    let sizes = [
        (1, 1, 1),
        (1, 523, 41),
        (2, 515, 70),
        (3, 13, 19),
        (4, 30, 33),
        (5, 7, 9),
        (6, 256, 64),
        (7, 257, 65),
        (361, 30, 80),
        (521, 300, 17),
        (13, 20, 4163),
        (64, 515, 48),
    ];
    for (m, k, n) in sizes {
        let (a, at) = (noise::<f32>(m, k, 1), noise::<f32>(k, m, 2));
        let (b, bt) = (noise::<f32>(k, n, 3), noise::<f32>(n, k, 4));
        let (a2, b2) = (noise::<f32>(2 * m, 3 * k, 5), noise::<f32>(3 * k, 2 * n, 6));
        let (a2, b2) = (a2.slice(s![..;2, ..;3]), b2.slice(s![..;3, ..;2]));
        let row = noise::<f32>(1, n, 7);
        let row = row.as_slice().unwrap();
        for a in [a.view(), at.t(), a2] {
            for b in [b.view(), bt.t(), b2] {
                for (alpha, onto) in [(1.0, Onto::Zero), (1.0, Onto::Itself), (0.5, Onto::Zero), (1.0, Onto::Row(row))]
                {
                    let old =
                        if matches!(onto, Onto::Itself) { noise(m, n, 8) } else { Array2::from_elem((m, n), f32::NAN) };
                    let mut want = old.clone();
                    reference(alpha, a, b, onto, &mut want);
                    for (isa, product) in products() {
                        let mut got = old.clone();
                        tiled(product, alpha, a, b, onto, &mut got);
                        assert_eq!(got, want, "{}: {m} x {k} x {n}, {alpha} times, {onto:?}", isa.name());
                    }
                }
            }
        }
    }
}

/// A is zero outside of a triangle, or C is wanted inside of one: the bits of the whole, with triangles that begin and end in any block.
#[test]
fn a_part_has_the_bits_of_the_whole() {
    for (m, k, n) in [(1, 3, 2), (3, 40, 20), (64, 64, 64), (70, 600, 33), (600, 70, 100), (530, 530, 530)] {
        let (a, b, old) = (noise::<f32>(m, k, 1), noise::<f32>(n, k, 2), noise::<f32>(m, n, 3));
        let offsets = [0, 5, 255, 256, 300, 1000];
        for triangle in offsets.into_iter().flat_map(|offset| [Triangle::Lower(offset), Triangle::Upper(offset)]) {
            let inside = |i, j, width| triangle.columns(i..i + 1, width).contains(&j);
            let zeroed = Array2::from_shape_fn((m, k), |(i, p)| if inside(i, p, k) { a[[i, p]] } else { 0.0 });
            for (isa, product) in products() {
                let run = |part, a: &Array2<f32>| {
                    let mut c = old.clone();
                    tiled_part(product, part, 0.5, a.view(), b.t(), Onto::Itself, &mut c);
                    c
                };
                let what = format!("{}: {m} x {k} x {n}, {triangle:?}", isa.name());
                assert_eq!(run(Part::Left(triangle), &zeroed), run(Part::Whole, &zeroed), "{what}");
                let (got, want) = (run(Part::Out(triangle), &a), run(Part::Whole, &a));
                let same = got.indexed_iter().all(|((i, j), &c)| !inside(i, j, n) || c == want[[i, j]]);
                assert!(same, "{what}, wanted alone");
            }
        }
    }
}

/// What runs where there is no product of our own.
#[test]
fn matrixmultiply_gives_the_same_bits_where_it_is_fused() {
    if products().is_empty() {
        return;
    }
    for (m, k, n) in [(7, 257, 65), (64, 515, 48), (130, 700, 33)] {
        let (a, b) = (noise::<f32>(m, k, 1), noise::<f32>(k, n, 3));
        let (mut got, mut want) = (Array2::zeros((m, n)), Array2::zeros((m, n)));
        reference(1.0, a.view(), b.view(), Onto::Zero, &mut want);
        let (k, n) = (k as isize, n as isize);
        // SAFETY: three matrices in standard layout.
        unsafe {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), got.as_mut_ptr());
            matrixmultiply::sgemm(m, k as usize, n as usize, 1.0, a, k, 1, b, n, 1, 0.0, c, n, 1);
        }
        assert_eq!(got, want, "{m} x {k} x {n}");
    }
}
