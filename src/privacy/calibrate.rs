//! From the epsilon one wants to the noise or the flips one needs.

use super::accountant::{Accountant, Bounds};
use super::event::{Event, Fires};
use super::pld::{Effort, Pld};
use super::rdp::Rdp;
use super::spectrum::{Side, Window};
use crate::error::{Error, Result};
use std::cell::Cell;

/// How close to the true boundary a search ends, relatively.
const PRECISION: f64 = 1e-4;

/// The most noise that is looked at.
const MOST_NOISE: f64 = 1e9;

/// The setting each accountant asks for.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Settings {
    /// Sufficient by RDP; infinite where its orders end before epsilon is reached.
    pub rdp: f64,
    /// `upper` is proven sufficient, anything below `lower` proven insufficient.
    pub pld: Bounds,
}

/// The noise multiplier at which `steps` sums at `sampling_rate` are (`epsilon`, `delta`)-DP.
pub fn noise_multiplier(epsilon: f64, delta: f64, sampling_rate: f64, steps: u64) -> Result<Settings> {
    settings(epsilon, delta, MOST_NOISE, |noise_multiplier| Event::SubsampledGaussian {
        noise_multiplier,
        sampling_rate,
        steps,
    })
}

/// The dither, in units of C, at which FERRET's Gaussian release is (`epsilon`, `delta`)-DP.
pub fn dither(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    settings(epsilon, delta, MOST_NOISE, |s| Event::dithered(s, sampling_rate, fires))
}

/// The flip probability at which the bits of `fires` are (`epsilon`, `delta`)-DP.
///
/// Looked for by the noise x = f / (1 - 2f): small flips are as near as they are by themselves, and of those near 1/2 what they leave of a bit,
/// 1 - 2f, is.
pub fn flip(epsilon: f64, delta: f64, sampling_rate: f64, fires: &[Fires]) -> Result<Settings> {
    let flip = |x: f64| if x < MOST_NOISE { x / (1.0 + 2.0 * x) } else { 0.5 };
    let Settings { rdp, pld } = settings(epsilon, delta, MOST_NOISE, |x| Event::SubsampledRandomisedResponse {
        flip: flip(x),
        sampling_rate,
        fires: fires.to_vec(),
    })?;
    Ok(Settings { rdp: flip(rdp), pld: Bounds { lower: flip(pld.lower), upper: flip(pld.upper) } })
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
    Ok(boundary(start, MOST_NOISE, epsilon, PRECISION, 0.01, &upper)?.high)
}

fn settings(epsilon: f64, delta: f64, largest: f64, event: impl Fn(f64) -> Event) -> Result<Settings> {
    if !(epsilon > 0.0 && epsilon.is_finite()) {
        return Err(Error::Usage(format!("epsilon must be a positive number, found {epsilon}")));
    }
    let (rdp, pld) = (Rdp::default(), Pld::default());
    let by_rdp = |x: f64| Ok(rdp.epsilon(&event(x), delta)?.upper);
    let by_rdp = match boundary(1.0, largest, epsilon, PRECISION, 1.0, &by_rdp) {
        Ok(found) => Some(found),
        Err(Error::Privacy(_)) => None,
        Err(e) => return Err(e),
    };
    let begin = by_rdp.as_ref().map_or(1.0, |found| found.high);
    // A coarse lattice looks first, the coarsest that sees anything; and searches first where RDP is far off.
    let mut effort = Effort::default();
    let mut coarse = Pld { largest_log2: 14, ..pld };
    let mut seen = coarse.enclosure_by(&event(begin), delta, &mut effort)?;
    if seen.upper.is_infinite() || effort.blind {
        coarse.largest_log2 = 16;
        seen = coarse.enclosure_by(&event(begin), delta, &mut effort)?;
    }
    let off = (seen.upper.max(1e-300) / epsilon).ln().abs();
    let nearer = if by_rdp.is_none() || (off.is_finite() && off > FAR) {
        let roughly = |x: f64| {
            if x == begin {
                return Ok(seen.upper);
            }
            let mut found = coarse.uppers(&event(x), delta, &mut { effort }, effort.log2)?;
            Ok(found.next().map_or(f64::INFINITY, |(_, upper)| upper))
        };
        let found = boundary(begin, largest, epsilon, COARSE, off.clamp(0.05, 1.0), &roughly);
        if by_rdp.is_none() { Some(found?) } else { found.ok() }
    } else {
        None
    };
    let near = match (&nearer, &by_rdp) {
        (Some(near), _) | (None, Some(near)) => near,
        (None, None) => return Err(out_of_reach(epsilon, largest)),
    };
    if nearer.is_some() {
        seen = coarse.enclosure_by(&event(near.high), delta, &mut effort)?;
    }
    let whole = nearer.is_none() && pld.close(seen);
    let first = if whole {
        pld.enclosure_by(&event(near.high), delta, &mut effort)?
    } else {
        // A longer transform is finer, and rounds more: the one that proves most. Where a short one is close enough, a whole answer ends there.
        let longest = if pld.close(seen) { effort.log2 } else { pld.largest_log2 };
        let mut least = f64::INFINITY;
        for (log2, upper) in pld.uppers(&event(near.high), delta, &mut effort, longest)? {
            if upper <= least * (1.0 + PRECISION) {
                (least, effort.log2) = (upper, log2);
            }
        }
        Bounds { lower: 0.0, upper: least }
    };
    let last: Cell<Option<(f64, (Window, u32))>> = Cell::new(None);
    let guided = |x: f64, side: Side| -> Result<f64> {
        let beside = last.get().filter(|(at, _)| (x / at).ln().abs() < BESIDE).map(|(_, window)| window);
        let (mut found, mut window) = pld.guide(&event(x), delta, side, &effort, beside)?;
        if beside.is_some() && !found.is_finite() {
            (found, window) = pld.guide(&event(x), delta, side, &effort, None)?;
        }
        if beside.is_none() {
            last.set(window.map(|window| (x, window)));
        }
        Ok(found)
    };
    let dear = Dear {
        whole: &|x| pld.enclosure_until(&event(x), delta, &mut Effort::default(), epsilon),
        upper: &|x| guided(x, Side::Upper),
        lower: &|x| guided(x, Side::Lower),
    };
    let reach = if nearer.is_some() { 5.0 * COARSE } else { 0.5 };
    let start = Start { near, first, whole, reach };
    let pld = from_near(&start, largest, epsilon, &dear)?;
    Ok(Settings { rdp: by_rdp.map_or(f64::INFINITY, |found| found.high), pld })
}

