// Mirrors ops::attention: causal attention over ragged segments, block by block, with an online softmax (forward), and the backward
// and jvp that recompute p = exp(s - lse). Memory grows with the rows, never with their square.
//
// Prepended constants: WIDTH, the width of a head; BLOCK, the side of a block of scores: 8, 16 or 32.
//
// A workgroup of 8 x 8 threads (ty, tx) owns one block of rows of one head and walks over the blocks of the other side. Thread
// (ty, tx) holds the scores of rows ty + 8 r and columns tx + 8 c, and of what is accumulated the vec4 columns tx + 8 j.
// Backward runs twice, once owning queries and once owning keys: nothing is added to from two workgroups.

const D4: u32 = (WIDTH + 3u) / 4u;
const R: u32 = BLOCK / 8u;
const J: u32 = (D4 + 7u) / 8u;
// Lines of a tile, in vec4s, and of a block of scores, padded so that neighbours start in different banks.
const LINE: u32 = D4 + 1u;
const TILE: u32 = BLOCK * LINE;
const SLINE: u32 = BLOCK + 1u;
const SCORES: u32 = BLOCK * SLINE;
const MASKED: f32 = -3.0e38;

struct Params {
    // Workgroups with something to do: items times heads.
    work: u32,
    heads: u32,
    scale: f32,
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
    lse_start: u32,
    lse_line: u32,
    // dout or the tangents.
    dot_start: u32,
    dot_line: u32,
    // backward, jvp: numbers from the queries to the keys, and from the keys to the values.
    part: u32,
    // store: rows and numbers in a row.
    rows: u32,
    cols: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

// What a workgroup works on: (first row of the segment's keys, its number of keys, position of the block in the segment, the block's
// row among the queries).
@group(0) @binding(1) var<storage, read> items: array<vec4<u32>>;

// Bound three times to the same matrix when queries, keys and values lie side by side.
@group(0) @binding(2) var<storage, read> q_in: array<f32>;
@group(0) @binding(3) var<storage, read> k_in: array<f32>;
@group(0) @binding(4) var<storage, read> v_in: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> lse_out: array<f32>;

var<workgroup> tile_a: array<vec4<f32>, TILE>;
var<workgroup> tile_b: array<vec4<f32>, TILE>;
var<workgroup> scores: array<f32, SCORES>;
var<workgroup> row_max: array<f32, BLOCK>;
var<workgroup> row_sum: array<f32, BLOCK>;
var<workgroup> row_scale: array<f32, BLOCK>;

// Four numbers of a head's row, zero beyond its width.
fn read_q(row: u32, head: u32, d: u32) -> vec4<f32> {
    let i = p.q_start + row * p.q_line + head * WIDTH + d;
    return keep(vec4<f32>(q_in[i], q_in[i + 1u], q_in[i + 2u], q_in[i + 3u]), d, WIDTH);
}

fn read_k(row: u32, head: u32, d: u32) -> vec4<f32> {
    let i = p.k_start + row * p.k_line + head * WIDTH + d;
    return keep(vec4<f32>(k_in[i], k_in[i + 1u], k_in[i + 2u], k_in[i + 3u]), d, WIDTH);
}

fn read_v(row: u32, head: u32, d: u32) -> vec4<f32> {
    let i = p.v_start + row * p.v_line + head * WIDTH + d;
    return keep(vec4<f32>(v_in[i], v_in[i + 1u], v_in[i + 2u], v_in[i + 3u]), d, WIDTH);
}

fn write_out(row: u32, line: u32, start: u32, head: u32, d4: u32, v: vec4<f32>) {
    for (var lane = 0u; lane < 4u; lane += 1u) {
        if (d4 * 4u + lane < WIDTH) {
            out[start + row * line + head * WIDTH + d4 * 4u + lane] = v[lane];
        }
    }
}

// o = softmax(scale q k^T) v.
@compute @workgroup_size(64)
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = linear_group(group, groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id / p.heads];
    let head = id % p.heads;
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;

    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let row = i / D4;
        var v = vec4<f32>(0.0);
        if (row < count) {
            v = read_q(item.w + row, head, (i % D4) * 4u);
        }
        tile_a[row * LINE + i % D4] = v;
    }
    if (lane < BLOCK) {
        row_max[lane] = MASKED;
        row_sum[lane] = 0.0;
    }
    var o: array<vec4<f32>, R * J>;
    for (var key = 0u; key < keys; key += BLOCK) {
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            var v = vec4<f32>(0.0);
            if (key + row < keys) {
                v = read_k(item.x + key + row, head, (i % D4) * 4u);
            }
            tile_b[row * LINE + i % D4] = v;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var s = 0.0;
                for (var d = 0u; d < D4; d += 1u) {
                    s += dot(tile_a[row * LINE + d], tile_b[col * LINE + d]);
                }
                scores[row * SLINE + col] = select(MASKED, s * p.scale, key + col <= position + row);
            }
        }
        workgroupBarrier();
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            var v = vec4<f32>(0.0);
            if (key + row < keys) {
                v = read_v(item.x + key + row, head, (i % D4) * 4u);
            }
            tile_b[row * LINE + i % D4] = v;
        }
        if (lane < BLOCK) {
            var largest = row_max[lane];
            for (var c = 0u; c < BLOCK; c += 1u) {
                largest = max(largest, scores[lane * SLINE + c]);
            }
            var sum = 0.0;
            for (var c = 0u; c < BLOCK; c += 1u) {
                let e = exp_safe(scores[lane * SLINE + c] - largest);
                scores[lane * SLINE + c] = e;
                sum += e;
            }
            let shrink = exp_safe(row_max[lane] - largest);
            row_scale[lane] = shrink;
            row_sum[lane] = row_sum[lane] * shrink + sum;
            row_max[lane] = largest;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    var sum = o[r * J + j] * row_scale[row];
                    for (var c = 0u; c < BLOCK; c += 1u) {
                        sum = fma(vec4<f32>(scores[row * SLINE + c]), tile_b[c * LINE + d], sum);
                    }
                    o[r * J + j] = sum;
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        if (row < count) {
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    write_out(item.w + row, p.out_line, p.out_start, head, d, o[r * J + j] / row_sum[row]);
                }
            }
        }
    }
    if (p.keep_lse == 1u && lane < count) {
        lse_out[p.lse_start + (item.w + lane) * p.lse_line + head] = row_max[lane] + log_safe(row_sum[lane]);
    }
}

