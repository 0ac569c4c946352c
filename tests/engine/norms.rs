//! Every sample's norm and the clipped sum: against brute force over per-sample gradients, against PyTorch, and the bound
//! that privacy rests on.

use crate::common::fixture::{self, relative};
use crate::common::{Random, config, in_pool, weights};
use ferret::backend::{Backend, Cpu};
use ferret::grad::{ClipFunction, Clipping, Norms, Partition, PerSample, Sum};
use ferret::kernel::Real;
use ferret::model::{Batch, Config, Decoder, Layout, ParamId, Reduction};
use ferret::ops::sample_norm::COLUMNS;

/// Samples of these lengths out of few distinct tokens, so that ids repeat within a sample; some targets ignored.
pub fn batch(config: &Config, lengths: &[usize], seed: u64) -> Batch {
    let mut random = Random::new(seed);
    let distinct = 1 + random.below(config.vocab);
    let samples: Vec<[Vec<u32>; 2]> = lengths
        .iter()
        .map(|&n| {
            let ids = (0..n).map(|_| random.below(distinct) as u32).collect();
            let target = |random: &mut Random| match random.below(4) {
                0 => u32::MAX,
                _ => random.below(config.vocab) as u32,
            };
            [ids, (0..n).map(|_| target(&mut random)).collect()]
        })
        .collect();
    Batch::new(samples.iter().map(|[i, t]| (i.as_slice(), t.as_slice())))
}

fn norms<B: Backend + Clone>(decoder: &Decoder<B>, batch: &Batch) -> Norms<B> {
    let mut norms = Norms::new(&decoder.backend, &decoder.layout, batch.segments.len(), |_| true);
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut norms);
    norms
}

/// Each sample's gradient, one vector a parameter.
pub type Gradients = Vec<Vec<Vec<f64>>>;

pub fn brute_force(decoder: &Decoder<Cpu<f64>>, batch: &Batch) -> Gradients {
    let mut per_sample = PerSample::new(&decoder.backend, &decoder.layout, batch.segments.len());
    decoder.backward(batch, &batch.weights(Reduction::SampleSum), &mut per_sample);
    gradients(&decoder.layout, &per_sample, batch.segments.len())
}

pub fn gradients(layout: &Layout, per_sample: &PerSample<Cpu<f64>>, samples: usize) -> Gradients {
    (0..samples)
        .map(|i| layout.ids().map(|p| per_sample.sample(i).get(p).unwrap().as_slice().to_vec()).collect())
        .collect()
}

pub fn square(g: &[f64]) -> f64 {
    g.iter().map(|g| g * g).sum()
}

pub fn assert_squares(layout: &Layout, norms: &Norms<Cpu<f64>>, want: &Gradients) {
    for p in layout.ids() {
        for (i, (got, want)) in norms.squares(p).unwrap().as_slice().iter().step_by(COLUMNS).zip(want).enumerate() {
            let want = square(&want[p.0]);
            assert!(
                (got - want).abs() <= 1e-9 * want.max(1e-6),
                "{}, sample {i}: {got}, not {want}",
                layout.spec(p).name
            );
        }
    }
}

/// The clipped sum written out: groups, factors, products.
fn clipped(grads: &Gradients, groups: &[Vec<ParamId>], factor: impl Fn(f64, f64) -> f64, bound: f64) -> Vec<Vec<f64>> {
    let params = groups.iter().flatten().count();
    let bound = bound / (groups.len() as f64).sqrt();
    let mut sum: Vec<Vec<f64>> = vec![Vec::new(); params];
    for (i, grads) in grads.iter().enumerate() {
        for group in groups {
            let norm = group.iter().map(|p| square(&grads[p.0])).sum::<f64>().sqrt();
            for p in group {
                if i == 0 {
                    sum[p.0] = vec![0.0; grads[p.0].len()];
                }
                let f = factor(norm, bound);
                sum[p.0].iter_mut().zip(&grads[p.0]).for_each(|(s, g)| *s += f * g);
            }
        }
    }
    sum
}

fn shapes() -> Vec<Config> {
    vec![
        config(|_| ()),
        config(|c| c.tied = false),
        config(|c| {
            c.layers = 1;
            c.vocab = 5;
            c.positions = 80;
        }),
        // Wider than long: Gram matrices; the others are mostly materialised.
        config(|c| {
            c.width = 48;
            c.inner = 100;
            c.vocab = 90;
            c.positions = 70;
        }),
    ]
}

fn lengths(config: &Config, random: &mut Random) -> Vec<usize> {
    let samples = 1 + random.below(6);
    let mut lengths: Vec<usize> = (0..samples).map(|_| random.below(config.positions + 1)).collect();
    // Always a sample of one token, and one of none.
    lengths.extend([1, 0]);
    let last = lengths.len() - 1;
    lengths.swap(0, last - random.below(2));
    lengths
}

