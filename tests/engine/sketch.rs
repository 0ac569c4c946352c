//! FERRET-k's sketches of gradients: against the public matrix U times every sample's gradient, element by element.

use crate::common;

use common::{Random, config, in_pool, weights};
use ferret::backend::Cpu;
use ferret::grad::{PerSample, Sketch, shapes};
use ferret::kernel::Real;
use ferret::model::{Batch, Config, Decoder, ParamId, Reduction};
use ferret::rng::{SketchKind, StepSketch};

const KINDS: [SketchKind; 3] = [SketchKind::Tensor, SketchKind::Count, SketchKind::Grid];

/// U times every sample's gradient of the wanted parameters, from the definition of U's entries.
fn brute_force(
    decoder: &Decoder<Cpu<f64>>,
    batch: &Batch,
    sketch: &StepSketch,
    wants: impl Fn(ParamId) -> bool,
) -> Vec<Vec<f64>> {
    let layout = &decoder.layout;
    let samples = batch.segments.len();
    let mut all = PerSample::new(&decoder.backend, layout, samples);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut all);
    (0..samples)
        .map(|i| {
            let mut v = vec![0.0; sketch.k()];
            for p in layout.ids().filter(|&p| wants(p)) {
                let columns = layout.spec(p).matrix().1;
                for (e, g) in all.sample(i).get(p).unwrap().as_slice().iter().enumerate() {
                    let (bucket, sign) = sketch.cell(p.0, e / columns, e % columns);
                    v[bucket] += sketch.scale(p.0).map_or(1.0, f64::from) * sign * g;
                }
            }
            v
        })
        .collect()
}

fn sketched<F: Real>(
    decoder: &Decoder<Cpu<F>>,
    batch: &Batch,
    sketch: &StepSketch,
    wants: impl Fn(ParamId) -> bool,
) -> Vec<Vec<f64>> {
    let mut sink = Sketch::new(&decoder.backend, &decoder.layout, sketch, batch.segments.len(), wants);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut sink);
    sink.finish(&decoder.backend).unwrap()
}

fn assert_close(got: &[Vec<f64>], want: &[Vec<f64>], tolerance: f64, label: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let size = want.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        for (b, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() <= tolerance * size, "{label}, sample {i}, bucket {b}: {g}, not {w}");
        }
    }
}

fn configs() -> Vec<Config> {
    vec![
        config(|c| c.positions = 40),
        config(|c| (c.tied, c.positions) = (false, 40)),
        // Wide enough that few buckets are had by transforms, many by forming the gradient.
        config(|c| (c.width, c.inner, c.vocab, c.positions) = (96, 200, 300, 40)),
    ]
}

#[test]
fn sketches_equal_the_public_matrix_times_every_samples_gradient() {
    for (round, config) in configs().into_iter().enumerate() {
        let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), round as u64)).unwrap();
        let batch = common::batch(&config, &[5, 1, 0, 40, 17], round as u64);
        for kind in KINDS {
            for k in [1, 7, 16, 60, 512] {
                let sketch = StepSketch::new(3, 10 + round as u32, kind, k, &shapes(&decoder.layout));
                let label = format!("{kind:?}, {k} buckets, model {round}");
                let want = brute_force(&decoder, &batch, &sketch, |_| true);
                assert_close(&sketched(&decoder, &batch, &sketch, |_| true), &want, 1e-10, &label);
                // In f32 to f32's precision, of factors that no one scaled.
                let narrow = Decoder::new(Cpu::<f32>::new(), weights(config.clone(), round as u64)).unwrap();
                assert_close(&sketched(&narrow, &batch, &sketch, |_| true), &want, 2e-4, &format!("f32, {label}"));
                assert!(want.iter().any(|v| v.iter().any(|&v| v.abs() > 1e-3)));
            }
        }
    }
}

