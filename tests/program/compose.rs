//! Several runs on the same records: their statements composed.

use ferret::privacy::Sampler;
use ferret::privacy::compose::{Composed, compose};
use ferret::privacy::statement::{Circumstances, Released};
use ferret::privacy::{Accountant, Event, Fires, Guarantee, Neighbours, Pld, Rdp, Statement};
use std::path::{Path, PathBuf};
use std::process::Command;

const RATE: f64 = 0.02;

fn bits(count: u64, batches: u64, sampler: Sampler) -> Statement {
    let mut s = Statement::new("ferret-max", Released::Bits { count, batches }, sampler, 1000, RATE, 50);
    // As many bits as batches, or more on the last of them.
    let last = u32::try_from(count - batches + 1).unwrap();
    s.charge_nats(&[Fires { steps: batches - 1, bits: 1 }, Fires { steps: 1, bits: last }]).unwrap();
    s.finish(Circumstances::default())
}

fn gaussian(noise_multiplier: f64, steps: u64) -> Event {
    Event::SubsampledGaussian { noise_multiplier, sampling_rate: RATE, steps }
}

fn dpsgd(noise_multiplier: f64, count: u64) -> Statement {
    let released = Released::NoisedSums { count, noise_multiplier, clip: 1.0, bits_per_update: None };
    let mut s = Statement::new("dpsgd", released, Sampler::Poisson, 1000, RATE, count);
    s.charge_nats(&[]).unwrap();
    s.claim_spent(gaussian(noise_multiplier, count), 1e-5).unwrap();
    s.finish(Circumstances::default())
}

/// 30 flipped bits, two on each of ten batches and one on each of ten.
fn flipped() -> (Statement, Event) {
    let released = Released::FlippedBits { count: 30, batches: 20, flip: 0.2 };
    let fires = vec![Fires { steps: 10, bits: 2 }, Fires { steps: 10, bits: 1 }];
    let event = Event::SubsampledRandomisedResponse { flip: 0.2, sampling_rate: RATE, fires: fires.clone() };
    let mut s = Statement::new("ferret-2", released, Sampler::Poisson, 1000, RATE, 50);
    s.charge_nats(&fires).unwrap();
    s.claim_spent(event.clone(), 1e-5).unwrap();
    (s.finish(Circumstances::default()), event)
}

/// By accountant: (eps, delta).
fn found(composed: &Composed, accountant: &str) -> (f64, f64) {
    let pair = composed.claims.iter().find(|c| c.accountant == accountant).map(|c| c.guarantee);
    match pair {
        Some(Guarantee::EpsDelta { eps, delta, neighbours: Neighbours::ReplaceByEmpty }) => (eps, delta),
        other => panic!("{accountant}: {other:?} in {composed:?}"),
    }
}

fn nats(composed: &Composed) -> Option<f64> {
    composed.claims.iter().find_map(|c| match c.guarantee {
        Guarantee::MutualInformation { nats } => Some(nats),
        _ => None,
    })
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{a}, expected {b}");
}

#[test]
fn nats_add_up_and_bits_as_they_are_couple() {
    let (a, b) = (bits(7, 5, Sampler::Poisson), bits(11, 11, Sampler::Poisson));
    let together = compose(&[a.clone(), b.clone()], None).unwrap();
    close(nats(&together).unwrap(), a.nats_charged.unwrap() + b.nats_charged.unwrap());
    // A record is in no batch of either run with probability (1 - s)^16.
    let (eps, delta) = found(&together, "basic composition");
    close(delta, 1.0 - (1.0 - RATE).powi(16));
    assert_eq!(eps, 0.0);
    assert_eq!(compose(&[b, a], None).unwrap().claims, together.claims);
}

#[test]
fn events_compose_exactly_and_below_the_sums() {
    let (flips, event) = flipped();
    let runs = [dpsgd(1.0, 100), dpsgd(1.0, 150), dpsgd(2.0, 80), flips];
    let together = compose(&runs, None).unwrap();
    let one = Event::Composed(vec![gaussian(1.0, 250), gaussian(2.0, 80), event]);
    for accountant in [&Pld::default() as &dyn Accountant, &Rdp::default()] {
        let (eps, delta) = found(&together, accountant.name());
        close(eps, accountant.epsilon(&one, 1e-5).unwrap().upper);
        assert_eq!(delta, 1e-5);
        let sum: f64 = runs
            .iter()
            .map(|s| {
                let own = s.claims.iter().find(|c| c.accountant == accountant.name()).unwrap().guarantee;
                if let Guarantee::EpsDelta { eps, .. } = own { eps } else { panic!() }
            })
            .sum();
        assert!(eps < 0.9 * sum, "{}: {eps} of {sum}", accountant.name());
    }
    // Nats of every method add up: FERRET's and DPSGD's are one currency.
    close(nats(&together).unwrap(), runs.iter().map(|s| s.nats_charged.unwrap()).sum());
    let asked = compose(&runs, Some(1e-7)).unwrap();
    assert!(found(&asked, "PLD").0 > found(&together, "PLD").0 && found(&asked, "PLD").1 == 1e-7);
}

