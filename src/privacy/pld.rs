//! The privacy-loss-distribution accountant: epsilon enclosed from both sides.
//!
//! Each kind of step is pressed onto a [lattice](super::lattice) of losses from above and from below, the steps are
//! [composed](super::spectrum) by FFT, in both directions of the neighbouring relation, and the lattice is refined until the two
//! answers are close or a second's work is used up; the bounds hold either way.
//!
//! Single bits with a batch each need none of this: see [`binomial`].
//!
//! What is bounded and charged: discretisation, truncated tails, FFT round-off and wrap-around, rounding of masses
//! and losses. What is taken on trust: that `libm`'s erfc and the system's exp and ln are good to the last few bits. For
//! that a share of delta, [`RESERVE`], is set aside on both sides.

use super::accountant::{Accountant, Bounds, check_delta, ever_sampled, larger};
use super::binomial;
use super::curve::{Curve, Direction};
use super::event::{Event, Step};
use super::lattice::{Grid, LARGEST_LOSS, Samples};
use super::spectrum::{Parts, Root, Side, Window};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// The upper bound is epsilon at delta (1 - RESERVE), the lower at delta (1 + RESERVE).
pub const RESERVE: f64 = 1.5e-3;

/// Accountant by privacy-loss distributions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pld {
    /// Refine until upper - lower is below this share of upper.
    pub tolerance: f64,
    /// The longest FFT is 2 to this. Below 18 the steps' own lattices are coarser as well: quicker, and true as ever.
    pub largest_log2: u32,
    /// Press the losses onto multiples of this from above instead of refining: what libraries with a fixed interval do
    /// (dp_accounting: `value_discretization_interval`). Coarser, so the upper bound is higher; the lower is not affected.
    pub interval: Option<f64>,
}

impl Default for Pld {
    fn default() -> Self {
        Self { tolerance: 1e-3, largest_log2: 18, interval: None }
    }
}

impl Pld {
    /// The upper bound on a lattice of this interval, with only a rough lower bound beside it.
    pub fn at_interval(interval: f64) -> Self {
        Self { tolerance: 1.0, largest_log2: 14, interval: Some(interval) }
    }
}

impl Accountant for Pld {
    fn name(&self) -> &'static str {
        "PLD"
    }

    fn epsilon(&self, event: &Event, delta: f64) -> Result<Bounds> {
        let bounds = self.enclosure(event, delta)?;
        if bounds.upper.is_finite() { Ok(bounds) } else { Err(out_of_reach(&event.steps()?, delta)) }
    }
}

impl Pld {
    /// What is proven of epsilon from both sides; the upper bound is infinite where none is found.
    pub fn enclosure(&self, event: &Event, delta: f64) -> Result<Bounds> {
        self.enclosure_by(event, delta, &mut Effort::default())
    }

    /// [`Pld::enclosure`], and what it took.
    pub(super) fn enclosure_by(&self, event: &Event, delta: f64, effort: &mut Effort) -> Result<Bounds> {
        check_delta(delta)?;
        let steps = event.steps()?;
        if let Some(bounds) = known(&steps, delta) {
            return Ok(bounds);
        }
        // The two directions know nothing of each other, nor do the two bounds.
        let side = |direction| (self.aimed(&steps, direction, delta), Bounds { lower: 0.0, upper: f64::INFINITY });
        let (remove, add) = rayon::join(|| side(Direction::Remove), || side(Direction::Add));
        let mut sides = [remove, add];
        let worst = |sides: &[(Aimed, Bounds)]| Bounds {
            lower: sides.iter().map(|s| s.1.lower).fold(0.0, f64::max),
            upper: sides.iter().map(|s| s.1.upper).fold(0.0, larger),
        };
        let start = sides.iter().map(|s| s.0.start).max().unwrap_or(0);
        for log2 in self.lengths(start) {
            let floor = worst(&sides).lower;
            sides.par_iter_mut().filter(|s| s.1.upper > floor).for_each(|(aimed, bounds)| {
                let Bounds { lower, upper } = aimed.both(log2, self.core(log2), delta);
                *bounds = Bounds { lower: bounds.lower.max(lower), upper: bounds.upper.min(upper) };
            });
            effort.log2 = log2;
            let all = worst(&sides);
            let meaningless = all.upper.is_finite() && all.upper > LARGEST_LOSS;
            if meaningless || self.close(all) {
                break;
            }
        }
        effort.direction = if sides[1].1.upper > sides[0].1.upper { Direction::Add } else { Direction::Remove };
        let mut bounds = worst(&sides);
        if let Some(h) = self.interval {
            let each: Result<Vec<f64>> =
                sides.par_iter().map(|(aimed, _)| at_interval(&aimed.curves, &aimed.window, h, delta)).collect();
            bounds.upper = each?.into_iter().fold(0.0, larger);
        }
        Ok(bounds)
    }
}

