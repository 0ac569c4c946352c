//! Gaussian noise: the divergence from the law without the record.
//!
//! Q = N(0, z^2) without the record, P = (1-s) Q + s N(1, z^2) with one that shifts the sum by all of its sensitivity. Whatever the
//! dimension of the release, the two centres lie on one line, so one dimension is all. Companions that come and go mix pairs of this
//! kind, and divergence is jointly convex: D(P_x || A) is at most D(P || Q), and so is the capacity.
//!
//! In d dimensions, x uniform over d orthogonal shifts tells at least D(P || Q) - s^2 (e^(1/z^2) - 1) / d: the information is the mean
//! of D(P_x || Q) less D(mean P_x || Q), and that is at most the mean's chi-square distance, in which orthogonal shifts do not
//! meet. So for a model's worth of numbers the bound is the capacity: see [`gap`].

use super::psi;
use crate::privacy::accountant::Bounds;
use crate::privacy::normal::{above, density};

/// D((1-s) N(0, z^2) + s N(1, z^2) || N(0, z^2)), enclosed.
///
/// In units of z the shift is c = 1/z, and the ratio of the densities at y is 1 + t, t = s (e^(c y - c^2/2) - 1), rising in y. The
/// divergence is E psi(t) with psi convex. On a cell, given its mass and the mean of t in it, psi's chord is above and psi at the
/// mean below: connect the dots and Jensen, both of second order.
pub fn divergence(s: f64, z: f64) -> Bounds {
    if s <= 0.0 || z == f64::INFINITY {
        return Bounds { lower: 0.0, upper: 0.0 };
    }
    let c = 1.0 / z;
    let certain = 0.5 * s * c * c;
    if s >= 1.0 {
        return Bounds { lower: certain * (1.0 - 1e-12), upper: certain * (1.0 + 1e-12) };
    }
    if c < 1e-4 {
        return small(s, c);
    }
    if c > 26.0 {
        // Both tell nearly everything: D lies between s/(2 z^2) and that less h(s).
        let entropy = -s * s.ln() - (1.0 - s) * (-s).ln_1p();
        return Bounds { lower: (certain - entropy).max(0.0) * (1.0 - 1e-12), upper: certain * (1.0 + 1e-12) };
    }
    let (from, to) = (-9.0, 9.0 + if c < 6.0 { 2.0 * c } else { c });
    let width = 0.005 / (c / 4.0).max(1.0);
    let cells = ((to - from) / width).ceil() as usize;
    let t = |y: f64| s * (c * y - 0.5 * c * c).exp_m1();
    let (mut lower, mut upper) = (0.0, above(-from) * psi(-s).max(psi(t(from))) + tail(s, c, to));
    let mut a = from;
    let (mut t_a, mut psi_a) = (t(a), psi(t(a)));
    for i in 1..=cells {
        let b = from + (to - from) * i as f64 / cells as f64;
        let (t_b, psi_b) = (t(b), psi(t(b)));
        let mass = between(a, b);
        let mean = if mass > 0.0 { (s * (between(a - c, b - c) - mass) / mass).clamp(t_a, t_b) } else { t_b };
        let weight = if t_b > t_a { (mean - t_a) / (t_b - t_a) } else { 1.0 };
        upper += mass * (psi_a + weight * (psi_b - psi_a));
        lower += mass * psi(mean);
        (a, t_a, psi_a) = (b, t_b, psi_b);
    }
    // Masses are differences of erfc, good to some 1e-12 of themselves, the means to some 1e-7 of a cell.
    Bounds { lower: lower * (1.0 - 1e-6), upper: (upper * (1.0 + 1e-6)).min(certain * (1.0 + 1e-12)) }
}

/// How far the capacity in `dimension` dimensions can lie below the divergence, at most.
pub fn gap(s: f64, z: f64, dimension: f64) -> f64 {
    s * s * (1.0 / (z * z)).exp_m1() / dimension
}

/// Much noise: psi(t) <= t^2/2 + |t|^3 / (6 (1-s)^2), as t >= -s; E t^2 = s^2 (e^(c^2) - 1), E |t|^3 <= (E t^4)^(3/4), and
/// E t^4 <= 4 s^4 c^4 for c < 0.01.
fn small(s: f64, c: f64) -> Bounds {
    let second = 0.5 * s * s * (c * c).exp_m1();
    let third = (4.0_f64.sqrt() * s * s * c * c).powf(1.5) / (6.0 * (1.0 - s) * (1.0 - s));
    let certain = 0.5 * s * c * c;
    Bounds {
        lower: (second - third).max(0.0) * (1.0 - 1e-9),
        upper: ((second + third) * (1.0 + 1e-9)).min(certain * (1.0 + 1e-12)),
    }
}

