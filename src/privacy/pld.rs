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
use super::aim::{Aimed, at_interval, curves, largest, points};
use super::binomial;
use super::curve::{Curve, Direction};
use super::effort::{Effort, length};
use super::event::{Event, Step};
use super::lattice::LARGEST_LOSS;
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
        self.enclosure_with(event, delta, &mut Effort::default())
    }

    /// [`Pld::enclosure`], and what it took.
    pub(super) fn enclosure_with(&self, event: &Event, delta: f64, effort: &mut Effort) -> Result<Bounds> {
        let Bounds { lower, upper } = self.enclosure_by(event, delta, effort)?;
        // Moments round nothing off, however many steps there are; what a fixed interval says is left as it is.
        let upper = if self.interval.is_none() { upper.min(effort.moments) } else { upper };
        Ok(Bounds { lower, upper })
    }

    /// [`Pld::enclosure`] by FFTs and what needs none, and what it took.
    pub(super) fn enclosure_by(&self, event: &Event, delta: f64, effort: &mut Effort) -> Result<Bounds> {
        check_delta(delta)?;
        let steps = event.steps()?;
        if let Some(bounds) = known(&steps, delta) {
            return Ok(bounds);
        }
        // The two directions know nothing of each other, nor do the two bounds.
        let side = |direction| {
            let aimed = self.aimed(&steps, direction, delta);
            let upper = aimed.simple;
            (aimed, Bounds { lower: 0.0, upper })
        };
        let (remove, add) = rayon::join(|| side(Direction::Remove), || side(Direction::Add));
        let mut sides = [remove, add];
        let worst = |sides: &[(Aimed, Bounds)]| Bounds {
            lower: sides.iter().map(|s| s.1.lower).fold(0.0, f64::max),
            upper: sides.iter().map(|s| s.1.upper).fold(0.0, larger),
        };
        effort.count(sides.iter().map(|s| s.0.aim.work).sum(), &steps);
        let start = sides.iter().map(|s| s.0.start).max().unwrap_or(0);
        for log2 in self.lengths(start) {
            let floor = worst(&sides).lower;
            sides.par_iter_mut().filter(|s| s.1.upper > floor).for_each(|(aimed, bounds)| {
                let Bounds { lower, upper } = aimed.both(log2, self.core(log2), delta);
                *bounds = Bounds { lower: bounds.lower.max(lower), upper: bounds.upper.min(upper) };
            });
            effort.log2 = log2;
            // Both bounds.
            effort.count(sides.iter().map(|s| 2 * s.0.work_at(log2)).sum(), &steps);
            let all = worst(&sides);
            if all.lower > LARGEST_LOSS || self.close(all) {
                break;
            }
        }
        let (leads, direction) =
            if sides[1].1.upper > sides[0].1.upper { (1, Direction::Add) } else { (0, Direction::Remove) };
        let flips = steps.iter().all(|(step, _)| matches!(step, Step::Response { .. }));
        effort.blind = flips && sides[leads].1.upper >= sides[leads].0.simple;
        effort.direction = direction;
        effort.moments = sides.iter().map(|(aimed, bounds)| bounds.upper.min(aimed.aim.moments)).fold(0.0, larger);
        let mut bounds = worst(&sides);
        effort.upper = bounds.upper;
        if let Some(h) = self.interval {
            let each: Result<Vec<f64>> =
                sides.par_iter().map(|(aimed, _)| at_interval(&aimed.curves, &aimed.aim.window, h, delta)).collect();
            bounds.upper = each?.into_iter().fold(0.0, larger);
        }
        Ok(bounds)
    }
}

impl Pld {
    /// The upper bound alone, with the effort that an event much like this one took: a fraction of [`Pld::enclosure`]'s work.
    pub(super) fn upper(&self, event: &Event, delta: f64, effort: &mut Effort) -> Result<f64> {
        Ok(self.uppers(event, delta, effort, effort.log2)?.next().map_or(f64::INFINITY, |(_, upper)| upper))
    }

    /// [`Pld::upper`] with that effort and with greater ones, up to FFTs of 2^`longest` points: (log2 of the FFT, bound).
    pub(super) fn uppers(
        &self,
        event: &Event,
        delta: f64,
        effort: &mut Effort,
        longest: u32,
    ) -> Result<impl Iterator<Item = (u32, f64)> + use<>> {
        let efforts: Vec<u32> = (effort.log2..=longest.max(effort.log2)).step_by(2).collect();
        let steps = event.steps()?;
        let bounds = match known(&steps, delta) {
            Some(bounds) => vec![bounds.upper; efforts.len()],
            None => self.uppers_of(&steps, delta, effort, &efforts),
        };
        Ok(efforts.into_iter().zip(bounds))
    }

