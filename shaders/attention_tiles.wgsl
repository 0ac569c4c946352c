// Prepended to attention.wgsl: its parameters, its bindings, and the tiles that it works on. Mirrors ops::attention's `Mask` and its blocks.
//
// Prepended constants: WIDTH, the width of a head; BLOCK, the side of a block of scores: 8, 16 or 32; TILES, how many tiles of rows a
// workgroup holds: 2, or 4 with two blocks of scores.

const D4: u32 = (WIDTH + 3u) / 4u;
const R: u32 = BLOCK / 8u;
const J: u32 = (D4 + 7u) / 8u;
// Lines of a tile, in vec4s, and of a block of scores, padded so that neighbours start in different banks.
const LINE: u32 = D4 + 1u;
const TILE: u32 = BLOCK * LINE;
const SLINE: u32 = BLOCK + 1u;
const SCORES: u32 = BLOCK * SLINE;
const MASKED: f32 = -3.0e38;
// The tiles and blocks of scores by name.
const A: u32 = 0u;
const B: u32 = TILE;
const C: u32 = 2u * TILE;
const D: u32 = 3u * TILE;
const FIRST: u32 = 0u;
const SECOND: u32 = SCORES;

struct Params {
    // Workgroups with something to do: items times the heads that own them.
    work: u32,
    heads: u32,
    // Query heads that share a head of keys and values.
    group: u32,
    scale: f32,
    // How many keys a query sees.
    window: u32,
    // Where the heads' slopes begin among the items; 0 where there are none.
    slopes: u32,
    // Whether forward stores lse.
    keep_lse: u32,
    // Where row 0, head 0 begins, and numbers from row to row.
    q_start: u32,
    q_line: u32,
    k_start: u32,
    k_line: u32,
    v_start: u32,
    v_line: u32,
    out_start: u32,
    out_line: u32,
    // backward_keys: where dv begins; dk begins at out_start.
    second_start: u32,
    lse_start: u32,
    lse_line: u32,
    // backward: lse and delta of every head side by side.
    kept_start: u32,
    kept_line: u32,
    // dout, or the tangents of the queries.
    dot_start: u32,
    dot_line: u32,
    // The tangents of keys and values.
    k_dot: u32,
    v_dot: u32,
    // store: rows and numbers in a row.
    rows: u32,
    cols: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

// What a workgroup works on: (first row of the segment's keys, its number of keys, position of the block in the segment, the block's
// row among the queries). After the last, the bits of the heads' slopes.
@group(0) @binding(1) var<storage, read> items: array<vec4<u32>>;

// Bound three times to the same matrix when queries, keys and values lie side by side.
@group(0) @binding(2) var<storage, read> q_in: array<f32>;
@group(0) @binding(3) var<storage, read> k_in: array<f32>;
@group(0) @binding(4) var<storage, read> v_in: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> lse_out: array<f32>;
@group(0) @binding(7) var<storage, read> lse: array<f32>;
@group(0) @binding(8) var<storage, read> dout: array<f32>;
@group(0) @binding(9) var<storage, read> kept: array<f32>;
@group(0) @binding(10) var<storage, read> tangents: array<f32>;

var<workgroup> tiles: array<vec4<f32>, TILES * TILE>;
var<workgroup> scores: array<f32, TILES / 2u * SCORES>;
var<workgroup> row_max: array<f32, BLOCK>;
var<workgroup> row_sum: array<f32, BLOCK>;
var<workgroup> row_scale: array<f32, BLOCK>;

fn four_of_q(i: u32, d: u32) -> vec4<f32> {
    return keep(vec4<f32>(q_in[i], q_in[i + 1u], q_in[i + 2u], q_in[i + 3u]), d, WIDTH);
}

fn four_of_k(i: u32, d: u32) -> vec4<f32> {
    return keep(vec4<f32>(k_in[i], k_in[i + 1u], k_in[i + 2u], k_in[i + 3u]), d, WIDTH);
}

fn four_of_v(i: u32, d: u32) -> vec4<f32> {
    return keep(vec4<f32>(v_in[i], v_in[i + 1u], v_in[i + 2u], v_in[i + 3u]), d, WIDTH);
}

fn four_of_dout(i: u32, d: u32) -> vec4<f32> {
    return keep(vec4<f32>(dout[i], dout[i + 1u], dout[i + 2u], dout[i + 3u]), d, WIDTH);
}

fn four_of_tangents(i: u32, d: u32) -> vec4<f32> {
    return keep(vec4<f32>(tangents[i], tangents[i + 1u], tangents[i + 2u], tangents[i + 3u]), d, WIDTH);
}

// Loads fill a tile with `count` rows of a head from `row` on, and zeros below.

fn load_q(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let d = (i % D4) * 4u;
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            v = four_of_q(p.q_start + (row + i / D4) * p.q_line + head * WIDTH + d, d);
        }
        tiles[tile + i / D4 * LINE + i % D4] = v;
    }
}

