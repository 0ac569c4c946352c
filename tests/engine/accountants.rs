//! Every accountant against one set of demands, against published figures, and against brute force.

use ferret::privacy::curve::outcomes;
use ferret::privacy::normal;
use ferret::privacy::{Accountant, Event, Fires, Pld, Rdp, calibrate};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;

pub fn gaussian(sigma: f64, q: f64, steps: u64) -> Event {
    Event::SubsampledGaussian { noise_multiplier: sigma, sampling_rate: q, steps }
}

pub fn response(flip: f64, s: f64, fires: &str) -> Event {
    Event::SubsampledRandomisedResponse { flip, sampling_rate: s, fires: Fires::parse(fires).unwrap() }
}

fn accountants() -> Vec<Box<dyn Accountant>> {
    vec![Box::new(Rdp::default()), Box::new(Pld::default())]
}

/// The delta of n Gaussian mechanisms without sampling, in closed form: one of noise sigma / sqrt(n).
fn gaussian_delta(sigma: f64, n: f64, eps: f64) -> f64 {
    normal::hockey_stick(sigma / n.sqrt(), eps).0
}

#[test]
fn epsilon_grows_with_steps_rate_and_bits_and_falls_with_noise_and_delta() {
    for a in accountants() {
        let eps = |e: &Event, delta: f64| a.epsilon(e, delta).unwrap().upper;
        let rising = |what: &str, events: Vec<Event>| {
            let all: Vec<f64> = events.iter().map(|e| eps(e, 1e-5)).collect();
            assert!(all.windows(2).all(|w| w[0] < w[1]), "{}: {what}: {all:?}", a.name());
        };
        rising("steps", [1, 10, 100, 5000].map(|t| gaussian(1.0, 0.02, t)).to_vec());
        rising("rate", [0.002, 0.02, 0.2, 1.0].map(|q| gaussian(1.0, q, 50)).to_vec());
        rising("noise", [4.0, 2.0, 1.0, 0.5].map(|s| gaussian(s, 0.02, 50)).to_vec());
        rising("fires", ["10", "100", "1000"].map(|k| response(0.1, 0.01, k)).to_vec());
        rising("flips", [0.4, 0.2, 0.1, 0.01].map(|f| response(f, 0.01, "100")).to_vec());
        rising("sharing a batch", ["12x1", "6x2", "4x3"].map(|k| response(0.1, 0.01, k)).to_vec());
        let by_delta: Vec<f64> = [1e-3, 1e-5, 1e-9].map(|d| eps(&gaussian(1.0, 0.02, 50), d)).to_vec();
        assert!(by_delta.windows(2).all(|w| w[0] < w[1]), "{}: delta: {by_delta:?}", a.name());
    }
}

#[test]
fn composition_is_the_same_however_it_is_written_and_never_worse_than_adding() {
    for a in accountants() {
        let eps = |e: &Event, delta: f64| a.epsilon(e, delta).unwrap().upper;
        for one in [gaussian(0.9, 0.05, 30), response(0.1, 0.05, "20x1,3x2")] {
            let two = Event::Composed(vec![one.clone(), Event::Composed(vec![one.clone()])]);
            let merged = match &one {
                Event::SubsampledGaussian { .. } => gaussian(0.9, 0.05, 60),
                _ => response(0.1, 0.05, "40x1,6x2"),
            };
            assert_eq!(eps(&two, 1e-5), eps(&merged, 1e-5), "{}", a.name());
            assert!(eps(&two, 2e-5) <= 2.0 * eps(&one, 1e-5) * 1.001, "{}", a.name());
        }
        let nothing = a.epsilon(&gaussian(1.0, 0.1, 0), 1e-5).unwrap().upper;
        assert_eq!(nothing, 0.0, "{}", a.name());
        let mixed = Event::Composed(vec![gaussian(1.0, 0.01, 100), response(0.2, 0.01, "50")]);
        assert!(eps(&mixed, 1e-5) > eps(&gaussian(1.0, 0.01, 100), 1e-5));
    }
}

