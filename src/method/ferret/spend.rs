//! How far a run's budget goes.

use super::settings::{BatchPer, Release, Settings};
use crate::privacy::mi::{Accounting, Release as Charged, Spender};
use std::f64::consts::LN_2;

impl Settings {
    /// The probability that the budget pays for; not a number where nothing does.
    pub(super) fn probability(&self) -> f64 {
        let (groups, steps) = (self.groups.len() as u64, self.steps.into());
        match self.accounting {
            Accounting::Paper => Self::fire_probability(self.epsilon, groups, steps, self.sampling_rate),
            Accounting::Exact => self.spender().probability(self.epsilon, groups, steps).unwrap_or(f64::NAN),
        }
    }

    /// How its bits are charged.
    pub fn spender(&self) -> Spender {
        let release = match self.release {
            Release::Bit => Charged::Bits { flip: 0.0, bits: 1 },
            Release::Rr { flip, .. } => Charged::Bits { flip, bits: 1 },
            Release::Gaussian { dither } => Charged::Scalars { dither, bits: 1 },
        };
        let Self { accounting, sampling_rate, sampler, .. } = *self;
        Spender { accounting, release, sampling_rate, sampler, shared: self.batch_per == BatchPer::Step }
    }

    /// The slots of an exact mask: as many bits as never cost more than the budget.
    pub(super) fn paid_slots(&self) -> u64 {
        let (groups, steps) = (self.groups.len() as u64, self.steps.into());
        match self.accounting {
            Accounting::Paper => (self.epsilon / (self.sampling_rate * LN_2)).floor() as u64,
            Accounting::Exact => self.spender().slots(self.epsilon, groups, steps).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::ferret::settings::{MaskKind, example};

    #[test]
    fn the_exact_accounting_fires_more_and_keeps_the_budget() {
        for batch_per in [BatchPer::Step, BatchPer::Bit] {
            for release in [Release::Bit, Release::Rr { flip: 0.1, unbiased: false }] {
                let settings = Settings { batch_per, release, mask: MaskKind::Exact, ..example() };
                let exact = Settings { accounting: Accounting::Exact, ..settings.clone() }.planned();
                exact.check().unwrap();
                let (few, many) = (settings.planned().fires(60), exact.fires(60));
                let spent = exact.spender().spent(&exact.shared(&many)).unwrap();
                assert!(many.len() >= few.len() && spent <= 0.5, "{release:?} {batch_per:?}: {} {spent}", many.len());
                if batch_per == BatchPer::Bit {
                    assert!(many.len() > 3 * few.len() / 2, "{} {}", many.len(), few.len());
                }
                // The field is written where it is not the paper's, and read back.
                let text = serde_json::to_string(&exact).unwrap();
                assert!(text.contains("\"accounting\":\"exact\""));
                assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), exact);
                assert!(!serde_json::to_string(&example()).unwrap().contains("accounting"));
                assert!(
                    Settings { accounting: Accounting::Paper, ..exact }.check().is_err() || few.len() == many.len()
                );
            }
        }
    }
}
