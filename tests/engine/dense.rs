//! Dense updates by brute force: what DPSGD releases, its noise and its bound, and resuming to the same bits.

use crate::common::{bits, config, in_pool, records, weights};
use ferret::backend::{Backend, Cpu};
use ferret::data::{Example, batches};
use ferret::grad::Sum;
use ferret::method::dense::{ClipFunction, ClipStyle, Method, Privacy, Settings, State, Trainer, Variant};
use ferret::method::{Run, Samples, Task};
use ferret::model::{Decoder, Reduction, Weights};
use ferret::optim::{Route, Schedule};
use ferret::privacy::Sampler;
use ferret::rng::Secret;

pub(super) const N: u64 = 40;

pub(super) fn privacy(noise_multiplier: f64, clip: f64) -> Privacy {
    Privacy {
        noise_multiplier,
        clip,
        clip_rule: ClipFunction::Automatic,
        clip_style: ClipStyle::Flat,
        clip_groups: None,
    }
}

/// One step of `w -= update`: what is released can be read off the weights.
pub(super) fn settings(method: Method, f: impl FnOnce(&mut Settings)) -> Settings {
    let mut s = Settings {
        records: N,
        batch: 8,
        steps: Some(1),
        micro_batch: 3,
        route: Route::Direct,
        learning_rate: 1.0,
        weight_decay: 0.0,
        seed: 5,
        ..Settings::usual(method)
    };
    f(&mut s);
    s
}

fn trainer<'a, B: Backend>(
    b: B,
    w: &Weights,
    s: &Settings,
    state: Option<State>,
    secret: &'a Secret,
    records: &'a [Example],
) -> Trainer<'a, B> {
    Trainer::new(b, Task::new(w.clone(), s.clone(), secret, records), state).unwrap()
}

pub(super) fn run(base: &Weights, s: &Settings, secret: &Secret, records: &[Example]) -> Weights {
    let mut trainer = trainer(Cpu::<f32>::new(), base, s, None, secret, records);
    while trainer.step().unwrap().is_some() {}
    trainer.end().unwrap().0
}

/// `before - after`, end to end.
fn moved(before: &Weights, after: &Weights) -> Vec<f64> {
    let flat = |w: &Weights| w.tensors.concat();
    flat(before).iter().zip(flat(after)).map(|(b, a)| f64::from(*b) - f64::from(a)).collect()
}

pub(super) fn drawn(s: &Settings, secret: &Secret, step: u32) -> Vec<usize> {
    let samples = Samples::new(secret, s.sampler, s.records as usize, s.batch as usize).unwrap();
    samples.known(step, 0).unwrap()
}

/// The sum of these records' gradients, each a mean over its tokens.
fn gradient_sum(w: &Weights, records: &[Example], chosen: &[usize]) -> Vec<f64> {
    let decoder = Decoder::new(Cpu::<f64>::new(), w.clone()).unwrap();
    let batch = batches::batch(chosen.iter().map(|&i| &records[i]));
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sum);
    decoder.layout.ids().flat_map(|p| sum.get(p).unwrap().as_slice().to_vec()).collect()
}

pub(super) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

#[test]
fn dpsgd_without_noise_and_with_a_huge_bound_is_the_sum_over_the_expected_batch_size() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    for (style, groups) in [(ClipStyle::Flat, None), (ClipStyle::PerLayer, None), (ClipStyle::PerGroup, Some(3))] {
        let p = Privacy { clip_rule: ClipFunction::Abadi, clip_style: style, clip_groups: groups, ..privacy(0.0, 1e5) };
        let s = settings(Method::Dpsgd(p), |_| ());
        let secret = Secret::insecure(3);
        let want: Vec<f64> = gradient_sum(&base, &records, &drawn(&s, &secret, 0)).iter().map(|g| g / 8.0).collect();
        let got = moved(&base, &run(&base, &s, &secret, &records));
        assert!(distance(&got, &want) < 1e-4 * norm(&want), "{}", distance(&got, &want) / norm(&want));
    }
}