/// With a scale for each tensor: `U diag(s)` times the gradient, tied or not, by transforms, formed gradients and small products; and the sums of the single tensors, each times its own.
#[test]
fn scales_multiply_what_their_tensor_delivers() {
    for (round, config) in configs().into_iter().enumerate() {
        let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), round as u64)).unwrap();
        let batch = common::batch(&config, &[5, 1, 0, 40, 17], round as u64);
        let scales: Vec<f32> = (0..decoder.layout.len()).map(|i| 0.3 + (i as f32 * 1.7).sin().abs() * 4.0).collect();
        for kind in KINDS {
            for k in [7, 60, 512] {
                let plain = StepSketch::new(3, 10, kind, k, &shapes(&decoder.layout));
                let sketch = plain.clone().with_scales(Some(scales.clone()));
                let label = format!("{kind:?}, {k} buckets, model {round}");
                let got = sketched(&decoder, &batch, &sketch, |_| true);
                assert_close(&got, &brute_force(&decoder, &batch, &sketch, |_| true), 1e-10, &label);
                let mut sum = vec![vec![0.0; k]; batch.segments.len()];
                for p in decoder.layout.ids() {
                    let own = brute_force(&decoder, &batch, &plain, |q| q == p);
                    for (sum, own) in sum.iter_mut().flatten().zip(own.iter().flatten()) {
                        *sum += f64::from(scales[p.0]) * own;
                    }
                }
                assert_close(&got, &sum, 1e-10, &label);
                let narrow = Decoder::new(Cpu::<f32>::new(), weights(config.clone(), round as u64)).unwrap();
                assert_close(&sketched(&narrow, &batch, &sketch, |_| true), &sum, 2e-4, &format!("f32, {label}"));
            }
        }
    }
}

/// Every kind of parameter on its own, and a tied embedding from its two deliveries.
#[test]
fn every_parameter_alone_is_sketched_too() {
    for tied in [true, false] {
        let config = config(|c| c.tied = tied);
        let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), 5)).unwrap();
        let batch = common::batch(&config, &[5, 1, 12], 2);
        for kind in KINDS {
            let sketch = StepSketch::new(8, 1, kind, 24, &shapes(&decoder.layout));
            for p in decoder.layout.ids() {
                let want = brute_force(&decoder, &batch, &sketch, |q| q == p);
                let got = sketched(&decoder, &batch, &sketch, |q| q == p);
                assert_close(&got, &want, 1e-10, &format!("{kind:?}, {}", decoder.layout.spec(p).name));
            }
        }
    }
}

/// Transforms and formed gradients are two ways to one number: samples of all lengths, k on both sides of the choice.
#[test]
fn factors_of_very_different_sizes_keep_their_digits_in_f32() {
    // Gradients of 1e-9 beside activations of 1e3.
    let config = config(|c| (c.width, c.inner, c.vocab, c.layers) = (96, 200, 300, 1));
    let mut base = weights(config.clone(), 9);
    let (gain, bias) = (base.layout.norm_f.weight, base.layout.norm_f.bias.unwrap());
    base.tensors[gain.0].iter_mut().for_each(|w| *w *= 1e3);
    base.tensors[bias.0].iter_mut().for_each(|w| *w *= 1e3);
    let head = base.layout.head.0;
    base.tensors[head].iter_mut().for_each(|w| *w *= 1e-6);
    let batch = common::batch(&config, &[12, 3], 4);
    let wide = Decoder::new(Cpu::<f64>::new(), base.clone()).unwrap();
    let narrow = Decoder::new(Cpu::<f32>::new(), base).unwrap();
    let sketch = StepSketch::new(1, 1, SketchKind::Tensor, 16, &shapes(&wide.layout));
    for p in wide.layout.ids() {
        let want = brute_force(&wide, &batch, &sketch, |q| q == p);
        let size = want.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
        for (got, want) in sketched(&narrow, &batch, &sketch, |q| q == p).iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() <= 2e-3 * size, "{}: {got:e}, not {want:e}", wide.layout.spec(p).name);
        }
    }
}