#[test]
fn without_sampling_the_closed_form_lies_between_the_bounds_down_to_the_tiniest_delta() {
    for (sigma, steps, delta) in [
        (1.0, 1, 1e-5),
        (3.0, 40, 1e-5),
        (20.0, 1000, 1e-12),
        (5.0, 100, 1e-30),
        (8.0, 64, 1e-150),
        (1000.0, 1_000_000, 1e-6),
        (0.5, 3, 1e-5),
    ] {
        let event = gaussian(sigma, 1.0, steps);
        let b = Pld::default().epsilon(&event, delta).unwrap();
        let at = |eps| gaussian_delta(sigma, steps as f64, eps);
        assert!(at(b.upper) <= delta && at(b.lower) >= delta, "sigma {sigma}, {steps} steps, delta {delta:e}: {b:?}");
        assert!(b.upper - b.lower <= 4e-3 * b.upper, "sigma {sigma}, {steps} steps: {b:?} is not tight");
        let rdp = Rdp::default().epsilon(&event, delta).unwrap().upper;
        assert!(at(rdp) <= delta, "sigma {sigma}, {steps} steps: RDP {rdp} is not a bound");
    }
}

/// Hockey-stick divergence of one sampled Gaussian by Simpson's rule.
fn integrated(sigma: f64, q: f64, eps: f64, with: bool) -> f64 {
    let (from, to, n) = (-14.0 * sigma, 1.0 + 14.0 * sigma, 200_000);
    let w = (to - from) / n as f64;
    let sum: f64 = (0..=n)
        .map(|i| {
            let x = from + i as f64 * w;
            let weight = if i == 0 || i == n { 1.0 } else { [2.0, 4.0][i % 2] };
            let out = normal::density(x / sigma) / sigma;
            let inn = (1.0 - q) * out + q * normal::density((x - 1.0) / sigma) / sigma;
            let (p, r) = if with { (inn, out) } else { (out, inn) };
            weight * (p - eps.exp() * r).max(0.0)
        })
        .sum();
    sum * w / 3.0
}

#[test]
fn one_sampled_step_agrees_with_numeric_integration_in_the_worse_direction() {
    for (sigma, q, delta) in
        [(1.0, 0.1, 1e-4), (0.6, 0.01, 1e-5), (2.0, 0.5, 1e-3), (1.0, 0.9, 1e-6), (4.0, 0.05, 1e-3)]
    {
        let worst = |eps| integrated(sigma, q, eps, true).max(integrated(sigma, q, eps, false));
        let b = Pld::default().epsilon(&gaussian(sigma, q, 1), delta).unwrap();
        assert!(worst(b.upper) <= delta * (1.0 + 1e-6), "{sigma} {q}: {b:?}");
        assert!(b.lower == 0.0 || worst(b.lower) >= delta * (1.0 - 1e-6), "{sigma} {q}: {b:?}");
        assert!(b.upper - b.lower <= 5e-3 * b.upper, "{sigma} {q}: {b:?}");
        let rdp = Rdp::default().epsilon(&gaussian(sigma, q, 1), delta).unwrap().upper;
        assert!(worst(rdp) <= delta, "{sigma} {q}: RDP {rdp}");
    }
}

/// Standard normals by Box and Muller.
struct Normals(ChaCha8Rng, Option<f64>);

impl Normals {
    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f64 {
        if let Some(x) = self.1.take() {
            return x;
        }
        let (r, phi) = ((-2.0 * self.uniform().ln()).sqrt(), std::f64::consts::TAU * self.uniform());
        self.1 = Some(r * phi.sin());
        r * phi.cos()
    }
}

#[test]
fn simulated_losses_confirm_the_bounds() {
    let (sigma, q, steps, delta) = (1.0, 0.2, 12, 0.01);
    let b = Pld::default().epsilon(&gaussian(sigma, q, steps), delta).unwrap();
    let mut rng = Normals(ChaCha8Rng::seed_from_u64(7), None);
    let n = 200_000;
    let sticks = |losses: &[f64], eps: f64| {
        let values: Vec<f64> = losses.iter().map(|s| (1.0 - (eps - s).exp()).max(0.0)).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        (mean, (variance / n as f64).sqrt())
    };
    let mut worst_low = f64::MIN;
    for with in [true, false] {
        let losses: Vec<f64> = (0..n)
            .map(|_| {
                (0..steps)
                    .map(|_| {
                        let shift = if with && rng.uniform() < q { 1.0 } else { 0.0 };
                        let x = sigma * rng.next() + shift;
                        let ratio = 1.0 - q + q * ((2.0 * x - 1.0) / (2.0 * sigma * sigma)).exp();
                        if with { ratio.ln() } else { -ratio.ln() }
                    })
                    .sum()
            })
            .collect();
        let (mean, error) = sticks(&losses, b.upper);
        assert!(mean <= delta + 4.0 * error, "with {with}: {mean} above {delta} at {b:?}");
        let (mean, error) = sticks(&losses, b.lower);
        worst_low = worst_low.max(mean + 4.0 * error);
    }
    assert!(worst_low >= delta, "neither direction reaches {delta} at the lower bound {b:?}");
}

