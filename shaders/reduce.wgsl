// Mirrors ops::add_column_sums and kernel::lanes::dot_f64 by rows. Every sum has a fixed shape.

struct Params {
    rows: u32,
    cols: u32,
    // Length of a row in vec4s.
    line: u32,
    start_a: u32,
    start_b: u32,
    start_out: u32,
    // columns: rows summed by one workgroup, groups that share a row's columns, and whether to add to what is there.
    chunk: u32,
    parts: u32,
    add: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

// out_g (+)= the sum of rows g chunk .. (g + 1) chunk, in order.
@compute @workgroup_size(64)
fn columns(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    let which = id / p.parts;
    let column = (id % p.parts) * 64u + lane;
    let first = which * p.chunk;
    if (first >= p.rows || column >= p.line) {
        return;
    }
    let at = p.start_out / 4u + which * p.line + column;
    var sum = vec4<f32>(0.0);
    if (p.add == 1u) {
        sum = out[at];
    }
    for (var row = first; row < min(first + p.chunk, p.rows); row += 1u) {
        sum += a[p.start_a / 4u + row * p.line + column];
    }
    out[at] = sum;
}

@group(0) @binding(3) var<storage, read> b: array<vec4<f32>>;

const LANES: u32 = 64u;

// out_i += <a_i, b_i>.
@compute @workgroup_size(64)
fn row_dots(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    var sum = 0.0;
    for (var i = lane; i < p.line; i += 64u) {
        let x = keep(a[p.start_a / 4u + row * p.line + i], i * 4u, p.cols);
        sum += sum4(x * keep(b[p.start_b / 4u + row * p.line + i], i * 4u, p.cols));
    }
    let total = sum_one(sum, lane);
    if (lane == 0u) {
        let at = p.start_out / 4u + row;
        out[at] = vec4<f32>(out[at].x + total, 0.0, 0.0, 0.0);
    }
}
