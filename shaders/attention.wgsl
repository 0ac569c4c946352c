// Mirrors ops::attention: causal attention of grouped heads over ragged segments, block by block, with an online softmax (forward), and
// the backward and jvp that recompute p = exp(s - lse). Memory grows with the rows, never with their square.
//
// A workgroup of 8 x 8 threads (ty, tx) owns one block of rows of one head and walks over the blocks of the other side. Thread
// (ty, tx) holds the scores of rows ty + 8 r and columns tx + 8 c (`cell`), and of what is accumulated the vec4 columns tx + 8 j (`spot`).
// Backward runs twice, once owning queries and once owning keys: nothing is added to from two workgroups.

// o = softmax(scale q k^T + slope (j - i)) v.
@compute @workgroup_size(64)
fn forward(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let own = own_block(id, p.heads);
    let slope = slope_of(own.head);
    let keys = own.position + own.count;
    load_q(A, own.row, own.count, own.head, lane);
    if (lane < BLOCK) {
        row_max[lane] = LOWEST;
        row_sum[lane] = 0.0;
    }
    var o: Part;
    for (var key = first_block(own.position); key < keys; key += BLOCK) {
        load_k(B, own.first + key, keys - key, own.head / p.group, lane);
        workgroupBarrier();
        for (var i = 0u; i < R * R; i += 1u) {
            let at = cell(i, lane);
            let query = own.position + at.x;
            var s = LOWEST;
            if (sees(query, key + at.y)) {
                s = score(product(A, at.x, B, at.y), slope, query, key + at.y);
            }
            scores[FIRST + at.x * SLINE + at.y] = s;
        }
        workgroupBarrier();
        load_v(B, own.first + key, keys - key, own.head / p.group, lane);
        // A row that has seen nothing yet counts what is masked; the first key that it sees shrinks that to zero.
        if (lane < BLOCK) {
            var largest = row_max[lane];
            for (var c = 0u; c < BLOCK; c += 1u) {
                largest = max(largest, scores[FIRST + lane * SLINE + c]);
            }
            var sum = 0.0;
            for (var c = 0u; c < BLOCK; c += 1u) {
                let e = exp_safe(scores[FIRST + lane * SLINE + c] - largest);
                scores[FIRST + lane * SLINE + c] = e;
                sum += e;
            }
            let shrink = exp_safe(row_max[lane] - largest);
            row_scale[lane] = shrink;
            row_sum[lane] = row_sum[lane] * shrink + sum;
            row_max[lane] = largest;
        }
        workgroupBarrier();
        for (var i = 0u; i < R * J; i += 1u) {
            o[i] *= row_scale[spot(i, lane).x];
        }
        accumulate(&o, FIRST, B, lane);
        workgroupBarrier();
    }
    for (var i = 0u; i < R * J; i += 1u) {
        o[i] /= row_sum[spot(i, lane).x];
    }
    write_part(&o, p.out_start, own, lane);
    if (p.keep_lse == 1u && lane < own.count) {
        lse_out[p.lse_start + (own.row + lane) * p.lse_line + own.head] = row_max[lane] + log_safe(row_sum[lane]);
    }
}

// For every row and head lse, and delta = <dout, out>, side by side; out comes as q_in.
@compute @workgroup_size(64)
fn row_deltas(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.work) {
        return;
    }
    let row = i / p.heads;
    let head = i % p.heads;
    var sum = 0.0;
    for (var d = 0u; d < WIDTH; d += 4u) {
        let a = p.q_start + row * p.q_line + head * WIDTH + d;
        let b = p.dot_start + row * p.dot_line + head * WIDTH + d;
        let q = keep(vec4<f32>(q_in[a], q_in[a + 1u], q_in[a + 2u], q_in[a + 3u]), d, WIDTH);
        sum += dot(q, keep(vec4<f32>(dout[b], dout[b + 1u], dout[b + 2u], dout[b + 3u]), d, WIDTH));
    }
    let to = p.kept_start + row * p.kept_line + head;
    lse_out[to] = lse[p.lse_start + row * p.lse_line + head];
    lse_out[to + p.heads] = sum;
}

// p and ds = p (dp - delta) scale of one query, in row `row`, and one key, given their score and <dout, v>.
fn slopes_of(s: f32, dov: f32, row: u32, head: u32) -> vec2<f32> {
    let at = p.kept_start + row * p.kept_line + head;
    let e = exp_safe(s - kept[at]);
    return vec2<f32>(e, e * (dov - kept[at + p.heads]) * p.scale);
}

// dq = ds k, owning a block of queries. A: q, B: dout; C: k, D: v.
@compute @workgroup_size(64)
fn backward_queries(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let own = own_block(id, p.heads);
    let slope = slope_of(own.head);
    let keys = own.position + own.count;
    load_q(A, own.row, own.count, own.head, lane);
    load_dout(B, own.row, own.count, own.head, lane);
    var dq: Part;
    for (var key = first_block(own.position); key < keys; key += BLOCK) {
        load_k(C, own.first + key, keys - key, own.head / p.group, lane);
        load_v(D, own.first + key, keys - key, own.head / p.group, lane);
        workgroupBarrier();
        for (var i = 0u; i < R * R; i += 1u) {
            let at = cell(i, lane);
            let query = own.position + at.x;
            var ds = 0.0;
            if (at.x < own.count && sees(query, key + at.y)) {
                let s = score(product(A, at.x, C, at.y), slope, query, key + at.y);
                ds = slopes_of(s, product(B, at.x, D, at.y), own.row + at.x, own.head).y;
            }
            scores[FIRST + at.x * SLINE + at.y] = ds;
        }
        workgroupBarrier();
        accumulate(&dq, FIRST, C, lane);
        workgroupBarrier();
    }
    write_part(&dq, p.out_start, own, lane);
}

