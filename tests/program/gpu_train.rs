//! Training on the GPU, by every method: the released bits against the CPU's at the same replayed weights, whole updates against the
//! CPU's, runs repeated and resumed to the same bits, and the program with --device gpu.
//!
//! Without an adapter the tests say so and pass, unless FERRET_REQUIRE_GPU=1.

use crate::common::{Random, bits, gpu};
use crate::io_support::tiny as base_path;
use ferret::backend::{Backend, Cpu, Gpu};
use ferret::data::{Example, batches};
use ferret::grad::{GroupDirection, GroupDot};
use ferret::method::dense::{self, ClipFunction, ClipStyle, Method, Privacy, State, Variant};
use ferret::method::ferret::{self as fe, Cuts, Engine, Payload, Releases, Replayer, Transcript};
use ferret::method::{Run, Samples, Task};
use ferret::model::generate::{Sampling, generate};
use ferret::model::{Decoder, ParamId, Reduction, Weights, checkpoint};
use ferret::optim::{Route, Schedule, Silent};
use ferret::privacy::Sampler;
use ferret::rng::{Direction, DirectionStream, Secret};

const N: usize = 24;

pub(super) fn base() -> Weights {
    checkpoint::load(base_path().to_str().unwrap()).unwrap().weights
}

/// Records that a model can learn; some have a single token, so nothing to predict.
pub(super) fn records(seed: u64) -> Vec<Example> {
    let mut random = Random::new(seed);
    let tokens = |i: usize, random: &mut Random| {
        let (first, len) = (random.below(100), if i.is_multiple_of(7) { 1 } else { 2 + random.below(9) });
        (0..len).map(|i| ((first + 3 * i) % 101) as u32).collect()
    };
    (0..N).map(|i| Example::all(tokens(i, &mut random))).collect()
}

fn ferret_settings(base: &Weights, f: impl FnOnce(&mut fe::Settings)) -> fe::Settings {
    let ids: Vec<ParamId> = base.layout.ids().collect();
    let each = ids.chunks(1).map(<[_]>::to_vec).collect::<Vec<_>>();
    let mut s = fe::Settings {
        epsilon: 3.0,
        records: N as u64,
        batch: 6,
        epochs: 4,
        micro_batch: 4,
        learning_rate: 5e-3,
        weight_decay: 1e-2,
        seed: 5,
        ..fe::Settings::paper("ferret-test", Cuts::of(&each).unwrap())
    };
    f(&mut s);
    s
}

fn ferret_trainer<'a, B: Backend>(
    b: B,
    s: &fe::Settings,
    stop: Option<u32>,
    releases: Option<Releases>,
    secret: &'a Secret,
    records: &'a [Example],
) -> fe::Trainer<'a, B> {
    let task = Task { stop, ..Task::new(base(), s.clone(), secret, records) };
    fe::Trainer::new(b, task, releases).unwrap()
}

fn ferret_run<B: Backend>(b: B, s: &fe::Settings, secret: &Secret, records: &[Example]) -> (Weights, Transcript) {
    let mut trainer = ferret_trainer(b, s, None, None, secret, records);
    while trainer.step().unwrap().is_some() {}
    let (weights, transcript, _) = trainer.end().unwrap();
    (weights, transcript)
}

/// `<gradient, u>` of every fire of a run, in double precision at the weights that replaying the releases before it gives.
fn dots(s: &fe::Settings, transcript: &Transcript, secret: &Secret, records: &[Example]) -> Vec<f64> {
    let mut walk = Decoder::new(Cpu::<f32>::new(), base()).unwrap();
    let mut replayer = Replayer::new(&walk.layout, s).unwrap();
    let samples = Samples::new(secret, s.sampler, N, s.batch as usize).unwrap();
    let Releases::Bits(bits) = &transcript.releases else { panic!("bits") };
    let mut all = Vec::new();
    for fires in transcript.fires().chunk_by(|a, b| a.0 == b.0) {
        let step = fires[0].0;
        replayer.catch_up(&walk.backend, step, &mut walk.params);
        let decoder = Decoder::new(Cpu::<f64>::new(), walk.weights().unwrap()).unwrap();
        let sample = samples.known(step, 0).unwrap();
        let batch = batches::batch(sample.iter().map(|&i| &records[i]));
        let plan = replayer.plan();
        let streams: Vec<_> = fires.iter().map(|f| plan.direction(step, f.1)).collect();
        let direction =
            |f: &(u32, u32), u: &DirectionStream| GroupDirection::new(u.clone(), plan.members(f.1), &decoder.layout);
        let directions: Vec<_> = fires.iter().zip(&streams).map(|(f, u)| direction(f, u)).collect();
        let mut sink = GroupDot::new(&decoder.backend, &directions, &batch.segments);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sink);
        let released: Vec<_> =
            fires.iter().enumerate().map(|(j, f)| (f.1, fe::Message::Bit(bits[all.len() + j]))).collect();
        all.extend(sink.into_rows().iter().map(|rows| rows.as_slice().iter().sum::<f64>()));
        replayer.step(&walk.backend, step, &released, &streams, &mut walk.params).unwrap();
    }
    all
}

