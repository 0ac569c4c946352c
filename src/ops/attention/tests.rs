use super::*;
use crate::kernel::lanes::tests::noise;
use crate::ops::check::{Op, check};
use ndarray::Array2;

type Arrays = [Array2<f64>];

/// Heads that differ from one another in everything: plain, grouped, narrow window, sloped, all at once.
fn kinds(width: usize) -> Vec<Heads> {
    let plain = Heads::plain(6, width, 0.4);
    vec![
        plain,
        Heads { kv_heads: 2, ..plain },
        Heads { kv_heads: 1, window: Some(1), ..plain },
        Heads { window: Some(66), alibi: true, ..plain },
        Heads { kv_heads: 3, window: Some(5), alibi: true, ..plain },
        Heads { kv_heads: 1, alibi: true, ..plain },
    ]
}

fn views<F>(x: &[Array2<F>]) -> [ArrayView2<'_, F>; 3] {
    [x[0].view(), x[1].view(), x[2].view()]
}

fn inputs<F: Real>(n: usize, heads: &Heads, seed: u64) -> Vec<Array2<F>> {
    heads.columns().into_iter().zip(seed..).map(|(c, seed)| noise(n, c, seed)).collect()
}

fn run<F: Real>(qkv: &[Array2<F>], segments: &Segments, heads: &Heads) -> (Array2<F>, Array2<F>) {
    let n = segments.rows();
    let mut out = Array2::from_elem((n, heads.heads * heads.width), F::nan());
    let mut lse = Array2::zeros((n, heads.heads));
    forward(views(qkv), segments, heads, out.view_mut(), lse.view_mut());
    (out, lse)
}

#[test]
fn equals_the_definition() {
    let width = 5;
    let segments = Segments::from_lengths([1, 0, 70, 131]);
    for heads in kinds(width) {
        let qkv = inputs::<f64>(segments.rows(), &heads, 1);
        let (out, _) = run(&qkv, &segments, &heads);
        let slopes = heads.slopes();
        for (range, h) in segments.iter().flat_map(|r| (0..heads.heads).map(move |h| (r.clone(), h))) {
            let kv = h * heads.kv_heads / heads.heads;
            for i in range.clone() {
                let sees = |j: usize| j <= i && heads.window.is_none_or(|w| i - j < w);
                let seen: Vec<usize> = range.clone().filter(|&j| sees(j)).collect();
                let score = |j: usize| {
                    let dot: f64 = (0..width).map(|d| qkv[0][[i, h * width + d]] * qkv[1][[j, kv * width + d]]).sum();
                    (0.4 * dot - slopes[h] * (i - j) as f64).exp()
                };
                let total: f64 = seen.iter().map(|&j| score(j)).sum();
                for d in 0..width {
                    let want: f64 = seen.iter().map(|&j| score(j) / total * qkv[2][[j, kv * width + d]]).sum();
                    let got = out[[i, h * width + d]];
                    assert!((got - want).abs() < 1e-12, "{heads:?} row {i} head {h}: {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn gradients_and_tangents_agree() {
    for (lengths, width) in [(vec![1], 1), (vec![3, 0, 1, 6], 3), (vec![67, 2], 2), (vec![], 2)] {
        for heads in kinds(width) {
            let segments = Segments::from_lengths(lengths.clone());
            check(&Op {
                inputs: inputs(segments.rows(), &heads, 1),
                forward: &|x: &Arrays| run(x, &segments, &heads).0,
                backward: &|x, dy| gradients(x, dy.view(), &segments, &heads).into_iter().skip(1).collect(),
                jvp: &|x, x_dot| {
                    let (out, lse) = run(x, &segments, &heads);
                    let mut y = out * f64::NAN;
                    jvp(views(x), views(x_dot), lse.view(), &segments, &heads, y.view_mut());
                    y
                },
            });
        }
    }
}

#[test]
fn cached_rows_equal_the_whole_to_the_bit() {
    let wide = Heads { kv_heads: 1, window: Some(290), ..Heads::plain(2, 3, 0.4) };
    for (n, heads) in kinds(8).into_iter().map(|heads| (150, heads)).chain([(700, wide)]) {
        let qkv = inputs::<f32>(n, &heads, 5);
        let (out, _) = run(&qkv, &Segments::from_lengths([n]), &heads);
        for (past, new) in [(0, 1), (0, n), (63, 1), (100, 50), (n - 1, 1)] {
            let mut got = Array2::zeros((new, heads.heads * heads.width));
            let part = |x: usize, first| qkv[x].slice(s![first..past + new, ..]);
            forward_cached([part(0, past), part(1, 0), part(2, 0)], &heads, got.view_mut());
            assert_eq!(got, out.slice(s![past..past + new, ..]), "{heads:?}: {new} rows after {past}");
        }
    }
}

/// In f32 products leave out what is after the diagonal; in f64 they leave out nothing.
#[test]
fn single_precision_agrees_with_double() {
    let segments = Segments::from_lengths([1, 0, 64, 131, 300]);
    for heads in kinds(8) {
        let wide = inputs::<f64>(segments.rows(), &heads, 3);
        let narrow: Vec<_> = wide.iter().map(|x| x.mapv(|x| x as f32)).collect();
        let dout = noise::<f64>(segments.rows(), heads.heads * heads.width, 7);
        let want = gradients(&wide, dout.view(), &segments, &heads);
        let got = gradients(&narrow, dout.mapv(|x| x as f32).view(), &segments, &heads);
        for (name, (want, got)) in ["out", "dq", "dk", "dv"].iter().zip(want.iter().zip(&got)) {
            let worst =
                want.iter().zip(got).map(|(w, &g)| (w - f64::from(g)).abs() / (1.0 + w.abs())).fold(0.0, f64::max);
            assert!(worst < 1e-4, "{heads:?}: {name} is off by {worst}");
        }
    }
}

/// Output, dq, dk, dv.
fn gradients<F: Real>(x: &[Array2<F>], dout: ArrayView2<F>, segments: &Segments, heads: &Heads) -> [Array2<F>; 4] {
    let (out, lse) = run(x, segments, heads);
    let [mut dq, mut dk, mut dv] = [0, 1, 2].map(|i| Array2::from_elem(x[i].dim(), F::nan()));
    let into = [dq.view_mut(), dk.view_mut(), dv.view_mut()];
    backward(dout, out.view(), lse.view(), views(x), segments, heads, into);
    [out, dq, dk, dv]
}
