//! Updates of weights and compression of gradients: which windows of which tensors.

use super::Gpu;
use super::context::Arg;
use super::kernels;
use super::params::{Compress, Update};
use super::rows::{LANES, columns};
use super::tensor::{Tensor, Window};
use crate::backend::Updates;
use crate::ops::compress::{Address, BUCKET};
use crate::ops::update::{Constants, Step};
use crate::rng::PublicStream;
use std::ops::Range;

/// Idle steps of one dispatch, so that no dispatch takes long.
const STEPS: usize = 64;

/// What the shader is told of [`Constants`].
fn constants(k: &Constants) -> Update {
    let Constants { keep_m, take_m, keep_v, take_v, eps } = *k;
    Update { keep_m, take_m, keep_v, take_v, eps, ..Default::default() }
}

/// Constants of steps as the shader reads them.
fn words(steps: &[Step]) -> Vec<u32> {
    steps.iter().flat_map(|s| [s.decay, s.rate, s.correction, 0.0].map(f32::to_bits)).collect()
}

fn further(rows: &Range<usize>, by: usize) -> Range<usize> {
    rows.start + by..rows.end + by
}

/// What compress.wgsl is told of a window.
struct Part<'a> {
    stream: &'a PublicStream,
    x: &'a Tensor,
    rows: Range<usize>,
    memory: Option<Window<'a>>,
    total: Option<Window<'a>>,
    levels: f32,
}

impl Part<'_> {
    fn params(&self) -> Compress {
        let (x, cols) = (self.x.window(self.rows.clone()), self.x.cols);
        let all = (self.x.rows * cols).max(1);
        Compress {
            stream: self.stream.input(),
            rows: self.rows.len() as u32,
            cols: cols as u32,
            line: x.line,
            start_x: x.start,
            start_memory: self.memory.map_or(0, |w| w.start),
            start_total: self.total.map_or(0, |w| w.start),
            before: (self.rows.start * cols) as u32,
            count: (self.rows.len() * cols) as u32,
            levels: self.levels,
            share: (1.0 / all as f64) as f32,
            remembers: u32::from(self.total.is_some()),
        }
    }
}