fn out_of_reach(epsilon: f64, largest: f64) -> Error {
    Error::Privacy(format!(
        "epsilon {epsilon} is out of reach: even {largest} does not suffice; use fewer steps, a lower sampling rate or a larger delta"
    ))
}

/// Where a search begins: what another accountant saw, and the dear one's answer at `near.high`.
struct Start<'a> {
    near: &'a Bracket,
    first: Bounds,
    /// Whether `first` is a whole answer; else it is an upper bound alone.
    whole: bool,
    /// The longest first step, in logarithms.
    reach: f64,
}

/// An accountant whose every answer takes long: what it says of an epsilon, infinite where it knows none, and, in less time, what one bound is about.
struct Dear<'a> {
    whole: &'a dyn Fn(f64) -> Result<Bounds>,
    upper: &'a dyn Fn(f64) -> Result<f64>,
    lower: &'a dyn Fn(f64) -> Result<f64>,
}

/// A step of the search below which the next answer may be the last: it is asked for whole.
const CLOSE: f64 = 5e-3;

/// Where the first accountant is off by more than this, in logarithms of epsilon, a coarse lattice searches before the dear one is asked,
const FAR: f64 = 0.25;
/// this closely.
const COARSE: f64 = 1e-2;
/// Settings that differ by less, in logarithms, share a window.
const BESIDE: f64 = 1e-3;

/// How often a dear accountant is asked before the best that is known has to do: epsilon may jump where its lattice ends.
const PATIENCE: usize = 8;

