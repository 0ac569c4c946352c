//! The whole decoder against central differences, against itself by other routes, and at any thread count.

use crate::common::{Random, batch, config, in_pool, weights};
use ferret::backend::{Cpu, Memory};
use ferret::grad::{PerSample, Sum, TensorTangents};
use ferret::model::{Activation, Batch, Config, Decoder, Layout, Mlp, ParamId, Reduction};

fn decoder64(config: Config) -> Decoder<Cpu<f64>> {
    Decoder::new(Cpu::new(), weights(config, 7)).unwrap()
}

/// A random tangent for every parameter.
fn tangents(b: &Cpu<f64>, layout: &Layout, seed: u64, only: Option<ParamId>) -> TensorTangents<Cpu<f64>> {
    let mut random = Random::new(seed);
    TensorTangents(
        layout
            .ids()
            .map(|p| {
                let (rows, cols) = layout.spec(p).matrix();
                let mut t = b.zeros(rows, cols);
                t.as_slice_mut().iter_mut().for_each(|x| *x = random.signed());
                (only.is_none() || only == Some(p)).then_some(t)
            })
            .collect(),
    )
}

fn loss64(decoder: &Decoder<Cpu<f64>>, batch: &Batch, weights: &[f32]) -> f64 {
    decoder.losses(batch).as_slice().iter().zip(weights).map(|(l, &w)| l * w as f64).sum()
}

fn jvp64(decoder: &Decoder<Cpu<f64>>, batch: &Batch, weights: &[f32], along: &TensorTangents<Cpu<f64>>) -> f64 {
    decoder.jvp(batch, along).as_slice().iter().zip(weights).map(|(l, &w)| l * w as f64).sum()
}

fn configs() -> Vec<Config> {
    vec![
        config(|_| ()),
        config(|c| {
            c.tied = false;
            c.mlp = Mlp::Plain(Activation::GeluErf);
            c.scale_by_layer = true;
        }),
        config(|c| {
            c.layers = 1;
            c.heads = 1;
            c.scale_by_width = false;
        }),
    ]
}

#[test]
fn backward_and_jvp_agree_with_central_differences_and_each_other() {
    for config in configs() {
        let mut decoder = decoder64(config);
        let batch = batch(&decoder.config, &[5, 1, 12, 0, 3], 3);
        let w = batch.weights(Reduction::SampleMean);
        let layout = decoder.layout.clone();
        let mut sum = Sum::new(&decoder.backend, &layout, |_| true);
        let losses = decoder.backward(&batch, &w, &mut sum);
        assert_eq!(losses.as_slice(), decoder.losses(&batch).as_slice(), "both ways to the loss");
        for p in layout.ids() {
            let name = &layout.spec(p).name;
            let along = tangents(&decoder.backend, &layout, 11, Some(p));
            let v: Vec<f64> = along.0[p.0].as_ref().unwrap().as_slice().to_vec();
            let jvp = jvp64(&decoder, &batch, &w, &along);
            let g = sum.get(p).unwrap().as_slice();
            let dot: f64 = g.iter().zip(&v).map(|(g, v)| g * v).sum();
            let size = g.iter().map(|g| g * g).sum::<f64>().sqrt() * v.iter().map(|v| v * v).sum::<f64>().sqrt();
            assert!((jvp - dot).abs() <= 1e-10 * size, "{name}: jvp {jvp}, <g, v> {dot}");
            let original = decoder.params[p.0].values().to_vec();
            let mut at = |h: f64| {
                let shifted = original.iter().zip(&v).map(|(w, v)| w + h * v);
                decoder
                    .backend
                    .master(&mut decoder.params[p.0])
                    .as_slice_mut()
                    .iter_mut()
                    .zip(shifted)
                    .for_each(|(w, s)| *w = s);
                loss64(&decoder, &batch, &w)
            };
            let h = 5e-4;
            let numeric = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
            at(0.0);
            assert!((jvp - numeric).abs() <= 1e-7 * numeric.abs().max(size), "{name}: {jvp}, difference {numeric}");
        }
        let along = tangents(&decoder.backend, &layout, 12, None);
        let dot: f64 = layout
            .ids()
            .map(|p| {
                let (g, v) = (sum.get(p).unwrap().as_slice(), along.0[p.0].as_ref().unwrap().as_slice());
                g.iter().zip(v).map(|(g, v)| g * v).sum::<f64>()
            })
            .sum();
        assert!((jvp64(&decoder, &batch, &w, &along) - dot).abs() <= 1e-10 * dot.abs().max(1.0));
    }
}

