//! FERRET-k by brute force: releases from whole gradients, updates from U's definition, clipping and exact sums.

use crate::common::{self, bits, config, in_pool, weights};
use ferret::backend::Cpu;
use ferret::data::{Example, batches};
use ferret::grad::PerSample;
use ferret::method::dense::ClipFunction;
use ferret::method::ferret_k::{Plan, Release, Releases, Settings, Trainer, Transcript, replay};
use ferret::method::{Run, Scales, Task};
use ferret::model::{Config, Decoder, Reduction, Weights};
use ferret::ops::sketch::clip;
use ferret::optim::{Route, Schedule, Silent};
use ferret::rng::{Secret, SecretDomain, SketchKind, StepSketch, coin};
use std::path::Path;

pub fn shape() -> Config {
    config(|_| ())
}

/// Random records, some of them too short to have a target.
pub fn records(count: usize, seed: u64) -> Vec<Example> {
    common::records(&shape(), count as u64, 1, seed)
}

pub fn settings(f: impl FnOnce(&mut Settings)) -> Settings {
    let mut s = Settings {
        bits_per_step: 37,
        release: Release::Sign,
        records: 40,
        batch: 8,
        epochs: 4,
        micro_batch: 3,
        seed: 5,
        ..Settings::usual(0.8)
    };
    f(&mut s);
    s
}

/// Scales of all kinds, one for each tuned tensor.
pub fn scale(s: &mut Settings) {
    let tuned = s.tune.ids(&weights(shape(), 1).layout).unwrap();
    s.scales = Some(Scales((0..tuned.len()).map(|i| (i * 7 % 23) as i8 - 11).collect()));
}

pub fn trainer<'a>(
    base: &Weights,
    settings: &Settings,
    releases: Option<Releases>,
    secret: &'a Secret,
    records: &'a [Example],
) -> Trainer<'a, Cpu<f32>> {
    Trainer::new(Cpu::new(), Task::new(base.clone(), settings.clone(), secret, records), releases).unwrap()
}

pub fn run(base: &Weights, s: &Settings, records: &[Example]) -> (Weights, Transcript) {
    let secret = Secret::insecure(9);
    let mut trainer = trainer(base, s, None, &secret, records);
    while trainer.step().unwrap().is_some() {}
    let (weights, transcript, _) = trainer.end().unwrap();
    (weights, transcript)
}

/// Every record's `U g`, from its whole gradient and the definition of U's entries.
pub fn sketched(base: &Weights, sketch: &StepSketch, records: &[&Example]) -> Vec<Vec<f64>> {
    let decoder = Decoder::new(Cpu::<f64>::new(), base.clone()).unwrap();
    let batch = batches::batch(records.iter().copied());
    let mut all = PerSample::new(&decoder.backend, &decoder.layout, records.len());
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut all);
    (0..records.len())
        .map(|i| {
            let mut v = vec![0.0; sketch.k()];
            for p in decoder.layout.ids() {
                let columns = decoder.layout.spec(p).matrix().1;
                for (e, g) in all.sample(i).get(p).unwrap().as_slice().iter().enumerate() {
                    let (bucket, sign) = sketch.cell(p.0, e / columns, e % columns);
                    v[bucket] += sketch.scale(p.0).map_or(1.0, f64::from) * sign * g;
                }
            }
            v
        })
        .collect()
}

pub fn clipped(s: &Settings, mut v: Vec<f64>) -> Vec<f64> {
    clip(s.clip_rule, s.clip, &mut v);
    v
}

/// The sizes of levels, as published (Max, 1960).
const LEVELS: [f64; 2] = [0.4528, 1.5104];

/// The code of `x` among sums whose size is `r`: the level that is nearest.
pub fn nearest(x: f64, r: f64) -> u8 {
    let [lower, upper] = LEVELS.map(|y| (x.abs() - y * r).abs());
    2 * u8::from(upper <= lower) + u8::from(x > 0.0)
}

