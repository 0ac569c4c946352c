//! Compressed updates against ten lines of each: signSGD and its variants, QSGD, DP-signSGD.

use super::dense::{N, drawn, methods, norm, privacy, run, settings};
use crate::common::{Random, bits, config, records, weights};
use ferret::backend::Cpu;
use ferret::data::{Example, batches};
use ferret::grad::Sum;
use ferret::method::dense::compress::{self, Address, BUCKET};
use ferret::method::dense::{Method, Settings, Variant};
use ferret::model::{Decoder, Reduction, Weights};
use ferret::rng::{Domain, PublicStream, Secret};

/// The mean gradient in f32 over the same micro-batches, tensor by tensor; one a micro-batch if asked.
fn plain_gradients(
    w: &Weights,
    s: &Settings,
    records: &[Example],
    chosen: &[usize],
    apart: bool,
) -> Vec<Vec<Vec<f32>>> {
    let decoder = Decoder::new(Cpu::<f32>::new(), w.clone()).unwrap();
    let fresh = || Sum::new(&decoder.backend, &decoder.layout, |_| true);
    let mut sums = vec![fresh()];
    for chunk in chosen.chunks(s.micro_batch as usize) {
        let batch = batches::batch(chunk.iter().map(|&i| &records[i]));
        let row: Vec<f32> = batch.weights(Reduction::SampleSum).iter().map(|w| w / chosen.len() as f32).collect();
        decoder.backward(&batch, &row, sums.last_mut().unwrap());
        if apart {
            sums.push(fresh());
        }
    }
    if apart {
        sums.pop();
    }
    sums.iter().map(|sum| decoder.layout.ids().map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect()).collect()
}

/// The sign, or the element's public coin.
fn sign(x: f32, seed: u64, step: u32, tensor: usize, i: usize) -> f32 {
    let mut word = [0];
    PublicStream::new(seed, Domain::Coin, step, 1 + tensor as u32).words((i / 32) as u64, &mut word);
    match x {
        x if x > 0.0 => 1.0,
        x if x < 0.0 => -1.0,
        _ if word[0] >> (i % 32) & 1 == 1 => 1.0,
        _ => -1.0,
    }
}

#[test]
fn compressed_updates_are_those_of_ten_lines() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    let secret = Secret::insecure(4);
    for method in methods().into_iter().filter(|m| m.privacy().is_none()) {
        let s = settings(method.clone(), |s| (s.steps, s.learning_rate) = (Some(3), 0.25));
        let mut w = base.clone();
        let mut memory: Vec<Vec<f32>> = base.tensors.iter().map(|t| vec![0.0; t.len()]).collect();
        let mut ties = 0;
        for step in 0..3 {
            let votes = method == Method::Signsgd { variant: Variant::MajorityVote };
            let gradients = plain_gradients(&w, &s, &records, &drawn(&s, &secret, step), votes);
            for t in 0..w.tensors.len() {
                let g = &gradients[0][t];
                ties += g.iter().filter(|g| **g == 0.0).count();
                let sign = |x: f32, i: usize| sign(x, s.seed, step, t, i);
                let update: Vec<f32> = match &method {
                    Method::Nonprivate => g.clone(),
                    Method::Signsgd { variant: Variant::Plain } => (0..g.len()).map(|i| sign(g[i], i)).collect(),
                    Method::Signsgd { variant: Variant::MajorityVote } => (0..g.len())
                        .map(|i| sign(gradients.iter().map(|worker| sign(worker[t][i], i)).sum(), i))
                        .collect(),
                    Method::Signsgd { variant: Variant::ErrorFeedback } => {
                        let p: Vec<f32> = g.iter().zip(&memory[t]).map(|(g, e)| e + g).collect();
                        let size = (p.iter().map(|p| f64::from(p.abs())).sum::<f64>() / p.len() as f64) as f32;
                        let update: Vec<f32> = (0..p.len()).map(|i| size * sign(p[i], i)).collect();
                        memory[t] = p.iter().zip(&update).map(|(p, u)| p - u).collect();
                        update
                    }
                    Method::Qsgd { bits } => {
                        let levels = f64::from((1 << (bits - 1)) - 1);
                        let mut words = vec![0; g.len()];
                        PublicStream::new(s.seed, Domain::Rounding, step, t as u32).words(0, &mut words);
                        (0..g.len())
                            .map(|i| {
                                let bucket = &g[i / BUCKET * BUCKET..g.len().min((i / BUCKET + 1) * BUCKET)];
                                let norm = norm(&bucket.iter().map(|&g| f64::from(g)).collect::<Vec<_>>()) as f32;
                                if norm == 0.0 {
                                    return 0.0;
                                }
                                let level = f64::from(g[i].abs()) / f64::from(norm) * levels;
                                let up = f64::from(words[i]) / 2f64.powi(32) < level.fract();
                                let level = (level.floor() + f64::from(u8::from(up))).min(levels);
                                (f64::from(norm) * level / levels) as f32 * g[i].signum()
                            })
                            .collect()
                    }
                    _ => unreachable!(),
                };
                w.tensors[t].iter_mut().zip(update).for_each(|(w, u)| *w -= 0.25 * u);
            }
        }
        assert!(ties > 0, "positions that no record reaches have no gradient");
        assert_eq!(bits(&run(&base, &s, &secret, &records).tensors), bits(&w.tensors), "{method:?}");
    }
}

