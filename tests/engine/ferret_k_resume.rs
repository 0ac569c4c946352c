//! FERRET-k runs that go on, at any thread count, and transcripts that are damaged.

use crate::common::{bits, in_pool, weights};
use crate::ferret_k::{records, run, scale, settings, shape, trainer};
use ferret::method::ferret_k::{Levels, Release, Releases, Settings, Transcript, replay};
use ferret::method::{Run, Samples};
use ferret::optim::Route;
use ferret::rng::Secret;
use std::path::Path;

#[test]
fn a_run_goes_on_where_its_releases_end() {
    let (base, records, secret) = (weights(shape(), 1), records(40, 2), Secret::insecure(9));
    for edit in [
        (|_| ()) as fn(&mut Settings),
        |s| (s.route, s.momentum, s.p, s.learning_rate) = (Route::Adamw, 0.0, 0.5, 1e-2),
        |s| s.release = Release::Scalar,
        |s| (s.release, s.p) = (Release::Level, 0.5),
        |s| {
            s.release = Release::Level;
            scale(s);
        },
    ] {
        let s = settings(edit);
        let (whole, transcript) = run(&base, &s, &records);
        let k = s.bits_per_step as usize;
        for steps in [0, 1, s.fires(s.steps()).len() / 2] {
            let part = match &transcript.releases {
                Releases::Signs(x) => Releases::Signs(x[..steps * k].to_vec()),
                Releases::Levels(l) => {
                    Releases::Levels(Levels { sizes: l.sizes[..steps].to_vec(), codes: l.codes[..steps * k].to_vec() })
                }
                Releases::Scalars(x) => Releases::Scalars(x[..steps * k].to_vec()),
            };
            let mut trainer = trainer(&base, &s, Some(part), &secret, &records);
            while trainer.step().unwrap().is_some() {}
            let (weights, again, _) = trainer.end().unwrap();
            assert_eq!(again, transcript);
            assert_eq!(bits(&weights.tensors), bits(&whole.tensors));
        }
    }
}

#[test]
fn the_same_bits_at_any_thread_count_and_others_with_another_key() {
    let (base, records) = (weights(shape(), 1), records(40, 2));
    let s = settings(|_| ());
    let on = |threads| in_pool(threads, || run(&base, &s, &records).1);
    let one = on(1);
    assert_eq!(one, on(2));
    assert_eq!(one, on(5));
    // Samples and noise of steps are their own.
    let Releases::Signs(signs) = &one.releases else { panic!("signs") };
    let steps: std::collections::HashSet<&[i8]> = signs.chunks(37).collect();
    assert_eq!(steps.len(), s.steps() as usize);
    let samples = |step| Samples::new(&Secret::insecure(9), s.sampler, 40, 8).unwrap().known(step, 0).unwrap();
    assert_ne!(samples(0), samples(1));
}

type Edit<'a> = &'a dyn Fn(&mut serde_json::Value);

/// What is read of a transcript that was edited and signed anew.
fn forged(text: &str, edit: Edit) -> Result<Transcript, String> {
    use sha2::{Digest, Sha256};
    let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
    edit(&mut value);
    value["checksum"] = "".into();
    let sum = Sha256::digest(value.to_string());
    value["checksum"] = sum.iter().map(|b| format!("{b:02x}")).collect::<String>().into();
    Transcript::from_json(&value.to_string(), Path::new("t")).map_err(|e| e.to_string())
}

#[test]
fn a_damaged_transcript_of_levels_is_refused() {
    let (base, records) = (weights(shape(), 1), records(40, 2));
    let (_, transcript) = run(&base, &settings(|s| (s.p, s.release) = (0.7, Release::Level)), &records);
    let text = transcript.to_json().unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&read["version"], &read["settings"]["release"]), (&2.into(), &"level".into()));
    let fires = read["fires"].as_u64().unwrap() as usize;
    assert_eq!(transcript.releases.bits(), (2 * 37 + 32) * fires as u64);
    let [levels, sizes] = ["levels", "sizes"].map(|name| read[name].as_str().unwrap().to_owned());
    assert_eq!(forged(&text, &|_| ()).unwrap(), transcript, "the forger's tools work");
    let edits: &[(&str, Edit)] = &[
        ("levels: is no base64", &|t| t["levels"] = levels[1..].into()),
        ("sizes: is no base64", &|t| t["sizes"] = sizes[1..].into()),
        ("levels: holds", &|t| t["levels"] = format!("AAAA{levels}").into()),
        ("sizes: holds", &|t| t["sizes"] = "AAAA".into()),
        ("size is 0", &|t| t["sizes"] = format!("AAAAAA{}", &sizes[6..]).into()),
        ("levels and sizes", &|t| _ = t.as_object_mut().unwrap().remove("sizes")),
        ("levels and sizes", &|t| t["signs"] = levels.clone().into()),
        ("levels and sizes", &|t| t["scalars"] = sizes.clone().into()),
        ("version 1", &|t| t["version"] = 1.into()),
        ("version 3", &|t| t["version"] = 3.into()),
        ("version 2", &|t| t["settings"]["release"] = "sign".into()),
        ("levels: holds", &|t| t["settings"]["bits_per_step"] = 36.into()),
        ("unknown field", &|t| t["settings"]["level_bits"] = 2.into()),
        ("make", &|t| t["settings"]["seed"] = 54_321.into()),
    ];
    for (sentence, edit) in edits {
        let error = forged(&text, edit).unwrap_err();
        assert!(error.contains(sentence), "expected {sentence:?}: {error}");
    }
    // A size too much, and half a step.
    for edit in [(|l| l.sizes.push(1)) as fn(&mut Levels), |l| l.codes.push(1), |l| l.codes[0] = 4] {
        let mut long = transcript.clone();
        let Releases::Levels(levels) = &mut long.releases else { panic!("levels") };
        edit(levels);
        assert!(long.to_json().is_err());
    }
}

