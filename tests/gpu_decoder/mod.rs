//! The whole decoder on the GPU: against the CPU, against PyTorch, and against itself.

use crate::{compare, gpus};
use ferret::backend::{Backend, Cpu, Gpu, Memory};
use ferret::grad::{
    ClipFunction, Clipping, GroupDirection, GroupDot, Norms, Partition, PerSample, Sum, TensorTangents,
};
use ferret::model::{Activation, Batch, Decoder, Layout, Mlp, ParamId, Reduction, Weights, checkpoint};
use ferret::ops::sample_norm::COLUMNS;
use ferret::rng::{Direction, DirectionStream};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

use crate::common;

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2_tiny").join(file)
}

fn tiny() -> Weights {
    checkpoint::load(fixture("").to_str().unwrap()).unwrap().weights
}

fn f32s(file: &SafeTensors, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn i64s(file: &SafeTensors, name: &str) -> Vec<i64> {
    file.tensor(name).unwrap().data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The fixture's padded batch as ragged rows, and PyTorch's logits of those rows.
fn batch_and_logits() -> (Batch, Vec<f32>) {
    let bytes = std::fs::read(fixture("io.safetensors")).unwrap();
    let io = SafeTensors::deserialize(&bytes).unwrap();
    let (ids, mask, labels) = (i64s(&io, "input_ids"), i64s(&io, "attention_mask"), i64s(&io, "labels"));
    let all = f32s(&io, "logits");
    let vocab = all.len() / 48;
    let (mut samples, mut logits) = (Vec::new(), Vec::new());
    for b in 0..3 {
        let real = (0..16).filter(|t| mask[b * 16 + t] == 1).count();
        let target = |t: usize| match labels.get(b * 16 + t + 1) {
            Some(&label) if t + 1 < 16 && label >= 0 => label as u32,
            _ => u32::MAX,
        };
        let ids: Vec<u32> = (0..real).map(|t| ids[b * 16 + t] as u32).collect();
        samples.push((ids, (0..real).map(target).collect::<Vec<u32>>()));
        logits.extend_from_slice(&all[b * 16 * vocab..(b * 16 + real) * vocab]);
    }
    (Batch::new(samples.iter().map(|(i, t)| (i.as_slice(), t.as_slice()))), logits)
}

/// Losses and all gradients.
fn backward<B: Backend>(decoder: &Decoder<B>, batch: &Batch, weights: &[f32]) -> Vec<Vec<f32>> {
    let b = &decoder.backend;
    let mut sum = Sum::new(b, &decoder.layout, |_| true);
    let losses = decoder.backward(batch, weights, &mut sum);
    let mut results = vec![b.download(&losses).unwrap()];
    results.extend(sum.into_grads().iter().map(|g| b.download(g.as_ref().unwrap()).unwrap()));
    results
}

#[test]
fn the_tiny_checkpoint_agrees_with_pytorch() {
    let (batch, want) = batch_and_logits();
    for gpu in gpus() {
        let decoder = Decoder::new(gpu.clone(), tiny()).unwrap();
        let got = gpu.download(&decoder.logits(&batch, 0..batch.rows())).unwrap();
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 1e-4, "logit {i}: {g}, not {w}");
        }
        let results = backward(&decoder, &batch, &batch.weights(Reduction::TokenMean));
        assert_gradients(&decoder.layout, &results[1..], "grads.safetensors", "grad.");
    }
}

fn assert_gradients(layout: &Layout, grads: &[Vec<f32>], file: &str, prefix: &str) {
    let bytes = std::fs::read(fixture(file)).unwrap();
    let wanted = SafeTensors::deserialize(&bytes).unwrap();
    for p in layout.ids() {
        let name = format!("{prefix}transformer.{}", layout.spec(p).name);
        let want = f32s(&wanted, &name);
        let difference: f64 = grads[p.0].iter().zip(&want).map(|(g, w)| ((g - w) as f64).powi(2)).sum();
        let size: f64 = want.iter().map(|w| (*w as f64).powi(2)).sum();
        let error = (difference / size).sqrt();
        assert!(grads[p.0].len() == want.len() && error <= 1e-3, "{name}: relative error {error:e}");
    }
}

#[test]
fn every_sample_on_its_own_agrees_with_pytorch() {
    let (batch, _) = batch_and_logits();
    let Some(gpu) = gpus().first() else { return };
    let decoder = Decoder::new(gpu.clone(), tiny()).unwrap();
    let mut samples = PerSample::new(gpu, &decoder.layout, 3);
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut samples);
    for i in 0..3 {
        let grads: Vec<Vec<f32>> =
            decoder.layout.ids().map(|p| gpu.download(samples.sample(i).get(p).unwrap()).unwrap()).collect();
        assert_gradients(&decoder.layout, &grads, &format!("grads_sample{i}.safetensors"), "");
    }
}

