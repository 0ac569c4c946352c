//! What an audit concludes: lower bounds of one run, alarms, tables.

use crate::audit_stats::normals;
use ferret::audit::bound::{Charge, Design, Metric};
use ferret::audit::columns::WIDTH;
use ferret::audit::one_run;
use ferret::audit::report::Report;
use ferret::audit::roc::Roc;
use ferret::audit::stats::SeededRng;
use ferret::privacy::Neighbours;

/// m coins through eps-DP randomised response, the best auditor there is.
fn randomised_response(m: usize, eps: f64, rng: &mut SeededRng) -> (Vec<f64>, Vec<bool>) {
    let q = 1.0 / (1.0 + (-eps).exp());
    let coins: Vec<bool> = (0..m).map(|_| rng.below(2) == 1).collect();
    // A tie-breaking jitter makes the ranks well-defined.
    let scores = coins.iter().map(|&c| f64::from(u8::from(c == (rng.uniform() < q))) + 1e-3 * rng.uniform()).collect();
    (scores, coins)
}

#[test]
fn one_run_audit_never_claims_more_than_the_truth_and_comes_close() {
    let mut rng = SeededRng::new(10);
    let (beta, rounds) = (0.05, 400);
    for (m, eps) in [(200, 1.0), (2000, 1.0), (2000, 3.0), (500, 0.0)] {
        let (mut over, mut mean) = (0, 0.0);
        for _ in 0..rounds {
            let (scores, coins) = randomised_response(m, eps, &mut rng);
            let found = one_run::audit(&scores, &coins, &[m], 0.0, beta).unwrap();
            over += u32::from(found.eps_lower > eps);
            mean += found.eps_lower / f64::from(rounds);
        }
        // At most 5 % of 400 is 20, deviation 4.4.
        assert!(over <= 33, "m {m} eps {eps}: {over} of {rounds} claims above the truth");
        if m == 2000 {
            assert!(mean > 0.85 * eps, "m {m} eps {eps}: {mean} on average");
        }
    }
}

#[test]
fn one_run_audit_allows_for_delta() {
    // With probability m delta' the mechanism reveals every coin, else it tells nothing: (0, delta)-DP per coin with
    // delta = 0.02. An auditor who is told delta may not be fooled more often than beta.
    let mut rng = SeededRng::new(11);
    let (m, delta, beta) = (50usize, 0.02, 0.05);
    let mut over = 0;
    for _ in 0..400 {
        let reveal = rng.uniform() < delta;
        let coins: Vec<bool> = (0..m).map(|_| rng.below(2) == 1).collect();
        let scores: Vec<f64> =
            coins.iter().map(|&c| if reveal { f64::from(u8::from(c)) } else { rng.uniform() }).collect();
        over += u32::from(one_run::audit(&scores, &coins, &[m, m / 2], delta, beta).unwrap().eps_lower > 0.0);
    }
    assert!(over <= 33, "{over} of 400");
}

#[test]
fn bits_are_never_overclaimed() {
    // A transcript that reveals exactly K coins; the auditor guesses those and nothing else.
    let mut rng = SeededRng::new(12);
    let mut over = 0;
    for _ in 0..300 {
        let (m, k) = (400usize, 60);
        let coins: Vec<bool> = (0..m).map(|_| rng.below(2) == 1).collect();
        let scores: Vec<f64> = coins
            .iter()
            .enumerate()
            .map(|(i, &c)| if i < k { if c { 2.0 } else { -2.0 } } else { rng.uniform() - 0.5 })
            .collect();
        let found = one_run::audit(&scores, &coins, &[40], 0.0, 0.05).unwrap();
        over += u32::from(found.bits_lower > k as f64);
        assert!(found.bits_lower > 25.0, "{found:?}");
    }
    assert!(over <= 26, "{over} of 300");
}

fn attacks(rng: &mut SeededRng, records: usize, d: f64) -> Vec<(String, Roc)> {
    ["loss", "ratio"]
        .map(|name| (name.to_owned(), Roc::new(&normals(rng, records, d), &normals(rng, records, 0.0)).unwrap()))
        .to_vec()
}

