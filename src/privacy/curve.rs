//! One step's privacy curve: the hockey-stick divergence as a function of the loss level.
//!
//! For a pair (P, Q) and t = e^l let H(t) = sup_E P(E) - t Q(E). H is convex and falling, at least max(1 - t, 0), and
//! -H'(t) = Q(P/Q > t). It says all there is to say about the pair: a pair with a higher curve is at least as
//! easy to tell apart, also after composition (Blackwell; Dong, Roth and Su). Far below t = 1 the digits are
//! in the rest W(t) = H(t) - (1 - t), so a curve gives both.

use super::event::Step;
use super::normal;

/// A value and a bound on its rounding error.
pub type WithError = (f64, f64);

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
    Gaussian {
        sigma: f64,
        q: f64,
    },
    /// Outcomes as (Q mass, likelihood ratio), ratios rising.
    Atoms(Vec<(f64, f64)>),
}

impl Curve {
    /// The curve of `step`.
    pub fn new(step: Step, direction: Direction) -> Self {
        let kind = match step {
            Step::Gaussian { noise_multiplier, sampling_rate } => {
                Kind::Gaussian { sigma: noise_multiplier, q: sampling_rate }
            }
            Step::Response { flip, sampling_rate, bits } => Kind::Atoms(outcomes(flip, sampling_rate, bits)),
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

    /// An upper bound on Q(e^from < P/Q < e^to).
    pub fn between(&self, from: f64, to: f64) -> f64 {
        match self.direction {
            Direction::Remove => self.kind.between(from, to),
            // P(cell) <= sup ratio Q(cell).
            Direction::Add => self.kind.between(-to, -from) * (-from).exp(),
        }
    }

    /// A loss small against those that matter.
    pub fn scale(&self) -> f64 {
        match &self.kind {
            Kind::Gaussian { sigma, q } => q * (1.0 / sigma).min(1.0),
            Kind::Atoms(atoms) => atoms.iter().map(|(_, r)| r.ln().abs()).filter(|l| *l > 0.0).fold(1.0, f64::min),
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
            Kind::Atoms(atoms) => {
                let t = l.exp();
                let sum = |f: fn(f64, f64) -> f64| {
                    atoms.iter().filter(|(_, r)| *r > t).map(|(m, r)| m * f(*r, t)).sum::<f64>()
                };
                (sum(|r, t| r - t), 64.0 * f64::EPSILON * sum(|r, t| r + t))
            }
        }
    }

    /// W(t) = q t' H'(1/t'), as the Gaussian pair is symmetric.
    fn rest(&self, l: f64) -> WithError {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => scaled(normal::hockey_stick(*sigma, -inner), q * inner.exp()),
                None => (0.0, 0.0),
            },
            Kind::Atoms(atoms) => {
                let t = l.exp();
                let sum = |f: fn(f64, f64) -> f64| {
                    atoms.iter().filter(|(_, r)| *r < t).map(|(m, r)| m * f(*r, t)).sum::<f64>()
                };
                (sum(|r, t| t - r), 64.0 * f64::EPSILON * sum(|r, t| r + t))
            }
        }
    }

    /// Q(ratio > e^l).
    fn above(&self, l: f64) -> f64 {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => normal::above(sigma * inner + 0.5 / sigma),
                None => 1.0,
            },
            Kind::Atoms(atoms) => atoms.iter().filter(|(_, r)| *r > l.exp()).map(|(m, _)| m).sum(),
        }
    }

    /// Q(ratio < e^l).
    fn below(&self, l: f64) -> f64 {
        match self {
            Kind::Gaussian { sigma, q } => match Self::inner(l, *q) {
                Some(inner) => normal::above(-sigma * inner - 0.5 / sigma),
                None => 0.0,
            },
            Kind::Atoms(atoms) => atoms.iter().filter(|(_, r)| *r < l.exp()).map(|(m, _)| m).sum(),
        }
    }

    fn between(&self, from: f64, to: f64) -> f64 {
        match self {
            Kind::Gaussian { .. } => {
                let (high, low) =
                    if from >= 0.0 { (self.above(from), self.above(to)) } else { (self.below(to), self.below(from)) };
                high - low + 1e-12 * high
            }
            Kind::Atoms(atoms) => {
                let (t, u) = (from.exp() * (1.0 - 1e-14), to.exp() * (1.0 + 1e-14));
                atoms.iter().filter(|(_, r)| *r > t && *r < u).map(|(m, _)| m * (1.0 + 1e-12)).sum()
            }
        }
    }
}
