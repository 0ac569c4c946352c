//! Weights that are stored in two bytes stay so in training: the same bits as from a widened base, and files in which only what was changed is f32.

use crate::common::{config, weights};
use crate::training::run;
use ferret::kernel::Stored;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Privacy, Variant};
use ferret::method::ferret::{Cuts, Engine, Settings, Transcript, replay};
use ferret::method::{Method, Record, Tune};
use ferret::model::Weights;
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use ferret::optim::Route;
use half::{bf16, f16};

/// The same numbers twice: as stored in two bytes, and widened.
fn base() -> (Weights<Stored>, Weights) {
    let wide = weights(config(|c| c.layers = 3), 7);
    let narrow = |(i, t): (usize, &Vec<f32>)| match i % 3 {
        0 => Stored::F16(t.iter().map(|&x| f16::from_f32(x)).collect()),
        _ => Stored::Bf16(t.iter().map(|&x| bf16::from_f32(x)).collect()),
    };
    let tensors = wide.tensors.iter().enumerate().map(narrow).collect();
    let stored = Weights { config: wide.config.clone(), layout: wide.layout.clone(), tensors };
    (stored.clone(), stored.into_form())
}

fn ferret(base: &Weights, route: Route, engine: Engine) -> Method {
    let members: Vec<_> = base.layout.ids().map(|p| vec![p]).collect();
    Method::Ferret(Settings {
        epsilon: 2.0,
        records: 40,
        batch: 8,
        epochs: 2,
        learning_rate: 2e-2,
        weight_decay: if route == Route::Adamw { 1e-3 } else { 0.0 },
        route,
        engine,
        seed: 5,
        ..Settings::paper("ferret-max", Cuts::of(&members).unwrap())
    })
}

fn dense(method: dense::Method, tune: &str) -> Method {
    Method::Dense(dense::Settings {
        tune: tune.parse().unwrap(),
        records: 40,
        batch: 8,
        steps: Some(3),
        micro_batch: 3,
        learning_rate: 1e-2,
        seed: 5,
        ..dense::Settings::usual(method)
    })
}

fn bits(w: Weights<Stored>) -> Vec<Vec<u32>> {
    w.into_form::<Vec<f32>>().tensors.iter().map(|t| t.iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn training_from_stored_weights_gives_the_bits_of_widened_ones() {
    let (stored, wide) = base();
    assert_eq!(checkpoint::tensors_sha256(&stored), checkpoint::tensors_sha256(&wide));
    let privacy = Privacy {
        noise_multiplier: 1.0,
        clip: 1.0,
        clip_rule: ClipFunction::Automatic,
        clip_style: ClipStyle::Flat,
        clip_groups: None,
    };
    for method in [
        ferret(&wide, Route::Direct, Engine::Jvp),
        ferret(&wide, Route::Direct, Engine::Backward),
        ferret(&wide, Route::Adamw, Engine::Backward),
        dense(dense::Method::Dpsgd(privacy), "all"),
        dense(dense::Method::Nonprivate, "last:1"),
        dense(dense::Method::Signsgd { variant: Variant::Plain }, "norms"),
    ] {
        let ((tuned, record), (want, same)) =
            (run(&stored, &method, None).unwrap(), run(&wide, &method, None).unwrap());
        assert_eq!(record, same);
        // What was touched is f32, and nothing else is.
        let touched: Vec<bool> = match (&record, &method) {
            (Record::Ferret(t), Method::Ferret(s)) if s.route == Route::Direct => {
                let fired: Vec<u32> = t.fires().iter().map(|f| f.1).collect();
                (0..wide.layout.len()).map(|g| fired.contains(&(g as u32))).collect()
            }
            _ => {
                let ids = method.tune().ids(&wide.layout).unwrap();
                wide.layout.ids().map(|p| ids.contains(&p)).collect()
            }
        };
        for ((after, before), touched) in tuned.tensors.iter().zip(&stored.tensors).zip(&touched) {
            match after {
                Stored::F32(_) => assert!(touched),
                narrow => assert!(!touched && narrow == before),
            }
        }
        let all = method.tune() == &Tune::default();
        assert!(
            touched.contains(&true)
                && (touched.contains(&false)
                    || (all && !matches!(method, Method::Ferret(_)))
                    || method.common().route == Route::Adamw)
        );
        assert_eq!(bits(tuned), bits(want));
    }
}

/// The file that training writes is the file that replay writes: f32 where a group fired, the base's own bytes elsewhere.
#[test]
fn files_keep_what_was_not_changed_as_it_was_stored() {
    let home = tempfile::tempdir().unwrap();
    let (folder, out, again) = (home.path().join("base"), home.path().join("out"), home.path().join("again"));
    let (_, wide) = base();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        checkpoint::save(&folder, &wide, &SaveOptions::fresh(dtype)).unwrap();
        let base = checkpoint::load_folder_stored(&folder).unwrap();
        assert_eq!(base.dtype, dtype);
        let (tuned, record) = run(&base.weights, &ferret(&wide, Route::Direct, Engine::Backward), None).unwrap();
        let Record::Ferret(transcript) = &record else { panic!("a transcript") };
        record.save(&out, &base, &tuned).unwrap();
        let replayed = replay(base.weights.clone(), transcript, |_| ()).unwrap();
        record.save(&again, &base, &replayed).unwrap();
        let bytes = |dir: &std::path::Path, name: &str| std::fs::read(dir.join(name)).unwrap();
        assert_eq!(bytes(&out, "model.safetensors"), bytes(&again, "model.safetensors"));
        let config = String::from_utf8(bytes(&out, "config.json")).unwrap();
        assert!(!config.contains("float16"), "{config}");
        let read = checkpoint::load_folder_stored(&out).unwrap();
        assert_eq!(read.weights.tensors, tuned.tensors);
        assert!(read.weights.tensors.iter().any(|t| matches!(t, Stored::F32(_))));
        assert!(read.weights.tensors.iter().any(|t| !matches!(t, Stored::F32(_))));
        assert!(Transcript::from_json(&String::from_utf8(bytes(&out, "transcript.json")).unwrap(), &out).is_ok());
        // All changed or none: one precision, which config.json names.
        checkpoint::save(&home.path().join("whole"), &base.weights, &base.save_options()).unwrap();
        assert_eq!(bytes(&home.path().join("whole"), "model.safetensors"), bytes(&folder, "model.safetensors"));
        assert_eq!(bytes(&home.path().join("whole"), "config.json"), bytes(&folder, "config.json"));
        for dir in [&folder, &out, &again] {
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}
