//! Nats of mutual information: what a release can tell about one record, given all others.
//!
//! # The argument
//!
//! Fix all other records and everything released so far, y. A batch is drawn anew, secretly, and the record is in it with
//! probability s, whatever the record is. So the law of the release, as a function of the record x, is
//!
//! P_x = (1 - s) A + s B_x,
//!
//! A if the record was not drawn, B_x if it was. A does not depend on x: the model is a function of y, and the other records are
//! fixed. This holds for Poisson batches, and for uniform batches of a fixed size: there another record stands in the place, so that A
//! and B_x are mixtures over different companions, but A still knows nothing of x. It does not hold for shuffled epochs, where
//! what was released before tells whether the record's turn has come.
//!
//! Whatever the prior of x, the information I(x; release | y, others) is at most the capacity C of the channel x -> P_x. By the chain
//! rule I(x; all releases | others) is the sum over steps of such terms, averaged over y: **capacities add**, also when each step is
//! chosen by what was released before. For any law r of the release, C <= max_x D(P_x || r) (with equality for the best
//! r), so every r is a certificate: that is how everything here rounds upwards.
//!
//! For a fixed prior the information is convex in the channel, and (A, B_x) range over a product of simplices: the worst case is at its
//! corners, where A and all B_x are point masses (on which flips or noise then act). Without flips, point masses on M = 2^k words: the
//! records that give A's own word cannot be told from those not drawn; each other word is an input ((1-s) A, s word). By symmetry
//! the best prior puts q in equal shares on the M - 1 others, and C = max_q h(sq) + sq ln(M-1) - q h(s): see [`bits`].
//!
//! - [`bits`]: clean bits, alone and k on one batch. Exact.
//! - [`flips`]: bits flipped with probability f, by the channel's symmetry over Hamming weights. Exact up to a certified 1e-5.
//! - [`gaussian`]: sums and scalars with Gaussian noise, by the divergence from the law without the record: an upper bound, which many
//!   dimensions attain.
//! - [`batch`]: any of these under any sampler, and lists of them.
//! - [`budget`]: the plan of a FERRET run, by this or by the paper's s K ln 2.
//! - [`spend`]: how far a budget goes in a run, whatever is done to its bits.
//! - [`planner`]: the best batch, bits a batch and flip rate for a budget.
//!
//! Shuffled epochs: condition on the order, which is independent of x and can only help the observer. Then a step whose batch has the record
//! tells at most the capacity of B_x alone, the others nothing, and a step has it with probability s: s times the capacity of the
//! unsampled channel. With one bit on every batch of a pass that is attained: a record that turns its bit is seen once a pass for certain.
//!
//! All of it is *given all other records*. Copies of a record add up: ten copies, one clean bit, s = 0.1 tell up to 0.315 nats about what
//! they all are (0.308 of a coin), eight times what one may.

pub mod batch;
pub mod bits;
pub mod budget;
pub mod flips;
pub mod gaussian;
pub mod planner;
pub mod spend;

pub use batch::{Charge, Release, charge_event};
pub use budget::{Accounting, Plan, Request, charge, delta_zero, delta_zero_realised, run_steps, steps};
pub use planner::signs_per_step;
pub use spend::Spender;

/// What a printed number of nats is about.
pub const GIVEN: &str = "given all other records; copies of a record add up";

/// A little more than `x`: what the few operations behind it may have rounded away.
fn up(x: f64) -> f64 {
    x * (1.0 + 1e-12)
}

/// (1+t) ln(1+t) - t, t >= -1: sum p ln(p / r) is sum r psi(p/r - 1) where both sum to 1, and no term cancels another.
fn psi(t: f64) -> f64 {
    if t.abs() < 0.05 {
        // t^2/2 - t^3/6 + t^4/12 - ... = sum (-t)^n / (n (n-1))
        let (mut power, mut sum) = (t * t, 0.0);
        for n in 2..16 {
            let n = f64::from(n);
            sum += power / (n * (n - 1.0));
            power *= -t;
        }
        sum
    } else if t <= -1.0 {
        1.0
    } else {
        (1.0 + t) * t.ln_1p() - t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psi_is_smooth_where_its_two_forms_meet() {
        for t in [-0.05_f64, 0.05] {
            let (inside, outside) = (t * (1.0 - 1e-9), t * (1.0 + 1e-9));
            approx::assert_relative_eq!(psi(inside), psi(outside), max_relative = 1e-8);
            approx::assert_relative_eq!(psi(inside), (1.0 + t) * t.ln_1p() - t, max_relative = 1e-8);
        }
        assert_eq!((psi(0.0), psi(-1.0)), (0.0, 1.0));
        approx::assert_relative_eq!(psi(1e-9), 0.5e-18, max_relative = 1e-8);
    }
}
