// Mirrors ops::sample_norm: squared norms of every sample's gradient from its factors, without the gradient.
//
// Every kernel leaves one partial sum a workgroup; `collect` adds those of a sample in order. Products are made in tiles of 32 x 32 by
// 8 x 8 threads, 4 x 4 numbers a thread, 16 terms at a time through workgroup memory.

struct Params {
    // Workgroups with something to do.
    work: u32,
    start_a: u32,
    line_a: u32,
    cols_a: u32,
    start_b: u32,
    line_b: u32,
    cols_b: u32,
    start_c: u32,
    line_c: u32,
    start_out: u32,
    // sums: workgroups that share a row. masses: the first row of this window.
    parts: u32,
    // masses: what is added to the squares of rows.
    floor_a: f32,
    floor_b: f32,
    // masses: what they are multiplied by, to round them up.
    up: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
// (first row, rows, tile across, tile along) for each workgroup.
@group(0) @binding(3) var<storage, read> items: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> partials: array<f32>;

const LINE: u32 = 9u;
var<workgroup> tile_r: array<vec4<f32>, 144>;
var<workgroup> tile_s: array<vec4<f32>, 144>;
const LANES: u32 = 64u;

fn load_a(row: u32, col: u32, end: u32) -> vec4<f32> {
    if (row >= end || col >= p.cols_a) {
        return vec4<f32>(0.0);
    }
    return keep(a[(p.start_a + row * p.line_a + col) / 4u], col, p.cols_a);
}

fn load_b(row: u32, col: u32, end: u32) -> vec4<f32> {
    if (row >= end || col >= p.cols_b) {
        return vec4<f32>(0.0);
    }
    return keep(b[(p.start_b + row * p.line_b + col) / 4u], col, p.cols_b);
}

// Four rows from `row` on, columns col .. col + 4.
fn block_a(row: u32, col: u32, end: u32) -> mat4x4<f32> {
    return mat4x4<f32>(load_a(row, col, end), load_a(row + 1u, col, end), load_a(row + 2u, col, end), load_a(row + 3u, col, end));
}

fn block_b(row: u32, col: u32, end: u32) -> mat4x4<f32> {
    return mat4x4<f32>(load_b(row, col, end), load_b(row + 1u, col, end), load_b(row + 2u, col, end), load_b(row + 3u, col, end));
}

// The 4 x 4 numbers of a thread, as the columns of rows 4 ty ...
struct Tile {
    r0: vec4<f32>,
    r1: vec4<f32>,
    r2: vec4<f32>,
    r3: vec4<f32>,
}

fn multiply(sum: Tile, lane: u32) -> Tile {
    var t = sum;
    let ty = lane / 8u;
    let tx = lane % 8u;
    for (var k = 0u; k < 16u; k += 1u) {
        let r = tile_r[k * LINE + ty];
        let s = tile_s[k * LINE + tx];
        t.r0 = fma(r.xxxx, s, t.r0);
        t.r1 = fma(r.yyyy, s, t.r1);
        t.r2 = fma(r.zzzz, s, t.r2);
        t.r3 = fma(r.wwww, s, t.r3);
    }
    return t;
}

fn plus(a: Tile, b: Tile) -> Tile {
    return Tile(a.r0 + b.r0, a.r1 + b.r1, a.r2 + b.r2, a.r3 + b.r3);
}

fn inner(a: Tile, b: Tile) -> f32 {
    return (dot(a.r0, b.r0) + dot(a.r1, b.r1)) + (dot(a.r2, b.r2) + dot(a.r3, b.r3));
}

// A long sum in three: of up to 64 terms, of up to 64 such sums, and of those. A term is rounded some 130 times however many there are
// (backend::gpu::mass::deep).
struct Sums {
    terms: Tile,
    runs: Tile,
    all: Tile,
}

// To be called after the 16 terms from k on.
fn carry(sums: Sums, k: u32) -> Sums {
    var s = sums;
    if ((k & 63u) == 48u) {
        s.runs = plus(s.runs, s.terms);
        s.terms = Tile();
    }
    if ((k & 4095u) == 4080u) {
        s.all = plus(s.all, s.runs);
        s.runs = Tile();
    }
    return s;
}

fn whole(s: Sums) -> Tile {
    return plus(s.all, plus(s.runs, s.terms));
}

// A thread's 4 x 4 block into a tile: threads below 32 bring tile_r, the others tile_s.
fn put(lane: u32, line: u32, column: u32, m: mat4x4<f32>) {
    let at = line * LINE + column;
    if (lane < 32u) {
        tile_r[at] = m[0];
        tile_r[at + LINE] = m[1];
        tile_r[at + 2u * LINE] = m[2];
        tile_r[at + 3u * LINE] = m[3];
    } else {
        tile_s[at] = m[0];
        tile_s[at + LINE] = m[1];
        tile_s[at + 2u * LINE] = m[2];
        tile_s[at + 3u * LINE] = m[3];
    }
}

// A tile of <x_t, x_s> <dy_t, dy_s>; tiles below the diagonal count twice.
@compute @workgroup_size(64)
fn gram(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id];
    let end = item.x + item.y;
    // Threads in one half share rows of one tile: row block and 4 terms.
    let block = (lane % 32u) / 4u;
    let term = (lane % 4u) * 4u;
    let row = item.x + 32u * select(item.w, item.z, lane < 32u) + 4u * block;
    var x = Sums();
    for (var k = 0u; k < p.cols_a; k += 16u) {
        put(lane, term, block, transpose(block_a(row, k + term, end)));
        workgroupBarrier();
        x.terms = multiply(x.terms, lane);
        x = carry(x, k);
        workgroupBarrier();
    }
    var y = Sums();
    for (var k = 0u; k < p.cols_b; k += 16u) {
        put(lane, term, block, transpose(block_b(row, k + term, end)));
        workgroupBarrier();
        y.terms = multiply(y.terms, lane);
        y = carry(y, k);
        workgroupBarrier();
    }
    let sum = sum_one(inner(whole(x), whole(y)), lane);
    if (lane == 0u) {
        partials[id] = sum * select(2.0, 1.0, item.z == item.w);
    }
}

