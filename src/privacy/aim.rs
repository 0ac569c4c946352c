//! Steps in one direction: where the sum of their losses lives, and the bounds on epsilon that its law proves.

use super::accountant::Bounds;
use super::curve::{Curve, Direction};
use super::event::Step;
use super::lattice::{Grid, Samples};
use super::pld::RESERVE;
use super::spectrum::{Parts, Root, Side, Window};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// Where the sum of many losses lives, and how it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) window: Window,
    /// The epsilon that the window was made for, roughly.
    epsilon: f64,
    /// The tilt of the best Chernoff bound.
    strongest: f64,
    /// An epsilon that moments alone prove.
    pub(super) moments: f64,
    /// What it took, as [`Effort`](super::effort::Effort) counts it.
    pub(super) work: u64,
}

/// Steps in one direction, and the window that their sum lives in.
pub(super) struct Aimed {
    pub(super) curves: Vec<(Curve, u64)>,
    pub(super) aim: Aim,
    /// log2 of the shortest FFT worth trying.
    pub(super) start: u32,
    /// An epsilon that needs no FFT and may guide a search: the most that all steps can lose, and of flips what moments prove. Those of noised sums see
    /// far less than a short FFT does at small rates.
    pub(super) simple: f64,
}

impl Aimed {
    /// Find the window of `curves`, for FFTs of at most 2^`largest_log2` points.
    pub(super) fn new(curves: Vec<(Curve, u64)>, delta: f64, largest_log2: u32) -> Self {
        let aim = aim(&curves, delta, largest_log2);
        Self::at(curves, aim, largest_log2)
    }

    /// Take the tilts that an `earlier` aim found for steps that differ little, and prove the window anew: it only has to be true, and nearly the
    /// best is good enough to search by.
    pub(super) fn like(curves: Vec<(Curve, u64)>, delta: f64, largest_log2: u32, earlier: &Aim) -> Self {
        let rough = pessimistic(&curves, None, points(8, 5, largest_log2), delta);
        let Aim { window: Window { tilt, further, .. }, epsilon, strongest, .. } = *earlier;
        let factor = rough.cumulant(tilt)[0] - tilt * epsilon - delta.ln();
        let window = rough.window_by(tilt, further, factor.max(0.0) + SPARE);
        let moments = rough.moment_bound(delta * (1.0 - RESERVE), strongest) + rough.loss_rounding();
        let work = weighed(&rough, 15);
        Self::at(curves, Aim { window, moments, work, ..*earlier }, largest_log2)
    }

    fn at(curves: Vec<(Curve, u64)>, aim: Aim, largest_log2: u32) -> Self {
        let count: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
        let start = shortest(&aim.window, count, 14.min(largest_log2), largest_log2);
        let flips = curves.iter().all(|(curve, _)| curve.bends().is_some());
        let simple = if flips { largest(&curves).min(aim.moments) } else { largest(&curves) };
        Self { curves, aim, start, simple }
    }

    /// What a bound by an FFT of this length takes: flips have few losses, and their lattices take next to nothing.
    pub(super) fn work_at(&self, log2: u32) -> u64 {
        self.curves.iter().map(|(curve, _)| if curve.bends().is_some() { 1 << log2 } else { 2 << log2 }).sum()
    }

    /// An upper bound on epsilon, by an FFT of 2^`log2` points and `core` points an octave of each step's lattice.
    pub(super) fn upper(&self, log2: u32, core: i64, delta: f64) -> f64 {
        self.bound(&self.samples(log2, core, delta, false), log2, delta, Side::Upper)
    }

    /// A lower bound on epsilon.
    pub(super) fn lower(&self, log2: u32, core: i64, delta: f64) -> f64 {
        self.bound(&self.samples(log2, core, delta, true), log2, delta, Side::Lower)
    }

    /// Both bounds, from one look at the curves.
    pub(super) fn both(&self, log2: u32, core: i64, delta: f64) -> Bounds {
        let samples = self.samples(log2, core, delta, true);
        let bound = |side| self.bound(&samples, log2, delta, side);
        let (lower, upper) = rayon::join(|| bound(Side::Lower), || bound(Side::Upper));
        Bounds { lower, upper }
    }

