//! A FERRET run is its transcript: replay against brute force, and the verbs `replay` and `verify`.

use crate::common::bits;
use ferret::backend::{Cpu, Memory};
use ferret::method::ferret::transcript::on_grid;
use ferret::method::ferret::{Cuts, MaskKind, Message, Release, Releases, Replayer, Settings, Transcript, replay};
use ferret::model::checkpoint;
use ferret::model::init::Preset;
use ferret::model::{Config, Decoder, ParamId, Weights};
use ferret::optim::{Route, Schedule, Silent};
use ferret::rng::{Direction, DirectionStream, coin};
use std::path::Path;

fn config() -> Config {
    Config {
        vocab: 97,
        positions: 24,
        width: 16,
        layers: 2,
        heads: 2,
        kv_heads: 2,
        head_width: 8,
        inner: 64,
        eos: None,
        ..Preset::Tiny.config()
    }
}

pub fn base() -> Weights {
    let mut weights = Weights::zeros(config());
    for (i, t) in weights.tensors.iter_mut().enumerate() {
        DirectionStream::new(77, 0, i as u32, Direction::Sphere, t.len()).fill(0, t);
    }
    weights
}

/// Two tensors a group, 1.5 fires a step expected over 80 steps.
pub fn settings() -> Settings {
    let ids: Vec<ParamId> = base().layout.ids().collect();
    let members: Vec<Vec<ParamId>> = ids.chunks(2).map(<[_]>::to_vec).collect();
    Settings {
        epsilon: 0.8,
        records: 1000,
        batch: 10,
        steps: Some(80),
        clip: 1.5,
        learning_rate: 2e-3,
        weight_decay: 1e-2,
        seed: 12_345,
        ..Settings::paper("ferret-half", Cuts::of(&members).unwrap())
    }
}

/// Bits that no data made: the coin of another seed.
fn releases(settings: &Settings, steps_run: u32) -> Releases {
    let fires = settings.fires(steps_run);
    let bits = fires.iter().map(|&(t, g)| coin(999, t, g));
    match settings.release {
        Release::Gaussian { dither } => {
            let noisy = |(i, b): (usize, i8)| on_grid(f64::from(b) + dither * (i as f64 * 0.37).sin(), settings.clip);
            Releases::Scalars(bits.enumerate().map(noisy).collect())
        }
        _ => Releases::Bits(bits.collect()),
    }
}

/// A run as a trainer makes it: weights read at every fired step, releases applied one step at a time.
pub fn train(settings: &Settings, steps_run: u32) -> (Weights, Transcript) {
    let mut decoder = Decoder::new(Cpu::<f32>::new(), base()).unwrap();
    let (b, weights) = (&decoder.backend, &mut decoder.params);
    let releases = releases(settings, steps_run);
    let mut replayer = Replayer::new(&decoder.layout, settings).unwrap();
    let mut i = 0;
    for step in settings.fires(steps_run).chunk_by(|a, b| a.0 == b.0) {
        replayer.catch_up(b, step[0].0, weights);
        let now: Vec<(u32, Message)> = step
            .iter()
            .map(|f| {
                i += 1;
                let released = match &releases {
                    Releases::Bits(b) => Message::Bit(b[i - 1]),
                    Releases::Scalars(s) => Message::Scalar(s[i - 1]),
                };
                (f.1, released)
            })
            .collect();
        let directions: Vec<_> = step.iter().map(|f| replayer.plan().direction(f.0, f.1)).collect();
        replayer.step(b, step[0].0, &now, &directions, weights).unwrap();
    }
    replayer.catch_up(b, steps_run, weights);
    let weights = decoder.weights().unwrap();
    let transcript = Transcript {
        base_sha256: checkpoint::tensors_sha256(&base()),
        tuned_sha256: Some(checkpoint::tensors_sha256(&weights)),
        settings: settings.clone(),
        steps_run,
        releases,
    };
    (weights, transcript)
}

/// The run once more, from the definitions: every group at every step, whole directions, nothing lazy.
fn brute_force(s: &Settings, steps_run: u32) -> Vec<Vec<f32>> {
    let mut w = base().tensors;
    let members = s.groups.members(&s.tune.ids(&base().layout).unwrap()).unwrap();
    let released: Vec<f32> = match releases(s, steps_run) {
        Releases::Bits(b) => b.iter().map(|&b| f32::from(b) * s.clip as f32).collect(),
        Releases::Scalars(x) => x,
    };
    let fires: std::collections::HashMap<_, _> = s.fires(steps_run).into_iter().zip(released).collect();
    let mut state: Vec<Vec<[f32; 2]>> = w.iter().map(|t| vec![[0.0; 2]; t.len()]).collect();
    let mut powers = vec![(1.0f64, 1.0f64); members.len()];
    for step in 0..steps_run {
        let lr = s.schedule.rate(s.learning_rate, step, s.steps());
        for (g, ids) in members.iter().enumerate() {
            let scale = fires.get(&(step, g as u32));
            if scale.is_none() && (s.silent == Silent::None || s.route == Route::Direct) {
                continue;
            }
            let mut u = vec![0.0; ids.iter().map(|id| w[id.0].len()).sum()];
            DirectionStream::new(s.seed, step, g as u32, s.direction, u.len()).fill(0, &mut u);
            powers[g] = (powers[g].0 * 0.9, powers[g].1 * 0.999);
            let (c1, c2) = (1.0 - powers[g].0, 1.0 - powers[g].1);
            let places = ids.iter().flat_map(|id| (0..w[id.0].len()).map(|i| (id.0, i))).collect::<Vec<_>>();
            for ((t, i), u) in places.into_iter().zip(u) {
                let w = &mut w[t][i];
                if s.route == Route::Direct {
                    *w -= (lr * f64::from(scale.unwrap() * 1.0)) as f32 * u;
                    continue;
                }
                let g = scale.map_or(0.0, |scale| scale * u);
                let [m, v] = &mut state[t][i];
                *m = 0.9f32 * *m + (1.0f64 - 0.9) as f32 * g;
                *v = 0.999f32 * *v + (1.0f64 - 0.999) as f32 * g * g;
                *m = if m.abs() < 2f32.powi(-60) { 0.0 } else { *m };
                *v = if v.abs() < 2f32.powi(-100) { 0.0 } else { *v };
                let denominator = v.sqrt() * (1.0 / c2.sqrt()) as f32 + 1e-8;
                *w = *w * (1.0 - lr * s.weight_decay) as f32 - (lr / c1) as f32 * (*m / denominator);
            }
        }
    }
    w
}