#[test]
fn the_normaliser_is_the_expected_batch_size() {
    let base = weights(config(|_| ()), 7);
    let one = Example::all(vec![3, 1, 4, 1, 5]);
    let records = vec![one; N as usize];
    let g = gradient_sum(&base, &records, &[0]);
    let s = settings(Method::Dpsgd(Privacy { clip_rule: ClipFunction::Abadi, ..privacy(0.0, 1e5) }), |_| ());
    let mut sizes = std::collections::HashSet::new();
    for seed in 0..8 {
        let secret = Secret::insecure(seed);
        let n = drawn(&s, &secret, 0).len();
        sizes.insert(n);
        // n equal gradients over the expected 8, whatever n is: dividing by n would give g each time.
        let want: Vec<f64> = g.iter().map(|g| g * n as f64 / 8.0).collect();
        let got = moved(&base, &run(&base, &s, &secret, &records));
        assert!(distance(&got, &want) < 1e-4 * norm(&want), "batch of {n}");
    }
    assert!(sizes.len() > 2, "{sizes:?}: the test needs batches of different sizes");
}

#[test]
fn an_empty_batch_releases_noise() {
    let base = Weights::zeros(config(|_| ()));
    let records = records(&base.config, N, 1, 1);
    let s = settings(Method::Dpsgd(privacy(1.5, 2.0)), |s| s.batch = 1);
    let secret = (0..50).map(Secret::insecure).find(|k| drawn(&s, k, 0).is_empty()).unwrap();
    let tuned = run(&base, &s, &secret, &records);
    let mut noise: Vec<Vec<f32>> = base.tensors.clone();
    secret.add_noise(0, 3.0, &mut noise);
    assert_eq!(tuned.tensors.concat(), noise.concat().iter().map(|n| 0.0 - n).collect::<Vec<f32>>());
    assert!(tuned.tensors.concat().iter().filter(|x| **x != 0.0).count() > base.layout.scalars() / 2);
}

/// Records without a target have no gradient: what is released is the noise alone, sigma C over the expected batch size.
#[test]
fn the_noise_is_gaussian_and_independent_across_parameters_steps_and_resumption() {
    let base = Weights::zeros(config(|c| (c.width, c.inner, c.vocab) = (48, 96, 200)));
    let records = vec![Example::all(vec![3]); N as usize];
    let s = settings(Method::Dpsgd(privacy(0.5, 3.0)), |s| (s.steps, s.micro_batch) = (Some(3), 2));
    let secret = Secret::from_system().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A key serves one run: who resumes reads it from its file.
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("key.json");
    secret.save(&key).unwrap();
    let again = [(); 3].map(|()| Secret::load(&key).unwrap());
    let mut trained = trainer(Cpu::<f32>::new(), &base, &s, None, &secret, &records);
    let mut stands = vec![base.clone()];
    for step in 0..3 {
        trained.step().unwrap().unwrap();
        // Every step in a run of its own: noise must not begin anew.
        trained.save(dir.path()).unwrap();
        let mut w = base.clone();
        let state = State::load(dir.path(), &Default::default(), &mut w).unwrap();
        assert_eq!(state.as_ref().unwrap().step, step + 1);
        stands.push(w.clone());
        trained = trainer(Cpu::<f32>::new(), &w, &s, state, &again[step as usize], &records);
    }
    // In units of sigma C: 1.5 over a batch of 8.
    let noise: Vec<Vec<f64>> =
        stands.windows(2).map(|w| moved(&w[0], &w[1]).iter().map(|x| x * 8.0 / 1.5).collect()).collect();
    let n = noise[0].len() as f64;
    assert!(n > 40_000.0);
    for z in &noise {
        for (k, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let moment = z.iter().map(|x| x.powi(k)).sum::<f64>() / n;
            assert!((moment - expected).abs() < 6.0 * (variance / n).sqrt(), "moment {k}: {moment}");
        }
        // Two tensors of the same shape, and neighbours within one.
        let starts: Vec<usize> = base
            .layout
            .specs()
            .iter()
            .scan(0, |at, spec| {
                *at += spec.len();
                Some(*at - spec.len())
            })
            .collect();
        let find = |name: &str| base.layout.specs().iter().position(|s| s.name == name).unwrap();
        let (a, b) = (find("h.0.mlp.c_fc.weight"), find("h.1.mlp.c_fc.weight"));
        let len = base.layout.specs()[a].len();
        let across: f64 = (0..len).map(|i| z[starts[a] + i] * z[starts[b] + i]).sum::<f64>() / len as f64;
        assert!(across.abs() < 6.0 / (len as f64).sqrt(), "across tensors: {across}");
        let beside = z.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / n;
        assert!(beside.abs() < 6.0 / n.sqrt(), "beside each other: {beside}");
    }
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let dot = noise[a].iter().zip(&noise[b]).map(|(a, b)| a * b).sum::<f64>() / n;
        assert!(dot.abs() < 6.0 / n.sqrt(), "steps {a} and {b}: {dot}");
    }
}

