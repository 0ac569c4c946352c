// Mirrors ops::update: adamw_step, adamw_idle, decay and subtract, in the order written there. A thread has four weights. A driver
// may contract `a * b + c` and round roots and quotients its own way: what is published is replayed on the CPU.

struct Params {
    start_w: u32,
    start_m: u32,
    start_v: u32,
    start_g: u32,
    // In vec4s.
    count: u32,
    // idle, decay: how many.
    steps: u32,
    // The factor on the gradient.
    scale: f32,
    // ops::update::Step.
    decay: f32,
    rate: f32,
    correction: f32,
    // ops::update::Constants.
    keep_m: f32,
    take_m: f32,
    keep_v: f32,
    take_v: f32,
    eps: f32,
}

// 2^-60 and 2^-100: below these, first moments and gradients, and second moments, are 0.
const TINY_M: f32 = 8.6736174e-19;
const TINY_V: f32 = 7.8886091e-31;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> weights: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> first: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> second: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> gradient: array<vec4<f32>>;
// decay, rate and correction of each step.
@group(0) @binding(5) var<storage, read> steps: array<vec4<f32>>;

fn flush(x: vec4<f32>, tiny: f32) -> vec4<f32> {
    return select(x, vec4<f32>(0.0), abs(x) < vec4<f32>(tiny));
}

fn moved(w: vec4<f32>, m: vec4<f32>, v: vec4<f32>, decay: f32, rate: f32, correction: f32) -> vec4<f32> {
    return w * decay - rate * (m / (sqrt(v) * correction + p.eps));
}

// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, w = w decay - rate m / (sqrt(v) correction + eps).
@compute @workgroup_size(64)
fn adamw(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    let g = flush(p.scale * gradient[p.start_g / 4u + i], TINY_M);
    let m = flush(p.keep_m * first[p.start_m / 4u + i] + p.take_m * g, TINY_M);
    let v = flush(p.keep_v * second[p.start_v / 4u + i] + (p.take_v * g) * g, TINY_V);
    first[p.start_m / 4u + i] = m;
    second[p.start_v / 4u + i] = v;
    let at = p.start_w / 4u + i;
    weights[at] = moved(weights[at], m, v, p.decay, p.rate, p.correction);
}

// The same without a gradient, many steps in registers.
@compute @workgroup_size(64)
fn idle(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    var w = weights[p.start_w / 4u + i];
    var m = first[p.start_m / 4u + i];
    var v = second[p.start_v / 4u + i];
    for (var t = 0u; t < p.steps; t += 1u) {
        let s = steps[t];
        m = flush(p.keep_m * m, TINY_M);
        v = flush(p.keep_v * v, TINY_V);
        w = moved(w, m, v, s.x, s.y, s.z);
    }
    weights[p.start_w / 4u + i] = w;
    first[p.start_m / 4u + i] = m;
    second[p.start_v / 4u + i] = v;
}

// The same where all moments are 0.
@compute @workgroup_size(64)
fn decay(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    var w = weights[p.start_w / 4u + i];
    for (var t = 0u; t < p.steps; t += 1u) {
        w *= steps[t].x;
    }
    weights[p.start_w / 4u + i] = w;
}

// w -= scale g.
@compute @workgroup_size(64)
fn subtract(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.count) {
        weights[p.start_w / 4u + i] -= p.scale * gradient[p.start_g / 4u + i];
    }
}
