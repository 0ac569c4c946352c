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

@compute @workgroup_size(64)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        let row = i / p.cols;
        let col = i % p.cols;
        let value = curve(gate[p.gate_start + row * p.gate_line + col]).x;
        out[p.out_start + row * p.out_line + col] = value * up[p.up_start + row * p.up_line + col];
    }
}

// dgate = dh up act'(gate), with dh as gate_dot.
@compute @workgroup_size(64)
fn backward_gate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        let row = i / p.cols;
        let col = i % p.cols;
        let slope = curve(gate[p.gate_start + row * p.gate_line + col]).y;
        let dh = gate_dot[p.gate_dot_start + row * p.gate_dot_line + col];
        out[p.out_start + row * p.out_line + col] = dh * up[p.up_start + row * p.up_line + col] * slope;
    }
}

// dup = dh act(gate), with dh as gate_dot.
@compute @workgroup_size(64)
fn backward_up(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        let row = i / p.cols;
        let col = i % p.cols;
        let value = curve(gate[p.gate_start + row * p.gate_line + col]).x;
        out[p.out_start + row * p.out_line + col] = value * gate_dot[p.gate_dot_start + row * p.gate_dot_line + col];
    }
}

// h_dot = act'(gate) gate_dot up + act(gate) up_dot.
@compute @workgroup_size(64)
fn jvp(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        let row = i / p.cols;
        let col = i % p.cols;
        let both = curve(gate[p.gate_start + row * p.gate_line + col]);
        let moved = both.y * gate_dot[p.gate_dot_start + row * p.gate_dot_line + col];
        let through_up = both.x * up_dot[p.up_dot_start + row * p.up_dot_line + col];
        out[p.out_start + row * p.out_line + col] = moved * up[p.up_start + row * p.up_line + col] + through_up;
    }
}