#[test]
fn norms_and_clipped_sums_equal_brute_force_in_any_micro_batches() {
    let mut random = Random::new(5);
    for (round, config) in shapes().into_iter().cycle().take(12).enumerate() {
        let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), round as u64)).unwrap();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let batch = batch(&config, &lengths(&config, &mut random), round as u64);
        let samples = batch.segments.len();
        let want = brute_force(&decoder, &batch);
        assert_squares(layout, &norms(&decoder, &batch), &want);

        let ids: Vec<ParamId> = layout.ids().collect();
        let thirds: Vec<Vec<ParamId>> =
            (0..3).map(|g| ids.iter().copied().filter(|p| (p.0 * 7 + round) % 3 == g).collect()).collect();
        let styles = [
            (Partition::Flat, vec![ids.clone()]),
            (Partition::PerLayer, ids.iter().map(|&p| vec![p]).collect()),
            (Partition::Groups(thirds.clone()), thirds),
        ];
        let typical =
            want.iter().map(|g| g.iter().map(|g| square(g)).sum::<f64>().sqrt()).sum::<f64>() / samples as f64;
        for (style, groups) in styles {
            for function in [ClipFunction::Abadi, ClipFunction::Automatic, ClipFunction::None] {
                let factor = |n: f64, c: f64| match function {
                    ClipFunction::Abadi => f64::min(1.0, c / (n + 1e-6)),
                    ClipFunction::Automatic => c / (n + 0.01),
                    ClipFunction::None => 1.0,
                };
                let expected = clipped(&want, &groups, factor, typical);
                let clipping = Clipping::new(function, style.clone(), typical).unwrap();
                let mut sum = Sum::new(b, layout, |_| true);
                let mut start = 0;
                while start < samples {
                    let end = (start + 1 + random.below(samples)).min(samples);
                    let part = Batch::new((start..end).map(|i| {
                        let range = batch.segments.range(i);
                        (&batch.ids[range.clone()], &batch.targets[range])
                    }));
                    let norms = norms(&decoder, &part);
                    let factors = clipping.factors(b, &norms).unwrap();
                    norms.clipped_sum(b, &factors, &mut sum);
                    start = end;
                }
                for p in layout.ids() {
                    let (got, want) = (sum.get(p).unwrap().as_slice(), &expected[p.0]);
                    let error = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f64>().sqrt();
                    let size = square(want).sqrt().max(1e-3);
                    assert!(error <= 1e-9 * size, "{function:?}, {style:?}, {}: {error:e}", layout.spec(p).name);
                }
            }
        }
    }
}

#[test]
fn removing_any_record_moves_the_sum_by_at_most_the_bound() {
    let mut random = Random::new(9);
    for (round, config) in shapes().into_iter().take(3).enumerate() {
        let decoder = Decoder::new(Cpu::<f64>::new(), weights(config.clone(), 20 + round as u64)).unwrap();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let batch = batch(&config, &lengths(&config, &mut random), 30 + round as u64);
        let samples = batch.segments.len();
        for (function, style) in [
            (ClipFunction::Abadi, Partition::Flat),
            (ClipFunction::Automatic, Partition::Flat),
            (ClipFunction::Abadi, Partition::PerLayer),
            (
                ClipFunction::Automatic,
                Partition::Groups(vec![layout.ids().take(5).collect(), layout.ids().skip(5).collect()]),
            ),
        ] {
            for bound in [0.05, 1.0, 20.0] {
                let clipping = Clipping::new(function, style.clone(), bound).unwrap();
                assert_eq!(clipping.sensitivity(), Some(bound));
                let sum_without = |left_out: Option<usize>| {
                    let kept = (0..samples).filter(|&i| Some(i) != left_out);
                    let part = Batch::new(kept.map(|i| {
                        let range = batch.segments.range(i);
                        (&batch.ids[range.clone()], &batch.targets[range])
                    }));
                    let norms = norms(&decoder, &part);
                    let factors = clipping.factors(b, &norms).unwrap();
                    let mut sum = Sum::new(b, layout, |_| true);
                    norms.clipped_sum(b, &factors, &mut sum);
                    layout.ids().flat_map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect::<Vec<f64>>()
                };
                let whole = sum_without(None);
                let moved: Vec<f64> = (0..samples)
                    .map(|i| {
                        let rest = sum_without(Some(i));
                        whole.iter().zip(rest).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
                    })
                    .collect();
                assert!(
                    moved.iter().all(|&m| m <= bound * (1.0 + 1e-12)),
                    "{function:?}, {style:?}, {bound}: {moved:?}"
                );
                // The bound is reached, nearly, where gradients are longer than it.
                if bound == 0.05 && style == Partition::Flat {
                    assert!(moved.iter().any(|&m| m > 0.95 * bound), "{moved:?}");
                }
            }
        }
    }
}

