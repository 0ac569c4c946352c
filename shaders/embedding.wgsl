// Mirrors ops::embedding: rows of a table by index, and their gradient, without atomics and in order of the rows.

struct Params {
    start_table: u32,
    start_rows: u32,
    // Length of a row in vec4s.
    line: u32,
    // gather: number of rows; scatter: number of distinct ids.
    count: u32,
    // gather: the table's rows that are bound here. scatter: first is the bound window's first row.
    first: u32,
    last: u32,
    // gather: add to what is there, or overwrite.
    add: u32,
    // Workgroups that share a row.
    parts: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

@group(0) @binding(1) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> rows: array<vec4<f32>>;

// rows_i (+)= table[ids_i], for the ids in this window of the table.
@compute @workgroup_size(64)
fn gather(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i >= p.count * p.line) {
        return;
    }
    let id = ids[i / p.line];
    if (id < p.first || id >= p.last) {
        return;
    }
    let at = p.start_rows / 4u + i;
    var v = table[p.start_table / 4u + (id - p.first) * p.line + i % p.line];
    if (p.add == 1u) {
        v += rows[at];
    }
    rows[at] = v;
}

@group(0) @binding(4) var<storage, read> dy: array<vec4<f32>>;
// Distinct ids; where each one's occurrences begin in `order`, and the end; the rows of each id in turn, ascending.
@group(0) @binding(5) var<storage, read> distinct: array<u32>;
@group(0) @binding(6) var<storage, read> begins: array<u32>;
@group(0) @binding(7) var<storage, read> order: array<u32>;
@group(0) @binding(8) var<storage, read_write> dtable: array<vec4<f32>>;

// dtable[id] += dy_i for the occurrences i of id, in order. A thread owns four columns of one distinct id.
@compute @workgroup_size(64)
fn scatter(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups);
    let which = id / p.parts;
    let column = (id % p.parts) * 64u + lane;
    if (which >= p.count || column >= p.line) {
        return;
    }
    let at = p.start_table / 4u + (distinct[which] - p.first) * p.line + column;
    var sum = dtable[at];
    for (var j = begins[which]; j < begins[which + 1u]; j += 1u) {
        sum += dy[p.start_rows / 4u + order[j] * p.line + column];
    }
    dtable[at] = sum;
}
