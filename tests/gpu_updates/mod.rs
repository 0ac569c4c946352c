//! Per-sample norms, clipping, directions, and what changes weights.

use super::*;
use ferret::ops::clip::ClipFunction;
use ferret::ops::compress::Address;
use ferret::ops::sample_norm::COLUMNS;
use ferret::ops::update::{Constants, Step};
use ferret::rng::{Direction, DirectionStream, SketchKind, StepSketch};

/// Squares and masses of samples; what bounds their rounding is each backend's own.
fn squares_and_masses<B: Backend>(b: &B, norms: &B::Tensor) -> [Vec<f32>; 2] {
    let norms = read(b, norms);
    [0, 1].map(|column| norms[column..].iter().copied().step_by(COLUMNS).collect())
}

#[test]
fn sample_norms() {
    let segments = Segments::from_lengths([5, 0, 1, 32, 33, 70]);
    let n = segments.rows();
    // 20 x 9 is materialised from 13 rows on; of 7 x 700 and 300 x 41 a sample's rows, or the matrix, do not fit the small limit.
    for (inputs, outputs) in [(20, 9), (64, 64), (1, 1), (7, 700), (300, 41), (3, 200)] {
        parity!(
            5e-6,
            |b| {
                let (x, dy) = (matrix(b, n, inputs, 1), matrix(b, n, outputs, 2));
                let mut squares = b.upload(8, COLUMNS, vec![3.0; 8 * COLUMNS]).unwrap();
                b.add_outer_squares(&x, &dy, &segments, &mut squares, 2);
                let [squares, masses] = squares_and_masses(b, &squares);
                vec![squares, masses, read(b, &b.segment_sums(&dy, &segments))]
            },
            "{inputs} x {outputs}"
        );
    }
    let empty = Segments::from_lengths([0, 0]);
    parity!(
        0.0,
        |b| {
            let mut squares = b.upload(2, COLUMNS, vec![3.0; 2 * COLUMNS]).unwrap();
            b.add_outer_squares(&b.zeros(0, 3), &b.zeros(0, 2), &empty, &mut squares, 0);
            b.add_row_squares(&[], &b.zeros(0, 3), &empty, &mut squares, 0);
            let [squares, masses] = squares_and_masses(b, &squares);
            vec![squares, masses, read(b, &b.segment_sums(&b.zeros(0, 3), &empty))]
        },
        "no rows"
    );
}

#[test]
fn sample_norms_of_embeddings() {
    let segments = Segments::from_lengths([5, 0, 1, 32, 33]);
    // The head has fewer rows, those with a target.
    let heads = Segments::from_lengths([3, 0, 0, 32, 9]);
    let n = segments.rows();
    for (v, c) in [(7, 33), (101, 64), (600, 12)] {
        let ids: Vec<u32> = (0..n + 4).map(|i| (i * i % v) as u32).collect();
        parity!(
            5e-6,
            |b| {
                let (x, h, demb) = (matrix(b, n + 3, v, 1), matrix(b, n + 3, c, 2), matrix(b, n + 4, c, 3));
                let mut rows = b.upload(6, COLUMNS, vec![3.0; 6 * COLUMNS]).unwrap();
                b.add_row_squares(&ids[..n], &demb, &segments, &mut rows, 1);
                let mut tied = b.upload(6, COLUMNS, vec![3.0; 6 * COLUMNS]).unwrap();
                b.add_tied_squares((&x, &h, 3, &heads), (&ids, &demb, 2, &segments), &mut tied, 1);
                [squares_and_masses(b, &rows), squares_and_masses(b, &tied)].concat()
            },
            "{v} x {c}"
        );
    }
}