#[test]
fn every_released_bit_is_the_cpus_and_the_weights_are_replayed() {
    let Some(gpu) = gpu() else { return };
    let (records, secret) = (records(1), Secret::insecure(9));
    // What single precision may make of an inner product along the way; gradients have a norm of about 10.
    let margin = 1e-3;
    let (mut total, mut close) = (0, 0);
    type Change = fn(&mut fe::Settings);
    let runs: [(&str, Change); 5] = [
        ("adamw", |_| ()),
        ("adamw, silent none", |s| s.silent = Silent::None),
        ("direct", |s| (s.route, s.weight_decay) = (Route::Direct, 0.0)),
        ("jvp", |s| (s.engine, s.epsilon) = (Engine::Jvp, 2.0)),
        ("signs", |s| (s.direction, s.schedule) = (Direction::Rademacher, Schedule::Linear { warmup: 0.2 })),
    ];
    for (name, change) in runs {
        let s = ferret_settings(&base(), change);
        let (weights, transcript) = ferret_run(gpu.clone(), &s, &secret, &records);
        let replayed = fe::replay(base(), &transcript, |_| ()).unwrap();
        assert_eq!(bits(&weights.tensors), bits(&replayed.tensors), "{name}");
        assert_ne!(bits(&weights.tensors), bits(&base().tensors), "{name}");
        let Releases::Bits(released) = &transcript.releases else { panic!("bits") };
        let want = dots(&s, &transcript, &secret, &records);
        assert!(released.len() == want.len() && want.len() >= 3, "{name}: {} bits", want.len());
        for (i, (&bit, dot)) in released.iter().zip(&want).enumerate() {
            total += 1;
            match dot.abs() < margin {
                true => close += 1,
                false => assert_eq!(bit == 1, *dot > 0.0, "{name}, fire {i}: <gradient, u> = {dot}"),
            }
        }
        // Once more, and in two parts.
        let again = ferret_run(gpu.clone(), &s, &secret, &records);
        assert_eq!(transcript, again.1, "{name}, twice");
        let mut first = ferret_trainer(gpu.clone(), &s, None, None, &secret, &records);
        (0..3).for_each(|_| assert!(first.step().unwrap().is_some()));
        let mut rest = ferret_trainer(gpu.clone(), &s, None, Some(first.releases().clone()), &secret, &records);
        while rest.step().unwrap().is_some() {}
        assert_eq!(transcript, rest.end().unwrap().1, "{name}, resumed");
    }
    println!("{total} bits, {close} of them within the rounding margin of {margin:e}");
    assert!(close * 10 <= total, "{close} of {total} bits are within the rounding margin");
}

#[test]
fn true_gradients_move_the_weights_as_on_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (records, secret) = (records(1), Secret::insecure(9));
    let s = ferret_settings(&base(), |s| {
        (s.payload, s.route, s.weight_decay, s.learning_rate) = (Payload::TrueGradient, Route::Direct, 0.0, 1e-2);
    });
    let got = ferret_run(gpu, &s, &secret, &records).0;
    let want = ferret_run(Cpu::<f32>::new(), &s, &secret, &records).0;
    assert!(distance(&got, &want) < 1e-3 * distance(&want, &base()));
}

