//! Low-rank adapters: PEFT's word on logits, gradients and norms (tests/fixtures/make_adapters.py), f64 differences, forward mode, cached decoding,
//! folders in and out, merging; and training them by every method.

use crate::common::fixture::relative;
use crate::common::{Random, config, weights};
use crate::training::{N, run};
use ferret::backend::{Cpu, Memory};
use ferret::data::{Example, batches};
use ferret::grad::{Norms, PerSample, Sum, TensorTangents};
use ferret::kernel::Stored;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Privacy, Variant};
use ferret::method::ferret::{Cuts, Engine, Settings, replay};
use ferret::method::groups::{Grouping, Groups};
use ferret::method::{Method, Record};
use ferret::model::adapter::{Adapter, merge};
use ferret::model::checkpoint::{self, OpenCheckpoint, SaveOptions};
use ferret::model::{Batch, Decoder, Layout, ParamId, Reduction, Weights};
use ferret::ops::sample_norm::COLUMNS;
use ferret::optim::Route;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

/// Adapters and the checkpoints that they are of.
const MADE: [(&str, &str); 6] = [
    ("gpt2_default", "gpt2_tiny"),
    ("gpt2_all", "gpt2_tiny"),
    ("llama_default", "llama_tiny"),
    ("llama_mlp", "llama_tiny"),
    ("bloom_default", "bloom_tiny"),
    ("phi3_fused", "phi3_tiny"),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn folder(name: &str) -> PathBuf {
    fixtures().join("adapters").join(name)
}

fn opened(name: &str, base: &str) -> OpenCheckpoint {
    OpenCheckpoint::folder(&fixtures().join(base)).unwrap().adapted(&folder(name)).unwrap()
}

/// What PEFT found: a file of named tensors.
struct Reference(Vec<u8>);

impl Reference {
    fn of(name: &str) -> Self {
        Self(std::fs::read(folder(name).join("reference.safetensors")).unwrap())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn ints(&self, name: &str) -> Vec<i64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap().data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Three samples of at most 16 tokens, without what was padded.
    fn batch(&self) -> (Batch, Vec<usize>) {
        let (ids, lengths) = (self.ints("input_ids"), self.ints("lengths"));
        let examples: Vec<Example> = lengths
            .iter()
            .enumerate()
            .map(|(i, &n)| Example::all(ids[16 * i..16 * i + n as usize].iter().map(|&id| id as u32).collect()))
            .collect();
        (batches::batch(examples.iter()), lengths.iter().map(|&n| n as usize).collect())
    }
}

fn own(layout: &Layout) -> Vec<ParamId> {
    layout.ids().filter(|&p| layout.spec(p).adapter.is_some()).collect()
}

#[test]
fn logits_gradients_and_norms_are_pefts() {
    for (name, base) in MADE {
        let (opened, reference) = (opened(name, base), Reference::of(name));
        let decoder = opened.decoder(Cpu::<f32>::new()).unwrap();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let (batch, lengths) = reference.batch();
        // Rows of a record are those with a target: all but the last token.
        let (want, v) = (reference.floats("logits"), decoder.config.vocab);
        let got = b.download(&decoder.logits(&batch, 0..batch.rows())).unwrap();
        let largest = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        for (i, range) in batch.segments.iter().enumerate() {
            assert!(range.len() >= lengths[i] - 1, "{name}");
            for (t, row) in range.enumerate() {
                for j in 0..v {
                    let (g, w) = (got[row * v + j], want[(i * 16 + t) * v + j]);
                    assert!(
                        (g - w).abs() <= 1e-5 * largest,
                        "{name}, sample {i}, position {t}, token {j}: {g}, not {w}"
                    );
                }
            }
        }
        let wants = |p: ParamId| layout.spec(p).adapter.is_some();
        let mut sum = Sum::new(b, layout, wants);
        let weights = batch.weights(Reduction::TokenMean);
        let losses = decoder.backward(&batch, &weights, &mut sum);
        let loss: f64 = losses.as_slice().iter().zip(&weights).map(|(l, w)| f64::from(*l) * f64::from(*w)).sum();
        assert!((loss - f64::from(reference.floats("loss")[0])).abs() < 2e-6, "{name}: {loss}");
        for p in own(layout) {
            let spec = layout.spec(p);
            let file = format!("grad.base_model.model.{}", decoder.config.family.file_name(&spec.name, true));
            let got = checkpoint::in_file(&decoder.config, spec, sum.get(p).unwrap().as_slice()).into_owned();
            let error = relative(&got, &reference.floats(&file));
            assert!(error < 1e-5, "{name}, {}: {error:e}", spec.name);
        }
        let mut norms = Norms::new(b, layout, 3, wants);
        decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut norms);
        for (i, want) in reference.floats("norms").into_iter().enumerate() {
            let square: f32 = own(layout).iter().map(|&p| norms.squares(p).unwrap().as_slice()[i * COLUMNS]).sum();
            assert!((square.sqrt() - want).abs() < 2e-5 * want, "{name}, sample {i}: {}, not {want}", square.sqrt());
        }
    }
}

/// A decoder with random A and B in double precision.
fn random(name: &str, base: &str) -> Decoder<Cpu<f64>> {
    let mut weights = checkpoint::load_opened(opened(name, base)).unwrap().weights.into_form::<Vec<f32>>();
    let (mut random, layout) = (Random::new(3), weights.layout.clone());
    for p in own(&layout) {
        weights.tensors[p.0].iter_mut().for_each(|x| *x = 0.3 * random.signed() as f32);
    }
    Decoder::new(Cpu::new(), weights).unwrap()
}

#[test]
fn gradients_are_differences_and_forward_mode_agrees() {
    for (name, base) in MADE {
        let mut decoder = random(name, base);
        let (batch, _) = Reference::of(name).batch();
        let weights = batch.weights(Reduction::SampleSum);
        let mut sum = Sum::new(&decoder.backend, &decoder.layout, |_| true);
        decoder.backward(&batch, &weights, &mut sum);
        let mut random = Random::new(5);
        let loss = |decoder: &Decoder<Cpu<f64>>| -> f64 {
            let losses = decoder.losses(&batch);
            losses.as_slice().iter().zip(&weights).map(|(l, w)| l * f64::from(*w)).sum()
        };
        for p in own(&decoder.layout) {
            let (rows, cols) = decoder.layout.spec(p).matrix();
            let u: Vec<f32> = (0..rows * cols).map(|_| random.signed() as f32).collect();
            let want: f64 = sum.get(p).unwrap().as_slice().iter().zip(&u).map(|(g, u)| g * f64::from(*u)).sum();
            let h = 1e-6;
            let mut at = |t: f64| {
                let was = decoder.backend.master(&mut decoder.params[p.0]).as_slice().to_vec();
                let w = decoder.backend.master(&mut decoder.params[p.0]).as_slice_mut();
                w.iter_mut().zip(&u).for_each(|(w, u)| *w += t * f64::from(*u));
                let found = loss(&decoder);
                decoder.backend.master(&mut decoder.params[p.0]).as_slice_mut().copy_from_slice(&was);
                found
            };
            let difference = (at(h) - at(-h)) / (2.0 * h);
            let spec = decoder.layout.spec(p).name.clone();
            assert!((difference - want).abs() < 1e-7 * want.abs().max(1.0), "{name}, {spec}: {difference}, not {want}");
            let tangent = decoder.backend.upload(rows, cols, u).unwrap();
            let mut tangents: Vec<_> = decoder.layout.ids().map(|_| None).collect();
            tangents[p.0] = Some(tangent);
            let rows = decoder.jvp(&batch, &TensorTangents(tangents));
            let jvp: f64 = rows.as_slice().iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum();
            assert!((jvp - want).abs() < 1e-6 * want.abs().max(1e-2), "{name}, {spec}: jvp {jvp}, not {want}");
        }
    }
}

#[test]
fn norms_from_factors_are_those_of_the_gradients() {
    for (name, base) in MADE {
        let decoder = random(name, base);
        let (batch, _) = Reference::of(name).batch();
        let (b, layout) = (&decoder.backend, &decoder.layout);
        let weights = batch.weights(Reduction::SampleSum);
        let mut norms = Norms::new(b, layout, 3, |_| true);
        let mut each = PerSample::new(b, layout, 3);
        decoder.backward(&batch, &weights, &mut norms);
        decoder.backward(&batch, &weights, &mut each);
        for p in layout.ids() {
            for i in 0..3 {
                let gradient = each.sample(i).get(p).unwrap();
                let want: f64 = gradient.as_slice().iter().map(|g| g * g).sum();
                let got = norms.squares(p).unwrap().as_slice()[i * COLUMNS];
                assert!(
                    (got - want).abs() < 1e-9 * want.max(1e-9),
                    "{name}, {}: {got}, not {want}",
                    layout.spec(p).name
                );
            }
        }
    }
}

#[test]
fn a_merged_model_computes_the_same() {
    for (name, base) in MADE {
        let adapted = checkpoint::load_opened(opened(name, base)).unwrap().weights;
        let (batch, _) = Reference::of(name).batch();
        let logits = |w: Weights<Stored>| {
            let decoder = Decoder::new(Cpu::<f32>::new(), w).unwrap();
            decoder.backend.download(&decoder.logits(&batch, 0..batch.rows())).unwrap()
        };
        let merged = merge(adapted.clone()).unwrap();
        assert!(merged.config.adapter.is_none());
        let bare = OpenCheckpoint::folder(&fixtures().join(base)).unwrap();
        assert_eq!(merged.layout.specs(), bare.layout.specs());
        let (want, got) = (logits(adapted), logits(merged));
        assert!(relative(&got, &want) < 1e-5, "{name}: {}", relative(&got, &want));
        // The adapter matters.
        let without = logits(checkpoint::load_opened(bare).unwrap().weights);
        assert!(relative(&without, &want) > 1e-2, "{name}");
    }
}

/// What we write has PEFT's tensors, and reads back as it was.
#[test]
fn folders_go_round() {
    for (name, base) in MADE {
        let read = checkpoint::load_opened(opened(name, base)).unwrap();
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("adapter");
        checkpoint::save(&out, &read.weights, &read.save_options()).unwrap();
        let bytes = |dir: &Path| std::fs::read(dir.join("adapter_model.safetensors")).unwrap();
        let (ours, pefts) = (bytes(&out), bytes(&folder(name)));
        let (ours, pefts) = (SafeTensors::deserialize(&ours).unwrap(), SafeTensors::deserialize(&pefts).unwrap());
        let sorted = |mut names: Vec<&str>| -> Vec<String> {
            names.sort_unstable();
            names.into_iter().map(str::to_owned).collect()
        };
        assert_eq!(sorted(ours.names().into_iter().collect()), sorted(pefts.names().into_iter().collect()), "{name}");
        for (key, view) in ours.tensors() {
            let other = pefts.tensor(&key).unwrap();
            assert_eq!((view.shape(), view.data()), (other.shape(), other.data()), "{name}, {key}");
        }
        // An adapter's folder alone is opened on the base that it names.
        let again = checkpoint::load_folder_stored(&out).unwrap();
        assert_eq!(again.weights.tensors, read.weights.tensors, "{name}");
        assert_eq!(
            again.weights.config.adapter.map(|a| (a.rank, a.alpha)),
            read.weights.config.adapter.map(|a| (a.rank, a.alpha))
        );
    }
}

#[test]
fn what_cannot_be_an_adapter_here_is_refused_in_a_sentence() {
    let refused = |name: &str, base: &str, edit: &dyn Fn(&mut serde_json::Value)| {
        let home = tempfile::tempdir().unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(folder(name).join(file), home.path().join(file)).unwrap();
        }
        let path = home.path().join("adapter_config.json");
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        std::fs::write(&path, value.to_string()).unwrap();
        let bare = OpenCheckpoint::folder(&fixtures().join(base)).unwrap();
        bare.adapted(home.path()).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let none = |_: &mut serde_json::Value| ();
    assert_eq!(refused("gpt2_default", "gpt2_tiny", &none), "");
    for (key, value) in [
        ("r", serde_json::json!(0)),
        ("r", serde_json::json!(2)),
        ("lora_alpha", serde_json::json!(0)),
        ("use_dora", serde_json::json!(true)),
        ("use_rslora", serde_json::json!(true)),
        ("bias", serde_json::json!("all")),
        ("rank_pattern", serde_json::json!({"c_attn": 4})),
        ("modules_to_save", serde_json::json!(["lm_head"])),
        ("target_modules", serde_json::json!("all-linear")),
        ("target_modules", serde_json::json!(["c_atnn"])),
        ("target_modules", serde_json::json!(["c_attn", "c_fc"])),
        ("peft_type", serde_json::json!("IA3")),
    ] {
        let said = refused("gpt2_default", "gpt2_tiny", &|config| config[key] = value.clone());
        assert!(!said.is_empty() && said.lines().count() == 1, "{key} {value}: {said}");
    }
    // Another base: other names; or the same names with other numbers, where the adapter names its base's hash.
    assert!(!refused("gpt2_default", "llama_tiny", &none).is_empty());
    let home = tempfile::tempdir().unwrap();
    let mut read = checkpoint::load_opened(opened("gpt2_default", "gpt2_tiny")).unwrap();
    let bare = OpenCheckpoint::folder(&fixtures().join("gpt2_tiny")).unwrap();
    let options = |hash: String| SaveOptions { metadata: vec![("base_sha256".into(), hash)], ..read.save_options() };
    checkpoint::save(&home.path().join("right"), &read.weights, &options(bare.sha256().unwrap())).unwrap();
    checkpoint::save(&home.path().join("wrong"), &read.weights, &options("0".repeat(64))).unwrap();
    let on = |dir: &str| OpenCheckpoint::folder(&fixtures().join("gpt2_tiny")).unwrap().adapted(&home.path().join(dir));
    assert!(on("right").is_ok());
    assert!(on("wrong").err().unwrap().to_string().contains("adapter of this model"));
    let layout = read.weights.layout.clone();
    assert!(Adapter::default().attach(read.weights.take(), 1).is_err(), "one adapter is enough");
    assert!("all".parse::<ferret::method::Tune>().unwrap().ids(&layout).is_err());
    assert!("lora".parse::<ferret::method::Tune>().unwrap().ids(&bare.layout).is_err());
}

fn adapter() -> Adapter {
    Adapter { rank: 2, alpha: 6.0, targets: vec!["c_attn".into(), "mlp.c_proj".into()] }
}

fn methods(base: &Weights) -> Vec<Method> {
    let layout = Layout::new(&adapter().on(&base.config).unwrap());
    let tune: ferret::method::Tune = "lora".parse().unwrap();
    let ids = tune.ids(&layout).unwrap();
    assert_eq!(ids.len(), 2 * 2 * base.config.layers);
    let members = Groups::tuned(&ids, Grouping::Bucket(1)).unwrap().members;
    let ferret = Settings {
        tune: tune.clone(),
        adapter: Some(adapter()),
        epsilon: 20.0,
        records: N,
        batch: 8,
        epochs: 2,
        learning_rate: 2e-2,
        weight_decay: 0.1,
        micro_batch: 3,
        seed: 5,
        ..Settings::paper("ferret-max", Cuts::over(&ids, &members).unwrap())
    };
    let privacy = Privacy {
        noise_multiplier: 1.0,
        clip: 1.0,
        clip_rule: ClipFunction::Automatic,
        clip_style: ClipStyle::Flat,
        clip_groups: None,
    };
    let dense = |method| {
        Method::Dense(dense::Settings {
            tune: tune.clone(),
            adapter: Some(adapter()),
            records: N,
            batch: 8,
            steps: Some(4),
            micro_batch: 3,
            learning_rate: 1e-2,
            seed: 5,
            ..dense::Settings::usual(method)
        })
    };
    vec![
        Method::Ferret(ferret.clone()),
        Method::Ferret(Settings { engine: Engine::Jvp, route: Route::Direct, weight_decay: 0.0, ..ferret }),
        dense(dense::Method::Dpsgd(privacy)),
        dense(dense::Method::Nonprivate),
        dense(dense::Method::Signsgd { variant: Variant::ErrorFeedback }),
    ]
}

#[test]
fn training_changes_the_adapter_and_nothing_else_and_replays_and_resumes() {
    let base = weights(config(|c| c.layers = 3), 7);
    let count = base.layout.len();
    let fresh = adapter().attach(base.clone(), 5).unwrap();
    let widths = own(&fresh.layout).into_iter().map(|p| (fresh.get(p), fresh.layout.spec(p)));
    for (numbers, spec) in widths {
        let bound = 1.0 / (spec.shape[1] as f32).sqrt();
        match spec.adapter.unwrap() {
            ferret::model::layout::Side::A => {
                assert!(numbers.iter().all(|x| x.abs() <= bound) && numbers.iter().any(|x| x.abs() > 0.8 * bound));
            }
            ferret::model::layout::Side::B => assert!(numbers.iter().all(|x| *x == 0.0)),
        }
    }
    for method in methods(&base) {
        let (tuned, record) = run(&base, &method, None).unwrap();
        assert_eq!(tuned.tensors.len(), count + own(&fresh.layout).len());
        for (p, tensor) in tuned.tensors.iter().enumerate() {
            let Stored::F32(tensor) = tensor else { panic!("f32") };
            assert_eq!(*tensor == fresh.tensors[p], p < count, "{}: {}", method.name(), tuned.layout.specs()[p].name);
        }
        if let Record::Ferret(transcript) = &record {
            let again = replay(base.clone(), transcript, |_| ()).unwrap();
            assert_eq!(again.into_stored().tensors, tuned.tensors);
            let text = transcript.to_json().unwrap();
            assert!(text.contains("\"tune\": \"lora\"") && text.contains("\"rank\": 2"), "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let resumed = loop {
            if let Some((weights, _)) = run(&base, &method, Some(dir.path())) {
                break weights;
            }
        };
        assert_eq!(resumed.tensors, tuned.tensors, "{}", method.name());
    }
}
