//! The GPU against the CPU in double precision: every op and its backward, the decoder, and PyTorch's word on a tiny GPT-2.
//!
//! Each comparison runs twice: as the adapter is, and as if it bound 64 KiB at once, so that matrices are worked on in windows. Without
//! an adapter the tests say so and pass, unless FERRET_REQUIRE_GPU=1.
#![cfg(feature = "gpu")]

use common::gpus;
use ferret::backend::{Backend, Compute, Cpu, Gpu, Memory, SampleNorms, Sketches, Updates};
use ferret::kernel::Stored;
use ferret::model::Activation;
use ferret::ops::cross_entropy::IGNORE;
use ferret::ops::{Order, Segments};

mod common;
mod gpu_decoder;
mod gpu_ferret_k;

/// Numbers that look normal, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| (0..4).map(|_| next()).sum::<f32>() * 1.7).collect()
}

/// Fails unless every number is within `tolerance` of the largest wanted number of its array.
pub fn compare(label: &str, got: &[Vec<f32>], want: &[Vec<f32>], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{label}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.len(), want.len(), "{label}, result {i}");
        let size = want.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
        for (at, (&g, &w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() <= tolerance * size, "{label}, result {i}, element {at}: {g}, not {w}");
        }
    }
}

/// Run the same body on the CPU in double precision and on every GPU of [`gpus`], and compare what it returns.
macro_rules! parity {
    ($tolerance:expr, |$b:ident| $body:expr, $($label:tt)*) => {{
        let label = format!($($label)*);
        let want: Vec<Vec<f32>> = { let $b = &Cpu::<f64>::new(); $body };
        for (i, gpu) in gpus().iter().enumerate() {
            let got: Vec<Vec<f32>> = { let $b = gpu; $body };
            compare(&format!("{label}, {}", ["whole", "in windows"][i]), &got, &want, $tolerance);
        }
    }};
}

mod gpu_heads;
mod gpu_memory;
mod gpu_updates;
mod shaders;

fn matrix<B: Backend>(b: &B, rows: usize, cols: usize, seed: u64) -> B::Tensor {
    b.upload(rows, cols, noise(rows * cols, seed)).unwrap()
}

fn weight<B: Backend>(b: &B, rows: usize, cols: usize, seed: u64) -> B::Weight {
    b.weight(rows, cols, Stored::F32(noise(rows * cols, seed))).unwrap()
}

fn read<B: Backend>(b: &B, x: &B::Tensor) -> Vec<f32> {
    b.download(x).unwrap()
}

#[test]
fn matrix_products() {
    for (n, i, o) in [
        (1, 1, 1),
        (3, 5, 7),
        (64, 16, 64),
        (65, 17, 129),
        (130, 70, 67),
        (1, 33, 200),
        (1, 64, 64),
        (1, 803, 37),
        (1, 41, 1301),
        (1, 3, 1),
        (0, 4, 3),
        (4, 0, 3),
        (9, 700, 13),
        (45, 501, 70),
        (300, 65, 131),
    ] {
        parity!(
            3e-6,
            |b| {
                let (x, w, bias, dy) = (matrix(b, n, i, 1), weight(b, i, o, 2), weight(b, 1, o, 3), matrix(b, n, o, 4));
                let mut dw = matrix(b, i, o, 5);
                b.add_outer(&x, &dy, n / 4..n, &mut dw);
                let head = weight(b, o, i, 6);
                let mut dh = matrix(b, n + 3, i, 7);
                b.head_input(&dy, &head, &mut dh, 2);
                let (mut dx, mut dx_out_in) = (matrix(b, n, i, 8), matrix(b, n, i, 8));
                b.add_linear_input(&dy, &w, Order::InOut, &mut dx);
                b.add_linear_input(&dy, &head, Order::OutIn, &mut dx_out_in);
                vec![
                    read(b, &b.linear(&x, &head, Order::OutIn, Some(&bias))),
                    read(b, &b.linear_input(&dy, &head, Order::OutIn)),
                    read(b, &dx),
                    read(b, &dx_out_in),
                    read(b, &b.linear(&x, &w, Order::InOut, Some(&bias))),
                    read(b, &b.linear(&x, &w, Order::InOut, None)),
                    read(b, &b.linear_input(&dy, &w, Order::InOut)),
                    read(b, &dw),
                    read(b, &b.head(&x, &head)),
                    read(b, &dh),
                    // A row that is decoded has kernels of its own.
                    read(b, &b.chain(|| b.linear(&x, &w, Order::InOut, Some(&bias)))),
                    read(b, &b.chain(|| b.head(&x, &head))),
                ]
            },
            "{n} x {i} x {o}"
        );
    }
}

