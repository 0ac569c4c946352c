// Mirrors ops::residual::add, and a tangent through a bias.

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