pub fn size(sums: &[f64]) -> f64 {
    (sums.iter().map(|x| x * x).sum::<f64>() / sums.len() as f64).sqrt()
}

/// The weights that releases lead to, element by element, nothing lazy.
fn by_hand(base: &Weights, s: &Settings, releases: &Releases) -> Vec<Vec<f32>> {
    let (mut w, plan) = (base.tensors.clone(), Plan::new(&base.layout, s).unwrap());
    let tuned = s.tune.ids(&base.layout).unwrap();
    // s by the standard library, not by the table.
    let s_of = |i: usize| s.scales.as_ref().map_or(1.0, |s| 2f64.powf(f64::from(s.0[i]) / 4.0) as f32);
    let squares = tuned.iter().enumerate().map(|(i, &p)| f64::from(s_of(i)).powi(2) * base.layout.spec(p).len() as f64);
    let d = squares.sum::<f64>();
    let (fires, k) = (s.fires(s.steps()), s.bits_per_step as usize);
    let (z, agreed) = (s.noise_multiplier, s.batch as f64 / 4.0);
    let by_level = (1.0 / (d * (z * z + agreed * agreed / k as f64)).sqrt()) as f32;
    let by_size = ((k as f64 / d).sqrt() / s.batch as f64) as f32;
    let mut state: Vec<Vec<[f32; 2]>> = w.iter().map(|t| vec![[0.0; 2]; t.len()]).collect();
    let (mut fired, mut powers) = (0, (1.0f64, 1.0f64));
    for step in 0..s.steps() {
        let own = fires.contains(&step);
        if !own && (s.silent == Silent::None || s.route == Route::Direct) {
            continue;
        }
        let sketch = plan.sketch(step);
        let rate = s.schedule.rate(s.learning_rate, step, s.steps());
        powers = (powers.0 * 0.9, powers.1 * 0.999);
        for (i, &p) in tuned.iter().enumerate() {
            let columns = base.layout.spec(p).matrix().1;
            for (e, w) in w[p.0].iter_mut().enumerate() {
                let (bucket, sign) = sketch.cell(p.0, e / columns, e % columns);
                let (number, scale) = match releases {
                    _ if !own => (0.0, 0.0),
                    Releases::Signs(x) => (f32::from(x[fired * k + bucket]), (1.0 / d.sqrt()) as f32),
                    Releases::Levels(l) => {
                        let code = l.codes[fired * k + bucket];
                        let worth = LEVELS[usize::from(code / 2)] * (f64::from(l.sizes[fired]) / 1024.0);
                        (if code % 2 == 1 { worth as f32 } else { -worth as f32 }, by_level)
                    }
                    Releases::Scalars(x) => ((f64::from(x[fired * k + bucket]) / 1024.0) as f32, by_size),
                };
                let (u, scale) = (sign as f32 * number, scale * s_of(i));
                let [m, v] = &mut state[p.0][e];
                match s.route {
                    Route::Direct if s.momentum == 0.0 => *w -= (rate * f64::from(scale)) as f32 * u,
                    Route::Direct => {
                        *m = *m * s.momentum as f32 + scale * u;
                        *w -= rate as f32 * *m;
                    }
                    Route::Adamw => {
                        let g = scale * u;
                        *m = 0.9f32 * *m + (1.0f64 - 0.9) as f32 * g;
                        *v = 0.999f32 * *v + (1.0f64 - 0.999) as f32 * g * g;
                        let denominator = v.sqrt() * (1.0 / (1.0 - powers.1).sqrt()) as f32 + 1e-8;
                        *w = *w * (1.0 - rate * s.weight_decay) as f32
                            - (rate / (1.0 - powers.0)) as f32 * (*m / denominator);
                    }
                }
            }
        }
        fired += usize::from(own);
    }
    w
}

