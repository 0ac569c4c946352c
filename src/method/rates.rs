//! Learning rates where none is given.
//!
//! Found by trials on the tuning split of the embedded world, which no result is taken from, on its model of 642,544 parameters; beyond it
//! those of whole gradients go with one over the square root of the parameters, so that a step has the same length. Noise and signs want more: most of
//! such a step's length lies across the gradient, where a pretrained model hardly minds it. On SmolLM2-135M the best of three rates was 5 times that by
//! length for DPSGD, 3 times for FERRET-k, 11 or more for FERRET-2, so that theirs go [`halfway`]: with one over the fourth root. Where a method with
//! whole updates tunes a part of the parameters it is they that count: that is 6 times the rate for an adapter of the embedded model and 10 times for its
//! vectors, as trials found there.
//!
//! A FERRET run of K planned bits over G groups moves each parameter v = K / G times. Through AdamW every move is about the rate r, so that
//! r = 8e-3 (1 + v)^-0.3 c, where c is the share of the sign in what is released: 1 - 2f for flips, 1 / sqrt(1 + d^2) for dither d.
//! Idle steps that run on with a zero gradient carry a bit further: r is 0.7 of that. By the direct route a fired group of d parameters moves by r
//! in all, not each of them: r sqrt(d).
//!
//! A FERRET-k step by the direct route is r long, and with momentum 0.7 its share lasts a few steps: r = 6.8 / sqrt(T) for T steps (0.7 for 93, 1 for 47) of
//! the embedded model, however many signs or levels each has; halfway between that and steps that move every parameter as far is r times the fourth root of how much
//! larger a model is.

use super::ferret::{self, Payload, Release};
use super::ferret_k::settings::USUAL_MOMENTUM;
use super::{dense, ferret_k};
use crate::optim::{Route, Silent};
use crate::rng::Mask;

/// Parameters of the model that rates were found on.
const FOUND_ON: f64 = 642_544.0;

/// FERRET's, for a model of so many parameters. What `settings` has as its rate is of no account.
pub fn ferret(settings: &ferret::Settings, parameters: usize) -> f64 {
    let groups = settings.groups.len().max(1) as f64;
    if settings.payload == Payload::TrueGradient {
        return if settings.route == Route::Direct { 0.1 } else { 1e-3 * size(parameters) };
    }
    let visits = match settings.mask() {
        Mask::Bernoulli { p } => p * f64::from(settings.steps()),
        Mask::Exact { slots } => (slots as f64 / groups).min(settings.steps().into()),
    };
    let told = match settings.release {
        Release::Bit => 1.0,
        Release::Rr { flip, .. } => 1.0 - 2.0 * flip,
        Release::Gaussian { dither } => 1.0 / (1.0 + dither * dither).sqrt(),
    };
    let each = 8e-3 * (1.0 + visits.max(0.0)).powf(-0.3) * told * halfway(parameters);
    rounded(match (settings.route, settings.silent) {
        (Route::Direct, _) => each * (parameters as f64 / groups).sqrt(),
        (Route::Adamw, Silent::None) => each,
        (Route::Adamw, Silent::Zero) => 0.7 * each,
    })
}

/// That of a method with whole updates, for a model of so many parameters of which so many are tuned.
pub fn dense(method: &dense::Method, route: Route, batch: u64, parameters: usize, tuned: usize) -> f64 {
    use dense::Method::{DpSignsgd, Dpsgd, Nonprivate, Qsgd, Signsgd};
    let fewer = (parameters as f64 / tuned.max(1) as f64).sqrt();
    let (size, halfway) = (size(parameters) * fewer, halfway(parameters) * fewer);
    let noisy = noisy(batch);
    rounded(match (method, route) {
        (Dpsgd(_), Route::Direct) => noisy,
        (Nonprivate | Qsgd { .. }, Route::Direct) => 0.1,
        (Dpsgd(_) | DpSignsgd(_), _) => 3e-3 * noisy * halfway,
        (Nonprivate | Qsgd { .. }, _) => 2e-3 * size,
        (Signsgd { .. }, _) => 1e-3 * size,
    })
}

/// FERRET-k's, for a model of so many parameters. What `settings` has as its rate is of no account.
pub fn ferret_k(settings: &ferret_k::Settings, parameters: usize) -> f64 {
    rounded(match settings.route {
        Route::Direct => {
            let computed = settings.p * f64::from(settings.steps());
            signs(computed) / halfway(parameters) * (1.0 - settings.momentum) / (1.0 - USUAL_MOMENTUM)
        }
        Route::Adamw => 3e-3 * noisy(settings.batch) * halfway(parameters),
    })
}

/// How long a step of signs, and about how long one of levels, of the embedded model is in a run of so many steps, with the usual momentum.
pub fn signs(steps: f64) -> f64 {
    6.8 / steps.max(10.0).sqrt()
}

