//! What a block does between its products: norms, positions, attention, activations.

use super::*;
use ferret::ops::rope::Scaling;
use ferret::ops::{GateUp, Heads, Qkv, Rope};

#[test]
fn root_mean_square_norms() {
    for (n, groups, c) in [(1, 1, 3), (5, 1, 33), (70, 1, 256), (0, 2, 4), (3, 1, 769), (40, 3, 5), (33, 4, 64)] {
        parity!(
            1e-5,
            |b| {
                let (x, gain) = (matrix(b, n, groups * c, 1), weight(b, 1, c, 2));
                let (y, stats) = b.rms_norm(&x, &gain, 1e-5);
                assert_eq!(b.shape(&stats), (n, groups));
                let (mut kept, mut spent) = (matrix(b, n, groups * c, 4), matrix(b, n, groups * c, 4));
                let (mut dx, mut dx_again) = (matrix(b, n, groups * c, 5), matrix(b, n, groups * c, 5));
                b.rms_norm_backward(&mut kept, &x, &stats, &gain, false, &mut dx);
                b.rms_norm_backward(&mut spent, &x, &stats, &gain, true, &mut dx_again);
                let (x_dot, gain_dot) = (matrix(b, n, groups * c, 6), matrix(b, 1, c, 7));
                let jvp = |gain_dot| read(b, &b.rms_norm_jvp(&x, &x_dot, &stats, &gain, gain_dot));
                vec![
                    read(b, &y),
                    read(b, &stats),
                    read(b, &kept),
                    read(b, &spent),
                    read(b, &b.fold(&spent, c)),
                    read(b, &dx),
                    read(b, &dx_again),
                    jvp(None),
                    jvp(Some(&gain_dot)),
                ]
            },
            "{n} x {groups} groups of {c}"
        );
    }
}

#[test]
fn rotary_positions() {
    // Columns before the heads and after them, and columns of a head that do not turn.
    for (n, before, heads, width, rotary, after) in
        [(1, 0, 1, 2, 2, 0), (33, 3, 2, 7, 4, 1), (70, 0, 3, 64, 64, 64), (0, 0, 1, 4, 2, 0), (5, 1, 2, 6, 6, 0)]
    {
        let rope = Rope::new(10000.0, rotary, &Scaling::None);
        let table = rope.tables(&Segments::from_lengths([n / 3, n - n / 3]));
        parity!(
            1e-6,
            |b| {
                let cols = before + heads * width + after;
                let table = b.upload(n, rotary, table.clone()).unwrap();
                let (mut x, mut dx) = (matrix(b, n, cols, 1), matrix(b, n, cols, 2));
                b.rope(&mut x, before, heads, width, &table, false);
                b.rope(&mut dx, before, heads, width, &table, true);
                vec![read(b, &x), read(b, &dx)]
            },
            "{n} rows, {heads} heads of {width}, {rotary} turn"
        );
    }
}

#[test]
fn gated_layers() {
    for kind in Activation::ALL {
        for (n, c) in [(1, 1), (5, 7), (70, 66), (0, 3)] {
            parity!(
                // A slope near zero is what is left of larger numbers, and a matrix of one number has none to be measured by.
                5e-6,
                |b| {
                    let (fused, fused_dot) = (matrix(b, n, 2 * c, 1), matrix(b, n, 2 * c, 2));
                    let split = [3, 4].map(|seed| matrix(b, n, c, seed));
                    let split_dot = [5, 6].map(|seed| matrix(b, n, c, seed));
                    let dh = matrix(b, n, c, 7);
                    let mut out = Vec::new();
                    for (x, x_dot) in [
                        (GateUp::Fused(&fused), GateUp::Fused(&fused_dot)),
                        (GateUp::Split(split.each_ref()), GateUp::Split(split_dot.each_ref())),
                    ] {
                        out.push(read(b, &b.gated(kind, x)));
                        out.extend(b.gated_backward(kind, x, &dh).iter().map(|d| read(b, d)));
                        out.push(read(b, &b.gated_jvp(kind, x, x_dot)));
                    }
                    out
                },
                "{kind:?}, {n} x {c}"
            );
        }
    }
}

