//! One step's privacy curve: the hockey-stick divergence as a function of the loss level.
//!
//! For a pair (P, Q) and t = e^l let H(t) = sup_E P(E) - t Q(E). H is convex and falling, at least max(1 - t, 0), and
//! -H'(t) = Q(P/Q > t). It says all there is to say about the pair: a pair with a higher curve is at least as
//! easy to tell apart, also after composition (Blackwell; Dong, Roth and Su). Far below t = 1 the digits are
//! in the rest W(t) = H(t) - (1 - t), so a curve gives both.

use super::atoms::Atoms;
use super::event::Step;
use super::normal::{self, Stick};

/// A value and a bound on its rounding error.
pub type WithError = (f64, f64);

/// The curve at a point.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// H, or W.
    pub value: WithError,
    /// The mass beyond the point, seen from 0, under the measure without the record.
    pub tail: f64,
}

/// Which of the two neighbours is P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// P is with the record.
    Remove,
    /// P is without the record.
    Add,
}

impl Direction {
    /// The opposite one.
    pub fn other(self) -> Self {
        match self {
            Self::Remove => Self::Add,
            Self::Add => Self::Remove,
        }
    }
}

/// The privacy curve of one step in one direction.
#[derive(Clone, Debug)]
pub struct Curve {
    kind: Kind,
    direction: Direction,
}

#[derive(Clone, Debug)]
enum Kind {
    Gaussian { sigma: f64, q: f64 },
    Atoms(Atoms),
}

impl Curve {
    /// The curve of `step`.
    pub fn new(step: Step, direction: Direction) -> Self {
        let kind = match step {
            Step::Gaussian { noise_multiplier, sampling_rate } => {
                Kind::Gaussian { sigma: noise_multiplier, q: sampling_rate }
            }
            Step::Response { flip, sampling_rate, bits } => Kind::Atoms(Atoms::flips(flip, sampling_rate, bits)),
        };
        Self { kind, direction }
    }

    /// H(e^l), for l >= 0.
    pub fn stick(&self, l: f64) -> WithError {
        match self.direction {
            Direction::Remove => self.kind.stick(l),
            // H of (Q, P) at t is t W(1/t) of (P, Q).
            Direction::Add => scaled(self.kind.rest(-l), l.exp()),
        }
    }

    /// W(e^l) = H(e^l) - (1 - e^l), for l <= 0.
    pub fn rest(&self, l: f64) -> WithError {
        match self.direction {
            Direction::Remove => self.kind.rest(l),
            Direction::Add => scaled(self.kind.stick(-l), l.exp()),
        }
    }

    /// A lower bound on Q(P/Q > e^l), the downward slope of H.
    pub fn above(&self, l: f64) -> f64 {
        let value = match self.direction {
            Direction::Remove => self.kind.above(l),
            // Under the other measure: P(ratio < t) = t Q(ratio < t) - W(t).
            Direction::Add => {
                let (rest, error) = if l >= 0.0 { self.kind.rest(-l) } else { return 0.0 };
                (-l).exp() * self.kind.below(-l) - rest - error
            }
        };
        (value * (1.0 - 1e-12)).max(0.0)
    }

    /// A lower bound on Q(P/Q <= e^l), the upward slope of W.
    pub fn below(&self, l: f64) -> f64 {
        let value = match self.direction {
            Direction::Remove => self.kind.below(l),
            Direction::Add => (-l).exp() * self.kind.above(-l),
        };
        (value * (1.0 - 1e-12)).max(0.0)
    }

    /// What a lattice asks of the curve at e^l, on the `upper` side H and what is above, else W and what is below. The tail costs
    /// next to nothing here, and is 0 where it is not wanted.
    pub fn sample(&self, l: f64, upper: bool, tail: bool) -> Sample {
        match self.direction {
            Direction::Remove => self.kind.sample(l, upper, tail),
            Direction::Add => {
                let Sample { value, tail } = self.kind.sample(-l, !upper, tail);
                Sample { value: scaled(value, l.exp()), tail }
            }
        }
    }

    /// An upper bound on Q(e^from < P/Q < e^to), `from` and `to` on the same side of 0, from the tails that [`Curve::sample`] saw at the
    /// end near 0 and at the far one.
    pub fn between(&self, from: f64, to: f64, near: f64, far: f64) -> f64 {
        match self.direction {
            Direction::Remove => self.kind.between(from, to, near, far),
            // P(cell) <= sup ratio Q(cell).
            Direction::Add => self.kind.between(-to, -from, near, far) * (-from).exp(),
        }
    }

    /// A loss that is never exceeded: without the record what is seen is at most 1 / (1 - q) times likelier than with it. Infinite where
    /// none is known.
    pub fn largest(&self) -> f64 {
        match (&self.kind, self.direction) {
            (Kind::Gaussian { q, .. }, Direction::Add) => -(-q).ln_1p(),
            (Kind::Gaussian { .. }, Direction::Remove) => f64::INFINITY,
            (Kind::Atoms(atoms), Direction::Remove) => atoms.losses().next_back().unwrap_or(0.0),
            (Kind::Atoms(atoms), Direction::Add) => -atoms.losses().next().unwrap_or(0.0),
        }
    }

    /// A loss small against those that matter.
    pub fn scale(&self) -> f64 {
        match &self.kind {
            Kind::Gaussian { sigma, q } => q * (1.0 / sigma).min(1.0),
            Kind::Atoms(atoms) => atoms.losses().map(f64::abs).filter(|l| *l > 0.0).fold(1.0, f64::min),
        }
    }

