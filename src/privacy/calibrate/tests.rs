//! Boundaries of functions that are known, and settings against what accountants say of them.

use super::*;

#[test]
fn the_boundary_is_enclosed() {
    for root in [1e-3, 0.7, 40.0] {
        let Bracket { low, high, .. } =
            boundary(1.0, 1e9, 2.0, PRECISION, 0.01, &|x| Ok(2.0 * (root / x).powf(1.7))).unwrap();
        assert!(low < root && root <= high && high / low <= 1.0 + 1.01 * PRECISION, "{low} {root} {high}");
    }
    assert!(boundary(1.0, 10.0, 2.0, PRECISION, 0.01, &|_| Ok(3.0)).is_err());
    assert_eq!(boundary(1.0, 10.0, 2.0, PRECISION, 0.01, &|_| Ok(1.0)).unwrap().low, 0.0);
}

/// Another accountant that sees up to twice the epsilon, and a dear one with bounds on both sides: few answers, and both proven.
#[test]
fn a_dear_accountant_is_asked_seldom() {
    for (root, power) in [(0.4, 0.6), (1.5, 1.0), (3.0, 2.5), (0.01, 9.0)] {
        let truth = |x: f64| 2.0 * (root / x).powf(power);
        for off in [1.0, 1.02, 1.3, 2.0] {
            let near = boundary(1.0, 1e9, 2.0, PRECISION, 0.1, &|x| Ok(off * truth(x))).unwrap();
            let asked = std::cell::Cell::new(0);
            let times = |factor: f64| {
                let asked = &asked;
                move |x: f64| {
                    asked.set(asked.get() + 1);
                    Ok(truth(x) * factor)
                }
            };
            let (over, under) = (times(1.0005), times(0.9995));
            let whole = |x: f64| Ok(Bounds { lower: under(x)?, upper: over(x)? });
            let dear = Dear { whole: &whole, upper: &over, lower: &under };
            let first = whole(near.high).unwrap();
            let Bounds { lower, upper } =
                from_near(&Start { near: &near, first, whole: true, reach: 0.5 }, 1e9, 2.0, &dear).unwrap();
            assert!(truth(upper) * 1.0005 <= 2.0 && truth(upper * (1.0 - 3.0 * PRECISION)) * 1.0005 > 2.0, "{upper}");
            assert!(truth(lower) * 0.9995 > 2.0 && lower > root * 0.99, "{lower} of {root}");
            assert!(asked.get() <= 10, "{} times, power {power}, off {off}", asked.get());
        }
    }
    // One that is not smooth still ends with what suffices, after few answers, and a lower bound that is far off is not sought.
    let near = boundary(1.0, 1e9, 2.0, 5e-3, 0.1, &|x| Ok(2.0 / x)).unwrap();
    let asked = std::cell::Cell::new(0);
    let jumps = |x: f64| {
        asked.set(asked.get() + 1);
        Ok(if x < 1.3 { f64::INFINITY } else { 1.5 })
    };
    let whole = |x| Ok(Bounds { lower: 0.1, upper: jumps(x)? });
    let dear = Dear { whole: &whole, upper: &jumps, lower: &|_| Ok(0.1) };
    let first = Bounds { lower: 0.0, upper: f64::INFINITY };
    for whole in [true, false] {
        asked.set(0);
        let start = Start { near: &near, first, whole, reach: if whole { 0.5 } else { 5.0 * COARSE } };
        let Bounds { lower, upper } = from_near(&start, 1e9, 2.0, &dear).unwrap();
        assert!(lower == 0.0 && (1.3..1.5).contains(&upper), "{upper}");
        assert!(asked.get() <= 3 * PATIENCE, "{} times", asked.get());
    }
}

