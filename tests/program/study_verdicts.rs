//! The paper's figures, and verdicts on known inputs.

use ferret::study::paper;
use ferret::study::verdict::{Answer, Cell, Sample, UNITS_DIFFER, Verdict, time, trade_off, utility};

#[test]
fn the_papers_figures_are_complete() {
    assert_eq!(paper::cells().len(), 51);
    for epochs in [1, 3, 5] {
        for method in ["FERRET-MAX", "FERRET-EIGHTH", "FERRET-2", "DPSGD"] {
            for budget in [0.1, 0.5, 1.0, 2.0] {
                let cell = paper::cell(method, epochs, budget).unwrap();
                assert!(
                    cell.test_ppl > 4.0 && cell.auc > 0.5 && cell.advantage < 0.1 && cell.seconds > 60.0,
                    "{cell:?}"
                );
            }
        }
        assert!(paper::cell("non-private", epochs, f64::INFINITY).is_some());
    }
    let dpsgd = paper::cell("DPSGD", 5, 0.5).unwrap();
    assert_eq!((dpsgd.train_ppl, dpsgd.test_ppl, dpsgd.auc, dpsgd.advantage), (7.94, 7.99, 0.513, 0.024));
    assert!(paper::cell("DPSGD, steps of FERRET-MAX", 1, 0.1).is_none());
}

/// Three seeds of (loss, AUC, seconds), a little apart.
fn seeds(loss: f64, auc: f64, seconds: f64) -> Vec<Sample> {
    let sample =
        |d: f64| Sample { loss: loss + d, auc: auc + 0.01 * d, seconds: seconds * (1.0 + d), gradients: 100.0 };
    vec![sample(0.0), sample(0.001), sample(-0.001)]
}

fn cell(ferret: Vec<Sample>, dpsgd: Vec<Sample>, nonprivate: Vec<Sample>) -> Cell {
    Cell { ferret, dpsgd, nonprivate }
}

fn by_utility(name: &str, cells: &[Cell]) -> Verdict {
    utility(name, cells, UNITS_DIFFER)
}

#[test]
fn verdicts_follow_known_inputs() {
    let good = || cell(seeds(1.0, 0.5, 1.0), seeds(2.0, 0.51, 4.0), seeds(1.2, 0.9, 2.0));
    let bad = || cell(seeds(5.0, 0.5, 9.0), seeds(2.0, 0.5, 4.0), seeds(1.2, 0.51, 2.0));
    // Worse utility, much less leakage than non-private: neither is better than the other.
    let traded = || cell(seeds(1.5, 0.5, 1.0), seeds(2.0, 0.51, 4.0), seeds(1.2, 0.9, 2.0));
    for (judge, with_trade) in
        [(by_utility as fn(&str, &[Cell]) -> _, Answer::Holds), (trade_off, Answer::Undecided), (time, Answer::Holds)]
    {
        assert_eq!(judge("F", &[good(), good()]).outcome, Answer::Holds);
        assert_eq!(judge("F", &[good(), bad()]).outcome, Answer::Fails);
        assert_eq!(judge("F", &[good(), traded()]).outcome, with_trade);
        assert_eq!(judge("F", &[]).outcome, Answer::Undecided);
        // One seed decides nothing, however large the difference.
        let one = cell(seeds(1.0, 0.5, 1.0)[..1].to_vec(), seeds(9.0, 0.9, 9.0)[..1].to_vec(), Vec::new());
        assert_eq!(judge("F", &[one]).outcome, Answer::Undecided);
    }
    // Seeds that disagree decide nothing, and a diverged run is no evidence.
    let mut noisy = good();
    noisy.ferret[1].loss = 7.0;
    assert_eq!(utility("F", &[noisy.clone()], UNITS_DIFFER).outcome, Answer::Undecided);
    noisy.ferret[1].loss = f64::INFINITY;
    assert_eq!(utility("F", &[noisy], UNITS_DIFFER).outcome, Answer::Undecided);
    // The test is stated, and never calls nats an eps.
    let said = utility("F", &[good()], UNITS_DIFFER).test;
    assert!(
        said.contains("Student") && said.contains("the units differ") && said.contains("nats of mutual information")
    );
}
