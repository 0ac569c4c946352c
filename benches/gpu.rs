//! The CPU against the GPU, op by op and for a whole step, on the adapter that it names; and the matrix product against the
//! simplest shader that computes one. What is timed is compared first.
//!
//! `cargo bench --bench gpu` (or `-- matmul`, `-- ops`, `-- step` for one part; FERRET_ADAPTER chooses the adapter).

#[cfg(feature = "gpu")]
mod common;
#[cfg(feature = "gpu")]
#[path = "gpu_parts/matmul.rs"]
mod matmul;
#[cfg(feature = "gpu")]
#[path = "gpu_parts/step.rs"]
mod step;
#[cfg(feature = "gpu")]
#[path = "gpu_parts/updates.rs"]
mod updates;

#[cfg(not(feature = "gpu"))]
fn main() {
    println!("built without the feature `gpu`");
}

#[cfg(feature = "gpu")]
fn main() {
    gpu::main();
}

#[cfg(feature = "gpu")]
mod gpu {
    use super::common::{noise, time};
    use ferret::backend::{Backend, Compute, Cpu, Gpu, Memory, SampleNorms, Sketches};
    use ferret::kernel::Stored;
    use ferret::ops::rope::Scaling;
    use ferret::ops::sample_norm::COLUMNS;
    use ferret::ops::{Activation, GateUp, Heads, Order, Parts, Qkv, Rope, Segments};
    use ferret::rng::{Direction, DirectionStream, SketchKind, StepSketch};

    pub fn main() {
        let only = std::env::args().nth(1).filter(|a| !a.starts_with("--"));
        let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
        let gpu = match Gpu::new(None) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        println!("adapter: {} ({}, {})", gpu.info().name, gpu.info().backend, gpu.info().driver);
        println!("processor: {} threads\n", rayon::current_num_threads());
        if wanted("matmul") {
            super::matmul::run(&gpu);
        }
        if wanted("ops") {
            println!("{:<28} {:>10} {:>10} {:>8}", "op", "cpu ms", "gpu ms", "ratio");
            ops(&gpu);
            super::updates::run(&gpu);
            let missing = gpu.unused();
            assert!(missing.is_empty(), "kernels without a row: {}", missing.join(", "));
        }
        if wanted("step") {
            super::step::run(&gpu);
        }
    }

    pub fn milliseconds(runs: usize, mut f: impl FnMut()) -> f64 {
        time(runs, &mut f).1.as_secs_f64() * 1e3
    }