#[test]
fn any_thread_count_gives_the_same_bits() {
    let config = config(|c| (c.width, c.inner, c.vocab, c.positions) = (96, 200, 300, 60));
    for kind in KINDS {
        let run = |threads| {
            in_pool(threads, || {
                let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone(), 7)).unwrap();
                let sketch = StepSketch::new(2, 5, kind, 64, &shapes(&decoder.layout));
                sketched(&decoder, &common::batch(&config, &[33, 1, 60, 18], 3), &sketch, |_| true)
            })
        };
        let one = run(1);
        assert!(one == run(2) && one == run(5), "{kind:?}");
    }
}

/// What a record adds to the sums may not depend on who is beside it: a mate that is long, short, empty or makes no finite numbers. Otherwise a bound on its
/// own sketch bounds nothing.
#[test]
fn a_records_sketch_is_its_own_whoever_is_beside_it() {
    let config = config(|c| (c.width, c.inner, c.vocab, c.positions) = (96, 200, 300, 120));
    // With so many buckets short records are transformed, and the gradients of long ones formed.
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config.clone(), 7)).unwrap();
    let scales: Vec<f32> = (0..decoder.layout.len()).map(|i| 0.5 + i as f32 / 8.0).collect();
    for (kind, scales) in KINDS.into_iter().flat_map(|kind| [(kind, None), (kind, Some(scales.clone()))]) {
        let sketch = StepSketch::new(2, 5, kind, 512, &shapes(&decoder.layout)).with_scales(scales);
        let of = |lengths: &[usize]| {
            let all = common::batch(&config, &[7, 5, 1, 3], 3);
            let tokens: Vec<(&[u32], &[u32])> =
                all.segments.iter().map(|r| (&all.ids[r.clone()], &all.targets[r])).collect();
            let others = common::batch(&config, lengths, 9);
            let mates = others.segments.iter().map(|r| (&others.ids[r.clone()], &others.targets[r]));
            let batch = Batch::new(tokens.into_iter().chain(mates));
            let mut found = sketched(&decoder, &batch, &sketch, |_| true);
            found.truncate(4);
            found
        };
        let alone = of(&[]);
        for mates in [&[120][..], &[1], &[0], &[120, 120, 3]] {
            assert!(alone == of(mates), "{kind:?} beside {mates:?}");
        }
    }
}

/// A step moves weights against the gradient: `<U^T sign(U g), g> = |U g|_1 > 0`, through the sink and the pullback together, with scales in both.
#[test]
fn a_pullback_of_signs_points_along_the_gradient() {
    let config = config(|_| ());
    let mut random = Random::new(3);
    let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), 1)).unwrap();
    let batch = common::batch(&config, &[1 + random.below(12)], 6);
    for kind in KINDS {
        let scales = (0..decoder.layout.len()).map(|i| 0.5 + i as f32 / 8.0).collect();
        let sketch = StepSketch::new(8, 2, kind, 32, &shapes(&decoder.layout)).with_scales(Some(scales));
        let v = sketched(&decoder, &batch, &sketch, |_| true).remove(0);
        let bits: Vec<f32> = v.iter().map(|v| v.signum() as f32).collect();
        let pullback = sketch.pullback(&bits, 1.0);
        let mut all = PerSample::new(&decoder.backend, &decoder.layout, 1);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut all);
        let mut along = 0.0;
        for p in decoder.layout.ids() {
            let g = all.sample(0).get(p).unwrap().as_slice();
            let mut u = vec![0.0; g.len()];
            pullback.fill(p.0, 0, &mut u);
            let s = f64::from(sketch.scale(p.0).unwrap());
            along += g.iter().zip(u).map(|(g, u)| g * s * f64::from(u)).sum::<f64>();
        }
        let want: f64 = v.iter().map(|v| v.abs()).sum();
        assert!((along / want - 1.0).abs() < 1e-9, "{kind:?}: {along}, not {want}");
    }
}
