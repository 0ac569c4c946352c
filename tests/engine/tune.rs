//! Tuned subsets under every method, by brute force: what is frozen keeps its bits, norms and directions are of the tuned tensors alone, replay and
//! resuming follow.

use crate::common::{config, records, weights};
use crate::training::{N, run};
use ferret::backend::Cpu;
use ferret::data::batches;
use ferret::grad::PerSample;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Privacy, Variant};
use ferret::method::ferret::{Cuts, Engine, Payload, Releases, Settings, replay, sign_or_coin};
use ferret::method::groups::{Grouping, Groups};
use ferret::method::{Method, Record, Samples, Tune};
use ferret::model::family::Preset;
use ferret::model::{Config, Decoder, ParamId, Reduction, Weights};
use ferret::optim::{Route, Silent};
use ferret::rng::{DirectionStream, Secret, coin};

/// A decoder with a tied embedding, biases and layer norms; and one with neither, with grouped heads and a gated MLP.
fn decoders() -> [(Weights, &'static [&'static str]); 2] {
    let llama = Config {
        vocab: 23,
        positions: 12,
        width: 12,
        layers: 3,
        heads: 3,
        kv_heads: 1,
        head_width: 4,
        inner: 20,
        tied: false,
        ..Preset::find("smollm-135m").unwrap().config()
    };
    let llama = match llama.position.clone() {
        ferret::model::config::Position::Rope(mut rope) => {
            rope.width = 4;
            Config { position: ferret::model::config::Position::Rope(rope), ..llama }
        }
        _ => unreachable!("Llama turns"),
    };
    [
        (
            weights(config(|c| (c.layers, c.tied) = (3, true)), 7),
            &["bias", "norms", "last:1", "h.1.mlp,wpe", "wte", "c_attn"],
        ),
        (weights(llama, 8), &["norms", "last:2", "q_proj,v_proj", "lm_head", "embed_tokens,norm", "layers.1"]),
    ]
}

fn tune(text: &str) -> Tune {
    text.parse().unwrap()
}

fn ferret(base: &Weights, words: &str, size: usize) -> Settings {
    let ids = tune(words).ids(&base.layout).unwrap();
    let members = Groups::tuned(&ids, Grouping::Bucket(size)).unwrap().members;
    Settings {
        tune: tune(words),
        epsilon: 20.0,
        records: N,
        batch: 8,
        epochs: 2,
        learning_rate: 2e-2,
        weight_decay: 0.1,
        micro_batch: 3,
        seed: 5,
        ..Settings::paper("ferret-test", Cuts::over(&ids, &members).unwrap())
    }
}

/// DPSGD without noise, which shows what was clipped to what.
fn clipped(style: ClipStyle) -> dense::Method {
    let clip_rule = ClipFunction::Abadi;
    dense::Method::Dpsgd(Privacy { noise_multiplier: 0.0, clip: 0.05, clip_rule, clip_style: style, clip_groups: None })
}

fn dense(words: &str, method: dense::Method, steps: u32) -> dense::Settings {
    dense::Settings {
        tune: tune(words),
        records: N,
        batch: 8,
        steps: Some(steps),
        micro_batch: 3,
        route: Route::Direct,
        learning_rate: 1.0,
        weight_decay: 0.0,
        seed: 5,
        ..dense::Settings::usual(method)
    }
}

fn trained(base: &Weights, method: &Method) -> (Weights, Record) {
    let (weights, record) = run(base, method, None).unwrap();
    (weights.into_form(), record)
}

fn bits(w: &Weights, p: ParamId) -> Vec<u32> {
    w.get(p).iter().map(|x| x.to_bits()).collect()
}

/// Every tuned tensor has other bits than the base model's, every other one the same.
fn assert_only(base: &Weights, tuned: &Weights, words: &str, label: &str) {
    let ids = tune(words).ids(&base.layout).unwrap();
    assert!(ids.len() < base.layout.len(), "{words}");
    for p in base.layout.ids() {
        let changed = bits(base, p) != bits(tuned, p);
        assert_eq!(changed, ids.contains(&p), "{label}, {words}: {}", base.layout.spec(p).name);
    }
}