#[test]
fn training_replay_and_the_definition_agree_to_the_bit() {
    let (base, records) = (weights(shape(), 1), records(40, 2));
    type Edit = fn(&mut Settings);
    let edits: [(&str, Edit); 17] = [
        ("momentum", |_| ()),
        ("tuned", |s| s.tune = "last:1,bias".parse().unwrap()),
        ("direct", |s| s.momentum = 0.0),
        ("adamw", |s| (s.route, s.momentum, s.weight_decay, s.learning_rate) = (Route::Adamw, 0.0, 0.1, 1e-2)),
        ("silent zero", |s| {
            (s.route, s.momentum, s.p, s.learning_rate) = (Route::Adamw, 0.0, 0.5, 1e-2);
        }),
        ("silent none", |s| {
            (s.route, s.momentum, s.p, s.silent) = (Route::Adamw, 0.0, 1.0, Silent::None);
        }),
        ("idle", |s| (s.p, s.schedule) = (0.4, Schedule::Linear { warmup: 0.2 })),
        ("scalar", |s| s.release = Release::Scalar),
        ("level", |s| s.release = Release::Level),
        ("level, idle", |s| (s.release, s.p, s.momentum) = (Release::Level, 0.4, 0.0)),
        ("level, adamw", |s| {
            (s.route, s.momentum, s.learning_rate, s.release) = (Route::Adamw, 0.0, 1e-2, Release::Level);
        }),
        ("count", |s| s.sketch = SketchKind::Count),
        ("grid", |s| (s.sketch, s.bits_per_step) = (SketchKind::Grid, 36)),
        ("scales", scale),
        ("scales, tuned, level", |s| {
            (s.tune, s.release) = ("last:1,bias".parse().unwrap(), Release::Level);
            scale(s);
        }),
        ("scales, direct, grid", |s| {
            (s.sketch, s.bits_per_step, s.momentum, s.release) = (SketchKind::Grid, 36, 0.0, Release::Scalar);
            scale(s);
        }),
        ("scales, adamw, count", |s| {
            (s.route, s.momentum, s.learning_rate, s.sketch) = (Route::Adamw, 0.0, 1e-2, SketchKind::Count);
            scale(s);
        }),
    ];
    for (name, edit) in edits {
        let s = settings(edit);
        let (trained, transcript) = run(&base, &s, &records);
        let tuned = s.tune.ids(&base.layout).unwrap();
        for p in base.layout.ids() {
            let moved = trained.tensors[p.0] != base.tensors[p.0];
            assert_eq!(moved, tuned.contains(&p), "{name}: {}", base.layout.spec(p).name);
        }
        let text = transcript.to_json().unwrap();
        let read = Transcript::from_json(&text, Path::new("t")).unwrap();
        assert_eq!(read, transcript);
        assert_eq!(read.to_json().unwrap(), text);
        let replayed = in_pool(3, || replay(base.clone(), &read, |_| ()).unwrap());
        assert_eq!(bits(&replayed.tensors), bits(&trained.tensors), "{name}: replay");
        assert_eq!(bits(&by_hand(&base, &s, &read.releases)), bits(&trained.tensors), "{name}: by hand");
        // One bit turned leads elsewhere, and is refused.
        let mut turned = read.clone();
        match &mut turned.releases {
            Releases::Signs(signs) => signs[11] = -signs[11],
            Releases::Levels(levels) => levels.codes[11] ^= 2,
            Releases::Scalars(scalars) => scalars[11] += 1,
        }
        let error = replay(base.clone(), &turned, |_| ()).unwrap_err().to_string();
        assert!(error.contains("not to the"), "{name}: {error}");
        // One scale a quarter larger does too, and scales where there were none.
        let mut other = read.clone();
        match &mut other.settings.scales {
            Some(scales) => scales.0[1] += 1,
            none => *none = Some(Scales(tuned.iter().map(|p| i8::from(p.0 == tuned[0].0)).collect())),
        }
        let error = replay(base.clone(), &other, |_| ()).unwrap_err().to_string();
        assert!(error.contains("not to the"), "{name}: {error}");
        assert_eq!(text.contains("\"version\": 3"), s.scales.is_some(), "{name}");
        assert_eq!(text.contains("scales"), s.scales.is_some(), "{name}");
    }
}