// The sum of squares of a tile of x^T dy.
@compute @workgroup_size(64)
fn squares(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id];
    let end = item.x + item.y;
    let block = lane % 8u;
    let term = ((lane % 32u) / 8u) * 4u;
    var g = Tile();
    for (var t = item.x; t < end; t += 16u) {
        let row = t + term;
        if (lane < 32u) {
            put(lane, term, block, block_a(row, 32u * item.z + 4u * block, end));
        } else {
            put(lane, term, block, block_b(row, 32u * item.w + 4u * block, end));
        }
        workgroupBarrier();
        g = multiply(g, lane);
        workgroupBarrier();
    }
    let total = sum_one(inner(g, g), lane);
    if (lane == 0u) {
        partials[id] = total;
    }
}

@group(0) @binding(5) var<storage, read> ids: array<u32>;
@group(0) @binding(6) var<storage, read> logits: array<f32>;

fn logit(row: u32, s: u32, ends: vec2<u32>) -> f32 {
    if (row >= ends.x || s >= ends.y) {
        return 0.0;
    }
    return logits[p.start_c + row * p.line_c + ids[s]];
}

fn logits4(row: u32, s: u32, ends: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(logit(row, s, ends), logit(row, s + 1u, ends), logit(row, s + 2u, ends), logit(row, s + 3u, ends));
}

