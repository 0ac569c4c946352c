//! The audit's statistics against closed forms, brute force and simulation.

use ferret::audit::attack::{Mode, RmiaSettings, Shadows, Variance, held_out_threshold, lira, rmia};
use ferret::audit::roc::{Roc, Summary};
use ferret::audit::stats::{SeededRng, phi, phi_inv};

pub fn normals(rng: &mut SeededRng, count: usize, mean: f64) -> Vec<f64> {
    (0..count).map(|_| mean + rng.normal()).collect()
}

/// Every metric by definition, one threshold and one pair at a time.
fn brute_force(members: &[f64], nonmembers: &[f64]) -> (f64, f64, f64) {
    let mut wins = 0.0;
    for a in members {
        for b in nonmembers {
            wins += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
        }
    }
    let rate = |scores: &[f64], t: f64| scores.iter().filter(|&&s| s >= t).count() as f64 / scores.len() as f64;
    let (mut advantage, mut tpr) = (0.0f64, 0.0f64);
    for &t in members.iter().chain(nonmembers) {
        advantage = advantage.max(rate(members, t) - rate(nonmembers, t));
        if rate(nonmembers, t) <= 0.1 {
            tpr = tpr.max(rate(members, t));
        }
    }
    (wins / (members.len() * nonmembers.len()) as f64, advantage, tpr)
}

#[test]
fn metrics_match_brute_force_with_and_without_ties() {
    let mut rng = SeededRng::new(1);
    for round in 0..200 {
        let (m, n) = (1 + rng.below(30) as usize, 1 + rng.below(30) as usize);
        // Few distinct values in even rounds: nearly all scores tie.
        let mut draw = |shift: f64| {
            let x = rng.normal() + shift;
            if round % 2 == 0 { x.round() } else { x }
        };
        let members: Vec<f64> = (0..m).map(|_| draw(0.5)).collect();
        let nonmembers: Vec<f64> = (0..n).map(|_| draw(0.0)).collect();
        let roc = Roc::new(&members, &nonmembers).unwrap();
        let (auc, advantage, tpr) = brute_force(&members, &nonmembers);
        assert!((roc.auc() - auc).abs() < 1e-12);
        assert!((roc.advantage() - advantage).abs() < 1e-12);
        assert!((roc.tpr_at(0.1) - tpr).abs() < 1e-12);
        // The thinned curve has the same area.
        let curve = roc.curve();
        let area: f64 = curve.windows(2).map(|w| (w[1].0 - w[0].0) * (w[0].1 + w[1].1) / 2.0).sum();
        assert!((area - auc).abs() < 1e-12);
    }
}

#[test]
fn degenerate_scores_have_honest_intervals() {
    let constant = Roc::new(&[1.0; 40], &[1.0; 50]).unwrap().summary();
    assert_eq!((constant.auc, constant.advantage, constant.tpr_at_fpr_0_01), (0.5, 0.0, 0.0));
    assert!(constant.auc_ci[0] < 0.45 && constant.auc_ci[1] > 0.55);
    let perfect = Roc::new(&[f64::INFINITY; 40], &[f64::NEG_INFINITY; 50]).unwrap().summary();
    assert_eq!((perfect.auc, perfect.advantage, perfect.tpr_at_fpr_0_01), (1.0, 1.0, 1.0));
    // 40 of 40 pairs: the exact limit is 0.025^(1/40) = 0.912.
    assert!((perfect.auc_ci[0] - 0.025f64.powf(1.0 / 40.0)).abs() < 1e-9 && perfect.auc_ci[1] == 1.0);
    // 50 non-members cannot vouch for a threshold at 0.1 %.
    assert_eq!(perfect.tpr_at_fpr_0_001_ci[0], 0.0);
    assert!(Roc::new(&[], &[1.0]).is_err());
    assert!(Roc::new(&[1.0], &[f64::NAN]).unwrap_err().to_string().contains("non-member record 0"));
}

