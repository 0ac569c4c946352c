// Mirrors ops::clip: squared norms to factors, and the factors onto a gradient's rows.

struct Params {
    count: u32,
    // Length of a row in vec4s.
    line: u32,
    start_x: u32,
    start_factors: u32,
    // factors: 0 Abadi, 1 automatic, 2 none. rows: 1 to scale, 0 only to drop.
    kind: u32,
    bound: f32,
    gamma: f32,
    // What norms are multiplied by, to round them up.
    up: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;

@group(0) @binding(4) var<storage, read> norms: array<vec4<f32>>;

fn is_bad(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
}

// x_i += the square of a bound of a norm, from (square, mass, roundings, error): sqrt(square + error mass^2) + gamma(roundings) mass.
@compute @workgroup_size(64)
fn bounds(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    let at = p.start_x / 4u + i;
    let n = norms[p.start_factors / 4u + i];
    // 2^-24, and a little for the quotient.
    let moved = n.z * 5.9604652e-8;
    let square = n.x + n.w * n.y * n.y;
    var add = n.y;
    // What is not finite goes on as it is: max may turn NaN into 0.
    if (is_bad(n.x)) {
        add = n.x;
    } else if (is_bad(square)) {
        add = square;
    } else if (!is_bad(n.y)) {
        let norm = sqrt(max(square, 0.0)) + select(moved / (1.0 - moved), 1e30, moved > 0.5) * n.y;
        add = norm * norm;
    }
    // Rounded up, by more than the sum and the root lose.
    x[at] = vec4<f32>((x[at].x + add) * p.up, 0.0, 0.0, 0.0);
}

// The column of squared norms becomes one of factors. A norm that is infinite or NaN gets 0.
@compute @workgroup_size(64)
fn factors(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    let at = p.start_x / 4u + i;
    let square = x[at].x;
    var factor = 1.0;
    if (p.kind != 2u) {
        if (is_bad(square)) {
            factor = 0.0;
        } else {
            let norm = sqrt(max(square, 0.0)) * p.up;
            factor = p.bound / (norm + p.gamma);
            if (p.kind == 0u) {
                factor = min(factor, 1.0);
            }
            // ops::clip::LEAST_FACTOR
            factor = select(min(factor, 1e30), 0.0, factor < 1e-30);
        }
    }
    x[at] = vec4<f32>(factor, 0.0, 0.0, 0.0);
}

@group(0) @binding(2) var<storage, read> given: array<f32>;
// The segment of each row.
@group(0) @binding(3) var<storage, read> segments: array<u32>;

// x_t *= the factor of row t's segment; a factor of 0 writes 0 whatever was there.
@compute @workgroup_size(64)
fn rows(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count) {
        return;
    }
    let at = p.start_x / 4u + i;
    let factor = given[p.start_factors + 4u * segments[i / p.line]];
    if (factor == 0.0) {
        x[at] = vec4<f32>(0.0);
    } else if (p.kind == 1u) {
        x[at] *= factor;
    }
}
