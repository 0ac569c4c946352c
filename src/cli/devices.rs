//! `ferret devices`: what this machine can compute on, and how fast.

use super::common::working;
use crate::error::Result;
use crate::fsio;
use crate::kernel::{Onto, matmul};
use ndarray::Array2;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// List the devices that --device can use, with their limits and measured speed.
///
/// GFLOP/s are those of this program's matrix product, GB/s those of adding one matrix to another.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ferret devices\n  FERRET_ADAPTER=radeon ferret eval --device gpu --model gpt2 --data records.jsonl"
)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Do not measure, only list
    #[arg(long)]
    quick: bool,
    /// No progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// List the adapters, each with what a training step would meet there.
pub fn run(args: Args) -> Result<()> {
    let threads = rayon::current_num_threads();
    let shown = working("measuring", args.quiet);
    let cpu = json!({ "threads": threads, "gflops": (!args.quick).then(cpu_gflops) });
    let adapters = adapters(args.quick);
    drop(shown);
    if args.json {
        return fsio::print(&format!("{}\n", json!({ "cpu": cpu, "adapters": adapters })));
    }
    let mut text = String::new();
    describe(&mut text, &cpu, &adapters).expect("writing to a string");
    fsio::print(&text)
}

/// The processor's matrix product, on all threads.
fn cpu_gflops() -> f64 {
    let n = 768;
    let (a, b) = (Array2::from_elem((n, n), 0.5f32), Array2::from_elem((n, n), 0.25f32));
    let mut c = Array2::zeros((n, n));
    let mut once = || {
        let start = Instant::now();
        matmul(a.view(), b.view(), Onto::Zero, c.view_mut());
        start.elapsed()
    };
    let fastest = (0..8).map(|_| once()).min().unwrap_or(Duration::MAX);
    2.0 * (n as f64).powi(3) / fastest.as_secs_f64() / 1e9
}

/// Every adapter as JSON, with its rates or with what went wrong when it was measured.
#[cfg(feature = "gpu")]
fn adapters(quick: bool) -> Vec<Value> {
    use crate::backend::gpu::{Gpu, adapters};
    adapters()
        .into_iter()
        .map(|info| {
            let mut value = serde_json::to_value(&info).expect("plain data");
            if !quick {
                match Gpu::new(Some(&info.index.to_string())).and_then(|gpu| gpu.measure()) {
                    Ok(rates) => {
                        value["gflops"] = json!(rates.gflops);
                        value["gigabytes"] = json!(rates.gigabytes);
                    }
                    Err(e) => value["error"] = json!(e.to_string()),
                }
            }
            value
        })
        .collect()
}

#[cfg(not(feature = "gpu"))]
fn adapters(_: bool) -> Vec<Value> {
    Vec::new()
}

fn describe(out: &mut String, cpu: &Value, adapters: &[Value]) -> std::fmt::Result {
    let rate = |value: &Value, unit: &str| value.as_f64().map_or(String::new(), |r| format!(", {r:.1} {unit}"));
    writeln!(out, "cpu: {} threads{}", cpu["threads"], rate(&cpu["gflops"], "GFLOP/s"))?;
    if !cfg!(feature = "gpu") {
        return writeln!(out, "gpu: not in this build (it was made without the feature `gpu`)");
    }
    if adapters.is_empty() {
        return writeln!(out, "gpu: no adapter found; install a Vulkan, Metal or DX12 driver");
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mib = |value: &Value| value.as_u64().unwrap_or_default() >> 20;
    for a in adapters {
        let rates = rate(&a["gflops"], "GFLOP/s") + &rate(&a["gigabytes"], "GB/s");
        writeln!(
            out,
            "gpu {}: {} ({}, {}){rates}",
            a["index"],
            text(&a["name"]),
            text(&a["backend"]),
            text(&a["kind"])
        )?;
        writeln!(out, "  driver: {}", text(&a["driver"]))?;
        writeln!(
            out,
            "  limits: buffer {} MiB, binding {} MiB, workgroup {} threads and {} KiB, subgroup {} to {}",
            mib(&a["max_buffer"]),
            mib(&a["max_binding"]),
            a["workgroup_threads"],
            a["workgroup_memory"].as_u64().unwrap_or_default() >> 10,
            a["subgroup"][0],
            a["subgroup"][1]
        )?;
        let features: Vec<String> = a["features"].as_array().into_iter().flatten().map(text).collect();
        writeln!(out, "  features: {}", if features.is_empty() { "none".into() } else { features.join(", ") })?;
        if let Some(e) = a["error"].as_str() {
            writeln!(out, "  could not be measured: {e}")?;
        }
    }
    Ok(())
}
