//! A DPSGD micro-batch (forward, backward, norms, clipped sum) against this engine's non-private forward and backward,
//! interleaved in one run, GPT-2 124M shape; and the peak memory of each, in a process of its own.
//!
//! `cargo bench --bench dpsgd` (or `-- 128`, `-- 256` for one length alone). Noise is not part of a micro-batch: it is drawn
//! once a logical batch. Beside the clock's time stands the processor's, which other work on the machine disturbs less.

mod common;

use common::{batch, child_peak, gpt2, tiny, weights};
use ferret::backend::Cpu;
use ferret::grad::{ClipFunction, Clipping, Norms, Partition, PerSample, Sum};
use ferret::model::{Batch, Decoder, Reduction};
use std::time::Instant;

const SAMPLES: usize = 4;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [child, length] = &args[..] {
        return peak(child, length.parse().expect("a length"));
    }
    check();
    println!("{:<18} {:>11} {:>11} {:>7} {:>8}", "gpt2 124M", "non-private", "dpsgd", "ratio", "at most");
    for (length, runs, limit) in [(128, 5, 1.15), (256, 3, 1.25)] {
        if args.first().is_none_or(|only| *only == length.to_string()) {
            run(length, runs, limit);
        }
    }
}

/// Seconds by the clock, and by the processor over all threads (in hundredths; Linux only).
type Seconds = (f64, f64);

fn clock<R>(f: impl FnOnce() -> R) -> (Seconds, R) {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let result = f();
    ((start.elapsed().as_secs_f64(), cpu_seconds() - cpu), result)
}

/// User and system time of this process: fields 14 and 15 of its stat, the name in brackets being field 2.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn norms(decoder: &Decoder<Cpu>, batch: &Batch) -> Norms<Cpu> {
    let mut norms = Norms::new(&decoder.backend, &decoder.layout, batch.segments.len(), |_| true);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut norms);
    norms
}

fn clipped_sum(decoder: &Decoder<Cpu>, norms: Norms<Cpu>, sum: &mut Sum<Cpu>) {
    let factors = clipping().factors(&decoder.backend, &norms).expect("one group");
    norms.clipped_sum(&decoder.backend, &factors, sum);
}

fn nonprivate(decoder: &Decoder<Cpu>, batch: &Batch, sum: &mut Sum<Cpu>) {
    decoder.backward(batch, &batch.weights(Reduction::SampleMean), sum);
}

fn run(length: usize, runs: usize, limit: f64) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batch = batch(&gpt2(), SAMPLES, length);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let mut rounds: Vec<[Seconds; 3]> = Vec::new();
    // The first round warms up.
    for _ in 0..=runs {
        let (plain, ()) = clock(|| nonprivate(&decoder, &batch, &mut sum));
        let (backward, norms) = clock(|| norms(&decoder, &batch));
        let (clip, ()) = clock(|| clipped_sum(&decoder, norms, &mut sum));
        rounds.push([plain, backward, clip]);
    }
    rounds.remove(0);
    println!("{SAMPLES} x {length} tokens");
    let line = |what: &str, a: f64, b: f64, unit: &str, limit: f64| {
        println!("{what:<18} {a:>9.3} {unit} {b:>9.3} {unit} {:>7.3} {limit:>8.2}", b / a);
    };
    let sorted = |f: &dyn Fn(&[Seconds; 3]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(f).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (plain, private) = (sorted(&|r| r[0].0), sorted(&|r| r[1].0 + r[2].0));
    line("  clock, fastest", plain[0], private[0], "s", limit);
    line("  clock, median", plain[runs / 2], private[runs / 2], "s", limit);
    let (plain, private) = (sorted(&|r| r[0].1), sorted(&|r| r[1].1 + r[2].1));
    line("  cpu, least", plain[0], private[0], "s", limit);
    line("  cpu, median", plain[runs / 2], private[runs / 2], "s", limit);
    if let [Some(a), Some(b)] = ["nonprivate", "dpsgd"].map(|child| child_peak(child, length)) {
        line("  peak memory", a, b, "M", 1.25);
    }
}

fn clipping() -> Clipping {
    Clipping::new(ClipFunction::Automatic, Partition::Flat, 1.0).expect("a positive bound")
}

/// Two steps, as in a run, and this process' peak in MiB.
fn peak(which: &str, length: usize) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batch = batch(&gpt2(), SAMPLES, length);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    for _ in 0..2 {
        match which {
            "dpsgd" => clipped_sum(&decoder, norms(&decoder, &batch), &mut sum),
            _ => nonprivate(&decoder, &batch, &mut sum),
        }
    }
    println!("{}", common::peak_memory().expect("/proc"));
}

/// The clipped sum is what brute force says, before anything is timed.
fn check() {
    let config = tiny();
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone())).expect("weights fit");
    let b = &decoder.backend;
    let batch = batch(&config, SAMPLES, 100);
    let mut sum = Sum::new(b, &decoder.layout, |_| true);
    clipped_sum(&decoder, norms(&decoder, &batch), &mut sum);
    let mut brute = PerSample::new(b, &decoder.layout, SAMPLES);
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut brute);
    let grads = |i: usize| decoder.layout.ids().map(move |p| (p, i));
    let get = |(p, i): (_, usize)| brute.sample(i).get(p).expect("all").as_slice();
    let factors: Vec<f64> = (0..SAMPLES)
        .map(|i| 1.0 / (grads(i).flat_map(get).map(|&g| (g as f64).powi(2)).sum::<f64>().sqrt() + 0.01))
        .collect();
    let (mut error, mut size) = (0.0, 0.0);
    for p in decoder.layout.ids() {
        for (j, &got) in sum.get(p).expect("all").as_slice().iter().enumerate() {
            let want: f64 = (0..SAMPLES).map(|i| factors[i] * get((p, i))[j] as f64).sum();
            error += (got as f64 - want).powi(2);
            size += want * want;
        }
    }
    // The norm that clips is never below the true one: it is above it by the rounding that it allows for.
    assert!(error.sqrt() <= 3e-4 * size.sqrt(), "the clipped sum is off by {:e}", (error / size).sqrt());
}
