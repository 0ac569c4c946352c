//! Forward and backward of whole decoders: tokens/s, GFLOP/s, and the share of this machine's own sgemm rate; a whole step with AdamW, one of DPSGD, and decoding.
//!
//! `cargo bench --bench step` (or `-- gpt2`, `-- small` for one shape alone; `-- ragged FILE` for batches of the lengths in FILE; `-- adamw`, `-- dpsgd`,
//! `-- bias`, `-- decode-f32`, `-- decode-bf16` for one of the others). benches/peers/run.py runs it beside PyTorch.

mod common;

use common::{batch, forward_flops, gpt2, sgemm_peak, small, smollm, time, weights};
use ferret::backend::Cpu;
use ferret::grad::{ClipFunction, Clipping, Norms, Partition, Sum};
use ferret::kernel::Stored;
use ferret::model::{Batch, Config, Decoder, ParamId, Reduction, Weights};
use ferret::optim::{Gradient, Hyper, Schedule, Silent, Updates};

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let only = args.next();
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name || name.starts_with(&format!("{o}-")));
    let peak = sgemm_peak();
    println!("sgemm, best shape, {} threads: {peak:.0} GFLOP/s", rayon::current_num_threads());
    println!("{:<24} {:>9} {:>9} {:>10} {:>9} {:>8}", "", "median s", "fastest", "tokens/s", "GFLOP/s", "of peak");
    if wanted("gpt2-128") {
        run("gpt2 124M, 4 x 128", gpt2(), 4, 128, 5, peak);
    }
    if wanted("gpt2-256") {
        run("gpt2 124M, 4 x 256", gpt2(), 4, 256, 3, peak);
    }
    if wanted("small") {
        run("small, 16 x 128", small(), 16, 128, 20, peak);
    }
    if wanted("smollm-128") {
        run("smollm 135M, 4 x 128", smollm(), 4, 128, 5, peak);
    }
    if wanted("smollm-512") {
        run("smollm 135M, 1 x 512", smollm(), 1, 512, 5, peak);
    }
    if wanted("adamw") {
        adamw();
    }
    if wanted("dpsgd") {
        dpsgd();
    }
    if wanted("bias") {
        bias();
    }
    if wanted("decode-f32") {
        decode("smollm 135M, f32", weights(smollm()));
    }
    if wanted("decode-bf16") {
        let Weights { config, layout, tensors } = weights(smollm());
        let tensors = tensors.into_iter().map(|t| Stored::Bf16(t.into_iter().map(half::bf16::from_f32).collect()));
        decode("smollm 135M, bf16", Weights { config, layout, tensors: tensors.collect() });
    }
    if only.as_deref() == Some("ragged") {
        let path = args.next().expect("ragged FILE: batches of lengths, as JSON");
        let text = std::fs::read_to_string(&path).expect("the file of lengths");
        ragged(&serde_json::from_str::<Vec<Vec<usize>>>(&text).expect("batches of lengths, as JSON"));
    }
}

/// One line: median and fastest seconds, tokens/s.
fn line(what: &str, (median, fastest): (std::time::Duration, std::time::Duration), tokens: usize) {
    let (median, fastest) = (median.as_secs_f64(), fastest.as_secs_f64());
    println!("{what:<24} {median:>9.4} {fastest:>9.4} {:>10.1}", tokens as f64 / median);
}

fn memory() {
    if let Some(mib) = common::peak_memory() {
        println!("  peak memory so far {mib:.0} MiB");
    }
}

/// GPT-2 124M, 4 x 128 tokens, and AdamW.
struct Tuned {
    decoder: Decoder<Cpu<f32>>,
    batch: Batch,
    updates: Updates<Cpu<f32>>,
    at: u32,
}

impl Tuned {
    fn new() -> Self {
        let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
        let hyper = Hyper::new(1e-4, 1e-2);
        let updates = Updates::adamw(decoder.params.len(), 1000, hyper, Schedule::Constant, Silent::Zero);
        Self { decoder, batch: batch(&gpt2(), 4, 128), updates, at: 0 }
    }

    /// Forward, backward and update of these parameters alone.
    fn step(&mut self, tuned: &[ParamId]) {
        let b = self.decoder.backend.clone();
        let mut sum = Sum::new(&b, &self.decoder.layout, |p| tuned.contains(&p));
        self.decoder.backward(&self.batch, &self.batch.weights(Reduction::TokenMean), &mut sum);
        for &p in tuned {
            let gradient = Gradient::Whole { tensor: sum.get(p).expect("a tuned one"), scale: 1.0 };
            self.updates.step(&b, self.at, p, &mut self.decoder.params[p.0], gradient);
        }
        self.at += 1;
    }
}

