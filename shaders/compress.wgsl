// Mirrors ops::compress: signs with public coins for ties, signs with error feedback, and random rounding to levels of a norm.
// Elements are counted without the rows' padding, so that each has the CPU's coin and the CPU's rounding word.

struct Params {
    stream: array<vec4<u32>, 3>,
    rows: u32,
    cols: u32,
    // Numbers from row to row.
    line: u32,
    start_x: u32,
    start_memory: u32,
    start_total: u32,
    // Elements before this window, and in it.
    before: u32,
    count: u32,
    // signs: 1 if there is a memory. quantise: the number of levels.
    levels: f32,
    // 1 / the number of elements of the whole matrix.
    share: f32,
    remembers: u32,
}

const LANES: u32 = 64u;
const BUCKET: u32 = 512u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> memory: array<f32>;
@group(0) @binding(3) var<storage, read> total: array<f32>;

// Where element e of the window lies among padded rows.
fn place(e: u32) -> u32 {
    return (e / p.cols) * p.line + e % p.cols;
}

// x = sign(x); or, with a memory that holds x too, x = mean(|x|) sign(x) and memory -= x.
@compute @workgroup_size(64)
fn signs(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let e = linear_group(grid.group, grid.groups) * 64u + lane;
    if (e >= p.count) {
        return;
    }
    let at = place(e);
    let v = x[p.start_x + at];
    var sign = select(-1.0, 1.0, v > 0.0);
    if (is_nan(v) || v == 0.0) {
        // The coin of element i is bit i mod 32 of word i / 32.
        let i = p.before + e;
        var words = chacha8(p.stream, i / 512u, 0u);
        sign = select(-1.0, 1.0, ((words[(i / 32u) % 16u] >> (i % 32u)) & 1u) == 1u);
    }
    if (p.remembers == 1u) {
        sign *= total[p.start_total] * p.share;
        memory[p.start_memory + at] -= sign;
    }
    x[p.start_x + at] = sign;
}

// memory_i = the sum of |x_i|, a workgroup a row.
@compute @workgroup_size(64)
fn sizes(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let row = linear_group(grid.group, grid.groups);
    if (row >= p.rows) {
        return;
    }
    var sum = 0.0;
    for (var i = lane; i < p.cols; i += 64u) {
        sum += abs(x[p.start_x + row * p.line + i]);
    }
    let size = sum_one(sum, lane);
    if (lane == 0u) {
        memory[p.start_memory + row * 4u] = size;
    }
}

// x = |b| sign(x) k / L, a workgroup a bucket b of 512 elements: k is L |x| / |b|, rounded up with the probability of its fraction.
@compute @workgroup_size(64)
fn quantise(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let first = linear_group(grid.group, grid.groups) * BUCKET;
    if (first >= p.count) {
        return;
    }
    var square = 0.0;
    for (var e = first + lane; e < min(first + BUCKET, p.count); e += 64u) {
        let v = x[p.start_x + place(e)];
        square += v * v;
    }
    let norm = sqrt(sum_one(square, lane));
    // Element i is rounded by word i: half of the threads have a block of 16 words each.
    let begin = first + lane * 16u;
    if (lane >= 32u || begin >= p.count) {
        return;
    }
    var words = chacha8(p.stream, (p.before + begin) / 16u, 0u);
    for (var j = 0u; j < min(16u, p.count - begin); j += 1u) {
        let at = p.start_x + place(begin + j);
        let v = x[at];
        if (norm == 0.0) {
            x[at] = 0.0;
        } else {
            let exact = abs(v) / norm * p.levels;
            let low = floor(exact);
            let level = min(low + select(0.0, 1.0, f32(words[j]) < (exact - low) * 4294967296.0), p.levels);
            x[at] = bitcast<f32>(bitcast<u32>(norm * level / p.levels) | (bitcast<u32>(v) & 0x80000000u));
        }
    }
}