    /// Time one op on both, after comparing what it gives.
    macro_rules! versus {
        ($gpu:expr, $name:expr, |$b:ident| $setup:expr, |$c:ident, $args:ident| $op:expr) => {{
            let cpu = Cpu::<f32>::new();
            let (cpu_time, want) = {
                let $b = &cpu;
                let mut $args = $setup;
                let $c = &cpu;
                let want = $c.download(&$op).unwrap();
                (milliseconds(3, || drop($op)), want)
            };
            let (gpu_time, got) = {
                let $b = $gpu;
                let mut $args = $setup;
                let $c = $gpu;
                let got = $c.download(&$op).unwrap();
                (
                    milliseconds(3, || {
                        drop($op);
                        $c.finish().unwrap();
                    }),
                    got,
                )
            };
            let size = want.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
            assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-3 * size), "{}: results differ", $name);
            println!("{:<28} {cpu_time:>10.3} {gpu_time:>10.3} {:>8.2}", $name, cpu_time / gpu_time);
        }};
    }

    pub(crate) use versus;

    pub fn matrix<B: Backend>(b: &B, rows: usize, cols: usize, seed: u64) -> B::Tensor {
        b.upload(rows, cols, noise(rows * cols, seed)).unwrap()
    }

    fn weight<B: Backend>(b: &B, rows: usize, cols: usize, seed: u64) -> B::Weight {
        b.weight(rows, cols, Stored::F32(noise(rows * cols, seed))).unwrap()
    }

    pub fn copy<B: Backend>(b: &B, x: &B::Tensor) -> B::Tensor {
        b.rows(x, 0..b.shape(x).0)
    }

    #[allow(unused_mut)]
    fn ops(gpu: &Gpu) {
        let (n, c, v) = (256, 128, 2048);
        let segments = Segments::from_lengths([n / 2, n / 4, n / 4]);
        let ids: Vec<u32> = (0..n as u32).map(|i| i * 7919 % v as u32).collect();
        let positions: Vec<u32> = segments.positions().collect();
        let ones = vec![1.0f32; n];
        versus!(gpu, "embed", |b| (weight(b, v, c, 1), weight(b, n, c, 2)), |b, t| b.embed(
            &ids,
            &t.0,
            Some((&positions, &t.1))
        ));
        versus!(gpu, "embed, backward", |b| [matrix(b, n, c, 1)], |b, t| {
            let mut out = b.zeros(v, c);
            b.add_rows(&ids, &t[0], 0..n, &mut out);
            out
        });
        versus!(gpu, "gather", |b| [matrix(b, v, c, 1)], |b, t| {
            let mut out = b.zeros(n, c);
            b.add_gather(&ids, &t[0], &mut out);
            out
        });
        versus!(gpu, "norm", |b| (matrix(b, n, c, 1), weight(b, 1, c, 2), weight(b, 1, c, 3)), |b, t| b
            .norm(&t.0, &t.1, &t.2, 1e-5)
            .0);
        versus!(
            gpu,
            "norm, backward",
            |b| {
                let x = matrix(b, n, c, 1);
                let gain = weight(b, 1, c, 2);
                let stats = b.norm(&x, &gain, &gain, 1e-5).1;
                (x, gain, stats, matrix(b, n, c, 3), matrix(b, 1, c, 4))
            },
            |b, t| {
                let (mut dy, mut dx) = (copy(b, &t.3), b.zeros(n, c));
                b.norm_backward(&mut dy, &t.0, &t.2, &t.1, true, &mut dx);
                dx
            }
        );
        versus!(
            gpu,
            "norm, jvp",
            |b| {
                let x = matrix(b, n, c, 1);
                let gain = weight(b, 1, c, 2);
                let stats = b.norm(&x, &gain, &gain, 1e-5).1;
                (x, gain, stats, matrix(b, n, c, 3), matrix(b, 1, c, 4))
            },
            |b, t| b.norm_jvp(&t.0, &t.3, &t.2, &t.1, Some(&t.4), None)
        );
        versus!(gpu, "linear", |b| (matrix(b, n, c, 1), weight(b, c, 4 * c, 2), weight(b, 1, 4 * c, 3)), |b, t| b
            .linear(&t.0, &t.1, Order::InOut, Some(&t.2)));
        versus!(gpu, "linear, input", |b| (matrix(b, n, 4 * c, 1), weight(b, c, 4 * c, 2)), |b, t| b.linear_input(
            &t.0,
            &t.1,
            Order::InOut
        ));
        versus!(gpu, "linear, weight", |b| [matrix(b, n, c, 1), matrix(b, n, 4 * c, 2)], |b, t| {
            let mut out = b.zeros(c, 4 * c);
            b.add_outer(&t[0], &t[1], 0..n, &mut out);
            out
        });
        versus!(gpu, "linear, bias", |b| [matrix(b, n, 4 * c, 1)], |b, t| {
            let mut out = b.zeros(1, 4 * c);
            b.add_columns(&t[0], 0..n, &mut out);
            out
        });
        versus!(gpu, "linear, one row", |b| (matrix(b, 1, 4 * c, 1), weight(b, 4 * c, v, 2)), |b, t| b
            .chain(|| b.linear(&t.0, &t.1, Order::InOut, None)));
        versus!(gpu, "head, one row", |b| (matrix(b, 1, 4 * c, 1), weight(b, v, 4 * c, 2)), |b, t| b
            .chain(|| b.head(&t.0, &t.1)));
        versus!(gpu, "tangent of a bias", |b| [matrix(b, n, c, 1), matrix(b, 1, c, 2)], |b, t| {
            let mut y = copy(b, &t[0]);
            b.add_vector(&t[1], &mut y);
            y
        });
        versus!(gpu, "head", |b| (matrix(b, n, c, 1), weight(b, v, c, 2)), |b, t| b.head(&t.0, &t.1));
        attention(gpu, n, c, &segments);
        gated(gpu, n, c, &segments);
        versus!(gpu, "gelu", |b| [matrix(b, n, 4 * c, 1)], |b, t| b.activation(Activation::GeluTanh, &t[0]));
        versus!(gpu, "gelu, backward", |b| [matrix(b, n, 4 * c, 1), matrix(b, n, 4 * c, 2)], |b, t| {
            let mut dy = copy(b, &t[1]);
            b.activation_backward(Activation::GeluTanh, &t[0], &mut dy);
            dy
        });
        versus!(gpu, "residual", |b| [matrix(b, n, c, 1), matrix(b, n, c, 2)], |b, t| {
            let mut x = copy(b, &t[0]);
            b.add(&mut x, &t[1]);
            x
        });
        versus!(gpu, "cross-entropy", |b| [matrix(b, n, v, 1)], |b, t| {
            let mut losses = b.zeros(n, 1);
            b.cross_entropy(&t[0], &ids, &mut losses, 0);
            losses
        });
        versus!(gpu, "cross-entropy, backward", |b| [matrix(b, n, v, 1)], |b, t| {
            let (mut logits, mut losses) = (copy(b, &t[0]), b.zeros(n, 1));
            b.cross_entropy_backward(&mut logits, &ids, &ones, &mut losses, 0);
            logits
        });
        versus!(gpu, "cross-entropy, jvp", |b| [matrix(b, n, v, 1), matrix(b, n, v, 2)], |b, t| {
            let mut losses = b.zeros(n, 1);
            b.cross_entropy_jvp(&t[0], &t[1], &ids, &mut losses, 0);
            losses
        });
        versus!(gpu, "statistics of tokens", |b| [matrix(b, n, v, 1)], |b, t| {
            let mut stats = b.zeros(n, 4);
            b.token_stats(&t[0], &ids, &mut stats, 0);
            stats
        });
        versus!(gpu, "sample norms", |b| [matrix(b, n, c, 1), matrix(b, n, 4 * c, 2)], |b, t| {
            let mut squares = b.zeros(3, COLUMNS);
            b.add_outer_squares(&t[0], &t[1], &segments, &mut squares, 0);
            squares
        });
        versus!(gpu, "sample norms, narrow", |b| [matrix(b, n, 16, 1), matrix(b, n, 16, 2)], |b, t| {
            let mut squares = b.zeros(3, COLUMNS);
            b.add_outer_squares(&t[0], &t[1], &segments, &mut squares, 0);
            squares
        });
        versus!(gpu, "sample norms, embedding", |b| [matrix(b, n, c, 1)], |b, t| {
            let mut squares = b.zeros(3, COLUMNS);
            b.add_row_squares(&ids, &t[0], &segments, &mut squares, 0);
            squares
        });
        versus!(gpu, "sample norms, tied", |b| [matrix(b, n, v, 1), matrix(b, n, c, 2)], |b, t| {
            let mut squares = b.zeros(3, COLUMNS);
            b.add_tied_squares((&t[0], &t[1], 0, &segments), (&ids, &t[1], 0, &segments), &mut squares, 0);
            squares
        });
        versus!(gpu, "sums of segments", |b| [matrix(b, n, 4 * c, 1)], |b, t| b.segment_sums(&t[0], &segments));
        versus!(gpu, "clip", |b| [matrix(b, n, 4 * c, 1)], |b, t| {
            let (mut x, mut factors) = (copy(b, &t[0]), b.zeros(3, 1));
            let norms = [4.0, 0.5, 9.0].map(|square| [square, 1.0, 10.0, 1e-7]).concat();
            b.add_norm_bounds(&b.upload(3, COLUMNS, norms).unwrap(), &mut factors);
            b.clip_factors(ferret::ops::clip::ClipFunction::Abadi, 1.0, &mut factors);
            b.scale_rows(&mut x, &segments, &factors, 0);
            x
        });
        versus!(gpu, "row dots", |b| [matrix(b, n, 4 * c, 1), matrix(b, n, 4 * c, 2)], |b, t| {
            let mut out = b.zeros(n, 1);
            b.add_row_dots(&t[0], &t[1], &mut out, 0);
            out
        });
        for kind in [Direction::Sphere, Direction::Rademacher] {
            let stream = DirectionStream::new(1, 2, 3, kind, n * 4 * c);
            versus!(gpu, format!("direction, {kind:?}"), |_b| (), |b, _t| b.direction(&stream, 0, n, 4 * c));
            let ids: Vec<u32> = (0..n as u32).map(|i| i * 37 % n as u32).collect();
            let rows = format!("rows of one, {kind:?}");
            versus!(gpu, rows, |_b| (), |b, _t| b.direction_rows(&stream, 0, &ids, 4 * c));
        }
        for kind in [SketchKind::Tensor, SketchKind::Grid, SketchKind::Count] {
            let sketch = StepSketch::new(1, 2, kind, 256, &[(c, 4 * c)]);
            versus!(gpu, format!("sketch, {kind:?}"), |b| [matrix(b, n, c, 1), matrix(b, n, 4 * c, 2)], |b, t| {
                let mut sums = b.sketch_sums(&sketch, 3);
                b.sketch_outer(&sketch, 0, &t[0], &t[1], &segments, 0, &mut sums);
                let v = b.sketches(&sketch, sums).unwrap();
                b.upload(3, 256, v.iter().flatten().map(|&x| x as f32).collect()).unwrap()
            });
            let numbers = vec![1.0; 256];
            let pullback = sketch.pullback(&numbers, 1.0);
            versus!(gpu, format!("pullback, {kind:?}"), |_b| (), |b, _t| b.pulled(&pullback, 0, 0, c, 4 * c));
        }
    }

    /// GPT-2's heads, and grouped ones with a slope and a window.
    #[allow(unused_mut)]
    fn attention(gpu: &Gpu, n: usize, c: usize, segments: &Segments) {
        let plain = Heads::plain(4, c / 4, 1.0 / 32f64.sqrt());
        let grouped = Heads { kv_heads: 2, window: Some(n / 4), alibi: true, ..plain };
        for (kind, heads) in [("attention", plain), ("grouped attention", grouped)] {
            let cols = heads.columns().iter().sum();
            versus!(gpu, kind, |b| [matrix(b, n, cols, 1)], |b, t| b.attention(Qkv::Fused(&t[0]), segments, &heads).0);
            versus!(
                gpu,
                format!("{kind}, backward"),
                |b| {
                    let qkv = matrix(b, n, cols, 1);
                    let (out, lse) = b.attention(Qkv::Fused(&qkv), segments, &heads);
                    (qkv, out, lse, matrix(b, n, c, 2))
                },
                |b, t| only(b.attention_backward(&t.3, &t.1, &t.2, Qkv::Fused(&t.0), segments, &heads))
            );
            versus!(
                gpu,
                format!("{kind}, jvp"),
                |b| {
                    let qkv = matrix(b, n, cols, 1);
                    let lse = b.attention(Qkv::Fused(&qkv), segments, &heads).1;
                    (qkv, matrix(b, n, cols, 2), lse)
                },
                |b, t| b.attention_jvp(Qkv::Fused(&t.0), Qkv::Fused(&t.1), &t.2, segments, &heads)
            );
            let kv = heads.columns()[1];
            versus!(
                gpu,
                format!("{kind}, one cached row"),
                |b| { (matrix(b, 1, cols, 1), matrix(b, n, kv, 2), matrix(b, n, kv, 3)) },
                |b, t| b.attention_cached(Qkv::Fused(&t.0), &mut t.1, &mut t.2, n - 1, &heads)
            );
        }
    }

    /// What Llama's block has and GPT-2's has not.
    #[allow(unused_mut)]
    fn gated(gpu: &Gpu, n: usize, c: usize, segments: &Segments) {
        let table = Rope::new(10000.0, c / 4, &Scaling::None).tables(segments);
        versus!(
            gpu,
            "rotary positions",
            |b| (matrix(b, n, c, 1), b.upload(n, c / 4, table.clone()).unwrap()),
            |b, t| {
                let mut x = copy(b, &t.0);
                b.rope(&mut x, 0, 4, c / 4, &t.1, false);
                x
            }
        );
        versus!(gpu, "rms norm", |b| (matrix(b, n, c, 1), weight(b, 1, c, 2)), |b, t| b.rms_norm(&t.0, &t.1, 1e-5).0);
        versus!(
            gpu,
            "rms norm, backward",
            |b| {
                let (x, gain) = (matrix(b, n, c, 1), weight(b, 1, c, 2));
                let stats = b.rms_norm(&x, &gain, 1e-5).1;
                (x, gain, stats, matrix(b, n, c, 3), matrix(b, 1, c, 4))
            },
            |b, t| {
                let (mut dy, mut dx) = (copy(b, &t.3), b.zeros(n, c));
                b.rms_norm_backward(&mut dy, &t.0, &t.2, &t.1, true, &mut dx);
                dx
            }
        );
        versus!(
            gpu,
            "rms norm, jvp",
            |b| {
                let (x, gain) = (matrix(b, n, c, 1), weight(b, 1, c, 2));
                let stats = b.rms_norm(&x, &gain, 1e-5).1;
                (x, gain, stats, matrix(b, n, c, 3), matrix(b, 1, c, 4))
            },
            |b, t| b.rms_norm_jvp(&t.0, &t.3, &t.2, &t.1, Some(&t.4))
        );
        versus!(gpu, "sums of heads", |b| [matrix(b, n, c, 1)], |b, t| b.fold(&t[0], c / 4));
        let silu = Activation::Silu;
        versus!(gpu, "gated", |b| [matrix(b, n, 4 * c, 1)], |b, t| b.gated(silu, GateUp::Fused(&t[0])));
        versus!(gpu, "gated, backward", |b| [matrix(b, n, 4 * c, 1), matrix(b, n, 2 * c, 2)], |b, t| only(
            b.gated_backward(silu, GateUp::Fused(&t[0]), &t[1])
        ));
        versus!(gpu, "gated, jvp", |b| [1, 2].map(|i| matrix(b, n, 4 * c, i)), |b, t| b.gated_jvp(
            silu,
            GateUp::Fused(&t[0]),
            GateUp::Fused(&t[1])
        ));
    }

    /// The one tensor of a fused projection.
    fn only<T, const N: usize>(parts: Parts<T, N>) -> T {
        match parts {
            Parts::Fused(x) => x,
            Parts::Split(_) => unreachable!("gradients have the shape of what was given"),
        }
    }
}
