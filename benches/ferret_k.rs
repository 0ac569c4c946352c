//! A FERRET-k micro-batch (forward, backward to every sample's sketch) against this engine's non-private one and DPSGD's (norms, clipped
//! sum), interleaved in one run, GPT-2 124M shape, 1,024 bits; the whole step by the direct route (noise, signs, update with momentum) apart; peak
//! memory, each in a process of its own; and the update `Uᵀ b`, and so replay, beside a plain pass over the weights.
//!
//! `cargo bench --bench ferret_k` (or `-- 128`, `-- 256`, `-- updates` for one part alone). Ratios in one run are what counts.

mod common;

use common::{batch, child_peak, gpt2, tiny, weights};
use ferret::backend::Cpu;
use ferret::grad::{ClipFunction, Clipping, Norms, Partition, PerSample, Sketch, Sum, shapes};
use ferret::method::ferret_k::{Replayer, Settings};
use ferret::model::{Batch, Decoder, Reduction};
use ferret::ops::sketch::clip;
use ferret::rng::{Secret, SecretDomain, SketchKind, StepSketch};
use std::time::Instant;

const SAMPLES: usize = 4;
const BITS: usize = 1024;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [child, length] = &args[..] {
        return peak(child, length.parse().expect("a length"));
    }
    check();
    let mut decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    for (length, runs) in [(128, 5), (256, 3)] {
        if args.first().is_none_or(|only| *only == length.to_string()) {
            micro_batches(&mut decoder, length, runs);
        }
    }
    if args.first().is_none_or(|only| only == "updates") {
        updates(&mut decoder);
    }
}

fn seconds<R>(f: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    drop(f());
    start.elapsed().as_secs_f64()
}

fn fastest(rounds: &[Vec<f64>], which: usize) -> f64 {
    rounds.iter().map(|r| r[which]).fold(f64::INFINITY, f64::min)
}

fn sketched(decoder: &Decoder<Cpu>, batch: &Batch, sketch: &StepSketch) -> Vec<f64> {
    let mut sink = Sketch::new(&decoder.backend, &decoder.layout, sketch, batch.segments.len(), |_| true);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut sink);
    let mut sum = vec![0.0; sketch.k()];
    for mut v in sink.finish(&decoder.backend).expect("host memory") {
        clip(ClipFunction::Automatic, 1.0, &mut v);
        sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += v);
    }
    sum
}

fn dpsgd(decoder: &Decoder<Cpu>, batch: &Batch, sum: &mut Sum<Cpu>) {
    let (b, layout) = (&decoder.backend, &decoder.layout);
    let clipping = Clipping::new(ClipFunction::Automatic, Partition::Flat, 1.0).expect("a positive bound");
    let mut norms = Norms::new(b, layout, SAMPLES, |_| true);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut norms);
    let factors = clipping.factors(b, &norms).expect("one group");
    norms.clipped_sum(b, &factors, sum);
}

/// Signs by the direct route, as a run of `steps` steps has them.
fn replayer(decoder: &Decoder<Cpu>, steps: u32, momentum: f64) -> Replayer<Cpu> {
    let settings = Settings {
        bits_per_step: BITS as u32,
        records: 50 * u64::from(steps),
        learning_rate: 1e-6,
        momentum,
        ..Settings::usual(1.5)
    };
    Replayer::new(&decoder.layout, &settings).expect("good settings")
}

/// One step of a run: sketches, noise, signs, update.
fn step(decoder: &mut Decoder<Cpu>, replayer: &mut Replayer<Cpu>, batch: &Batch, step: u32) {
    let sketch = replayer.plan().sketch(step);
    let mut sums = sketched(decoder, batch, &sketch);
    let secret = Secret::insecure(1);
    let mut noise = secret.stream(SecretDomain::Noise, step, 0);
    sums.iter_mut().for_each(|s| *s += 1.5 * noise.gaussian());
    let signs: Vec<f32> = sums.iter().map(|s| if *s < 0.0 { -1.0 } else { 1.0 }).collect();
    let Decoder { backend, params, .. } = decoder;
    replayer.step(backend, step, &signs, &sketch, params).expect("finite");
}

/// Two steps, as in a run, and this process' peak in MiB.
fn peak(which: &str, length: usize) {
    let mut decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batch = batch(&gpt2(), SAMPLES, length);
    if which == "dpsgd" {
        let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        (0..2).for_each(|_| dpsgd(&decoder, &batch, &mut sum));
    } else {
        let mut replayer = replayer(&decoder, 2, if which == "momentum" { 0.5 } else { 0.0 });
        (0..2).for_each(|t| step(&mut decoder, &mut replayer, &batch, t));
    }
    println!("{}", common::peak_memory().expect("/proc"));
}

