//! Every op at the GPT-2 124M shape, 4 x 128 tokens, forward, backward and jvp: `cargo bench --bench ops`.
//!
//! Criterion's element is a floating-point operation for products ("Gelem/s" is GFLOP/s), and a number read or written for the ops
//! that memory bounds; for the train step it is a token. The unit tests check every op; the product is checked once more here before it is timed.

mod common;

use common::{batch, noise, small, weights};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferret::backend::Cpu;
use ferret::grad::Sum;
use ferret::model::{Activation, Decoder, Reduction};
use ferret::ops::{Heads, Order, Segments, activation, attention, cross_entropy, embedding, linear, norm, residual};
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use ndarray::{Array2, s};
use std::hint::black_box;

const N: usize = 512;
const C: usize = 768;
const HEADS: usize = 12;
const V: usize = 50257;

fn matrix(rows: usize, cols: usize, seed: u64) -> Array2<f32> {
    Array2::from_shape_vec((rows, cols), noise(rows * cols, seed)).expect("the length is the shape's")
}

/// One timing of `work` operations or numbers.
fn time(c: &mut Criterion, group: &str, name: &str, work: usize, f: impl FnMut()) {
    let mut f = f;
    let mut group = c.benchmark_group(group);
    group.sample_size(10).throughput(Throughput::Elements(work as u64));
    group.bench_function(name, |b| b.iter(&mut f));
    group.finish();
}

fn check_linear() {
    let (x, w, bias) = (matrix(3, 5, 1), matrix(5, 4, 2), noise(4, 3));
    let mut y = Array2::zeros((3, 4));
    linear::forward(x.view(), w.view(), Order::InOut, Some(&bias), y.view_mut());
    for ((i, j), &got) in y.indexed_iter() {
        let want: f32 = (0..5).map(|k| x[[i, k]] * w[[k, j]]).sum::<f32>() + bias[j];
        assert!((got - want).abs() < 1e-5, "linear is wrong: {got}, not {want}");
    }
}

fn linears(c: &mut Criterion) {
    check_linear();
    for (i, o) in [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)] {
        let (x, w, bias, dy) = (matrix(N, i, 1), matrix(i, o, 2), noise(o, 3), matrix(N, o, 4));
        let (mut y, mut dx, mut dw) = (matrix(N, o, 5), matrix(N, i, 6), matrix(i, o, 7));
        let (group, flops) = (format!("linear {N}x{i}x{o}"), 2 * N * i * o);
        time(c, &group, "forward", flops, || {
            linear::forward(x.view(), w.view(), Order::InOut, Some(&bias), y.view_mut())
        });
        time(c, &group, "backward to input", flops, || {
            linear::backward_input(dy.view(), w.view(), Order::InOut, false, dx.view_mut());
        });
        time(c, &group, "backward to weight", flops, || linear::backward_weight(x.view(), dy.view(), dw.view_mut()));
        let (x_dot, w_dot) = (matrix(N, i, 8), matrix(i, o, 9));
        time(c, &group, "jvp", 2 * flops, || {
            linear::jvp(x.view(), x_dot.view(), (w.view(), Order::InOut), Some(w_dot.view()), None, y.view_mut());
        });
    }
    let (x, w) = (matrix(128, C, 1), matrix(V, C, 2));
    let mut logits = matrix(128, V, 3);
    time(c, "output head 128x768x50257", "forward", 2 * 128 * C * V, || {
        ferret::kernel::matmul(x.view(), w.t(), ferret::kernel::Onto::Zero, logits.view_mut());
    });
}

