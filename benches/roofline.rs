//! This machine's limits, and what share of its own limit every op, a training step and decoding reach: `cargo bench --bench roofline` (or `-- ops`, `-- steps`, `-- decode` for one part).
//!
//! The limits: the rate of fused multiply-adds out of registers, the best f32 product by matrixmultiply and by this engine (one thread, all threads),
//! and the bandwidth of memory (a sum over 1 GiB). A product's bound is its operations over the best product's rate; the bound of an op that
//! only passes over memory is the numbers it must read and write over the bandwidth: above 100 % means that they were still in a cache.
//! Rates are re-measured around every row of a step, because clocks move.

mod common;

use common::{batch, forward_flops, gpt2, noise, small, time, weights};
use ferret::backend::{Cpu, Memory};
use ferret::grad::Sum;
use ferret::kernel::{Onto, Stored, matmul};
use ferret::model::{Activation, Config, Decoder, Reduction};
use ferret::ops::{Heads, Order, Segments, activation, attention, cross_entropy, linear, norm, residual};
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use ndarray::{Array2, s};
use rayon::prelude::*;
use std::hint::black_box;

const SHAPES: [(usize, usize, usize); 5] =
    [(1024, 1024, 1024), (512, 768, 3072), (512, 3072, 768), (768, 512, 3072), (512, 768, 50257)];

fn main() {
    let only = std::env::args().nth(1).filter(|a| !a.starts_with("--"));
    let wanted = |part: &str| only.as_deref().is_none_or(|o| o == part);
    let threads = rayon::current_num_threads();
    println!("threads: {threads}");
    let bandwidth = bandwidth();
    println!("memory, sum over 1 GiB, {threads} threads: {bandwidth:.1} GB/s\n");
    if only.as_deref() == Some("decode") {
        return decode(gpt2());
    }
    println!("{:<18} {:>22} {:>22}", "f32 products", "matrixmultiply", "this engine");
    println!(
        "{:<18} {:>10} {:>11} {:>10} {:>11}   GFLOP/s, fastest",
        "m x k x n", "1 thread", "all", "1 thread", "all"
    );
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one thread");
    let mut best = [0f64; 4];
    for (m, k, n) in SHAPES {
        let row = [
            one.install(|| product(m, k, n, by_matrixmultiply)),
            product(m, k, n, by_matrixmultiply),
            one.install(|| product(m, k, n, ours)),
            product(m, k, n, ours),
        ];
        best.iter_mut().zip(row).for_each(|(b, r)| *b = b.max(r));
        println!("{:<18} {:>10.0} {:>11.0} {:>10.0} {:>11.0}", format!("{m}x{k}x{n}"), row[0], row[1], row[2], row[3]);
    }
    println!("{:<18} {:>10.0} {:>11.0} {:>10.0} {:>11.0}\n", "best", best[0], best[1], best[2], best[3]);
    if wanted("ops") {
        ops(best[3], bandwidth);
        println!();
    }
    if wanted("steps") {
        println!(
            "{:<28} {:>8} {:>9} {:>15} {:>17} {:>12}",
            "whole steps", "median s", "GFLOP/s", "of its products", "of matrixmultiply", "of best"
        );
        step("gpt2 124M, 4 x 128", gpt2(), 4, 128, 5, &best);
        step("gpt2 124M, 4 x 256", gpt2(), 4, 256, 3, &best);
        step("small, 16 x 128", small(), 16, 128, 30, &best);
        println!();
    }
    if wanted("decode") {
        decode(gpt2());
    }
}

/// Add up `x` on all threads, each in eight streams: one stream does not fill the memory's bandwidth.
fn pass_over(x: &[f32]) {
    const PART: usize = 1 << 13;
    let sum = |x: &[f32]| {
        let streams: [&[[f32; 16]]; 8] = std::array::from_fn(|s| x[s * PART..(s + 1) * PART].as_chunks().0);
        let mut sums = [0f32; 16];
        for i in 0..PART / 16 {
            for stream in streams {
                sums.iter_mut().zip(&stream[i]).for_each(|(s, x)| *s += x);
            }
        }
        sums.iter().sum::<f32>()
    };
    black_box(x.par_chunks_exact(8 * PART).map(sum).sum::<f32>());
}