    fn samples(&self, log2: u32, core: i64, delta: f64, tails: bool) -> Vec<(Samples<'_>, u64)> {
        samples(&self.curves, Some(self.aim.window.spacing(1 << log2)), core, delta, tails, self.aim.window.width())
    }

    fn bound(&self, samples: &[(Samples, u64)], log2: u32, delta: f64, side: Side) -> f64 {
        let parts = press(samples, side);
        if side == Side::Lower && parts.loses_nothing() {
            return 0.0;
        }
        let reserve = if side == Side::Upper { -RESERVE } else { RESERVE };
        match (parts.epsilon(&self.aim.window, 1 << log2, delta * (1.0 + reserve), side), side) {
            (Root::At(e) | Root::Below(e), Side::Upper) => e * (1.0 + 1e-12) + parts.loss_rounding(),
            (Root::Above, Side::Upper) => f64::INFINITY,
            (Root::At(e), Side::Lower) => (e * (1.0 - 1e-12) - parts.loss_rounding()).max(0.0),
            (Root::Below(_) | Root::Above, Side::Lower) => 0.0,
        }
    }
}

/// The curves of `steps`, and how often each is used.
pub(super) fn curves(steps: &[(Step, u64)], direction: Direction) -> Vec<(Curve, u64)> {
    steps.iter().map(|&(step, count)| (Curve::new(step, direction), count)).collect()
}

/// The most that all steps can lose together: an epsilon that holds at any delta.
pub(super) fn largest(curves: &[(Curve, u64)]) -> f64 {
    curves.iter().map(|(curve, count)| *count as f64 * curve.largest()).sum::<f64>() * (1.0 + 1e-12)
}

/// A window leaves out e^-12 of what a tilt lets it leave out.
const SPARE: f64 = 12.0;

