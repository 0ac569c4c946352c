//! Directions, noise and AdamW: elements a second, on all threads. Correctness is checked first.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferret::model::ParamId;
use ferret::optim::{AdamW, Gradient, Hyper, Schedule, Silent};
use ferret::rng::{Direction, DirectionStream, Secret};
use rayon::prelude::*;
use std::hint::black_box;

const N: usize = 1 << 22;
const PIECE: usize = 1 << 14;

fn regenerate(stream: &DirectionStream, out: &mut [f32]) {
    out.par_chunks_mut(PIECE).enumerate().for_each(|(i, u)| stream.fill(i * PIECE, u));
}

fn directions(c: &mut Criterion) {
    let mut group = c.benchmark_group("direction");
    group.throughput(Throughput::Elements(N as u64)).sample_size(20);
    let mut u = vec![0.0; N];
    for kind in [Direction::Sphere, Direction::Rademacher] {
        let stream = DirectionStream::new(1, 2, 3, kind, N);
        regenerate(&stream, &mut u);
        let square: f64 = u.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((square - 1.0).abs() < 1e-6, "{kind:?}: {square}");
        group.bench_function(format!("{kind:?} fill"), |b| b.iter(|| regenerate(&stream, black_box(&mut u))));
    }
    group.bench_function("Sphere norm", |b| {
        b.iter(|| black_box(DirectionStream::new(1, black_box(2), 3, Direction::Sphere, N)))
    });
    group.finish();
}

fn noise(c: &mut Criterion) {
    let mut group = c.benchmark_group("noise");
    group.throughput(Throughput::Elements(N as u64)).sample_size(20);
    let secret = Secret::insecure(1);
    let mut z = vec![0.0; N];
    secret.add_noise_at(0, 0, 1.0, &mut z);
    let square = z.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / N as f64;
    assert!((square - 1.0).abs() < 6.0 * (2.0 / N as f64).sqrt(), "{square}");
    group.bench_function("Gaussian", |b| b.iter(|| secret.add_noise_at(1, 0, 1.0, black_box(&mut z))));
    group.finish();
}

fn adamw(c: &mut Criterion) {
    let mut group = c.benchmark_group("adamw");
    let steps = 1 << 20;
    let new = || AdamW::new(1, steps, Hyper::new(2e-4, 1e-3), Schedule::Constant, Silent::Zero);
    let stream = DirectionStream::new(1, 2, 3, Direction::Sphere, N);
    let along = Gradient::Along { direction: &stream, offset: 0, scale: 1.0 };
    let mut u = vec![0.0; N];
    regenerate(&stream, &mut u);
    let (mut a, mut b) = (vec![0.5; N], vec![0.5; N]);
    new().step(0, ParamId(0), &mut a, along);
    new().step(0, ParamId(0), &mut b, Gradient::Dense(&u));
    assert!(a == b, "the same gradient, regenerated and stored, must give the same weights");

    group.throughput(Throughput::Elements(N as u64)).sample_size(20);
    for (name, gradient) in [("step along a direction", along), ("step, dense gradient", Gradient::Dense(&u))] {
        let mut optimizer = AdamW::new(1, steps, Hyper::new(2e-4, 1e-3), Schedule::Constant, Silent::None);
        let mut t = 0;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                optimizer.step(t, ParamId(0), black_box(&mut a), gradient);
                t += 1;
            })
        });
    }
    // Elements are weights times steps here, right after a gradient: within 1000 steps momentum dies out on the way.
    for idle in [1u32, 10, 100, 1000] {
        let mut first = new();
        first.step(0, ParamId(0), &mut a, along);
        let mut never = new();
        never.catch_up(1, ParamId(0), &mut b);
        group.throughput(Throughput::Elements(N as u64 * u64::from(idle))).sample_size(10);
        group.bench_function(format!("{idle} idle steps"), |bench| {
            bench.iter_batched_ref(
                || (first.clone(), a.clone()),
                |(optimizer, w)| optimizer.catch_up(1 + idle, ParamId(0), w),
                criterion::BatchSize::PerIteration,
            )
        });
        group.bench_function(format!("{idle} idle steps, never fired"), |bench| {
            bench.iter_batched_ref(
                || (never.clone(), b.clone()),
                |(optimizer, w)| optimizer.catch_up(1 + idle, ParamId(0), w),
                criterion::BatchSize::PerIteration,
            )
        });
    }
    group.finish();
}

criterion_group!(benches, directions, noise, adamw);
criterion_main!(benches);