@group(0) @binding(7) var<storage, read> lse: array<f32>;
@group(0) @binding(8) var<storage, read> dout: array<f32>;
@group(0) @binding(9) var<storage, read> delta: array<f32>;

// Part 0, 1 or 2 (queries, keys, values) of q_in.
fn read_part(row: u32, head: u32, d: u32, part: u32) -> vec4<f32> {
    let i = p.q_start + row * p.q_line + part * p.part + head * WIDTH + d;
    return keep(vec4<f32>(q_in[i], q_in[i + 1u], q_in[i + 2u], q_in[i + 3u]), d, WIDTH);
}

fn read_dout(row: u32, head: u32, d: u32) -> vec4<f32> {
    let i = p.dot_start + row * p.dot_line + head * WIDTH + d;
    return keep(vec4<f32>(dout[i], dout[i + 1u], dout[i + 2u], dout[i + 3u]), d, WIDTH);
}

// delta_i = <dout_i, out_i> for every row and head; out comes as q_in.
@compute @workgroup_size(64)
fn row_deltas(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i >= p.work) {
        return;
    }
    let row = i / p.heads;
    let head = i % p.heads;
    var sum = 0.0;
    for (var d = 0u; d < WIDTH; d += 4u) {
        sum += dot(read_q(row, head, d), read_dout(row, head, d));
    }
    lse_out[p.lse_start + row * p.lse_line + head] = sum;
}

var<workgroup> tile_c: array<vec4<f32>, TILE>;
var<workgroup> tile_d: array<vec4<f32>, TILE>;
var<workgroup> slopes: array<f32, SCORES>;

// p and ds = p (dp - delta) scale of one query and one key, given <q, k> and <dout, v>.
fn score(qk: f32, dov: f32, query: u32, head: u32) -> vec2<f32> {
    let at = query * p.lse_line + head;
    let e = exp_safe(qk * p.scale - lse[p.lse_start + at]);
    return vec2<f32>(e, e * (dov - delta[at]) * p.scale);
}

