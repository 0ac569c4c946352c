//! From the epsilon one wants to the noise or the flips one needs.
//!
//! A search counts what it works. Where that comes to more than a fraction of a second's it ends less close, with more noise than is needed,
//! 0.1 % to some percent and rarely tenths; what it ends with is proven by a whole answer, whatever was left out on the way.

use super::accountant::{Accountant, Bounds};
use super::boundary::{Bracket, boundary, over};
use super::effort::{Effort, Worked};
use super::event::{Event, Fires};
use super::pld::Pld;
use super::rdp::Rdp;
use crate::error::{Error, Result};
use std::cell::RefCell;

/// How close to the true boundary a search ends, relatively.
const PRECISION: f64 = 1e-4;

/// The setting each accountant asks for.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Settings {
    /// Sufficient by RDP.
    pub rdp: f64,
    /// `upper` is proven sufficient, anything below `lower` proven insufficient.
    pub pld: Bounds,
}

/// The noise multiplier at which `steps` sums at `sampling_rate` are (`epsilon`, `delta`)-DP.
pub fn noise_multiplier(epsilon: f64, delta: f64, sampling_rate: f64, steps: u64) -> Result<Settings> {
    settings(epsilon, delta, 1e9, |noise_multiplier| Event::SubsampledGaussian {
        noise_multiplier,
        sampling_rate,
        steps,
    })
}

/// The dither, in units of C, at which FERRET's Gaussian release is (`epsilon`, `delta`)-DP.
pub fn dither(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    settings(epsilon, delta, 1e9, |s| Event::dithered(s, sampling_rate, fires))
}

/// The flip probability at which the bits of `fires` are (`epsilon`, `delta`)-DP.
pub fn flip(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    settings(epsilon, delta, 0.5, |flip| Event::SubsampledRandomisedResponse {
        flip,
        sampling_rate,
        fires: fires.to_vec(),
    })
}

/// The smallest setting near `start` at which `accountant` proves `epsilon` at `delta`.
pub fn sufficient(
    accountant: &dyn Accountant,
    start: f64,
    epsilon: f64,
    delta: f64,
    event: impl Fn(f64) -> Event,
) -> Result<f64> {
    // One that proves nothing there would prove something only far from it.
    let first = accountant.epsilon(&event(start), delta)?.upper;
    let upper = |x: f64| if x == start { Ok(first) } else { Ok(accountant.epsilon(&event(x), delta)?.upper) };
    Ok(boundary(start, 1e9, epsilon, PRECISION, 0.01, &upper, &|| false)?.high)
}

