use super::*;

#[test]
fn contradictions_are_refused() {
    example().check().unwrap();
    type Edit = fn(&mut Settings);
    let edits: &[(&str, Edit)] = &[
        ("method", |s| s.method = "ferret-max`, proven (0, 0)-private by `audit".into()),
        ("method", |s| s.method = "perfectly-private".into()),
        ("method", |s| s.method = "ferret".repeat(10)),
        ("method", |s| s.method = "ferret-k".into()),
        ("epsilon", |s| s.epsilon = f64::NAN),
        ("epsilon", |s| s.epsilon = 0.0),
        ("batch", |s| s.batch = 0),
        ("batch", |s| s.batch = 1001),
        ("steps", |s| s.steps = Some(0)),
        ("steps", |s| s.epochs = u32::MAX),
        ("micro_batch", |s| s.micro_batch = 0),
        ("flip", |s| s.release = Release::Rr { flip: 0.5, unbiased: false }),
        ("dither", |s| s.release = Release::Gaussian { dither: -1.0 }),
        ("clip", |s| s.clip = f64::INFINITY),
        ("learning_rate", |s| s.learning_rate = -1.0),
        ("warmup", |s| s.schedule = Schedule::Linear { warmup: 1.5 }),
        ("weight_decay", |s| s.route = Route::Direct),
        ("shuffle", |s| (s.sampler, s.batch_per) = (Sampler::Shuffle, BatchPer::Bit)),
        ("true-gradient", |s| {
            (s.payload, s.release) = (Payload::TrueGradient, Release::Rr { flip: 0.1, unbiased: false });
        }),
    ];
    for (name, edit) in edits {
        let mut s = example();
        edit(&mut s);
        let error = s.check().unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn above_the_ceiling_everything_fires() {
    let mut s = example();
    s.epsilon = 1e3;
    assert_eq!(s.p(), 1.0);
    s.check().unwrap();
    assert_eq!(s.fires(60).len(), 960);
    s.mask = MaskKind::Exact;
    assert_eq!(s.fires(60).len(), 960);
}

#[test]
fn exact_spends_the_floor_and_prefixes_agree() {
    let mut s = example();
    s.mask = MaskKind::Exact;
    let all = s.fires(60);
    assert_eq!(all.len(), 14); // 0.5 / (0.05 ln 2) = 14.4
    for kind in [MaskKind::Exact, MaskKind::Bernoulli] {
        s.mask = kind;
        let all = s.fires(60);
        let some: Vec<_> = all.iter().copied().filter(|f| f.0 < 30).collect();
        assert_eq!(s.fires(30), some);
    }
}

/// Files of earlier versions hold what follows from the settings: it is passed over where it agrees, and refused where not.
#[test]
fn what_earlier_versions_stored_must_be_what_the_settings_make() {
    let s = example();
    let mut earlier = serde_json::to_value(&s).unwrap();
    assert!(earlier.get("steps").is_none() && earlier.get("p").is_none());
    (earlier["steps"], earlier["sampling_rate"], earlier["p"]) = (60.into(), 0.05.into(), s.p().into());
    earlier.as_object_mut().unwrap().remove("micro_batch");
    assert_eq!(serde_json::from_value::<Settings>(earlier.clone()).unwrap(), s);
    for (name, value) in [("p", 0.5), ("sampling_rate", 0.06), ("p", f64::NAN), ("steps", 61.0), ("sead", 0.0)] {
        let mut wrong = earlier.clone();
        wrong[name] = if name == "steps" { 61.into() } else { value.into() };
        assert!(serde_json::from_value::<Settings>(wrong).is_err(), "{name} {value}");
    }
    let own = Settings { steps: Some(61), ..s };
    assert_eq!(serde_json::from_value::<Settings>(serde_json::to_value(&own).unwrap()).unwrap(), own);
}