fn rows(c: &mut Criterion) {
    let (x, gain, bias, dy) = (matrix(N, C, 1), noise(C, 2), noise(C, 3), matrix(N, C, 4));
    let (mut y, mut stats, mut dx, mut dn) = (matrix(N, C, 5), Array2::zeros((N, 2)), matrix(N, C, 6), dy.clone());
    time(c, "layer norm", "forward", 2 * N * C, || {
        norm::forward(x.view(), &gain, &bias, 1e-5, y.view_mut(), stats.view_mut());
    });
    time(c, "layer norm", "backward", 5 * N * C, || {
        norm::backward(dn.view_mut(), x.view(), stats.view(), &gain, false, dx.view_mut());
    });
    time(c, "layer norm", "jvp", 3 * N * C, || {
        norm::jvp(x.view(), dy.view(), stats.view(), &gain, None, None, y.view_mut());
    });
    time(c, "residual", "add", 3 * N * C, || residual::add(y.view_mut(), x.view()));
    let (h, mut a) = (matrix(N, 4 * C, 7), matrix(N, 4 * C, 8));
    for (kind, name) in [(Activation::GeluTanh, "gelu (tanh)"), (Activation::GeluErf, "gelu (erf)")] {
        time(c, name, "forward", 2 * N * 4 * C, || activation::forward(kind, h.view(), a.view_mut()));
        time(c, name, "backward, jvp", 3 * N * 4 * C, || activation::backward(kind, h.view(), a.view_mut()));
    }
    let ids: Vec<u32> = (0..N as u32).map(|i| i * 7919 % V as u32).collect();
    let positions: Vec<u32> = (0..N as u32).map(|i| i % 128).collect();
    let (wte, wpe) = (matrix(V, C, 9), matrix(1024, C, 10));
    let mut dwte = Array2::zeros((V, C));
    time(c, "embedding", "forward", 3 * N * C, || {
        let row = |table: &Array2<f32>, i: u32, to: &mut [f32]| {
            to.copy_from_slice(table.row(i as usize).to_slice().expect("contiguous rows"));
        };
        let learned = Some((&positions[..], |i: u32, to: &mut [f32]| row(&wpe, i, to)));
        embedding::forward(&ids, |i, to| row(&wte, i, to), learned, y.view_mut());
    });
    time(c, "embedding", "backward", 3 * N * C, || embedding::backward(&ids, dy.view(), dwte.view_mut()));
    let mut logits = matrix(128, V, 11);
    let (mut losses, weights) = (vec![0.0; 128], vec![1.0; 128]);
    time(c, "cross-entropy", "forward", 128 * V, || {
        cross_entropy::forward(logits.view(), &ids[..128], black_box(&mut losses));
    });
    time(c, "cross-entropy", "forward and backward", 2 * 128 * V, || {
        cross_entropy::forward_backward(logits.view_mut(), &ids[..128], &weights, &mut losses);
    });
}

fn attentions(c: &mut Criterion) {
    for length in [64, 128, 256, 1024] {
        let samples = (N / length).max(1);
        let segments = Segments::from_lengths(vec![length; samples]);
        let n = segments.rows();
        let (qkv, dout) = (matrix(n, 3 * C, 1), matrix(n, C, 2));
        let (mut out, mut lse, mut dqkv) = (matrix(n, C, 3), Array2::zeros((n, HEADS)), matrix(n, 3 * C, 4));
        // Scores and values, each over the lower triangle.
        let flops = 2 * 2 * samples * C * length * (length + 1) / 2;
        let group = format!("attention {samples} x {length}");
        let heads = Heads::plain(HEADS, C / HEADS, 0.125);
        let parts = || [0, 1, 2].map(|i| qkv.slice(s![.., i * C..(i + 1) * C]));
        time(c, &group, "forward", flops, || {
            attention::forward(parts(), &segments, &heads, out.view_mut(), lse.view_mut());
        });
        time(c, &group, "backward", flops * 5 / 2, || {
            let (out, lse) = (out.view(), lse.view());
            let (dq, dk, dv) = dqkv.multi_slice_mut((s![.., ..C], s![.., C..2 * C], s![.., 2 * C..]));
            attention::backward(dout.view(), out, lse, parts(), &segments, &heads, [dq, dk, dv]);
        });
    }
}

/// A whole non-private step of the small shape, 16 x 128 tokens: forward, backward, AdamW. An element is a token.
fn steps(c: &mut Criterion) {
    let config = small();
    let batch = batch(&config, 16, 128);
    let row_weights = batch.weights(Reduction::SampleMean);
    let mut decoder = Decoder::new(Cpu::<f32>::new(), weights(config)).expect("weights fit");
    let layout = decoder.layout.clone();
    let hyper = Hyper::new(1e-4, 1e-3);
    let mut adamw = Updates::adamw(layout.len(), 1 << 20, hyper, Schedule::Constant, Silent::Zero);
    let mut step = 0;
    time(c, "train step, small, 16 x 128", "forward, backward, AdamW", batch.rows(), || {
        let mut sum = Sum::new(&decoder.backend, &layout, |_| true);
        decoder.backward(&batch, &row_weights, &mut sum);
        for p in layout.ids() {
            let gradient = Gradient::Whole { tensor: sum.get(p).expect("all were asked for"), scale: 1.0 };
            adamw.step(&decoder.backend, step, p, &mut decoder.params[p.0], gradient);
        }
        step += 1;
    });
}

criterion_group!(benches, linears, rows, attentions, steps);
criterion_main!(benches);
