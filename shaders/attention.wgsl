// Mirrors ops::attention: causal attention of grouped heads over ragged segments, block by block, with an online softmax (forward), and
// the backward and jvp that recompute p = exp(s - lse). Memory grows with the rows, never with their square.
//
// A workgroup of 8 x 8 threads (ty, tx) owns one block of rows of one head and walks over the blocks of the other side. Thread
// (ty, tx) holds the scores of rows ty + 8 r and columns tx + 8 c, and of what is accumulated the vec4 columns tx + 8 j.
// Backward runs twice, once owning queries and once owning keys: nothing is added to from two workgroups.

// o = softmax(scale q k^T + slope (j - i)) v.
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
    let slope = slope_of(head);
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;

    load_q(A, item.w, count, head, lane);
    if (lane < BLOCK) {
        row_max[lane] = MASKED;
        row_sum[lane] = 0.0;
    }
    var o: array<vec4<f32>, R * J>;
    for (var key = first_block(position); key < keys; key += BLOCK) {
        load_k(B, item.x + key, keys - key, head / p.group, lane);
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var s = MASKED;
                if (sees(position + row, key + col)) {
                    s = score(product(A, row, B, col), slope, position + row, key + col);
                }
                scores[FIRST + row * SLINE + col] = s;
            }
        }
        workgroupBarrier();
        load_v(B, item.x + key, keys - key, head / p.group, lane);
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
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    o[r * J + j] = weighted(FIRST, row, B, d, o[r * J + j] * row_scale[row]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        for (var j = 0u; j < J; j += 1u) {
            let d = tx + 8u * j;
            if (row < count && d < D4) {
                write_out(p.out_start, item.w + row, head, d, o[r * J + j] / row_sum[row]);
            }
        }
    }
    if (p.keep_lse == 1u && lane < count) {
        lse_out[p.lse_start + (item.w + lane) * p.lse_line + head] = row_max[lane] + log_safe(row_sum[lane]);
    }
}

// For every row and head lse, and delta = <dout, out>, side by side; out comes as q_in.
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
        let q = four_of_q(p.q_start + row * p.q_line + head * WIDTH + d, d);
        sum += dot(q, four_of_dout(p.dot_start + row * p.dot_line + head * WIDTH + d, d));
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
    let slope = slope_of(head);
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;
    load_q(A, item.w, count, head, lane);
    load_dout(B, item.w, count, head, lane);
    var dq: array<vec4<f32>, R * J>;
    for (var key = first_block(position); key < keys; key += BLOCK) {
        load_k(C, item.x + key, keys - key, head / p.group, lane);
        load_v(D, item.x + key, keys - key, head / p.group, lane);
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var ds = 0.0;
                if (row < count && sees(position + row, key + col)) {
                    let s = score(product(A, row, C, col), slope, position + row, key + col);
                    ds = slopes_of(s, product(B, row, D, col), item.w + row, head).y;
                }
                scores[FIRST + row * SLINE + col] = ds;
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    dq[r * J + j] = weighted(FIRST, ty + 8u * r, C, d, dq[r * J + j]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        for (var j = 0u; j < J; j += 1u) {
            let d = tx + 8u * j;
            if (row < count && d < D4) {
                write_out(p.out_start, item.w + row, head, d, dq[r * J + j]);
            }
        }
    }
}