#[test]
fn what_has_no_event_is_added_as_it_is_stated() {
    // Version 1 of a statement carried no event: how the bits shared batches is not known, the noise of a sum is.
    let (mut flips, _) = flipped();
    (flips.version, flips.event) = (1, None);
    let mut sums = dpsgd(1.0, 100);
    (sums.version, sums.event) = (1, None);
    // Nor did it count the nats of sums.
    sums.claims.retain(|c| !matches!(c.guarantee, Guarantee::MutualInformation { .. }));
    let (Guarantee::EpsDelta { eps: stated, .. }, plain) = (flips.claims[1].guarantee, bits(3, 3, Sampler::Poisson))
    else {
        panic!("{flips:?}")
    };
    let together = compose(&[flips, sums, plain], None).unwrap();
    let (eps, delta) = found(&together, "PLD");
    close(eps, stated + Pld::default().epsilon(&gaussian(1.0, 100), 1e-5).unwrap().upper);
    close(delta, 1e-5 + 1e-5 + 1.0 - (1.0 - RATE).powi(3));
    assert!(nats(&together).is_none() && together.notes[0].contains("states no nats"), "{:?}", together.notes);
}

#[test]
fn what_cannot_be_composed_is_refused() {
    let known = Circumstances { insecure_seed: true, ..Default::default() };
    let windows = Circumstances { windows: true, ..Default::default() };
    let mut open = Statement::new("ferret-max", Released::Bits { count: 3, batches: 3 }, Sampler::Poisson, 9, RATE, 5);
    open.charge_nats(&[Fires { steps: 3, bits: 1 }]).unwrap();
    let mut replace = dpsgd(1.0, 10);
    for c in &mut replace.claims {
        if let Guarantee::EpsDelta { neighbours, .. } = &mut c.guarantee {
            *neighbours = Neighbours::ReplaceOne;
        }
    }
    let good = || bits(5, 5, Sampler::Poisson);
    for (bad, sentence) in [
        (open.clone().finish(known), "promises nothing"),
        (open.finish(windows), "different things"),
        (replace, "neighbours of another kind"),
    ] {
        for pair in [[good(), bad.clone()], [bad, good()]] {
            let said = compose(&pair, None).unwrap_err().to_string();
            assert!(said.contains(sentence), "{sentence:?}: {said}");
        }
    }
    // Nats without (eps, delta), and (eps, delta) without nats, as before version 3: nothing in common.
    let mut sums = dpsgd(1.0, 10);
    sums.claims.retain(|c| !matches!(c.guarantee, Guarantee::MutualInformation { .. }));
    let said = compose(&[bits(5, 5, Sampler::Shuffle), sums], None).unwrap_err().to_string();
    assert!(said.contains("no kind of promise in common"), "{said}");
    let alone = compose(&[bits(5, 5, Sampler::Shuffle), good()], None).unwrap();
    assert!(alone.claims.len() == 1 && alone.notes[0].contains("states no (eps, delta)"), "{alone:?}");
    // The deltas of bits as they are leave nothing of a small one.
    assert!(compose(&[good(), dpsgd(1.0, 10)], Some(1e-5)).unwrap_err().to_string().contains("add up to"));
    assert!(compose(&[], None).is_err());
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/1").join(name)
}

#[test]
fn the_program_composes_statements() {
    let run = |args: &[&str]| {
        let files = ["bit", "exact"].map(|name| golden(name).join("privacy.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferret"));
        command.args(["account", "--add"]).args(files).arg(golden("rr")).arg("--quiet").args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let value: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    // 51 + 40 + 51 bits at s = 8 / 120.
    close(value["claims"][0]["guarantee"]["nats"].as_f64().unwrap(), 142.0 * 8.0 / 120.0 * std::f64::consts::LN_2);
    assert!(run(&[]).contains("3 runs on the same records, together\n  at most 6.562 nats"), "{}", run(&[]));
    let mixed = Command::new(env!("CARGO_BIN_EXE_ferret"))
        .args(["account", "--steps", "3", "--add"])
        .arg(golden("rr"))
        .output()
        .unwrap();
    assert!(!mixed.status.success(), "--add stands alone");
}