/// All groups fire on batches of one shape: nothing is allocated after the first steps, and a step is few submissions.
#[test]
fn a_step_allocates_nothing_and_is_few_submissions() {
    if gpu().is_none() {
        return;
    }
    let gpu = Gpu::new(None).unwrap();
    let records: Vec<Example> =
        (0..N).map(|i| Example::all((0..8).map(|t| ((i + t) % 101) as u32).collect())).collect();
    let secret = Secret::insecure(9);
    let s = ferret_settings(&base(), |s| (s.epsilon, s.sampler) = (1e6, Sampler::Uniform));
    let mut trainer = ferret_trainer(gpu.clone(), &s, None, None, &secret, &records);
    let steady = |gpu: &Gpu, mut step: Box<dyn FnMut() + '_>, most: u64| {
        (0..2).for_each(|_| step());
        let (allocated, submissions) = (gpu.allocated(), gpu.submissions());
        (0..3).for_each(|_| step());
        assert_eq!(gpu.allocated(), allocated, "a step allocates nothing after the first");
        let each = (gpu.submissions() - submissions) as f64 / 3.0;
        println!("{each:.1} submissions a step");
        assert!(each <= most as f64, "{each} submissions a step");
    };
    steady(&gpu, Box::new(|| assert!(trainer.step().unwrap().is_some())), 12);
    drop(trainer);
    for method in [Method::Nonprivate, Method::Dpsgd(privacy(1.0)), Method::Qsgd { bits: 4 }] {
        let gpu = Gpu::new(None).unwrap();
        let s = dense_settings(method, |s| s.sampler = Sampler::Uniform);
        let mut trainer = dense_trainer(gpu.clone(), &base(), &s, None, &secret, &records);
        steady(&gpu, Box::new(|| assert!(trainer.step().unwrap().is_some())), 12);
    }
}

fn privacy(noise_multiplier: f64) -> Privacy {
    let (clip_rule, clip_style) = (ClipFunction::Abadi, ClipStyle::Flat);
    Privacy { noise_multiplier, clip: 0.5, clip_rule, clip_style, clip_groups: None }
}

fn dense_settings(method: Method, f: impl FnOnce(&mut dense::Settings)) -> dense::Settings {
    let mut s = dense::Settings {
        records: N as u64,
        batch: 6,
        epochs: 2,
        micro_batch: 4,
        seed: 5,
        ..dense::Settings::usual(method)
    };
    f(&mut s);
    s
}

fn dense_trainer<'a, B: Backend>(
    b: B,
    weights: &Weights,
    s: &dense::Settings,
    state: Option<State>,
    secret: &'a Secret,
    records: &'a [Example],
) -> dense::Trainer<'a, B> {
    dense::Trainer::new(b, Task::new(weights.clone(), s.clone(), secret, records), state).unwrap()
}

/// The first `steps` steps.
fn dense_run<B: Backend>(b: B, s: &dense::Settings, steps: u32, secret: &Secret, records: &[Example]) -> Weights {
    let mut trainer = dense_trainer(b, &base(), s, None, secret, records);
    (0..steps).for_each(|_| assert!(trainer.step().unwrap().is_some()));
    trainer.end().unwrap().0
}

fn distance(a: &Weights, b: &Weights) -> f64 {
    let pairs = a.tensors.iter().flatten().zip(b.tensors.iter().flatten());
    pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

/// Every method's updates, against the CPU's with the same sample and noise. Along `direct` the weights tell the released update itself.
#[test]
fn whole_updates_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let (records, secret) = (records(1), Secret::insecure(9));
    let direct = |s: &mut dense::Settings| (s.route, s.weight_decay, s.learning_rate) = (Route::Direct, 0.0, 0.1);
    // What may differ: by rounding alone; or signs and levels of numbers that are nearly ties, each by a whole step.
    let exact = [
        ("clipped sum", Method::Dpsgd(privacy(0.0))),
        ("dpsgd", Method::Dpsgd(privacy(1.0))),
        ("clipped by layer", Method::Dpsgd(Privacy { clip_style: ClipStyle::PerLayer, ..privacy(0.0) })),
        ("nonprivate", Method::Nonprivate),
    ];
    for (name, method) in exact {
        let s = dense_settings(method, direct);
        let got = dense_run(gpu.clone(), &s, 2, &secret, &records);
        let want = dense_run(Cpu::<f32>::new(), &s, 2, &secret, &records);
        let (off, moved) = (distance(&got, &want), distance(&want, &base()));
        assert!(off < 1e-4 * moved && moved > 0.0, "{name}: {off:e} of {moved:e}");
    }
    let signs = |variant| Method::Signsgd { variant };
    let rough = [
        ("dpsgd", Method::Dpsgd(privacy(1.0))),
        ("nonprivate", Method::Nonprivate),
        ("dp-signsgd", Method::DpSignsgd(privacy(1.0))),
        ("signsgd", signs(Variant::Plain)),
        ("signsgd, error feedback", signs(Variant::ErrorFeedback)),
        ("signsgd, majority vote", signs(Variant::MajorityVote)),
        ("qsgd", Method::Qsgd { bits: 4 }),
    ];
    for (name, method) in rough {
        let s = dense_settings(method, |_| ());
        let got = dense_run(gpu.clone(), &s, 2, &secret, &records);
        let want = dense_run(Cpu::<f32>::new(), &s, 2, &secret, &records);
        let pairs: Vec<(f32, f32)> =
            got.tensors.iter().flatten().copied().zip(want.tensors.iter().flatten().copied()).collect();
        let off = pairs.iter().filter(|(g, w)| (g - w).abs() > 2e-2 * 1e-3).count();
        println!("{name}: {off} of {} weights differ", pairs.len());
        // Keys' biases have a gradient of exactly 0, so that what is left of it is rounding, and its sign is anything.
        assert!(off * 50 <= pairs.len(), "{name}: {off} of {} weights differ", pairs.len());
        assert!(distance(&want, &base()) > 0.0, "{name}");
    }
}