    /// The losses between which the curve is linear in e^l, rising; none where it bends everywhere.
    pub fn bends(&self) -> Option<Vec<f64>> {
        match &self.kind {
            Kind::Gaussian { .. } => None,
            Kind::Atoms(atoms) => Some(match self.direction {
                Direction::Remove => atoms.losses().collect(),
                Direction::Add => atoms.losses().rev().map(|l| -l).collect(),
            }),
        }
    }
}

fn scaled((value, error): WithError, by: f64) -> WithError {
    (value * by, (error + 4.0 * f64::EPSILON * value) * by)
}

/// Outcomes of k flipped bits on one batch, by the number a of bits that show the record's side: without the record
/// C(k,a) f^a (1-f)^(k-a), likelihood ratio 1 - q + q ((1-f)/f)^(2a-k).
pub fn outcomes(flip: f64, q: f64, bits: u32) -> Vec<(f64, f64)> {
    let k = f64::from(bits);
    let ln_odds = (-flip).ln_1p() - flip.ln();
    let mut ln_choose = 0.0;
    (0..=bits)
        .map(|i| {
            let a = f64::from(i);
            let mass = (ln_choose + a * flip.ln() + (k - a) * (-flip).ln_1p()).exp();
            ln_choose += ((k - a) / (a + 1.0)).ln();
            (mass, 1.0 + q * ((2.0 * a - k) * ln_odds).exp_m1())
        })
        .collect()
}

impl Kind {
    /// ln of the unsampled mechanism's t' = 1 + (t - 1)/q; below t = 1 - q there is nothing.
    fn inner(l: f64, q: f64) -> Option<f64> {
        if q == 1.0 {
            return Some(l);
        }
        let x = l.exp_m1() / q;
        (x > -1.0).then(|| x.ln_1p())
    }

    /// Sampling is linear in the curve: H(t) = q H'(1 + (t-1)/q) with H' unsampled.
    fn stick(&self, l: f64) -> WithError {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => scaled(normal::hockey_stick(*sigma, inner), *q),
                None => (0.0, 0.0),
            },
            Kind::Atoms(atoms) => atoms.stick(l),
        }
    }

    /// W(t) = q t' H'(1/t'), as the Gaussian pair is symmetric.
    fn rest(&self, l: f64) -> WithError {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => scaled(normal::hockey_stick(*sigma, -inner), q * inner.exp()),
                None => (0.0, 0.0),
            },
            Kind::Atoms(atoms) => atoms.rest(l),
        }
    }

    /// Q(ratio > e^l).
    fn above(&self, l: f64) -> f64 {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => normal::above(sigma * inner + 0.5 / sigma),
                None => 1.0,
            },
            Kind::Atoms(atoms) => atoms.above(l),
        }
    }

    /// Q(ratio < e^l).
    fn below(&self, l: f64) -> f64 {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => normal::above(-sigma * inner - 0.5 / sigma),
                None => 0.0,
            },
            Kind::Atoms(atoms) => atoms.below(l),
        }
    }

    /// [`Kind::stick`] and [`Kind::above`], or [`Kind::rest`] and [`Kind::below`], in one go.
    fn sample(&self, l: f64, upper: bool, tail: bool) -> Sample {
        match (self, upper) {
            (Kind::Gaussian { sigma, q }, _) => {
                let Some(inner) = Self::inner(l, *q) else {
                    return Sample { value: (0.0, 0.0), tail: if upper { 1.0 } else { 0.0 } };
                };
                let stick = Stick::new(*sigma, if upper { inner } else { -inner });
                let beyond = || if upper { stick.above_v() } else { stick.above_u() };
                let by = if upper { *q } else { q * inner.exp() };
                Sample { value: scaled(stick.value, by), tail: if tail { beyond() } else { 0.0 } }
            }
            (Kind::Atoms(atoms), true) => Sample { value: atoms.stick(l), tail: 0.0 },
            (Kind::Atoms(atoms), false) => Sample { value: atoms.rest(l), tail: 0.0 },
        }
    }

    fn between(&self, from: f64, to: f64, near: f64, far: f64) -> f64 {
        match self {
            Kind::Gaussian { .. } => near - far + 1e-12 * near,
            Kind::Atoms(atoms) => atoms.between(from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a lattice takes in one go is, to the bit, what the curve says piece by piece.
    #[test]
    fn a_sample_is_the_curve_and_its_tail() {
        for (sigma, q) in [(0.13, 1e-7), (0.3, 0.2), (1.0, 0.01), (4.0, 1.0)] {
            let step = Step::Gaussian { noise_multiplier: sigma, sampling_rate: q };
            for direction in [Direction::Remove, Direction::Add] {
                let curve = Curve::new(step, direction);
                for i in 0..3000 {
                    let l = curve.scale() * 0.01 * f64::from(i) * 1.006_f64.powi(i);
                    if l > 600.0 {
                        break;
                    }
                    let (upper, lower) = (curve.sample(l, true, true), curve.sample(-l, false, true));
                    assert_eq!(upper.value, curve.stick(l), "{step:?} {direction:?} l = {l}");
                    assert_eq!(lower.value, curve.rest(-l), "{step:?} {direction:?} l = -{l}");
                    let tails = match direction {
                        Direction::Remove => (curve.kind.above(l), curve.kind.below(-l)),
                        Direction::Add => (curve.kind.below(-l), curve.kind.above(l)),
                    };
                    assert_eq!((upper.tail, lower.tail), tails, "{step:?} {direction:?} l = {l}");
                    assert_eq!(curve.sample(l, true, false).value, upper.value);
                }
            }
        }
    }
}
