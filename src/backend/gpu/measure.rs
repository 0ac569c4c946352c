//! How fast an adapter is, measured with the ops that matter.

use super::Gpu;
use crate::backend::{Compute, Memory};
use crate::error::Result;
use crate::ops::Order;
use std::time::{Duration, Instant};

/// Measured rates.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Rates {
    /// Matrix products, in 10^9 floating-point operations a second.
    pub gflops: f64,
    /// Additions of one matrix to another, in 10^9 bytes read and written a second.
    pub gigabytes: f64,
}

/// Long enough for the clock and for the cost of submitting not to matter.
const ENOUGH: Duration = Duration::from_millis(100);

/// Double `size` until `run(size)` takes long enough, or `size` would exceed `largest`; the rate is `amount(size)` a second.
fn rate(
    mut size: usize,
    largest: usize,
    amount: impl Fn(usize) -> f64,
    run: impl Fn(usize) -> Result<Duration>,
) -> Result<f64> {
    loop {
        let time = run(size)?;
        if time >= ENOUGH || 2 * size > largest {
            return Ok(amount(size) / time.as_secs_f64());
        }
        size *= 2;
    }
}

/// Run `f` once to compile and allocate, then time it.
fn time(gpu: &Gpu, mut f: impl FnMut()) -> Result<Duration> {
    f();
    gpu.finish()?;
    let start = Instant::now();
    f();
    gpu.finish()?;
    Ok(start.elapsed())
}

impl Gpu {
    /// Measure the device. Takes a second or two; more where the device is slow.
    pub fn measure(&self) -> Result<Rates> {
        let products = rate(
            128,
            4096,
            |n| 2.0 * (n as f64).powi(3),
            |n| {
                let (a, b) = (self.upload(n, n, vec![0.5; n * n])?, self.upload(n, n, vec![0.25; n * n])?);
                time(self, || drop(self.linear(&a, &b, Order::InOut, None)))
            },
        )?;
        // Rows of 4 KiB; at most 256 MiB, far beyond any cache.
        let bytes = rate(
            1 << 10,
            1 << 16,
            |rows| 3.0 * (rows << 12) as f64,
            |rows| {
                let (mut x, y) = (self.zeros(rows, 1024), self.zeros(rows, 1024));
                time(self, || self.add(&mut x, &y))
            },
        )?;
        Ok(Rates { gflops: products / 1e9, gigabytes: bytes / 1e9 })
    }
}
