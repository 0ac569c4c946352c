//! A privacy curve pressed onto a lattice of losses, from above or from below.
//!
//! A pair whose losses lie on the multiples of h has a curve H that is linear in t = e^l between the points t_j = e^(jh),
//! and every convex, falling, piecewise linear function between max(1 - t, 0) and 1 is such a pair's curve. So
//! - the chords of H through the lattice points give a pair that dominates (connect the dots: Doroshenko, Ghazi,
//!   Kamath, Kumar and Manurangsi), and
//! - any such function below H gives a pair that is dominated.
//!
//! Both are second order in h. The jump of the slope at t_j is the Q mass there, t_j times it the P mass. Far from
//! l = 0 only every second, fourth, ... lattice point is used: a subset of the points is as rigorous as all of them.
//!
//! The greatest convex minorant through all points repairs rounding: it stays above the true curve if the points do (H
//! itself is a convex minorant), and below it if the chords between the points do.

use super::curve::{Curve, Sample};
use rayon::prelude::*;

/// Losses beyond this count as infinite: e^700 is the end of f64, and no epsilon near it means anything.
pub const LARGEST_LOSS: f64 = 700.0;

/// Points that are not worth another thread's while.
const SHARE: usize = 1 << 11;

/// The privacy-loss distribution of one step on multiples of `step`, under P.
#[derive(Clone, Debug)]
pub struct Lattice {
    /// The spacing h.
    pub step: f64,
    /// (j, ln of the P mass at the loss j h), j rising.
    pub atoms: Vec<(i64, f64)>,
    /// P mass at an infinite loss.
    pub infinite: f64,
}

/// How far and how finely to look.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The spacing h.
    pub step: f64,
    /// Every lattice point up to |j| = `core`, then ever sparser: `core` points in every octave.
    pub core: i64,
    /// H may be cut off where it is below this.
    pub tail: f64,
    /// Losses below minus this are wanted roughly: at most [`ROUGHLY`] points in every octave of them.
    pub near: f64,
}

/// Points an octave where a loss is wanted roughly: as many as the lattices have that windows are found by.
pub const ROUGHLY: i64 = 1 << 8;

/// A point of the curve: H at index >= 0, W = H - (1 - t) at index <= 0 (at 0 they are the same).
#[derive(Clone, Copy, Debug)]
struct Point {
    index: i64,
    /// e^l.
    t: f64,
    value: f64,
}

/// t = 0, where every W is 0.
const ORIGIN: Point = Point { index: i64::MIN, t: 0.0, value: 0.0 };

impl Lattice {
    /// A pair that dominates `curve`'s.
    pub fn pessimistic(curve: &Curve, grid: Grid) -> Self {
        Samples::new(curve, grid, false).pessimistic()
    }

    /// A pair that `curve`'s dominates.
    pub fn optimistic(curve: &Curve, grid: Grid) -> Self {
        Samples::new(curve, grid, true).optimistic()
    }
}

/// A curve at the points of a grid: what the lattices on both sides are made of.
pub struct Samples<'a> {
    curve: &'a Curve,
    step: f64,
    /// (j, e^(jh), what the curve is there).
    points: Vec<(i64, f64, Sample)>,
}

impl<'a> Samples<'a> {
    /// `curve` at the points of `grid`; [`Samples::optimistic`] wants the `tails` as well.
    pub fn new(curve: &'a Curve, grid: Grid, tails: bool) -> Self {
        let at = |&j: &i64| {
            let l = j as f64 * grid.step;
            (j, l.exp(), curve.sample(l, j >= 0, tails))
        };
        let points = grid.indices(curve).par_iter().with_min_len(SHARE).map(at).collect();
        Self { curve, step: grid.step, points }
    }

    /// The points with their errors added, or with `sign` -1 taken off.
    fn signed(&self, sign: f64) -> impl Iterator<Item = Point> {
        self.points.iter().map(move |&(index, t, Sample { value: (value, error), .. })| {
            // Whatever could not be computed: H is at most 1, so W = H - (1 - t) at most t, and neither is below 0.
            let most = if index >= 0 { 1.0 } else { t };
            let known = if sign > 0.0 { most } else { 0.0 };
            let value = value + sign * error;
            Point { index, t, value: if value.is_nan() { known } else { value.min(most) } }
        })
    }

