// Mirrors ops::cross_entropy: softmax cross-entropy of rows of logits. One workgroup of 256 a row; the largest logit and the sum of
// exponentials are found in one reading.

struct Params {
    rows: u32,
    cols: u32,
    // Length of a row in vec4s.
    line: u32,
    start_logits: u32,
    // In numbers, of what the first row gives; what the next gives is 4 numbers after it.
    start_out: u32,
    // The first row's target.
    first: u32,
}

const IGNORE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;

const LANES: u32 = 256u;

// The largest number so far, and the sum of exponentials of what the numbers are below it.
struct Softmax {
    largest: f32,
    sum: f32,
}

fn joined(s: Softmax, v: vec4<f32>) -> Softmax {
    let largest = max(s.largest, max4(v));
    return Softmax(largest, s.sum * exp_safe(s.largest - largest) + sum4(exp4(v - largest)));
}

// Of all threads.
fn together(s: Softmax, lane: u32) -> Softmax {
    let largest = max_all(s.largest, lane);
    return Softmax(largest, sum_all(vec2<f32>(s.sum * exp_safe(s.largest - largest), 0.0), lane).x);
}

// Whether a row's target is ignored; its loss is 0 then.
fn ignored(row: u32, lane: u32) -> bool {
    let is = targets[p.first + row] == IGNORE;
    if (is && lane == 0u) {
        losses[p.start_out + 4u * row] = 0.0;
    }
    return is;
}

// loss = lse(logits) - logits[target]; 0 where the target is ignored.
@compute @workgroup_size(256)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows || ignored(row, lane)) {
        return;
    }
    let target_id = targets[p.first + row];
    let base = p.start_logits / 4u + row * p.line;
    var own = Softmax(LOWEST, 0.0);
    for (var i = lane; i < p.line; i += 256u) {
        own = joined(own, masked(logits[base + i], i * 4u, p.cols));
    }
    let all = together(own, lane);
    if (lane == 0u) {
        let at_target = logits[base + target_id / 4u][target_id % 4u];
        losses[p.start_out + 4u * row] = (all.largest - at_target) + log_safe(all.sum);
    }
}

@group(0) @binding(4) var<storage, read> weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> grads: array<vec4<f32>>;

// The loss, and in place of the logits weight (softmax - onehot); zeros where the target is ignored.
@compute @workgroup_size(256)
fn backward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    let base = p.start_logits / 4u + row * p.line;
    if (ignored(row, lane)) {
        for (var i = lane; i < p.line; i += 256u) {
            grads[base + i] = vec4<f32>(0.0);
        }
        return;
    }
    let target_id = targets[p.first + row];
    let at_target = grads[base + target_id / 4u][target_id % 4u];
    var own = Softmax(LOWEST, 0.0);
    for (var i = lane; i < p.line; i += 256u) {
        own = joined(own, masked(grads[base + i], i * 4u, p.cols));
    }
    let all = together(own, lane);
    let weight = weights[p.first + row];
    let scale = weight / all.sum;
    for (var i = lane; i < p.line; i += 256u) {
        var g = exp4(masked(grads[base + i], i * 4u, p.cols) - all.largest) * scale;
        if (i == target_id / 4u) {
            g[target_id % 4u] -= weight;
        }
        grads[base + i] = g;
    }
    if (lane == 0u) {
        losses[p.start_out + 4u * row] = (all.largest - at_target) + log_safe(all.sum);
    }
}

@group(0) @binding(6) var<storage, read> logits_dot: array<vec4<f32>>;

// loss_dot = <softmax(logits), logits_dot> - logits_dot[target]. Tangents lie in their window as the logits do in theirs.
@compute @workgroup_size(256)
fn jvp(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows || ignored(row, lane)) {
        return;
    }
    let target_id = targets[p.first + row];
    let base = p.start_logits / 4u + row * p.line;
    var largest = LOWEST;
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < p.line; i += 256u) {
        let v = masked(logits[base + i], i * 4u, p.cols);
        let next = max(largest, max4(v));
        let e = exp4(v - next);
        sums = sums * exp_safe(largest - next) + vec2<f32>(sum4(e), sum4(e * keep(logits_dot[base + i], i * 4u, p.cols)));
        largest = next;
    }
    let top = max_all(largest, lane);
    let totals = sum_all(sums * exp_safe(largest - top), lane);
    if (lane == 0u) {
        losses[p.start_out + 4u * row] = totals.y / totals.x - logits_dot[base + target_id / 4u][target_id % 4u];
    }
}