/// GB/s of adding up 1 GiB.
fn bandwidth() -> f64 {
    let x = vec![1f32; 1 << 28];
    let (_, fastest) = time(5, || pass_over(&x));
    (4 * x.len()) as f64 / fastest.as_secs_f64() / 1e9
}

fn matrix(rows: usize, cols: usize, seed: u64) -> Array2<f32> {
    Array2::from_shape_vec((rows, cols), noise(rows * cols, seed)).expect("the length is the shape's")
}

fn ours(a: &Array2<f32>, b: &Array2<f32>, c: &mut Array2<f32>) {
    matmul(a.view(), b.view(), Onto::Zero, c.view_mut());
}

/// matrixmultiply with the columns of C split over the threads.
fn by_matrixmultiply(a: &Array2<f32>, b: &Array2<f32>, c: &mut Array2<f32>) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    let width = n.div_ceil(rayon::current_num_threads()).next_multiple_of(32);
    let pieces: Vec<_> = c.axis_chunks_iter_mut(ndarray::Axis(1), width).enumerate().collect();
    pieces.into_par_iter().for_each(|(i, mut c)| {
        let (n_row, stride) = (c.ncols(), c.strides()[0]);
        // SAFETY: the pieces of C are disjoint views, and A and B have the sizes stated.
        unsafe {
            let b = b.as_ptr().add(i * width);
            matrixmultiply::sgemm(
                m,
                k,
                n_row,
                1.0,
                a.as_ptr(),
                k as isize,
                1,
                b,
                n as isize,
                1,
                0.0,
                c.as_mut_ptr(),
                stride,
                1,
            );
        }
    });
}

/// GFLOP/s of one product: the fastest of several.
fn product(m: usize, k: usize, n: usize, f: fn(&Array2<f32>, &Array2<f32>, &mut Array2<f32>)) -> f64 {
    let (a, b, mut c) = (matrix(m, k, 1), matrix(k, n, 2), Array2::zeros((m, n)));
    let flops = 2.0 * (m * k * n) as f64;
    let (_, fastest) = time((2e10 / flops).clamp(3.0, 15.0) as usize, || f(&a, &b, &mut c));
    flops / fastest.as_secs_f64() / 1e9
}

