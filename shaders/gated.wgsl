// Mirrors ops::gated: h = act(gate) up. Gate and up may be blocks of columns of one matrix, so a thread works on one number.

struct Params {
    rows: u32,
    cols: u32,
    // Where row 0 begins, and numbers from row to row.
    gate_start: u32,
    gate_line: u32,
    up_start: u32,
    up_line: u32,
    // dh, or the tangent of the gate.
    gate_dot_start: u32,
    gate_dot_line: u32,
    up_dot_start: u32,
    up_dot_line: u32,
    out_start: u32,
    out_line: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> up: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> gate_dot: array<f32>;
@group(0) @binding(5) var<storage, read> up_dot: array<f32>;

// Number i of a matrix whose row 0 begins at `start`.
fn at(i: u32, start: u32, line: u32) -> u32 {
    return start + i / p.cols * line + i % p.cols;
}

// act and act' of number i of the gate.
fn curve_at(i: u32) -> vec2<f32> {
    return curve(gate[at(i, p.gate_start, p.gate_line)]);
}

fn up_at(i: u32) -> f32 {
    return up[at(i, p.up_start, p.up_line)];
}

fn gate_dot_at(i: u32) -> f32 {
    return gate_dot[at(i, p.gate_dot_start, p.gate_dot_line)];
}

@compute @workgroup_size(64)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        out[at(i, p.out_start, p.out_line)] = curve_at(i).x * up_at(i);
    }
}

// dgate = dh up act'(gate), with dh as gate_dot.
@compute @workgroup_size(64)
fn backward_gate(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        out[at(i, p.out_start, p.out_line)] = gate_dot_at(i) * up_at(i) * curve_at(i).y;
    }
}

// dup = dh act(gate), with dh as gate_dot.
@compute @workgroup_size(64)
fn backward_up(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        out[at(i, p.out_start, p.out_line)] = curve_at(i).x * gate_dot_at(i);
    }
}

// h_dot = act'(gate) gate_dot up + act(gate) up_dot.
@compute @workgroup_size(64)
fn jvp(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        let both = curve_at(i);
        let through_up = both.x * up_dot[at(i, p.up_dot_start, p.up_dot_line)];
        out[at(i, p.out_start, p.out_line)] = both.y * gate_dot_at(i) * up_at(i) + through_up;
    }
}