// dk = ds^T q and dv = p^T dout, summed over the query heads of a group, owning a block of keys. A: k, B: v; C: q, D: dout.
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
    let kv_heads = p.heads / p.group;
    let item = items[id / kv_heads];
    let kv = id % kv_heads;
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    // The last key of the block is seen by the queries before this one.
    let last = position + count - 1u;
    let end = select(item.y, last + p.window, p.window < item.y - last);
    let ty = lane / 8u;
    let tx = lane % 8u;
    load_k(A, item.w, count, kv, lane);
    load_v(B, item.w, count, kv, lane);
    var dk: array<vec4<f32>, R * J>;
    var dv: array<vec4<f32>, R * J>;
    for (var head = kv * p.group; head < (kv + 1u) * p.group; head += 1u) {
        let slope = slope_of(head);
        for (var query = position; query < end; query += BLOCK) {
            load_q(C, item.x + query, item.y - query, head, lane);
            load_dout(D, item.x + query, item.y - query, head, lane);
            workgroupBarrier();
            for (var r = 0u; r < R; r += 1u) {
                for (var c = 0u; c < R; c += 1u) {
                    let row = ty + 8u * r;
                    let col = tx + 8u * c;
                    var e = vec2<f32>(0.0);
                    if (row < count && query + col < item.y && sees(query + col, position + row)) {
                        let s = score(product(A, row, C, col), slope, query + col, position + row);
                        e = slopes_of(s, product(B, row, D, col), item.x + query + col, head);
                    }
                    scores[FIRST + row * SLINE + col] = e.x;
                    scores[SECOND + row * SLINE + col] = e.y;
                }
            }
            workgroupBarrier();
            for (var r = 0u; r < R; r += 1u) {
                for (var j = 0u; j < J; j += 1u) {
                    let d = tx + 8u * j;
                    if (d < D4) {
                        dk[r * J + j] = weighted(SECOND, ty + 8u * r, C, d, dk[r * J + j]);
                        dv[r * J + j] = weighted(FIRST, ty + 8u * r, D, d, dv[r * J + j]);
                    }
                }
            }
            workgroupBarrier();
        }
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        for (var j = 0u; j < J; j += 1u) {
            let d = tx + 8u * j;
            if (row < count && d < D4) {
                write_out(p.out_start, item.w + row, kv, d, dk[r * J + j]);
                write_out(p.second_start, item.w + row, kv, d, dv[r * J + j]);
            }
        }
    }
}

// With m = sum p s_dot: o_dot = sum p (s_dot v + v_dot) - m sum p v. A: q, B: q_dot; C: k, then v; D: k_dot, then v_dot.
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
    let kv = head / p.group;
    let slope = slope_of(head);
    let position = item.z;
    let count = min(BLOCK, item.y - position);
    let keys = position + count;
    let ty = lane / 8u;
    let tx = lane % 8u;
    load_q(A, item.w, count, head, lane);
    load_tangents(B, p.dot_start, item.w, count, head, lane);
    if (lane < BLOCK) {
        row_sum[lane] = 0.0;
    }
    var plain: array<vec4<f32>, R * J>;
    var moved: array<vec4<f32>, R * J>;
    for (var key = first_block(position); key < keys; key += BLOCK) {
        load_k(C, item.x + key, keys - key, kv, lane);
        load_tangents(D, p.k_dot, item.x + key, keys - key, kv, lane);
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            for (var c = 0u; c < R; c += 1u) {
                let row = ty + 8u * r;
                let col = tx + 8u * c;
                var e = 0.0;
                var s_dot = 0.0;
                if (row < count && sees(position + row, key + col)) {
                    let s = score(product(A, row, C, col), slope, position + row, key + col);
                    s_dot = product(B, row, C, col) + product(A, row, D, col);
                    e = exp_safe(s - lse[p.lse_start + (item.w + row) * p.lse_line + head]);
                }
                scores[FIRST + row * SLINE + col] = e;
                scores[SECOND + row * SLINE + col] = e * s_dot * p.scale;
            }
        }
        workgroupBarrier();
        load_v(C, item.x + key, keys - key, kv, lane);
        load_tangents(D, p.v_dot, item.x + key, keys - key, kv, lane);
        if (lane < BLOCK) {
            var sum = row_sum[lane];
            for (var c = 0u; c < BLOCK; c += 1u) {
                sum += scores[SECOND + lane * SLINE + c];
            }
            row_sum[lane] = sum;
        }
        workgroupBarrier();
        for (var r = 0u; r < R; r += 1u) {
            let row = ty + 8u * r;
            for (var j = 0u; j < J; j += 1u) {
                let d = tx + 8u * j;
                if (d < D4) {
                    plain[r * J + j] = weighted(FIRST, row, C, d, plain[r * J + j]);
                    moved[r * J + j] = weighted(SECOND, row, C, d, weighted(FIRST, row, D, d, moved[r * J + j]));
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < R; r += 1u) {
        let row = ty + 8u * r;
        for (var j = 0u; j < J; j += 1u) {
            let d = tx + 8u * j;
            if (row < count && d < D4) {
                write_out(p.out_start, item.w + row, head, d, moved[r * J + j] - row_sum[row] * plain[r * J + j]);
            }
        }
    }
}

// Copy a block of columns of q_in: into rows of a cache, or to where the others of its kind lie.
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
