// Mirrors ops::rms_norm: the root mean square norm of groups of columns, its backward and its jvp. One workgroup of 64 a group.

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
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> stats: array<f32>;
@group(0) @binding(5) var<storage, read> given: array<f32>;
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;
@group(0) @binding(7) var<storage, read> x_dot: array<f32>;
@group(0) @binding(8) var<storage, read> gain_dot: array<f32>;

const LANES: u32 = 64u;

// Where group `id` begins in its matrix, and its number among the statistics.
fn first_of(id: u32) -> u32 {
    return id / p.groups * p.line + id % p.groups * p.width;
}

fn stat_of(id: u32) -> u32 {
    return p.start_stats + id / p.groups * p.line_stats + id % p.groups;
}

// y = x rstd gain; stats: 1 / sqrt(mean(x^2) + eps).
@compute @workgroup_size(64)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.rows * p.groups) {
        return;
    }
    let at = first_of(id);
    var squares = 0.0;
    for (var i = lane; i < p.width; i += 64u) {
        squares += x[p.start_x + at + i] * x[p.start_x + at + i];
    }
    let rstd = 1.0 / sqrt(sum_one(squares, lane) / f32(p.width) + p.eps);
    for (var i = lane; i < p.width; i += 64u) {
        y[p.start_y + at + i] = x[p.start_x + at + i] * rstd * gain[p.start_gain + i];
    }
    if (lane == 0u) {
        stats[stat_of(id)] = rstd;
    }
}

// dx += rstd (dn - xhat mean(dn xhat)), dn = dy gain; dy <- dy xhat if asked for. dy comes as y.
@compute @workgroup_size(64)
fn backward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.rows * p.groups) {
        return;
    }
    let at = first_of(id);
    let rstd = given[stat_of(id)];
    var sum = 0.0;
    for (var i = lane; i < p.width; i += 64u) {
        sum += y[p.start_y + at + i] * gain[p.start_gain + i] * (x[p.start_x + at + i] * rstd);
    }
    let along = sum_one(sum, lane) / f32(p.width);
    for (var i = lane; i < p.width; i += 64u) {
        let d = y[p.start_y + at + i];
        let normal = x[p.start_x + at + i] * rstd;
        dx[p.start_dx + at + i] += rstd * (d * gain[p.start_gain + i] - normal * along);
        if (p.flags == 1u) {
            y[p.start_y + at + i] = d * normal;
        }
    }
}

// y_dot = rstd (x_dot - xhat mean(xhat x_dot)) gain + xhat gain_dot.
@compute @workgroup_size(64)
fn jvp(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.rows * p.groups) {
        return;
    }
    let at = first_of(id);
    let rstd = given[stat_of(id)];
    var sum = 0.0;
    for (var i = lane; i < p.width; i += 64u) {
        sum += x[p.start_x + at + i] * rstd * x_dot[p.start_dx + at + i];
    }
    let along = sum_one(sum, lane) / f32(p.width);
    for (var i = lane; i < p.width; i += 64u) {
        let normal = x[p.start_x + at + i] * rstd;
        var v = rstd * (x_dot[p.start_dx + at + i] - normal * along) * gain[p.start_gain + i];
        if (p.flags == 1u) {
            v += normal * gain_dot[p.start_bias + i];
        }
        y[p.start_y + at + i] = v;
    }
}

// y: the sum of every row's groups. A thread a number.
@compute @workgroup_size(64)
fn fold(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.width) {
        var sum = 0.0;
        for (var g = 0u; g < p.groups; g += 1u) {
            sum += x[p.start_x + i / p.width * p.line + g * p.width + i % p.width];
        }
        y[p.start_y + i / p.width * p.line_y + i % p.width] = sum;
    }
}