// dq = ds k, owning a block of queries. a: q, b: dout; c: k, d: v.
@compute @workgroup_size(64)
fn backward_queries(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = linear_group(group, groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id / p.heads];
    let head = id % p.heads;
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let row = i / D4;
        let d = (i % D4) * 4u;
        var q = vec4<f32>(0.0);
        var g = vec4<f32>(0.0);
        if (row < count) {
            q = read_part(item.w + row, head, d, 0u);
            g = read_dout(item.w + row, head, d);
        }
        tile_a[row * LINE + i % D4] = q;
        tile_b[row * LINE + i % D4] = g;
    }
    var dq: array<vec4<f32>, R * J>;
    for (var key = 0u; key < keys; key += BLOCK) {
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            let d = (i % D4) * 4u;
            var k = vec4<f32>(0.0);
            var v = vec4<f32>(0.0);
            if (key + row < keys) {
                k = read_part(item.x + key + row, head, d, 1u);
                v = read_part(item.x + key + row, head, d, 2u);
            }
            tile_c[row * LINE + i % D4] = k;
            tile_d[row * LINE + i % D4] = v;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var ds = 0.0;
                if (row < count && key + col <= position + row) {
                    var qk = 0.0;
                    var dov = 0.0;
                    for (var d = 0u; d < D4; d += 1u) {
                        qk += dot(tile_a[row * LINE + d], tile_c[col * LINE + d]);
                        dov += dot(tile_b[row * LINE + d], tile_d[col * LINE + d]);
                    }
                    ds = score(qk, dov, item.w + row, head).y;
                }
                slopes[row * SLINE + col] = ds;
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    var sum = dq[r * J + j];
                    for (var c = 0u; c < BLOCK; c += 1u) {
                        sum = fma(vec4<f32>(slopes[row * SLINE + c]), tile_c[c * LINE + d], sum);
                    }
                    dq[r * J + j] = sum;
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        if (row < count) {
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    write_out(item.w + row, p.out_line, p.out_start, head, d, dq[r * J + j]);
                }
            }
        }
    }
}

// dk = ds^T q and dv = p^T dout, owning a block of keys. a: k, b: v; c: q, d: dout.
@compute @workgroup_size(64)
fn backward_keys(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = linear_group(group, groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id / p.heads];
    let head = id % p.heads;
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let ty = lane / 8u;
    let tx = lane % 8u;
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let row = i / D4;
        let d = (i % D4) * 4u;
        var k = vec4<f32>(0.0);
        var v = vec4<f32>(0.0);
        if (row < count) {
            k = read_part(item.w + row, head, d, 1u);
            v = read_part(item.w + row, head, d, 2u);
        }
        tile_a[row * LINE + i % D4] = k;
        tile_b[row * LINE + i % D4] = v;
    }
    var dk: array<vec4<f32>, R * J>;
    var dv: array<vec4<f32>, R * J>;
    for (var query = position; query < item.y; query += BLOCK) {
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            let d = (i % D4) * 4u;
            var q = vec4<f32>(0.0);
            var g = vec4<f32>(0.0);
            if (query + row < item.y) {
                q = read_part(item.x + query + row, head, d, 0u);
                g = read_dout(item.x + query + row, head, d);
            }
            tile_c[row * LINE + i % D4] = q;
            tile_d[row * LINE + i % D4] = g;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var e = vec2<f32>(0.0);
                if (row < count && query + col < item.y && position + row <= query + col) {
                    var qk = 0.0;
                    var dov = 0.0;
                    for (var d = 0u; d < D4; d += 1u) {
                        qk += dot(tile_a[row * LINE + d], tile_c[col * LINE + d]);
                        dov += dot(tile_b[row * LINE + d], tile_d[col * LINE + d]);
                    }
                    e = score(qk, dov, item.x + query + col, head);
                }
                scores[row * SLINE + col] = e.x;
                slopes[row * SLINE + col] = e.y;
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    var sum_k = dk[r * J + j];
                    var sum_v = dv[r * J + j];
                    for (var c = 0u; c < BLOCK; c += 1u) {
                        sum_k = fma(vec4<f32>(slopes[row * SLINE + c]), tile_c[c * LINE + d], sum_k);
                        sum_v = fma(vec4<f32>(scores[row * SLINE + c]), tile_d[c * LINE + d], sum_v);
                    }
                    dk[r * J + j] = sum_k;
                    dv[r * J + j] = sum_v;
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        if (row < count) {
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    write_out(item.w + row, p.out_line, p.out_start + p.part, head, d, dk[r * J + j]);
                    write_out(item.w + row, p.out_line, p.out_start + 2u * p.part, head, d, dv[r * J + j]);
                }
            }
        }
    }
}

@group(0) @binding(10) var<storage, read> tangents: array<f32>;