#[test]
fn a_gradient_asked_for_alone_equals_the_full_one_to_the_bit() {
    for config in configs() {
        let decoder = Decoder::new(Cpu::<f32>::new(), weights(config, 7)).unwrap();
        let batch = batch(&decoder.config, &[5, 1, 12, 0, 3], 3);
        let w = batch.weights(Reduction::TokenMean);
        let mut full = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        decoder.backward(&batch, &w, &mut full);
        for p in decoder.layout.ids() {
            let mut alone = Sum::new(&decoder.backend, &decoder.layout, |q| p == q);
            decoder.backward(&batch, &w, &mut alone);
            let name = &decoder.layout.spec(p).name;
            assert_eq!(full.get(p).unwrap().as_slice(), alone.get(p).unwrap().as_slice(), "{name}");
            assert!(decoder.layout.ids().filter(|&q| q != p).all(|q| alone.get(q).is_none()));
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for config in configs() {
        let mut decoder = Decoder::new(Cpu::<f32>::new(), weights(config, 7)).unwrap();
        let batch = batch(&decoder.config, &[5, 1, 12, 0, 3], 3);
        let w = batch.weights(Reduction::TokenMean);
        let mut gradients = |recompute| {
            decoder.recompute = recompute;
            let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
            let losses = decoder.backward(&batch, &w, &mut sum).as_slice().to_vec();
            let all: Vec<Vec<f32>> = decoder.layout.ids().map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect();
            (losses, all)
        };
        assert_eq!(gradients(true), gradients(false));
    }
}

#[test]
fn ragged_equals_one_sample_at_a_time() {
    for config in configs() {
        let decoder = decoder64(config);
        let lengths = [5, 1, 12, 0, 3];
        let all = batch(&decoder.config, &lengths, 3);
        let w = all.weights(Reduction::SampleSum);
        let mut per_sample = PerSample::new(&decoder.backend, &decoder.layout, lengths.len());
        let losses = decoder.backward(&all, &w, &mut per_sample);
        let mut total = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        decoder.backward(&all, &w, &mut total);
        for i in 0..lengths.len() {
            let range = all.segments.range(i);
            let alone = Batch::new([(&all.ids[range.clone()], &all.targets[range.clone()])]);
            let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
            let own = decoder.backward(&alone, &alone.weights(Reduction::SampleSum), &mut sum);
            for (a, b) in own.as_slice().iter().zip(&losses.as_slice()[range]) {
                assert!((a - b).abs() < 1e-12);
            }
            for p in decoder.layout.ids() {
                let (a, b) = (sum.get(p).unwrap().as_slice(), per_sample.sample(i).get(p).unwrap().as_slice());
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{}", decoder.layout.spec(p).name);
            }
        }
        for p in decoder.layout.ids() {
            for (j, t) in total.get(p).unwrap().as_slice().iter().enumerate() {
                let sum: f64 = (0..lengths.len()).map(|i| per_sample.sample(i).get(p).unwrap().as_slice()[j]).sum();
                assert!((t - sum).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn any_thread_count_gives_the_same_bits() {
    let config = config(|c| {
        c.width = 96;
        c.inner = 384;
        c.vocab = 700;
        c.positions = 80;
    });
    let run = |threads| {
        in_pool(threads, || {
            let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone(), 7)).unwrap();
            let batch = batch(&config, &[70, 1, 33, 80], 3);
            let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
            let losses = decoder.backward(&batch, &batch.weights(Reduction::TokenMean), &mut sum);
            let grads: Vec<Vec<f32>> = decoder.layout.ids().map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect();
            (losses.as_slice().to_vec(), grads)
        })
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert!(one == run(threads), "{threads} threads");
    }
}
