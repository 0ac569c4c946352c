//! Public scales on FERRET-k's sketch: where they come from, and what a run that has them states.

use crate::common::{in_pool, weights};
use crate::ferret_k::{records, run, scale, settings, shape};
use ferret::data::Example;
use ferret::method::ferret_k::Settings;
use ferret::method::{Method, Record, Scales, Tune};
use ferret::model::Adapter;
use ferret::privacy::statement::Circumstances;

fn measure(s: &Settings, public: &[Example], own: &[Example]) -> Result<Scales, String> {
    Scales::measure(&Method::FerretK(s.clone()), &weights(shape(), 1), public, own).map_err(|e| e.to_string())
}

#[test]
fn scales_are_the_same_at_any_thread_count_and_one_for_each_tuned_tensor() {
    let (base, public, own) = (weights(shape(), 1), records(60, 7), records(40, 2));
    for tune in ["all", "last:1,bias"] {
        let s = settings(|s| s.tune = tune.parse().unwrap());
        let one = in_pool(1, || measure(&s, &public, &own).unwrap());
        assert_eq!(one, in_pool(2, || measure(&s, &public, &own).unwrap()));
        assert_eq!(one, in_pool(5, || measure(&s, &public, &own).unwrap()));
        assert_eq!(one.0.len(), s.tune.ids(&base.layout).unwrap().len());
        assert!(one.0.iter().any(|e| *e != one.0[0]), "{one:?}");
    }
    // A record without a target says nothing, and nothing but such says nothing at all.
    let silent = Example::all(vec![3]);
    let s = settings(|_| ());
    let with = [public.clone(), vec![silent.clone()]].concat();
    assert_eq!(measure(&s, &with, &own), measure(&s, &public, &own));
    assert!(measure(&s, &[silent], &own).unwrap_err().contains("has no gradient"));
}

/// One record of those trained on is enough, whichever it is and wherever it stands; also where only its tokens are the same.
#[test]
fn text_that_is_trained_on_gives_no_scales() {
    let (public, own, s) = (records(60, 7), records(40, 2), settings(|_| ()));
    measure(&s, &public, &own).unwrap();
    let counting = own.iter().filter(|e| e.targets() > 0).count();
    for (with, shared) in [
        (own.clone(), counting),
        ([&public[..], &own[..1]].concat(), 1),
        ([&own[39..], &public[..]].concat(), 1),
        // Beyond the records that are measured.
        ([vec![public.clone(); 20].concat(), own[20..21].to_vec()].concat(), 1),
    ] {
        let error = measure(&s, &with, &own).unwrap_err();
        assert!(error.contains(&format!("{shared} of the {} records", with.len())), "{error}");
        assert!(error.contains("are trained on too"), "{error}");
    }
    let mut other = own[1].clone();
    other.learn[1] = false;
    assert!(other.targets() > 0 && measure(&s, &[other], &own).is_err());
}

/// Half of a fresh adapter has no gradient, because the other half is 0: were its scale the largest there is, steps would be spent on it.
#[test]
fn the_silent_half_of_an_adapter_has_no_say() {
    let (public, own) = (records(60, 7), records(40, 2));
    let adapter = Adapter { rank: 2, alpha: 6.0, targets: vec!["c_attn".into(), "mlp.c_proj".into()] };
    let tune: Tune = "lora".parse().unwrap();
    let s = settings(|s| (s.tune, s.adapter) = (tune.clone(), Some(adapter.clone())));
    let scales = measure(&s, &public, &own).unwrap();
    let adapted = adapter.attach(weights(shape(), 1), s.seed).unwrap();
    let tuned = tune.ids(&adapted.layout).unwrap();
    assert_eq!(scales.0.len(), tuned.len());
    let (mut silent, mut least, mut most) = (0, 0, 0);
    for (p, e) in tuned.iter().zip(&scales.0) {
        // Side B begins at 0.
        match adapted.tensors[p.0].iter().any(|x| *x != 0.0) {
            true => {
                assert_eq!(*e, 0);
                silent += 1;
            }
            false => (least, most) = (least.min(*e), most.max(*e)),
        }
    }
    assert_eq!(2 * silent, tuned.len());
    assert!((-8..=0).contains(&least) && (0..=8).contains(&most), "{scales:?}");
}

/// Whoever states the run again finds the assumption; a statement that leaves it out is not the run's, and one of a run without scales does not have it.
#[test]
fn a_statement_without_the_assumption_is_not_the_runs() {
    let (base, own) = (weights(shape(), 1), records(40, 2));
    for scaled in [true, false] {
        let s = settings(|s| {
            if scaled {
                scale(s)
            }
        });
        let (_, transcript) = run(&base, &s, &own);
        let stated = s.statement(transcript.steps_run, 1e-5, Circumstances::default()).unwrap();
        let public = stated.assumptions.iter().filter(|a| a.contains("The scales on the sketch")).count();
        assert_eq!(public, usize::from(scaled));
        let made = Record::FerretK(transcript).restate(&base.layout, &stated).unwrap();
        let differences = |mut stated: ferret::privacy::Statement| {
            stated.tuned_sha256.clone_from(&made.tuned_sha256);
            stated.differences(&made, &[])
        };
        assert_eq!(differences(stated.clone()), Vec::<String>::new());
        let (mut less, mut more) = (stated.clone(), stated);
        less.assumptions.retain(|a| !a.contains("The scales on the sketch"));
        assert_eq!(differences(less).is_empty(), !scaled);
        more.assumptions.push("The scales on the sketch came from the moon.".into());
        assert!(!differences(more).is_empty());
    }
}