#[test]
fn whole_updates_repeat_and_resume_to_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let (records, secret) = (records(1), Secret::insecure(9));
    let methods = [
        Method::Nonprivate,
        Method::Dpsgd(privacy(1.0)),
        Method::DpSignsgd(privacy(1.0)),
        Method::Signsgd { variant: Variant::ErrorFeedback },
        Method::Signsgd { variant: Variant::MajorityVote },
        Method::Qsgd { bits: 4 },
    ];
    for method in methods {
        let s = dense_settings(method, |s| s.steps = Some(4));
        let once = dense_run(gpu.clone(), &s, 4, &secret, &records);
        assert_eq!(
            bits(&once.tensors),
            bits(&dense_run(gpu.clone(), &s, 4, &secret, &records).tensors),
            "{:?}, twice",
            s.method
        );
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let mut first = dense_trainer(gpu.clone(), &base(), &s, None, &secret, &records);
        (0..2).for_each(|_| assert!(first.step().unwrap().is_some()));
        first.save(&root).unwrap();
        drop(first);
        let mut weights = base();
        let state = State::load(&root, &Default::default(), &mut weights).unwrap();
        assert!(state.is_some());
        let mut rest = dense_trainer(gpu.clone(), &weights, &s, state, &secret, &records);
        while rest.step().unwrap().is_some() {}
        assert_eq!(bits(&once.tensors), bits(&rest.end().unwrap().0.tensors), "{:?}, resumed", s.method);
    }
}

/// The devices' path without a device: the CPU in double precision makes the same updates in f32, so its weights are the replayed ones
/// to the bit, idle steps included, in every group that fired last.
#[test]
fn the_devices_path_is_replays() {
    let (records, secret) = (records(1), Secret::insecure(9));
    for (route, silent) in [(Route::Adamw, Silent::Zero), (Route::Adamw, Silent::None), (Route::Direct, Silent::Zero)] {
        let weight_decay = if route == Route::Direct { 0.0 } else { 1e-2 };
        let s = ferret_settings(&base(), |s| (s.route, s.silent, s.weight_decay) = (route, silent, weight_decay));
        let fires = s.fires(s.steps());
        let last = fires.last().unwrap().0;
        assert!(last > fires[0].0 + 3, "some steps lie between");
        let mut trainer = ferret_trainer(Cpu::<f64>::new(), &s, Some(last + 1), None, &secret, &records);
        while trainer.step().unwrap().is_some() {}
        let on_device = trainer.decoder().weights().unwrap();
        let (weights, transcript, _) = trainer.end().unwrap();
        assert_eq!(bits(&weights.tensors), bits(&fe::replay(base(), &transcript, |_| ()).unwrap().tensors));
        for (_, group) in fires.iter().filter(|f| f.0 == last) {
            let of = |w: &Weights| w.tensors[*group as usize].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(of(&on_device), of(&weights), "{route:?}, {silent:?}, tensor {group}");
            assert_ne!(of(&weights), of(&base()), "{route:?}, {silent:?}, tensor {group}");
        }
    }
}

#[test]
fn decoding_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (cpu, gpu) = (Decoder::new(Cpu::<f64>::new(), base()).unwrap(), Decoder::new(gpu, base()).unwrap());
    let text: Vec<u32> = (0..12).map(|i| (7 * i + 3) % 101).collect();
    let (mut a, mut b) = (cpu.cache(12), gpu.cache(12));
    let mut from = 0;
    for to in [1, 2, 6, 7, 8, 11, 12] {
        let (want, got) = (cpu.extend(&mut a, &text[from..to]).unwrap(), gpu.extend(&mut b, &text[from..to]).unwrap());
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 1e-4, "after {to} tokens, logit {i}: {g}, not {w}");
        }
        from = to;
    }
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
    let mut texts = Vec::new();
    for cached in [true, false] {
        let mut text = Vec::new();
        let each = |id| {
            text.push(id);
            Ok(true)
        };
        generate(&gpu, &[3, 1, 4], 6, &greedy, 0, cached, each).unwrap();
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
}