/// Queries, keys and values side by side.
fn fused<B: Backend>(b: &B, n: usize, heads: &Heads, seed: u64) -> Qkv<B::Tensor> {
    Qkv::Fused(matrix(b, n, heads.columns().iter().sum(), seed))
}

/// Queries, keys and values apart.
fn split<B: Backend>(b: &B, n: usize, heads: &Heads, seed: u64) -> Qkv<B::Tensor> {
    let mut seeds = seed..;
    Qkv::Split(heads.columns().map(|c| matrix(b, n, c, seeds.next().unwrap())))
}

#[test]
fn attention() {
    for (lengths, heads, width) in [
        (vec![1], 1, 1),
        (vec![3, 0, 1, 6], 2, 3),
        (vec![67, 2, 0], 1, 4),
        (vec![0, 0], 2, 4),
        (vec![], 2, 4),
        (vec![33, 32, 31, 1, 8, 9], 3, 5),
        (vec![40], 2, 64),
        (vec![20, 17], 1, 80),
        (vec![9], 1, 160),
    ] {
        let plain = Heads::plain(heads, width, 0.7 / (width as f64).sqrt());
        attention_of(&lengths, plain);
    }
}

#[test]
fn attention_of_every_kind_of_heads() {
    for (lengths, width) in [(vec![3, 0, 1, 6], 3), (vec![70, 33], 8), (vec![], 4)] {
        let plain = Heads::plain(6, width, 0.7 / (width as f64).sqrt());
        for heads in [
            Heads { kv_heads: 2, ..plain },
            Heads { kv_heads: 1, window: Some(1), ..plain },
            Heads { window: Some(35), ..plain },
            Heads { alibi: true, ..plain },
            Heads { kv_heads: 3, window: Some(9), alibi: true, ..plain },
        ] {
            attention_of(&lengths, heads);
        }
    }
}

fn attention_of(lengths: &[usize], heads: Heads) {
    let segments = Segments::from_lengths(lengths.iter().copied());
    let n = segments.rows();
    parity!(
        2e-5,
        |b| {
            let mut read_all = Vec::new();
            for (qkv, qkv_dot) in
                [(fused(b, n, &heads, 1), fused(b, n, &heads, 3)), (split(b, n, &heads, 4), split(b, n, &heads, 7))]
            {
                let (out, lse) = b.attention(qkv.as_ref(), &segments, &heads);
                let dout = matrix(b, n, heads.heads * heads.width, 2);
                let dqkv = b.attention_backward(&dout, &out, &lse, qkv.as_ref(), &segments, &heads);
                let out_dot = b.attention_jvp(qkv.as_ref(), qkv_dot.as_ref(), &lse, &segments, &heads);
                read_all.extend([read(b, &out), read(b, &lse), read(b, &out_dot)]);
                read_all.extend(dqkv.iter().map(|d| read(b, d)));
            }
            read_all
        },
        "{lengths:?}, {heads:?}"
    );
}