#[test]
fn training_replay_and_brute_force_agree_to_the_bit() {
    type Edit = fn(&mut Settings);
    let edits: [(&str, Edit); 8] = [
        ("adamw zero", |_| {}),
        ("adamw none", |s| s.silent = Silent::None),
        ("direct", |s| {
            s.route = Route::Direct;
            s.weight_decay = 0.0;
        }),
        ("linear", |s| s.schedule = Schedule::Linear { warmup: 0.1 }),
        ("rademacher", |s| s.direction = Direction::Rademacher),
        ("exact", |s| s.mask = MaskKind::Exact),
        ("rr", |s| s.release = Release::Rr { flip: 0.055, unbiased: false }),
        ("gaussian", |s| s.release = Release::Gaussian { dither: 0.8 }),
    ];
    for (name, edit) in edits {
        let mut s = settings();
        edit(&mut s);
        for steps_run in [80, 33] {
            let (trained, transcript) = train(&s, steps_run);
            assert!(transcript.releases.len() > 10, "{name}: the test needs fires");
            let text = transcript.to_json().unwrap();
            let read = Transcript::from_json(&text, Path::new("t")).unwrap();
            assert_eq!(read, transcript);
            let replayed = replay(base(), &read, |_| {}).unwrap();
            assert_eq!(bits(&replayed.tensors), bits(&trained.tensors), "{name}: replay");
            assert_eq!(bits(&brute_force(&s, steps_run)), bits(&trained.tensors), "{name}: brute force");
            assert_ne!(bits(&base().tensors), bits(&trained.tensors));
        }
    }
}

#[test]
fn an_unbiased_bit_counts_more() {
    let mut s = settings();
    (s.route, s.weight_decay) = (Route::Direct, 0.0);
    let (plain, _) = train(&s, 80);
    s.release = Release::Rr { flip: 0.25, unbiased: true };
    let (double, _) = train(&s, 80);
    let moved = |w: &Weights| -> f64 {
        let pairs = w.tensors.iter().flatten().zip(base().tensors.into_iter().flatten()).map(|(a, b)| f64::from(a - b));
        pairs.map(|d| d * d).sum::<f64>().sqrt()
    };
    assert!((moved(&double) / moved(&plain) - 2.0).abs() < 1e-3);
}

#[test]
fn nothing_outside_the_alphabet_is_applied() {
    let s = settings();
    let mut decoder = Decoder::new(Cpu::<f32>::new(), base()).unwrap();
    let mut replayer = Replayer::new(&decoder.layout, &s).unwrap();
    let mut step = |step, releases: &[(u32, Message)]| {
        let known = releases.iter().map(|r| if r.0 < 5 { r.0 } else { 0 });
        let directions: Vec<_> = known.map(|g| replayer.plan().direction(step, g)).collect();
        let applied = replayer.step(&decoder.backend, step, releases, &directions, &mut decoder.params);
        let now = decoder.params.iter().map(|p| decoder.backend.download_weight(p).unwrap()).collect::<Vec<_>>();
        (applied, bits(&now) != bits(&base().tensors))
    };
    let bad: [&[(u32, Message)]; 7] = [
        &[(0, Message::Bit(1)), (1, Message::Bit(0))],
        &[(0, Message::Bit(2))],
        &[(0, Message::Scalar(1.0))],
        &[(0, Message::Scalar(f32::NAN))],
        &[(1, Message::Bit(1)), (0, Message::Bit(1))],
        &[(1, Message::Bit(1)), (1, Message::Bit(1))],
        &[(999, Message::Bit(1))],
    ];
    for releases in bad {
        assert!(matches!(step(5, releases), (Err(_), false)), "{releases:?}");
    }
    assert!(matches!(step(80, &[]), (Err(_), false)));
    assert!(matches!(step(5, &[(0, Message::Bit(1))]), (Ok(()), true)));
    assert!(step(5, &[(0, Message::Bit(1))]).0.is_err(), "a step is made once");
}

#[test]
fn a_scalar_off_the_grid_is_refused() {
    let s = Settings { release: Release::Gaussian { dither: 1.5 }, clip: 0.3, ..settings() };
    let (_, mut transcript) = train(&s, 80);
    transcript.check().unwrap();
    let Releases::Scalars(scalars) = &mut transcript.releases else { panic!("scalars") };
    scalars[0] = scalars[0].next_up();
    assert!(transcript.check().unwrap_err().to_string().contains("multiple of C"));
}

#[test]
fn the_run_is_pinned() {
    // A change of the stream's format or of any update shows here; old transcripts would no longer replay.
    let (_, transcript) = train(&settings(), 80);
    let pinned = "7ebd1fce7ae18ae27f793536b4f802faed9bf7f7eb6a56c85334af4d2aa4501e";
    assert_eq!(transcript.tuned_sha256.unwrap(), pinned);
}