/// Signs of what DPSGD would have released: post-processing and nothing else.
#[test]
fn dp_signsgd_is_the_sign_of_dpsgd() {
    let base = Weights::zeros(config(|_| ()));
    let records = records(&base.config, N, 1, 1);
    let secret = Secret::insecure(4);
    let p = privacy(0.3, 1.0);
    let noised = run(&base, &settings(Method::Dpsgd(p.clone()), |_| ()), &secret, &records);
    let signs = run(&base, &settings(Method::DpSignsgd(p), |_| ()), &secret, &records);
    for (x, s) in noised.tensors.concat().iter().zip(signs.tensors.concat()) {
        assert!(*x == 0.0 || s == x.signum());
    }
}

#[test]
fn quantising_is_unbiased_and_takes_as_many_levels_as_its_bits() {
    let mut random = Random::new(3);
    let x: Vec<f32> = (0..700).map(|i| (random.signed() * if i % 50 == 0 { 3.0 } else { 0.1 }) as f32).collect();
    for bits in [2, 4, 8] {
        let levels = f64::from((1u32 << (bits - 1)) - 1);
        let rounds = 4000;
        let mut mean = vec![0.0; x.len()];
        let mut seen = std::collections::HashSet::new();
        for step in 0..rounds {
            let mut q = x.clone();
            compress::quantise(&mut q, bits, Address { seed: 1, step, tensor: 2 });
            q.iter().zip(&x).for_each(|(q, x)| assert!(*q == 0.0 || q.signum() == x.signum()));
            seen.extend(q[..BUCKET].iter().map(|q| q.to_bits()));
            mean.iter_mut().zip(&q).for_each(|(m, q)| *m += f64::from(*q) / f64::from(rounds));
        }
        assert!(seen.len() <= 1 << bits, "{} values with {bits} bits", seen.len());
        for (bucket, means) in x.chunks(BUCKET).zip(mean.chunks(BUCKET)) {
            let unit = norm(&bucket.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()) / levels;
            for (x, mean) in bucket.iter().zip(means) {
                // A rounded element is a coin between two levels: its variance is share (1 - share) of a level, squared.
                let share = (f64::from(x.abs()) / unit).fract();
                let deviation = unit * (share * (1.0 - share) / f64::from(rounds)).sqrt();
                assert!((mean - f64::from(*x)).abs() < 6.0 * deviation + 1e-6, "{bits} bits: {x} became {mean}");
            }
        }
    }
}
