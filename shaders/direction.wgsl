// Mirrors rng::DirectionStream::fill: a block of a public direction, or rows of one, from the same ChaCha words as the CPU.
//
// Prepended constant: KIND, 0 for the sphere, 1 for signs. Signs are the CPU's to the bit. On the sphere the words are, and the
// Gaussians up to what the driver does to `a * b + c`: rng::math is the word on what must be exact.

struct Params {
    stream: array<vec4<u32>, 3>,
    // The first block's number, low half first.
    block_low: u32,
    block_high: u32,
    // Elements of the first block that come before the matrix.
    skip: u32,
    count: u32,
    cols: u32,
    line: u32,
    start: u32,
    scale: f32,
    blocks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// rng::math::ln.
fn ln(x: f32) -> f32 {
    let shifted = bitcast<i32>(x) - 0x3f3504f3;
    let e = f32(shifted >> 23u);
    let f = bitcast<f32>((shifted & 0x007fffff) + 0x3f3504f3) - 1.0;
    let z = f * f;
    var y = 7.0376836e-2 * f - 1.151461e-1;
    y = y * f + 1.1676999e-1;
    y = y * f - 1.2420141e-1;
    y = y * f + 1.4249323e-1;
    y = y * f - 1.6668058e-1;
    y = y * f + 2.0000715e-1;
    y = y * f - 2.4999994e-1;
    y = y * f + 3.333333e-1;
    y = y * f * z;
    y = y - 2.1219444e-4 * e;
    y = y - 0.5 * z;
    return (f + y) + 0.693359375 * e;
}

// rng::math::cos_sin_turn.
fn cos_sin_turn(word: u32) -> vec2<f32> {
    let q = (word + 0x20000000u) >> 30u;
    let r = bitcast<i32>(word - (q << 30u)) >> 6u;
    let x = (f32(r) + 0.5) * 9.362675e-8;
    let z = x * x;
    let s = ((-1.9515296e-4 * z + 8.332161e-3) * z - 1.6666655e-1) * z * x + x;
    let c = ((2.4433157e-5 * z - 1.3887316e-3) * z + 4.1666646e-2) * z * z - 0.5 * z + 1.0;
    let turned = select(vec2<f32>(c, s), vec2<f32>(s, c), (q & 1u) == 1u);
    let cos_sign = select(1.0, -1.0, ((q + 1u) & 2u) == 2u);
    let sin_sign = select(1.0, -1.0, (q & 2u) == 2u);
    return turned * vec2<f32>(cos_sign, sin_sign);
}

// Element i, counted from a block's first; what is kept begins at `skip`, is `count` long, and goes to `base` on, row by row.
fn put(base: u32, skip: u32, count: u32, i: u32, v: f32) {
    if (i >= skip && i - skip < count) {
        let at = i - skip;
        out[base + (at / p.cols) * p.line + at % p.cols] = v;
    }
}

// What one block of words gives: 16 Gaussians or 512 signs, the first of them element `first`.
fn make(low: u32, high: u32, first: u32, base: u32, skip: u32, count: u32) {
    var words = chacha8(p.stream, low, high);
    if (KIND == 0u) {
        for (var j = 0u; j < 8u; j += 1u) {
            // rng::gauss::open_unit and box_muller.
            let u = (f32(words[j] >> 9u) + 0.5) * (1.0 / 8388608.0);
            let radius = sqrt(-2.0 * ln(u));
            let turn = cos_sin_turn(words[8u + j]);
            put(base, skip, count, first + j, radius * turn.x * p.scale);
            put(base, skip, count, first + 8u + j, radius * turn.y * p.scale);
        }
    } else {
        for (var i = 0u; i < 512u; i += 1u) {
            let bit = (words[i / 32u] >> (i % 32u)) & 1u;
            put(base, skip, count, first + i, bitcast<f32>(bitcast<u32>(p.scale) | ((bit ^ 1u) << 31u)));
        }
    }
}

// 16 or 512 elements.
const PER_BLOCK: u32 = 16u + 496u * KIND;

// A thread makes what one block of words gives.
@compute @workgroup_size(64)
fn fill(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let block = linear_group(grid.group, grid.groups) * 64u + lane;
    if (block < p.blocks) {
        let low = p.block_low + block;
        make(low, p.block_high + select(0u, 1u, low < block), block * PER_BLOCK, p.start, p.skip, p.count);
    }
}

// The first block of each row, low half first, and the elements of it that come before the row.
@group(0) @binding(2) var<storage, read> begins: array<vec4<u32>>;

// Rows from anywhere in the direction: `blocks` threads a row, `count` rows.
@compute @workgroup_size(64)
fn rows(grid: Grid, @builtin(local_invocation_index) lane: u32) {
    let id = linear_group(grid.group, grid.groups) * 64u + lane;
    let row = id / p.blocks;
    let block = id % p.blocks;
    if (row < p.count) {
        let begin = begins[row];
        let low = begin.x + block;
        let high = begin.y + select(0u, 1u, low < block);
        make(low, high, block * PER_BLOCK, p.start + row * p.line, begin.z, p.cols);
    }
}
