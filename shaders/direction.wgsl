// Mirrors rng::DirectionStream::fill: a block of a public direction, from the same ChaCha words as the CPU.
//
// Prepended constant: KIND, 0 for the sphere, 1 for signs. Signs are the CPU's to the bit. On the sphere the words are, and the
// Gaussians up to what the driver does to `a * b + c`: rng::math is the word on what must be exact.

struct Params {
    key0: u32,
    key1: u32,
    key2: u32,
    key3: u32,
    key4: u32,
    key5: u32,
    key6: u32,
    key7: u32,
    group: u32,
    step: u32,
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

fn rotate(x: u32, by: u32) -> u32 {
    return (x << by) | (x >> (32u - by));
}

struct Four {
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

fn quarter(a0: u32, b0: u32, c0: u32, d0: u32) -> Four {
    var a = a0 + b0;
    var d = rotate(d0 ^ a, 16u);
    var c = c0 + d;
    var b = rotate(b0 ^ c, 12u);
    a += b;
    d = rotate(d ^ a, 8u);
    c += d;
    b = rotate(b ^ c, 7u);
    return Four(a, b, c, d);
}

// Block `low, high` of the stream: rng::public documents the input.
fn chacha8(low: u32, high: u32) -> array<u32, 16> {
    let start = array<u32, 16>(
        0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, p.key0, p.key1, p.key2, p.key3,
        p.key4, p.key5, p.key6, p.key7, low, high, p.group, p.step);
    var x = start;
    for (var round = 0u; round < 4u; round += 1u) {
        var q = quarter(x[0], x[4], x[8], x[12]);
        x[0] = q.a; x[4] = q.b; x[8] = q.c; x[12] = q.d;
        q = quarter(x[1], x[5], x[9], x[13]);
        x[1] = q.a; x[5] = q.b; x[9] = q.c; x[13] = q.d;
        q = quarter(x[2], x[6], x[10], x[14]);
        x[2] = q.a; x[6] = q.b; x[10] = q.c; x[14] = q.d;
        q = quarter(x[3], x[7], x[11], x[15]);
        x[3] = q.a; x[7] = q.b; x[11] = q.c; x[15] = q.d;
        q = quarter(x[0], x[5], x[10], x[15]);
        x[0] = q.a; x[5] = q.b; x[10] = q.c; x[15] = q.d;
        q = quarter(x[1], x[6], x[11], x[12]);
        x[1] = q.a; x[6] = q.b; x[11] = q.c; x[12] = q.d;
        q = quarter(x[2], x[7], x[8], x[13]);
        x[2] = q.a; x[7] = q.b; x[8] = q.c; x[13] = q.d;
        q = quarter(x[3], x[4], x[9], x[14]);
        x[3] = q.a; x[4] = q.b; x[9] = q.c; x[14] = q.d;
    }
    for (var i = 0u; i < 16u; i += 1u) {
        x[i] += start[i];
    }
    return x;
}

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

// Element i, counted from the first block.
fn put(i: u32, v: f32) {
    if (i >= p.skip && i - p.skip < p.count) {
        let at = i - p.skip;
        out[p.start + (at / p.cols) * p.line + at % p.cols] = v;
    }
}

// A thread makes what one block of words gives: 16 Gaussians or 512 signs.
@compute @workgroup_size(64)
fn fill(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = linear_group(group, groups) * 64u + lane;
    if (block >= p.blocks) {
        return;
    }
    let low = p.block_low + block;
    var words = chacha8(low, p.block_high + select(0u, 1u, low < block));
    if (KIND == 0u) {
        for (var j = 0u; j < 8u; j += 1u) {
            // rng::gauss::open_unit and box_muller.
            let u = (f32(words[j] >> 9u) + 0.5) * (1.0 / 8388608.0);
            let radius = sqrt(-2.0 * ln(u));
            let turn = cos_sin_turn(words[8u + j]);
            put(block * 16u + j, radius * turn.x * p.scale);
            put(block * 16u + 8u + j, radius * turn.y * p.scale);
        }
    } else {
        for (var i = 0u; i < 512u; i += 1u) {
            let bit = (words[i / 32u] >> (i % 32u)) & 1u;
            put(block * 512u + i, bitcast<f32>(bitcast<u32>(p.scale) | ((bit ^ 1u) << 31u)));
        }
    }
}