/// What a record adds to a sum may not depend on who is computed with it.
#[test]
fn a_row_alone_has_the_bits_it_has_among_others() {
    for gpu in gpus() {
        let (i, o) = (803, 131);
        let rows = gpu.download(&matrix(gpu, 40, i, 1)).unwrap();
        let (w, head) = (weight(gpu, i, o, 2), weight(gpu, o, i, 3));
        let product = |count: usize| {
            let x = gpu.upload(count, i, rows[..count * i].to_vec()).unwrap();
            let all = [gpu.linear(&x, &w, Order::InOut, None), gpu.head(&x, &head)];
            all.map(|y| gpu.download(&y).unwrap()[..o].to_vec())
        };
        let among = product(40);
        for count in [1, 2, 5] {
            assert_eq!(product(count), among, "{count} rows");
        }
    }
}

#[test]
fn tangent_products() {
    for (n, i, o, first, block) in
        [(3, 5, 7, 0, 5), (33, 70, 21, 3, 50), (66, 40, 65, 8, 32), (5, 130, 3, 129, 1), (70, 300, 150, 101, 199)]
    {
        parity!(
            3e-6,
            |b| {
                let (x, w) = (matrix(b, n, i, 1), matrix(b, block, o, 2));
                let mut y = matrix(b, n, o, 3);
                b.add_matmul(&x, first, &w, &mut y);
                b.add_vector(&matrix(b, 1, o, 4), &mut y);
                let (h, w) = (matrix(b, n, o, 5), matrix(b, block, o, 6));
                let mut logits = matrix(b, n, i, 7);
                b.add_head(&h, &w, &mut logits, first);
                vec![read(b, &y), read(b, &logits)]
            },
            "{n} x {i} x {o}, rows {first}.. {block}"
        );
    }
}

#[test]
fn embeddings() {
    for (v, c, ids) in [
        (7, 5, vec![0u32, 3, 3, 6, 3]),
        (400, 131, (0..300).map(|i| i * i % 397).collect()),
        (3, 8, vec![]),
        (5, 1, vec![4; 70]),
    ] {
        let positions: Vec<u32> = (0..ids.len() as u32).collect();
        parity!(
            1e-6,
            |b| {
                let (tokens, wpe) = (weight(b, v, c, 1), weight(b, ids.len() + 1, c, 2));
                let x = b.embed(&ids, &tokens, Some((&positions, &wpe)));
                let alone = b.embed(&ids, &tokens, None);
                let mut y = matrix(b, ids.len(), c, 3);
                b.add_gather(&ids, &matrix(b, v, c, 1), &mut y);
                let mut table = matrix(b, v, c, 4);
                b.add_rows(&ids, &y, ids.len() / 5..ids.len(), &mut table);
                vec![read(b, &x), read(b, &alone), read(b, &y), read(b, &table)]
            },
            "{} of {v} x {c}",
            ids.len()
        );
    }
}

#[test]
fn not_a_number_stays_not_a_number() {
    for gpu in gpus() {
        let x = gpu.upload(1, 3, vec![f32::NAN, 1.0, 2.0]).unwrap();
        let y = read(gpu, &gpu.activation(Activation::GeluTanh, &x));
        assert!(y[0].is_nan() && y[1].is_finite(), "{y:?}");
        let mut losses = gpu.zeros(1, 1);
        gpu.cross_entropy(&x, &[1], &mut losses, 0);
        assert!(read(gpu, &losses)[0].is_nan());
    }
}

