// Mirrors ops::activation: y = act(x), and dy act'(x).

struct Params {
    start_x: u32,
    start_y: u32,
    // In vec4s; a row's padding is worked on like the rest and means nothing.
    count: u32,
    // Length of a row in vec4s.
    line: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.count) {
        let v = x[p.start_x / 4u + i];
        y[p.start_y / 4u + i] = vec4<f32>(curve(v.x).x, curve(v.y).x, curve(v.z).x, curve(v.w).x);
    }
}

// y <- y act'(x).
@compute @workgroup_size(64)
fn backward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.count) {
        let v = x[p.start_x / 4u + i];
        y[p.start_y / 4u + i] *= vec4<f32>(curve(v.x).y, curve(v.y).y, curve(v.z).y, curve(v.w).y);
    }
}