#[test]
fn bits_that_share_a_batch_agree_with_every_outcome_of_the_mechanism() {
    let (flip, s, bits, steps): (f64, f64, u32, u32) = (0.15, 0.3, 2, 3);
    // One batch: with probability s the record is in and turns every bit; then each bit is flipped by itself.
    let chance = |word: u32, truth: u32| -> f64 {
        (0..bits).map(|b| if (word ^ truth) >> b & 1 == 1 { flip } else { 1.0 - flip }).product()
    };
    let all = (1 << bits) - 1;
    let single: Vec<(f64, f64)> =
        (0..=all).map(|w| ((1.0 - s) * chance(w, 0) + s * chance(w, all), chance(w, 0))).collect();
    let stick = |eps: f64, with: bool| -> f64 {
        (0..1usize << (bits * steps))
            .map(|word| {
                let (mut p, mut q) = (1.0, 1.0);
                for t in 0..steps {
                    let (a, b) = single[word >> (t * bits) & all as usize];
                    p *= a;
                    q *= b;
                }
                if with { (p - eps.exp() * q).max(0.0) } else { (q - eps.exp() * p).max(0.0) }
            })
            .sum()
    };
    for delta in [0.1, 1e-2, 1e-3] {
        let event = response(flip, s, &format!("{steps}x{bits}"));
        let b = Pld::default().epsilon(&event, delta).unwrap();
        let worst = |eps| stick(eps, true).max(stick(eps, false));
        assert!(worst(b.upper) <= delta && worst(b.lower) >= delta, "delta {delta}: {b:?}");
        assert!(b.upper - b.lower < 5e-3 * b.upper, "{b:?}");
        assert!(worst(Rdp::default().epsilon(&event, delta).unwrap().upper) <= delta);
    }
    let likelihoods = outcomes(flip, s, bits);
    for (w, (p, q)) in single.iter().enumerate() {
        let (_, ratio) = likelihoods[(w as u32).count_ones() as usize];
        assert!((p / q - ratio).abs() < 1e-12 * ratio);
    }
    // The lattice and the exact sum agree where both can answer: one bit on each batch, written as two kinds of step.
    let exact = Pld::default().epsilon(&response(0.055, 0.005, "144"), 1e-5).unwrap();
    let nearly = Event::Composed(vec![response(0.055, 0.005, "143"), response(0.055, 0.005_000_000_1, "1")]);
    let lattice = Pld::default().epsilon(&nearly, 1e-5).unwrap();
    assert!(lattice.lower <= exact.upper && exact.lower <= lattice.upper && lattice.upper - exact.upper < 1e-3);
}

#[test]
fn calibration_is_sufficient_and_not_wasteful() {
    let s = calibrate::noise_multiplier(0.5, 1e-5, 0.005, 1000).unwrap();
    let eps = |sigma| Pld::default().epsilon(&gaussian(sigma, 0.005, 1000), 1e-5).unwrap();
    assert!(eps(s.pld.upper).upper <= 0.5 && eps(s.pld.lower).lower > 0.5, "{s:?}");
    assert!(s.pld.upper / s.pld.lower < 1.002 && s.pld.upper < s.rdp, "{s:?}");
    assert!((s.rdp / 1.528 - 1.0).abs() < 5e-3, "{s:?}");
    let f = calibrate::flip(1.0136, 1e-5, 0.005, &[Fires { steps: 144, bits: 1 }]).unwrap();
    assert!((f.pld.upper - 0.055).abs() < 1e-4, "{f:?}");
    assert!(calibrate::noise_multiplier(0.0, 1e-5, 0.01, 10).is_err());
    assert!(calibrate::noise_multiplier(1.0, 0.0, 0.01, 10).is_err());
    // Where its search ends above what RDP proves, a whole answer there serves: it once took 571,557, and 285,886 of 277,442.
    let s = calibrate::noise_multiplier(0.232_671_286_637_291_56, 1.884_790_946_250_848e-4, 1.0, 579_497_352).unwrap();
    assert!(s.pld.upper <= 1.001 * s.rdp, "{s:?}");
    let fires = [(77_744_000, 6), (98_088_000, 7), (2_591_900, 5)].map(|(steps, bits)| Fires { steps, bits });
    let s = calibrate::dither(1.0506, 3.855e-6, 1.0, &fires).unwrap();
    assert!(s.pld.upper <= 1.001 * s.rdp, "{s:?}");
}