fn load_k(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let d = (i % D4) * 4u;
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            v = four_of_k(p.k_start + (row + i / D4) * p.k_line + head * WIDTH + d, d);
        }
        tiles[tile + i / D4 * LINE + i % D4] = v;
    }
}

fn load_v(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let d = (i % D4) * 4u;
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            v = four_of_v(p.v_start + (row + i / D4) * p.v_line + head * WIDTH + d, d);
        }
        tiles[tile + i / D4 * LINE + i % D4] = v;
    }
}

fn load_dout(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let d = (i % D4) * 4u;
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            v = four_of_dout(p.dot_start + (row + i / D4) * p.dot_line + head * WIDTH + d, d);
        }
        tiles[tile + i / D4 * LINE + i % D4] = v;
    }
}

// `start` says which part of the tangents.
fn load_tangents(tile: u32, start: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let d = (i % D4) * 4u;
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            v = four_of_tangents(start + (row + i / D4) * p.dot_line + head * WIDTH + d, d);
        }
        tiles[tile + i / D4 * LINE + i % D4] = v;
    }
}

// The inner product of row `row` of one tile and row `col` of another.
fn product(a: u32, row: u32, b: u32, col: u32) -> f32 {
    var s = 0.0;
    for (var d = 0u; d < D4; d += 1u) {
        s += dot(tiles[a + row * LINE + d], tiles[b + col * LINE + d]);
    }
    return s;
}

// sum + row `row` of a block of scores times column d of a tile.
fn weighted(block: u32, row: u32, tile: u32, d: u32, start: vec4<f32>) -> vec4<f32> {
    var sum = start;
    for (var c = 0u; c < BLOCK; c += 1u) {
        sum = fma(vec4<f32>(scores[block + row * SLINE + c]), tiles[tile + c * LINE + d], sum);
    }
    return sum;
}

// Whether the query at one position sees the key at another.
fn sees(query: u32, key: u32) -> bool {
    return key <= query && query - key < p.window;
}

fn slope_of(head: u32) -> f32 {
    if (p.slopes == 0u) {
        return 0.0;
    }
    return bitcast<f32>(items[p.slopes + head / 4u][head % 4u]);
}

// The score of a query and a key, given <q, k>.
fn score(qk: f32, slope: f32, query: u32, key: u32) -> f32 {
    return qk * p.scale - slope * f32(query - key);
}

// The first block of keys that a query at `position` sees something of.
fn first_block(position: u32) -> u32 {
    let hidden = select(0u, position + 1u - p.window, position + 1u > p.window);
    return hidden / BLOCK * BLOCK;
}

fn write_out(start: u32, row: u32, head: u32, d4: u32, v: vec4<f32>) {
    for (var lane = 0u; lane < 4u; lane += 1u) {
        if (d4 * 4u + lane < WIDTH) {
            out[start + row * p.out_line + head * WIDTH + d4 * 4u + lane] = v[lane];
        }
    }
}
