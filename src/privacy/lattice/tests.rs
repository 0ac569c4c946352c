//! Lattice curves against the true ones.

use super::super::curve::Direction;
use super::super::event::Step;
use super::*;

/// H of the lattice pair at e^l.
fn stick(lattice: &Lattice, l: f64) -> f64 {
    let finite =
        lattice.atoms.iter().map(|&(j, m)| m.exp() * -(l - j as f64 * lattice.step).min(0.0).exp_m1()).sum::<f64>();
    finite + lattice.infinite
}

fn steps() -> Vec<Step> {
    vec![
        Step::Gaussian { noise_multiplier: 1.0, sampling_rate: 0.005 },
        Step::Gaussian { noise_multiplier: 0.5, sampling_rate: 0.3 },
        Step::Gaussian { noise_multiplier: 3.0, sampling_rate: 1.0 },
        Step::Response { flip: 0.055, sampling_rate: 0.005, bits: 1 },
        Step::Response { flip: 0.2, sampling_rate: 0.5, bits: 3 },
    ]
}

#[test]
fn the_lattice_curves_enclose_the_true_one_between_the_lattice_points_too() {
    for step in steps() {
        for direction in [Direction::Remove, Direction::Add] {
            let curve = Curve::new(step, direction);
            let grid = Grid { step: 0.37 * curve.scale(), core: 64, tail: 1e-14, near: f64::INFINITY };
            let (high, low) = (Lattice::pessimistic(&curve, grid), Lattice::optimistic(&curve, grid));
            for i in 0..4000 {
                let l = curve.scale() * 0.01 * f64::from(i) * 1.003_f64.powi(i / 4);
                let (truth, error) = curve.stick(l);
                let slack = 2.0 * error + 1e-13 * truth + 1e-16;
                assert!(
                    stick(&high, l) >= truth - slack,
                    "{step:?} {direction:?} l = {l}: above {} < {truth}",
                    stick(&high, l)
                );
                assert!(
                    stick(&low, l) <= truth + slack,
                    "{step:?} {direction:?} l = {l}: below {} > {truth}",
                    stick(&low, l)
                );
            }
            assert!(stick(&low, 0.0) > 0.5 * curve.stick(0.0).0, "{step:?} {direction:?}: the lower curve is trivial");
        }
    }
}

#[test]
fn losses_far_below_may_be_rough() {
    for step in steps() {
        for direction in [Direction::Remove, Direction::Add] {
            let curve = Curve::new(step, direction);
            let near = 2.0 * curve.scale();
            let rough = Grid { step: 1e-3 * curve.scale(), core: 1 << 12, tail: 1e-14, near };
            let fine = Grid { near: f64::INFINITY, ..rough };
            assert!(rough.indices(&curve).len() <= fine.indices(&curve).len());
            let (high, low) = (Lattice::pessimistic(&curve, rough), Lattice::optimistic(&curve, rough));
            for l in (0..50).map(|i| 0.1 * f64::from(i) * curve.scale()) {
                let (truth, error) = curve.stick(l);
                let slack = 2.0 * error + 1e-13 * truth + 1e-16;
                assert!(
                    stick(&high, l) >= truth - slack && stick(&low, l) <= truth + slack,
                    "{step:?} {direction:?} {l}"
                );
            }
            let off = (stick(&high, 0.0) - stick(&low, 0.0)) / curve.stick(0.0).0;
            assert!(off < 2e-3, "{step:?} {direction:?}: {off}");
        }
    }
    let (add, step) = (Direction::Add, Step::Gaussian { noise_multiplier: 0.3, sampling_rate: 1e-6 });
    let curve = Curve::new(step, add);
    let fine = Grid { step: 1e-12, core: 1 << 13, tail: 1e-14, near: f64::INFINITY };
    let points = |grid: Grid| grid.indices(&curve).len();
    assert!(points(Grid { near: 1e-8, ..fine }) * 2 < points(fine), "nothing is saved");
}