#[test]
fn extreme_questions_are_answered_or_refused_in_words() {
    for (sigma, q, steps, delta) in [
        (1.0, 0.01, 1_000_000, 1e-5),
        (1.0, 1e-4, 1_000_000, 1e-6),
        (1.0, 0.005, 1000, 1e-100),
        (1.0, 1e-7, 1_000_000, 1e-8),
        (0.1, 0.01, 10, 1e-5),
        (100.0, 1e-3, 1, 1e-5),
    ] {
        let event = gaussian(sigma, q, steps);
        let b = Pld::default().epsilon(&event, delta).unwrap();
        let rdp = Rdp::default().epsilon(&event, delta).unwrap().upper;
        assert!(
            b.lower <= b.upper && b.upper.is_finite() && b.lower <= rdp,
            "{sigma} {q} {steps} {delta:e}: {b:?} {rdp}"
        );
    }
    let refusal = Pld::default().epsilon(&gaussian(0.01, 1.0, 1), 1e-5).unwrap_err().to_string();
    assert!(refusal.contains("protects nothing"), "{refusal}");
    for bad in [gaussian(f64::NAN, 0.1, 1), gaussian(1.0, -0.1, 1), response(0.0, 0.1, "3"), response(0.7, 0.1, "3")] {
        assert!(Pld::default().epsilon(&bad, 1e-5).is_err() && Rdp::default().epsilon(&bad, 1e-5).is_err());
    }
    assert!(Pld::default().epsilon(&gaussian(1.0, 0.1, 1), f64::NAN).is_err());
}

#[test]
fn what_is_beyond_the_floats_claims_nothing() {
    let tiny = [
        gaussian(1e-155, 0.01, 10),
        gaussian(1e-160, 0.005, 1000),
        gaussian(1e-300, 1.0, 1),
        gaussian(f64::MIN_POSITIVE, 0.5, 7),
        Event::dithered(1e-300, 0.01, &[Fires { steps: 100, bits: 1 }]),
        response(1e-310, 0.01, "100"),
        response(1e-310, 0.01, "100x2"),
        response(f64::MIN_POSITIVE, 1.0, "1"),
    ];
    for event in tiny {
        for a in accountants() {
            match a.epsilon(&event, 1e-5) {
                Ok(b) => assert!(b.upper > 600.0 && b.upper.is_finite(), "{}: {event:?}: {b:?}", a.name()),
                Err(e) => assert!(matches!(e, ferret::error::Error::Privacy(_)), "{}: {event:?}: {e}", a.name()),
            }
        }
    }
    // A record that is hardly ever in a batch is hidden by that alone, whatever is released.
    for a in accountants() {
        assert_eq!(a.epsilon(&gaussian(1e-160, 1e-9, 100), 1e-5).unwrap().upper, 0.0, "{}", a.name());
        assert!(!a.epsilon(&gaussian(1e-160, 1e-6, 100), 1e-5).is_ok_and(|b| b.upper < 600.0), "{}", a.name());
    }
}

#[test]
fn pld_says_truly_why_it_cannot_answer() {
    let nothing = Pld::default().epsilon(&gaussian(0.01, 0.5, 1), 1e-5).unwrap_err().to_string();
    assert!(nothing.contains("protects nothing"), "{nothing}");
    match Pld::default().epsilon(&gaussian(1.0, 1e-5, 1_000_000), 1e-12) {
        Ok(b) => assert!(b.lower <= b.upper && b.upper < 10.0, "{b:?}"),
        Err(e) => assert!(!e.to_string().contains("700 nats"), "{e}"),
    }
}

#[test]
fn rdp_is_never_below_plds_proven_lower_limit() {
    let mut rng = Normals(ChaCha8Rng::seed_from_u64(3), None);
    let settings: Vec<(Event, f64)> = (0..2000)
        .map(|i| {
            let mut between = |low: f64, high: f64| (low.ln() + rng.uniform() * (high / low).ln()).exp();
            let (q, steps, delta) = (between(1e-9, 1.0), between(1.0, 1e9) as u64, between(1e-15, 0.1));
            // Single bits are summed one by one: not a billion of them here.
            let event = match i % 8 {
                0..6 => gaussian(between(1e-3, 100.0), q, steps),
                6 => response(between(1e-6, 0.5), q, &(1 + steps % 10_000).to_string()),
                _ => response(between(1e-6, 0.5), q, &format!("{steps}x{}", 2 + i % 5)),
            };
            (event, delta)
        })
        .collect();
    // A coarse lattice: its limits are proven like any other's.
    let coarse = Pld { tolerance: 1e9, largest_log2: 10, interval: None };
    let told: usize = settings
        .par_iter()
        .map(|(event, delta)| {
            let rdp = Rdp::default().epsilon(event, *delta).map_or(f64::INFINITY, |b| b.upper);
            let lower = coarse.enclosure(event, *delta).unwrap().lower;
            assert!(rdp >= lower, "{event:?} at {delta:e}: RDP {rdp} below PLD's {lower}");
            usize::from(lower > 0.0 && rdp.is_finite())
        })
        .sum();
    assert!(told > 300, "only {told} settings have a lower limit");
}