#[test]
fn intervals_cover_the_truth_and_nulls_cover_nothing_leaked() {
    // Members N(d, 1), non-members N(0, 1): AUC = Phi(d / sqrt 2), advantage = 2 Phi(d/2) - 1, TPR = Phi(d - z).
    let mut rng = SeededRng::new(2);
    let rounds = 300;
    for (d, m, n) in [(0.0, 150, 130), (1.0, 150, 130)] {
        let truth = [phi(d / 2f64.sqrt()), 2.0 * phi(d / 2.0) - 1.0, phi(d - phi_inv(0.99))];
        let (mut covered, mut in_null) = ([0; 3], [0; 3]);
        for _ in 0..rounds {
            let s = Roc::new(&normals(&mut rng, m, d), &normals(&mut rng, n, 0.0)).unwrap().summary();
            let inside = |[low, high]: [f64; 2], x: f64| u32::from(low <= x && x <= high);
            let ci = [s.auc_ci, s.advantage_ci, s.tpr_at_fpr_0_01_ci];
            let null = [s.auc_null, s.advantage_null, s.tpr_at_fpr_0_01_null];
            let value = [s.auc, s.advantage, s.tpr_at_fpr_0_01];
            for i in 0..3 {
                covered[i] += inside(ci[i], truth[i]);
                in_null[i] += inside(null[i], value[i]);
            }
        }
        // 95 % of 300 is 285, deviation 3.8. DeLong is about right, the other two intervals are conservative.
        assert!((272..=297).contains(&covered[0]), "AUC covered {} of {rounds} at d = {d}", covered[0]);
        assert!(covered[1] >= 285 && covered[2] >= 285, "{covered:?} of {rounds} at d = {d}");
        if d == 0.0 {
            assert!((272..=297).contains(&in_null[0]), "{in_null:?}");
            assert!((272..=299).contains(&in_null[1]), "{in_null:?}");
            // TPR is discrete (1/150): the central interval holds at least its level.
            assert!(in_null[2] >= 275, "{in_null:?}");
        } else {
            assert!(in_null[0] == 0 && in_null[1] <= 3, "a leak of d = 1 lies outside the null: {in_null:?}");
        }
    }
}

#[test]
fn p_values_are_uniform_at_most_under_the_null() {
    let mut rng = SeededRng::new(3);
    let rounds = 400;
    let mut small = [0; 3];
    for _ in 0..rounds {
        let s = Roc::new(&normals(&mut rng, 70, 0.0), &normals(&mut rng, 90, 0.0)).unwrap().summary();
        for (count, p) in small.iter_mut().zip([s.auc_p, s.advantage_p, s.tpr_at_fpr_0_01_p]) {
            *count += u32::from(p <= 0.1);
        }
    }
    // 10 % of 400 is 40, deviation 6.
    assert!((22..=58).contains(&small[0]) && (22..=58).contains(&small[1]) && small[2] <= 58, "{small:?}");
}

#[test]
fn summary_keys_are_the_documented_ones() {
    let summary = Roc::new(&[1.0, 2.0, 3.0], &[0.0, 1.0]).unwrap().summary();
    let json = serde_json::to_value(&summary).unwrap();
    for key in ["auc", "advantage", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "members", "nonmembers"] {
        assert!(json[key].is_number(), "{key}");
    }
    for key in ["auc_ci", "advantage_null", "tpr_at_fpr_0.01_ci", "tpr_at_fpr_0.001_null"] {
        assert_eq!(json[key].as_array().unwrap().len(), 2, "{key}");
    }
    assert_eq!(serde_json::from_value::<Summary>(json).unwrap(), summary);
}

/// A world where record j has log-probability `difficulty_j + noise (+ d if the model saw it)`.
struct World {
    target: Vec<f64>,
    member: Vec<bool>,
    shadows: Shadows,
}

