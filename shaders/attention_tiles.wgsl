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

// Loads fill a tile with `count` rows of a head from `row` on, and zeros below: number i of a tile's vec4s comes from `place`.

fn place(i: u32, row: u32, line: u32, head: u32) -> u32 {
    return (row + i / D4) * line + head * WIDTH + i % D4 * 4u;
}

fn put(tile: u32, i: u32, v: vec4<f32>) {
    tiles[tile + i / D4 * LINE + i % D4] = keep(v, i % D4 * 4u, WIDTH);
}

fn load_q(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            let at = p.q_start + place(i, row, p.q_line, head);
            v = vec4<f32>(q_in[at], q_in[at + 1u], q_in[at + 2u], q_in[at + 3u]);
        }
        put(tile, i, v);
    }
}

fn load_k(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            let at = p.k_start + place(i, row, p.k_line, head);
            v = vec4<f32>(k_in[at], k_in[at + 1u], k_in[at + 2u], k_in[at + 3u]);
        }
        put(tile, i, v);
    }
}

fn load_v(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            let at = p.v_start + place(i, row, p.v_line, head);
            v = vec4<f32>(v_in[at], v_in[at + 1u], v_in[at + 2u], v_in[at + 3u]);
        }
        put(tile, i, v);
    }
}

fn load_dout(tile: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            let at = p.dot_start + place(i, row, p.dot_line, head);
            v = vec4<f32>(dout[at], dout[at + 1u], dout[at + 2u], dout[at + 3u]);
        }
        put(tile, i, v);
    }
}

// `start` says which part of the tangents.
fn load_tangents(tile: u32, start: u32, row: u32, count: u32, head: u32, lane: u32) {
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        var v = vec4<f32>(0.0);
        if (i / D4 < count) {
            let at = start + place(i, row, p.dot_line, head);
            v = vec4<f32>(tangents[at], tangents[at + 1u], tangents[at + 2u], tangents[at + 3u]);
        }
        put(tile, i, v);
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

// The row and the column of a thread's i-th score of R R.
fn cell(i: u32, lane: u32) -> vec2<u32> {
    return vec2<u32>(lane / 8u + 8u * (i / R), lane % 8u + 8u * (i % R));
}

// A thread's part of what is accumulated for a block of rows.
alias Part = array<vec4<f32>, R * J>;

// The row and the vec4 column of number i of a part; a column from D4 on is none.
fn spot(i: u32, lane: u32) -> vec2<u32> {
    return vec2<u32>(lane / 8u + 8u * (i / J), lane % 8u + 8u * (i % J));
}

// part += a block of scores times a tile.
fn accumulate(part: ptr<function, Part>, block: u32, tile: u32, lane: u32) {
    for (var i = 0u; i < R * J; i += 1u) {
        let at = spot(i, lane);
        if (at.y < D4) {
            var sum = (*part)[i];
            for (var c = 0u; c < BLOCK; c += 1u) {
                sum = fma(vec4<f32>(scores[block + at.x * SLINE + c]), tiles[tile + c * LINE + at.y], sum);
            }
            (*part)[i] = sum;
        }
    }
}

// The block of rows that a workgroup owns, of one head.
struct Own {
    head: u32,
    // Where the segment's keys begin, and how many it has.
    first: u32,
    length: u32,
    // The block's first row, its place in the segment, and its rows.
    row: u32,
    position: u32,
    count: u32,
}

fn own_block(id: u32, heads: u32) -> Own {
    let item = items[id / heads];
    return Own(id % heads, item.x, item.y, item.w, item.z, min(BLOCK, item.y - item.z));
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

// The rows of a part that the block has, to the columns of head `head` from `start` on.
fn write_part(part: ptr<function, Part>, start: u32, own: Own, lane: u32) {
    for (var i = 0u; i < R * J; i += 1u) {
        let at = spot(i, lane);
        for (var l = 0u; l < 4u; l += 1u) {
            if (at.x < own.count && at.y * 4u + l < WIDTH) {
                out[start + (own.row + at.x) * p.out_line + own.head * WIDTH + at.y * 4u + l] = (*part)[i][l];
            }
        }
    }
}