    /// A pair that the curve's is dominated by.
    pub fn pessimistic(&self) -> Lattice {
        let infinite = self.signed(1.0).last().map_or(0.0, |p| p.value);
        let atoms = masses(&minorant(self.signed(1.0), self.step), self.step);
        // Masses that are missing would be losses that nobody charges: then nothing is known, and nothing claimed.
        // Points so far apart that none lies between 0 and the largest loss tell nothing either.
        let whole =
            self.step <= LARGEST_LOSS && atoms.iter().map(|(_, m)| m.exp()).sum::<f64>() + infinite > 1.0 - 1e-6;
        Lattice { step: self.step, atoms, infinite: if whole { infinite } else { 1.0 } }
    }

    /// A pair that the curve's dominates.
    ///
    /// Between two lattice points a chord lies above H by at most (t_(j+1) - t_j) Q(cell) / 4; lowering both ends by as much
    /// puts it below. Where that would leave max(1 - t, 0) the function starts (and ends) on it, along a line
    /// no steeper than H at that point, which is below H because H is convex.
    pub fn optimistic(&self) -> Lattice {
        let (curve, h) = (self.curve, self.step);
        let at = |k: usize| self.points[k].0 as f64 * h;
        let mut points: Vec<Point> = self.signed(-1.0).collect();
        let mut widths = Widths::new(h);
        // At 0 the cell on the left has its tail below, the one on the right above.
        let below_zero = curve.sample(0.0, false, true).tail;
        let mut left = 0.0_f64;
        for k in 0..points.len() {
            let right = if let Some(next) = points.get(k + 1) {
                let tails = (self.points[k].2.tail, self.points[k + 1].2.tail);
                let (near, far) = match next.index {
                    0 => (below_zero, tails.0),
                    ..0 => (tails.1, tails.0),
                    1.. => tails,
                };
                let mass = curve.between(at(k), at(k + 1), near, far);
                0.25 * widths.of(points[k], *next) * mass * (1.0 + 1e-12)
            } else {
                0.0
            };
            points[k].value -= left.max(right);
            left = right;
        }
        let zero = points.partition_point(|p| p.index < 0);
        let trivial = Lattice { step: h, atoms: vec![(0, 0.0)], infinite: 0.0 };
        if points[zero].value <= 0.0 || zero == 0 || zero + 1 >= points.len() {
            return trivial;
        }
        let mut first = (0..zero).rev().find(|&k| points[k].value <= 0.0).unwrap_or(0);
        loop {
            let rise = curve.below(at(first)) * widths.of(points[first], points[first + 1]);
            points[first].value = 0.0;
            if rise > 0.0 {
                points[first + 1].value = points[first + 1].value.min(rise);
                break;
            }
            first += 1;
            if first >= zero {
                return trivial;
            }
        }
        let mut last = (zero + 1..points.len()).find(|&k| points[k].value <= 0.0).unwrap_or(points.len() - 1);
        loop {
            let fall = curve.above(at(last)) * widths.of(points[last - 1], points[last]);
            points[last].value = 0.0;
            if fall > 0.0 {
                points[last - 1].value = points[last - 1].value.min(fall);
                break;
            }
            last -= 1;
            if last <= zero {
                return trivial;
            }
        }
        Lattice { step: h, atoms: masses(&minorant(points[first..=last].iter().copied(), h), h), infinite: 0.0 }
    }
}

impl Grid {
    /// The lattice points in use, from where W has died out to where H has.
    fn indices(&self, curve: &Curve) -> Vec<i64> {
        let reach = |dead: &dyn Fn(f64) -> bool| {
            // Where a lattice is so fine that its places end before the losses do, what lies beyond counts as infinite.
            let end = ((LARGEST_LOSS / self.step) as i64).clamp(1, 1 << 61);
            let mut j = 1;
            while j < end && !dead(j as f64 * self.step) {
                j *= 2;
            }
            let (mut alive, mut over) = (j / 2, j.min(end));
            while over - alive > 1 + over / self.core {
                let mid = alive + (over - alive) / 2;
                if dead(mid as f64 * self.step) { over = mid } else { alive = mid }
            }
            over
        };
        let high = reach(&|l| curve.stick(l).0 <= self.tail);
        let low =
            reach(&|l| curve.below(-l) * (-l).exp() <= 1e-3 * self.tail.sqrt().min(1e-6) && curve.rest(-l).0 <= 1e-9);
        if let Some(bends) = curve.bends() {
            return self.beside(&bends, low, high);
        }
        let side = |end: i64, near: f64| {
            let mut out = Vec::new();
            let mut j = 1;
            while j < end {
                out.push(j);
                let core = if j as f64 * self.step > near { self.core.min(ROUGHLY) } else { self.core };
                let octave = (j / core).max(1).ilog2();
                j = ((j >> octave) + 1) << octave;
            }
            out.push(end);
            out
        };
        let mut all: Vec<i64> = side(low, self.near).into_iter().rev().map(|j| -j).collect();
        all.push(0);
        all.extend(side(high, f64::INFINITY));
        all
    }