/// Find a tilt and the window the tilted sum lives in, and the epsilon that moments prove on the way.
///
/// A first, coarse answer for epsilon tells which tilts serve: at θ the charges are e^(K(θ) - θ ε) / delta times larger, relative
/// to delta, than in the tilted sum. Round-off allows factors of many thousands, so of the tilts it allows the one with
/// the narrowest window is taken: strong tilts carry far into the tail, and the window with them.
fn aim(curves: &[(Curve, u64)], delta: f64, largest_log2: u32) -> Aim {
    let core = points(8, 5, largest_log2);
    let rough = pessimistic(curves, None, core, delta);
    let steps: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
    let strongest = rough.chernoff_tilt(delta);
    let narrowest = |epsilon: f64, from: f64| {
        let factor = |tilt: f64| rough.cumulant(tilt)[0] - tilt * epsilon - delta.ln();
        let window = |tilt: f64| rough.window(tilt, factor(tilt).max(0.0) + SPARE);
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
    let mut work = weighed(&rough, 150);
    for _ in 0..6 {
        let len = 1 << shortest(&window, steps, 12.min(largest_log2), largest_log2);
        let parts = pessimistic(curves, Some(window.spacing(len)), core, delta);
        work += (len * curves.len()) as u64 + weighed(&rough, 120);
        let next = match parts.epsilon(&window, len, delta, Side::Upper) {
            Root::At(next) | Root::Below(next) => next,
            Root::Above => break,
        };
        window = narrowest(next, rough.tilt_for_mean(next, strongest * 1e-3, strongest));
        let settled = (next - epsilon).abs() <= 0.2 * epsilon;
        epsilon = next;
        if settled {
            break;
        }
    }
    let moments = rough.moment_bound(delta * (1.0 - RESERVE), strongest) + rough.loss_rounding();
    Aim { window, epsilon, strongest, moments, work }
}

/// What it takes to look at all losses so many times, in points of an FFT.
fn weighed(rough: &Parts, times: u64) -> u64 {
    rough.losses() as u64 * times / 5
}

/// log2 of the shortest FFT worth trying: chords of width h shift a step's mean loss by up to h^2 / 8, which must stay small
/// against the window after all steps.
fn shortest(window: &Window, steps: f64, least: u32, most: u32) -> u32 {
    let len = (2.5 * steps * window.width()).sqrt();
    (len.log2().ceil().max(0.0) as u32).clamp(least, most.max(least))
}

/// All curves on spacing `h` or, without one, each on its own scale. A loss that leads below a window as wide as `near` is wanted roughly.
fn samples(
    curves: &[(Curve, u64)],
    h: Option<f64>,
    core: i64,
    delta: f64,
    tails: bool,
    near: f64,
) -> Vec<(Samples<'_>, u64)> {
    let total: f64 = curves.iter().map(|(_, c)| *c as f64).sum();
    curves
        .iter()
        .map(|(curve, count)| {
            let step = h.unwrap_or(curve.scale() / core as f64);
            (Samples::new(curve, Grid { step, core, tail: 1e-5 * delta / total, near }, tails), *count)
        })
        .collect()
}

/// Lattices on one side of all curves.
fn press(samples: &[(Samples, u64)], side: Side) -> Parts {
    let lattice = |samples: &Samples| match side {
        Side::Upper => samples.pessimistic(),
        Side::Lower => samples.optimistic(),
    };
    Parts { parts: samples.par_iter().map(|(samples, count)| (lattice(samples), *count)).collect() }
}

/// Lattices from above.
fn pessimistic(curves: &[(Curve, u64)], h: Option<f64>, core: i64, delta: f64) -> Parts {
    press(&samples(curves, h, core, delta, false, f64::INFINITY), Side::Upper)
}

/// The upper bound on a lattice of spacing `h`.
pub(super) fn at_interval(curves: &[(Curve, u64)], window: &Window, h: f64, delta: f64) -> Result<f64> {
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
pub(super) fn points(most: u32, least: u32, largest_log2: u32) -> i64 {
    1 << most.saturating_sub(18_u32.saturating_sub(largest_log2)).max(least)
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
            let aim = aim(&curves, delta, 18);
            assert!(stick(aim.moments) <= delta, "{direction:?}: {}", aim.moments);
            let aimed = Aimed { curves: curves.to_vec(), aim, start: 16, simple: aim.moments };
            let b = Bounds { lower: aimed.lower(16, 1 << 12, delta), upper: aimed.upper(16, 1 << 12, delta) };
            assert!(stick(b.upper) <= delta && stick(b.lower) >= delta, "{direction:?}: {b:?}");
            assert!(b.upper - b.lower < 0.01 * b.upper, "{direction:?}: {b:?}");
            found.push(b.upper);
        }
        assert!((found[0] - found[1]).abs() > 0.05, "the directions should differ: {found:?}");
    }

    /// Without the record a step loses at most -ln(1 - q), whatever the noise: rates so small that no lattice resolves them lose no more.
    #[test]
    fn adding_a_record_loses_no_more_than_its_absence_can_tell() {
        for (q, count) in [(4e-9, 9418), (1e-3, 100), (0.3, 20)] {
            for noise_multiplier in [0.1, 0.5, 2.0] {
                let steps = [(Step::Gaussian { noise_multiplier, sampling_rate: q }, count)];
                let add = curves(&steps, Direction::Add);
                let truth = -(count as f64) * (-q).ln_1p();
                assert!(largest(&add) >= truth && largest(&add) <= truth * (1.0 + 1e-11));
                // At a loss just above nothing of a step is left.
                assert_eq!(add[0].0.stick(add[0].0.largest() * (1.0 + 1e-9)).0, 0.0);
                let aimed = Aimed::new(add, 1e-5, 14);
                let Bounds { lower, .. } = aimed.both(14, 1 << 10, 1e-5);
                assert!(lower <= aimed.simple, "{lower} above {}", aimed.simple);
                assert_eq!(largest(&curves(&steps, Direction::Remove)), f64::INFINITY);
            }
        }
    }
}