#[test]
fn a_record_whose_gradient_overflows_contributes_nothing() {
    // The embedding of token 0 is not a number: only samples that hold it are spoilt.
    let config = config(|c| c.tied = false);
    let mut weights = weights(config.clone(), 3);
    weights.tensors[0][..config.width].fill(f32::NAN);
    let decoder = Decoder::new(Cpu::<f32>::new(), weights).unwrap();
    let (b, layout) = (&decoder.backend, &decoder.layout);
    let good: [&[u32]; 2] = [&[3, 4, 5], &[6, 1]];
    let sum_of = |samples: &[&[u32]]| {
        let batch = Batch::new(samples.iter().map(|&s| (s, s)));
        let norms = norms(&decoder, &batch);
        let factors = Clipping::new(ClipFunction::Abadi, Partition::Flat, 1.0).unwrap().factors(b, &norms).unwrap();
        let mut sum = Sum::new(b, layout, |_| true);
        norms.clipped_sum(b, &factors, &mut sum);
        layout.ids().flat_map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect::<Vec<f32>>()
    };
    let (with, without) = (sum_of(&[good[0], &[2, 0, 1], good[1]]), sum_of(&good));
    assert!(without.iter().any(|&g| g != 0.0));
    assert!(with.iter().zip(&without).all(|(a, b)| (a - b).abs() <= 1e-6), "the sum is finite and the same");
}

#[test]
fn groups_hold_every_trained_parameter_once() {
    let decoder = Decoder::new(Cpu::<f32>::new(), weights(config(|_| ()), 3)).unwrap();
    let norms = norms(&decoder, &batch(&decoder.config, &[3], 1));
    let ids: Vec<ParamId> = decoder.layout.ids().collect();
    for groups in [vec![], vec![ids[1..].to_vec()], vec![ids.clone(), vec![ids[4]]], vec![vec![ParamId(1000)]]] {
        let clipping = Clipping::new(ClipFunction::Abadi, Partition::Groups(groups), 1.0).unwrap();
        assert!(clipping.factors(&decoder.backend, &norms).is_err());
    }
    for bound in [0.0, -1.0, 1e-7, f64::NAN, f64::INFINITY] {
        assert!(Clipping::new(ClipFunction::Abadi, Partition::Flat, bound).is_err());
    }
    assert_eq!(Clipping::new(ClipFunction::None, Partition::Flat, 1.0).unwrap().sensitivity(), None);
}

/// In f64 too, where sums in another order show in the last place.
#[test]
fn any_thread_count_gives_the_same_bits() {
    fn run<F: Real>(threads: usize) -> (Vec<Vec<F>>, Vec<Vec<F>>) {
        let config = config(|c| {
            c.width = 96;
            c.inner = 384;
            c.vocab = 700;
            c.positions = 150;
        });
        in_pool(threads, || {
            let decoder = Decoder::new(Cpu::<F>::new(), weights(config.clone(), 7)).unwrap();
            let b = &decoder.backend;
            let norms = norms(&decoder, &batch(&config, &[70, 1, 33, 150], 3));
            let ids = || decoder.layout.ids();
            let squares = ids().map(|p| norms.squares(p).unwrap().as_slice().to_vec()).collect();
            let factors =
                Clipping::new(ClipFunction::Automatic, Partition::Flat, 1.0).unwrap().factors(b, &norms).unwrap();
            let mut sum = Sum::new(b, &decoder.layout, |_| true);
            norms.clipped_sum(b, &factors, &mut sum);
            (squares, ids().map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect())
        })
    }
    let (narrow, wide) = (run::<f32>(1), run::<f64>(1));
    for threads in [2, 3, 7] {
        assert!(narrow == run(threads), "f32, {threads} threads");
        assert!(wide == run(threads), "f64, {threads} threads");
    }
}

#[test]
fn norms_factors_and_clipped_sums_match_pytorch() {
    let (decoder, batch, expected) = (fixture::decoder(), fixture::batch(), fixture::expected());
    let (b, layout) = (&decoder.backend, &decoder.layout);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let first = norms(&decoder, &batch);
    for p in layout.ids() {
        let name = format!("transformer.{}", layout.spec(p).name);
        for (i, got) in first.squares(p).unwrap().as_slice().iter().step_by(COLUMNS).enumerate() {
            let want = number(&expected["per_param_per_sample_norm"][&name][i]);
            assert!(
                ((*got as f64).sqrt() / want - 1.0).abs() <= 1e-5,
                "{name}, sample {i}: {}, not {want}",
                got.sqrt()
            );
        }
    }
    for (function, bound, key, prefix) in [
        (ClipFunction::Abadi, number(&expected["abadi_C"]), "abadi_factor", "clip_sum_abadi."),
        (ClipFunction::Automatic, 1.0, "automatic_factor", "clip_sum_automatic."),
    ] {
        let norms = norms(&decoder, &batch);
        let factors = Clipping::new(function, Partition::Flat, bound).unwrap().factors(b, &norms).unwrap();
        for (i, got) in factors.get(ParamId(0)).unwrap().as_slice().iter().enumerate() {
            let want = number(&expected[key][i]);
            assert!((*got as f64 / want - 1.0).abs() <= 1e-5, "{key} {i}: {got}, not {want}");
        }
        let mut sum = Sum::new(b, layout, |_| true);
        norms.clipped_sum(b, &factors, &mut sum);
        for p in layout.ids() {
            let name = format!("{prefix}transformer.{}", layout.spec(p).name);
            let error = relative(sum.get(p).unwrap().as_slice(), &fixture::gradient("grads.safetensors", &name));
            assert!(error <= 1e-5, "{name}: {error:e}");
        }
    }
}
