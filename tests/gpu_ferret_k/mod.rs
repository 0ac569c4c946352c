//! FERRET-k on the GPU: its releases against the CPU's at the same weights, and published weights that are replayed.
//!
//! Without an adapter the test says so and passes, unless FERRET_REQUIRE_GPU=1.

use crate::common::{Random, config, gpu, weights};
use ferret::backend::{Backend, Cpu, Gpu};
use ferret::data::Example;
use ferret::method::ferret_k::{Release, Releases, Settings, Trainer, Transcript, replay};
use ferret::method::{Run, Scales, Task};
use ferret::model::Weights;
use ferret::optim::Route;
use ferret::rng::{Secret, SketchKind};

fn run<B: Backend>(b: B, base: &Weights, s: &Settings, records: &[Example], steps: usize) -> (Weights, Transcript) {
    let secret = Secret::insecure(9);
    let task = Task { stop: Some(steps as u32), ..Task::new(base.clone(), s.clone(), &secret, records) };
    let mut trainer = Trainer::new(b, task, None).unwrap();
    while trainer.step().unwrap().is_some() {}
    let (weights, transcript, _) = trainer.end().unwrap();
    (weights, transcript)
}

/// Levels on the device: the CPU's but for sums that rounding carries across a threshold, and weights that are their replay.
fn levels_are_the_cpus(gpu: &Gpu, base: &Weights, records: &[Example], scales: Option<Scales>) {
    let s = Settings {
        bits_per_step: 256,
        release: Release::Level,
        scales,
        records: 30,
        batch: 10,
        epochs: 3,
        learning_rate: 0.1,
        ..Settings::usual(0.5)
    };
    let ((there, on_gpu), (_, on_cpu)) =
        (run(gpu.clone(), base, &s, records, 6), run(Cpu::<f32>::new(), base, &s, records, 6));
    let (Releases::Levels(a), Releases::Levels(b)) = (&on_gpu.releases, &on_cpu.releases) else { panic!("levels") };
    assert!(a.sizes.iter().zip(&b.sizes).all(|(a, b)| (a - b).abs() <= 4), "{:?} {:?}", a.sizes, b.sizes);
    let other = a.codes.iter().zip(&b.codes).filter(|(a, b)| a != b).count();
    assert!(other <= 30, "{other} of {}", a.codes.len());
    assert_eq!(replay(base.clone(), &on_gpu, |_| ()).unwrap().tensors, there.tensors);
}

#[test]
fn releases_are_the_cpus_and_published_weights_are_replayed() {
    let Some(gpu) = gpu() else { return };
    let base = weights(config(|_| ()), 1);
    let mut random = Random::new(3);
    let records: Vec<Example> =
        (0..30).map(|_| Example::all((0..2 + random.below(10)).map(|_| random.below(23) as u32).collect())).collect();
    levels_are_the_cpus(&gpu, &base, &records, None);
    let scales = Scales((0..base.layout.len()).map(|i| (i * 7 % 23) as i8 - 11).collect());
    levels_are_the_cpus(&gpu, &base, &records, Some(scales.clone()));
    for (sketch, k) in
        [(SketchKind::Tensor, 37), (SketchKind::Tensor, 8), (SketchKind::Grid, 36), (SketchKind::Count, 40)]
    {
        for (route, momentum) in [(Route::Direct, 0.5), (Route::Direct, 0.0), (Route::Adamw, 0.0)] {
            let s = Settings {
                bits_per_step: k,
                sketch,
                scales: (momentum > 0.0).then(|| scales.clone()),
                release: Release::Scalar,
                records: 30,
                batch: 10,
                epochs: 3,
                micro_batch: 4,
                route,
                momentum,
                learning_rate: if route == Route::Adamw { 1e-3 } else { 0.1 },
                ..Settings::usual(0.5)
            };
            let ((there, on_gpu), (here, on_cpu)) =
                (run(gpu.clone(), &base, &s, &records, 6), run(Cpu::<f32>::new(), &base, &s, &records, 6));
            let (Releases::Scalars(a), Releases::Scalars(b)) = (&on_gpu.releases, &on_cpu.releases) else {
                panic!("scalars")
            };
            // In units of C / 1024: the same noise, sums up to rounding, places on the grid next to each other.
            let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).max().unwrap();
            assert!(far <= 4, "{sketch:?}, {route:?}, {momentum}: {far}");
            // What is published is the replay, on whatever device the releases were computed.
            for (weights, transcript) in [(&there, &on_gpu), (&here, &on_cpu)] {
                let again = replay(base.clone(), transcript, |_| ()).unwrap();
                assert_eq!(again.tensors, weights.tensors);
            }
        }
    }
}
