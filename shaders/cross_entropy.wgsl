// Mirrors ops::cross_entropy: softmax cross-entropy of rows of logits. One workgroup of 256 a row; the largest logit and the sum of
// exponentials are found in one reading.

struct Params {
    rows: u32,
    cols: u32,
    // Length of a row in vec4s.
    line: u32,
    start_logits: u32,
    start_dot: u32,
    // In numbers, of the first row's loss; a row's loss is 4 numbers after the one before.
    start_losses: u32,
    // The first row's target.
    first: u32,
}

const IGNORE: u32 = 0xffffffffu;
const LOWEST: f32 = -3.0e38;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;

const LANES: u32 = 256u;

// What lies beyond the last column must not win the maximum.
fn masked(v: vec4<f32>, i: u32) -> vec4<f32> {
    return select(vec4<f32>(LOWEST), v, vec4<u32>(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4<u32>(p.cols));
}

fn max4(v: vec4<f32>) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

// loss = lse(logits) - logits[target]; 0 where the target is ignored.
@compute @workgroup_size(256)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = linear_group(group, groups);
    if (row >= p.rows) {
        return;
    }
    let target_id = targets[p.first + row];
    let at = p.start_losses + 4u * row;
    if (target_id == IGNORE) {
        if (lane == 0u) {
            losses[at] = 0.0;
        }
        return;
    }
    let base = p.start_logits / 4u + row * p.line;
    var largest = LOWEST;
    var sum = 0.0;
    for (var i = lane; i < p.line; i += 256u) {
        let v = masked(logits[base + i], i);
        let next = max(largest, max4(v));
        sum = sum * exp_safe(largest - next) + sum4(exp4(v - next));
        largest = next;
    }
    let top = max_all(largest, lane);
    let total = sum_all(vec2<f32>(sum * exp_safe(largest - top), 0.0), lane).x;
    if (lane == 0u) {
        losses[at] = (top - logits[base + target_id / 4u][target_id % 4u]) + log_safe(total);
    }
}

@group(0) @binding(4) var<storage, read> weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> grads: array<vec4<f32>>;

// The loss, and in place of the logits weight (softmax - onehot); zeros where the target is ignored.
@compute @workgroup_size(256)
fn backward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = linear_group(group, groups);
    if (row >= p.rows) {
        return;
    }
    let target_id = targets[p.first + row];
    let at = p.start_losses + 4u * row;
    let base = p.start_logits / 4u + row * p.line;
    if (target_id == IGNORE) {
        for (var i = lane; i < p.line; i += 256u) {
            grads[base + i] = vec4<f32>(0.0);
        }
        if (lane == 0u) {
            losses[at] = 0.0;
        }
        return;
    }
    let at_target = grads[base + target_id / 4u][target_id % 4u];
    var largest = LOWEST;
    var sum = 0.0;
    for (var i = lane; i < p.line; i += 256u) {
        let v = masked(grads[base + i], i);
        let next = max(largest, max4(v));
        sum = sum * exp_safe(largest - next) + sum4(exp4(v - next));
        largest = next;
    }
    let top = max_all(largest, lane);
    let total = sum_all(vec2<f32>(sum * exp_safe(largest - top), 0.0), lane).x;
    let weight = weights[p.first + row];
    let scale = weight / total;
    for (var i = lane; i < p.line; i += 256u) {
        var g = exp4(masked(grads[base + i], i) - top) * scale;
        if (i == target_id / 4u) {
            g[target_id % 4u] -= weight;
        }
        grads[base + i] = g;
    }
    if (lane == 0u) {
        losses[at] = (top - at_target) + log_safe(total);
    }
}

@group(0) @binding(6) var<storage, read> logits_dot: array<vec4<f32>>;

// loss_dot = <softmax(logits), logits_dot> - logits_dot[target].
@compute @workgroup_size(256)
fn jvp(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = linear_group(group, groups);
    if (row >= p.rows) {
        return;
    }
    let target_id = targets[p.first + row];
    let at = p.start_losses + 4u * row;
    if (target_id == IGNORE) {
        if (lane == 0u) {
            losses[at] = 0.0;
        }
        return;
    }
    let base = p.start_logits / 4u + row * p.line;
    let tangent = p.start_dot / 4u + row * p.line;
    var largest = LOWEST;
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < p.line; i += 256u) {
        let v = masked(logits[base + i], i);
        let next = max(largest, max4(v));
        let e = exp4(v - next);
        sums = sums * exp_safe(largest - next) + vec2<f32>(sum4(e), sum4(e * keep(logits_dot[tangent + i], i * 4u, p.cols)));
        largest = next;
    }
    let top = max_all(largest, lane);
    let totals = sum_all(sums * exp_safe(largest - top), lane);
    if (lane == 0u) {
        losses[at] = totals.y / totals.x - logits_dot[tangent + target_id / 4u][target_id % 4u];
    }
}
