//! The noise that a plan needs for an (eps, delta).

use super::settings::{Release, Settings};
use crate::error::{Error, Result};
use crate::privacy::calibrate;
use crate::privacy::event::Fires;
use crate::privacy::mi::Accounting;

/// What hides a released sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Randomised response.
    Flips {
        /// Count the bit as `bit / (1 - 2 flip)`.
        unbiased: bool,
    },
    /// Gaussian noise on the scalar.
    Dither,
}

/// Rounds after which noise and bits that depend on each other are given up.
const MOST_ROUNDS: usize = 50;

impl Settings {
    /// The release with the least noise that is proven to make the first `stop` steps (`eps`, `delta`)-DP; these settings' own is of no account.
    ///
    /// By the exact accounting more noise makes bits cheaper, so that more of them fire and need more noise: from clean bits up until neither changes; where
    /// not one clean bit is paid for, from very noisy ones down.
    pub fn calibrated(&self, noise: Noise, eps: f64, delta: f64, stop: u32) -> Result<Release> {
        let fires = |s: &Self| s.shared(&s.fires(stop));
        let mut planned = Self { release: Release::Bit, ..self.clone() };
        let mut now = fires(&planned);
        if self.accounting == Accounting::Exact && now.is_empty() {
            planned.release = match noise {
                Noise::Flips { unbiased } => Release::Rr { flip: 0.45, unbiased },
                Noise::Dither => Release::Gaussian { dither: 30.0 },
            };
            now = fires(&planned);
        }
        for _ in 0..MOST_ROUNDS {
            let release = self.least(noise, eps, delta, &now)?;
            let next = fires(&Self { release, ..planned.clone() });
            if next == now {
                return Ok(release);
            }
            (planned.release, now) = (release, next);
        }
        let budget = self.epsilon;
        Err(Error::usage(format!(
            "no noise was found at which the bits that {budget} nats pay for are also ({eps}, {delta})-DP: name the noise, or change one of the budgets"
        )))
    }

    fn least(&self, noise: Noise, eps: f64, delta: f64, fires: &[Fires]) -> Result<Release> {
        if fires.is_empty() {
            return Err(Error::usage(format!("no group fires, so no noise makes the run ({eps}, {delta})-DP")));
        }
        let s = self.sampling_rate();
        Ok(match noise {
            Noise::Flips { unbiased } => {
                Release::Rr { flip: calibrate::flip(eps, delta, s, fires)?.pld.upper, unbiased }
            }
            Noise::Dither => Release::Gaussian { dither: calibrate::dither(eps, delta, s, fires)?.pld.upper },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::{BatchPer, MaskKind, example};
    use super::*;
    use crate::privacy::{Accountant, Event, Pld};

    #[test]
    fn noise_is_enough_for_what_then_fires_by_either_count() {
        for accounting in [Accounting::Paper, Accounting::Exact] {
            let s = Settings {
                accounting,
                batch: 5,
                mask: MaskKind::Exact,
                batch_per: BatchPer::Bit,
                epsilon: 0.2,
                ..example()
            };
            let release = s.calibrated(Noise::Flips { unbiased: false }, 1.0, 1e-5, u32::MAX).unwrap();
            let Release::Rr { flip, .. } = release else { panic!("{release:?}") };
            let then = Settings { release, ..s.clone() };
            let fires = then.shared(&then.fires(u32::MAX));
            let event = |flip| Event::SubsampledRandomisedResponse { flip, sampling_rate: 0.005, fires: fires.clone() };
            let eps = |flip| Pld::default().epsilon(&event(flip), 1e-5).unwrap().upper;
            // Enough, and a hundredth less is not.
            assert!(eps(flip) <= 1.0 && eps(0.99 * flip) > 1.0, "{accounting:?}: {flip}");
            assert!(then.spender().spent(&fires).unwrap() <= 0.2 * (1.0 + 1e-9));
        }
        let poor = Settings { epsilon: 1e-9, mask: MaskKind::Exact, ..example() };
        let error = poor.calibrated(Noise::Dither, 1.0, 1e-5, u32::MAX).unwrap_err().to_string();
        assert!(error.contains("no group fires"), "{error}");
    }
}