/// Forward, backward and AdamW over all parameters.
fn adamw() {
    let mut tuned = Tuned::new();
    let all: Vec<_> = tuned.decoder.layout.ids().collect();
    println!("gpt2 124M, 4 x 128, AdamW");
    line("  step", time(5, || tuned.step(&all)), 512);
    memory();
}

/// Forward, backward and AdamW of the biases alone, as `train --tune bias`, in turn with forward and backward of all parameters.
fn bias() {
    let mut tuned = Tuned::new();
    let layout = tuned.decoder.layout.clone();
    let biases: Vec<_> = layout.ids().filter(|&p| layout.spec(p).bias).collect();
    let w = tuned.batch.weights(Reduction::TokenMean);
    let mut sum = Sum::new(&tuned.decoder.backend, &layout, |_| true);
    let (mut all, mut few) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        all.push(time(1, || drop(tuned.decoder.backward(&tuned.batch, &w, &mut sum))).0.as_secs_f64());
        few.push(time(1, || tuned.step(&biases)).0.as_secs_f64());
    }
    let median = |x: &mut Vec<f64>| {
        x.sort_by(f64::total_cmp);
        x[x.len() / 2]
    };
    let (all, few) = (median(&mut all), median(&mut few));
    println!(
        "gpt2 124M, 4 x 128: forward + backward {all:.3} s, a step of --tune bias {few:.3} s: {:.2} of it",
        few / all
    );
}

/// Forward, backward, every sample's exact norm and the clipped sum, GPT-2 124M, 4 x 128 tokens. Noise is drawn once a logical batch and is no part of it.
fn dpsgd() {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batch = batch(&gpt2(), 4, 128);
    let w = batch.weights(Reduction::SampleSum);
    let (b, layout) = (&decoder.backend, &decoder.layout);
    let clipping = Clipping::new(ClipFunction::Abadi, Partition::Flat, 1.0).expect("a positive bound");
    println!("gpt2 124M, 4 x 128, DPSGD");
    let seconds = time(5, || {
        let mut sum = Sum::new(b, layout, |_| true);
        let mut norms = Norms::new(b, layout, 4, |_| true);
        decoder.backward(&batch, &w, &mut norms);
        let factors = clipping.factors(b, &norms).expect("one group");
        norms.clipped_sum(b, &factors, &mut sum);
    });
    line("  step", seconds, 512);
    memory();
}

/// One token after the other with the key-value cache.
fn decode(name: &str, weights: Weights<impl Into<Stored>>) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights).expect("weights fit");
    let mut cache = decoder.cache(128);
    decoder.extend(&mut cache, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("a prompt");
    println!("{name}");
    line("  decode", time(63, || drop(decoder.extend(&mut cache, &[9]).expect("a token"))), 1);
}

/// One forward and backward of every batch in turn, at the GPT-2 124M shape.
fn ragged(batches: &[Vec<usize>]) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batches: Vec<_> = batches.iter().map(|lengths| common::ragged(&decoder.config, lengths)).collect();
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let seconds = time(1, || {
        for batch in &batches {
            drop(decoder.backward(batch, &batch.weights(Reduction::SampleMean), &mut sum));
        }
    });
    line("  forward + backward", seconds, batches.iter().map(|b| b.rows()).sum());
}

fn run(name: &str, config: Config, samples: usize, length: usize, runs: usize, peak: f64) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone())).expect("weights fit");
    let batch = batch(&config, samples, length);
    let w = batch.weights(Reduction::SampleMean);
    let flops = forward_flops(&config, samples * length, length);
    let report = |what: &str, (median, fastest): (std::time::Duration, std::time::Duration), flops: f64| {
        let (median, fastest) = (median.as_secs_f64(), fastest.as_secs_f64());
        let (tokens, rate) = ((samples * length) as f64 / median, flops / median / 1e9);
        println!("{what:<24} {median:>9.3} {fastest:>9.3} {tokens:>10.0} {rate:>9.0} {:>7.0}%", 100.0 * rate / peak);
    };
    println!("{name}");
    report("  forward", time(runs, || drop(decoder.losses(&batch))), flops);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    report("  forward + backward", time(runs, || drop(decoder.backward(&batch, &w, &mut sum))), 3.0 * flops);
    memory();
}