// Part 0, 1 or 2 (queries, keys, values) of the tangent.
fn read_dot(row: u32, head: u32, d: u32, part: u32) -> vec4<f32> {
    let i = p.dot_start + row * p.dot_line + part * p.part + head * WIDTH + d;
    return keep(vec4<f32>(tangents[i], tangents[i + 1u], tangents[i + 2u], tangents[i + 3u]), d, WIDTH);
}

// With m = sum p s_dot: o_dot = sum p (s_dot v + v_dot) - m sum p v. a: q, b: q_dot; c: k, then v; d: k_dot, then v_dot.
@compute @workgroup_size(64)
fn jvp(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = linear_group(group, groups);
    if (id >= p.work) {
        return;
    }
    let item = items[id / p.heads];
    let head = id % p.heads;
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;
    for (var i = lane; i < BLOCK * D4; i += 64u) {
        let row = i / D4;
        let d = (i % D4) * 4u;
        var q = vec4<f32>(0.0);
        var q_dot = vec4<f32>(0.0);
        if (row < count) {
            q = read_part(item.w + row, head, d, 0u);
            q_dot = read_dot(item.w + row, head, d, 0u);
        }
        tile_a[row * LINE + i % D4] = q;
        tile_b[row * LINE + i % D4] = q_dot;
    }
    if (lane < BLOCK) {
        row_sum[lane] = 0.0;
    }
    var plain: array<vec4<f32>, R * J>;
    var moved: array<vec4<f32>, R * J>;
    for (var key = 0u; key < keys; key += BLOCK) {
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            let d = (i % D4) * 4u;
            var k = vec4<f32>(0.0);
            var k_dot = vec4<f32>(0.0);
            if (key + row < keys) {
                k = read_part(item.x + key + row, head, d, 1u);
                k_dot = read_dot(item.x + key + row, head, d, 1u);
            }
            tile_c[row * LINE + i % D4] = k;
            tile_d[row * LINE + i % D4] = k_dot;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var e = 0.0;
                var s_dot = 0.0;
                if (row < count && key + col <= position + row) {
                    var s = 0.0;
                    for (var d = 0u; d < D4; d += 1u) {
                        let q = tile_a[row * LINE + d];
                        let k = tile_c[col * LINE + d];
                        s += dot(q, k);
                        s_dot += dot(tile_b[row * LINE + d], k) + dot(q, tile_d[col * LINE + d]);
                    }
                    e = exp_safe(s * p.scale - lse[p.lse_start + (item.w + row) * p.lse_line + head]);
                }
                scores[row * SLINE + col] = e;
                slopes[row * SLINE + col] = e * s_dot * p.scale;
            }
        }
        workgroupBarrier();
        for (var i = lane; i < BLOCK * D4; i += 64u) {
            let row = i / D4;
            let d = (i % D4) * 4u;
            var v = vec4<f32>(0.0);
            var v_dot = vec4<f32>(0.0);
            if (key + row < keys) {
                v = read_part(item.x + key + row, head, d, 2u);
                v_dot = read_dot(item.x + key + row, head, d, 2u);
            }
            tile_c[row * LINE + i % D4] = v;
            tile_d[row * LINE + i % D4] = v_dot;
        }
        if (lane < BLOCK) {
            var sum = row_sum[lane];
            for (var c = 0u; c < BLOCK; c += 1u) {
                sum += slopes[lane * SLINE + c];
            }
            row_sum[lane] = sum;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    var o = plain[r * J + j];
                    var o_dot = moved[r * J + j];
                    for (var c = 0u; c < BLOCK; c += 1u) {
                        let e = vec4<f32>(scores[row * SLINE + c]);
                        let v = tile_c[c * LINE + d];
                        o = fma(e, v, o);
                        o_dot = fma(vec4<f32>(slopes[row * SLINE + c]), v, fma(e, tile_d[c * LINE + d], o_dot));
                    }
                    plain[r * J + j] = o;
                    moved[r * J + j] = o_dot;
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        if (row < count) {
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    write_out(item.w + row, p.out_line, p.out_start, head, d, moved[r * J + j] - row_sum[row] * plain[r * J + j]);
                }
            }
        }
    }
}

// Copy a block of columns of q_in into rows of a cache.
@compute @workgroup_size(64)
fn store(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_group(group, groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        out[p.out_start + (i / p.cols) * p.out_line + i % p.cols] = q_in[p.q_start + (i / p.cols) * p.q_line + i % p.cols];
    }
}