#[test]
fn frozen_tensors_keep_their_bits_under_every_method() {
    let privacy = Privacy {
        noise_multiplier: 1.0,
        clip: 1.0,
        clip_rule: ClipFunction::Automatic,
        clip_style: ClipStyle::PerGroup,
        clip_groups: None,
    };
    for (base, words) in decoders() {
        for words in words {
            for method in [
                dense::Method::Nonprivate,
                dense::Method::Dpsgd(privacy.clone()),
                dense::Method::DpSignsgd(privacy.clone()),
                dense::Method::Signsgd { variant: Variant::Plain },
                dense::Method::Signsgd { variant: Variant::ErrorFeedback },
                dense::Method::Signsgd { variant: Variant::MajorityVote },
                dense::Method::Qsgd { bits: 4 },
            ] {
                let adamw = dense::Settings {
                    route: Route::Adamw,
                    weight_decay: 0.1,
                    learning_rate: 1e-2,
                    ..dense(words, method, 3)
                };
                let label = format!("{:?}", adamw.method);
                assert_only(&base, &trained(&base, &Method::Dense(adamw)).0, words, &label);
            }
            for (route, silent) in
                [(Route::Adamw, Silent::Zero), (Route::Adamw, Silent::None), (Route::Direct, Silent::Zero)]
            {
                for engine in [Engine::Backward, Engine::Jvp] {
                    for payload in [Payload::Sign, Payload::TrueGradient] {
                        let mut s = Settings { route, silent, engine, payload, ..ferret(&base, words, 1) };
                        if route == Route::Direct {
                            s.weight_decay = 0.0;
                        }
                        let (after, record) = trained(&base, &Method::Ferret(s.clone()));
                        let label = format!("{route:?}, {silent:?}, {engine:?}, {payload:?}");
                        assert_only(&base, &after, words, &label);
                        let Record::Ferret(transcript) = record else { panic!("a transcript") };
                        if payload == Payload::Sign {
                            let again = replay(base.clone(), &transcript, |_| ()).unwrap();
                            assert_eq!(again.tensors, after.tensors, "{label}");
                        }
                    }
                }
            }
        }
    }
}

/// A group's bit is the sign of its own tensors' gradient along a direction of their length: by whole gradients, one step at a time.
#[test]
fn bits_are_signs_of_the_tuned_tensors_gradient() {
    for (base, words) in decoders() {
        let records = records(&base.config, N, 2, 1);
        for words in words {
            let ids = tune(words).ids(&base.layout).unwrap();
            for engine in [Engine::Backward, Engine::Jvp] {
                let s = Settings {
                    engine,
                    route: Route::Direct,
                    weight_decay: 0.0,
                    learning_rate: 0.0,
                    ..ferret(&base, words, 2)
                };
                assert_eq!(s.groups.len(), ids.len().div_ceil(2));
                let Record::Ferret(transcript) = trained(&base, &Method::Ferret(s.clone())).1 else {
                    panic!("a transcript")
                };
                let Releases::Bits(bits) = &transcript.releases else { panic!("bits") };
                let decoder = Decoder::new(Cpu::<f64>::new(), base.clone()).unwrap();
                let secret = Secret::insecure(9);
                let samples = Samples::new(&secret, s.sampler, N as usize, 8).unwrap();
                let fires = s.fires(s.steps());
                assert!(fires.len() == bits.len() && !fires.is_empty(), "{words}: {} fires", fires.len());
                for (&(step, g), &bit) in fires.iter().zip(bits) {
                    let chosen = samples.known(step, 0).unwrap();
                    let batch = batches::batch(chosen.iter().map(|&i| &records[i]));
                    let mut sum = ferret::grad::Sum::new(&decoder.backend, &decoder.layout, |_| true);
                    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut sum);
                    let members = ids.chunks(2).nth(g as usize).unwrap();
                    let gradient: Vec<f64> =
                        members.iter().flat_map(|&p| sum.get(p).unwrap().as_slice().to_vec()).collect();
                    let mut u = vec![0.0; gradient.len()];
                    DirectionStream::new(s.seed, step, g, s.direction, u.len()).fill(0, &mut u);
                    let dot: f64 = gradient.iter().zip(&u).map(|(g, &u)| g * f64::from(u)).sum();
                    let want = sign_or_coin(dot, coin(s.seed, step, g));
                    assert!(bit == want || dot.abs() < 1e-5, "{words}, {engine:?}, step {step}, group {g}: {dot}");
                }
            }
        }
    }
}