#[test]
fn clipping() {
    let segments = Segments::from_lengths([5, 0, 1, 300]);
    for function in [ClipFunction::Abadi, ClipFunction::Automatic, ClipFunction::None] {
        parity!(
            1e-5,
            |b| {
                let mut factors = b.upload(7, 1, vec![9.0, 0.25, 0.0, -1e-9, f32::NAN, f32::INFINITY, 4.0]).unwrap();
                b.clip_factors(function, 1.5, &mut factors);
                let (mut scaled, mut dropped) = (matrix(b, 306, 65, 1), matrix(b, 306, 65, 2));
                b.scale_rows(&mut scaled, &segments, &factors, 3);
                b.drop_rows(&mut dropped, &segments, &factors, 3);
                vec![read(b, &factors), read(b, &scaled), read(b, &dropped)]
            },
            "{function:?}"
        );
    }
    // What is not finite is removed, not multiplied by 0; and the bound holds.
    for gpu in gpus() {
        let factors = gpu.upload(1, 1, vec![0.0]).unwrap();
        let mut x = gpu.upload(1, 3, vec![f32::NAN, f32::INFINITY, 1.0]).unwrap();
        gpu.scale_rows(&mut x, &Segments::from_lengths([1]), &factors, 0);
        assert_eq!(read(gpu, &x), [0.0; 3]);
        for seed in 0..20 {
            let g: Vec<f32> = noise(5000, seed).iter().map(|g| g * 10f32.powi(seed as i32 % 9 - 4)).collect();
            let norm = |g: &[f32]| g.iter().map(|&g| g as f64 * g as f64).sum::<f64>().sqrt();
            let mut x = gpu.upload(1, 5000, g.clone()).unwrap();
            let one = Segments::from_lengths([1]);
            let (mut norms, mut squares) = (gpu.zeros(1, COLUMNS), gpu.zeros(1, 1));
            gpu.add_row_squares(&[0], &x, &one, &mut norms, 0);
            gpu.add_norm_bounds(&norms, &mut squares);
            let bound = norm(&g) * 0.999;
            gpu.clip_factors(ClipFunction::Abadi, bound, &mut squares);
            gpu.scale_rows(&mut x, &one, &squares, 0);
            let clipped = norm(&read(gpu, &x));
            assert!(clipped <= bound && clipped > 0.998 * bound, "{clipped:e}, bound {bound:e}");
        }
    }
}

const K: Constants = Constants { keep_m: 0.9, take_m: 0.1, keep_v: 0.999, take_v: 0.001, eps: 1e-8 };

/// The constants of AdamW's steps `from..to`.
fn steps(from: i32, to: i32) -> Vec<Step> {
    (from..to)
        .map(|t| Step {
            decay: 1.0 - 1e-5 * t as f32,
            rate: (1e-2 / (1.0 - 0.9f64.powi(t))) as f32,
            correction: (1.0 / (1.0 - 0.999f64.powi(t)).sqrt()) as f32,
        })
        .collect()
}