impl Pld {
    /// The upper bound alone, with the effort that an event much like this one took: a fraction of [`Pld::enclosure`]'s work.
    pub(super) fn upper(&self, event: &Event, delta: f64, effort: &Effort) -> Result<f64> {
        let steps = event.steps()?;
        if let Some(bounds) = known(&steps, delta) {
            return Ok(bounds.upper);
        }
        let one = || {
            let aimed = self.aimed(&steps, effort.direction, delta);
            let log2 = effort.log2.max(aimed.start);
            aimed.upper(log2, self.core(log2), delta)
        };
        // The other direction is nearly always far below, and then a short FFT proves it.
        let (found, other) = rayon::join(one, || self.aimed(&steps, effort.direction.other(), delta));
        let mut least = f64::INFINITY;
        for log2 in self.lengths(other.start) {
            least = least.min(other.upper(log2, self.core(log2), delta));
            if least <= found || log2 >= effort.log2 {
                break;
            }
        }
        Ok(larger(found, least))
    }

    /// A lower bound alone, with that effort.
    pub(super) fn lower(&self, event: &Event, delta: f64, effort: &Effort) -> Result<f64> {
        let steps = event.steps()?;
        if let Some(bounds) = known(&steps, delta) {
            return Ok(bounds.lower);
        }
        let aimed = self.aimed(&steps, effort.direction, delta);
        let log2 = effort.log2.max(aimed.start);
        Ok(aimed.lower(log2, self.core(log2), delta))
    }

    /// Whether bounds are as close as they have to be: then no longer FFT is tried.
    pub(super) fn close(&self, bounds: Bounds) -> bool {
        bounds.upper - bounds.lower <= self.tolerance * bounds.upper
    }

    /// Logarithms of the FFTs' lengths that are tried, from `start` on.
    fn lengths(&self, start: u32) -> impl Iterator<Item = u32> + use<> {
        (start..=self.largest_log2.max(start)).step_by(2)
    }

    /// Points an octave of a step's lattice for an FFT of this length.
    fn core(&self, log2: u32) -> i64 {
        ((1 << log2) / 16).clamp(points(11, 6, self.largest_log2), 1 << 15)
    }

    fn aimed(&self, steps: &[(Step, u64)], direction: Direction, delta: f64) -> Aimed {
        let curves: Vec<(Curve, u64)> = steps.iter().map(|&(s, c)| (Curve::new(s, direction), c)).collect();
        let window = aim(&curves, delta, self.largest_log2);
        let count: f64 = steps.iter().map(|(_, c)| *c as f64).sum();
        let start = shortest(&window, count, 14.min(self.largest_log2), self.largest_log2);
        Aimed { curves, window, start }
    }
}

/// What an answer took: for events that differ little it is the same again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// log2 of the longest FFT.
    pub(super) log2: u32,
    /// The direction with the larger epsilon.
    pub(super) direction: Direction,
}

impl Default for Effort {
    fn default() -> Self {
        Self { log2: 0, direction: Direction::Remove }
    }
}

/// What needs no lattice: 0 where no record is sampled at all but with probability `delta`, and [`counted`].
fn known(steps: &[(Step, u64)], delta: f64) -> Option<Bounds> {
    if ever_sampled(steps) <= delta { Some(Bounds { lower: 0.0, upper: 0.0 }) } else { counted(steps, delta) }
}

/// The single bits with a batch each among all steps, counted exactly; none where there are others.
fn counted(steps: &[(Step, u64)], delta: f64) -> Option<Bounds> {
    match *steps {
        [(Step::Response { flip, sampling_rate, bits: 1 }, count)]
            if count <= binomial::MOST && delta >= binomial::LEAST_DELTA =>
        {
            Some(binomial::epsilon(flip, sampling_rate, count, delta))
        }
        _ => None,
    }
}

/// Steps in one direction, and the window that their sum lives in.
struct Aimed {
    curves: Vec<(Curve, u64)>,
    window: Window,
    /// log2 of the shortest FFT worth trying.
    start: u32,
}

impl Aimed {
    fn upper(&self, log2: u32, core: i64, delta: f64) -> f64 {
        self.bound(&self.samples(log2, core, delta, false), log2, delta, Side::Upper)
    }

    fn lower(&self, log2: u32, core: i64, delta: f64) -> f64 {
        self.bound(&self.samples(log2, core, delta, true), log2, delta, Side::Lower)
    }