fn world(records: usize, models: usize, d: f64, spread: f64, shadow_sees: bool, seed: u64) -> World {
    let mut rng = SeededRng::new(seed);
    let difficulty: Vec<f64> = (0..records).map(|_| -30.0 + spread * rng.normal()).collect();
    let mut model = |sees: bool| {
        let member: Vec<bool> = (0..records).map(|_| rng.below(2) == 1 && sees).collect();
        let scores: Vec<f64> =
            (0..records).map(|j| difficulty[j] + rng.normal() + if member[j] { d } else { 0.0 }).collect();
        (scores, member)
    };
    let (target, member) = model(true);
    let (scores, masks) = (0..models).map(|_| model(shadow_sees)).unzip();
    World { target, member, shadows: Shadows::new(scores, masks).unwrap() }
}

fn auc_of(scores: &[f64], member: &[bool]) -> f64 {
    let side = |wanted: bool| -> Vec<f64> {
        scores.iter().zip(member).filter(|(_, m)| **m == wanted).map(|(s, _)| *s).collect()
    };
    Roc::new(&side(true), &side(false)).unwrap().auc()
}

#[test]
fn lira_reaches_what_gaussians_permit() {
    let (d, spread) = (1.5, 5.0);
    let w = world(4000, 64, d, spread, true, 4);
    // The score alone is drowned by the records' difficulty: Phi(d / sqrt(2 (1 + spread^2))).
    let naive = auc_of(&w.target, &w.member);
    assert!((naive - phi(d / (2.0 * (1.0 + spread * spread)).sqrt())).abs() < 0.03, "{naive}");
    // LiRA takes it out: Phi(d / sqrt 2) but for the fits; deviation of an AUC here about 0.007.
    let ideal = phi(d / 2f64.sqrt());
    for mode in [Mode::Online, Mode::Offline] {
        for variance in [Variance::Global, Variance::PerRecord] {
            let auc = auc_of(&lira(&w.target, &w.shadows, mode, variance).unwrap(), &w.member);
            assert!(auc < ideal + 0.02 && auc > ideal - 0.035, "{mode:?} {variance:?}: {auc} against {ideal}");
        }
    }
    // Offline with a few models and the global variance: the mean's error adds 1/M, Phi(d / sqrt(2 (1 + 1/M))).
    let few = world(6000, 3, d, spread, false, 5);
    let auc = auc_of(&lira(&few.target, &few.shadows, Mode::Offline, Variance::Global).unwrap(), &few.member);
    let want = phi(d / (2.0 * (1.0 + 1.0 / 3.0f64)).sqrt());
    assert!((auc - want).abs() < 0.02, "{auc} against {want}");
}

#[test]
fn lira_online_sees_a_change_of_spread() {
    // Same mean, members' noise three times as wide: only a fit of both sides can tell. For N(0,9) against N(0,1) the
    // likelihood ratio orders by |x|, AUC = P(|X| > |Y|) = (2/pi) atan(3).
    let (records, models) = (3000, 60);
    let mut rng = SeededRng::new(6);
    let mut model = || {
        let member: Vec<bool> = (0..records).map(|_| rng.below(2) == 1).collect();
        let scores: Vec<f64> = member.iter().map(|&m| rng.normal() * if m { 3.0 } else { 1.0 }).collect();
        (scores, member)
    };
    let (target, member) = model();
    let (scores, masks) = (0..models).map(|_| model()).unzip();
    let shadows = Shadows::new(scores, masks).unwrap();
    let online = auc_of(&lira(&target, &shadows, Mode::Online, Variance::Global).unwrap(), &member);
    let want = 3f64.atan() * 2.0 / std::f64::consts::PI;
    assert!((online - want).abs() < 0.03, "{online} against {want}");
    let offline = auc_of(&lira(&target, &shadows, Mode::Offline, Variance::Global).unwrap(), &member);
    assert!((offline - 0.5).abs() < 0.04, "{offline}");
}

