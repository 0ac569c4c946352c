//! The GPU against the CPU in double precision: every op and its backward, the decoder, and PyTorch's word on a tiny GPT-2.
//!
//! Each comparison runs twice: as the adapter is, and as if it bound 64 KiB at once, so that matrices are worked on in windows. Without
//! an adapter the tests say so and pass, unless FERRET_REQUIRE_GPU=1.
#![cfg(feature = "gpu")]

use ferret::backend::{Backend, Compute, Cpu, Gpu, Memory, SampleNorms, Updates};
use ferret::model::Activation;
use ferret::ops::Segments;
use ferret::ops::clip::ClipFunction;
use ferret::ops::compress::Address;
use ferret::ops::cross_entropy::IGNORE;
use ferret::ops::update::{Constants, Step};
use ferret::rng::{Direction, DirectionStream};
use std::sync::OnceLock;

mod gpu_decoder;

/// The adapter as it is, and with a small binding limit; nothing if there is no adapter.
pub fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| match Gpu::new(None) {
        Ok(gpu) => {
            println!("adapter: {} ({})", gpu.info().name, gpu.info().driver);
            vec![gpu, Gpu::with_binding_limit(None, 64 << 10).unwrap()]
        }
        Err(e) => {
            assert!(std::env::var("FERRET_REQUIRE_GPU").as_deref() != Ok("1"), "FERRET_REQUIRE_GPU=1 is set: {e}");
            println!("skipped: {e}");
            Vec::new()
        }
    })
}

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

fn matrix<B: Backend>(b: &B, rows: usize, cols: usize, seed: u64) -> B::Tensor {
    b.upload(rows, cols, noise(rows * cols, seed)).unwrap()
}

fn read<B: Backend>(b: &B, x: &B::Tensor) -> Vec<f32> {
    b.download(x).unwrap()
}

#[test]
fn memory() {
    for (n, c) in [(0, 3), (1, 1), (5, 7), (33, 64), (3000, 5)] {
        parity!(
            0.0,
            |b| {
                let x = matrix(b, n, c, 1);
                assert_eq!(b.shape(&x), (n, c));
                vec![read(b, &x), read(b, &b.zeros(n, c)), read(b, &b.rows(&x, n / 3..n)), read(b, &b.rows(&x, 0..0))]
            },
            "{n} x {c}"
        );
    }
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
                let (x, w, bias, dy) = (matrix(b, n, i, 1), matrix(b, i, o, 2), matrix(b, 1, o, 3), matrix(b, n, o, 4));
                let mut dw = matrix(b, i, o, 5);
                b.add_outer(&x, &dy, n / 4..n, &mut dw);
                let head = matrix(b, o, i, 6);
                let mut dh = matrix(b, n + 3, i, 7);
                b.head_input(&dy, &head, &mut dh, 2);
                vec![
                    read(b, &b.linear(&x, &w, Some(&bias))),
                    read(b, &b.linear(&x, &w, None)),
                    read(b, &b.linear_input(&dy, &w)),
                    read(b, &dw),
                    read(b, &b.head(&x, &head)),
                    read(b, &dh),
                ]
            },
            "{n} x {i} x {o}"
        );
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
                let (tokens, wpe) = (matrix(b, v, c, 1), matrix(b, ids.len() + 1, c, 2));
                let x = b.embed(&ids, &positions, &tokens, &wpe);
                let mut y = matrix(b, ids.len(), c, 3);
                b.add_gather(&ids, &tokens, &mut y);
                let mut table = matrix(b, v, c, 4);
                b.add_rows(&ids, &y, ids.len() / 5..ids.len(), &mut table);
                vec![read(b, &x), read(b, &y), read(b, &table)]
            },
            "{} of {v} x {c}",
            ids.len()
        );
    }
}