fn settings(epsilon: f64, delta: f64, largest: f64, event: impl Fn(f64) -> Event) -> Result<Settings> {
    if !(epsilon > 0.0 && epsilon.is_finite()) {
        return Err(Error::Usage(format!("epsilon must be a positive number, found {epsilon}")));
    }
    let (rdp, pld) = (Rdp::default(), Pld::default());
    let by_rdp = |x: f64| Ok(rdp.epsilon(&event(x), delta)?.upper);
    let by_rdp = boundary(0.5 * largest.min(2.0), largest, epsilon, PRECISION, 1.0, &by_rdp, &|| false)?;
    // A coarse lattice looks first, the coarsest that sees anything; and searches first where RDP is far off, or where answers will be dear.
    let mut effort = Effort::default();
    let mut coarse = Pld { largest_log2: 14, ..pld };
    let mut seen = coarse.enclosure_by(&event(by_rdp.high), delta, &mut effort)?;
    if seen.upper.is_infinite() || effort.blind {
        coarse.largest_log2 = 16;
        seen = coarse.enclosure_by(&event(by_rdp.high), delta, &mut effort)?;
    }
    // A direction that loses less than epsilon has no say.
    effort.upper = epsilon;
    let effort = RefCell::new(effort);
    let off = (seen.upper.max(1e-300) / epsilon).ln().abs();
    let nearer = if off.is_finite() && (off > FAR || !pld.close(seen)) {
        let upper = |x: f64| coarse.upper(&event(x), delta, &mut effort.borrow_mut());
        let roughly = |x: f64| if x == by_rdp.high { Ok(seen.upper) } else { upper(x) };
        boundary(by_rdp.high, largest, epsilon, COARSE, off.clamp(0.05, 1.0), &roughly, &|| false).ok()
    } else {
        None
    };
    let (near, first) = match &nearer {
        None => {
            let effort = &mut *effort.borrow_mut();
            let Bounds { lower, upper } = pld.enclosure_by(&event(by_rdp.high), delta, effort)?;
            effort.upper = epsilon;
            (&by_rdp, Bounds { lower, upper: upper.min(effort.moments) })
        }
        Some(near) => {
            // A longer transform is finer, and rounds more: the one that proves most. Where a short one is close enough, a whole answer ends there.
            let effort = &mut *effort.borrow_mut();
            let seen = coarse.enclosure_by(&event(near.high), delta, effort)?;
            effort.upper = epsilon;
            let longest = if pld.close(seen) { effort.log2 } else { pld.largest_log2 };
            let mut least = f64::INFINITY;
            for (log2, upper) in pld.uppers(&event(near.high), delta, effort, longest)? {
                if upper <= least * (1.0 + PRECISION) {
                    (least, effort.log2) = (upper, log2);
                }
            }
            (near, Bounds { lower: 0.0, upper: least })
        }
    };
    let dear = Dear {
        whole: &|x| {
            let mut own = Effort::default();
            let found = pld.enclosure_with(&event(x), delta, &mut own);
            effort.borrow_mut().add(&own);
            found
        },
        upper: &|x| pld.upper(&event(x), delta, &mut effort.borrow_mut()),
        lower: &|x| pld.lower(&event(x), delta, &mut effort.borrow_mut()),
        worked: &|| effort.borrow().worked(),
    };
    let start = Start { near, first, whole: nearer.is_none(), proven: by_rdp.high };
    let mut found = from_near(&start, largest, epsilon, &dear)?;
    // It may end above what RDP proves: a whole answer there, or a little above, may see as much.
    for x in [by_rdp.high, 1.001 * by_rdp.high] {
        if x < found.upper.min(largest) && (dear.whole)(x)?.upper <= epsilon {
            found.upper = x;
        }
    }
    Ok(Settings { rdp: by_rdp.high, pld: found })
}

/// Where a search begins: what another accountant saw, and the dear one's answer at `near.high`.
struct Start<'a> {
    near: &'a Bracket,
    first: Bounds,
    /// Whether `first` is a whole answer; else it is an upper bound alone.
    whole: bool,
    /// A setting that another accountant proves.
    proven: f64,
}

/// An accountant whose every answer takes long: what it says of an epsilon, infinite where it knows none, and, in less time, one bound alone.
struct Dear<'a> {
    whole: &'a dyn Fn(f64) -> Result<Bounds>,
    upper: &'a dyn Fn(f64) -> Result<f64>,
    lower: &'a dyn Fn(f64) -> Result<f64>,
    /// Where much has been worked the search ends less close, and where it is enough the best that is known has to do.
    worked: &'a dyn Fn() -> Worked,
}

/// A step of the search below which the next answer may be the last: it is asked for whole.
const CLOSE: f64 = 5e-3;

/// Where the first accountant is off by more than this, in logarithms of epsilon, a coarse lattice searches before the dear one is asked,
const FAR: f64 = 0.25;
/// this closely.
const COARSE: f64 = 1e-2;

/// How close a search ends that has worked much, or whose accountant does not fall as it should.
const ROUGH: f64 = 20.0 * PRECISION;

/// How often a dear accountant is asked before the best that is known has to do: epsilon may jump where its lattice ends.
const PATIENCE: usize = 8;

