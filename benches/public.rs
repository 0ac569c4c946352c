//! Directions, noise and AdamW: elements a second, on all threads. Correctness is checked first.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferret::backend::{Cpu, Memory};
use ferret::kernel::Stored;
use ferret::model::ParamId;
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};
use ferret::rng::{Direction, DirectionStream, Secret};
use rayon::prelude::*;
use std::hint::black_box;

const N: usize = 1 << 22;
const PIECE: usize = 1 << 14;
const COLUMNS: usize = 1 << 11;

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

/// A tensor of zeros and a half, with an optimizer of its own.
fn one(b: &Cpu, silent: Silent) -> (<Cpu as Memory>::Weight, Updates<Cpu>) {
    let updates = Updates::adamw(1, 1 << 20, Hyper::new(2e-4, 1e-3), Schedule::Constant, silent);
    (b.weight(COLUMNS, N / COLUMNS, Stored::F32(vec![0.5; N])).expect("it fits"), updates)
}

fn adamw(c: &mut Criterion) {
    let mut group = c.benchmark_group("adamw");
    let (b, id) = (Cpu::<f32>::new(), ParamId(0));
    let stream = DirectionStream::new(1, 2, 3, Direction::Sphere, N);
    let mut u = vec![0.0; N];
    regenerate(&stream, &mut u);
    let tensor = &b.upload(COLUMNS, N / COLUMNS, u).expect("it fits");
    let along = || Gradient::Along { direction: &stream, offset: 0, scale: 1.0 };
    let dense = || Gradient::Whole { tensor, scale: 1.0 };
    let after = |gradient| {
        let (mut w, mut updates) = one(&b, Silent::Zero);
        updates.step(&b, 0, id, &mut w, gradient);
        b.download_weight(&w).expect("it lies in host memory")
    };
    assert!(after(along()) == after(dense()), "the same gradient, regenerated and stored, must give the same weights");

    group.throughput(Throughput::Elements(N as u64)).sample_size(20);
    for (name, stored) in [("step along a direction", false), ("step, dense gradient", true)] {
        let gradient = || if stored { dense() } else { along() };
        let (mut w, mut updates) = one(&b, Silent::None);
        let mut t = 0;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                updates.step(&b, t, id, black_box(&mut w), gradient());
                t += 1;
            })
        });
    }
    // Elements are weights times steps here, right after a gradient: within 1000 steps momentum dies out on the way.
    for idle in [1u32, 10, 100, 1000] {
        group.throughput(Throughput::Elements(N as u64 * u64::from(idle))).sample_size(10);
        for (name, fired) in [("", true), (", never fired", false)] {
            let begun = || {
                let (mut w, mut updates) = one(&b, Silent::Zero);
                match fired {
                    true => updates.step(&b, 0, id, &mut w, along()),
                    false => updates.catch_up(&b, 1, id, &mut w),
                }
                (w, updates)
            };
            group.bench_function(format!("{idle} idle steps{name}"), |bench| {
                bench.iter_batched_ref(
                    begun,
                    |(w, updates)| updates.catch_up(&b, 1 + idle, id, w),
                    criterion::BatchSize::PerIteration,
                )
            });
        }
    }
    group.finish();
}

criterion_group!(benches, directions, noise, adamw);
criterion_main!(benches);
