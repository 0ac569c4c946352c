// Mirrors ops::residual::add, and a tangent through a bias.

struct Params {
    start_x: u32,
    start_y: u32,
    // In vec4s.
    count: u32,
    // Length of a row in vec4s, for add_vector.
    line: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

// y += x.
@compute @workgroup_size(64)
fn add(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.count) {
        y[p.start_y / 4u + i] += x[p.start_x / 4u + i];
    }
}

// y_i += x for every row i.
@compute @workgroup_size(64)
fn add_vector(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.count) {
        y[p.start_y / 4u + i] += x[p.start_x / 4u + i % p.line];
    }
}
