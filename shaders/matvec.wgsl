// Mirrors kernel::gemm::matmul for one row, as decoding has it: c <- a B (+ bias) (+ c), B stored plain or transposed.
//
// Prepended constant: TRANSPOSED_B (0 or 1). All of B is read once, so what counts is how much of it is on its way at a time: 16 threads
// share every sum, and neighbours read 256 bytes in a row. The tree that adds the 16 parts is fixed.

struct Params {
    n: u32,
    k: u32,
    // Numbers from row to row of B.
    line_b: u32,
    start_a: u32,
    start_b: u32,
    start_c: u32,
    start_bias: u32,
    add: u32,
    has_bias: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> c: array<f32>;

var<workgroup> parts: array<vec4<f32>, 256>;

fn store(column: u32, v: f32) {
    if (column < p.n) {
        var x = v;
        if (p.has_bias == 1u) {
            x += bias[p.start_bias + column];
        }
        if (p.add == 1u) {
            x += c[p.start_c + column];
        }
        c[p.start_c + column] = x;
    }
}

@compute @workgroup_size(256)
fn vector(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    let near = lane % 16u;
    let far = lane / 16u;
    var sum = vec4<f32>(0.0);
    if (TRANSPOSED_B == 1u) {
        // Row `far` of 16 rows of B, one number of c each; `near` strides along it.
        let row = id * 16u + far;
        if (row < p.n) {
            let base = (p.start_b + row * p.line_b) / 4u;
            for (var i = near; i * 4u < p.k; i += 16u) {
                let at = p.start_a + i * 4u;
                let x = keep(vec4<f32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]), i * 4u, p.k);
                sum = fma(x, keep(b[base + i], i * 4u, p.k), sum);
            }
        }
    } else {
        // Four of 64 columns of B; `far` strides along k.
        let column = (id * 16u + near) * 4u;
        if (column < p.n) {
            for (var k = far; k < p.k; k += 16u) {
                sum = fma(vec4<f32>(a[p.start_a + k]), b[(p.start_b + k * p.line_b + column) / 4u], sum);
            }
        }
    }
    parts[lane] = sum;
    workgroupBarrier();
    for (var half = 8u; half > 0u; half /= 2u) {
        if (TRANSPOSED_B == 1u) {
            if (near < half) {
                parts[lane] += parts[lane + half];
            }
        } else if (far < half) {
            parts[lane] += parts[lane + half * 16u];
        }
        workgroupBarrier();
    }
    if (TRANSPOSED_B == 1u) {
        if (near == 0u) {
            store(id * 16u + far, sum4(parts[lane]));
        }
    } else if (far == 0u) {
        let column = (id * 16u + near) * 4u;
        store(column, parts[lane].x);
        store(column + 1u, parts[lane].y);
        store(column + 2u, parts[lane].z);
        store(column + 3u, parts[lane].w);
    }
}