#[test]
fn updates() {
    for (n, c) in [(1, 1), (1, 7), (33, 5), (70, 256), (3, 1000), (300, 65)] {
        parity!(
            2e-6,
            |b| {
                let (mut w, g) = (matrix(b, n, c, 1), matrix(b, n, c, 2));
                let mut lone = matrix(b, n, c, 3);
                let (mut m, mut v) = (b.zeros(n, c), b.zeros(n, c));
                b.adamw(&mut w, (&mut m, &mut v), &g, 0, -0.5, &steps(1, 2)[0], &K);
                // 150 idle steps are more than one dispatch takes.
                b.adamw_idle(&mut w, (&mut m, &mut v), &steps(2, 152), &K);
                let later = b.rows(&g, n / 3..n);
                b.adamw(&mut w, (&mut m, &mut v), &later, n / 3, 2.0, &steps(152, 153)[0], &K);
                b.decay(&mut lone, &steps(1, 40));
                b.subtract(&mut lone, &later, n / 3, 0.25);
                vec![read(b, &w), read(b, &m), read(b, &v), read(b, &lone)]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn small_moments_are_flushed_as_on_the_cpu() {
    let g: Vec<f32> = (0..90).map(|i| 10f32.powi(-(i % 45))).collect();
    parity!(
        2e-6,
        |b| {
            let (mut w, g) = (b.upload(1, 90, vec![1.0; 90]).unwrap(), b.upload(1, 90, g.clone()).unwrap());
            let (mut m, mut v) = (b.zeros(1, 90), b.zeros(1, 90));
            b.adamw(&mut w, (&mut m, &mut v), &g, 0, 1.0, &steps(1, 2)[0], &K);
            b.adamw_idle(&mut w, (&mut m, &mut v), &steps(2, 300), &K);
            let zeros = |x: Vec<f32>| x.iter().map(|&x| f32::from(u8::from(x == 0.0))).collect::<Vec<_>>();
            vec![read(b, &w), zeros(read(b, &m)), zeros(read(b, &v))]
        },
        "gradients from 1 to 1e-44"
    );
}

/// A run that resumes catches up in other portions than one that goes on.
#[test]
fn catching_up_in_portions_gives_the_same_bits() {
    for gpu in gpus() {
        let run = |portions: &[i32]| {
            let (mut w, g) = (matrix(gpu, 31, 33, 1), matrix(gpu, 31, 33, 2));
            let (mut m, mut v) = (gpu.zeros(31, 33), gpu.zeros(31, 33));
            gpu.adamw(&mut w, (&mut m, &mut v), &g, 0, 1.0, &steps(1, 2)[0], &K);
            for pair in portions.windows(2) {
                gpu.adamw_idle(&mut w, (&mut m, &mut v), &steps(pair[0], pair[1]), &K);
            }
            [&w, &m, &v].map(|x| read(gpu, x).iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        let whole = run(&[2, 202]);
        assert_eq!(whole, run(&[2, 3, 9, 66, 67, 202]));
        assert_eq!(whole, run(&(2..=202).collect::<Vec<_>>()));
    }
}

#[test]
fn signs_of_gradients() {
    for (n, c) in [(1, 1), (1, 700), (33, 5), (70, 256), (513, 3), (300, 65)] {
        // Ties in every block, and what is not a number.
        let mut x: Vec<f32> = noise(n * c, 1).iter().map(|x| if x.abs() < 0.2 { 0.0 } else { *x }).collect();
        x[n * c / 2] = f32::NAN;
        let at = Address { seed: 7, step: 3, tensor: 5 };
        parity!(
            0.0,
            |b| {
                let mut x = b.upload(n, c, x.clone()).unwrap();
                b.signs(&mut x, at);
                vec![read(b, &x)]
            },
            "{n} x {c}"
        );
        parity!(
            3e-6,
            |b| {
                let mut residue = matrix(b, n, c, 4);
                let mut sent = Vec::new();
                for step in 0..3 {
                    let mut x = matrix(b, n, c, 5 + step);
                    b.signs_with_residue(&mut x, &mut residue, Address { step: step as u32, ..at });
                    sent.push(read(b, &x));
                }
                sent.push(read(b, &residue));
                sent
            },
            "with memory, {n} x {c}"
        );
    }
}

#[test]
fn rounding_to_levels() {
    for (n, c) in [(1, 1), (1, 511), (1, 1500), (33, 5), (70, 256), (515, 12), (40, 64)] {
        for bits in [2, 4, 8] {
            let at = Address { seed: 7, step: 3, tensor: 5 };
            let mut data = noise(n * c, 1);
            data[0] = 0.0;
            let mut want = data.clone();
            ferret::ops::compress::quantise(&mut want, bits, at);
            for gpu in gpus() {
                let mut x = gpu.upload(n, c, data.clone()).unwrap();
                gpu.quantise(&mut x, bits, at);
                let got = read(gpu, &x);
                let mut off = 0;
                for (bucket, (got, want)) in got.chunks(512).zip(want.chunks(512)).enumerate() {
                    let x = &data[bucket * 512..][..got.len()];
                    let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32;
                    let level = norm / ((1 << (bits - 1)) - 1) as f32;
                    for (g, w) in got.iter().zip(want) {
                        // A word that lies between the two fractions rounds to the neighbouring level.
                        assert!((g - w).abs() <= 1.001 * level, "{g}, not {w}");
                        off += usize::from((g - w).abs() > 1e-5 * norm);
                    }
                }
                assert!(off * 1000 <= n * c, "{off} of {} elements are rounded otherwise", n * c);
            }
        }
    }
    // A bucket of zeros stays one.
    for gpu in gpus() {
        let mut x = gpu.zeros(3, 400);
        gpu.quantise(&mut x, 4, Address { seed: 1, step: 2, tensor: 3 });
        assert!(read(gpu, &x).iter().all(|&x| x == 0.0));
    }
}

#[test]
fn directions() {
    for (kind, tolerance) in [(Direction::Rademacher, 0.0), (Direction::Sphere, 2e-6)] {
        let stream = DirectionStream::new(42, 3, 5, kind, 300_001);
        for (offset, rows, cols) in
            [(0, 1, 1), (0, 3, 16), (17, 5, 7), (512, 64, 512), (1023, 30, 601), (300_000, 1, 1), (9, 0, 4)]
        {
            parity!(
                tolerance,
                |b| vec![read(b, &b.direction(&stream, offset, rows, cols))],
                "{kind:?}, {rows} x {cols} from {offset}"
            );
        }
    }
}

#[test]
fn rows_of_directions() {
    for (kind, tolerance) in [(Direction::Rademacher, 0.0), (Direction::Sphere, 2e-6)] {
        for (offset, v, cols) in [(0, 9, 16), (17, 40, 7), (1023, 30, 601), (5, 3, 1)] {
            let stream = DirectionStream::new(42, 3, 5, kind, offset + v * cols);
            let ids: Vec<u32> = [v - 1, 0, v / 2, v / 2, 1].map(|i| i as u32).to_vec();
            parity!(
                tolerance,
                |b| vec![
                    read(b, &b.direction_rows(&stream, offset, &ids, cols)),
                    read(b, &b.direction_rows(&stream, offset, &[], cols)),
                ],
                "{kind:?}, {v} x {cols} from {offset}"
            );
        }
    }
}

/// Every sample's sketch from each kind of delivery, and pullbacks, which have the CPU's bits.
#[test]
fn sketches_and_pullbacks() {
    let segments = Segments::from_lengths([5, 0, 1, 32, 33]);
    let n = segments.rows();
    for kind in [SketchKind::Tensor, SketchKind::Grid, SketchKind::Count] {
        // Buckets above and below the size of the matrix.
        for (k, inputs, outputs) in [(1, 20, 9), (7, 33, 12), (24, 64, 64), (60, 5, 700), (512, 30, 41)] {
            let sketch = StepSketch::new(5, 3, kind, k, &[(inputs, outputs), (1, outputs)]);
            let ids: Vec<u32> = (0..n).map(|i| (i * i % inputs) as u32).collect();
            parity!(
                1e-5,
                |b| {
                    let (x, dy) = (matrix(b, n, inputs, 1), matrix(b, n, outputs, 2));
                    let each = [0, 1, 2, 3].map(|what| {
                        let mut sums = b.sketch_sums(&sketch, 6);
                        if what != 1 && what != 2 {
                            b.sketch_outer(&sketch, 0, &x, &dy, &segments, 1, &mut sums);
                        }
                        if what != 0 && what != 2 {
                            b.sketch_rows(&sketch, 0, &ids, &dy, &segments, 1, &mut sums);
                        }
                        if what > 1 {
                            b.sketch_vector(&sketch, 1, &dy, &segments, 1, &mut sums);
                        }
                        b.sketches(&sketch, sums).unwrap().into_iter().flatten().map(|x| x as f32).collect()
                    });
                    each.to_vec()
                },
                "{kind:?}, {k} buckets, {inputs} x {outputs}"
            );
            let numbers: Vec<f32> = (0..k).map(|i| (i as f32 * 0.7).sin()).collect();
            let pullback = sketch.pullback(&numbers, 0.3);
            let first = inputs / 3;
            parity!(
                0.0,
                |b| vec![
                    read(b, &b.pulled(&pullback, 0, 0, inputs, outputs)),
                    read(b, &b.pulled(&pullback, 0, first, inputs - first, outputs)),
                    read(b, &b.pulled(&pullback, 1, 0, 1, outputs)),
                    read(b, &b.pulled(&pullback, 0, 2, 0, outputs)),
                ],
                "{kind:?}, {k} buckets, {inputs} x {outputs}, pulled back"
            );
            parity!(
                1e-6,
                |b| {
                    let mut w = matrix(b, inputs, outputs, 3);
                    b.subtract_pulled(&mut w, &pullback, 0, 0.9);
                    vec![read(b, &w)]
                },
                "{kind:?}, {k} buckets, {inputs} x {outputs}, subtracted"
            );
        }
    }
    // Words far into a stream, and no rows at all.
    let sketch = StepSketch::new(5, 3, SketchKind::Count, 1000, &[(4000, 70)]);
    let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let pullback = sketch.pullback(&numbers, 1.0);
    parity!(0.0, |b| vec![read(b, &b.pulled(&pullback, 0, 3901, 50, 70))], "words in the middle");
}