/// What is asked with the effort of a neighbour says the same as a whole answer does.
#[test]
fn bounds_alone_are_those_of_the_enclosure() {
    let pld = Pld::default();
    let event =
        |noise_multiplier, sampling_rate| Event::SubsampledGaussian { noise_multiplier, sampling_rate, steps: 300 };
    for (z, q) in [(0.8, 0.02), (2.0, 0.3), (1.5, 1.0)] {
        let mut effort = Effort::default();
        pld.enclosure_by(&event(z, q), 1e-5, &mut effort).unwrap();
        for z in [z, 1.03 * z, 0.9 * z] {
            let whole = pld.enclosure(&event(z, q), 1e-5).unwrap();
            let one = |side| pld.guide(&event(z, q), 1e-5, side, &effort, None).unwrap().0;
            let (upper, lower) = (one(Side::Upper), one(Side::Lower));
            assert!(lower > 0.0 && lower <= whole.upper && whole.lower <= upper, "{lower} {whole:?} {upper}");
            assert!(upper - lower < 3e-3 * upper, "{lower} to {upper}");
        }
    }
}

/// Neither accountant is worse than what the other proves: few flips at tiny rates, and a billion steps.
#[test]
fn what_rdp_proves_is_enough_for_pld() {
    for (epsilon, delta, q, fires) in [
        (1.0, 7.2308e-11, 1.3054e-6, "5x2"),
        (1.0332, 1.2838e-10, 8.7074e-9, "3x2"),
        (1.7884, 1.9467e-10, 9.8028e-7, "2x12"),
        (0.29835, 3.4658e-10, 2.6366e-7, "90909090x11"),
        (0.01, 1e-5, 1.0628e-4, "333333333x3,3x17"),
        (3.0, 1e-9, 0.3, "2x400"),
    ] {
        let fires = Fires::parse(fires).unwrap();
        let found = flip(epsilon, delta, q, &fires).unwrap();
        // In what is left of a bit.
        let left = |f: f64| 1.0 - 2.0 * f;
        assert!(
            found.pld.upper <= found.rdp || left(found.pld.upper) > 0.995 * left(found.rdp),
            "{fires:?}: {found:?}"
        );
        assert!(found.pld.upper < 0.5 && found.pld.lower <= found.pld.upper, "{found:?}");
        let event = Event::SubsampledRandomisedResponse { flip: found.pld.upper, sampling_rate: q, fires };
        assert!(Pld::default().epsilon(&event, delta).unwrap().upper <= epsilon, "{event:?}");
    }
    for (epsilon, q, steps) in [(20.0, 1.0, 1_000_000_000), (0.03, 0.5, 731_443_302)] {
        let Settings { rdp, pld } = noise_multiplier(epsilon, 1e-9, q, steps).unwrap();
        assert!(pld.upper < 1.002 * rdp, "{pld:?} {rdp}");
    }
}

/// RDP's orders end at 1024: no noise brings it to this epsilon. One sum of all records has its noise in closed form.
#[test]
fn an_epsilon_beyond_rdps_orders_is_still_found() {
    let (epsilon, delta) = (0.01, 1e-12);
    let Settings { rdp, pld } = noise_multiplier(epsilon, delta, 1.0, 1).unwrap();
    let stick = |sigma: f64| crate::privacy::normal::hockey_stick(sigma, epsilon).0;
    assert_eq!(rdp, f64::INFINITY);
    assert!(stick(pld.upper) <= delta && stick(pld.upper * 0.998) > delta && stick(pld.lower) > delta, "{pld:?}");
}

/// An answer that ends where it suffices is one that a whole answer bears out.
#[test]
fn what_suffices_early_suffices_as_a_whole() {
    let pld = Pld::default();
    let event = Event::SubsampledGaussian { noise_multiplier: 0.3715, sampling_rate: 1e-9, steps: 24_993 };
    let (mut short, mut long) = (Effort::default(), Effort::default());
    let whole = pld.enclosure_by(&event, 1.33e-10, &mut long).unwrap();
    let early = pld.enclosure_until(&event, 1.33e-10, &mut short, 2.0 * whole.upper).unwrap();
    assert!(
        short.log2 < long.log2 && whole.upper <= early.upper && early.upper <= 2.0 * whole.upper,
        "{early:?} {whole:?}"
    );
    assert_eq!(pld.enclosure_until(&event, 1.33e-10, &mut short, 0.5 * whole.upper).unwrap(), whole);
}
