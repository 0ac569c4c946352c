//! FERRET's release by brute force: projections against full gradients, signs against forward mode, the loop against ten lines.

use crate::common::{batch, config, in_pool, records, weights};
use ferret::backend::{Cpu, Memory};
use ferret::data::{Example, batches};
use ferret::grad::{GroupDirection, GroupDot, Sum};
use ferret::method::ferret::{
    BatchPer, Cuts, Engine, MaskKind, Payload, Release, Releases, Replayer, Settings, Trainer, Transcript, replay,
    sign_or_coin,
};
use ferret::method::{Run, Samples, Task};
use ferret::model::{Decoder, ParamId, Reduction, Weights};
use ferret::optim::{Route, Silent};
use ferret::privacy::Sampler;
use ferret::rng::{Direction, DirectionStream, Secret, coin};

/// Groups of these many tensors in checkpoint order.
fn groups(weights: &Weights, size: usize) -> Vec<Vec<ParamId>> {
    let ids: Vec<ParamId> = weights.layout.ids().collect();
    ids.chunks(size).map(<[ParamId]>::to_vec).collect()
}

fn settings(weights: &Weights, size: usize, f: impl FnOnce(&mut Settings)) -> Settings {
    let mut s = Settings {
        epsilon: 2.0,
        records: 40,
        batch: 8,
        epochs: 4,
        learning_rate: 2e-2,
        seed: 5,
        ..Settings::paper("ferret-test", Cuts::of(&groups(weights, size)).unwrap())
    };
    f(&mut s);
    s
}

fn trainer<'a>(
    base: &Weights,
    settings: &Settings,
    releases: Option<Releases>,
    secret: &'a Secret,
    records: &'a [Example],
    micro_batch: u32,
) -> Trainer<'a, Cpu<f32>> {
    let task = Task::new(base.clone(), Settings { micro_batch, ..settings.clone() }, secret, records);
    Trainer::new(Cpu::new(), task, releases).unwrap()
}

/// Run to the end on the CPU; final weights, transcript.
fn run(base: &Weights, s: &Settings, records: &[Example], micro: u32) -> (Weights, Transcript) {
    let secret = Secret::insecure(9);
    let mut trainer = trainer(base, s, None, &secret, records, micro);
    while trainer.step().unwrap().is_some() {}
    let (weights, transcript, _) = trainer.end().unwrap();
    (weights, transcript)
}

#[test]
fn projections_equal_those_of_the_full_gradient_and_forward_mode() {
    for tied in [true, false] {
        let config = config(|c| c.tied = tied);
        let weights = weights(config, 7);
        let decoder = Decoder::new(Cpu::<f64>::new(), weights.clone()).unwrap();
        let b = &decoder.backend;
        let batch = batch(&decoder.config, &[5, 1, 12, 0, 3], 3);
        let w = batch.weights(Reduction::SampleSum);
        let mut full = Sum::new(b, &decoder.layout, |_| true);
        decoder.backward(&batch, &w, &mut full);
        for size in [1, 2, 8, 100] {
            for (g, members) in groups(&weights, size).iter().enumerate() {
                let dim = members.iter().map(|&p| decoder.layout.spec(p).len()).sum();
                for kind in [Direction::Sphere, Direction::Rademacher] {
                    let stream = DirectionStream::new(1, 2, g as u32, kind, dim);
                    let mut u = vec![0.0; dim];
                    stream.fill(0, &mut u);
                    let gradient = members.iter().flat_map(|&p| full.get(p).unwrap().as_slice().to_vec());
                    let want: f64 = gradient.zip(&u).map(|(g, &u)| g * f64::from(u)).sum();
                    let direction = [GroupDirection::new(stream, members, &decoder.layout)];
                    let mut sink = GroupDot::new(b, &direction, &batch.segments);
                    decoder.backward(&batch, &w, &mut sink);
                    let got: f64 = sink.into_rows()[0].as_slice().iter().sum();
                    assert!((got - want).abs() < 1e-11, "{members:?}: {got}, not {want}");
                    let rows = decoder.jvp(&batch, &direction[0]);
                    let jvp: f64 = rows.as_slice().iter().zip(&w).map(|(x, &w)| x * f64::from(w)).sum();
                    assert!((jvp - want).abs() < 1e-6 * want.abs() + 1e-7, "{members:?}: {jvp}, not {want}");
                }
            }
        }
    }
}