#[test]
fn alarms_fire_for_a_leak_and_not_otherwise() {
    let mut rng = SeededRng::new(13);
    let n = 1500;
    let candidates = (n as u64, n as u64);
    let ferret = || Charge::Bits(40);
    let dp = || Charge::EpsDelta { eps: 0.5, delta: 1e-5, neighbours: Neighbours::AddOrRemoveOne };
    let mut nothing_charged = 0;
    for _ in 0..20 {
        let quiet = attacks(&mut rng, n, 0.0);
        for charge in [ferret(), dp()] {
            assert!(!Report::new(&quiet, charge.clone(), Design::CoinFlip, candidates).alarm, "{charge:?}");
        }
        nothing_charged += u32::from(Report::new(&quiet, Charge::Bits(0), Design::CoinFlip, candidates).alarm);
    }
    // With no bit charged the bound is the null itself, and at most a few per cent of quiet models are over it.
    assert!(nothing_charged <= 3, "{nothing_charged} of 20");
    let leaky = attacks(&mut rng, n, 1.5);
    for charge in [ferret(), dp(), Charge::Bits(0)] {
        let report = Report::new(&leaky, charge, Design::CoinFlip, candidates);
        assert!(report.alarm);
        assert!(report.attacks[0].verdicts.iter().any(|v| v.metric == Metric::Auc && v.alarm));
        assert!(report.text(WIDTH).contains("ALARM"));
    }
    // The same leak under no guarantee, or with members chosen by hand, is no alarm: there is no bound.
    for (charge, design) in [(Charge::NonPrivate, Design::CoinFlip), (ferret(), Design::Given)] {
        let report = Report::new(&leaky, charge, design, candidates);
        assert!(!report.alarm && report.text(WIDTH).contains("does not apply"));
        assert!(report.csv().contains(",does not apply,"));
    }
}

#[test]
fn a_false_alarm_is_rare_even_where_the_bound_is_reached() {
    // Randomised response sits on its own bound: a member's score is 1 with probability q, a non-member's with 1 - q,
    // the corner of the trade-off curve.
    let mut rng = SeededRng::new(14);
    let eps = 0.5f64;
    let q = 1.0 / (1.0 + (-eps).exp());
    let mut alarms = 0;
    for _ in 0..100 {
        let mut draw = |p: f64| -> Vec<f64> { (0..800).map(|_| f64::from(u8::from(rng.uniform() < p))).collect() };
        let roc = Roc::new(&draw(q), &draw(1.0 - q)).unwrap();
        let charge = Charge::EpsDelta { eps, delta: 0.0, neighbours: Neighbours::AddOrRemoveOne };
        alarms += u32::from(Report::new(&[("coin".into(), roc)], charge, Design::CoinFlip, (800, 800)).alarm);
    }
    assert!(alarms <= 10, "{alarms} of 100");
}

#[test]
fn k_revealed_coins_are_within_what_k_bits_may_tell() {
    // The tight case of the bits' bound: K of the candidates' coins in the clear, nothing else.
    let mut rng = SeededRng::new(15);
    let (records, k) = (600usize, 100u64);
    for _ in 0..20 {
        let coins: Vec<bool> = (0..records).map(|_| rng.below(2) == 1).collect();
        let (mut members, mut nonmembers) = (Vec::new(), Vec::new());
        for (i, &coin) in coins.iter().enumerate() {
            let known = (i as u64) < k;
            let score = if known { if coin { 9.0 } else { -9.0 } } else { rng.normal() };
            if coin { members.push(score) } else { nonmembers.push(score) }
        }
        let roc = Roc::new(&members, &nonmembers).unwrap();
        let sizes = roc.sizes();
        assert!(!Report::new(&[("coins".into(), roc.clone())], Charge::Bits(k), Design::CoinFlip, sizes).alarm);
        // Charged for a fifth of them, it is caught.
        assert!(Report::new(&[("coins".into(), roc)], Charge::Bits(k / 5), Design::CoinFlip, sizes).alarm);
    }
}

#[test]
fn tables_agree_with_each_other() {
    let mut rng = SeededRng::new(16);
    let report = Report::new(&attacks(&mut rng, 200, 0.4), Charge::Bits(10), Design::CoinFlip, (200, 200));
    let csv = report.csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 4);
    let columns = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == columns));
    let value: f64 = lines[1].split(',').nth(2).unwrap().parse().unwrap();
    let json = report.json();
    assert_eq!(json["attacks"][0]["auc"].as_f64().unwrap(), value);
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    assert!(report.text(WIDTH).contains(&format!("{value:.4}")));
}
