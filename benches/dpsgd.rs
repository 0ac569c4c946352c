//! A DPSGD micro-batch (forward, backward, norms, clipped sum) against this engine's non-private forward and backward,
//! interleaved in one run, GPT-2 124M shape; and the peak memory of each, in a process of its own.
//!
//! `cargo bench --bench dpsgd` (or `-- 128`, `-- 256` for one length alone). Noise is not part of a micro-batch: it is drawn
//! once a logical batch.

mod common;

use common::{batch, gpt2, weights};
use ferret::backend::Cpu;
use ferret::grad::{ClipFunction, Clipping, Norms, PerSample, Style, Sum};
use ferret::model::{Batch, Config, Decoder, Reduction};
use std::time::{Duration, Instant};

const SAMPLES: usize = 4;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [child, length] = &args[..] {
        return peak(child, length.parse().expect("a length"));
    }
    check();
    println!("{:<18} {:>11} {:>11} {:>7} {:>8}", "gpt2 124M", "non-private", "dpsgd", "ratio", "at most");
    for (length, runs, limit) in [(128, 7, 1.15), (256, 5, 1.25)] {
        if args.first().is_none_or(|only| *only == length.to_string()) {
            run(length, runs, limit);
        }
    }
}

fn private(decoder: &Decoder<Cpu>, batch: &Batch, clipping: &Clipping, sum: &mut Sum<Cpu>) -> [Duration; 2] {
    let b = &decoder.backend;
    let start = Instant::now();
    let mut norms = Norms::new(b, &decoder.layout, batch.segments.len(), |_| true);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut norms);
    let backward = start.elapsed();
    let factors = clipping.factors(b, &norms).expect("one group");
    norms.clipped_sum(b, &factors, sum);
    [backward, start.elapsed()]
}

fn nonprivate(decoder: &Decoder<Cpu>, batch: &Batch, sum: &mut Sum<Cpu>) -> Duration {
    let start = Instant::now();
    decoder.backward(batch, &batch.weights(Reduction::SampleMean), sum);
    start.elapsed()
}

fn run(length: usize, runs: usize, limit: f64) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let (batch, clipping) = (batch(&gpt2(), SAMPLES, length), clipping());
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let (mut plain, mut clipped) = (Vec::new(), Vec::new());
    // The first round warms up.
    for _ in 0..=runs {
        plain.push(nonprivate(&decoder, &batch, &mut sum));
        clipped.push(private(&decoder, &batch, &clipping, &mut sum));
    }
    plain.remove(0);
    clipped.remove(0);
    plain.sort();
    clipped.sort_by_key(|[_, whole]| *whole);
    let line = |what: &str, a: f64, b: f64, unit: &str, limit: f64| {
        println!("{what:<18} {a:>9.3} {unit} {b:>9.3} {unit} {:>7.3} {limit:>8.2}", b / a);
    };
    println!("{SAMPLES} x {length} tokens");
    line("  fastest", plain[0].as_secs_f64(), clipped[0][1].as_secs_f64(), "s", limit);
    line("  median", plain[runs / 2].as_secs_f64(), clipped[runs / 2][1].as_secs_f64(), "s", limit);
    println!("  of which {:.3} s from backward to the norms", clipped[0][0].as_secs_f64());
    if let [Some(a), Some(b)] = ["nonprivate", "dpsgd"].map(|child| child_peak(child, length)) {
        line("  peak memory", a, b, "MiB", 1.25);
    }
}

fn clipping() -> Clipping {
    Clipping::new(ClipFunction::AUTOMATIC, Style::Flat, 1.0).expect("a positive bound")
}

/// Two steps, as in a run, and this process' peak in MiB.
fn peak(which: &str, length: usize) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batch = batch(&gpt2(), SAMPLES, length);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    for _ in 0..2 {
        match which {
            "dpsgd" => drop(private(&decoder, &batch, &clipping(), &mut sum)),
            _ => drop(nonprivate(&decoder, &batch, &mut sum)),
        }
    }
    println!("{}", common::peak_memory().expect("/proc"));
}

fn child_peak(which: &str, length: usize) -> Option<f64> {
    common::peak_memory()?;
    let own = std::env::current_exe().ok()?;
    let out = std::process::Command::new(own).args([which, &length.to_string()]).output().ok()?;
    String::from_utf8(out.stdout).ok()?.trim().parse().ok()
}

/// The clipped sum is what brute force says, before anything is timed.
fn check() {
    let config = Config { layers: 2, vocab: 301, width: 96, heads: 4, inner: 384, ..gpt2() };
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone())).expect("weights fit");
    let b = &decoder.backend;
    let batch = batch(&config, SAMPLES, 100);
    let mut sum = Sum::new(b, &decoder.layout, |_| true);
    private(&decoder, &batch, &clipping(), &mut sum);
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
    assert!(error.sqrt() <= 1e-5 * size.sqrt(), "the clipped sum is off by {:e}", (error / size).sqrt());
}