#[test]
fn forward_mode_and_backward_release_the_same_bits() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, 40, 1, 1);
    let backward = run(&base, &settings(&base, 1, |_| ()), &records, 3);
    let jvp = run(&base, &settings(&base, 1, |s| s.engine = Engine::Jvp), &records, 3);
    assert!(backward.1.releases.len() > 8);
    assert_eq!(backward.1.releases, jvp.1.releases);
    assert_eq!(backward.0.tensors, jvp.0.tensors);
}

/// The loop again, plainly: whole gradients, whole directions, one bit a fire; through replay's own updates.
#[test]
fn the_released_bits_are_signs_of_the_samples_inner_products() {
    for batch_per in [BatchPer::Step, BatchPer::Bit] {
        let base = weights(config(|_| ()), 7);
        let records = records(&base.config, 40, 1, 1);
        let s = settings(&base, 2, |s| {
            s.batch_per = batch_per;
            s.route = Route::Direct;
            s.weight_decay = 0.0;
            s.epsilon = 6.0;
        });
        let (tuned, transcript) = run(&base, &s, &records, 4);
        let Releases::Bits(bits) = &transcript.releases else { panic!("bits") };
        let secret = Secret::insecure(9);
        let samples = Samples::new(&secret, s.sampler, 40, 8).unwrap();
        let members = groups(&base, 2);
        let mut w = base.clone();
        let fires = s.fires(s.steps());
        assert_eq!(bits.len(), fires.len());
        let mut at = 0;
        for step in fires.chunk_by(|a, b| a.0 == b.0) {
            let mut next = w.clone();
            for &(step, g) in step {
                let bit = if batch_per == BatchPer::Step { 0 } else { g };
                let chosen = samples.known(step, bit).unwrap();
                let decoder = Decoder::new(Cpu::<f64>::new(), w.clone()).unwrap();
                let batch = batches::batch(chosen.iter().map(|&i| &records[i]));
                let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
                decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sum);
                let members = &members[g as usize];
                let dim = members.iter().map(|&p| w.layout.spec(p).len()).sum();
                let mut u = vec![0.0; dim];
                DirectionStream::new(s.seed, step, g, s.direction, dim).fill(0, &mut u);
                let gradient = members.iter().flat_map(|&p| sum.get(p).unwrap().as_slice().to_vec());
                let dot: f64 = gradient.zip(&u).map(|(g, &u)| g * f64::from(u)).sum();
                let want = sign_or_coin(dot, coin(s.seed, step, g));
                assert!(bits[at] == want || dot.abs() < 1e-6, "step {step}, group {g}: {dot}");
                let mut offset = 0;
                for &p in members {
                    for x in &mut next.tensors[p.0] {
                        *x -= (f64::from(bits[at]) * s.learning_rate) as f32 * u[offset];
                        offset += 1;
                    }
                }
                at += 1;
            }
            w = next;
        }
        for (got, want) in tuned.tensors.iter().flatten().zip(w.tensors.iter().flatten()) {
            assert!((got - want).abs() < 1e-6, "{got}, not {want}");
        }
    }
}

#[test]
fn replay_rebuilds_every_byte_for_every_reading() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, 40, 1, 1);
    for route in [Route::Adamw, Route::Direct] {
        for silent in [Silent::Zero, Silent::None] {
            for (release, mask) in [
                (Release::Bit, MaskKind::Bernoulli),
                (Release::Rr { flip: 0.2, unbiased: true }, MaskKind::Exact),
                (Release::Gaussian { dither: 0.5 }, MaskKind::Bernoulli),
            ] {
                let s = settings(&base, 3, |s| {
                    (s.route, s.silent, s.release, s.mask) = (route, silent, release, mask);
                    if route == Route::Direct {
                        s.weight_decay = 0.0;
                    }
                });
                let (tuned, transcript) = run(&base, &s, &records, 8);
                assert!(!transcript.releases.is_empty());
                let again = replay(base.clone(), &transcript, |_| ()).unwrap();
                assert_eq!(tuned.tensors, again.tensors);
                assert_ne!(tuned.tensors, base.tensors);
            }
        }
    }
}

#[test]
fn micro_batches_and_threads_do_not_change_a_bit() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, 40, 1, 1);
    let s = settings(&base, 1, |s| s.batch_per = BatchPer::Bit);
    let one = in_pool(1, || run(&base, &s, &records, 40));
    for (threads, micro) in [(2, 40), (5, 40), (2, 1), (3, 7)] {
        let other = in_pool(threads, || run(&base, &s, &records, micro));
        assert_eq!(one.1.releases, other.1.releases, "{threads} threads, {micro} records at once");
        assert_eq!(one.1.tuned_sha256, other.1.tuned_sha256);
    }
}

