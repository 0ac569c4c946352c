//! Forward and backward of whole decoders: tokens/s, GFLOP/s, and the share of this machine's own sgemm rate.
//!
//! `cargo bench --bench step` (or `-- gpt2`, `-- small` for one shape alone).

mod common;

use common::{batch, forward_flops, gpt2, sgemm_peak, small, time, weights};
use ferret::backend::Cpu;
use ferret::grad::Sum;
use ferret::model::{Config, Decoder, Reduction};

fn main() {
    let only = std::env::args().nth(1).filter(|a| !a.starts_with("--"));
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    let peak = sgemm_peak();
    println!("sgemm, best shape, {} threads: {peak:.0} GFLOP/s", rayon::current_num_threads());
    println!("{:<24} {:>9} {:>9} {:>10} {:>9} {:>8}", "", "median s", "fastest", "tokens/s", "GFLOP/s", "of peak");
    if wanted("gpt2") {
        run("gpt2 124M, 4 x 128", gpt2(), 4, 128, 5, peak);
        run("gpt2 124M, 4 x 256", gpt2(), 4, 256, 3, peak);
    }
    if wanted("small") {
        run("small, 16 x 128", small(), 16, 128, 20, peak);
    }
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