    /// Both bounds, from one look at the curves.
    fn both(&self, log2: u32, core: i64, delta: f64) -> Bounds {
        let samples = self.samples(log2, core, delta, true);
        let bound = |side| self.bound(&samples, log2, delta, side);
        let (lower, upper) = rayon::join(|| bound(Side::Lower), || bound(Side::Upper));
        Bounds { lower, upper }
    }

    fn samples(&self, log2: u32, core: i64, delta: f64, tails: bool) -> Vec<(Samples<'_>, u64)> {
        samples(&self.curves, Some(self.window.spacing(1 << log2)), core, delta, tails)
    }

    fn bound(&self, samples: &[(Samples, u64)], log2: u32, delta: f64, side: Side) -> f64 {
        let parts = press(samples, side);
        let reserve = if side == Side::Upper { -RESERVE } else { RESERVE };
        match (parts.epsilon(&self.window, 1 << log2, delta * (1.0 + reserve), side), side) {
            (Root::At(e) | Root::Below(e), Side::Upper) => e * (1.0 + 1e-12) + parts.loss_rounding(),
            (Root::Above, Side::Upper) => f64::INFINITY,
            (Root::At(e), Side::Lower) => (e * (1.0 - 1e-12) - parts.loss_rounding()).max(0.0),
            (Root::Below(_) | Root::Above, Side::Lower) => 0.0,
        }
    }
}

/// Find a tilt and the window the tilted sum lives in.
///
/// A first, coarse answer for epsilon tells which tilts serve: at θ the charges are e^(K(θ) - θ ε) / delta times larger, relative
/// to delta, than in the tilted sum. Round-off allows factors of many thousands, so of the tilts it allows the one with
/// the narrowest window is taken: strong tilts carry far into the tail, and the window with them.
fn aim(curves: &[(Curve, u64)], delta: f64, largest_log2: u32) -> Window {
    let core = points(8, 5, largest_log2);
    let rough = pessimistic(curves, None, core, delta);
    let steps: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
    let strongest = rough.chernoff_tilt(delta);
    let narrowest = |epsilon: f64, from: f64| {
        let factor = |tilt: f64| rough.cumulant(tilt)[0] - tilt * epsilon - delta.ln();
        let window = |tilt: f64| rough.window(tilt, factor(tilt).max(0.0) + 12.0);
        let mut best = window(from);
        for k in [2, 4] {
            let tilt = from * 0.5_f64.powi(k);
            if factor(tilt) + (steps * 1e-13).ln() > (1e-5_f64).ln() {
                break;
            }
            let next = window(tilt);
            if next.width() < best.width() {
                best = next;
            }
        }
        best
    };
    let mut epsilon = rough.cumulant(strongest)[1];
    let mut window = narrowest(epsilon, strongest);
    for _ in 0..6 {
        let len = 1 << shortest(&window, steps, 12.min(largest_log2), largest_log2);
        let parts = pessimistic(curves, Some(window.spacing(len)), core, delta);
        let next = match parts.epsilon(&window, len, delta, Side::Upper) {
            Root::At(next) | Root::Below(next) => next,
            Root::Above => break,
        };
        window = narrowest(next, rough.tilt_for_mean(next, strongest * 1e-3, strongest));
        if (next - epsilon).abs() <= 0.2 * epsilon {
            break;
        }
        epsilon = next;
    }
    window
}

/// log2 of the shortest FFT worth trying: chords of width h shift a step's mean loss by up to h^2 / 8, which must stay small
/// against the window after all steps.
fn shortest(window: &Window, steps: f64, least: u32, most: u32) -> u32 {
    let len = (2.5 * steps * window.width()).sqrt();
    (len.log2().ceil().max(0.0) as u32).clamp(least, most.max(least))
}

/// All curves on spacing `h` or, without one, each on its own scale.
fn samples(curves: &[(Curve, u64)], h: Option<f64>, core: i64, delta: f64, tails: bool) -> Vec<(Samples<'_>, u64)> {
    let total: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
    curves
        .iter()
        .map(|(curve, count)| {
            let step = h.unwrap_or(curve.scale() / core as f64);
            (Samples::new(curve, Grid { step, core, tail: 1e-5 * delta / total }, tails), *count)
        })
        .collect()
}

/// Lattices on one side of all curves.
fn press(samples: &[(Samples, u64)], side: Side) -> Parts {
    let lattice = |samples: &Samples| match side {
        Side::Upper => samples.pessimistic(),
        Side::Lower => samples.optimistic(),
    };
    Parts { parts: samples.iter().map(|(samples, count)| (lattice(samples), *count)).collect() }
}

