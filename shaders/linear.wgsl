// Mirrors kernel::gemm::matmul and ops::linear::forward: C <- A B (+ bias) (+ C), for A and B stored plain or transposed.
//
// Prepended constants: TRANSPOSED_A, TRANSPOSED_B, SHIFTED_A (0 or 1).
//
// A workgroup of 8 x 8 threads makes a 64 x 64 tile of C, 8 x 8 numbers a thread in registers. Steps of 16 along k pass through
// workgroup memory as 16 lines of 64, so that both factors are read as vec4 whatever their storage: each thread brings one 4 x 4
// block of each factor and turns it around where needed. Every element is one sum over k in order.

struct Params {
    m: u32,
    n: u32,
    k: u32,
    line_a: u32,
    line_b: u32,
    line_c: u32,
    start_a: u32,
    start_b: u32,
    start_c: u32,
    start_bias: u32,
    add: u32,
    has_bias: u32,
    tiles_n: u32,
    tiles: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> c: array<f32>;

// A line is 64 numbers and one vec4 of padding, so that neighbouring lines start in different banks.
const LINE: u32 = 17u;
var<workgroup> tile_a: array<vec4<f32>, 272>;
var<workgroup> tile_b: array<vec4<f32>, 272>;

fn scalar_a(i: u32) -> f32 {
    return a[i >> 2u][i & 3u];
}

// Four numbers of a row of A as it is stored, zero outside of rows x cols.
fn load_a(row: u32, col: u32, rows: u32, cols: u32) -> vec4<f32> {
    if (row >= rows || col >= cols) {
        return vec4<f32>(0.0);
    }
    let i = p.start_a + row * p.line_a + col;
    if (SHIFTED_A == 1u) {
        // A block of columns that starts between two vec4s.
        return keep(vec4<f32>(scalar_a(i), scalar_a(i + 1u), scalar_a(i + 2u), scalar_a(i + 3u)), col, cols);
    }
    return keep(a[i >> 2u], col, cols);
}

fn load_b(row: u32, col: u32, rows: u32, cols: u32) -> vec4<f32> {
    if (row >= rows || col >= cols) {
        return vec4<f32>(0.0);
    }
    return keep(b[(p.start_b + row * p.line_b + col) >> 2u], col, cols);
}

// Four rows from `row` on, columns col .. col + 4.
fn block_a(row: u32, col: u32, rows: u32, cols: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        load_a(row, col, rows, cols), load_a(row + 1u, col, rows, cols), load_a(row + 2u, col, rows, cols), load_a(row + 3u, col, rows, cols));
}

fn block_b(row: u32, col: u32, rows: u32, cols: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        load_b(row, col, rows, cols), load_b(row + 1u, col, rows, cols), load_b(row + 2u, col, rows, cols), load_b(row + 3u, col, rows, cols));
}

fn put_a(at: u32, m: mat4x4<f32>) {
    tile_a[at] = m[0];
    tile_a[at + LINE] = m[1];
    tile_a[at + 2u * LINE] = m[2];
    tile_a[at + 3u * LINE] = m[3];
}

fn put_b(at: u32, m: mat4x4<f32>) {
    tile_b[at] = m[0];
    tile_b[at + LINE] = m[1];
    tile_b[at + 2u * LINE] = m[2];
    tile_b[at + 3u * LINE] = m[3];
}

fn store(row: u32, col: u32, v: vec4<f32>) {
    if (row >= p.m) {
        return;
    }
    let i = p.start_c + row * p.line_c + col;
    for (var lane = 0u; lane < 4u; lane += 1u) {
        if (col + lane < p.n) {
            var x = v[lane];
            if (p.has_bias == 1u) {
                x += bias[p.start_bias + col + lane];
            }
            if (p.add == 1u) {
                x += c[i + lane];
            }
            c[i + lane] = x;
        }
    }
}

