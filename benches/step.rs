//! Forward and backward of whole decoders: tokens/s, GFLOP/s, and the share of this machine's own sgemm rate.
//!
//! `cargo bench --bench step` (or `-- gpt2`, `-- small` for one shape alone; `-- ragged FILE` for batches of the lengths in FILE).
//! benches/peers/run.py runs it beside PyTorch.

mod common;

use common::{batch, forward_flops, gpt2, sgemm_peak, small, time, weights};
use ferret::backend::Cpu;
use ferret::grad::Sum;
use ferret::model::{Config, Decoder, Reduction};

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
    if only.as_deref() == Some("ragged") {
        let path = args.next().expect("ragged FILE: batches of lengths, as JSON");
        let text = std::fs::read_to_string(&path).expect("the file of lengths");
        ragged(&serde_json::from_str::<Vec<Vec<usize>>>(&text).expect("batches of lengths, as JSON"));
    }
}

/// One forward and backward of every batch in turn, at the GPT-2 124M shape.
fn ragged(batches: &[Vec<usize>]) {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(gpt2())).expect("weights fit");
    let batches: Vec<_> = batches.iter().map(|lengths| common::ragged(&decoder.config, lengths)).collect();
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let (median, fastest) = time(1, || {
        for batch in &batches {
            drop(decoder.backward(batch, &batch.weights(Reduction::SampleMean), &mut sum));
        }
    });
    let tokens: usize = batches.iter().map(|b| b.rows()).sum();
    println!(
        "{:<24} {:>9.3} {:>9.3} {:>10.0}",
        "  forward + backward",
        median.as_secs_f64(),
        fastest.as_secs_f64(),
        tokens as f64 / median.as_secs_f64()
    );
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
    if let Some(mib) = common::peak_memory() {
        println!("  peak memory so far {mib:.0} MiB");
    }
}