fn micro_batches(decoder: &mut Decoder<Cpu>, length: usize, runs: usize) {
    let batch = batch(&gpt2(), SAMPLES, length);
    let shapes = shapes(&decoder.layout);
    let mut replayer = replayer(decoder, 1 + runs as u32, 0.5);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    // The first round warms up.
    for t in 0..=runs as u32 {
        let mut round = vec![
            seconds(|| decoder.backward(&batch, &batch.weights(Reduction::SampleMean), &mut sum)),
            seconds(|| dpsgd(decoder, &batch, &mut sum)),
        ];
        for kind in [SketchKind::Tensor, SketchKind::Grid] {
            let sketch = StepSketch::new(1, t, kind, BITS, &shapes);
            round.push(seconds(|| sketched(decoder, &batch, &sketch)));
        }
        round.push(seconds(|| step(decoder, &mut replayer, &batch, t)));
        rounds.push(round);
    }
    rounds.remove(0);
    println!("gpt2 124M, {SAMPLES} x {length} tokens, {BITS} bits; fastest of {runs}, in turn");
    let [plain, dpsgd] = [0, 1].map(|i| fastest(&rounds, i));
    println!("  non-private {plain:>8.3} s    dpsgd {dpsgd:>8.3} s");
    for (i, kind) in ["tensor", "grid"].into_iter().enumerate() {
        let time = fastest(&rounds, 2 + i);
        println!(
            "  {kind:<11} {time:>8.3} s    {:>6.3} of non-private (at most 0.80)    {:>6.3} of dpsgd (at most 0.75)",
            time / plain,
            time / dpsgd
        );
    }
    let whole = fastest(&rounds, 4);
    println!("  whole step  {whole:>8.3} s    {:>6.3} of non-private's micro-batch", whole / plain);
    if let [Some(dpsgd), Some(direct), Some(momentum)] =
        ["dpsgd", "direct", "momentum"].map(|child| child_peak(child, length))
    {
        println!("  peak memory: dpsgd's sums {dpsgd:.0} MiB, before an optimizer's state");
        for (what, peak) in [("direct", direct), ("momentum", momentum)] {
            println!("    {what:<9} {peak:>8.0} MiB  {:>6.3} of it (at most 0.75)", peak / dpsgd);
        }
    }
}

/// `w -= scale Uᵀ b` over all weights, beside `w -= scale g` with g in memory: one reads a table in the cache, the other a second array.
fn updates(decoder: &mut Decoder<Cpu>) {
    let mut w = weights(gpt2()).tensors;
    let g: Vec<Vec<f32>> = w.iter().map(|w| vec![1e-9; w.len()]).collect();
    let numbers: usize = w.iter().map(Vec::len).sum();
    let bits: Vec<f32> = (0..BITS).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect();
    let plain = (0..3)
        .map(|_| {
            seconds(|| {
                use rayon::prelude::*;
                w.iter_mut().zip(&g).for_each(|(w, g)| {
                    w.par_chunks_mut(1 << 15).zip(g.par_chunks(1 << 15)).for_each(|(w, g)| {
                        w.iter_mut().zip(g).for_each(|(w, g)| *w -= 0.5 * g);
                    });
                });
            })
        })
        .fold(f64::INFINITY, f64::min);
    println!("update of {:.0}M weights: w -= scale g {:.1} ms", numbers as f64 / 1e6, 1e3 * plain);
    for kind in [SketchKind::Tensor, SketchKind::Grid, SketchKind::Count] {
        let sketch = StepSketch::new(1, 1, kind, BITS, &shapes(&decoder.layout));
        let time = (0..3)
            .map(|_| {
                seconds(|| {
                    let pullback = sketch.pullback(&bits, 1.0);
                    w.iter_mut().enumerate().for_each(|(i, w)| pullback.subtract(i, 0, 1e-9, w));
                })
            })
            .fold(f64::INFINITY, f64::min);
        println!(
            "  {:<8} {:>8.1} ms   {:>6.2} of it   {:>6.1} GB/s of weights read and written",
            format!("{kind:?}").to_lowercase(),
            1e3 * time,
            time / plain,
            8.0 * numbers as f64 / time / 1e9
        );
    }
    // Weights are read and written, and so are the sums of earlier updates.
    for (momentum, bytes) in [(0.0, 8.0), (0.5, 16.0)] {
        const STEPS: u32 = 20;
        let mut replayer = replayer(decoder, STEPS, momentum);
        let Decoder { backend, params, .. } = &mut *decoder;
        let mut times: Vec<f64> = (0..STEPS)
            .map(|t| seconds(|| replayer.step(backend, t, &bits, &replayer.plan().sketch(t), params).expect("finite")))
            .collect();
        times.sort_by(f64::total_cmp);
        let step = times[times.len() / 2];
        println!(
            "  replay, momentum {momentum}: {:.1} ms a step (median of {STEPS}; 1,000 steps: {:.0} s), {:.1} GB/s",
            1e3 * step,
            1e3 * step,
            bytes * numbers as f64 / step / 1e9
        );
    }
}

/// The sketches are what brute force says, before anything is timed.
fn check() {
    let config = tiny();
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone())).expect("weights fit");
    let layout = &decoder.layout;
    let batch = batch(&config, SAMPLES, 60);
    let mut all = PerSample::new(&decoder.backend, layout, SAMPLES);
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut all);
    for kind in [SketchKind::Tensor, SketchKind::Grid] {
        let sketch = StepSketch::new(1, 1, kind, 16, &shapes(layout));
        let mut sink = Sketch::new(&decoder.backend, layout, &sketch, SAMPLES, |_| true);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sink);
        for (i, got) in sink.finish(&decoder.backend).expect("host memory").into_iter().enumerate() {
            let mut want = vec![0.0; 16];
            for p in layout.ids() {
                let columns = layout.spec(p).matrix().1;
                for (e, &g) in all.sample(i).get(p).expect("all").as_slice().iter().enumerate() {
                    let (bucket, sign) = sketch.cell(p.0, e / columns, e % columns);
                    want[bucket] += sign * f64::from(g);
                }
            }
            let size = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-3 * size), "{kind:?}: the sketch is off");
        }
    }
}
