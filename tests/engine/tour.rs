//! Solutions of the tour's exercises (docs/tour), by chapter and number.

use ferret::audit::bound::{Bound, Charge, Design};
use ferret::audit::roc::Roc;
use ferret::audit::stats::SeededRng;
use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::method::ferret::{Cuts, Settings, Transcript};
use ferret::method::groups::{Grouping, Groups};
use ferret::method::list::Method;
use ferret::method::run::{GoOn, Task, drive};
use ferret::model::init;
use ferret::ops::{Heads, Order, Segments, attention, linear, rms_norm};
use ferret::privacy::mi::bits::{clean, unsampled};
use ferret::privacy::{Accountant, Event, Pld, calibrate};
use ferret::rng::Secret;
use ndarray::{Array2, Axis};
use std::f64::consts::LN_2;
use std::path::Path;

fn fill(rows: usize, cols: usize, seed: f64) -> Array2<f64> {
    Array2::from_shape_fn((rows, cols), |(i, j)| (seed * (1.0 + i as f64 * 3.7 + j as f64)).sin())
}

fn inner(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
    (a * b).sum()
}

/// `<dy, 1 ḃᵀ> = <sum of dy's rows, ḃ>`: db is the sum over rows.
#[test]
fn product_1_the_bias() {
    let (x, w, dy) = (fill(3, 2, 1.1), fill(2, 4, 2.3), fill(3, 4, 3.1));
    let b_dot = [0.3, -1.0, 2.0, 0.7];
    let mut y_dot = Array2::zeros((3, 4));
    let still = Array2::zeros((3, 2));
    linear::jvp(x.view(), still.view(), (w.view(), Order::InOut), None, Some(&b_dot), y_dot.view_mut());
    let mut db = vec![0.0; 4];
    linear::backward_bias(dy.view(), &mut db);
    assert!((inner(&dy, &y_dot) - db.iter().zip(b_dot).map(|(d, b)| d * b).sum::<f64>()).abs() < 1e-12);
    assert!(db.iter().zip(dy.sum_axis(Axis(0))).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// With r = mean(x²)^(-1/2): ṙ = -r³ mean(x ẋ), so ẏ = r ẋ - r³ x mean(x ẋ): a symmetric map, and dx is the same of dy.
#[test]
fn product_2_rms_norm() {
    let (x, dy) = (fill(1, 6, 1.7), fill(1, 6, 2.9));
    let mean = |a: &Array2<f64>, b: &Array2<f64>| inner(a, b) / 6.0;
    let r = mean(&x, &x).powf(-0.5);
    let by_hand = &dy * r - &x * (r.powi(3) * mean(&x, &dy));
    let (mut y, mut stats, mut dx) = (Array2::zeros((1, 6)), Array2::zeros((1, 1)), Array2::zeros((1, 6)));
    rms_norm::forward(x.view(), &[1.0; 6], 0.0, y.view_mut(), stats.view_mut());
    rms_norm::backward(dy.clone().view_mut(), x.view(), stats.view(), &[1.0; 6], false, dx.view_mut());
    assert!((dx - by_hand).iter().all(|e| e.abs() < 1e-12) && (y - &x * r).iter().all(|e| e.abs() < 1e-12));
}

/// Rows of p sum to 1 whatever the scores do, so rows of ṗ sum to 0.
#[test]
fn attention_1_tangents_of_probabilities_sum_to_zero() {
    let (scores, s_dot) = (fill(4, 4, 1.3), fill(4, 4, 5.9));
    let mut p = Array2::from_shape_fn((4, 4), |(i, j)| if j <= i { scores[[i, j]].exp() } else { 0.0 });
    for mut row in p.rows_mut() {
        let sum = row.sum();
        row /= sum;
    }
    let mean = (&p * &s_dot).sum_axis(Axis(1)).insert_axis(Axis(1));
    let p_dot = &p * &(&s_dot - &mean);
    assert!(p_dot.sum_axis(Axis(1)).iter().all(|sum| sum.abs() < 1e-12));
}

#[test]
fn attention_2_records_do_not_see_each_other() {
    let (segments, heads) = (Segments::from_lengths([3, 4]), Heads::plain(2, 2, 0.7));
    let run = |first: f64| {
        let mut qkv = [1.1, 2.3, 3.1].map(|seed| fill(7, 4, seed));
        qkv.iter_mut().for_each(|x| x[[1, 2]] += first);
        let (mut out, mut lse) = (Array2::zeros((7, 4)), Array2::zeros((7, 2)));
        let views = || [qkv[0].view(), qkv[1].view(), qkv[2].view()];
        attention::forward(views(), &segments, &heads, out.view_mut(), lse.view_mut());
        let mut grads = [(); 3].map(|()| Array2::<f64>::zeros((7, 4)));
        let [dq, dk, dv] = &mut grads;
        let into = [dq.view_mut(), dk.view_mut(), dv.view_mut()];
        attention::backward(fill(7, 4, 4.7).view(), out.view(), lse.view(), views(), &segments, &heads, into);
        let [dq, dk, dv] = grads;
        [out, dq, dk, dv]
    };
    for (a, b) in run(0.0).iter().zip(&run(0.5)) {
        assert_eq!(a.slice(ndarray::s![3.., ..]), b.slice(ndarray::s![3.., ..]));
        assert_ne!(a.slice(ndarray::s![..3, ..]), b.slice(ndarray::s![..3, ..]));
    }
}

/// `T² (I + O) / 2 < T I O` where `T < 2 I O / (I + O)`: up to 767 tokens for I = O = 768.
#[test]
fn norms_1_when_ghosts_are_cheaper() {
    let (i, o) = (768.0, 768.0);
    let cheaper = |t: f64| t * t * (i + o) / 2.0 < t * i * o;
    assert_eq!((1..2000).filter(|&t| cheaper(f64::from(t))).max(), Some(767));
}

/// 1 for an empty record, which adds nothing; 2 for any other, which may point the other way.
#[test]
fn norms_2_sensitivity() {
    let others = [0.3, -0.8];
    let with = |v: [f64; 2]| [others[0] + v[0], others[1] + v[1]];
    let distance = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
    let own = [0.6, 0.8];
    assert!((distance(with(own), with([0.0, 0.0])) - 1.0).abs() < 1e-12);
    assert!((distance(with(own), with([-0.6, -0.8])) - 2.0).abs() < 1e-12);
}

/// ln 2: a record that is in every batch decides the bit alone.
#[test]
fn bits_1_without_sampling() {
    assert!((clean(1.0, 1) - LN_2).abs() < 1e-9);
}

/// More: the record is in for both bits or for none, and a record that turns either of them in one of three ways is told apart better.
#[test]
fn bits_2_bits_of_one_batch_are_charged_together() {
    let s = 0.005;
    assert!(clean(s, 2) > 1.4 * 2.0 * clean(s, 1));
    assert!((clean(s, 2) - s * 3f64.ln()).abs() < 1e-9);
}

#[test]
fn noise_1_no_threshold_beats_the_line() {
    let (z, delta, draws) = (2.0, 1e-5, 100_000);
    let once = Event::SubsampledGaussian { noise_multiplier: z, sampling_rate: 1.0, steps: 1 };
    let eps = Pld::default().epsilon(&once, delta).unwrap().upper;
    let mut random = SeededRng::new(3);
    let mut world = |mean: f64| (0..draws).map(|_| mean + z * random.normal()).collect::<Vec<f64>>();
    let (out, inside) = (world(0.0), world(1.0));
    for c in (-20..60).map(|i| f64::from(i) / 5.0) {
        let rate = |all: &[f64]| all.iter().filter(|x| **x > c).count() as f64 / f64::from(draws);
        // Three standard deviations of a share of 100,000.
        assert!(rate(&inside) <= eps.exp() * rate(&out) + delta + 3.0 * 0.5 / f64::from(draws).sqrt(), "{c}");
    }
}

#[test]
fn noise_2_four_times_the_steps() {
    let event = |z, steps| Event::SubsampledGaussian { noise_multiplier: z, sampling_rate: 0.005, steps };
    let eps = Pld::default().epsilon(&event(1.0, 1_000), 1e-5).unwrap().upper;
    let noise = calibrate::noise_multiplier(eps, 1e-5, 0.005, 4_000).unwrap().pld.upper;
    assert!(noise > 1.1 && noise < 2.0, "{noise}: less than the twofold that sums without sampling would take");
    assert!(Pld::default().epsilon(&event(noise, 4_000), 1e-5).unwrap().upper <= eps * 1.001);
}

#[test]
fn run_1_a_changed_bit_is_refused() {
    let base = init::random(init::Preset::Tiny.config(), 1).unwrap();
    let records: Vec<Example> = (0..30).map(|i| Example::all((i..i + 6).map(|t| t % 40).collect())).collect();
    let groups = Cuts::of(&Groups::new(&base.layout, Grouping::Bucket(1)).unwrap().members).unwrap();
    let settings = Settings { epsilon: 3.0, records: 30, batch: 6, seed: 7, ..Settings::paper("ferret-max", groups) };
    let secret = Secret::from_system().unwrap();
    let task = Task::new(base, Method::Ferret(settings), &secret, &records);
    let mut run = task.begin(Cpu::<f32>::new(), None).unwrap();
    drive(&mut *run, &mut GoOn(|| Ok(()))).unwrap();
    let text = run.finish().unwrap().record.to_json().unwrap();
    let path = Path::new("transcript.json");
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bits = json["bits"].as_str().unwrap().to_owned();
    let other = if bits.starts_with('+') { "-" } else { "+" };
    json["bits"] = format!("{other}{}", &bits[1..]).into();
    Transcript::from_json(&text, path).unwrap();
    let refused = Transcript::from_json(&json.to_string(), path).unwrap_err().to_string();
    assert!(refused.contains("checksum"), "{refused}");
}

/// Masks and directions are drawn before any record is touched, and are the same whoever is in the data. Whoever knows the samples knows
/// which bits had the record in: each of those costs ln 2, not s/e.
#[test]
fn run_2_what_secret_samples_are_worth() {
    assert!((unsampled(0.0) - LN_2).abs() < 1e-9);
    assert!(unsampled(0.0) > 370.0 * clean(0.005, 1));
}

#[test]
fn attack_1_scores_that_say_nothing() {
    let roc = Roc::new(&[0.5; 40], &[0.5; 60]).unwrap();
    assert_eq!((roc.auc(), roc.advantage()), (0.5, 0.0));
    let [low, high] = roc.auc_interval(0.95);
    assert!(low <= 0.5 && high >= 0.5);
}

/// A mean over all members hardly moves when one in ten is exposed; the few true positives at few false ones do.
#[test]
fn attack_2_a_tail_is_seen_in_the_corner() {
    let mut random = SeededRng::new(5);
    let mut scores = |n: usize| (0..n).map(|_| 0.1 * random.normal()).collect::<Vec<f64>>();
    let (plain, nonmembers) = (scores(2_000), scores(2_000));
    let exposed: Vec<f64> = plain.iter().enumerate().map(|(i, x)| if i % 10 == 0 { x + 1.0 } else { *x }).collect();
    let roc = |members: &[f64]| Roc::new(members, &nonmembers).unwrap();
    assert!(roc(&exposed).auc() - roc(&plain).auc() < 0.07);
    assert!(roc(&exposed).tpr_at(0.01) > 5.0 * roc(&plain).tpr_at(0.01));
    // And no ten bits could have done it to 200 of 4,000.
    assert!(roc(&exposed).tpr_at(0.01) > Bound::new(&Charge::Bits(10), Design::CoinFlip, 2_000, 2_000).tpr(0.01));
}
