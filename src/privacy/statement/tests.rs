//! What a statement claims, and what it takes back.

use super::*;
use crate::privacy::event::Fires;
use crate::privacy::mi;

fn ferret(sampler: Sampler) -> Statement {
    let mut s = Statement::new("ferret-max", Released::Bits { count: 144, batches: 140 }, sampler, 10_000, 0.005, 1000);
    s.nats_planned = Some(0.5);
    s.charge_nats(&[Fires { steps: 136, bits: 1 }, Fires { steps: 4, bits: 2 }]).unwrap();
    s
}

#[test]
fn bits_are_charged_in_nats_and_as_zero_delta_apart() {
    let s = ferret(Sampler::Poisson).finish(Circumstances::default());
    let exact = 136.0 * mi::bits::clean(0.005, 1) + 4.0 * mi::bits::clean(0.005, 2);
    approx::assert_relative_eq!(s.nats_charged.unwrap(), exact, max_relative = 1e-9);
    approx::assert_relative_eq!(s.nats_paper.unwrap(), 144.0 * 0.005 * std::f64::consts::LN_2);
    let delta = 1.0 - 0.995_f64.powi(140);
    assert!(s.claims.iter().any(
        |c| matches!(c.guarantee, Guarantee::EpsDelta { eps, delta: d, .. } if eps == 0.0 && (d - delta).abs() < 1e-12)
    ));
    assert!(s.not_met.is_empty() && s.is_private());
    for l in s
        .to_markdown()
        .lines()
        .filter(|l| l.contains("nats") && !l.contains("different units") && !l.contains("add up"))
    {
        assert!(!l.contains("delta") && !l.contains("differential"), "units mixed: {l}");
    }
}

#[test]
fn a_known_seed_takes_every_promise_back() {
    let s = ferret(Sampler::Poisson).finish(Circumstances { insecure_seed: true, ..Default::default() });
    assert!(!s.is_private());
    for number in ["planned budget", "charged for", "proven"] {
        assert!(!s.to_markdown().contains(number), "{}", s.to_markdown());
    }
    assert!(s.not_met[0].contains("not private: sampling and noise are known"));
    assert!(s.to_markdown().contains("**This model is not private.**"));
}

#[test]
fn shuffling_keeps_the_nats_and_loses_eps_delta() {
    let mut s = ferret(Sampler::Shuffle);
    s.claim(Guarantee::eps_delta(1.0, 1e-5), "PLD", "spent");
    let s = s.finish(Circumstances::default());
    assert!(s.claims.iter().all(|c| matches!(c.guarantee, Guarantee::MutualInformation { .. })) && s.is_private());
    assert!(s.not_met[0].contains("Poisson sampling only"));
}

#[test]
fn every_noised_release_is_charged_nats_under_every_sampler() {
    let at = |released: Released, sampler| {
        let mut s = Statement::new("dpsgd", released, sampler, 10_000, 0.005, 1000);
        s.charge_nats(&[]).unwrap();
        s.finish(Circumstances::default())
    };
    let sums = |z| Released::NoisedSums { count: 1000, noise_multiplier: z, clip: 1.0, bits_per_update: None };
    let sketches = |signs, numbers, noise_multiplier| Released::NoisedSketches {
        count: 1000,
        numbers,
        signs,
        levels: false,
        noise_multiplier,
        clip: 1.0,
    };
    let sketch = |signs, numbers| sketches(signs, numbers, 1.0);
    let levels = Released::NoisedSketches {
        count: 1000,
        numbers: 64,
        signs: false,
        levels: true,
        noise_multiplier: 1.0,
        clip: 1.0,
    };
    for (sampler, nats) in [(Sampler::Poisson, 0.0212), (Sampler::Uniform, 0.402), (Sampler::Shuffle, 2.5)] {
        for released in [sums(1.0), sketch(false, 64), sketch(true, 1024), levels.clone()] {
            let s = at(released.clone(), sampler);
            let found = s.nats_charged.unwrap();
            assert!((found / nats - 1.0).abs() < 2e-3, "{released:?} {sampler:?}: {found}");
            assert!(s.is_private() && s.nats_paper.is_none());
            assert!(s.to_markdown().contains("nats of mutual information with a record"), "{}", s.to_markdown());
        }
    }
    // Next to no noise, and none: nothing finite, and nothing, is promised.
    let s = at(sums(1e-200), Sampler::Poisson);
    assert!(!s.is_private() && s.nats_charged.is_none() && s.not_met[0].contains("no finite number of nats"), "{s:?}");
    assert_eq!(Statement::from_json(&s.to_json()).unwrap(), s);
    assert!(!at(sums(0.0), Sampler::Poisson).is_private());
    let s = at(levels, Sampler::Poisson);
    assert!(
        s.to_markdown().contains("1000 times the size of, and two bits of each of, 64 numbers"),
        "{}",
        s.to_markdown()
    );
    assert!(s.to_json().contains("\"levels\": true") && Statement::from_json(&s.to_json()).unwrap() == s);
    // Statements of other releases are what they were.
    assert!(!at(sketch(true, 64), Sampler::Poisson).to_json().contains("levels"));
    // Signs are bits as well.
    let few = at(sketches(true, 1, 0.5), Sampler::Shuffle).nats_charged.unwrap();
    approx::assert_relative_eq!(few, 1000.0 * 0.005 * std::f64::consts::LN_2, max_relative = 1e-9);
}

