// Prepended to shaders that need public randomness. Mirrors rng::PublicStream: the same words as the CPU.

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

// Block `low, high` of a stream, whose key, counter (0 here), group and step rng::public documents.
fn chacha8(s: array<vec4<u32>, 3>, low: u32, high: u32) -> array<u32, 16> {
    let start = array<u32, 16>(
        0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, s[0].x, s[0].y, s[0].z, s[0].w,
        s[1].x, s[1].y, s[1].z, s[1].w, low, high, s[2].z, s[2].w);
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