/// E psi(t) beyond `y`, at most: psi(t) <= t^2/2 for t >= 0, and psi(t) <= (1+t) ln(1+t) with ln(1+t) <= c y - c^2/2.
fn tail(s: f64, c: f64, y: f64) -> f64 {
    let by_square = 0.5 * s * s * (c * c).exp() * above(y - 2.0 * c);
    let not_drawn = (1.0 - s) * (c * density(y) - 0.5 * c * c * above(y)).max(0.0);
    let drawn = s * (c * density(y - c) + 0.5 * c * c * above(y - c));
    by_square.min(not_drawn + drawn)
}

/// P(a < Z < b), with small masses' digits.
fn between(a: f64, b: f64) -> f64 {
    if a >= 0.0 {
        above(a) - above(b)
    } else if b <= 0.0 {
        above(-b) - above(-a)
    } else {
        1.0 - above(-a) - above(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simpson's rule over the difference form.
    fn integrated(s: f64, z: f64) -> f64 {
        let (from, to, n) = (-12.0 * z, 2.0 / z.min(1.0) + 12.0 * z.max(1.0), 400_000);
        let w = (to - from) / f64::from(n);
        let sum: f64 = (0..=n)
            .map(|i| {
                let x = from + f64::from(i) * w;
                let weight = if i == 0 || i == n { 1.0 } else { [2.0, 4.0][(i % 2) as usize] };
                weight * density(x / z) / z * psi(s * ((2.0 * x - 1.0) / (2.0 * z * z)).exp_m1())
            })
            .sum();
        sum * w / 3.0
    }

    #[test]
    fn numeric_integration_lies_between_the_bounds() {
        for s in [1e-9, 1e-4, 0.005, 0.3, 0.9] {
            for z in [0.3, 0.5, 0.7, 1.0, 2.0, 10.0, 300.0] {
                let (b, found) = (divergence(s, z), integrated(s, z));
                assert!(b.lower <= found * (1.0 + 1e-9) && found <= b.upper * (1.0 + 1e-9), "{s} {z}: {b:?} {found}");
                assert!(b.upper - b.lower <= 1e-4 * b.upper, "{s} {z}: {b:?}");
            }
        }
    }

    #[test]
    fn the_figures_and_both_simple_bounds_come_out() {
        for (z, nats) in [(0.5, 0.402), (0.7, 0.078), (1.0, 0.0212), (2.0, 0.0035)] {
            let found = 1000.0 * divergence(0.005, z).upper;
            assert!((found - nats).abs() <= 0.51 * 10f64.powi(if nats > 0.03 { -3 } else { -4 }), "{z}: {found}");
        }
        for s in [1e-12, 1e-6, 0.01, 0.5, 1.0] {
            let mut before = f64::INFINITY;
            for z in [1e-200, 0.01, 0.0384, 0.0386, 0.1, 0.5, 1.0, 3.0, 100.0, 9999.0, 10_001.0, 1e9] {
                let b = divergence(s, z);
                assert!(b.lower <= b.upper && b.upper <= before && b.upper > 0.0, "{s} {z}: {b:?}");
                assert!(b.upper <= 0.5 * s / (z * z) * (1.0 + 1e-11), "{s} {z}");
                assert!(b.lower <= s * s * (1.0 / (z * z)).exp_m1() * (1.0 + 1e-9), "{s} {z}");
                before = b.upper;
            }
        }
        assert_eq!(divergence(0.5, 1e-200).upper, f64::INFINITY);
    }

    #[test]
    fn many_dimensions_attain_the_bound() {
        // Two orthogonal shifts, by brute force on a grid in two dimensions: the information lies between bound - gap and bound.
        let (s, z) = (0.3, 1.0);
        let (n, from, w) = (400, -8.0, 17.0 / 400.0);
        let mut information = 0.0;
        for i in 0..n {
            for j in 0..n {
                let (x, y) = (from + w * (f64::from(i) + 0.5), from + w * (f64::from(j) + 0.5));
                let law = |a: f64, b: f64| density((x - a) / z) * density((y - b) / z) / (z * z);
                let p = [(1.0, 0.0), (0.0, 1.0)].map(|(a, b)| (1.0 - s) * law(0.0, 0.0) + s * law(a, b));
                let mean = 0.5 * (p[0] + p[1]);
                information += p.iter().map(|p| 0.5 * p * (p / mean).ln()).sum::<f64>() * w * w;
            }
        }
        let bound = divergence(s, z).upper;
        assert!(information < bound && information > bound - gap(s, z, 2.0), "{information} {bound}");
        assert!(gap(0.005, 1.0, 1e6) < 1e-5 * divergence(0.005, 1.0).upper);
    }
}
