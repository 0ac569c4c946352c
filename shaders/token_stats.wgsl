// Mirrors ops::token_stats::forward: [ln p(x), E ln p(z), sd ln p(z), max p(z)] of every row of logits. One workgroup of 256 a row.

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
@group(0) @binding(3) var<storage, read_write> stats: array<vec4<f32>>;

const LANES: u32 = 256u;

@compute @workgroup_size(256)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    let target_id = targets[p.first + row];
    let at = p.start_out / 4u + row;
    if (target_id == IGNORE) {
        if (lane == 0u) {
            stats[at] = vec4<f32>(0.0);
        }
        return;
    }
    let base = p.start_logits / 4u + row * p.line;
    var largest = LOWEST;
    for (var i = lane; i < p.line; i += 256u) {
        largest = max(largest, max4(masked(logits[base + i], i * 4u, p.cols)));
    }
    let top = max_all(largest, lane);
    // d no lower than where its exponential has long vanished: 0 times infinity would not be a number.
    var sums = vec2<f32>(0.0);
    for (var i = lane; i < p.line; i += 256u) {
        let d = max(logits[base + i] - top, vec4<f32>(-1e4));
        let e = keep(exp4(d), i * 4u, p.cols);
        sums += vec2<f32>(sum4(e), sum4(keep(e * d, i * 4u, p.cols)));
    }
    let totals = sum_all(sums, lane);
    let mean = totals.y / totals.x;
    // In a second pass, because the difference of two sums would lose the digits of a narrow distribution.
    var squares = 0.0;
    for (var i = lane; i < p.line; i += 256u) {
        let d = max(logits[base + i] - top, vec4<f32>(-1e4));
        squares += sum4(keep(exp4(d) * (d - mean) * (d - mean), i * 4u, p.cols));
    }
    let variance = sum_all(vec2<f32>(squares, 0.0), lane).x / totals.x;
    if (lane == 0u) {
        let normaliser = log_safe(totals.x);
        let at_target = logits[base + target_id / 4u][target_id % 4u];
        stats[at] = vec4<f32>(at_target - top - normaliser, mean - normaliser, sqrt(variance), 1.0 / totals.x);
    }
}
