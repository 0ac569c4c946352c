// Mirrors ops::activation: y = act(x), and dy act'(x).

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
