// Mirrors ops::rope::turn: pairs of a head's columns turn by a row of the table, R/2 cosines and R/2 sines. A thread a pair.

struct Params {
    rows: u32,
    heads: u32,
    width: u32,
    // R/2.
    pairs: u32,
    // Where row 0 of the first head begins, and numbers from row to row.
    x_start: u32,
    x_line: u32,
    table_start: u32,
    table_line: u32,
    // 1, or -1 to turn back.
    sign: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;

@compute @workgroup_size(64)
fn turn(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let i = linear_group(grid.group, grid.groups) * 64u + lane;
    if (i < p.rows * p.heads * p.pairs) {
        let pair = i % p.pairs;
        let head = i / p.pairs % p.heads;
        let row = i / (p.pairs * p.heads);
        let at = p.x_start + row * p.x_line + head * p.width + pair;
        let turns = p.table_start + row * p.table_line + pair;
        let c = table[turns];
        let s = p.sign * table[turns + p.pairs];
        let a = x[at];
        let b = x[at + p.pairs];
        x[at] = a * c - b * s;
        x[at + p.pairs] = b * c + a * s;
    }
}