#[test]
fn norms() {
    for (n, c) in [(1, 3), (5, 33), (70, 256), (0, 4), (3, 769), (200, 64)] {
        parity!(
            1e-5,
            |b| {
                let (x, gain, bias) = (matrix(b, n, c, 1), matrix(b, 1, c, 2), matrix(b, 1, c, 3));
                let (y, stats) = b.norm(&x, &gain, &bias, 1e-5);
                let (mut kept, mut spent) = (matrix(b, n, c, 4), matrix(b, n, c, 4));
                let (mut dx, mut dx_again) = (matrix(b, n, c, 5), matrix(b, n, c, 5));
                b.norm_backward(&mut kept, &x, &stats, &gain, false, &mut dx);
                b.norm_backward(&mut spent, &x, &stats, &gain, true, &mut dx_again);
                let (x_dot, gain_dot, bias_dot) = (matrix(b, n, c, 6), matrix(b, 1, c, 7), matrix(b, 1, c, 8));
                let jvp = |gain_dot, bias_dot| read(b, &b.norm_jvp(&x, &x_dot, &stats, &gain, gain_dot, bias_dot));
                vec![
                    read(b, &y),
                    read(b, &stats),
                    read(b, &kept),
                    read(b, &spent),
                    read(b, &dx),
                    read(b, &dx_again),
                    jvp(None, None),
                    jvp(Some(&gain_dot), None),
                    jvp(None, Some(&bias_dot)),
                    jvp(Some(&gain_dot), Some(&bias_dot)),
                ]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn attention() {
    for (lengths, heads, width) in [
        (vec![1], 1, 1),
        (vec![3, 0, 1, 6], 2, 3),
        (vec![67, 2, 0], 1, 4),
        (vec![0, 0], 2, 4),
        (vec![], 2, 4),
        (vec![33, 32, 31, 1, 8, 9], 3, 5),
        (vec![40], 2, 64),
        (vec![20, 17], 1, 80),
        (vec![9], 1, 160),
    ] {
        let segments = Segments::from_lengths(lengths.clone());
        let (n, c, scale) = (segments.rows(), heads * width, 0.7 / (width as f64).sqrt());
        parity!(
            2e-5,
            |b| {
                let qkv = matrix(b, n, 3 * c, 1);
                let (out, lse) = b.attention(&qkv, &segments, heads, scale);
                let dout = matrix(b, n, c, 2);
                let dqkv = b.attention_backward(&dout, &out, &lse, &qkv, &segments, heads, scale);
                let qkv_dot = matrix(b, n, 3 * c, 3);
                let out_dot = b.attention_jvp(&qkv, &qkv_dot, &lse, &segments, heads, scale);
                vec![read(b, &out), read(b, &lse), read(b, &dqkv), read(b, &out_dot)]
            },
            "{lengths:?}, {heads} heads of {width}"
        );
    }
}

#[test]
fn attention_with_a_cache() {
    let (heads, c, n) = (2, 12, 75);
    parity!(
        2e-5,
        |b| {
            let qkv = matrix(b, n, 3 * c, 1);
            let (mut keys, mut values) = (b.zeros(80, c), b.zeros(80, c));
            let mut outs = Vec::new();
            for (past, end) in [(0, 1), (1, 2), (2, 40), (40, 41), (41, n)] {
                let out = b.attention_cached(&b.rows(&qkv, past..end), &mut keys, &mut values, past, heads, 0.3);
                outs.push(read(b, &out));
            }
            outs.push(read(b, &keys));
            outs.push(read(b, &values));
            outs
        },
        "a cache"
    );
}

#[test]
fn large_scores_do_not_overflow() {
    let segments = Segments::from_lengths([40]);
    parity!(
        1e-4,
        |b| {
            let data = noise(40 * 12, 1).iter().map(|x| x * 100.0).collect();
            let qkv = b.upload(40, 12, data).unwrap();
            let (out, lse) = b.attention(&qkv, &segments, 1, 1.0);
            let dqkv = b.attention_backward(&matrix(b, 40, 4, 2), &out, &lse, &qkv, &segments, 1, 1.0);
            vec![read(b, &out), read(b, &lse), read(b, &dqkv)]
        },
        "scores in the tens of thousands"
    );
}

#[test]
fn activations() {
    // Arguments where tanh and exp fail on some drivers, and where a product with infinity would be NaN.
    let mut wild =
        vec![-1e30f32, -1e4, -100.0, -44.5, -30.0, -9.0, -6.1, -3.0, -2.9, -1.3, -1.2, -0.9, -0.8, -1e-6, 0.0];
    wild.extend(wild.clone().iter().map(|x| -x));
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        parity!(
            1e-6,
            |b| {
                let x = b.upload(1, wild.len(), wild.clone()).unwrap();
                let mut slope = b.upload(1, wild.len(), vec![1.0; wild.len()]).unwrap();
                b.activation_backward(kind, &x, &mut slope);
                let y: Vec<f32> = read(b, &b.activation(kind, &x)).iter().map(|y| y.clamp(-50.0, 50.0)).collect();
                let slope = read(b, &slope);
                assert!(y.iter().chain(&slope).all(|x| x.is_finite()));
                vec![y, slope]
            },
            "{kind:?}, large arguments"
        );
        for (n, c) in [(1, 1), (5, 7), (300, 67), (0, 3)] {
            parity!(
                2e-6,
                |b| {
                    let x = b.upload(n, c, noise(n * c, 1).iter().map(|x| 2.0 * x).collect()).unwrap();
                    let mut dy = matrix(b, n, c, 2);
                    b.activation_backward(kind, &x, &mut dy);
                    vec![read(b, &b.activation(kind, &x)), read(b, &dy)]
                },
                "{kind:?}, {n} x {c}"
            );
        }
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
            let (mut x, gain, bias) = (matrix(b, n, c, 1), matrix(b, 1, c, 2), matrix(b, 1, c, 3));
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
        let y = gpu.linear(&gpu.zeros(n, 0), &gpu.zeros(0, 4), Some(&v));
        assert!(read(gpu, &y).chunks_exact(4).all(|row| row == [1.0, 2.0, 3.0, 4.0]));
    }
}

#[test]
fn directions() {
    for (kind, tolerance) in [(Direction::Rademacher, 0.0), (Direction::Sphere, 2e-6)] {
        let stream = DirectionStream::new(42, 3, 5, kind, 300_001);
        for (offset, rows, cols) in
            [(0, 1, 1), (0, 3, 16), (17, 5, 7), (512, 64, 512), (1023, 30, 601), (300_000, 1, 1), (9, 0, 4)]
        {
            parity!(
                tolerance,
                |b| vec![read(b, &b.direction(&stream, offset, rows, cols))],
                "{kind:?}, {rows} x {cols} from {offset}"
            );
        }
    }
}

#[test]
fn writing_again_waits_its_turn() {
    for gpu in gpus() {
        for (rows, n) in [(1, 10), (1 << 14, 1 << 18)] {
            let mut x = gpu.upload(rows, n / rows, vec![1.0; n]).unwrap();
            let mut sum = gpu.zeros(rows, n / rows);
            for i in 0..5 {
                gpu.add(&mut sum, &x);
                gpu.write(&mut x, &vec![i as f32; n]).unwrap();
            }
            gpu.add(&mut sum, &x);
            assert!(read(gpu, &sum).iter().all(|&s| s == 1.0 + 0.0 + 1.0 + 2.0 + 3.0 + 4.0));
            assert!(gpu.write(&mut x, &[0.0]).is_err());
        }
    }
}

#[test]
fn sample_norms() {
    let segments = Segments::from_lengths([5, 0, 1, 32, 33, 70]);
    let n = segments.rows();
    // 20 x 9 is materialised from 13 rows on; of 7 x 700 and 300 x 41 a sample's rows, or the matrix, do not fit the small limit.
    for (inputs, outputs) in [(20, 9), (64, 64), (1, 1), (7, 700), (300, 41), (3, 200)] {
        parity!(
            5e-6,
            |b| {
                let (x, dy) = (matrix(b, n, inputs, 1), matrix(b, n, outputs, 2));
                let mut squares = b.upload(8, 1, vec![3.0; 8]).unwrap();
                b.add_outer_squares(&x, &dy, &segments, &mut squares, 2);
                vec![read(b, &squares), read(b, &b.segment_sums(&dy, &segments))]
            },
            "{inputs} x {outputs}"
        );
    }
    let empty = Segments::from_lengths([0, 0]);
    parity!(
        0.0,
        |b| {
            let mut squares = b.upload(2, 1, vec![3.0; 2]).unwrap();
            b.add_outer_squares(&b.zeros(0, 3), &b.zeros(0, 2), &empty, &mut squares, 0);
            b.add_row_squares(&[], &b.zeros(0, 3), &empty, &mut squares, 0);
            vec![read(b, &squares), read(b, &b.segment_sums(&b.zeros(0, 3), &empty))]
        },
        "no rows"
    );
}

#[test]
fn sample_norms_of_embeddings() {
    let segments = Segments::from_lengths([5, 0, 1, 32, 33]);
    let n = segments.rows();
    for (v, c) in [(7, 33), (101, 64), (600, 12)] {
        let ids: Vec<u32> = (0..n + 4).map(|i| (i * i % v) as u32).collect();
        parity!(
            5e-6,
            |b| {
                let (x, h, demb) = (matrix(b, n + 3, v, 1), matrix(b, n + 3, c, 2), matrix(b, n + 4, c, 3));
                let mut rows = b.upload(6, 1, vec![3.0; 6]).unwrap();
                b.add_row_squares(&ids[..n], &demb, &segments, &mut rows, 1);
                let mut tied = b.upload(6, 1, vec![3.0; 6]).unwrap();
                b.add_tied_squares((&x, &h, 3), (&ids, &demb, 2), &segments, &mut tied, 1);
                vec![read(b, &rows), read(b, &tied)]
            },
            "{v} x {c}"
        );
    }
}

#[test]
fn clipping() {
    let segments = Segments::from_lengths([5, 0, 1, 300]);
    for function in [ClipFunction::Abadi, ClipFunction::AUTOMATIC, ClipFunction::None] {
        parity!(
            1e-5,
            |b| {
                let mut factors = b.upload(7, 1, vec![9.0, 0.25, 0.0, -1e-9, f32::NAN, f32::INFINITY, 4.0]).unwrap();
                b.clip_factors(function, 1.5, &mut factors);
                let (mut scaled, mut dropped) = (matrix(b, 306, 65, 1), matrix(b, 306, 65, 2));
                b.scale_rows(&mut scaled, &segments, &factors, 3);
                b.drop_rows(&mut dropped, &segments, &factors, 3);
                vec![read(b, &factors), read(b, &scaled), read(b, &dropped)]
            },
            "{function:?}"
        );
    }
    // What is not finite is removed, not multiplied by 0; and the bound holds.
    for gpu in gpus() {
        let factors = gpu.upload(1, 1, vec![0.0]).unwrap();
        let mut x = gpu.upload(1, 3, vec![f32::NAN, f32::INFINITY, 1.0]).unwrap();
        gpu.scale_rows(&mut x, &Segments::from_lengths([1]), &factors, 0);
        assert_eq!(read(gpu, &x), [0.0; 3]);
        for seed in 0..20 {
            let g: Vec<f32> = noise(5000, seed).iter().map(|g| g * 10f32.powi(seed as i32 % 9 - 4)).collect();
            let norm = |g: &[f32]| g.iter().map(|&g| g as f64 * g as f64).sum::<f64>().sqrt();
            let mut x = gpu.upload(1, 5000, g.clone()).unwrap();
            let one = Segments::from_lengths([1]);
            let mut squares = gpu.zeros(1, 1);
            gpu.add_row_squares(&[0], &x, &one, &mut squares, 0);
            let bound = norm(&g) * 0.999;
            gpu.clip_factors(ClipFunction::Abadi, bound, &mut squares);
            gpu.scale_rows(&mut x, &one, &squares, 0);
            let clipped = norm(&read(gpu, &x));
            assert!(clipped <= bound && clipped > 0.998 * bound, "{clipped:e}, bound {bound:e}");
        }
    }
}

#[test]
fn several_downloads_at_once() {
    if gpus().is_empty() {
        return;
    }
    // Its own device: submissions are counted.
    let gpu = Gpu::new(None).unwrap();
    let shapes = [(3, 5), (0, 4), (4, 0), (1, 1), (70, 33), (2000, 3000), (2000, 3001), (1, 7)];
    let data: Vec<Vec<f32>> = shapes.iter().enumerate().map(|(i, (r, c))| noise(r * c, i as u64)).collect();
    let up = |((r, c), d): (&(usize, usize), &Vec<f32>)| gpu.upload(*r, *c, d.clone()).unwrap();
    let tensors: Vec<_> = shapes.iter().zip(&data).map(up).collect();
    gpu.finish().unwrap();
    let before = gpu.submissions();
    assert!(gpu.download_all(&tensors.iter().collect::<Vec<_>>()).unwrap() == data);
    assert_eq!(gpu.submissions() - before, 2, "staging memory holds several tensors");
    let before = gpu.submissions();
    assert!(gpu.download_all(&tensors[..5].iter().collect::<Vec<_>>()).unwrap() == data[..5]);
    assert_eq!(gpu.submissions() - before, 1, "one wait");
    assert!(gpu.download_all(&[]).unwrap().is_empty());
}

#[test]
fn rows_of_directions() {
    for (kind, tolerance) in [(Direction::Rademacher, 0.0), (Direction::Sphere, 2e-6)] {
        for (offset, v, cols) in [(0, 9, 16), (17, 40, 7), (1023, 30, 601), (5, 3, 1)] {
            let stream = DirectionStream::new(42, 3, 5, kind, offset + v * cols);
            let ids: Vec<u32> = [v - 1, 0, v / 2, v / 2, 1].map(|i| i as u32).to_vec();
            parity!(
                tolerance,
                |b| vec![
                    read(b, &b.direction_rows(&stream, offset, &ids, cols)),
                    read(b, &b.direction_rows(&stream, offset, &[], cols)),
                ],
                "{kind:?}, {v} x {cols} from {offset}"
            );
        }
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

const K: Constants = Constants { keep_m: 0.9, take_m: 0.1, keep_v: 0.999, take_v: 0.001, eps: 1e-8 };

/// The constants of AdamW's steps `from..to`.
fn steps(from: i32, to: i32) -> Vec<Step> {
    (from..to)
        .map(|t| Step {
            decay: 1.0 - 1e-5 * t as f32,
            rate: (1e-2 / (1.0 - 0.9f64.powi(t))) as f32,
            correction: (1.0 / (1.0 - 0.999f64.powi(t)).sqrt()) as f32,
        })
        .collect()
}

#[test]
fn updates() {
    for (n, c) in [(1, 1), (1, 7), (33, 5), (70, 256), (3, 1000), (300, 65)] {
        parity!(
            2e-6,
            |b| {
                let (mut w, g) = (matrix(b, n, c, 1), matrix(b, n, c, 2));
                let mut lone = matrix(b, n, c, 3);
                let (mut m, mut v) = (b.zeros(n, c), b.zeros(n, c));
                b.adamw(&mut w, (&mut m, &mut v), &g, 0, -0.5, &steps(1, 2)[0], &K);
                // 150 idle steps are more than one dispatch takes.
                b.adamw_idle(&mut w, (&mut m, &mut v), &steps(2, 152), &K);
                let later = b.rows(&g, n / 3..n);
                b.adamw(&mut w, (&mut m, &mut v), &later, n / 3, 2.0, &steps(152, 153)[0], &K);
                b.decay(&mut lone, &steps(1, 40));
                b.subtract(&mut lone, &later, n / 3, 0.25);
                vec![read(b, &w), read(b, &m), read(b, &v), read(b, &lone)]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn small_moments_are_flushed_as_on_the_cpu() {
    let g: Vec<f32> = (0..90).map(|i| 10f32.powi(-(i % 45))).collect();
    parity!(
        2e-6,
        |b| {
            let (mut w, g) = (b.upload(1, 90, vec![1.0; 90]).unwrap(), b.upload(1, 90, g.clone()).unwrap());
            let (mut m, mut v) = (b.zeros(1, 90), b.zeros(1, 90));
            b.adamw(&mut w, (&mut m, &mut v), &g, 0, 1.0, &steps(1, 2)[0], &K);
            b.adamw_idle(&mut w, (&mut m, &mut v), &steps(2, 300), &K);
            let zeros = |x: Vec<f32>| x.iter().map(|&x| f32::from(u8::from(x == 0.0))).collect::<Vec<_>>();
            vec![read(b, &w), zeros(read(b, &m)), zeros(read(b, &v))]
        },
        "gradients from 1 to 1e-44"
    );
}

/// A run that resumes catches up in other portions than one that goes on.
#[test]
fn catching_up_in_portions_gives_the_same_bits() {
    for gpu in gpus() {
        let run = |portions: &[i32]| {
            let (mut w, g) = (matrix(gpu, 31, 33, 1), matrix(gpu, 31, 33, 2));
            let (mut m, mut v) = (gpu.zeros(31, 33), gpu.zeros(31, 33));
            gpu.adamw(&mut w, (&mut m, &mut v), &g, 0, 1.0, &steps(1, 2)[0], &K);
            for pair in portions.windows(2) {
                gpu.adamw_idle(&mut w, (&mut m, &mut v), &steps(pair[0], pair[1]), &K);
            }
            [&w, &m, &v].map(|x| read(gpu, x).iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        let whole = run(&[2, 202]);
        assert_eq!(whole, run(&[2, 3, 9, 66, 67, 202]));
        assert_eq!(whole, run(&(2..=202).collect::<Vec<_>>()));
    }
}

#[test]
fn signs_of_gradients() {
    for (n, c) in [(1, 1), (1, 700), (33, 5), (70, 256), (513, 3), (300, 65)] {
        // Ties in every block, and what is not a number.
        let mut x: Vec<f32> = noise(n * c, 1).iter().map(|x| if x.abs() < 0.2 { 0.0 } else { *x }).collect();
        x[n * c / 2] = f32::NAN;
        let at = Address { seed: 7, step: 3, tensor: 5 };
        parity!(
            0.0,
            |b| {
                let mut x = b.upload(n, c, x.clone()).unwrap();
                b.signs(&mut x, at);
                vec![read(b, &x)]
            },
            "{n} x {c}"
        );
        parity!(
            3e-6,
            |b| {
                let mut memory = matrix(b, n, c, 4);
                let mut sent = Vec::new();
                for step in 0..3 {
                    let mut x = matrix(b, n, c, 5 + step);
                    b.signs_with_memory(&mut x, &mut memory, Address { step: step as u32, ..at });
                    sent.push(read(b, &x));
                }
                sent.push(read(b, &memory));
                sent
            },
            "with memory, {n} x {c}"
        );
    }
}

#[test]
fn rounding_to_levels() {
    for (n, c) in [(1, 1), (1, 511), (1, 1500), (33, 5), (70, 256), (515, 12), (40, 64)] {
        for bits in [2, 4, 8] {
            let at = Address { seed: 7, step: 3, tensor: 5 };
            let mut data = noise(n * c, 1);
            data[0] = 0.0;
            let mut want = data.clone();
            ferret::ops::compress::quantise(&mut want, bits, at);
            for gpu in gpus() {
                let mut x = gpu.upload(n, c, data.clone()).unwrap();
                gpu.quantise(&mut x, bits, at);
                let got = read(gpu, &x);
                let mut off = 0;
                for (bucket, (got, want)) in got.chunks(512).zip(want.chunks(512)).enumerate() {
                    let x = &data[bucket * 512..][..got.len()];
                    let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32;
                    let level = norm / ((1 << (bits - 1)) - 1) as f32;
                    for (g, w) in got.iter().zip(want) {
                        // A word that lies between the two fractions rounds to the neighbouring level.
                        assert!((g - w).abs() <= 1.001 * level, "{g}, not {w}");
                        off += usize::from((g - w).abs() > 1e-5 * norm);
                    }
                }
                assert!(off * 1000 <= n * c, "{off} of {} elements are rounded otherwise", n * c);
            }
        }
    }
    // A bucket of zeros stays one.
    for gpu in gpus() {
        let mut x = gpu.zeros(3, 400);
        gpu.quantise(&mut x, 4, Address { seed: 1, step: 2, tensor: 3 });
        assert!(read(gpu, &x).iter().all(|&x| x == 0.0));
    }
}