#[test]
fn attention_with_a_cache() {
    let n = 75;
    let plain = Heads::plain(6, 4, 0.3);
    for heads in [plain, Heads { kv_heads: 2, ..plain }, Heads { kv_heads: 3, window: Some(20), alibi: true, ..plain }]
    {
        parity!(
            2e-5,
            |b| {
                let [_, c, _] = heads.columns();
                let mut outs = Vec::new();
                for qkv in [fused(b, n, &heads, 1), split(b, n, &heads, 2)] {
                    let (mut keys, mut values) = (b.zeros(80, c), b.zeros(80, c));
                    for (past, end) in [(0, 1), (1, 2), (2, 40), (40, 41), (41, n)] {
                        let new = qkv.as_ref().map(|x| b.rows(x, past..end));
                        let out = b.attention_cached(new.as_ref(), &mut keys, &mut values, past, &heads);
                        outs.push(read(b, &out));
                    }
                    outs.push(read(b, &keys));
                    outs.push(read(b, &values));
                }
                outs
            },
            "a cache, {heads:?}"
        );
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let segments = Segments::from_lengths([40]);
    let heads = Heads::plain(1, 4, 1.0);
    parity!(
        1e-4,
        |b| {
            let data = noise(40 * 12, 1).iter().map(|x| x * 100.0).collect();
            let qkv = Qkv::Fused(b.upload(40, 12, data).unwrap());
            let (out, lse) = b.attention(qkv.as_ref(), &segments, &heads);
            let dqkv = b.attention_backward(&matrix(b, 40, 4, 2), &out, &lse, qkv.as_ref(), &segments, &heads);
            let mut all = vec![read(b, &out), read(b, &lse)];
            all.extend(dqkv.iter().map(|d| read(b, d)));
            all
        },
        "scores in the tens of thousands"
    );
}

#[test]
fn norms() {
    for (n, c) in [(1, 3), (5, 33), (70, 256), (0, 4), (3, 769), (200, 64)] {
        parity!(
            1e-5,
            |b| {
                let (x, gain, bias) = (matrix(b, n, c, 1), weight(b, 1, c, 2), weight(b, 1, c, 3));
                let (y, stats) = b.norm(&x, &gain, &bias, 1e-5);
                let (mut kept, mut spent) = (matrix(b, n, c, 4), matrix(b, n, c, 4));
                let (mut dx, mut dx_again) = (matrix(b, n, c, 5), matrix(b, n, c, 5));
                b.norm_backward(&mut kept, &x, &stats, &gain, false, &mut dx);
                b.norm_backward(&mut spent, &x, &stats, &gain, true, &mut dx_again);
                let (x_dot, gain_dot, bias_dot) = (matrix(b, n, c, 6), matrix(b, 1, c, 7), matrix(b, 1, c, 8));
                let jvp = |gain_dot, bias_dot| read(b, &b.norm_jvp(&x, &x_dot, &stats, &gain, gain_dot, bias_dot));
                vec![
                    read(b, &y),
                    read(b, &stats),
                    read(b, &kept),
                    read(b, &spent),
                    read(b, &dx),
                    read(b, &dx_again),
                    jvp(None, None),
                    jvp(Some(&gain_dot), None),
                    jvp(None, Some(&bias_dot)),
                    jvp(Some(&gain_dot), Some(&bias_dot)),
                ]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn activations() {
    // Arguments where tanh and exp fail on some drivers, and where a product with infinity would be NaN.
    let mut wild =
        vec![-1e30f32, -1e4, -100.0, -44.5, -30.0, -9.0, -6.1, -3.0, -2.9, -1.3, -1.2, -0.9, -0.8, -1e-6, 0.0];
    wild.extend(wild.clone().iter().map(|x| -x));
    for kind in Activation::ALL {
        parity!(
            1e-6,
            |b| {
                let x = b.upload(1, wild.len(), wild.clone()).unwrap();
                let mut slope = b.upload(1, wild.len(), vec![1.0; wild.len()]).unwrap();
                b.activation_backward(kind, &x, &mut slope);
                let y: Vec<f32> = read(b, &b.activation(kind, &x)).iter().map(|y| y.clamp(-50.0, 50.0)).collect();
                let slope = read(b, &slope);
                assert!(y.iter().chain(&slope).all(|x| x.is_finite()));
                vec![y, slope]
            },
            "{kind:?}, large arguments"
        );
        for (n, c) in [(1, 1), (5, 7), (300, 67), (0, 3)] {
            parity!(
                2e-6,
                |b| {
                    let x = b.upload(n, c, noise(n * c, 1).iter().map(|x| 2.0 * x).collect()).unwrap();
                    let mut dy = matrix(b, n, c, 2);
                    b.activation_backward(kind, &x, &mut dy);
                    vec![read(b, &b.activation(kind, &x)), read(b, &dy)]
                },
                "{kind:?}, {n} x {c}"
            );
        }
    }
}
