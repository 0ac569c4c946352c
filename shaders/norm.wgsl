// Mirrors ops::norm: layer norm, its backward and its jvp. One workgroup of 64 a row, everything in one pass over memory and two
// or three over the row, which stays in cache.

struct Params {
    rows: u32,
    // Groups of columns in a row, and columns of a group; a layer norm has one.
    groups: u32,
    width: u32,
    eps: f32,
    // Where row 0 begins, and numbers from row to row of all but what has a line of its own.
    line: u32,
    start_x: u32,
    start_gain: u32,
    // The bias; the tangents of gain and bias.
    start_bias: u32,
    // y, or dy.
    start_y: u32,
    // dx, or the tangent of x.
    start_dx: u32,
    start_stats: u32,
    line_stats: u32,
    // fold: numbers from row to row of y.
    line_y: u32,
    // backward: 1, leave dy xhat in dy. jvp: bit 0, there is a gain_dot; bit 1, there is a bias_dot.
    flags: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> gain: array<vec4<f32>>;

const LANES: u32 = 64u;

@group(0) @binding(3) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> stats: array<vec4<f32>>;

// y = xhat gain + bias; stats: the row's mean and 1 / sqrt(var + eps).
@compute @workgroup_size(64)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    let line = p.line / 4u;
    let base = p.start_x / 4u + row * line;
    var sum = 0.0;
    for (var i = lane; i < line; i += 64u) {
        sum += sum4(keep(x[base + i], i * 4u, p.width));
    }
    let mean = sum_all(vec2<f32>(sum, 0.0), lane).x / f32(p.width);
    var squares = 0.0;
    for (var i = lane; i < line; i += 64u) {
        let d = keep(x[base + i] - mean, i * 4u, p.width);
        squares += sum4(d * d);
    }
    let rstd = 1.0 / sqrt(sum_all(vec2<f32>(squares, 0.0), lane).x / f32(p.width) + p.eps);
    for (var i = lane; i < line; i += 64u) {
        let normal = (x[base + i] - mean) * rstd;
        y[p.start_y / 4u + row * line + i] = fma(normal, gain[p.start_gain / 4u + i], bias[p.start_bias / 4u + i]);
    }
    if (lane == 0u) {
        stats[p.start_stats / 4u + row] = vec4<f32>(mean, rstd, 0.0, 0.0);
    }
}

@group(0) @binding(6) var<storage, read> given: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> dy: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> dx: array<vec4<f32>>;

// xhat = (x - mean) rstd, given a row's mean and rstd.
fn normal(i: u32, row: vec4<f32>) -> vec4<f32> {
    return (x[i] - row.x) * row.y;
}

// What columns 4 i .. of d add to the sums of d and of d xhat.
fn sums_of(d: vec4<f32>, xhat: vec4<f32>, i: u32) -> vec2<f32> {
    let kept = keep(d, i * 4u, p.width);
    return vec2<f32>(sum4(kept), sum4(kept * keep(xhat, i * 4u, p.width)));
}

// dx += rstd (dn - xhat mean(dn xhat) - mean(dn)), dn = dy gain; dy <- dy xhat if asked for.
@compute @workgroup_size(64)
fn backward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    let line = p.line / 4u;
    let stat = given[p.start_stats / 4u + row];
    let base = p.start_x / 4u + row * line;
    let grad = p.start_y / 4u + row * line;
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < line; i += 64u) {
        sums += sums_of(dy[grad + i] * gain[p.start_gain / 4u + i], normal(base + i, stat), i);
    }
    let means = sum_all(sums, lane) / f32(p.width);
    for (var i = lane; i < line; i += 64u) {
        let d = dy[grad + i];
        let xhat = normal(base + i, stat);
        dx[p.start_dx / 4u + row * line + i] += stat.y * (d * gain[p.start_gain / 4u + i] - xhat * means.y - means.x);
        if (p.flags == 1u) {
            dy[grad + i] = d * xhat;
        }
    }
}

@group(0) @binding(9) var<storage, read> x_dot: array<vec4<f32>>;
@group(0) @binding(10) var<storage, read> gain_dot: array<vec4<f32>>;
@group(0) @binding(11) var<storage, read> bias_dot: array<vec4<f32>>;

// y_dot = rstd (x_dot - mean(x_dot) - xhat mean(xhat x_dot)) gain + xhat gain_dot + bias_dot.
@compute @workgroup_size(64)
fn jvp(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    let line = p.line / 4u;
    let stat = given[p.start_stats / 4u + row];
    let base = p.start_x / 4u + row * line;
    let tangent = p.start_dx / 4u + row * line;
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < line; i += 64u) {
        sums += sums_of(x_dot[tangent + i], normal(base + i, stat), i);
    }
    let means = sum_all(sums, lane) / f32(p.width);
    for (var i = lane; i < line; i += 64u) {
        let xhat = normal(base + i, stat);
        var v = stat.y * (x_dot[tangent + i] - means.x - xhat * means.y) * gain[p.start_gain / 4u + i];
        if ((p.flags & 1u) == 1u) {
            v += xhat * gain_dot[p.start_bias / 4u + i];
        }
        if ((p.flags & 2u) == 2u) {
            v += bias_dot[p.start_bias / 4u + i];
        }
        y[p.start_y / 4u + row * line + i] = v;
    }
}