/// Lattices from above.
fn pessimistic(curves: &[(Curve, u64)], h: Option<f64>, core: i64, delta: f64) -> Parts {
    press(&samples(curves, h, core, delta, false), Side::Upper)
}

/// The upper bound on a lattice of spacing `h`.
fn at_interval(curves: &[(Curve, u64)], window: &Window, h: f64, delta: f64) -> Result<f64> {
    let steps: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
    // The coarse lattice may carry the sum further out than the window says: leave it room.
    let points = (3.0 * window.width() + steps * h * h + 64.0 * h) / h;
    if !(h > 0.0 && points < 1e6) {
        return Err(Error::Usage(format!(
            "an interval of {h:e} takes {points:.0} lattice points here: it must be positive and leave at most 1e6"
        )));
    }
    let len = (points as usize).next_power_of_two().max(1 << 12);
    let mut room = *window;
    room.range.0 -= window.width();
    let parts = pessimistic(curves, Some(h), 1 << 40, delta);
    match parts.epsilon(&room, len, delta * (1.0 - RESERVE), Side::Upper) {
        Root::At(e) | Root::Below(e) => Ok(e + parts.loss_rounding()),
        Root::Above => Ok(f64::INFINITY),
    }
}

/// Points an octave of a step's lattice: 2^`most`, fewer where the longest FFT is below 2^18, never below 2^`least`.
fn points(most: u32, least: u32, largest_log2: u32) -> i64 {
    1 << most.saturating_sub(18_u32.saturating_sub(largest_log2)).max(least)
}

/// Why there is no answer: because nothing is protected, if that is proven; else because the lattice cannot resolve it.
fn out_of_reach(steps: &[(Step, u64)], delta: f64) -> Error {
    let count: u64 = steps.iter().map(|(_, c)| *c).fold(0, u64::saturating_add);
    let lost = |&(step, _): &(Step, u64)| {
        let (stick, error) = Curve::new(step, Direction::Remove).stick(LARGEST_LOSS);
        let all_turned = match step {
            // The ratio itself may be beyond f64.
            Step::Response { flip, sampling_rate: q, bits } => {
                let k = f64::from(bits);
                let loss = q.ln() + k * ((-flip).ln_1p() - flip.ln());
                if loss > LARGEST_LOSS { q * (k * (-flip).ln_1p()).exp() } else { 0.0 }
            }
            Step::Gaussian { .. } => 0.0,
        };
        stick - error > delta || all_turned > delta
    };
    Error::Privacy(if steps.iter().any(lost) {
        format!(
            "no finite epsilon at delta = {delta:e} after {count} steps: a single step loses more than {LARGEST_LOSS} nats with a \
             probability above delta, which protects nothing; use more noise (or flips), or a larger delta"
        )
    } else {
        format!(
            "PLD encloses no epsilon at delta = {delta:e} after {count} steps: what its lattice rounds and cuts off adds up to more than \
             delta; use a larger delta, more noise (or flips) or fewer steps, or take what RDP proves"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::curve::outcomes;
    use super::*;

    /// Each direction by itself, as the larger of the two is nearly always "remove" and would hide a mistake in "add".
    #[test]
    fn each_direction_encloses_the_count_over_all_outcomes() {
        let (flip, q, bits, steps, delta) = (0.1, 0.2, 2, 6, 1e-3);
        let atoms = outcomes(flip, q, bits);
        let mut products = vec![(1.0, 1.0)];
        for _ in 0..steps {
            products = products.iter().flat_map(|&(m, r)| atoms.iter().map(move |&(n, s)| (m * n, r * s))).collect();
        }
        let step = Step::Response { flip, sampling_rate: q, bits };
        let mut found = Vec::new();
        for direction in [Direction::Remove, Direction::Add] {
            let stick = |eps: f64| -> f64 {
                let t = eps.exp();
                let term = |&(m, r): &(f64, f64)| match direction {
                    Direction::Remove => m * (r - t).max(0.0),
                    Direction::Add => m * (1.0 - t * r).max(0.0),
                };
                products.iter().map(term).sum()
            };
            let curves = [(Curve::new(step, direction), steps)];
            let window = aim(&curves, delta, 18);
            let aimed = Aimed { curves: curves.to_vec(), window, start: 16 };
            let b = Bounds { lower: aimed.lower(16, 1 << 12, delta), upper: aimed.upper(16, 1 << 12, delta) };
            assert!(stick(b.upper) <= delta && stick(b.lower) >= delta, "{direction:?}: {b:?}");
            assert!(b.upper - b.lower < 0.01 * b.upper, "{direction:?}: {b:?}");
            found.push(b.upper);
        }
        assert!((found[0] - found[1]).abs() > 0.05, "the directions should differ: {found:?}");
    }
}