// dk = ds^T q and dv = p^T dout, summed over the query heads of a group, owning a block of keys. A: k, B: v; C: q, D: dout.
@compute @workgroup_size(64)
fn backward_keys(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let own = own_block(id, p.heads / p.group);
    // The last key of the block is seen by the queries before this one.
    let last = own.position + own.count - 1u;
    let end = select(own.length, last + p.window, p.window < own.length - last);
    load_k(A, own.row, own.count, own.head, lane);
    load_v(B, own.row, own.count, own.head, lane);
    var dk: Part;
    var dv: Part;
    for (var head = own.head * p.group; head < (own.head + 1u) * p.group; head += 1u) {
        let slope = slope_of(head);
        for (var query = own.position; query < end; query += BLOCK) {
            load_q(C, own.first + query, own.length - query, head, lane);
            load_dout(D, own.first + query, own.length - query, head, lane);
            workgroupBarrier();
            for (var i = 0u; i < R * R; i += 1u) {
                let at = cell(i, lane);
                let key = own.position + at.x;
                var e = vec2<f32>(0.0);
                if (at.x < own.count && query + at.y < own.length && sees(query + at.y, key)) {
                    let s = score(product(A, at.x, C, at.y), slope, query + at.y, key);
                    e = slopes_of(s, product(B, at.x, D, at.y), own.first + query + at.y, head);
                }
                scores[FIRST + at.x * SLINE + at.y] = e.x;
                scores[SECOND + at.x * SLINE + at.y] = e.y;
            }
            workgroupBarrier();
            accumulate(&dk, SECOND, C, lane);
            accumulate(&dv, FIRST, D, lane);
            workgroupBarrier();
        }
    }
    write_part(&dk, p.out_start, own, lane);
    write_part(&dv, p.second_start, own, lane);
}

// With m = sum p s_dot: o_dot = sum p (s_dot v + v_dot) - m sum p v. A: q, B: q_dot; C: k, then v; D: k_dot, then v_dot.
@compute @workgroup_size(64)
fn jvp(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    if (id >= p.work) {
        return;
    }
    let own = own_block(id, p.heads);
    let kv = own.head / p.group;
    let slope = slope_of(own.head);
    let keys = own.position + own.count;
    load_q(A, own.row, own.count, own.head, lane);
    load_tangents(B, p.dot_start, own.row, own.count, own.head, lane);
    if (lane < BLOCK) {
        row_sum[lane] = 0.0;
    }
    var plain: Part;
    var moved: Part;
    for (var key = first_block(own.position); key < keys; key += BLOCK) {
        load_k(C, own.first + key, keys - key, kv, lane);
        load_tangents(D, p.k_dot, own.first + key, keys - key, kv, lane);
        workgroupBarrier();
        for (var i = 0u; i < R * R; i += 1u) {
            let at = cell(i, lane);
            let query = own.position + at.x;
            var e = 0.0;
            var s_dot = 0.0;
            if (at.x < own.count && sees(query, key + at.y)) {
                let s = score(product(A, at.x, C, at.y), slope, query, key + at.y);
                s_dot = product(B, at.x, C, at.y) + product(A, at.x, D, at.y);
                e = exp_safe(s - lse[p.lse_start + (own.row + at.x) * p.lse_line + own.head]);
            }
            scores[FIRST + at.x * SLINE + at.y] = e;
            scores[SECOND + at.x * SLINE + at.y] = e * s_dot * p.scale;
        }
        workgroupBarrier();
        load_v(C, own.first + key, keys - key, kv, lane);
        load_tangents(D, p.v_dot, own.first + key, keys - key, kv, lane);
        if (lane < BLOCK) {
            var sum = row_sum[lane];
            for (var c = 0u; c < BLOCK; c += 1u) {
                sum += scores[SECOND + lane * SLINE + c];
            }
            row_sum[lane] = sum;
        }
        workgroupBarrier();
        accumulate(&plain, FIRST, C, lane);
        accumulate(&moved, FIRST, D, lane);
        accumulate(&moved, SECOND, C, lane);
        workgroupBarrier();
    }
    for (var i = 0u; i < R * J; i += 1u) {
        moved[i] -= row_sum[spot(i, lane).x] * plain[i];
    }
    write_part(&moved, p.out_start, own, lane);
}

// Copy a block of columns of q_in: into rows of a cache, or to where the others of its kind lie.
@compute @workgroup_size(64)
fn store(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.cols) {
        out[p.out_start + (i / p.cols) * p.out_line + i % p.cols] = q_in[p.q_start + (i / p.cols) * p.q_line + i % p.cols];
    }
}