#[test]
fn rmia_reaches_what_gaussians_permit() {
    let (d, spread) = (1.5, 5.0);
    let ideal = phi(d / 2f64.sqrt());
    for (mode, sees) in [(Mode::Offline, false), (Mode::Online, true)] {
        let w = world(3000, 64, d, spread, sees, 7);
        // Population records are drawn from the same world and seen by nobody.
        let z = world(2000, 64, 0.0, spread, false, 8);
        let settings = RmiaSettings { mode, ..RmiaSettings::default() };
        let scores = rmia(&w.target, &w.shadows, &z.target, &z.shadows, settings).unwrap();
        assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)));
        let auc = auc_of(&scores, &w.member);
        assert!(auc < ideal + 0.02 && auc > ideal - 0.04, "{mode:?}: {auc} against {ideal}");
        // Nothing leaked: the share of z below a non-member is uniform, 1/2 on average.
        let out: Vec<f64> = scores.iter().zip(&w.member).filter(|(_, m)| !**m).map(|(s, _)| *s).collect();
        if mode == Mode::Offline {
            let mean = out.iter().sum::<f64>() / out.len() as f64;
            assert!((mean - 0.5).abs() < 0.03, "{mean}");
        }
    }
}

#[test]
fn rmia_by_hand() {
    // P(x|target)/P_out(x): x0 0.4/0.2 = 2, x1 0.1/0.2 = 0.5. z: 1, 0.75, 3.
    let ln = |v: &[f64]| v.iter().map(|p: &f64| p.ln()).collect::<Vec<f64>>();
    let x = Shadows::new(vec![ln(&[0.1, 0.2]), ln(&[0.3, 0.2])], vec![vec![false; 2]; 2]).unwrap();
    let z = Shadows::new(vec![ln(&[0.2, 0.4, 0.1])], vec![vec![false; 3]]).unwrap();
    let score = |gamma: f64, a: f64| {
        let settings = RmiaSettings { mode: Mode::Offline, gamma, a };
        rmia(&ln(&[0.4, 0.1]), &x, &ln(&[0.2, 0.3, 0.3]), &z, settings).unwrap()
    };
    assert_eq!(score(1.0, 1.0), [2.0 / 3.0, 0.0]);
    assert_eq!(score(2.5, 1.0), [1.0 / 3.0, 0.0]);
    // a = 0: P = (P_out + 1)/2: x 0.4/0.6, 0.1/0.6; z 0.2/0.6, 0.3/0.7, 0.3/0.55.
    assert_eq!(score(1.0, 0.0), [1.0, 0.0]);
    assert!(rmia(&[0.0], &x, &[0.0; 3], &z, RmiaSettings::default()).is_err());
}

#[test]
fn shadow_errors_name_the_record() {
    let shadows = Shadows::new(vec![vec![0.0, 1.0]; 3], vec![vec![true, false]; 3]).unwrap();
    let error = lira(&[0.0, 0.0], &shadows, Mode::Offline, Variance::PerRecord).unwrap_err().to_string();
    assert!(error.contains("record 0 is in 3 and out of 0"), "{error}");
    assert!(Shadows::new(vec![vec![f64::NAN]], vec![vec![true]]).is_err());
    assert!(Shadows::new(vec![vec![0.0]], vec![vec![true, false]]).is_err());
}

#[test]
fn a_held_out_threshold_is_not_flattered() {
    let mut rng = SeededRng::new(9);
    let (mut in_sample, mut held_out, mut covered) = (0.0, 0.0, 0);
    let rounds = 200;
    for round in 0..rounds {
        let (a, b) = (normals(&mut rng, 100, 0.0), normals(&mut rng, 100, 0.0));
        in_sample += Roc::new(&a, &b).unwrap().advantage() / f64::from(rounds);
        let judged = held_out_threshold(&a, &b, u64::from(round as u32)).unwrap();
        held_out += judged.advantage / f64::from(rounds);
        covered += u32::from(judged.advantage_ci[0] <= 0.0 && 0.0 <= judged.advantage_ci[1]);
    }
    assert!(in_sample > 0.05, "the maximum over thresholds is biased: {in_sample}");
    assert!(held_out.abs() < 0.02, "a held-out one is not: {held_out}");
    assert!(covered >= 188, "{covered} of {rounds}");
}