pub(super) fn methods() -> Vec<Method> {
    vec![
        Method::Nonprivate,
        Method::Dpsgd(privacy(0.7, 1.0)),
        Method::DpSignsgd(Privacy { clip_style: ClipStyle::PerGroup, ..privacy(0.7, 1.0) }),
        Method::Signsgd { variant: Variant::Plain },
        Method::Signsgd { variant: Variant::ErrorFeedback },
        Method::Signsgd { variant: Variant::MajorityVote },
        Method::Qsgd { bits: 4 },
    ]
}

fn adamw(s: &mut Settings) {
    (s.steps, s.route, s.learning_rate, s.weight_decay) = (Some(5), Route::Adamw, 1e-2, 1e-3);
    s.schedule = Schedule::Linear { warmup: 0.3 };
}

#[test]
fn secret_keys_differ_from_run_to_run_and_insecure_seeds_do_not() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    let s = settings(Method::Dpsgd(privacy(0.5, 1.0)), adamw);
    let fresh = || bits(&run(&base, &s, &Secret::from_system().unwrap(), &records).tensors);
    assert_ne!(fresh(), fresh());
    let seeded = |seed| bits(&run(&base, &s, &Secret::insecure(seed), &records).tensors);
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
}

#[test]
fn resuming_after_every_step_ends_in_the_same_bits() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    for method in methods() {
        for route in [Route::Adamw, Route::Direct] {
            let s = settings(method.clone(), |s| {
                adamw(s);
                if route == Route::Direct {
                    (s.route, s.weight_decay) = (route, 0.0);
                }
            });
            let secret = Secret::insecure(9);
            let whole = run(&base, &s, &secret, &records);
            let dir = tempfile::tempdir().unwrap();
            let mut steps = 0;
            let resumed = loop {
                let mut w = base.clone();
                let state = State::load(dir.path(), &Default::default(), &mut w).unwrap();
                let mut part = trainer(Cpu::<f32>::new(), &w, &s, state, &secret, &records);
                if part.step().unwrap().is_none() {
                    break part.end().unwrap().0;
                }
                part.save(dir.path()).unwrap();
                steps += 1;
            };
            assert_eq!(steps, 5);
            assert_eq!(bits(&whole.tensors), bits(&resumed.tensors), "{method:?}, {route:?}");
            assert_ne!(bits(&whole.tensors), bits(&base.tensors));
        }
    }
}

#[test]
fn threads_change_no_bit_and_devices_only_the_rounding() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    let secret = Secret::insecure(9);
    for method in methods() {
        let s = settings(method.clone(), adamw);
        let one = in_pool(1, || run(&base, &s, &secret, &records));
        let many = in_pool(3, || run(&base, &s, &secret, &records));
        assert_eq!(bits(&one.tensors), bits(&many.tensors), "{method:?}");
        // f64 does not share its memory with the optimizer: the way of a device, by download and upload.
        let s = settings(method.clone(), |_| ());
        let here = moved(&base, &run(&base, &s, &secret, &records));
        let mut other = trainer(Cpu::<f64>::new(), &base, &s, None, &secret, &records);
        other.step().unwrap().unwrap();
        let there = other.decoder().weights().unwrap();
        assert_eq!(bits(&there.tensors), bits(&other.end().unwrap().0.tensors));
        let there = moved(&base, &there);
        let far = here.iter().zip(&there).filter(|(a, b)| (*a - *b).abs() > 1e-3).count();
        // Rounding moves whole updates a little and nothing far. Where signs or levels are decided by the last digit, a few elements jump.
        let may_jump = match method {
            Method::Nonprivate | Method::Dpsgd(_) => 0,
            Method::DpSignsgd(_) | Method::Qsgd { .. } => here.len() / 1000,
            Method::Signsgd { .. } => here.len() / 200,
        };
        assert!(far <= may_jump, "{method:?}: {far} of {}", here.len());
    }
}

