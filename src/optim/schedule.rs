//! The learning rate by step.

use serde::{Deserialize, Serialize};

/// How the learning rate changes over a run of T steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Schedule {
    /// The same at every step.
    #[default]
    Constant,
    /// Up from 0 over the first `ceil(warmup T)` steps W, then down to 0: `t / W`, then `(T - t) / (T - W)`.
    Linear {
        /// Share of the steps that warm up.
        warmup: f64,
    },
}

impl Schedule {
    /// The learning rate at `step` of `steps`, both from 0.
    pub fn rate(&self, peak: f64, step: u32, steps: u32) -> f64 {
        match *self {
            Schedule::Constant => peak,
            Schedule::Linear { warmup } => {
                let (t, total) = (f64::from(step), f64::from(steps));
                let w = (warmup * total).ceil().min(total);
                if t < w { peak * (t / w) } else { peak * ((total - t).max(0.0) / (total - w).max(1.0)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_rises_and_falls() {
        let s = Schedule::Linear { warmup: 0.1 };
        assert_eq!(s.rate(2.0, 0, 100), 0.0);
        assert_eq!(s.rate(2.0, 5, 100), 1.0);
        assert_eq!(s.rate(2.0, 10, 100), 2.0);
        assert_eq!(s.rate(2.0, 55, 100), 1.0);
        assert_eq!(s.rate(2.0, 100, 100), 0.0);
        assert_eq!(Schedule::Linear { warmup: 0.0 }.rate(2.0, 0, 4), 2.0);
        assert_eq!(Schedule::Linear { warmup: 1.0 }.rate(2.0, 3, 4), 1.5);
        assert_eq!(Schedule::Constant.rate(2.0, 77, 100), 2.0);
    }
}
