//! Accountants beside figures that others published.

use crate::accountants::{gaussian, response};
use ferret::privacy::{Accountant, Event, Fires, Pld, Rdp, calibrate};

#[test]
fn the_figures_for_ferret_with_flips_and_dither_come_out() {
    let both = |e: Event| {
        let rdp = Rdp::default().epsilon(&e, 1e-5).unwrap().upper;
        (Pld::default().epsilon(&e, 1e-5).unwrap().upper, rdp)
    };
    for (z, pld, rdp) in [(0.8, 0.909, 1.69), (1.0, 0.391, 0.946)] {
        let (p, r) = both(Event::dithered(2.0 * z, 0.005, &[Fires { steps: 144, bits: 1 }]));
        assert!((p - pld).abs() < 6e-4 && (r - rdp).abs() < 5e-3, "z = {z}: {p} {r}");
    }
    let shared = both(response(0.055, 0.005, "123x1,9x2,1x3")).0;
    assert!((shared - 4.4).abs() < 0.05, "{shared}");
}

struct Row {
    accountant: String,
    q: f64,
    steps: u64,
    delta: f64,
    sigma: f64,
    epsilon: f64,
    finds_sigma: bool,
}

fn reference() -> Vec<Row> {
    include_str!("../reference/accountant.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            let n = |i: usize| f[i].parse::<f64>().unwrap();
            Row {
                accountant: f[0].into(),
                q: n(1),
                steps: n(2) as u64,
                delta: n(3),
                sigma: n(4),
                epsilon: n(5),
                finds_sigma: f[6] == "sigma_for_eps",
            }
        })
        .collect()
}

#[test]
fn published_epsilons_are_met() {
    // dp_accounting's PLD rows were made with an interval of 1e-3, which costs up to 5 % at large noise: at that interval they
    // are met within 0.1 %, and refined, the answer is never above them. The PRV rows carry their error of 0.01 on top.
    let mut seen = [0; 3];
    for r in reference().iter().filter(|r| !r.finds_sigma) {
        let event = gaussian(r.sigma, r.q, r.steps);
        let name = format!("{} at sigma {}, {} steps: {}", r.accountant, r.sigma, r.steps, r.epsilon);
        match r.accountant.as_str() {
            "dp_accounting_rdp" => {
                let eps = Rdp::default().epsilon(&event, r.delta).unwrap().upper;
                assert!((eps / r.epsilon - 1.0).abs() < 5e-3, "{name}, ours {eps}");
                seen[0] += 1;
            }
            "dp_accounting_pld" => {
                let coarse = Pld::at_interval(1e-3).epsilon(&event, r.delta).unwrap().upper;
                assert!((coarse / r.epsilon - 1.0).abs() < 1e-3, "{name}, ours {coarse}");
                let fine = Pld::default().epsilon(&event, r.delta).unwrap();
                assert!(fine.lower <= r.epsilon && fine.upper <= 1.0005 * r.epsilon, "{name}, ours {fine:?}");
                seen[1] += 1;
            }
            "ms_prv_upper" => {
                let coarse = Pld::at_interval(1e-3).epsilon(&event, r.delta).unwrap().upper;
                assert!((coarse - r.epsilon).abs() < 0.01, "{name}, ours {coarse}");
                let fine = Pld::default().epsilon(&event, r.delta).unwrap();
                assert!(fine.upper < r.epsilon && r.epsilon - fine.upper < 0.0101, "{name}, ours {fine:?}");
                seen[2] += 1;
            }
            _ => {}
        }
    }
    assert_eq!(seen, [18, 18, 18]);
}

#[test]
fn published_noise_multipliers_are_met() {
    let mut seen = 0;
    for r in reference().iter().filter(|r| r.finds_sigma && r.steps == 1000) {
        match r.accountant.as_str() {
            "dp_accounting_rdp" => {
                let eps = Rdp::default().epsilon(&gaussian(r.sigma, r.q, r.steps), r.delta).unwrap().upper;
                assert!((eps / r.epsilon - 1.0).abs() < 5e-3, "{} for {}", r.sigma, r.epsilon);
                seen += 1;
            }
            "dp_accounting_pld" => {
                let event = |sigma| gaussian(sigma, r.q, r.steps);
                let near = r.sigma * 1.01;
                let sigma = calibrate::sufficient(&Pld::at_interval(1e-3), near, r.epsilon, r.delta, event).unwrap();
                assert!((sigma / r.sigma - 1.0).abs() < 1e-2, "{} for {}, ours {sigma}", r.sigma, r.epsilon);
                seen += 1;
            }
            _ => {}
        }
    }
    assert_eq!(seen, 10);
}