/// The clipped sum, record by record: a record's norm is over its tuned tensors, the two places of a tied one together.
#[test]
fn norms_are_of_the_tuned_tensors_alone() {
    for (base, words) in decoders() {
        let records = records(&base.config, N, 2, 1);
        for words in words {
            for style in [ClipStyle::Flat, ClipStyle::PerLayer, ClipStyle::PerGroup] {
                let s = dense(words, clipped(style), 1);
                let after = trained(&base, &Method::Dense(s.clone())).0;
                let ids = s.tune.ids(&base.layout).unwrap();
                let together: Vec<Vec<ParamId>> = match style {
                    ClipStyle::Flat => vec![ids.clone()],
                    ClipStyle::PerLayer => ids.iter().map(|&p| vec![p]).collect(),
                    ClipStyle::PerGroup => {
                        let place = |p: ParamId| base.layout.spec(p).place;
                        let mut places: Vec<_> = ids.iter().map(|&p| place(p)).collect();
                        places.dedup();
                        places.into_iter().map(|at| ids.iter().copied().filter(|&p| place(p) == at).collect()).collect()
                    }
                };
                let bound = 0.05 / (together.len() as f64).sqrt();
                let decoder = Decoder::new(Cpu::<f64>::new(), base.clone()).unwrap();
                let secret = Secret::insecure(9);
                let chosen = Samples::new(&secret, s.sampler, N as usize, 8).unwrap().known(0, 0).unwrap();
                let batch = batches::batch(chosen.iter().map(|&i| &records[i]));
                let mut each = PerSample::new(&decoder.backend, &decoder.layout, chosen.len());
                decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut each);
                let mut clipped_some = 0;
                for group in &together {
                    let mut want: Vec<f64> = vec![0.0; group.iter().map(|&p| base.get(p).len()).sum()];
                    for i in 0..chosen.len() {
                        let own = |&p: &ParamId| each.sample(i).get(p).unwrap().as_slice().to_vec();
                        let gradient: Vec<f64> = group.iter().flat_map(own).collect();
                        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
                        clipped_some += usize::from(norm > bound);
                        want.iter_mut().zip(&gradient).for_each(|(w, g)| *w += g * (bound / norm).min(1.0) / 8.0);
                    }
                    let moved = |&p: &ParamId| {
                        base.get(p)
                            .iter()
                            .zip(after.get(p))
                            .map(|(b, a)| f64::from(*b) - f64::from(*a))
                            .collect::<Vec<_>>()
                    };
                    let got: Vec<f64> = group.iter().flat_map(moved).collect();
                    for (got, want) in got.iter().zip(&want) {
                        assert!((got - want).abs() < 1e-6, "{words}, {style:?}: {got}, not {want}");
                    }
                }
                assert!(clipped_some > 0, "{words}, {style:?}: nothing was clipped");
            }
        }
    }
}

#[test]
fn resuming_after_every_step_ends_in_the_same_bits() {
    let [(base, _), _] = decoders();
    let adamw = dense::Settings { route: Route::Adamw, ..dense("norms,h.1.mlp", clipped(ClipStyle::Flat), 4) };
    let memory = dense("last:1", dense::Method::Signsgd { variant: Variant::ErrorFeedback }, 4);
    for method in [Method::Dense(adamw), Method::Dense(memory), Method::Ferret(ferret(&base, "bias", 2))] {
        let whole = trained(&base, &method).0;
        let dir = tempfile::tempdir().unwrap();
        let mut parts = 0;
        let resumed: Weights = loop {
            parts += 1;
            if let Some((weights, _)) = run(&base, &method, Some(dir.path())) {
                break weights.into_form();
            }
        };
        assert!(parts > 3, "{parts}");
        assert_eq!(whole.tensors, resumed.tensors, "{}", method.name());
    }
}

#[test]
fn statements_and_files_name_what_was_tuned_and_all_leaves_them_as_they_were() {
    let [(base, _), _] = decoders();
    let subset = Method::Ferret(ferret(&base, "bias", 1));
    for method in [subset, Method::Dense(dense("bias", dense::Method::Nonprivate, 1))] {
        let statement = method.statement(&base.layout, 1, 1e-5, Default::default()).unwrap();
        assert_eq!(statement.tune.as_deref(), Some("bias"));
        assert!(statement.to_markdown().contains("Tuned: `bias`"));
        let summary = method.summary(&base.layout, 1).unwrap();
        assert_eq!(summary["tuned"]["tune"], "bias");
        let text = serde_json::to_string(&method).unwrap();
        assert!(text.contains("\"tune\":\"bias\""), "{text}");
        assert_eq!(serde_json::from_str::<Method>(&text).unwrap(), method);
    }
    let ids: Vec<_> = base.layout.ids().collect();
    let whole = Settings {
        tune: Tune::default(),
        groups: Cuts::over(&ids, std::slice::from_ref(&ids)).unwrap(),
        ..ferret(&base, "bias", 1)
    };
    let text = serde_json::to_string(&whole).unwrap();
    assert!(!text.contains("tune"), "{text}");
    let statement = Method::Ferret(whole).statement(&base.layout, 1, 1e-5, Default::default()).unwrap();
    assert!(!statement.to_json().contains("\"tune\""));
    // An update's bits are those of what is tuned.
    let (all, bias) = (dense("all", dense::Method::Nonprivate, 1), dense("bias", dense::Method::Nonprivate, 1));
    let bits = |s: &dense::Settings| s.method.bits_per_update(&base.layout, &s.tune.ids(&base.layout).unwrap());
    assert_eq!(bits(&all), 32 * base.layout.scalars() as u64);
    let biases: usize = base.layout.specs().iter().filter(|s| s.bias).map(|s| s.len()).sum();
    assert_eq!(bits(&bias), 32 * biases as u64);
}