@compute @workgroup_size(64)
fn matmul(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.tiles) {
        return;
    }
    let m0 = (id / p.tiles_n) * 64u;
    let n0 = (id % p.tiles_n) * 64u;
    let ty = lane / 8u;
    let tx = lane % 8u;
    // Stored along k: 4 neighbours read 64 bytes of a row. Stored across k: 16 neighbours read 256.
    let along = lane / 4u;
    let along_k = (lane % 4u) * 4u;
    let along_at = along_k * LINE + along;
    let across = lane % 16u;
    let across_k = (lane / 16u) * 4u;
    let across_at = across_k * LINE + across;

    var c00 = vec4<f32>(0.0); var c01 = vec4<f32>(0.0);
    var c10 = vec4<f32>(0.0); var c11 = vec4<f32>(0.0);
    var c20 = vec4<f32>(0.0); var c21 = vec4<f32>(0.0);
    var c30 = vec4<f32>(0.0); var c31 = vec4<f32>(0.0);
    var c40 = vec4<f32>(0.0); var c41 = vec4<f32>(0.0);
    var c50 = vec4<f32>(0.0); var c51 = vec4<f32>(0.0);
    var c60 = vec4<f32>(0.0); var c61 = vec4<f32>(0.0);
    var c70 = vec4<f32>(0.0); var c71 = vec4<f32>(0.0);

    for (var k0 = 0u; k0 < p.k; k0 += 16u) {
        if (TRANSPOSED_A == 1u) {
            put_a(across_at, block_a(k0 + across_k, m0 + across * 4u, p.k, p.m));
        } else {
            put_a(along_at, transpose(block_a(m0 + along * 4u, k0 + along_k, p.m, p.k)));
        }
        if (TRANSPOSED_B == 1u) {
            put_b(along_at, transpose(block_b(n0 + along * 4u, k0 + along_k, p.n, p.k)));
        } else {
            put_b(across_at, block_b(k0 + across_k, n0 + across * 4u, p.k, p.n));
        }
        workgroupBarrier();
        for (var k = 0u; k < 16u; k += 1u) {
            let a0 = tile_a[k * LINE + ty];
            let a1 = tile_a[k * LINE + 8u + ty];
            let b0 = tile_b[k * LINE + tx];
            let b1 = tile_b[k * LINE + 8u + tx];
            c00 = fma(a0.xxxx, b0, c00); c01 = fma(a0.xxxx, b1, c01);
            c10 = fma(a0.yyyy, b0, c10); c11 = fma(a0.yyyy, b1, c11);
            c20 = fma(a0.zzzz, b0, c20); c21 = fma(a0.zzzz, b1, c21);
            c30 = fma(a0.wwww, b0, c30); c31 = fma(a0.wwww, b1, c31);
            c40 = fma(a1.xxxx, b0, c40); c41 = fma(a1.xxxx, b1, c41);
            c50 = fma(a1.yyyy, b0, c50); c51 = fma(a1.yyyy, b1, c51);
            c60 = fma(a1.zzzz, b0, c60); c61 = fma(a1.zzzz, b1, c61);
            c70 = fma(a1.wwww, b0, c70); c71 = fma(a1.wwww, b1, c71);
        }
        workgroupBarrier();
    }

    let row = m0 + ty * 4u;
    let col = n0 + tx * 4u;
    store(row, col, c00); store(row, col + 32u, c01);
    store(row + 1u, col, c10); store(row + 1u, col + 32u, c11);
    store(row + 2u, col, c20); store(row + 2u, col + 32u, c21);
    store(row + 3u, col, c30); store(row + 3u, col + 32u, c31);
    store(row + 32u, col, c40); store(row + 32u, col + 32u, c41);
    store(row + 33u, col, c50); store(row + 33u, col + 32u, c51);
    store(row + 34u, col, c60); store(row + 34u, col + 32u, c61);
    store(row + 35u, col, c70); store(row + 35u, col + 32u, c71);
}