/// Noise on a small batch is as large as its gradient: a smaller step.
fn noisy(batch: u64) -> f64 {
    (batch as f64 / 50.0).sqrt().clamp(0.05, 2.0)
}

/// What a larger model's rates are multiplied by for steps of the same length; a smaller one's stay.
pub fn size(parameters: usize) -> f64 {
    (FOUND_ON / parameters.max(1) as f64).sqrt().min(1.0)
}

/// What they are multiplied by where noise or signs move it: halfway, in ratio, between [`size`] and 1.
pub fn halfway(parameters: usize) -> f64 {
    size(parameters).sqrt()
}

/// Two digits: what a reader can copy.
fn rounded(rate: f64) -> f64 {
    format!("{rate:.1e}").parse().unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad::ClipFunction;
    use crate::method::ferret::{Cuts, MaskKind, Settings};

    fn settings(groups: &str, edit: impl FnOnce(&mut Settings)) -> Settings {
        let groups = Cuts::try_from(groups.to_owned()).unwrap();
        let mut s = Settings { records: 1529, epochs: 3, epsilon: 1.0, ..Settings::paper("ferret", groups) };
        s.mask = MaskKind::Exact;
        edit(&mut s);
        s
    }

    #[test]
    fn rates_are_those_that_trials_found() {
        let near = |rate: f64, found: f64| assert!((rate / found).ln().abs() < 0.35, "{rate} is not about {found}");
        let size = 642_544;
        near(ferret(&settings("40x1", |_| ()), size), 4e-3);
        near(ferret(&settings("2x20", |_| ()), size), 3e-3);
        let flipped = Release::Rr { flip: 0.2688, unbiased: false };
        let small = |s: &mut Settings| (s.batch, s.silent, s.release, s.epsilon) = (1, Silent::None, flipped, 1e3);
        near(ferret(&settings("16x1", small), size), 3e-4);
        near(ferret(&settings("2x20", |s| (s.route, s.weight_decay) = (Route::Direct, 0.0)), size), 2.0);
        let plain = |all, tuned| dense(&dense::Method::Nonprivate, Route::Adamw, 50, all, tuned);
        near(plain(size, size), 2e-3);
        // An adapter of the embedded model, and one of SmolLM2-135M.
        near(plain(size, 18_432), 1.2e-2);
        near(plain(134_975_808, 460_800), 2.4e-3);
    }

    #[test]
    fn noise_and_signs_move_a_pretrained_model_further() {
        // By the best of the rates that were tried on SmolLM2-135M, a factor of 3 apart.
        let smollm = 134_515_008;
        let near = |rate: f64, best: f64| assert!((rate / best).ln().abs() < 1.7f64.ln(), "{rate} is far from {best}");
        let dpsgd = dense::Method::Dpsgd(dense::Privacy {
            noise_multiplier: 1.0,
            clip: 1.0,
            clip_rule: ClipFunction::Automatic,
            clip_style: dense::ClipStyle::Flat,
            clip_groups: None,
        });
        near(dense(&dpsgd, Route::Adamw, 32, smollm, smollm), 7.9e-4);
        let signs = ferret_k::Settings { records: 688, epochs: 1, batch: 32, ..ferret_k::Settings::usual(1.0) };
        near(ferret_k(&signs, smollm), 4.6);
    }

    #[test]
    fn sketches_go_as_far_in_fewer_steps() {
        let near = |rate: f64, found: f64| assert!((rate / found).ln().abs() < 0.25, "{rate} is not about {found}");
        let of = |edit: fn(&mut ferret_k::Settings)| {
            let mut s = ferret_k::Settings { records: 1529, epochs: 3, ..ferret_k::Settings::usual(1.52) };
            edit(&mut s);
            s.check().unwrap();
            ferret_k(&s, 642_544)
        };
        near(of(|_| ()), 0.7);
        near(of(|s| s.momentum = 0.5), 1.2);
        near(of(|s| s.batch = 100), 1.05);
        near(of(|s| (s.batch, s.momentum) = (200, 0.5)), 2.2);
        near(of(|s| (s.route, s.momentum) = (Route::Adamw, 0.0)), 3e-3);
        near(of(|s| (s.batch, s.bits_per_step) = (100, 16)), 1.0);
    }

    #[test]
    fn a_larger_model_and_more_bits_take_smaller_steps() {
        let one = settings("2x20", |_| ());
        let (small, large) = (ferret(&one, 642_544), ferret(&one, 124_439_808));
        assert!((small / large / 13.9f64.sqrt() - 1.0).abs() < 0.05, "{small} {large}");
        let rich = settings("2x20", |s| s.epsilon = 20.0);
        assert!(ferret(&rich, 642_544) < small);
        assert_eq!(rounded(0.003_141_59), 3.1e-3);
    }
}