/// The first step's release from its definition: whole gradients, U's entries, clipping, the secret stream's noise; for micro-batches of any size.
#[test]
fn a_release_is_its_definition() {
    let (base, records, secret) = (weights(shape(), 1), records(40, 2), Secret::insecure(9));
    for release in [Release::Sign, Release::Level, Release::Scalar] {
        for clip_rule in [ClipFunction::Automatic, ClipFunction::Abadi] {
            for (clip, scaled) in [(1.0, false), (0.3, false), (0.3, true)] {
                let s = settings(|s| {
                    (s.release, s.clip_rule, s.clip) = (release, clip_rule, clip);
                    if scaled {
                        scale(s);
                    }
                });
                let sketch = Plan::new(&base.layout, &s).unwrap().sketch(0);
                let samples = s.common().samples(&secret).unwrap();
                let drawn = samples.known(0, 0).unwrap();
                assert!(drawn.len() > 3);
                let mut sum = vec![0.0; sketch.k()];
                for v in sketched(&base, &sketch, &drawn.iter().map(|&i| &records[i]).collect::<Vec<_>>()) {
                    sum.iter_mut().zip(clipped(&s, v)).for_each(|(sum, v)| *sum += v);
                }
                let mut noise = secret.stream(SecretDomain::Noise, 0, 0);
                let noised: Vec<f64> = sum.iter().map(|x| x / clip + s.noise_multiplier * noise.gaussian()).collect();
                for micro_batch in [1, 3, 40] {
                    let s = Settings { micro_batch, ..s.clone() };
                    let mut trainer = trainer(&base, &s, None, &secret, &records);
                    trainer.step().unwrap().unwrap();
                    match trainer.releases() {
                        Releases::Signs(signs) => {
                            let wrong = noised.iter().zip(signs).filter(|(x, s)| x.signum() != f64::from(**s));
                            // Gradients in f32 may turn a sum that is nearly 0.
                            assert!(wrong.into_iter().all(|(x, _)| x.abs() < 1e-3), "{noised:?} {signs:?}");
                            assert!(signs.contains(&1) && signs.contains(&-1));
                        }
                        Releases::Levels(levels) => {
                            let r = size(&noised);
                            assert!((r - f64::from(levels.sizes[0]) / 1024.0).abs() < 0.6 / 1024.0, "{r} {levels:?}");
                            let wrong = noised.iter().zip(&levels.codes).filter(|(x, code)| {
                                // Gradients in f32 may carry a sum across a threshold, and r is rounded.
                                let near = [-2e-3, 0.0, 2e-3].map(|by| nearest(**x + by, r));
                                !near.contains(code)
                            });
                            assert_eq!(wrong.count(), 0, "{noised:?} {levels:?}");
                            assert!((0..4).all(|code| levels.codes.contains(&code)));
                        }
                        Releases::Scalars(scalars) => {
                            for (x, n) in noised.iter().zip(scalars) {
                                assert!((x - f64::from(*n) / 1024.0).abs() < 0.6 / 1024.0, "{x} {n}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Without noise, a sum of nothing is the public coin, a record moves the sums by C at most, and one that is not finite moves nothing.
#[test]
fn what_one_record_can_do_is_bounded() {
    let mut base = weights(shape(), 1);
    // Gradients far above the bound.
    base.tensors.iter_mut().flatten().for_each(|w| *w *= 3.0);
    let quiet = |f: &dyn Fn(&mut Settings)| {
        settings(|s| {
            (s.records, s.batch, s.bits_per_step, s.noise_multiplier) = (1, 1, 16, 0.0);
            s.release = Release::Scalar;
            f(s);
        })
    };
    let first = |base: &Weights, s: &Settings, records: &[Example]| {
        let secret = Secret::insecure(4);
        let mut trainer = trainer(base, s, None, &secret, records);
        trainer.step().unwrap().unwrap();
        trainer.releases().clone()
    };
    let length = |releases: &Releases| {
        let Releases::Scalars(x) = releases else { panic!("scalars") };
        x.iter().map(|&x| (f64::from(x) / 1024.0).powi(2)).sum::<f64>().sqrt()
    };
    let slack = 4.0 * 0.5 / 1024.0;
    for seed in 0..10 {
        let one = records(1, 30 + seed);
        if one[0].ids.len() < 2 {
            continue;
        }
        for rule in [ClipFunction::Automatic, ClipFunction::Abadi] {
            // In units of C: whatever C is, a record counts 1.
            for clip in [1.0, 0.2, 7.0] {
                let moved = length(&first(&base, &quiet(&|s| (s.clip_rule, s.clip) = (rule, clip)), &one));
                assert!(moved <= 1.0 + slack, "{rule:?}, {clip}: {moved}");
                // Whatever the scales.
                for e in [-60, 7, 60] {
                    let tensors = base.layout.len();
                    let scaled = quiet(&|s| {
                        (s.clip_rule, s.clip, s.scales) = (rule, clip, Some(Scales(vec![e; tensors])));
                    });
                    let moved = length(&first(&base, &scaled, &one));
                    assert!(moved <= 1.0 + slack, "{rule:?}, {clip}, {e}: {moved}");
                }
                assert!(rule == ClipFunction::Abadi || moved > 0.8, "{rule:?}, {clip}: {moved}");
            }
        }
        let open = length(&first(&base, &quiet(&|s| s.clip_rule = ClipFunction::None), &one));
        assert!(open > 1.5, "the test needs gradients above the bound: {open}");
    }
    // A record of one token has no target, and its gradient is 0: the coin decides, and nothing else.
    let nothing = [Example::all(vec![3])];
    let Releases::Signs(signs) = first(&base, &quiet(&|s| s.release = Release::Sign), &nothing) else {
        panic!("signs")
    };
    let coins: Vec<i8> = (0..16).map(|b| coin(5, 0, b)).collect();
    assert_eq!(signs, coins);
    let Releases::Levels(levels) = first(&base, &quiet(&|s| s.release = Release::Level), &nothing) else {
        panic!("levels")
    };
    assert_eq!(levels.sizes, [1]);
    assert!(levels.codes.iter().zip(&coins).all(|(code, coin)| *code == u8::from(*coin > 0)));
    assert!(coins.contains(&1) && coins.contains(&-1));
    // A token whose embedding overflows: the record's sketch is no number, and the others' count as if it were not there.
    let mut broken = weights(config(|c| c.tied = false), 1);
    let (tokens, width) = (broken.layout.tokens.0, shape().width);
    broken.tensors[tokens][7 * width..8 * width].fill(f32::INFINITY);
    let good = [Example::all(vec![1, 2, 3, 4]), Example::all(vec![5, 6, 5])];
    let bad = Example::all(vec![7, 1, 7, 2]);
    let all = [good[0].clone(), bad, good[1].clone()];
    let tensors = broken.layout.len();
    let mixed: Vec<i8> = (0..tensors).map(|i| [9, -12, 4][i % 3]).collect();
    for scales in [None, Some(Scales(mixed))] {
        let of = |n| quiet(&|s| (s.records, s.batch, s.scales) = (n, n, scales.clone()));
        let (with, without) = (first(&broken, &of(3), &all), first(&broken, &of(2), &good));
        assert_eq!(with, without);
        assert!(length(&with) > 0.5);
    }
}
