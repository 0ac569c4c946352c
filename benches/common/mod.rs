//! What the benches share: shapes, clocks, and the machine's own rate to compare with.
#![allow(dead_code)]

use ferret::model::config::Mlp;
use ferret::model::init::Preset;
use ferret::model::{Batch, Config, Weights};
use std::time::{Duration, Instant};

/// GPT-2 124M.
pub fn gpt2() -> Config {
    Config {
        vocab: 50257,
        positions: 1024,
        width: 768,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        inner: 3072,
        eos: None,
        ..Preset::Tiny.config()
    }
}

/// 4 layers, 128 wide, 4 heads, vocabulary 2,048.
pub fn small() -> Config {
    Config { vocab: 2048, width: 128, layers: 4, heads: 4, kv_heads: 4, head_width: 32, inner: 512, ..gpt2() }
}

/// So small that brute force can check what is timed.
pub fn tiny() -> Config {
    Config { layers: 2, vocab: 301, width: 96, heads: 4, kv_heads: 4, head_width: 24, inner: 384, ..gpt2() }
}

/// SmolLM2-135M: 30 layers, 576 wide, nine heads on three keys and values, a gated MLP.
pub fn smollm() -> Config {
    Preset::Smollm135m.config()
}

/// Cheap pseudo-random numbers in -1..1.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Random weights of GPT-2's usual size.
pub fn weights(config: Config) -> Weights {
    let mut weights = Weights::zeros(config);
    for (i, (spec, tensor)) in weights.layout.specs().iter().zip(&mut weights.tensors).enumerate() {
        let gain = spec.name.contains("ln_") && spec.name.ends_with("weight");
        let fresh = noise(tensor.len(), i as u64 + 1);
        tensor.iter_mut().zip(fresh).for_each(|(w, n)| *w = if gain { 1.0 } else { 0.03 * n });
    }
    weights
}

/// `samples` samples of `length` random tokens, all of them targets.
pub fn batch(config: &Config, samples: usize, length: usize) -> Batch {
    ragged(config, &vec![length; samples])
}

/// Samples of these lengths, of random tokens, all of them targets.
pub fn ragged(config: &Config, lengths: &[usize]) -> Batch {
    let token = |x: f32| ((x + 1.0) * 0.5 * (config.vocab - 1) as f32) as u32;
    let row = |i: usize, seed: u64| -> Vec<u32> { noise(lengths[i], seed).into_iter().map(token).collect() };
    let rows: Vec<_> = (0..lengths.len()).map(|i| (row(i, 77 + 2 * i as u64), row(i, 78 + 2 * i as u64))).collect();
    Batch::new(rows.iter().map(|(ids, targets)| (ids.as_slice(), targets.as_slice())))
}

/// Multiply-adds of the weight products of one forward pass, twice that in FLOP; backward costs twice forward.
pub fn forward_flops(config: &Config, tokens: usize, length: usize) -> f64 {
    let (c, q, kv) = (config.width as f64, config.query_width() as f64, config.kv_width() as f64);
    let layers = if matches!(config.mlp, Mlp::Gated { .. }) { 3.0 } else { 2.0 };
    let block = c * (q + 2.0 * kv) + q * c + layers * c * config.inner as f64;
    let attention = 2.0 * q * (length as f64 + 1.0) / 2.0;
    let per_token = config.layers as f64 * (block + attention) + c * config.vocab as f64;
    2.0 * tokens as f64 * per_token
}

/// Median and fastest of `runs` calls after one to warm up.
pub fn time(runs: usize, mut f: impl FnMut()) -> (Duration, Duration) {
    f();
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed()
        })
        .collect();
    times.sort();
    (times[runs / 2], times[0])
}

/// The best sgemm rate of this machine over square and training shapes, on all threads, in GFLOP/s.
pub fn sgemm_peak() -> f64 {
    [(1024, 1024, 1024), (512, 768, 3072), (512, 3072, 768), (2048, 768, 768)]
        .into_iter()
        .map(|(m, k, n)| sgemm_rate(m, k, n))
        .fold(0.0, f64::max)
}

/// GFLOP/s of one product of this shape: the fastest of several.
pub fn sgemm_rate(m: usize, k: usize, n: usize) -> f64 {
    use ndarray::Array2;
    let a = Array2::from_shape_vec((m, k), noise(m * k, 1)).expect("sizes agree");
    let b = Array2::from_shape_vec((k, n), noise(k * n, 2)).expect("sizes agree");
    let mut c = Array2::zeros((m, n));
    let runs = (4e9 / (2.0 * (m * k * n) as f64)).clamp(3.0, 20.0) as usize;
    let (_, fastest) =
        time(runs, || ferret::kernel::matmul(a.view(), b.view(), ferret::kernel::Onto::Zero, c.view_mut()));
    2.0 * (m * k * n) as f64 / fastest.as_secs_f64() / 1e9
}

/// The most memory this process has had, in MiB; Linux only.
pub fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
}

/// The peak memory of this bench started again with these arguments, as it prints it.
pub fn child_peak(which: &str, length: usize) -> Option<f64> {
    peak_memory()?;
    let own = std::env::current_exe().ok()?;
    let out = std::process::Command::new(own).args([which, &length.to_string()]).output().ok()?;
    String::from_utf8(out.stdout).ok()?.trim().parse().ok()
}