// A tile of 2 x[t, id_s] <dy_t, demb_s>; dy comes as a, demb as b, both with p.cols_a columns. Here a workgroup has two items, the second with
// demb's (first row, rows).
@compute @workgroup_size(64)
fn tied(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let item = items[2u * id];
    let other = items[2u * id + 1u];
    let ends = vec2<u32>(item.x + item.y, other.x + other.y);
    let block = (lane % 32u) / 4u;
    let term = (lane % 4u) * 4u;
    var sums = Sums();
    for (var k = 0u; k < p.cols_a; k += 16u) {
        let col = k + term;
        if (lane < 32u) {
            let row = item.x + 32u * item.z + 4u * block;
            put(lane, term, block, transpose(block_a(row, col, ends.x)));
        } else {
            let row = other.x + 32u * item.w + 4u * block;
            put(lane, term, block, transpose(block_b(row, col, ends.y)));
        }
        workgroupBarrier();
        sums.terms = multiply(sums.terms, lane);
        sums = carry(sums, k);
        workgroupBarrier();
    }
    let row = item.x + 32u * item.z + 4u * (lane / 8u);
    let s = other.x + 32u * item.w + 4u * (lane % 8u);
    let x = Tile(logits4(row, s, ends), logits4(row + 1u, s, ends), logits4(row + 2u, s, ends), logits4(row + 3u, s, ends));
    let sum = sum_one(inner(whole(sums), x), lane);
    if (lane == 0u) {
        partials[id] = 2.0 * sum;
    }
}

// Where each list of rows with the same id begins in `order`, and the end; the rows.
@group(0) @binding(7) var<storage, read> begins: array<u32>;
@group(0) @binding(8) var<storage, read> order: array<u32>;

// |the sum of the rows of one id|^2.
@compute @workgroup_size(64)
fn rows(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    var square = 0.0;
    for (var i = lane; i * 4u < p.cols_a; i += 64u) {
        var sum = vec4<f32>(0.0);
        for (var j = begins[id]; j < begins[id + 1u]; j += 1u) {
            sum += keep(a[(p.start_a + order[j] * p.line_a) / 4u + i], i * 4u, p.cols_a);
        }
        square += dot(sum, sum);
    }
    let total = sum_one(square, lane);
    if (lane == 0u) {
        partials[id] = total;
    }
}

@group(0) @binding(9) var<storage, read> given: array<f32>;
@group(0) @binding(10) var<storage, read_write> out: array<vec4<f32>>;

// The sum of what is given from begins_i to begins_(i+1).
fn total_of(i: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var j = begins[i] + lane; j < begins[i + 1u]; j += 64u) {
        sum += given[j];
    }
    return sum_one(sum, lane);
}

// out_i += the sum of partial sums begins_i .. begins_(i+1), one workgroup a sample.
@compute @workgroup_size(64)
fn collect(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let total = total_of(id, lane);
    if (lane == 0u) {
        out[p.start_out / 4u + id].x += total;
    }
}

// The mass of a row: |a_t| |b_t|, or |b_t| where there is no a.
@compute @workgroup_size(64)
fn masses(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    var squares = vec2<f32>(0.0);
    for (var i = lane; i * 4u < p.cols_a; i += 64u) {
        let v = load_a(id, i * 4u, p.work);
        squares.x += dot(v, v);
    }
    for (var i = lane; i * 4u < p.cols_b; i += 64u) {
        let v = load_b(id, i * 4u, p.work);
        squares.y += dot(v, v);
    }
    let sums = sum_all(squares, lane);
    if (lane == 0u) {
        partials[p.parts + id] = select(1.0, sqrt(sums.x + p.floor_a), p.cols_a > 0u) * sqrt(sums.y + p.floor_b);
    }
}

// Of each sample, roundings and error.
@group(0) @binding(11) var<storage, read> bounds: array<vec2<u32>>;

// out_i += (0, the sum of masses begins_i .. begins_(i+1), roundings, error), one workgroup a sample.
@compute @workgroup_size(64)
fn collect_masses(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let mass = total_of(id, lane) * p.up;
    if (lane == 0u) {
        out[p.start_out / 4u + id] += vec4<f32>(0.0, mass, bitcast<vec2<f32>>(bounds[id]));
    }
}

// out_i = the sum of rows begins_i .. begins_(i+1), in order.
@compute @workgroup_size(64)
fn sums(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    let which = id / p.parts;
    let column = (id % p.parts) * 64u + lane;
    if (which >= p.work || column * 4u >= p.cols_a) {
        return;
    }
    var sum = vec4<f32>(0.0);
    for (var row = begins[which]; row < begins[which + 1u]; row += 1u) {
        sum += a[(p.start_a + row * p.line_a) / 4u + column];
    }
    out[(p.start_out + which * p.line_a) / 4u + column] = sum;
}
