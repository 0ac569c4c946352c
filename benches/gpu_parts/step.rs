//! Whole steps of training: sample, backward, release and update, on the CPU and on the GPU.

use crate::common::{small, time, weights};
use ferret::backend::{Backend, Cpu, Gpu, Memory};
use ferret::data::Example;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Method, Privacy};
use ferret::method::ferret as fe;
use ferret::method::{Sensitive, Task, groups, list};
use ferret::model::{Weights, checkpoint};
use ferret::privacy::Sampler;
use ferret::rng::Secret;

const RECORDS: usize = 64;
const BATCH: u64 = 4;
const LENGTH: usize = 32;

/// Time every method's step.
pub fn run(gpu: &Gpu) {
    println!("\na step of 4 layers, 128 wide, {BATCH} records of {LENGTH} tokens");
    println!("{:<28} {:>10} {:>10} {:>8} {:>12}", "method", "cpu ms", "gpu ms", "ratio", "submissions");
    let report = |name: &str, cpu: f64, (gpu, submissions): (f64, u64)| {
        println!("{name:<28} {cpu:>10.1} {gpu:>10.1} {:>8.2} {submissions:>12}", cpu / gpu);
    };
    for (name, epsilon) in [("ferret-max, 1 group in 20", 4.4), ("ferret-max, all groups", 1e6)] {
        let cpu = ferret(Cpu::<f32>::new(), epsilon, || Ok(()));
        let before = gpu.submissions();
        let time = ferret(gpu.clone(), epsilon, || gpu.finish());
        report(name, cpu, (time, (gpu.submissions() - before) / RUNS));
    }
    let privacy = Privacy {
        noise_multiplier: 1.0,
        clip: 1.0,
        clip_rule: ClipFunction::Automatic,
        clip_style: ClipStyle::Flat,
        clip_groups: None,
    };
    for (name, method) in [("dpsgd", Method::Dpsgd(privacy)), ("nonprivate", Method::Nonprivate)] {
        let cpu = whole(Cpu::<f32>::new(), method.clone(), || Ok(()));
        let before = gpu.submissions();
        let time = whole(gpu.clone(), method, || gpu.finish());
        report(name, cpu, (time, (gpu.submissions() - before) / RUNS));
    }
}

/// Steps of a measurement, the first not counted.
const RUNS: u64 = 5;

fn records() -> Vec<Example> {
    (0..RECORDS).map(|i| Example::all((0..LENGTH).map(|t| ((31 * i + 7 * t) % 2048) as u32).collect())).collect()
}

/// Milliseconds of the fastest step.
fn measure(mut step: impl FnMut()) -> f64 {
    time(RUNS as usize - 1, &mut step).1.as_secs_f64() * 1e3
}

fn ferret<B: Backend>(b: B, epsilon: f64, finish: impl Fn() -> ferret::Result<()>) -> f64 {
    let base = weights(small());
    let members = groups::Groups::new(&base.layout, groups::Grouping::Bucket(1)).unwrap().members;
    let settings = fe::Settings {
        epsilon,
        records: RECORDS as u64,
        batch: BATCH,
        epochs: 125,
        micro_batch: BATCH as u32,
        learning_rate: 1e-4,
        sampler: Sampler::Uniform,
        seed: 1,
        ..fe::Settings::paper("ferret-max", fe::Cuts::of(&members).unwrap())
    };
    let (secret, records) = (Secret::insecure(1), records());
    step(b, base, list::Method::Ferret(settings), &secret, &records, finish)
}

/// Milliseconds of a step.
fn step<B: Backend>(
    b: B,
    base: Weights,
    settings: list::Method,
    secret: &Secret,
    records: &[Example],
    finish: impl Fn() -> ferret::Result<()>,
) -> f64 {
    let base_sha256 = checkpoint::tensors_sha256(&base);
    let task = Task { base, base_sha256, settings, stop: None, secret, records: Sensitive::new(records) };
    let mut trainer = task.begin(b, None).unwrap();
    measure(|| {
        trainer.step().unwrap().expect("a step");
        finish().unwrap();
    })
}

fn whole<B: Backend>(b: B, method: Method, finish: impl Fn() -> ferret::Result<()>) -> f64 {
    let settings = dense::Settings {
        records: RECORDS as u64,
        batch: BATCH,
        epochs: 10,
        sampler: Sampler::Uniform,
        micro_batch: BATCH as u32,
        learning_rate: 1e-4,
        seed: 1,
        ..dense::Settings::usual(method)
    };
    let (secret, records) = (Secret::insecure(1), records());
    step(b, weights(small()), list::Method::Dense(settings), &secret, &records, finish)
}