/// Neither without its scales nor as an earlier version, nor with others that the weights do not tell apart.
#[test]
fn a_damaged_transcript_with_scales_is_refused() {
    let (base, records) = (weights(shape(), 1), records(40, 2));
    let (_, transcript) = run(
        &base,
        &settings(|s| {
            s.release = Release::Level;
            scale(s);
        }),
        &records,
    );
    let text = transcript.to_json().unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["version"], 3);
    assert_eq!(forged(&text, &|_| ()).unwrap(), transcript, "the forger's tools work");
    let edits: &[(&str, Edit)] = &[
        ("version 1", &|t| t["version"] = 1.into()),
        ("version 2", &|t| t["version"] = 2.into()),
        ("version 4", &|t| t["version"] = 4.into()),
        ("version 3", &|t| _ = t["settings"].as_object_mut().unwrap().remove("scales")),
        ("version 3", &|t| t["settings"]["scales"] = serde_json::Value::Null),
        ("lists nothing", &|t| t["settings"]["scales"] = Vec::<i8>::new().into()),
        ("exponent of 65", &|t| t["settings"]["scales"][1] = 65.into()),
        ("i8", &|t| t["settings"]["scales"][1] = 1000.into()),
        ("i8", &|t| t["settings"]["scales"][1] = 0.5.into()),
    ];
    for (sentence, edit) in edits {
        let error = forged(&text, edit).unwrap_err();
        assert!(error.contains(sentence), "expected {sentence:?}: {error}");
    }
    // Without them, as the version that has none: another run. With one more, or one less: none at all.
    let bare: Edit = &|t| {
        t["version"] = 2.into();
        t["settings"].as_object_mut().unwrap().remove("scales");
    };
    let error = replay(base.clone(), &forged(&text, bare).unwrap(), |_| ()).unwrap_err().to_string();
    assert!(error.contains("not to the"), "{error}");
    let edits: [Edit; 2] = [&|t| t["settings"]["scales"].as_array_mut().unwrap().push(0.into()), &|t| {
        _ = t["settings"]["scales"].as_array_mut().unwrap().pop();
    }];
    for edit in edits {
        let error = replay(base.clone(), &forged(&text, edit).unwrap(), |_| ()).unwrap_err().to_string();
        assert!(error.contains("tuned tensors"), "{error}");
    }
}

#[test]
fn a_damaged_transcript_is_refused() {
    let (base, records) = (weights(shape(), 1), records(40, 2));
    let (_, transcript) = run(&base, &settings(|s| s.p = 0.7), &records);
    let text = transcript.to_json().unwrap();
    let forge = |edit: Edit| forged(&text, edit);
    assert_eq!(forge(&|_| ()).unwrap(), transcript, "the forger's tools work");
    let signs = serde_json::from_str::<serde_json::Value>(&text).unwrap()["signs"].as_str().unwrap().to_owned();
    let edits: &[(&str, Edit)] = &[
        ("is no base64", &|t| t["signs"] = signs[1..].into()),
        ("no character of base64", &|t| t["signs"] = format!("!{}", &signs[1..]).into()),
        ("bytes", &|t| t["signs"] = format!("AAAA{signs}").into()),
        ("bytes", &|t| t["fires"] = 3.into()),
        ("make", &|t| t["settings"]["seed"] = 54_321.into()),
        ("make", &|t| t["settings"]["p"] = 0.6.into()),
        ("bytes", &|t| t["settings"]["bits_per_step"] = 36.into()),
        ("releases are listed", &|t| t["steps_run"] = 9.into()),
        ("planned", &|t| t["steps_run"] = 81.into()),
        ("hexadecimal", &|t| t["base_sha256"] = "short".into()),
        ("other things than scalars", &|t| t["settings"]["release"] = "scalar".into()),
        ("other things than signs", &|t| t["scalars"] = "AAAA".into()),
        ("unknown field", &|t| t["extra"] = 1.into()),
        ("unknown field", &|t| t["settings"]["extra"] = 1.into()),
        ("bits_per_step", &|t| t["settings"]["bits_per_step"] = 0.into()),
        ("noise_multiplier", &|t| t["settings"]["noise_multiplier"] = (-1.0).into()),
        ("version 2", &|t| t["version"] = 2.into()),
        ("is no transcript", &|t| t["format"] = "other".into()),
        ("bytes", &|t| {
            // A few bytes that name more steps than any memory holds.
            (t["settings"]["steps"], t["steps_run"], t["fires"]) = (100_000_000.into(), 100_000_000.into(), 1.into());
        }),
    ];
    for (sentence, edit) in edits {
        let error = forge(edit).unwrap_err();
        assert!(error.contains(sentence), "expected {sentence:?}: {error}");
    }
    // Edits by hand, the checksum left as it was: settings that no weight depends on.
    for (from, to) in [("\"noise_multiplier\": 0.8", "\"noise_multiplier\": 8.0"), ("\"poisson\"", "\"uniform\"")] {
        assert!(text.contains(from), "{text}");
        let error = Transcript::from_json(&text.replace(from, to), Path::new("t")).unwrap_err().to_string();
        assert!(error.contains("was changed after it was written"), "{error}");
    }
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        assert!(Transcript::from_json(&text[..cut], Path::new("t")).is_err());
    }
    // Half a step too much.
    let mut long = transcript.clone();
    let Releases::Signs(signs) = &mut long.releases else { panic!("signs") };
    signs.push(1);
    assert!(long.to_json().is_err());
}