#[test]
fn sums() {
    for (n, c) in [(1, 1), (7, 5), (129, 33), (700, 300), (0, 3)] {
        parity!(
            3e-6,
            |b| {
                let (mut x, y) = (matrix(b, n, c, 1), matrix(b, n, c, 2));
                let mut dots = matrix(b, n + 2, 1, 3);
                b.add_row_dots(&x, &y, &mut dots, 2);
                b.add(&mut x, &y);
                let mut out = matrix(b, 1, c, 4);
                b.add_columns(&x, n / 7..n, &mut out);
                vec![read(b, &x), read(b, &dots), read(b, &out)]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn cross_entropies() {
    for (n, v) in [(1, 1), (4, 40), (37, 101), (3, 5003), (0, 3)] {
        let targets: Vec<u32> = (0..n as u32).map(|i| if i % 3 == 1 { IGNORE } else { i * 7919 % v as u32 }).collect();
        let weights: Vec<f32> = (0..n).map(|i| 0.5 + i as f32 * 0.1).collect();
        parity!(
            3e-6,
            |b| {
                let mut logits = b.upload(n, v, noise(n * v, 1).iter().map(|x| 4.0 * x).collect()).unwrap();
                let dot = matrix(b, n, v, 2);
                let (mut losses, mut again, mut losses_dot) =
                    (matrix(b, n + 5, 1, 3), b.zeros(n + 5, 1), b.zeros(n + 5, 1));
                b.cross_entropy(&logits, &targets, &mut losses, 3);
                b.cross_entropy_jvp(&logits, &dot, &targets, &mut losses_dot, 1);
                b.cross_entropy_backward(&mut logits, &targets, &weights, &mut again, 2);
                vec![read(b, &losses), read(b, &losses_dot), read(b, &again), read(b, &logits)]
            },
            "{n} x {v}"
        );
    }
    parity!(
        1e-6,
        |b| {
            let logits = b.upload(1, 3, vec![1e30, -1e30, 5e29]).unwrap();
            let mut losses = b.zeros(1, 1);
            b.cross_entropy(&logits, &[0], &mut losses, 0);
            vec![read(b, &losses)]
        },
        "large logits"
    );
}

#[test]
fn statistics_of_tokens() {
    for (n, v) in [(1, 1), (5, 40), (3, 5003), (30, 101), (0, 3)] {
        let targets: Vec<u32> = (0..n as u32).map(|i| if i % 4 == 1 { IGNORE } else { i * 7919 % v as u32 }).collect();
        parity!(
            1e-5,
            |b| {
                let logits = b.upload(n, v, noise(n * v, 1).iter().map(|x| 3.0 * x).collect()).unwrap();
                let mut stats = matrix(b, n + 3, 4, 2);
                b.token_stats(&logits, &targets, &mut stats, 2);
                vec![read(b, &stats)]
            },
            "{n} x {v}"
        );
    }
    parity!(
        1e-5,
        |b| {
            let logits = b.upload(2, 3, vec![1e30, -1e30, 5e29, -200.0, 0.0, -1e30]).unwrap();
            let mut stats = b.zeros(2, 4);
            b.token_stats(&logits, &[0, 1], &mut stats, 0);
            vec![read(b, &stats)]
        },
        "sharp rows"
    );
}

#[test]
fn more_rows_than_workgroups_in_a_dimension() {
    let (n, c) = (70_001, 3);
    parity!(
        1e-5,
        |b| {
            let (mut x, gain, bias) = (matrix(b, n, c, 1), weight(b, 1, c, 2), weight(b, 1, c, 3));
            let (y, stats) = b.norm(&x, &gain, &bias, 1e-2);
            let mut losses = b.zeros(n, 1);
            b.cross_entropy(&x, &vec![1; n], &mut losses, 0);
            b.add(&mut x, &y);
            vec![read(b, &y), read(b, &stats), read(b, &losses), read(b, &x)]
        },
        "{n} rows"
    );
    // As many distinct rows, a workgroup each.
    let (n, c) = (65_537, 4);
    let ids: Vec<u32> = (0..n as u32).rev().collect();
    parity!(
        1e-6,
        |b| {
            let mut y = b.zeros(n, c);
            b.add_rows(&ids, &matrix(b, n, c, 1), 0..n, &mut y);
            vec![read(b, &y)]
        },
        "{n} distinct rows"
    );
    // As many workgroups of 64 threads with four numbers each, and tiles of a product, which is empty but for its bias.
    let n = 64 * 65_537;
    for gpu in &gpus()[..gpus().len().min(1)] {
        let (mut y, v) = (gpu.zeros(n, 4), gpu.upload(1, 4, vec![1.0, 2.0, 3.0, 4.0]).unwrap());
        gpu.add_vector(&v, &mut y);
        assert!(read(gpu, &y).chunks_exact(4).all(|row| row == [1.0, 2.0, 3.0, 4.0]));
        let y = gpu.linear(&gpu.zeros(n, 0), &gpu.zeros(0, 4), Order::InOut, Some(&v));
        assert!(read(gpu, &y).chunks_exact(4).all(|row| row == [1.0, 2.0, 3.0, 4.0]));
    }
}

#[test]
fn scattering_is_deterministic() {
    // Every row of the table is hit hundreds of times, in an order that does not depend on the device.
    let (n, c) = (3001, 33);
    let ids: Vec<u32> = (0..n as u32).map(|i| i * i % 7).collect();
    for gpu in gpus() {
        let dy = matrix(gpu, n, c, 1);
        let once = || {
            let mut table = gpu.zeros(7, c);
            gpu.add_rows(&ids, &dy, 0..n, &mut table);
            read(gpu, &table).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let first = once();
        (0..5).for_each(|_| assert_eq!(first, once()));
    }
}