#[test]
fn resuming_after_any_step_ends_in_the_same_bits() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, 40, 1, 1);
    let s = settings(&base, 1, |_| ());
    let whole = run(&base, &s, &records, 8);
    let secret = Secret::insecure(9);
    let mut part = trainer(&base, &s, None, &secret, &records, 8);
    while part.step().unwrap().is_some() {
        part = trainer(&base, &s, Some(part.releases().clone()), &secret, &records, 8);
    }
    assert_eq!(part.end().unwrap().1, whole.1);
}

/// The mask is public: it is that of the streams' definition, drawn by the seed, whatever the records and their samples are. The bits are
/// not: they change with the records.
#[test]
fn the_mask_depends_on_the_seed_and_not_on_the_data() {
    let base = weights(config(|_| ()), 7);
    let run = |seed, data| {
        let s = settings(&base, 1, |s| s.seed = seed);
        let records = records(&base.config, 40, 1, data);
        let secret = Secret::insecure(data);
        let mut trainer = trainer(&base, &s, None, &secret, &records, 8);
        let mut fires = Vec::new();
        while let Some(step) = trainer.step().unwrap() {
            fires.extend(step.groups.iter().map(|&g| (step.step, g)));
        }
        let p = 2.0 / (base.layout.len() as f64 * 20.0 * 0.2 * std::f64::consts::LN_2);
        let drawn: Vec<(u32, u32)> = (0..20)
            .flat_map(|t| (0..base.layout.len() as u32).map(move |g| (t, g)))
            .filter(|&(t, g)| ferret::rng::mask::bernoulli_fires(seed, t, g, p))
            .collect();
        assert_eq!(fires, drawn, "seed {seed}");
        (fires, trainer.releases().clone())
    };
    let (one, other, third) = (run(5, 1), run(5, 2), run(6, 1));
    assert_eq!(one.0, other.0);
    assert_ne!(one.1, other.1, "other records give other bits");
    assert_ne!(one.0, third.0, "another seed gives another mask");
}

/// Empty Poisson batches, vanishing and broken gradients: the public coin, never an abort.
#[test]
fn ties_take_the_public_coin() {
    for c in [1, -1] {
        assert_eq!(sign_or_coin(0.0, c), c);
        assert_eq!(sign_or_coin(-0.0, c), c);
        assert_eq!(sign_or_coin(f64::NAN, c), c);
        assert_eq!(sign_or_coin(f64::INFINITY, c), c);
        assert_eq!(sign_or_coin(f64::NEG_INFINITY, c), c);
        assert_eq!((sign_or_coin(1e-300, c), sign_or_coin(-1e-300, c)), (1, -1));
    }
    let base = weights(config(|_| ()), 7);
    // Records without a target have a gradient of zero: every bit must be the coin.
    let silent = vec![Example::all(vec![3]); 40];
    let s = settings(&base, 1, |_| ());
    let (_, transcript) = run(&base, &s, &silent, 8);
    let Releases::Bits(bits) = transcript.releases else { panic!("bits") };
    let coins: Vec<i8> = s.fires(s.steps()).iter().map(|&(step, g)| coin(s.seed, step, g)).collect();
    assert_eq!(bits, coins);
    assert!(coins.contains(&1) && coins.contains(&-1));
    // Weights that overflow give no gradient that is a number.
    let mut broken = base.clone();
    broken.tensors[0].fill(1e38);
    let direct = settings(&base, 1, |s| (s.route, s.weight_decay) = (Route::Direct, 0.0));
    let (_, transcript) = run(&broken, &direct, &records(&base.config, 40, 1, 4), 8);
    let coins: Vec<i8> = direct.fires(20).iter().map(|&(step, g)| coin(direct.seed, step, g)).collect();
    assert_eq!(transcript.releases, Releases::Bits(coins), "no gradient is a number, so every bit is the coin");
}