    fn uppers_of(&self, steps: &[(Step, u64)], delta: f64, effort: &mut Effort, efforts: &[u32]) -> Vec<f64> {
        let Effort { direction, upper: wanted, .. } = *effort;
        let aim = |direction| self.aimed_by(steps, direction, delta, effort);
        let one = || {
            let aimed = aim(direction);
            let lengths: Vec<u32> = efforts.iter().map(|&log2| length(log2, aimed.start)).collect();
            let at = |&log2: &u32| aimed.upper(log2, self.core(log2), delta).min(aimed.simple);
            let found: Vec<f64> = lengths.iter().map(at).collect();
            let work = aimed.aim.work + lengths.into_iter().map(|log2| aimed.work_at(log2)).sum::<u64>();
            (aimed.aim, work, found)
        };
        // The other direction is nearly always far below: what it could lose at most tells, or a short FFT proves it.
        let mut least = largest(&curves(steps, direction.other()));
        let ((aimed, mut work, found), ahead) =
            if least < wanted { (one(), None) } else { rayon::join(one, || Some(aim(direction.other()))) };
        let lowest = found.iter().copied().fold(f64::INFINITY, f64::min);
        let mut other = ahead;
        if least > lowest {
            let other = other.get_or_insert_with(|| aim(direction.other()));
            least = least.min(other.simple);
            for log2 in self.lengths(other.start) {
                if least <= lowest || efforts.last().is_none_or(|&last| log2 > last.max(other.start)) {
                    break;
                }
                least = least.min(other.upper(log2, self.core(log2), delta));
                work += other.work_at(log2);
            }
        }
        effort.learn(direction, aimed, lowest);
        if let Some(other) = other {
            work += other.aim.work;
            effort.learn(direction.other(), other.aim, lowest);
        }
        effort.count(work, steps);
        // An earlier aim may miss what a new one meets.
        if lowest.is_infinite() && effort.aim(direction).is_some() {
            effort.forget();
            return self.uppers_of(steps, delta, effort, efforts);
        }
        found.into_iter().map(|found| larger(found, least)).collect()
    }

    /// A lower bound alone, with that effort.
    pub(super) fn lower(&self, event: &Event, delta: f64, effort: &mut Effort) -> Result<f64> {
        let steps = event.steps()?;
        if let Some(bounds) = known(&steps, delta) {
            return Ok(bounds.lower);
        }
        let aimed = self.aimed_by(&steps, effort.direction, delta, effort);
        let log2 = length(effort.log2, aimed.start);
        effort.count(aimed.aim.work + aimed.work_at(log2), &steps);
        Ok(aimed.lower(log2, self.core(log2), delta))
    }

    /// Whether bounds are as close as they have to be: then no longer FFT is tried.
    pub(super) fn close(&self, bounds: Bounds) -> bool {
        bounds.upper.is_finite() && bounds.upper - bounds.lower <= self.tolerance * bounds.upper
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
        Aimed::new(curves(steps, direction), delta, self.largest_log2)
    }