/// Every op at the GPT-2 124M shape, 4 x 128 tokens.
fn ops(peak: f64, bandwidth: f64) {
    const N: usize = 512;
    const C: usize = 768;
    println!("{:<36} {:>10} {:>12} {:>9}   at 512 x 768, GPT-2 124M", "op", "median ms", "rate", "of bound");
    let flops = |name: &str, flops: usize, f: &mut dyn FnMut()| {
        let seconds = time(9, f).0.as_secs_f64();
        let rate = flops as f64 / seconds / 1e9;
        println!("{name:<36} {:>10.3} {rate:>7.0} GF/s {:>8.0}%", seconds * 1e3, 100.0 * rate / peak);
    };
    for (i, o) in [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)] {
        let (x, w, bias, dy) = (matrix(N, i, 1), matrix(i, o, 2), noise(o, 3), matrix(N, o, 4));
        let (mut y, mut dx, mut dw) = (matrix(N, o, 5), matrix(N, i, 6), matrix(i, o, 7));
        let work = 2 * N * i * o;
        flops(&format!("linear {i} -> {o}"), work, &mut || {
            linear::forward(x.view(), w.view(), Order::InOut, Some(&bias), y.view_mut());
        });
        flops("  backward to input", work, &mut || {
            linear::backward_input(dy.view(), w.view(), Order::InOut, false, dx.view_mut());
        });
        flops("  backward to weight", work, &mut || linear::backward_weight(x.view(), dy.view(), dw.view_mut()));
    }
    for length in [64, 128, 256, 1024] {
        let samples = (N / length).max(1);
        let segments = Segments::from_lengths(vec![length; samples]);
        let n = segments.rows();
        let (qkv, dout) = (matrix(n, 3 * C, 1), matrix(n, C, 2));
        let (mut out, mut lse, mut dqkv) = (matrix(n, C, 3), Array2::zeros((n, 12)), matrix(n, 3 * C, 4));
        let work = 2 * 2 * samples * C * length * (length + 1) / 2;
        let heads = Heads::plain(12, C / 12, 0.125);
        let parts = || [0, 1, 2].map(|i| qkv.slice(s![.., i * C..(i + 1) * C]));
        flops(&format!("attention {samples} x {length}"), work, &mut || {
            attention::forward(parts(), &segments, &heads, out.view_mut(), lse.view_mut());
        });
        flops("  backward", work * 5 / 2, &mut || {
            let (out, lse) = (out.view(), lse.view());
            let (dq, dk, dv) = dqkv.multi_slice_mut((s![.., ..C], s![.., C..2 * C], s![.., 2 * C..]));
            attention::backward(dout.view(), out, lse, parts(), &segments, &heads, [dq, dk, dv]);
        });
    }
    let bytes = |name: &str, numbers: usize, f: &mut dyn FnMut()| {
        let seconds = time(15, f).0.as_secs_f64();
        let rate = 4.0 * numbers as f64 / seconds / 1e9;
        println!("{name:<36} {:>10.3} {rate:>7.1} GB/s {:>8.0}%", seconds * 1e3, 100.0 * rate / bandwidth);
    };
    let (x, gain, bias) = (matrix(N, C, 1), noise(C, 2), noise(C, 3));
    let (mut y, mut stats, mut dx, mut dy) = (matrix(N, C, 5), Array2::zeros((N, 2)), matrix(N, C, 6), matrix(N, C, 4));
    bytes("layer norm", 2 * N * C, &mut || {
        norm::forward(x.view(), &gain, &bias, 1e-5, y.view_mut(), stats.view_mut());
    });
    bytes("  backward", 4 * N * C, &mut || {
        norm::backward(dy.view_mut(), x.view(), stats.view(), &gain, false, dx.view_mut());
    });
    bytes("residual", 3 * N * C, &mut || residual::add(y.view_mut(), x.view()));
    let (h, mut a) = (matrix(N, 4 * C, 7), matrix(N, 4 * C, 8));
    bytes("gelu", 8 * N * C, &mut || activation::forward(Activation::GeluTanh, h.view(), a.view_mut()));
    bytes("  backward", 12 * N * C, &mut || activation::backward(Activation::GeluTanh, h.view(), a.view_mut()));
    let mut logits = matrix(N, 50257, 11);
    let (targets, row_weights, mut losses) = (vec![17; N], vec![1.0; N], vec![0.0; N]);
    bytes("cross-entropy", N * 50257, &mut || cross_entropy::forward(logits.view(), &targets, &mut losses));
    bytes("  forward and backward", 2 * N * 50257, &mut || {
        cross_entropy::forward_backward(logits.view_mut(), &targets, &row_weights, &mut losses);
    });
    let len = 50257 * C;
    let b = Cpu::<f32>::new();
    let mut w = b.weight(50257, C, Stored::F32(noise(len, 12))).expect("it fits");
    let g = b.upload(50257, C, noise(len, 13)).expect("it fits");
    let mut adamw = Updates::adamw(1, 1000, Hyper::new(1e-4, 1e-3), Schedule::Constant, Silent::Zero);
    let mut at = 0;
    bytes("AdamW", 7 * len, &mut || {
        let gradient = Gradient::Whole { tensor: &g, scale: 1.0 };
        adamw.step(&b, at, ferret::model::ParamId(0), &mut w, gradient);
        at += 1;
    });
}