#[test]
fn decoders_of_other_shapes_agree_with_the_cpu() {
    for (i, lengths) in [vec![3, 1, 7], vec![0, 12, 5, 0], vec![1]].iter().enumerate() {
        let config = common::config(|c| {
            c.tied = i != 1;
            c.scale_by_layer = i == 1;
            c.mlp = Mlp::Plain([Activation::GeluTanh, Activation::GeluErf][i % 2]);
        });
        let batch = common::batch(&config, lengths, 5);
        let w = batch.weights(Reduction::SampleMean);
        let cpu = Decoder::new(Cpu::<f64>::new(), common::weights(config.clone(), 3)).unwrap();
        let direction = common::weights(config.clone(), 4).tensors;
        let want = backward(&cpu, &batch, &w);
        let want_dot = vec![cpu.backend.download(&cpu.jvp(&batch, &dense(&cpu, &direction))).unwrap()];
        for gpu in gpus() {
            let decoder = Decoder::new(gpu.clone(), common::weights(config.clone(), 3)).unwrap();
            compare(&format!("{lengths:?}"), &backward(&decoder, &batch, &w), &want, 1e-4);
            let dot = vec![gpu.download(&decoder.jvp(&batch, &dense(&decoder, &direction))).unwrap()];
            compare(&format!("jvp, {lengths:?}"), &dot, &want_dot, 1e-4);
        }
    }
}

fn dense<B: Backend>(decoder: &Decoder<B>, tensors: &[Vec<f32>]) -> TensorTangents<B> {
    let up = |(spec, data): (&ferret::model::layout::ParamSpec, &Vec<f32>)| {
        let (rows, cols) = spec.matrix();
        Some(decoder.backend.upload(rows, cols, data.clone()).unwrap())
    };
    TensorTangents(decoder.layout.specs().iter().zip(tensors).map(up).collect())
}

#[test]
fn twice_the_same_run_gives_the_same_bits_and_allocates_once() {
    if gpus().is_empty() {
        return;
    }
    let gpu = Gpu::new(None).unwrap();
    let (batch, _) = batch_and_logits();
    let decoder = Decoder::new(gpu.clone(), tiny()).unwrap();
    let w = batch.weights(Reduction::TokenMean);
    let step = || {
        let before = gpu.submissions();
        let mut sum = Sum::new(&gpu, &decoder.layout, |_| true);
        let losses = decoder.backward(&batch, &w, &mut sum);
        gpu.finish().unwrap();
        assert!(gpu.submissions() - before <= 2, "one step is few submissions");
        let mut results = vec![gpu.download(&losses).unwrap()];
        results.extend(sum.into_grads().iter().map(|g| gpu.download(g.as_ref().unwrap()).unwrap()));
        results
    };
    let first = step();
    let allocated = gpu.allocated();
    for _ in 0..3 {
        assert_eq!(first, step());
    }
    assert_eq!(gpu.allocated(), allocated, "a step allocates nothing after the first");
}

#[test]
fn clipped_sums_agree_with_pytorch() {
    let (batch, _) = batch_and_logits();
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("expected.json")).unwrap()).unwrap();
    let bound = expected["abadi_C"].as_f64().unwrap();
    for gpu in gpus() {
        let decoder = Decoder::new(gpu.clone(), tiny()).unwrap();
        for (function, bound, prefix) in
            [(ClipFunction::Abadi, bound, "clip_sum_abadi."), (ClipFunction::Automatic, 1.0, "clip_sum_automatic.")]
        {
            let mut norms = Norms::new(gpu, &decoder.layout, 3, |_| true);
            decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut norms);
            let squares: Vec<Vec<f32>> =
                decoder.layout.ids().map(|p| gpu.download(norms.squares(p).unwrap()).unwrap()).collect();
            for i in 0..3 {
                let norm = squares.iter().map(|s| s[i * COLUMNS] as f64).sum::<f64>().sqrt();
                let want = expected["per_sample_grad_norm"][i].as_f64().unwrap();
                assert!((norm / want - 1.0).abs() < 1e-5, "sample {i}: norm {norm}, not {want}");
            }
            let factors = Clipping::new(function, Partition::Flat, bound).unwrap().factors(gpu, &norms).unwrap();
            let mut sum = Sum::new(gpu, &decoder.layout, |_| true);
            norms.clipped_sum(gpu, &factors, &mut sum);
            let grads: Vec<Vec<f32>> =
                sum.into_grads().iter().map(|g| gpu.download(g.as_ref().unwrap()).unwrap()).collect();
            assert_gradients(&decoder.layout, &grads, "grads.safetensors", prefix);
        }
    }
}