#[test]
fn a_record_moves_a_step_by_at_most_the_bound() {
    let base = weights(config(|_| ()), 7);
    let all = records(&base.config, 6, 1, 1);
    for (rule, style) in [
        (ClipFunction::Automatic, ClipStyle::Flat),
        (ClipFunction::Abadi, ClipStyle::Flat),
        (ClipFunction::Automatic, ClipStyle::PerLayer),
        (ClipFunction::Abadi, ClipStyle::PerGroup),
    ] {
        let clip = 0.75;
        let p = Privacy { clip_rule: rule, clip_style: style, ..privacy(0.0, clip) };
        let s = settings(Method::Dpsgd(p), |s| {
            (s.records, s.batch, s.sampler) = (6, 6, Sampler::Uniform);
        });
        let secret = Secret::insecure(1);
        let sum = |records: &[Example]| -> Vec<f64> {
            moved(&base, &run(&base, &s, &secret, records)).iter().map(|x| 6.0 * x).collect()
        };
        let whole = sum(&all);
        let mut most = 0.0f64;
        for i in 0..all.len() {
            // A record without a target adds nothing: the same as one that is not there.
            let mut without = all.clone();
            without[i] = Example::all(vec![0]);
            most = most.max(distance(&whole, &sum(&without)));
        }
        assert!(most <= clip * (1.0 + 1e-4), "{rule:?}, {style:?}: {most}");
        assert!(style != ClipStyle::Flat || most > 0.9 * clip, "{rule:?}, {style:?}: {most} does not test the bound");
    }
}

#[test]
fn plain_training_learns() {
    let base = weights(config(|_| ()), 7);
    // Each token names the next one.
    let records: Vec<Example> =
        (0..N as u32).map(|i| Example::all((0..9).map(|t| (i + 5 * t) % 23).collect())).collect();
    for (method, rate) in [
        (Method::Nonprivate, 1e-2),
        (Method::Qsgd { bits: 8 }, 1e-2),
        (Method::Signsgd { variant: Variant::ErrorFeedback }, 1e-2),
        (Method::Dpsgd(privacy(0.1, 1.0)), 1e-2),
    ] {
        let s = settings(method.clone(), |s| {
            (s.steps, s.route, s.learning_rate) = (Some(80), Route::Adamw, rate);
        });
        let secret = Secret::insecure(2);
        let mut trainer = trainer(Cpu::<f32>::new(), &base, &s, None, &secret, &records);
        let loss = |decoder: &Decoder<Cpu<f32>>| {
            ferret::eval::token_mean(&ferret::eval::losses(decoder, &records, |_| ()).unwrap()).0
        };
        let first = loss(trainer.decoder());
        while trainer.step().unwrap().is_some() {}
        let last = loss(trainer.decoder());
        assert!(first > 3.0 && last < 0.6 * first, "{method:?}: {first} to {last}");
    }
}

#[test]
fn a_run_that_diverges_says_so() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, N, 1, 1);
    let s = settings(Method::Nonprivate, |s| (s.steps, s.learning_rate) = (Some(20), 1e30));
    let secret = Secret::insecure(2);
    let mut trainer = trainer(Cpu::<f32>::new(), &base, &s, None, &secret, &records);
    let error = loop {
        match trainer.step() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it should have diverged"),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("lower `learning_rate`"), "{error}");
}

#[test]
fn settings_that_contradict_are_refused() {
    type Edit = fn(&mut Settings);
    let edits: [(&str, Edit); 9] = [
        ("micro_batch", |s| s.micro_batch = 0),
        ("batch", |s| s.batch = 41),
        ("steps", |s| (s.steps, s.epochs) = (None, 0)),
        ("steps", |s| s.steps = Some(0)),
        ("bits", |s| s.method = Method::Qsgd { bits: 9 }),
        ("bits", |s| s.method = Method::Qsgd { bits: 1 }),
        ("noise_multiplier", |s| s.method = Method::Dpsgd(privacy(-1.0, 1.0))),
        ("clip", |s| s.method = Method::Dpsgd(privacy(1.0, 0.0))),
        ("weight_decay", |s| s.weight_decay = 0.1),
    ];
    for (name, edit) in edits {
        let mut s = settings(Method::Nonprivate, |_| ());
        s.check().unwrap();
        edit(&mut s);
        let error = s.check().unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    // Strict: a field that is not known is an error, not passed over.
    let s = settings(Method::Dpsgd(privacy(1.0, 1.0)), |_| ());
    let text = serde_json::to_string(&s).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), s);
    assert!(serde_json::from_str::<Settings>(&text.replace("\"seed\"", "\"sead\"")).is_err());
    // Earlier versions stored the sampling rate: it must be what the sizes make.
    let mut earlier = serde_json::to_value(&s).unwrap();
    earlier["sampling_rate"] = 0.2.into();
    assert_eq!(serde_json::from_value::<Settings>(earlier.clone()).unwrap(), s);
    earlier["sampling_rate"] = 0.3.into();
    assert!(serde_json::from_value::<Settings>(earlier).unwrap_err().to_string().contains("sampling_rate"));
}
