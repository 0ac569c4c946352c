//! Tilts of a sum of losses: which one serves, the window the tilted sum lives in, and the epsilon that its moments prove.

use super::lattice::Lattice;
use super::spectrum::{Parts, Window};

impl Parts {
    /// The θ that gives the best Chernoff bound at `delta`: argmin (K(θ) - ln delta) / θ.
    ///
    /// Where the largest possible loss is likelier than `delta` no θ is best: then the one from which on the tilted sum
    /// is within 1/θ of that loss.
    pub fn chernoff_tilt(&self, delta: f64) -> f64 {
        let mut tilt = smallest(-16.0, 25.0, 45, |t| (self.cumulant(t)[0] - delta.ln()) / t);
        // Two neighbours on the lattice that share one loss are no spread of it: up to h^2 / 4 a step.
        let shared: f64 = self.parts.iter().map(|(l, count)| *count as f64 * l.step * l.step / 4.0).sum();
        let spread = |tilt: f64| tilt * tilt * (self.cumulant(tilt)[2] - shared);
        while tilt > 1e-7 && (spread(tilt) < 1.0 || spread(tilt).is_nan()) {
            tilt /= 1.5;
        }
        tilt
    }

    /// The epsilon that moments alone prove at `target`, near the tilt `around`: no FFT rounds it, however many steps there are.
    ///
    /// (1 - e^-x)+ <= e^(θ x) θ^θ / (1+θ)^(1+θ), so delta(ε) <= e^(K(θ) - θ ε) θ^θ / (1+θ)^(1+θ): what RDP of order 1 + θ proves, of these
    /// lattices and with any θ.
    pub fn moment_bound(&self, target: f64, around: f64) -> f64 {
        let spare = target - self.infinite();
        if spare.is_nan() || spare <= 0.0 {
            return f64::INFINITY;
        }
        let at = |tilt: f64| {
            let digits = |(l, _): &(Lattice, u64)| {
                let (low, high) = (l.atoms.first().map_or(0, |a| a.0), l.atoms.last().map_or(0, |a| a.0));
                tilt * l.step * (low.unsigned_abs().max(high.unsigned_abs())) as f64
            };
            // A logarithm of a sum of exponentials errs by some last bits of the largest exponents; masses above e^-1000 have any say.
            let terms = self.parts.iter().map(|(l, _)| l.atoms.len()).max().unwrap_or(0) as f64;
            let each = 64.0 + terms + 4.0 * (1000.0 + self.parts.iter().map(digits).fold(0.0, f64::max));
            let rounded = self.steps() * f64::EPSILON * each;
            // θ ln θ - (1 + θ) ln(1 + θ), without what cancels for large θ.
            let shape = -tilt.ln_1p() - tilt * (1.0 / tilt).ln_1p();
            (self.cumulant(tilt)[0] + rounded + shape - spare.ln()) / tilt
        };
        let best = at(smallest(around.ln() - 1.0, around.ln() + 1.0, 8, at));
        if best.is_nan() { f64::INFINITY } else { best.max(0.0) * (1.0 + 1e-12) }
    }

    /// The θ >= `floor` at which the tilted mean is `mean`.
    pub fn tilt_for_mean(&self, mean: f64, floor: f64, ceiling: f64) -> f64 {
        let (mut low, mut high) = (floor, ceiling);
        for _ in 0..20 {
            let mid = (low * high).sqrt();
            if self.cumulant(mid)[1] < mean { low = mid } else { high = mid }
        }
        high
    }

    /// A window outside of which the tilted sum is with probability at most 2 e^-`nats`, and a little more on both sides.
    pub fn window(&self, tilt: f64, nats: f64) -> Window {
        let [k, _, variance] = self.cumulant(tilt);
        let around = -0.5 * variance.max(1e-300).ln();
        let bound = |sign: f64, x: f64| (self.cumulant(tilt + sign * x)[0] - k + nats) / x;
        let best = |sign: f64| smallest(around - 4.0, around + 7.0, 14, |x| bound(sign, x));
        let (up, down) = rayon::join(|| best(1.0), || best(-1.0));
        self.window_by(tilt, (down, up), nats)
    }

    /// [`Parts::window`] by any further tilts: the promise is the same.
    pub fn window_by(&self, tilt: f64, (down, up): (f64, f64), nats: f64) -> Window {
        let [k, mean, _] = self.cumulant(tilt);
        let bound = |sign: f64, x: f64| (self.cumulant(tilt + sign * x)[0] - k + nats) / x;
        let (low, high) = ((-bound(-1.0, down)).min(mean), bound(1.0, up).max(mean));
        let margin = 0.05 * (high - low);
        let range = (low - margin, high + margin);
        Window { tilt, range, further: (down, up) }
    }
}

/// Golden-section search for the x in e^[low, high] with the smallest f(x), f falling and then rising in ln x.
fn smallest(mut low: f64, mut high: f64, rounds: u32, f: impl Fn(f64) -> f64) -> f64 {
    let g = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (high - g * (high - low), low + g * (high - low));
    let (mut fa, mut fb) = (f(a.exp()), f(b.exp()));
    for _ in 0..rounds {
        if fa <= fb {
            (high, b, fb) = (b, a, fa);
            a = high - g * (high - low);
            fa = f(a.exp());
        } else {
            (low, a, fa) = (a, b, fb);
            b = low + g * (high - low);
            fb = f(b.exp());
        }
    }
    (0.5 * (low + high)).exp()
}
