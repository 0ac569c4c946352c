//! Composition: the law of a sum of independent losses by FFT, tilted so that its far tail keeps its digits.
//!
//! With masses a_j at losses l_j, ln M(θ) = ln sum_j a_j e^(θ l_j) and K(θ) the sum of ln M over all steps, the tilted
//! masses a_j e^(θ l_j) / M(θ) are a distribution; their sum S has law s̃, and
//!
//! delta(ε) = e^(K(θ) - θ ε) E~[ e^(-θ (S - ε)) (1 - e^(-(S - ε)))+ ].
//!
//! With θ such that the tilted mean is near ε, the factor in front is near delta, so that an absolute error of 1e-12 in
//! s̃ is a relative error of about 1e-10 in delta, however small delta is. What the FFT rounds, what wraps around its
//! ends and what lies beyond them is bounded and charged, against us on either side.

use super::lattice::Lattice;
use rayon::prelude::*;
use rustfft::{FftPlanner, num_complex::Complex};
use std::cell::RefCell;

thread_local! {
    /// Planning a length takes as long as transforming it: each thread plans it once.
    static PLANNER: RefCell<FftPlanner<f64>> = RefCell::new(FftPlanner::new());
}

/// Points of a law that [`Parts::epsilon`] judges together.
const BLOCK: usize = 64;

/// ln of what is nothing beside 1, and lost in its last bit many times over. Of a spectrum most is, after many steps: it is left out,
/// and charged.
const NOTHING: f64 = -200.0;

/// Places of a spectrum that are raised to a power at once,
const LANES: usize = 8;

/// and by one thread.
const SHARE: usize = 1 << 13;

/// Kinds of steps that are transformed at once: each takes a buffer of its own.
const TOGETHER: usize = 4;

/// Lattices on the same spacing and how many steps each stands for.
#[derive(Clone, Debug)]
pub struct Parts {
    /// (lattice, count).
    pub parts: Vec<(Lattice, u64)>,
}

/// Where the tilted sum lives: lattice points first..first + len, and the tilts that prove it.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The tilt θ.
    pub tilt: f64,
    /// Lowest and highest loss covered.
    pub range: (f64, f64),
    /// Further tilts downwards and upwards, for the Chernoff bounds on what lies outside.
    pub further: (f64, f64),
}

impl Window {
    /// Highest minus lowest loss.
    pub fn width(&self) -> f64 {
        self.range.1 - self.range.0
    }

    /// The lattice spacing with which `len` points cover the window.
    pub fn spacing(&self, len: usize) -> f64 {
        (self.width() / (len - 2) as f64).max(1e-15)
    }
}

/// On which side of the truth an answer must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Charges are added to delta.
    Upper,
    /// Charges are taken from delta.
    Lower,
}

/// What a search for epsilon found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Root {
    /// This epsilon.
    At(f64),
    /// Epsilon is below the window, which starts here.
    Below(f64),
    /// Epsilon is above the window.
    Above,
}

impl Parts {
    /// K(θ), K'(θ), K''(θ).
    pub fn cumulant(&self, tilt: f64) -> [f64; 3] {
        let mut out = [0.0; 3];
        let each: Vec<[f64; 3]> = self.parts.par_iter().map(|(lattice, _)| cumulant(lattice, tilt)).collect();
        for ((_, count), one) in self.parts.iter().zip(each) {
            for (sum, term) in out.iter_mut().zip(one) {
                *sum += *count as f64 * term;
            }
        }
        out
    }

    /// How many losses there are, of all kinds of steps.
    pub(super) fn losses(&self) -> usize {
        self.parts.iter().map(|(l, _)| l.atoms.len()).sum()
    }

    pub(super) fn steps(&self) -> f64 {
        self.parts.iter().map(|(_, c)| *c as f64).sum()
    }

    /// Whether all losses are 0.
    pub fn loses_nothing(&self) -> bool {
        self.parts.iter().all(|(l, _)| l.infinite == 0.0 && l.atoms.iter().all(|&(j, _)| j == 0))
    }

