//! What an answer took, and what of it serves for an event that differs little.

use super::aim::Aim;
use super::curve::Direction;
use super::event::Step;

/// Work from which on a search is thrifty: a fifth of a second's or so.
const MUCH: u64 = 30_000_000;

/// Work after which it asks a few times more, and then has to do with what it knows: that leaves time for a whole answer.
const ENOUGH: u64 = 38_000_000;

/// Where kinds of steps are so many that a whole answer takes longer than that, a search is let work in proportion.
const ENOUGH_EACH: u64 = 6_000_000;

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worked {
    /// It goes on as if there were no end.
    Little,
    /// It aims as it did before, and ends less close.
    Much,
    /// It ends after a few more questions.
    Enough,
}

/// What an answer took: for events that differ little it is the same again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// log2 of the longest FFT.
    pub(super) log2: u32,
    /// The direction with the larger epsilon.
    pub(super) direction: Direction,
    /// The upper bound.
    pub(super) upper: f64,
    /// Whether, of flips, no FFT said more than what needs none.
    pub(super) blind: bool,
    /// The upper bound, or what moments prove where that is less.
    pub(super) moments: f64,
    /// What all answers have taken so far: points that were transformed or, by what they take beside those, weighed. A count, and no time, so
    /// that a busy machine answers the same.
    work: u64,
    /// Kinds of steps.
    kinds: u64,
    /// Where removing and adding a record were aimed at when an answer was near the one wanted.
    aims: [Option<Aim>; 2],
}

impl Effort {
    /// An aim that serves in place of a new one, where much has been worked.
    pub(super) fn aim(&self, direction: Direction) -> Option<&Aim> {
        self.aims[direction as usize].as_ref().filter(|_| self.worked() != Worked::Little)
    }

    /// Keep an `aim` if what was found by it, `upper`, is near [`Effort::upper`].
    pub(super) fn learn(&mut self, direction: Direction, aim: Aim, upper: f64) {
        if (upper / self.upper).ln().abs() < std::f64::consts::LN_2 {
            self.aims[direction as usize] = Some(aim);
        }
    }

    /// Aim afresh again.
    pub(super) fn forget(&mut self) {
        self.aims = [None; 2];
    }

    /// Count work on `steps`. Where a record is drawn seldom all of a spectrum matters, and takes twice the time.
    pub(super) fn count(&mut self, work: u64, steps: &[(Step, u64)]) {
        let drawn: f64 = steps.iter().map(|(step, count)| step.sampling_rate() * *count as f64).sum();
        self.work += if drawn < 100.0 { 2 * work } else { work };
        self.kinds = steps.len() as u64;
    }

    /// Count what `other` took.
    pub(super) fn add(&mut self, other: &Effort) {
        self.work += other.work;
    }

    /// How far a search has come.
    pub(super) fn worked(&self) -> Worked {
        match self.work {
            ..=MUCH => Worked::Little,
            work if work > ENOUGH.max(ENOUGH_EACH * self.kinds) => Worked::Enough,
            _ => Worked::Much,
        }
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            log2: 0,
            direction: Direction::Remove,
            upper: 0.0,
            blind: false,
            moments: f64::INFINITY,
            work: 0,
            kinds: 0,
            aims: [None; 2],
        }
    }
}

/// log2 of an FFT about as long as 2^`log2`, among those that are tried from `start` on: a whole answer would ask for it too.
pub(super) fn length(log2: u32, start: u32) -> u32 {
    start + log2.saturating_sub(start) / 2 * 2
}