/// `<gradient of the sample sum, u>` for each group, by backward and by forward mode.
fn dots<B: Backend>(decoder: &Decoder<B>, batch: &Batch, groups: &[GroupDirection]) -> Vec<[f64; 2]> {
    let b = &decoder.backend;
    let w = batch.weights(Reduction::SampleSum);
    let mut sink = GroupDot::new(b, groups, &batch.segments);
    decoder.backward(batch, &w, &mut sink);
    // Rows of the backward already carry their weights; those of the jvp do not.
    let sum = |rows: &B::Tensor| b.download(rows).unwrap().iter().map(|&x| x as f64).sum::<f64>();
    let weighted =
        |rows: &B::Tensor| b.download(rows).unwrap().iter().zip(&w).map(|(&x, &w)| x as f64 * w as f64).sum::<f64>();
    let rows = sink.into_rows();
    rows.iter().zip(groups).map(|(rows, group)| [sum(rows), weighted(&decoder.jvp(batch, group))]).collect()
}

#[test]
fn released_bits_are_the_cpus() {
    let (batch, _) = batch_and_logits();
    let cpu = Decoder::new(Cpu::<f64>::new(), tiny()).unwrap();
    let params: Vec<ParamId> = cpu.layout.ids().collect();
    // Groups of one to several parameters, a few directions each, of both kinds.
    let groups: Vec<GroupDirection> = [Direction::Sphere, Direction::Rademacher]
        .into_iter()
        .flat_map(|kind| (0..3).map(move |step| (kind, step)))
        .flat_map(|(kind, step)| params.chunks(8).enumerate().map(move |(g, members)| (kind, step, g, members)))
        .map(|(kind, step, g, members)| {
            let dim = members.iter().map(|&p| cpu.layout.spec(p).len()).sum();
            GroupDirection::new(DirectionStream::new(7, step, g as u32, kind, dim), members, &cpu.layout)
        })
        .collect();
    let want = dots(&cpu, &batch, &groups);
    for gpu in gpus() {
        let decoder = Decoder::new(gpu.clone(), tiny()).unwrap();
        let got = dots(&decoder, &batch, &groups);
        // A gradient of norm about 3 along a unit vector: what single precision leaves open is far below this margin.
        let margin = 1e-5;
        let mut close = 0;
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() < margin, "{got}, not {want}");
            match want.abs() < margin {
                true => close += 1,
                false => assert_eq!(got > &0.0, want > &0.0, "the bit of {want}"),
            }
        }
        let bits = 2 * want.len();
        println!("{bits} bits, {close} of them within the rounding margin of {margin:e}");
        assert!(close * 10 <= bits, "{close} of {bits} bits are within the rounding margin");
    }
}

/// Adapters with a B that is not zero: losses, all gradients, and forward mode.
#[test]
fn adapters_agree_with_the_cpu() {
    use ferret::model::adapter::Adapter;
    let adapter = Adapter { rank: 3, alpha: 7.0, targets: vec!["c_attn".into(), "mlp.c_proj".into()] };
    let adapted = |seed: u64| {
        let mut weights = adapter.attach(tiny(), 3).unwrap();
        for (i, tensor) in
            weights.tensors.iter_mut().enumerate().filter(|(i, _)| weights.layout.specs()[*i].adapter.is_some())
        {
            *tensor = crate::noise(tensor.len(), seed + i as u64);
        }
        weights
    };
    let (batch, _) = batch_and_logits();
    let w = batch.weights(Reduction::SampleSum);
    let cpu = Decoder::new(Cpu::<f64>::new(), adapted(40)).unwrap();
    let want = backward(&cpu, &batch, &w);
    let direction = adapted(90).tensors;
    let want_dot = vec![cpu.backend.download(&cpu.jvp(&batch, &dense(&cpu, &direction))).unwrap()];
    for gpu in gpus() {
        let decoder = Decoder::new(gpu.clone(), adapted(40)).unwrap();
        compare("adapters", &backward(&decoder, &batch, &w), &want, 1e-4);
        let dot = vec![gpu.download(&decoder.jvp(&batch, &dense(&decoder, &direction))).unwrap()];
        compare("jvp of adapters", &dot, &want_dot, 1e-4);
    }
}