    /// P(some step has an infinite loss), at most.
    pub(super) fn infinite(&self) -> f64 {
        self.parts.iter().map(|(l, c)| l.infinite * *c as f64).sum()
    }

    /// The epsilon at which delta is `target`, never too small for [`Side::Upper`], never too large for [`Side::Lower`].
    ///
    /// `len` is the FFT's length; the lattices' spacing times `len` must be the window's width.
    pub fn epsilon(&self, window: &Window, len: usize, target: f64, side: Side) -> Root {
        assert!(len.is_power_of_two(), "an FFT of length {len}");
        let h = self.parts[0].0.step;
        // Places beyond this are not whole numbers of f64 any more, and no epsilon there means anything.
        let farthest = (window.range.0.abs() + window.range.1.abs()) / h;
        if farthest > 1e15 || farthest.is_nan() {
            return Root::Above;
        }
        let first = (window.range.0 / h).floor() as i64;
        let tilt = window.tilt;
        let ln_m: Vec<f64> = self.parts.iter().map(|(lattice, _)| cumulant(lattice, tilt)[0]).collect();
        let k: f64 = self.parts.iter().zip(&ln_m).map(|((_, count), ln_m)| *count as f64 * ln_m).sum();
        let (law, round_off, scale_error) = self.tilted_law(tilt, &ln_m, len);
        let place = |i: usize| (first + i as i64) as f64 * h;
        let beyond = |sign: f64, further: f64, end: f64| {
            (self.cumulant(tilt + sign * further)[0] - k - sign * further * end).min(0.0).exp()
        };
        let above = beyond(1.0, window.further.1, place(len));
        let below = beyond(-1.0, window.further.0, place(0) - h);
        // Σ over the lattice of e^(-θ x)(1 - e^-x) <= 1 + its integral / h.
        let weights = (len as f64).min(1.0 + 1.0 / (h * tilt * (tilt + 1.0)));
        let charge = round_off * weights + above + if side == Side::Lower { below } else { 0.0 };
        let infinite = self.infinite();

        let (decay, decay_more, fresh) = ((-tilt * h).exp(), (-(tilt + 1.0) * h).exp(), -(-h).exp_m1());
        let delta_at = |s: f64, inner: f64| {
            let found = match side {
                Side::Upper => (k - tilt * s + (inner + charge).ln() + scale_error).exp() + infinite,
                Side::Lower if inner > charge => (k - tilt * s + (inner - charge).ln() - scale_error).exp(),
                Side::Lower => 0.0,
            };
            // Not a number is against us: all of delta from above, nothing of it from below.
            let unknown = if side == Side::Upper { f64::INFINITY } else { 0.0 };
            if found.is_nan() { unknown } else { found }
        };
        // At most points delta is clearly below the target, by what it would take at the far end of a block of them: that is a comparison,
        // where delta itself is a logarithm and an exponential.
        let enough = |s: f64| match side {
            Side::Upper => ((target - infinite).ln() - k + tilt * s - scale_error - 1e-3).exp() - charge,
            Side::Lower => (target.ln() - k + tilt * s + scale_error - 1e-3).exp() + charge,
        };
        let mut too_little = f64::NAN;
        let (mut inner, mut tail) = (0.0_f64, 0.0_f64);
        let mut before: Option<(f64, f64)> = None;
        for i in (0..len).rev() {
            if i % BLOCK == BLOCK - 1 {
                too_little = enough(place(i + 1 - BLOCK));
            }
            inner = decay * (inner + fresh * tail);
            let s = place(i);
            // A comparison with what is not a number is false, and then delta decides.
            let delta = if inner < too_little { 0.0 } else { delta_at(s, inner) };
            if delta > target {
                // Between lattice points delta is linear in e^ε.
                return match before {
                    Some((next, inner)) if delta.is_finite() => {
                        let after = delta_at(next, inner);
                        Root::At((s + ((delta - target) / (delta - after) * h.exp_m1()).ln_1p()).max(0.0))
                    }
                    Some((next, _)) => Root::At(if side == Side::Upper { next } else { s }.max(0.0)),
                    None => Root::Above,
                };
            }
            if s <= 0.0 {
                return Root::At(0.0);
            }
            before = Some((s, inner));
            let mass = law[around(first + i as i64, len)].re.max(0.0);
            tail = mass + decay_more * tail;
        }
        Root::Below(place(0))
    }