/// Forward and backward, against the products it is made of (each timed alone, in the same shapes) and against the best products.
fn step(name: &str, config: Config, samples: usize, length: usize, runs: usize, best: &[f64; 4]) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone())).expect("weights fit");
    let batch = batch(&config, samples, length);
    let row_weights = batch.weights(Reduction::SampleMean);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let mut run = || {
        let (median, _) = time(runs, || drop(decoder.backward(&batch, &row_weights, &mut sum)));
        median.as_secs_f64()
    };
    let seconds = run();
    let products = products(&config, samples * length);
    let flops = 3.0 * forward_flops(&config, samples * length, length);
    let rate = flops / seconds / 1e9;
    println!(
        "{name:<28} {seconds:>8.3} {rate:>9.0} {:>14.0}% {:>16.0}% {:>11.0}%",
        100.0 * products / seconds,
        100.0 * rate / best[1],
        100.0 * rate / best[3]
    );
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one thread");
    let (alone, products_alone) = one.install(|| (run(), self::products(&config, samples * length)));
    println!(
        "{:<28} {alone:>8.3}   from one thread to all: step {:.2} x, its products {:.2} x",
        "  on one thread",
        alone / seconds,
        products_alone / products
    );
}

/// Seconds of all weight products of one forward and backward, each in its own shape, timed alone.
fn products(config: &Config, rows: usize) -> f64 {
    let c = config.width;
    let layers = config.layers as f64;
    let linears = [
        (c, 3 * c, layers),
        (c, c, layers),
        (c, config.inner, layers),
        (config.inner, c, layers),
        (c, config.vocab, 1.0),
    ];
    let mut total = 0.0;
    for (i, o, times) in linears {
        let (x, dy) = (matrix(rows, i, 1), matrix(rows, o, 2));
        // The output head's weight lies transposed.
        let head = o == config.vocab;
        let stored = if head { matrix(o, i, 3) } else { matrix(i, o, 3) };
        let w = if head { stored.t() } else { stored.view() };
        let (mut y, mut dx, mut dw) = (Array2::zeros((rows, o)), Array2::zeros((rows, i)), Array2::zeros(stored.dim()));
        let (left, right) = if head { (dy.t(), x.view()) } else { (x.t(), dy.view()) };
        let median = |f: &mut dyn FnMut()| time(5, f).0.as_secs_f64();
        total += times * median(&mut || matmul(x.view(), w, Onto::Zero, y.view_mut()));
        total += times * median(&mut || matmul(dy.view(), w.reversed_axes(), Onto::Zero, dx.view_mut()));
        total += times * median(&mut || matmul(left, right, Onto::Itself, dw.view_mut()));
    }
    total
}

/// One token after the other with the key-value cache: every weight is read once a token. Tokens and passes over as much other memory are
/// taken in turn, since the bandwidth moves with what else the machine does.
fn decode(config: Config) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config)).expect("weights fit");
    // Of the position table one row is read, and the token table is read whole as the output head.
    let positions = decoder.layout.positions.map_or(0, |p| decoder.layout.spec(p).len());
    let read = decoder.layout.scalars() - positions;
    let mut cache = decoder.cache(256);
    decoder.extend(&mut cache, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("a prompt");
    let other = vec![1f32; read];
    let (mut tokens, mut passes) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        passes.push(time(1, || pass_over(&other)).0.as_secs_f64());
        tokens.push(time(1, || drop(decoder.extend(&mut cache, &[9]).expect("a token"))).0.as_secs_f64());
    }
    let median = |x: &mut Vec<f64>| {
        x.sort_by(f64::total_cmp);
        x[x.len() / 2]
    };
    let (token, pass) = (median(&mut tokens), median(&mut passes));
    let rate = |seconds: f64| 4.0 * read as f64 / seconds / 1e9;
    println!(
        "decoding, gpt2 124M: {:.1} tokens/s, weights read at {:.1} GB/s, {:.0}% of the {:.1} GB/s at which memory was read in turn",
        1.0 / token,
        rate(token),
        100.0 * pass / token,
        rate(pass)
    );
}