#[test]
fn flips_and_noise_are_not_rounded_up_where_they_protect() {
    let released = Released::FlippedBits { count: 3, batches: 3, flip: 0.100_01 };
    let mut s = Statement::new("ferret-max", released, Sampler::Poisson, 100, 0.1, 10);
    assert!(s.to_markdown().contains("probability 0.10001\n"), "{}", s.to_markdown());
    s.version = 2;
    assert!(s.to_markdown().contains("probability 0.1001\n"), "the words of a version stay");
}

#[test]
fn a_window_of_a_text_is_not_called_a_line() {
    for (windows, unit) in [(true, "a window of the text"), (false, "one line of the data")] {
        let s = ferret(Sampler::Poisson).finish(Circumstances { windows, ..Default::default() });
        let said: Vec<_> = s.assumptions.iter().filter(|a| a.starts_with("A record is")).collect();
        assert!(said.len() == 1 && said[0].contains(unit), "{said:?}");
    }
}

#[test]
fn gradients_are_never_private_and_json_reads_back() {
    let mut s = Statement::new(
        "qsgd",
        Released::Gradients { count: 10, bits_per_update: Some(8e6) },
        Sampler::Poisson,
        100,
        0.1,
        10,
    );
    s.claim(Guarantee::eps_delta(1.0, 1e-5), "PLD", "spent");
    let s = s.finish(Circumstances { private_logs: true, ..Default::default() });
    assert_eq!(s.claims.len(), 1);
    assert_eq!(s.claims[0].guarantee, Guarantee::NonPrivate);
    assert_eq!(Statement::from_json(&s.to_json()).unwrap(), s);
    let now = format!("\"version\": {VERSION}");
    for (from, to) in
        [(now.as_str(), "\"version\": 9"), (&now, "\"version\": \"2\""), ("\"steps\"", "\"promise\": 0, \"steps\"")]
    {
        assert!(s.to_json().contains(from) && Statement::from_json(&s.to_json().replace(from, to)).is_err(), "{to}");
    }
}

/// What an accountant that adds in another order may find is no lie; a digit more is.
#[test]
fn an_epsilon_is_compared_to_the_digits_that_are_proven_and_a_delta_to_all() {
    let claiming = |eps: f64, delta: f64, accountant: &str| {
        let mut s = ferret(Sampler::Poisson);
        s.claim(Guarantee::eps_delta(eps, delta), accountant, "spent");
        s.finish(Circumstances::default())
    };
    let found = |eps: f64, delta: f64, accountant: &str| {
        claiming(eps, delta, accountant).differences(&claiming(1.0, 1e-5, accountant), &[])
    };
    for (eps, delta, accountant, lies) in [
        (1.0 - 5e-7, 1e-5, "PLD", 0),
        (1.0 - 2e-6, 1e-5, "PLD", 1),
        (1.0, 1e-5 * (1.0 - 5e-7), "PLD", 1),
        (1.0 - 5e-7, 1e-5, "RDP", 1),
        (1.5, 1e-5, "RDP", 0),
        (f64::NAN, 1e-5, "PLD", 1),
    ] {
        let found = found(eps, delta, accountant);
        assert_eq!(found.len(), lies, "{eps} {delta} {accountant}: {found:?}");
    }
}