    /// The law of the tilted sum modulo `len`, from every step's ln M; a bound on the error of each entry, and one on ln(e^K).
    fn tilted_law(&self, tilt: f64, ln_m: &[f64], len: usize) -> (Vec<Complex<f64>>, f64, f64) {
        let (forward, inverse) = PLANNER.with_borrow_mut(|p| (p.plan_fft_forward(len), p.plan_fft_inverse(len)));
        let half = len / 2 + 1;
        let zero = Complex::new(0.0, 0.0);
        // A radix-2 FFT of non-negative numbers of sum 1 errs by less than 5 u log2(n) in each entry, u = EPSILON / 2.
        let eta = 8.0 * f64::EPSILON * (len as f64).log2();
        let spectrum = |k: usize| {
            let lattice = &self.parts[k].0;
            let (h, ln_m) = (lattice.step, ln_m[k]);
            let mut buffer = vec![zero; len];
            let mut digits = 0.0_f64;
            for &(j, m) in &lattice.atoms {
                let exponent = tilt * h * j as f64;
                let weight = exp(exponent + m - ln_m);
                if weight > 1e-20 {
                    digits = digits.max(exponent.abs() + m.abs() + ln_m.abs());
                }
                buffer[around(j, len)].re += weight;
            }
            forward.process(&mut buffer);
            (buffer, digits)
        };
        // What one kind of steps leaves nothing of is nothing, whatever the others are: the most frequent one is asked first.
        let least = |k: usize| (NOTHING / self.parts[k].1 as f64).exp() - eta;
        let nothing = |least: f64, z: &Complex<f64>| least > 0.0 && z.norm_sqr() < 0.999 * least * least;
        let most = (0..self.parts.len()).max_by_key(|&k| self.parts[k].1).unwrap_or(0);
        let first = spectrum(most);
        let whole =
            |z| Place { product: Complex::new(1.0, 0.0), ln_size: 0.0, relative: 0.0, gone: nothing(least(most), z) };
        let mut places: Vec<Place> = first.0[..half].iter().map(whole).collect();
        let mut frequent = Some(first);
        let mut scale_error = 0.0;
        let mut buffer = Vec::new();
        let order: Vec<usize> = (0..self.parts.len()).collect();
        for together in order.chunks(TOGETHER) {
            let mut others: Vec<_> =
                together.par_iter().map(|&k| if k == most { None } else { Some(spectrum(k)) }).collect();
            for (&k, other) in together.iter().zip(&mut others) {
                let Some((spectrum, digits)) = other.take().or_else(|| frequent.take()) else { continue };
                let (count, least) = (self.parts[k].1, least(k));
                scale_error += count as f64 * f64::EPSILON * (64.0 + 4.0 * digits);
                places.par_chunks_mut(SHARE).zip(spectrum[..half].par_chunks(SHARE)).for_each(|(places, spectrum)| {
                    raise(places, spectrum, count, eta, |z| nothing(least, z));
                });
                buffer = spectrum;
            }
        }
        let (mut error, mut total) = (0.0, 0.0);
        for (i, &Place { ln_size, relative, .. }) in places.iter().enumerate() {
            let both = if i == 0 || 2 * i == len { 1.0 } else { 2.0 };
            let size = exp(ln_size);
            error += both * size * relative * relative.min(1.0).exp();
            total += both * size;
        }
        for (i, &Place { product, .. }) in places.iter().enumerate() {
            buffer[i] = product / len as f64;
            if i > 0 && 2 * i < len {
                buffer[len - i] = product.conj() / len as f64;
            }
        }
        inverse.process(&mut buffer);
        let round_off = (error + 2.0 * eta * total) / len as f64;
        (buffer, round_off, scale_error)
    }