#[test]
fn the_lattice_masses_are_probabilities() {
    for step in steps() {
        for direction in [Direction::Remove, Direction::Add] {
            let curve = Curve::new(step, direction);
            let grid = Grid { step: 0.1 * curve.scale(), core: 256, tail: 1e-14, near: f64::INFINITY };
            for lattice in [Lattice::pessimistic(&curve, grid), Lattice::optimistic(&curve, grid)] {
                let total = lattice.atoms.iter().map(|(_, m)| m.exp()).sum::<f64>() + lattice.infinite;
                let q: f64 = lattice.atoms.iter().map(|&(j, m)| (m - j as f64 * lattice.step).exp()).sum();
                assert!((total - 1.0).abs() < 1e-8, "{step:?} {direction:?}: P sums to {total}");
                assert!(q <= 1.0 + 1e-8, "{step:?} {direction:?}: Q sums to {q}");
            }
        }
    }
}

/// A curve that is linear between few losses is pressed at the points beside them, and no denser lattice is closer.
#[test]
fn a_step_with_few_outcomes_takes_few_points() {
    for (flip, q, bits) in [(0.055, 0.005, 1), (0.2, 0.5, 3), (0.3, 1e-7, 11), (0.45, 1.0, 512)] {
        for direction in [Direction::Remove, Direction::Add] {
            let curve = Curve::new(Step::Response { flip, sampling_rate: q, bits }, direction);
            let grid = Grid { step: 0.01 * curve.scale(), core: 1 << 14, tail: 1e-14, near: f64::INFINITY };
            let few = grid.indices(&curve);
            assert!(few.len() <= 3 * (bits as usize + 1) + 3, "{} points for {bits} bits", few.len());
            let lattice = Lattice::pessimistic(&curve, grid);
            for j in (*few.first().unwrap()..=*few.last().unwrap()).step_by((few[few.len() - 1] / 500).max(1) as usize)
            {
                let l = j as f64 * grid.step;
                if l >= 0.0 {
                    let (found, truth) = (stick(&lattice, l), curve.stick(l).0);
                    let slack = 1e-11 * curve.stick(0.0).0 + 2e-15;
                    assert!(
                        (found - truth).abs() <= slack,
                        "{flip} {q} {bits} {direction:?} at {l}: {found} for {truth}"
                    );
                }
            }
        }
    }
}

/// Two bits that are hardly ever flipped and nearly always about the record: the losses lie further apart than e^x reaches.
#[test]
fn losses_far_apart_keep_their_mass() {
    let step = Step::Response { flip: 2.7e-152, sampling_rate: 0.999_999, bits: 2 };
    let curve = Curve::new(step, Direction::Remove);
    for step in [0.01, 0.3, 2.0] {
        let lattice = Lattice::pessimistic(&curve, Grid { step, core: 64, tail: 1e-14, near: f64::INFINITY });
        let total = lattice.atoms.iter().map(|(_, m)| m.exp()).sum::<f64>() + lattice.infinite;
        assert!(total > 1.0 - 1e-6, "{step}: {total}");
        let truth = curve.stick(600.0).0;
        assert!(truth > 0.99 && stick(&lattice, 600.0) >= truth - 1e-9, "{step}: {} < {truth}", stick(&lattice, 600.0));
    }
}

/// At rates this small a lattice has more places below the largest loss than 64 bits count.
#[test]
fn a_lattice_of_more_places_than_integers_ends_where_they_do() {
    for q in [1e-14, 1e-16] {
        let curve = Curve::new(Step::Gaussian { noise_multiplier: 0.02, sampling_rate: q }, Direction::Remove);
        let grid = Grid { step: curve.scale() / 256.0, core: 256, tail: 1e-25, near: f64::INFINITY };
        let indices = grid.indices(&curve);
        assert!(indices.windows(2).all(|w| w[0] < w[1]) && indices.contains(&0), "{q:e}");
        let lattice = Lattice::pessimistic(&curve, grid);
        for l in [0.0, 1.0, 50.0, 600.0] {
            let (found, truth) = (stick(&lattice, l), curve.stick(l).0);
            assert!(found >= truth * (1.0 - 1e-9), "{q:e} at {l}: {found:e} < {truth:e}");
        }
    }
}