#[test]
fn true_gradients_are_what_the_ablation_sends() {
    let base = weights(config(|_| ()), 7);
    let records = records(&base.config, 40, 1, 1);
    let s = settings(&base, 100, |s| {
        s.payload = Payload::TrueGradient;
        s.route = Route::Direct;
        s.weight_decay = 0.0;
        s.sampler = Sampler::Uniform;
        s.batch = 40;
        s.epochs = 1;
        s.epsilon = 10.0;
    });
    let (tuned, transcript) = run(&base, &s, &records, 7);
    assert!(transcript.releases.is_empty());
    let decoder = Decoder::new(Cpu::<f32>::new(), base.clone()).unwrap();
    let batch = batches::batch(&records);
    let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    decoder.backward(&batch, &batch.weights(Reduction::SampleMean), &mut sum);
    for p in base.layout.ids() {
        let g = decoder.backend.download(sum.get(p).unwrap()).unwrap();
        for ((t, b), g) in tuned.tensors[p.0].iter().zip(&base.tensors[p.0]).zip(g) {
            assert!((t - (b - s.learning_rate as f32 * g)).abs() < 1e-5);
        }
    }
}

/// A world small enough to enumerate: one record that takes one of four values, one that is known, four fires with a Poisson batch
/// each. The information that the bits carry about the unknown record, everything else known, never exceeds s K ln 2.
#[test]
fn mutual_information_of_a_tiny_world_stays_below_the_charge() {
    let base = weights(config(|c| (c.width, c.inner, c.heads) = (6, 8, 2)), 7);
    let mut largest: f64 = 0.0;
    for seed in 0..6 {
        let s = settings(&base, 1, |s| {
            (s.records, s.batch, s.epochs, s.seed) = (2, 1, 20, seed);
            (s.route, s.weight_decay, s.learning_rate) = (Route::Direct, 0.0, 0.3);
            (s.mask, s.epsilon) = (MaskKind::Exact, 4.5 * 0.5 * std::f64::consts::LN_2);
        });
        let fires = s.fires(s.steps());
        assert_eq!(fires.len(), 4);
        let values = records(&base.config, 4, 1, 10 + seed);
        let known = &records(&base.config, 1, 1, 20 + seed)[0];
        // P(bits | value), by walking the tree of prefixes: the weights depend on the bits alone.
        let mut likelihood = vec![[1.0f64; 4]; 1 << fires.len()];
        for prefix_len in 0..fires.len() {
            for prefix in 0..1usize << prefix_len {
                let bits: Vec<i8> = (0..prefix_len).map(|i| if prefix >> i & 1 == 1 { 1 } else { -1 }).collect();
                let mut walk = Decoder::new(Cpu::<f32>::new(), base.clone()).unwrap();
                Replayer::new(&walk.layout, &s)
                    .unwrap()
                    .apply(&walk.backend, &fires[..prefix_len], &Releases::Bits(bits), &mut walk.params, |_| ())
                    .unwrap();
                let (step, g) = fires[prefix_len];
                let decoder = Decoder::new(Cpu::<f64>::new(), walk.weights().unwrap()).unwrap();
                let members = &groups(&base, 1)[g as usize];
                let dim = members.iter().map(|&p| base.layout.spec(p).len()).sum();
                let stream = DirectionStream::new(s.seed, step, g, s.direction, dim);
                let direction = [GroupDirection::new(stream, members, &decoder.layout)];
                let share = |record: &Example| -> f64 {
                    let batch = batches::batch([record]);
                    let mut sink = GroupDot::new(&decoder.backend, &direction, &batch.segments);
                    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sink);
                    sink.into_rows()[0].as_slice().iter().sum()
                };
                let other = share(known);
                for (v, value) in values.iter().enumerate() {
                    let own = share(value);
                    let coin = coin(s.seed, step, g);
                    let plus = [(0.0, 0.0), (own, 0.0), (0.0, other), (own, other)]
                        .iter()
                        .filter(|(a, b)| sign_or_coin(a + b, coin) == 1)
                        .count() as f64
                        / 4.0;
                    for (code, row) in likelihood.iter_mut().enumerate() {
                        if code & ((1 << prefix_len) - 1) == prefix {
                            row[v] *= if code >> prefix_len & 1 == 1 { plus } else { 1.0 - plus };
                        }
                    }
                }
            }
        }
        let nats: f64 = likelihood
            .iter()
            .map(|row| {
                let mean = row.iter().sum::<f64>() / 4.0;
                row.iter().filter(|p| **p > 0.0).map(|p| p / 4.0 * (p / mean).ln()).sum::<f64>()
            })
            .sum();
        let total: f64 = likelihood.iter().map(|row| row[0]).sum();
        assert!((total - 1.0).abs() < 1e-12);
        let charged = ferret::privacy::mi::charge(s.sampling_rate(), fires.len() as u64);
        assert!(nats <= charged, "seed {seed}: {nats} nats, {charged} charged");
        largest = largest.max(nats / charged);
    }
    assert!(largest > 0.05, "the bits say nothing at all: the test cannot fail ({largest})");
}