    /// How much T steps' own rounding of l = j h can move epsilon.
    pub fn loss_rounding(&self) -> f64 {
        self.steps() * 4.0 * f64::EPSILON * self.parts.iter().map(|(l, _)| l.step).fold(0.0, f64::max).max(1.0)
    }
}

/// ln M(θ) of one step, and its first two derivatives.
fn cumulant(lattice: &Lattice, tilt: f64) -> [f64; 3] {
    let h = lattice.step;
    let (mut top, mut peak) = (f64::NEG_INFINITY, 0.0);
    for &(j, m) in &lattice.atoms {
        let l = h * j as f64;
        if tilt * l + m > top {
            (top, peak) = (tilt * l + m, l);
        }
    }
    // Moments about the likeliest loss: about 0, a variance far below the square of the mean would be lost in rounding.
    let (mut m0, mut m1, mut m2) = (0.0, 0.0, 0.0);
    for &(j, m) in &lattice.atoms {
        let l = h * j as f64;
        let w = exp(tilt * l + m - top);
        m0 += w;
        m1 += w * (l - peak);
        m2 += w * (l - peak) * (l - peak);
    }
    let off = m1 / m0;
    [top + m0.ln(), peak + off, (m2 / m0 - off * off).max(0.0)]
}

/// e^x, or 0 where that is nothing beside 1: what lies far below takes its time, all the more where an f64 ends.
fn exp(x: f64) -> f64 {
    if x < NOTHING { 0.0 } else { x.exp() }
}

/// Where j is on a circle of `len` places, a power of two.
fn around(j: i64, len: usize) -> usize {
    j as usize & (len - 1)
}

/// A place of the sum's spectrum, as far as it is composed.
struct Place {
    product: Complex<f64>,
    /// ln of the size of the product, and a bound on its relative error.
    ln_size: f64,
    relative: f64,
    /// Whether the most frequent kind of steps leaves nothing here.
    gone: bool,
}

/// Compose `places` with `count` steps of one `spectrum`, each entry of which errs by at most `eta`.
fn raise(
    places: &mut [Place],
    spectrum: &[Complex<f64>],
    count: u64,
    eta: f64,
    nothing: impl Fn(&Complex<f64>) -> bool,
) {
    for (places, spectrum) in places.chunks_mut(LANES).zip(spectrum.chunks(LANES)) {
        let gone = |place: &Place, z: &Complex<f64>| place.gone || nothing(z);
        if places.iter().zip(spectrum).all(|(place, z)| gone(place, z)) {
            places.iter_mut().for_each(Place::miss);
            continue;
        }
        for ((place, z), power) in places.iter_mut().zip(spectrum).zip(powers(spectrum, count)) {
            if gone(place, z) {
                place.miss();
                continue;
            }
            place.product *= power;
            let size = z.norm_sqr().sqrt() + eta;
            place.ln_size += count as f64 * size.ln();
            place.relative += count as f64 * (eta / size + 4.0 * f64::EPSILON);
        }
    }
}

impl Place {
    /// Leave out what is nothing: a relative error of 1 says that all of it is missing.
    fn miss(&mut self) {
        *self = Self { product: Complex::new(0.0, 0.0), ln_size: NOTHING, relative: 1.0, ..*self };
    }
}

/// Each z^n by repeated squaring: all at once, as each product waits for the one before.
fn powers(z: &[Complex<f64>], mut n: u64) -> [Complex<f64>; LANES] {
    let (mut re, mut im) = ([1.0; LANES], [0.0; LANES]);
    let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
    for (i, z) in z.iter().enumerate() {
        (x[i], y[i]) = (z.re, z.im);
    }
    while n > 0 {
        if n & 1 == 1 {
            for i in 0..LANES {
                (re[i], im[i]) = (re[i] * x[i] - im[i] * y[i], re[i] * y[i] + im[i] * x[i]);
            }
        }
        for i in 0..LANES {
            (x[i], y[i]) = (x[i] * x[i] - y[i] * y[i], x[i] * y[i] + y[i] * x[i]);
        }
        n >>= 1;
    }
    std::array::from_fn(|i| Complex::new(re[i], im[i]))
}
