//! DPSGD with public scales by brute force: what a step does to the weights, its noise, and what is refused.

use crate::common::{config, records, weights};
use crate::dense::{N, drawn, norm, privacy, run, settings};
use ferret::backend::Cpu;
use ferret::data::{Example, batches};
use ferret::grad::PerSample;
use ferret::method::Scales;
use ferret::method::dense::{ClipFunction, ClipStyle, Method, Privacy, Record, Settings};
use ferret::model::{Decoder, Reduction, Weights};
use ferret::rng::Secret;

/// Exponents of all kinds, one for each of so many tensors.
fn exponents(tensors: usize) -> Vec<i8> {
    (0..tensors).map(|i| (i * 7 % 23) as i8 - 11).collect()
}

/// s by the standard library, not by the table.
fn factor(e: i8) -> f64 {
    f64::from(2f64.powf(f64::from(e) / 4.0) as f32)
}

/// `before - after`, tensor by tensor.
fn moved(before: &Weights, after: &Weights) -> Vec<Vec<f64>> {
    let tensors = before.tensors.iter().zip(&after.tensors);
    tensors.map(|(b, a)| b.iter().zip(a).map(|(b, a)| f64::from(*b) - f64::from(*a)).collect()).collect()
}

/// `s / B sum_i f_i s g_i` from every sample's gradient, groups of tensors clipped together to `C / sqrt(L)` by their own f.
fn by_hand(base: &Weights, s: &Settings, privacy: &Privacy, records: &[&Example]) -> Vec<Vec<f64>> {
    let decoder = Decoder::new(Cpu::<f64>::new(), base.clone()).unwrap();
    let layout = &decoder.layout;
    let batch = batches::batch(records.iter().copied());
    let mut all = PerSample::new(&decoder.backend, layout, batch.segments.len());
    decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut all);
    let scales: Vec<f64> = s.scales.as_ref().unwrap().0.iter().map(|e| factor(*e)).collect();
    let group = |p: usize| if privacy.clip_style == ClipStyle::PerLayer { p } else { 0 };
    let groups = group(layout.len() - 1) + 1;
    let mut out: Vec<Vec<f64>> = layout.specs().iter().map(|spec| vec![0.0; spec.len()]).collect();
    for i in 0..batch.segments.len() {
        let scaled: Vec<Vec<f64>> = layout
            .ids()
            .map(|p| all.sample(i).get(p).unwrap().as_slice().iter().map(|g| scales[p.0] * g).collect())
            .collect();
        for g in 0..groups {
            let own = || (0..scaled.len()).filter(|&p| group(p) == g);
            let norm = own().flat_map(|p| &scaled[p]).map(|x| x * x).sum::<f64>().sqrt();
            let factor = privacy.clip_rule.factor(norm, privacy.clip / (groups as f64).sqrt());
            for p in own() {
                for (out, x) in out[p].iter_mut().zip(&scaled[p]) {
                    *out += scales[p] * factor * x / s.batch as f64;
                }
            }
        }
    }
    out
}

#[test]
fn a_step_is_clipped_where_it_is_scaled_and_scaled_once_more() {
    let secret = Secret::insecure(3);
    for tied in [true, false] {
        let base = weights(config(|c| c.tied = tied), 7);
        let records = records(&base.config, N, 1, 1);
        for style in [ClipStyle::Flat, ClipStyle::PerLayer] {
            for (clip_rule, clip) in
                [(ClipFunction::Abadi, 0.5), (ClipFunction::Automatic, 2.0), (ClipFunction::Abadi, 1e5)]
            {
                let p = Privacy { clip_rule, clip_style: style, ..privacy(0.0, clip) };
                let s = settings(Method::Dpsgd(p.clone()), |s| {
                    s.scales = Some(Scales(exponents(base.layout.len())));
                });
                let own: Vec<&Example> = drawn(&s, &secret, 0).into_iter().map(|i| &records[i]).collect();
                let want = by_hand(&base, &s, &p, &own);
                let got = moved(&base, &run(&base, &s, &secret, &records));
                for (spec, (got, want)) in base.layout.specs().iter().zip(got.iter().zip(&want)) {
                    let off: Vec<f64> = got.iter().zip(want).map(|(a, b)| a - b).collect();
                    // Weights of about 1 hold 1e-7 of themselves.
                    let most = 3e-4 * norm(want) + 1e-6 * (want.len() as f64).sqrt();
                    assert!(norm(&off) < most, "{}, {style:?}, {clip_rule:?}: {}", spec.name, norm(&off) / norm(want));
                }
            }
        }
    }
}

/// Noise is added where it was clipped: z C on every number there, s times that in tensor t. Ones are none.
#[test]
fn noise_is_that_of_the_scaled_sum() {
    let base = weights(config(|_| ()), 7);
    let (records, secret) = (records(&base.config, N, 1, 1), Secret::insecure(3));
    let with = |z: f64, scales: Option<Scales>| {
        run(&base, &settings(Method::Dpsgd(privacy(z, 1.0)), |s| s.scales = scales.clone()), &secret, &records)
    };
    let ones = Scales(vec![0; base.layout.len()]);
    assert_eq!(with(0.8, Some(ones)).tensors, with(0.8, None).tensors);
    let scales = Scales(exponents(base.layout.len()));
    let noise = |scales: Option<Scales>| moved(&with(0.0, scales.clone()), &with(50.0, scales));
    let (plain, scaled) = (noise(None), noise(Some(scales.clone())));
    for ((e, plain), scaled) in scales.0.iter().zip(plain).zip(scaled) {
        let off: Vec<f64> = plain.iter().zip(&scaled).map(|(a, b)| factor(*e) * a - b).collect();
        assert!(norm(&off) < 1e-3 * norm(&scaled), "{e}: {}", norm(&off) / norm(&scaled));
    }
}

#[test]
fn scales_are_of_dpsgd_and_in_records_of_their_own_version() {
    let base = weights(config(|_| ()), 7);
    let scales = Some(Scales(exponents(base.layout.len())));
    for method in [Method::Nonprivate, Method::DpSignsgd(privacy(1.0, 1.0)), Method::Qsgd { bits: 4 }] {
        let error = settings(method, |s| s.scales = scales.clone()).check().unwrap_err().to_string();
        assert!(error.contains("belong to ferret-k and dpsgd"), "{error}");
    }
    let plain = settings(Method::Dpsgd(privacy(1.0, 1.0)), |_| ());
    let scaled = Settings { scales: scales.clone(), ..plain.clone() };
    let wide = Settings { scales: Some(Scales(vec![65])), ..plain.clone() };
    assert!(wide.check().unwrap_err().to_string().contains("exponent of 65"));
    for (settings, version) in [(plain, 2), (scaled, 3)] {
        let hash = "0".repeat(64);
        let found = Record::version(&settings);
        let record =
            Record { version: found, settings, steps_run: 1, base_sha256: hash.clone(), tuned_sha256: hash.clone() };
        let text = record.to_json();
        assert_eq!((found, text.contains("scales")), (version, version == 3));
        assert_eq!(Record::from_json(&text).unwrap(), record);
        let other = text.replace(&format!("\"version\": {version}"), &format!("\"version\": {}", 5 - version));
        assert!(Record::from_json(&other).unwrap_err().to_string().contains("is not that of its settings"));
    }
}
