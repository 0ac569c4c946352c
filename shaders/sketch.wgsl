// Mirrors ops::sketch, which sketches gradients from their factors, and rng::Pullback: buckets and signs are the CPU's to the bit.
//
// A cell is a bucket with a sign in bit 31, as rng::sketch::Cell. Columns come as lists: the columns of bucket b are those from `begins[b]` on, each
// with its sign in bit 31, so that every sum is one thread's, in a fixed order.

struct Params {
    stream: array<vec4<u32>, 3>,
    // pull_count: the first block of words, low half first, and the words of it that come before the matrix.
    block_low: u32,
    block_high: u32,
    skip: u32,
    blocks: u32,
    rows: u32,
    cols: u32,
    // Buckets.
    k: u32,
    // 0: the buckets of row and column add up mod k. Else their grid has so many columns.
    side: u32,
    start_x: u32,
    line_x: u32,
    start_out: u32,
    line_out: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> begins: array<u32>;
@group(0) @binding(3) var<storage, read> list: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
// A cell a row.
@group(0) @binding(5) var<storage, read> cells: array<u32>;
// A cell a column.
@group(0) @binding(6) var<storage, read> columns: array<u32>;
// A number a bucket.
@group(0) @binding(7) var<storage, read> numbers: array<f32>;

const BUCKET: u32 = 0x7fffffffu;

// x, or -x where bit 31 of `sign` is set.
fn signed(x: f32, sign: u32) -> f32 {
    return select(x, -x, (sign >> 31u) == 1u);
}

// out_(t, b) = the sum of row t's columns in bucket b, with their signs: a count sketch of every row. A thread a (t, b).
@compute @workgroup_size(64)
fn fold(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups) * 64u + lane;
    let row = id / p.k;
    let b = id % p.k;
    if (row >= p.rows) {
        return;
    }
    var sum = 0.0;
    for (var j = begins[b]; j < begins[b + 1u]; j += 1u) {
        sum += signed(x[p.start_x + row * p.line_x + (list[j] & BUCKET)], list[j]);
    }
    out[p.start_out + row * p.line_out + b] = sum;
}

// out_b += the sum of the elements of a matrix that fall into bucket b. A thread a bucket.
@compute @workgroup_size(64)
fn hash(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let b = linear_group(grid.group, grid.groups) * 64u + lane;
    if (b >= p.k) {
        return;
    }
    var sum = 0.0;
    for (var row = 0u; row < p.rows; row += 1u) {
        let own = cells[row] & BUCKET;
        var rest = 0u;
        if (p.side == 0u) {
            rest = select(b + p.k - own, b - own, b >= own);
        } else {
            if (own != b / p.side) {
                continue;
            }
            rest = b % p.side;
        }
        for (var j = begins[rest]; j < begins[rest + 1u]; j += 1u) {
            sum += signed(x[p.start_x + row * p.line_x + (list[j] & BUCKET)], list[j] ^ cells[row]);
        }
    }
    out[p.start_out + b] += sum;
}

// out_(row, column) = the number of its bucket, with its sign. A thread an element.
@compute @workgroup_size(64)
fn pull(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups) * 64u + lane;
    let row = id / p.cols;
    let column = id % p.cols;
    if (row >= p.rows) {
        return;
    }
    let r = cells[row];
    let c = columns[column];
    var bucket = 0u;
    if (p.side == 0u) {
        let sum = (r & BUCKET) + (c & BUCKET);
        bucket = select(sum, sum - p.k, sum >= p.k);
    } else {
        bucket = (r & BUCKET) * p.side + (c & BUCKET);
    }
    out[p.start_out + row * p.line_out + column] = signed(numbers[bucket], r ^ c);
}

// The high half of a * b.
fn high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}

// As `pull`, where every element has a word of its own: rng::sketch::Cell::of. A thread takes a block of 16 words.
@compute @workgroup_size(64)
fn pull_count(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let block = linear_group(grid.group, grid.groups) * 64u + lane;
    if (block >= p.blocks) {
        return;
    }
    let low = p.block_low + block;
    var words = chacha8(p.stream, low, p.block_high + select(0u, 1u, low < block));
    for (var j = 0u; j < 16u; j += 1u) {
        let i = block * 16u + j;
        if (i >= p.skip && i - p.skip < p.rows * p.cols) {
            let at = i - p.skip;
            // Bit 0 is the sign, the 31 others times k, over 2^31, the bucket.
            let number = numbers[high(words[j] & 0xfffffffeu, p.k)];
            out[p.start_out + (at / p.cols) * p.line_out + at % p.cols] = signed(number, words[j] << 31u);
        }
    }
}