/// `x = sign(x)`; or, with what error feedback remembers, `x = mean(|x + e|) sign(x + e)` and `e` what is left.
fn signs(gpu: &Gpu, x: &Tensor, memory: Option<&Tensor>, at: Address) {
    let (c, stream) = (&gpu.context, at.coins());
    let part = |rows: Range<usize>| Part { stream: &stream, x, rows, memory: None, total: None, levels: 0.0 };
    let total = memory.map(|memory| {
        super::rows::elementwise(c, &kernels::ADD, &[], x, memory, 1.0);
        c.copy_rows(memory, 0..x.rows, x);
        let sizes = gpu.empty(x.rows, 1);
        for rows in c.blocks(0..x.rows, &[x.cols]) {
            let to = sizes.window(rows.clone());
            let params = Part { memory: Some(to), ..part(rows.clone()) }.params();
            let args = [Arg::Rows(x.window(rows.clone())), Arg::Rows(to)];
            c.run(&kernels::SIZES, &[], &args, &params, rows.len(), (rows.len() * x.cols) as f64);
        }
        let total = gpu.empty(1, 1);
        c.clear(&total);
        columns(gpu, &sizes, 0..x.rows, &total, 0);
        total
    });
    // A kernel without a memory writes nothing there, but two bindings may not share a buffer that is written to.
    let nothing = gpu.empty(1, 1);
    for rows in c.blocks(0..x.rows, &[x.cols]) {
        let memory = memory.map_or_else(|| nothing.whole(), |m| m.window(rows.clone()));
        let total = total.as_ref().map(Tensor::whole);
        let params = Part { memory: Some(memory), total, ..part(rows.clone()) }.params();
        let count = rows.len() * x.cols;
        let args = [Arg::Rows(x.window(rows)), Arg::Rows(memory), total.map_or(Arg::Nothing, Arg::Rows)];
        c.run(&kernels::SIGNS, &[], &args, &params, count.div_ceil(LANES), 10.0 * count as f64);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Updates for Gpu {
    fn adamw(
        &self,
        w: &mut Tensor,
        (m, v): (&mut Tensor, &mut Tensor),
        g: &Tensor,
        first: usize,
        scale: f32,
        s: &Step,
        k: &Constants,
    ) {
        assert!(g.cols == w.cols && first + g.rows <= w.rows, "the gradient of rows of a matrix");
        let Step { decay, rate, correction } = *s;
        for rows in self.context.blocks(0..g.rows, &[g.cols]) {
            let at = |x: &Tensor, by| -> u32 { x.window(further(&rows, by)).start };
            let count = rows.len() * g.line() / 4;
            let params = Update {
                start_w: at(w, first),
                start_m: at(m, first),
                start_v: at(v, first),
                start_g: at(g, 0),
                count: count as u32,
                scale,
                decay,
                rate,
                correction,
                ..constants(k)
            };
            let args = [
                Arg::Rows(w.window(further(&rows, first))),
                Arg::Rows(m.window(further(&rows, first))),
                Arg::Rows(v.window(further(&rows, first))),
                Arg::Rows(g.window(rows.clone())),
            ];
            self.context.run(&kernels::ADAMW, &[], &args, &params, count.div_ceil(LANES), 60.0 * count as f64);
        }
    }

    fn adamw_idle(&self, w: &mut Tensor, (m, v): (&mut Tensor, &mut Tensor), steps: &[Step], k: &Constants) {
        for rows in self.context.blocks(0..w.rows, &[w.cols]) {
            let windows = [&*w, &*m, &*v].map(|x| x.window(rows.clone()));
            let count = rows.len() * w.line() / 4;
            for steps in steps.chunks(STEPS) {
                let params = Update {
                    start_w: windows[0].start,
                    start_m: windows[1].start,
                    start_v: windows[2].start,
                    count: count as u32,
                    steps: steps.len() as u32,
                    ..constants(k)
                };
                let words = words(steps);
                let args = [Arg::Rows(windows[0]), Arg::Rows(windows[1]), Arg::Rows(windows[2]), Arg::Words(&words)];
                let flops = 50.0 * (count * steps.len()) as f64;
                self.context.run(&kernels::ADAMW_IDLE, &[], &args, &params, count.div_ceil(LANES), flops);
            }
        }
    }

    fn decay(&self, w: &mut Tensor, steps: &[Step]) {
        for rows in self.context.blocks(0..w.rows, &[w.cols]) {
            let window = w.window(rows.clone());
            let numbers = rows.len() * w.line() / 4;
            for steps in steps.chunks(16 * STEPS) {
                let params = Update {
                    start_w: window.start,
                    count: numbers as u32,
                    steps: steps.len() as u32,
                    ..Default::default()
                };
                let args = [Arg::Rows(window), Arg::Words(&words(steps))];
                let flops = 4.0 * (numbers * steps.len()) as f64;
                self.context.run(&kernels::DECAY, &[], &args, &params, numbers.div_ceil(LANES), flops);
            }
        }
    }

    fn subtract(&self, w: &mut Tensor, g: &Tensor, first: usize, scale: f32) {
        assert!(g.cols == w.cols && first + g.rows <= w.rows, "the gradient of rows of a matrix");
        for rows in self.context.blocks(0..g.rows, &[g.cols]) {
            let (to, from) = (w.window(further(&rows, first)), g.window(rows.clone()));
            let count = rows.len() * g.line() / 4;
            let (start_w, start_g) = (to.start, from.start);
            let params = Update { start_w, start_g, count: count as u32, scale, ..Default::default() };
            let args = [Arg::Rows(to), Arg::Rows(from)];
            self.context.run(&kernels::SUBTRACT, &[], &args, &params, count.div_ceil(LANES), 8.0 * count as f64);
        }
    }

    fn signs(&self, x: &mut Tensor, at: Address) {
        signs(self, x, None, at);
    }

    fn signs_with_residue(&self, x: &mut Tensor, residue: &mut Tensor, at: Address) {
        signs(self, x, Some(residue), at);
    }

    fn quantise(&self, x: &mut Tensor, bits: u32, at: Address) {
        let stream = at.rounding();
        let levels = ((1u32 << (bits - 1)) - 1) as f32;
        let mut windows = self.context.blocks(0..x.rows, &[x.cols]);
        if windows.len() > 1 {
            // Windows end where buckets do.
            let whole = BUCKET / gcd(x.cols, BUCKET);
            let blocks = self.context.blocks(0..x.rows.div_ceil(whole), &[whole * x.line()]);
            windows = blocks.into_iter().map(|b| b.start * whole..(b.end * whole).min(x.rows)).collect();
        }
        for rows in windows {
            let params = Part { stream: &stream, x, rows: rows.clone(), memory: None, total: None, levels }.params();
            let count = rows.len() * x.cols;
            let args = [Arg::Rows(x.window(rows))];
            self.context.run(&kernels::QUANTISE, &[], &args, &params, count.div_ceil(BUCKET), 40.0 * count as f64);
        }
    }
}