/// The boundary by a dear accountant, from its answer where another one saw it: Newton's steps in logarithms, beginning with the slope that the other one
/// saw and kept between what is known to be too little and to suffice, until a setting suffices with less than [`PRECISION`] to spare; then one below it,
/// which is to be insufficient.
///
/// What suffices is what the whole answer says, as statements will; only how much there is to spare goes by the slope.
fn from_near(start: &Start, largest: f64, target: f64, dear: &Dear) -> Result<Bounds> {
    let &Start { near, first: mut found, mut whole, mut reach } = start;
    let excess = |e: f64| (e.max(1e-300) / target).ln();
    let mut slope = near.slope();
    let mut x = near.high;
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
        let close = (0.0..=PRECISION).contains(&(-above / slope)) || near.low == 0.0;
        if close || known <= too_little * (1.0 + PRECISION) || asked + 1 == PATIENCE {
            break;
        }
        // Aim at the middle of what there may be to spare; where there is no finite epsilon, a little further up.
        let step = if above.is_finite() { (above / slope + 0.5 * PRECISION).clamp(-reach, reach) } else { 0.05 };
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
        whole = start.whole && step.abs() < CLOSE;
        found = if whole { (dear.whole)(next)? } else { Bounds { lower: 0.0, upper: (dear.upper)(next)? } };
        let seen = (above - excess(found.upper)) / (next / x).ln();
        if seen.is_finite() && (0.1..=100.0).contains(&seen) {
            slope = seen;
        }
        x = next;
    }
    if let Some(best) = best {
        (x, found, whole) = best;
    }
    if !whole {
        found = (dear.whole)(x)?;
    }
    // What guided the search may have been a little below a whole answer.
    for _ in 0..2 {
        let above = excess(found.upper);
        if !(above > 0.0 && above < 0.1) || x >= largest {
            break;
        }
        x = (x * (above / slope + 0.5 * PRECISION).exp()).min(largest);
        found = (dear.whole)(x)?;
    }
    if found.upper.is_nan() || found.upper > target {
        // It does not fall as it should: enclose the boundary by whole answers, not too closely.
        let upper = |y: f64| if y == x { Ok(found.upper) } else { Ok((dear.whole)(y)?.upper) };
        let upper = boundary(x, largest, target, 20.0 * PRECISION, 4e-3, &upper)?.high;
        return Ok(Bounds { lower: 0.0, upper });
    }
    let (upper, mut lower) = (x, found.lower);
    // Where the lower bound is far off, another lattice would have to be found first.
    for _ in 0..2 {
        let below = -excess(lower) / slope;
        if below > 0.1 {
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

/// Two settings that have a boundary between them, or, if `low` is 0, one below which it lies.
struct Bracket {
    low: f64,
    high: f64,
    /// Logarithms of their epsilons over the target.
    excess: (f64, f64),
}

impl Bracket {
    /// How fast epsilon falls with the setting, in logarithms.
    fn slope(&self) -> f64 {
        let seen = (self.excess.0 - self.excess.1) / (self.high / self.low).ln();
        if seen.is_finite() && (0.1..=100.0).contains(&seen) { seen } else { 1.5 }
    }
}

/// Settings with f(low) > target >= f(high) and high / low <= 1 + `precision`, for f falling; low is 0 if the target holds everywhere.
///
/// Brackets around `start` by growing factors, the first 1 + `reach`, then regula falsi in logarithms, with a step of bisection
/// whenever it stalls.
fn boundary(
    start: f64,
    largest: f64,
    target: f64,
    precision: f64,
    reach: f64,
    f: &dyn Fn(f64) -> Result<f64>,
) -> Result<Bracket> {
    // No finite epsilon is an answer here: too little noise.
    let excess = |x: f64| match f(x) {
        Ok(e) => Ok((e.max(1e-300) / target).ln()),
        Err(Error::Privacy(_)) => Ok(f64::INFINITY),
        Err(e) => Err(e),
    };
    let (mut high, mut growth) = (start, 1.0 + reach);
    let mut at_high = excess(high)?;
    let (mut low, mut at_low) = (high, at_high);
    while at_high > 0.0 {
        if high >= largest {
            return Err(out_of_reach(target, largest));
        }
        (low, at_low) = (high, at_high);
        high = (high * growth).min(largest);
        growth *= growth.min(4.0);
        at_high = excess(high)?;
    }
    let mut growth = 1.0 + reach;
    while at_low <= 0.0 {
        if low < 1e-9 {
            return Ok(Bracket { low: 0.0, high: low, excess: (f64::NAN, at_low) });
        }
        (high, at_high) = (low, at_low);
        low /= growth;
        growth *= growth.min(4.0);
        at_low = excess(low)?;
    }
    let mut bisect = false;
    while high / low > 1.0 + precision {
        let (a, b) = (low.ln(), high.ln());
        let secant = if at_low.is_finite() { (a * at_high - b * at_low) / (at_high - at_low) } else { f64::NAN };
        // Aim a little beside the root, so that the next bracket is short from both sides.
        let edge = 0.45 * precision;
        let x = if bisect || !(secant > a && secant < b) { 0.5 * (a + b) } else { secant.clamp(a + edge, b - edge) };
        let before = b - a;
        let at = excess(x.exp())?;
        if at > 0.0 {
            (low, at_low) = (x.exp(), at);
        } else {
            (high, at_high) = (x.exp(), at);
        }
        bisect = !bisect && high.ln() - low.ln() > 0.5 * before;
    }
    Ok(Bracket { low, high, excess: (at_low, at_high) })
}

#[cfg(test)]
mod tests;