    /// [`Pld::aimed`], with as little work as the effort has left for it.
    fn aimed_by(&self, steps: &[(Step, u64)], direction: Direction, delta: f64, effort: &Effort) -> Aimed {
        let curves = curves(steps, direction);
        match effort.aim(direction) {
            Some(earlier) => Aimed::like(curves, delta, self.largest_log2, earlier),
            None => Aimed::new(curves, delta, self.largest_log2),
        }
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
    use crate::privacy::event::Fires;

    #[test]
    fn an_effort_is_spent_on_lengths_that_whole_answers_try() {
        let pld = Pld::default();
        for start in 12..=20 {
            for log2 in 0..=pld.largest_log2 {
                let length = length(log2, start);
                assert!(pld.lengths(start).any(|l| l == length), "from {start} on, for {log2}: {length}");
                assert!(length + 1 >= log2);
            }
        }
    }

    /// The shortest FFT says nothing here, a longer one does: nothing is not close to anything.
    #[test]
    fn no_answer_is_not_taken_for_a_close_one() {
        let pld = Pld::default();
        assert!(!pld.close(Bounds { lower: 0.0, upper: f64::INFINITY }));
        let fires = [(6, 3_839_110), (7, 1_279_704), (8, 548_445)].map(|(bits, steps)| Fires { bits, steps });
        let event = Event::dithered(4.4, 1.404e-6, &fires);
        let mut effort = Effort::default();
        let found = pld.enclosure_by(&event, 7.26e-9, &mut effort).unwrap();
        assert!(found.upper < 0.1 && found.lower > 0.0, "{found:?}");
        let coarse = Pld { largest_log2: 14, ..pld };
        let seen = coarse.enclosure_by(&event, 7.26e-9, &mut effort).unwrap();
        assert_eq!(seen.upper, f64::INFINITY, "a longer FFT is not needed here");
    }

    /// At these rates no lattice resolves what adding a record loses, which is next to nothing.
    #[test]
    fn rates_too_small_for_a_lattice_still_have_an_epsilon() {
        let event = Event::SubsampledGaussian { noise_multiplier: 0.1728, sampling_rate: 1.252e-9, steps: 48 };
        let delta = 1.47e-10;
        let found = Pld::default().epsilon(&event, delta).unwrap().upper;
        // One step alone loses no more than all, and they lose it with at most 48 times its probability, but for a little.
        let step = Curve::new(event.steps().unwrap()[0].0, Direction::Remove);
        assert!(step.stick(found).0 <= delta, "{found}");
        assert!(48.0 * step.stick(found * 0.5).0 > delta, "{found}");
    }

    /// All outcomes of three steps, one by one: the largest loss of all is likelier than delta, so no tilt is the best.
    #[test]
    fn losses_as_likely_as_delta_are_enclosed_closely() {
        let (q, delta) = (0.004, 6.5e-7);
        for flip in [0.44, 0.4459, 0.452] {
            let bits = [1, 7, 8];
            let mut products = vec![(1.0, 1.0)];
            for k in bits {
                let step = outcomes(flip, q, k);
                products = products.iter().flat_map(|&(m, r)| step.iter().map(move |&(n, s)| (m * n, r * s))).collect();
            }
            let stick = |eps: f64| products.iter().map(|&(m, r)| m * (r - eps.exp()).max(0.0)).sum::<f64>();
            let fires = bits.map(|bits| Fires { bits, steps: 1 }).to_vec();
            let event = Event::SubsampledRandomisedResponse { flip, sampling_rate: q, fires };
            let b = Pld::default().enclosure(&event, delta).unwrap();
            assert!(stick(b.upper) <= delta && stick(b.lower) >= delta, "{flip}: {b:?}");
            assert!(b.upper - b.lower < 2e-3 * b.upper, "{flip}: {b:?}");
        }
    }

    /// An FFT would round off more than delta here.
    #[test]
    fn what_no_fft_resolves_moments_bound() {
        let event = Event::SubsampledGaussian { noise_multiplier: 0.7, sampling_rate: 0.3, steps: 1_000_000_000 };
        let mut effort = Effort::default();
        let (delta, pld) = (1e-9, Pld::default());
        let by_fft = pld.enclosure_by(&event, delta, &mut effort).unwrap().upper;
        let rdp = crate::privacy::Rdp::default().epsilon(&event, delta).unwrap().upper;
        let found = pld.enclosure(&event, delta).unwrap();
        assert!(
            found.upper < by_fft && found.upper < 1.01 * rdp && found.lower <= found.upper,
            "{found:?} {rdp} {by_fft}"
        );
    }

    /// Without sampling N steps of noise z are one of noise z / sqrt(N), whose delta is known: moments never promise less.
    #[test]
    fn moments_are_never_below_the_truth() {
        for (sigma, steps, delta) in [(100.0, 10_000, 1e-5), (3.0, 9, 1e-9), (1e4, 1_000_000, 1e-3), (2.0, 400, 1e-12)]
        {
            let event = Event::SubsampledGaussian { noise_multiplier: sigma, sampling_rate: 1.0, steps };
            let steps = event.steps().unwrap();
            let whole = sigma / (steps.iter().map(|s| s.1).sum::<u64>() as f64).sqrt();
            for direction in [Direction::Remove, Direction::Add] {
                let eps = Pld::default().aimed(&steps, direction, delta).aim.moments;
                let (spent, error) = super::super::normal::hockey_stick(whole, eps);
                assert!(spent - error <= delta, "{sigma}: delta {spent} at {eps}");
                // And say something.
                let (spent, error) = super::super::normal::hockey_stick(whole, 0.5 * eps);
                assert!(spent + error > delta, "{sigma}: delta {spent} below {eps}");
            }
        }
    }
}