    /// The points on both sides of every bend, whichever way its place is rounded, 0 and the ends: between them the curve is a line, and so its own
    /// chord.
    fn beside(&self, bends: &[f64], low: i64, high: i64) -> Vec<i64> {
        let places = bends.iter().map(|l| (l / self.step).floor() as i64);
        let mut all: Vec<i64> = places
            .flat_map(|j| [j.saturating_sub(1), j, j.saturating_add(1)])
            .filter(|j| (-low..high).contains(j))
            .collect();
        all.extend([-low, 0, high]);
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// t_k - t_i = t_i (e^((k - i) h) - 1). Neighbours are mostly as far from each other as those before them were.
struct Widths {
    h: f64,
    gap: i64,
    growth: f64,
}

impl Widths {
    fn new(h: f64) -> Self {
        Self { h, gap: 0, growth: 0.0 }
    }

    fn of(&mut self, a: Point, b: Point) -> f64 {
        if a.index == i64::MIN {
            return b.t;
        }
        if b.index - a.index != self.gap {
            self.gap = b.index - a.index;
            self.growth = (self.gap as f64 * self.h).exp_m1();
        }
        // Further apart than e^x reaches: what a.t is of b.t is nothing then.
        if self.growth.is_finite() { a.t * self.growth } else { b.t }
    }
}

/// Slope of H, or, where both ends are at t <= 1, of W: kept apart so that small masses keep their digits.
#[derive(Clone, Copy)]
struct Slope {
    value: f64,
    of_rest: bool,
}

const FLAT: Slope = Slope { value: 0.0, of_rest: false };

impl Slope {
    fn new(a: Point, b: Point, widths: &mut Widths) -> Self {
        let run = widths.of(a, b);
        if b.index <= 0 {
            return Self { value: (b.value - a.value) / run, of_rest: true };
        }
        let start = match a.index {
            i64::MIN => 1.0,
            i if i < 0 => a.value - (i as f64 * widths.h).exp_m1(),
            _ => a.value,
        };
        Self { value: (b.value - start) / run, of_rest: false }
    }

    /// `self` - `before`.
    fn minus(self, before: Slope) -> f64 {
        match (self.of_rest, before.of_rest) {
            (false, true) => self.value - (before.value - 1.0),
            _ => self.value - before.value,
        }
    }
}

/// The greatest convex function below all points, from t = 0 on, as the points where it bends and the slopes that lead to them.
fn minorant(points: impl Iterator<Item = Point>, h: f64) -> Vec<(Point, Slope)> {
    let mut widths = Widths::new(h);
    let mut hull = Vec::with_capacity(points.size_hint().0 + 1);
    hull.push((ORIGIN, FLAT));
    for p in points {
        let slope = loop {
            let (last, before) = hull[hull.len() - 1];
            let slope = Slope::new(last, p, &mut widths);
            if hull.len() == 1 || slope.minus(before) > 0.0 {
                break slope;
            }
            hull.pop();
        };
        hull.push((p, slope));
    }
    hull
}

/// ln of the P mass at each bend; to the right of the last H is constant.
fn masses(hull: &[(Point, Slope)], h: f64) -> Vec<(i64, f64)> {
    let mut atoms = Vec::with_capacity(hull.len());
    for (k, &(Point { index, .. }, left)) in hull.iter().enumerate().skip(1) {
        let right = hull.get(k + 1).map_or(FLAT, |next| next.1);
        let jump = right.minus(left);
        if jump > 0.0 {
            atoms.push((index, jump.ln() + index as f64 * h));
        }
    }
    atoms
}

#[cfg(test)]
mod tests;