#[test]
fn more_steps_than_64_bits_count_are_no_panic() {
    for a in accountants() {
        for fires in
            ["18446744073709551615x2,18446744073709551615x3", "18446744073709551615", "18446744073709551615x512"]
        {
            match a.epsilon(&response(0.1, 0.01, fires), 1e-5) {
                Ok(b) => assert!(b.upper.is_finite() && b.upper > 1e3, "{}: {fires}: {b:?}", a.name()),
                Err(e) => assert!(matches!(e, ferret::error::Error::Privacy(_)), "{}: {fires}: {e}", a.name()),
            }
        }
        let twice = Event::Composed(vec![gaussian(1.0, 0.1, u64::MAX), gaussian(1.0, 0.1, 1)]);
        assert!(a.epsilon(&twice, 1e-5).is_err(), "{}", a.name());
    }
}

/// Without sampling, and with one step, the curve is known in closed form: every bound of both accountants is held against it.
#[test]
fn random_settings_are_enclosed_where_the_truth_is_known() {
    let mut rng = Normals(ChaCha8Rng::seed_from_u64(11), None);
    let settings: Vec<(f64, f64, u64, f64)> = (0..400)
        .map(|i| {
            let mut between = |low: f64, high: f64| (low.ln() + rng.uniform() * (high / low).ln()).exp();
            let (q, steps) = if i % 2 == 0 { (1.0, between(1.0, 1e6) as u64) } else { (between(1e-6, 1.0), 1) };
            (between(0.05, 50.0) * (steps as f64).sqrt(), q, steps, between(1e-15, 0.1))
        })
        .collect();
    let quick = Pld { tolerance: 0.1, largest_log2: 14, interval: None };
    let told: usize = settings
        .par_iter()
        .map(|&(sigma, q, steps, delta)| {
            let event = gaussian(sigma, q, steps);
            // Sampling is linear: H(t) = q H'(1 + (t-1)/q); the other direction's curve is t W(1/t), W(t) = H(t) - (1-t).
            let whole = |l: f64| normal::hockey_stick(sigma / (steps as f64).sqrt(), l);
            let remove = |eps: f64| q * whole((eps.exp_m1() / q).ln_1p()).0;
            let add = |eps: f64| {
                let inner = ((-eps).exp() - (1.0 - q)) / q;
                if inner <= 0.0 { 0.0 } else { eps.exp() * q * inner * whole(-inner.ln()).0 }
            };
            let delta_at = |eps: f64| remove(eps).max(add(eps));
            let slack = 1.0 + 1e-9;
            let b = quick.enclosure(&event, delta).unwrap();
            let name = format!("sigma {sigma}, q {q}, {steps} steps, delta {delta:e}: {b:?}");
            assert!(!b.upper.is_finite() || delta_at(b.upper) <= delta * slack, "{name}: {}", delta_at(b.upper));
            assert!(b.lower == 0.0 || delta_at(b.lower) >= delta / slack, "{name}: {}", delta_at(b.lower));
            if let Ok(rdp) = Rdp::default().epsilon(&event, delta) {
                assert!(delta_at(rdp.upper) <= delta * slack, "{name}: RDP {}: {}", rdp.upper, delta_at(rdp.upper));
            }
            usize::from(b.upper.is_finite() && b.lower > 0.0)
        })
        .sum();
    assert!(told > 200, "only {told} settings have both limits");
}

#[test]
fn signs_of_noised_sums_are_accounted_for_as_the_sums_for_any_number() {
    for a in accountants() {
        let sums = a.epsilon(&gaussian(1.2, 0.01, 300), 1e-5).unwrap();
        for bits in [1, 1024, u32::MAX] {
            let signs = Event::SubsampledSigns { noise_multiplier: 1.2, bits, sampling_rate: 0.01, steps: 300 };
            assert_eq!(a.epsilon(&signs, 1e-5).unwrap(), sums, "{}", a.name());
            let text = serde_json::to_string(&signs).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), signs);
        }
    }
}