/// How often it is asked even so where enough has been worked.
const HURRY: usize = 3;

/// The boundary by a dear accountant, from its answer where another one saw it: Newton's steps in logarithms, beginning with the slope that the other one
/// saw and kept between what is known to be too little and to suffice, until a setting suffices with less than [`PRECISION`] to spare; then one below it,
/// which is to be insufficient.
///
/// What suffices is what the whole answer says, as statements will; only how much there is to spare goes by the slope.
fn from_near(start: &Start, largest: f64, target: f64, dear: &Dear) -> Result<Bounds> {
    let &Start { near, first: mut found, mut whole, proven } = start;
    let excess = |e: f64| over(e, target);
    let enough = || (dear.worked)() == Worked::Enough;
    let mut slope = near.slope();
    let mut x = near.high;
    let mut reach = if start.whole { 0.5 } else { 5.0 * COARSE };
    let mut too_little = 0.0_f64;
    let mut best: Option<(f64, Bounds, bool)> = None;
    for asked in 0..PATIENCE {
        let above = excess(found.upper);
        // Every setting that is asked about lies between the two.
        if above <= 0.0 {
            best = Some((x, found, whole));
        } else if above > 0.0 {
            too_little = x;
        }
        let known = best.map_or(f64::INFINITY, |(x, ..)| x);
        let little = (dear.worked)() == Worked::Little;
        let precision = if little { PRECISION } else { ROUGH };
        let close = (0.0..=precision).contains(&(-above / slope)) || near.low == 0.0;
        if close || known <= too_little * (1.0 + precision) || asked + 1 == PATIENCE || (asked >= HURRY && enough()) {
            break;
        }
        // Aim at the middle of what there may be to spare; where there is no finite epsilon, a little further up.
        if !little {
            reach = reach.max(0.5);
        }
        let step = if above.is_finite() { (above / slope + 0.5 * precision).clamp(-reach, reach) } else { 0.05 };
        if step.abs() == reach {
            reach *= 2.0;
        }
        let newton = (x * step.exp()).min(largest);
        let next = if newton > too_little && newton < known {
            newton
        } else if known.is_finite() {
            (too_little * known).sqrt()
        } else {
            break;
        };
        whole = start.whole && little && step.abs() < CLOSE;
        found = if whole { (dear.whole)(next)? } else { Bounds { lower: 0.0, upper: (dear.upper)(next)? } };
        let seen = (above - excess(found.upper)) / (next / x).ln();
        if seen.is_finite() && (0.1..=100.0).contains(&seen) {
            slope = seen;
        }
        x = next;
    }
    if let Some(best) = best {
        (x, found, whole) = best;
    } else if enough() && !whole && excess(found.upper).is_finite() {
        // What does not suffice by one bound hardly does by all: further by what the slope says.
        x = (x * (excess(found.upper) / slope + ROUGH).exp()).min(largest);
    }
    if !whole {
        found = (dear.whole)(x)?;
    }
    if found.upper.is_nan() || found.upper > target {
        // Where enough has been worked, a few settings further up.
        let further =
            [excess(found.upper).min(0.1) / slope + 2.0 * ROUGH, 0.05, (proven / x).ln()].map(|by| x * by.exp());
        for further in further {
            if enough() && found.upper > target && further > x {
                (x, found) = (further.min(largest), (dear.whole)(further.min(largest))?);
            }
        }
        // It does not fall as it should: enclose the boundary by whole answers, not too closely; or climb by them to what suffices.
        let upper = |y: f64| if y == x { Ok(found.upper) } else { Ok((dear.whole)(y)?.upper) };
        let upper = boundary(x, largest, target, ROUGH, 4e-3, &upper, &enough)?.high;
        return Ok(Bounds { lower: 0.0, upper });
    }
    let (upper, mut lower) = (x, found.lower);
    // Where the lower bound is far off, another lattice would have to be found first.
    for _ in 0..2 {
        // A lower bound that is not a number proves nothing.
        let below = -excess(lower.max(0.0)) / slope;
        if below > 0.1 || enough() {
            break;
        }
        x *= (-below).exp() * (1.0 - PRECISION);
        lower = (dear.lower)(x)?;
        if lower > target {
            return Ok(Bounds { lower: x, upper });
        }
    }
    Ok(Bounds { lower: 0.0, upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_does_not_suffice() {
        let (root, unknown) = (5.0, 2.0);
        let f = |x: f64| Ok(if x < unknown { f64::NAN } else { 2.0 * root / x });
        for start in [1.0, 1.9, 20.0] {
            let found = boundary(start, 1e9, 2.0, PRECISION, 0.5, &f, &|| false).unwrap();
            assert!(
                found.low < root && root <= found.high && found.high < root * 1.001,
                "{} {}",
                found.low,
                found.high
            );
        }
        assert!(boundary(1.0, 10.0, 2.0, PRECISION, 0.5, &|_| Ok(f64::NAN), &|| false).is_err());
        let near = Bracket { low: 1.8, high: 1.9, excess: (0.1, -0.1) };
        let whole = |x: f64| f(x).map(|upper| Bounds { lower: f64::NAN, upper });
        let dear = Dear { whole: &whole, upper: &f, lower: &|_| Ok(f64::NAN), worked: &|| Worked::Little };
        let first = Bounds { lower: f64::NAN, upper: f64::NAN };
        let found = from_near(&Start { near: &near, first, whole: true, proven: near.high }, 1e9, 2.0, &dear).unwrap();
        assert!(found.lower == 0.0 && found.upper >= root && found.upper < root * 1.01, "{found:?}");
    }

    /// An accountant's answers, and how many there were.
    fn counted(asked: &std::cell::Cell<usize>, answer: impl Fn(f64) -> f64) -> impl Fn(f64) -> Result<f64> {
        move |x| {
            asked.set(asked.get() + 1);
            Ok(answer(x))
        }
    }

    /// Another accountant that sees up to twice the epsilon, and a dear one with bounds on both sides: few answers, and both proven.
    #[test]
    fn a_dear_accountant_is_asked_seldom() {
        for (root, power) in [(0.4, 0.6), (1.5, 1.0), (3.0, 2.5), (0.01, 9.0)] {
            let truth = |x: f64| 2.0 * (root / x).powf(power);
            for off in [1.0, 1.02, 1.3, 2.0] {
                let near = boundary(1.0, 1e9, 2.0, PRECISION, 0.1, &|x| Ok(off * truth(x)), &|| false).unwrap();
                let asked = std::cell::Cell::new(0);
                let times = |factor: f64| counted(&asked, move |x| factor * truth(x));
                let (over, under) = (times(1.0005), times(0.9995));
                let whole = |x: f64| Ok(Bounds { lower: under(x)?, upper: over(x)? });
                let dear = Dear { whole: &whole, upper: &over, lower: &under, worked: &|| Worked::Little };
                let first = whole(near.high).unwrap();
                let Bounds { lower, upper } =
                    from_near(&Start { near: &near, first, whole: true, proven: near.high }, 1e9, 2.0, &dear).unwrap();
                assert!(
                    truth(upper) * 1.0005 <= 2.0 && truth(upper * (1.0 - 3.0 * PRECISION)) * 1.0005 > 2.0,
                    "{upper}"
                );
                assert!(truth(lower) * 0.9995 > 2.0 && lower > root * 0.99, "{lower} of {root}");
                assert!(asked.get() <= 10, "{} times, power {power}, off {off}", asked.get());
            }
        }
        // One that is not smooth still ends with what suffices, after few answers, and a lower bound that is far off is not sought.
        let near = boundary(1.0, 1e9, 2.0, 5e-3, 0.1, &|x| Ok(2.0 / x), &|| false).unwrap();
        let asked = std::cell::Cell::new(0);
        let jumps = |x: f64| {
            asked.set(asked.get() + 1);
            Ok(if x < 1.3 { f64::INFINITY } else { 1.5 })
        };
        let whole = |x| Ok(Bounds { lower: 0.1, upper: jumps(x)? });
        let dear = Dear { whole: &whole, upper: &jumps, lower: &|_| Ok(0.1), worked: &|| Worked::Little };
        let first = Bounds { lower: 0.0, upper: f64::INFINITY };
        for whole in [true, false] {
            asked.set(0);
            let Bounds { lower, upper } =
                from_near(&Start { near: &near, first, whole, proven: near.high }, 1e9, 2.0, &dear).unwrap();
            assert!(lower == 0.0 && (1.3..1.5).contains(&upper), "{upper}");
            assert!(asked.get() <= 3 * PATIENCE, "{} times", asked.get());
        }
    }

    /// A search that has worked enough asks a few times more, and what it ends with a whole answer proves; also where whole answers see more than
    /// one bound does, or far more.
    #[test]
    fn where_enough_has_been_worked_what_is_proven_has_to_do() {
        let truth = |x: f64| 2.0 * (1.5 / x).powf(1.3);
        for (worked, more) in
            [(Worked::Much, 1.0), (Worked::Enough, 1.0), (Worked::Enough, 1.004), (Worked::Enough, 1.5)]
        {
            for near in [0.5, 1.49, 1.51, 1.9] {
                let asked = std::cell::Cell::new(0);
                let times = |factor: f64| counted(&asked, move |x| factor * truth(x));
                let (upper, over) = (times(1.0), times(more));
                let whole = |x: f64| Ok(Bounds { lower: 0.0, upper: over(x)? });
                let dear = Dear { whole: &whole, upper: &upper, lower: &|_| Ok(0.0), worked: &|| worked };
                let first = Bounds { lower: 0.0, upper: truth(near) };
                let near = Bracket { low: 0.99 * near, high: near, excess: (0.1, 0.09) };
                let start = Start { near: &near, first, whole: false, proven: 3.0 };
                let found = from_near(&start, 1e9, 2.0, &dear).unwrap().upper;
                assert!(truth(found) * more <= 2.0, "{worked:?} {more}: {found}");
                let loose = if more > 1.1 { 2.01 } else { 1.01 };
                assert!(found <= 1.5 * loose, "{worked:?} {more} from {}: {found}", near.high);
                assert!(asked.get() <= HURRY + 5, "{worked:?} {more}: {} times", asked.get());
            }
        }
    }

    /// Five kinds of steps so dear that the search ends early: still, what it names a whole answer proves, and it is less than RDP's.
    #[test]
    fn a_dear_search_ends_with_what_is_proven() {
        let fires = [(10_679, 48), (42, 3), (83_873_000, 1), (98_758, 7), (548_210, 4)];
        let fires = fires.map(|(steps, bits)| Fires { steps, bits });
        let (epsilon, delta, q) = (0.585_94, 4.669e-4, 3.7236e-7);
        let Settings { rdp, pld: Bounds { upper, .. } } = dither(epsilon, delta, q, &fires).unwrap();
        let found = Pld::default().enclosure(&Event::dithered(upper, q, &fires), delta).unwrap();
        assert!(found.upper <= epsilon && upper < 0.6 * rdp, "{found:?} at {upper}, RDP {rdp}");
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
                let (upper, lower) = (
                    pld.upper(&event(z, q), 1e-5, &mut effort).unwrap(),
                    pld.lower(&event(z, q), 1e-5, &mut effort).unwrap(),
                );
                assert!(lower > 0.0 && lower <= whole.upper && whole.lower <= upper, "{lower} {whole:?} {upper}");
                assert!(upper - lower < 3e-3 * upper, "{lower} to {upper}");
            }
        }
    }
}
