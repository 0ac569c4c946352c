//! The one-run audit of Steinke et al. on real runs of a tiny model: canaries by coin flip, an empirical lower limit of epsilon that never
//! exceeds the accountant's upper one, and mechanisms with their protection taken out, whose claims it refutes.

use crate::common::{Random, config};
use ferret::audit::one_run::{OneRun, audit, coins};
use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::eval;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Privacy};
use ferret::method::ferret::{BatchPer, Cuts, Payload, Release, Settings};
use ferret::method::groups::{self, Groups};
use ferret::method::run::{GoOn, drive};
use ferret::method::{Method, Task, ferret_k};
use ferret::model::{Decoder, Weights, init};
use ferret::optim::Route;
use ferret::privacy::event::Fires;
use ferret::privacy::{Accountant, Event, Pld, calibrate};
use ferret::rng::Secret;

const CANARIES: usize = 256;
const DELTA: f64 = 1e-5;

/// A base model, canaries of random tokens, and their coins.
struct World {
    base: Weights,
    canaries: Vec<Example>,
    included: Vec<bool>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(100 + seed);
        let base = init::random(config(|c| (c.width, c.inner) = (24, 48)), 1 + seed).unwrap();
        let canary = |_| Example::all((0..8).map(|_| random.below(23) as u32).collect());
        Self { base, canaries: (0..CANARIES).map(canary).collect(), included: coins(CANARIES, seed) }
    }

    fn members(&self) -> Vec<Example> {
        self.canaries.iter().zip(&self.included).filter(|(_, i)| **i).map(|(e, _)| e.clone()).collect()
    }

    /// How far training brought each canary's loss down, held against the coins, at 95 % confidence.
    fn audit(&self, tuned: Weights) -> OneRun {
        let losses = |weights: Weights| {
            let decoder = Decoder::new(Cpu::<f32>::new(), weights).unwrap();
            eval::losses(&decoder, &self.canaries, |_| ()).unwrap()
        };
        let (before, after) = (losses(self.base.clone()), losses(tuned));
        let scores: Vec<f64> = before.iter().zip(&after).map(|(b, a)| b.sum - a.sum).collect();
        audit(&scores, &self.included, &[CANARIES, CANARIES / 2, CANARIES / 4, CANARIES / 8], DELTA, 0.05).unwrap()
    }

    /// Every group at every step: the largest release there is for these steps.
    fn settings(&self, grouping: groups::Grouping, batch: u64, steps: u32, release: Release) -> Settings {
        let records = self.members().len() as u64;
        let groups = Cuts::of(&Groups::new(&self.base.layout, grouping).unwrap().members).unwrap();
        Settings {
            epsilon: 1e6,
            records,
            batch: batch.min(records),
            steps: Some(steps),
            release,
            route: Route::Direct,
            learning_rate: 0.02,
            weight_decay: 0.0,
            batch_per: BatchPer::Bit,
            seed: 7,
            micro_batch: 16,
            ..Settings::paper("ferret", groups)
        }
    }

    /// The weights a FERRET run ends at.
    fn ferret(&self, settings: Settings, seed: u64) -> Weights {
        let (members, secret) = (self.members(), Secret::insecure(seed));
        self.train(Method::Ferret(settings), &members, &secret)
    }

    fn dpsgd(&self, noise_multiplier: f64, batch: u64, steps: u32, seed: u64) -> Weights {
        let (members, secret) = (self.members(), Secret::insecure(seed));
        let records = members.len() as u64;
        let settings = dense::Settings {
            records,
            batch,
            steps: Some(steps),
            micro_batch: 16,
            learning_rate: 5e-3,
            weight_decay: 0.0,
            ..dense::Settings::usual(dense::Method::Dpsgd(Privacy {
                noise_multiplier,
                clip: 1.0,
                clip_rule: ClipFunction::Automatic,
                clip_style: ClipStyle::Flat,
                clip_groups: None,
            }))
        };
        self.train(Method::Dense(settings), &members, &secret)
    }

    fn ferret_k(
        &self,
        (release, noise_multiplier): (ferret_k::Release, f64),
        (clip_rule, clip): (ClipFunction, f64),
        batch: u64,
        steps: u32,
        seed: u64,
    ) -> Weights {
        let (members, secret) = (self.members(), Secret::insecure(seed));
        let settings = ferret_k::Settings {
            bits_per_step: 2048,
            release,
            clip_rule,
            clip,
            records: members.len() as u64,
            batch,
            steps: Some(steps),
            micro_batch: 16,
            route: Route::Adamw,
            momentum: 0.0,
            learning_rate: 5e-3,
            ..ferret_k::Settings::usual(noise_multiplier)
        };
        self.train(Method::FerretK(settings), &members, &secret)
    }

    /// The weights a run ends at.
    fn train(&self, settings: Method, members: &[Example], secret: &Secret) -> Weights {
        let task = Task::new(self.base.clone(), settings, secret, members);
        let mut run = task.begin(Cpu::<f32>::new(), None).unwrap();
        drive(&mut *run, &mut GoOn(|| Ok(()))).unwrap();
        run.finish().unwrap().weights.into_form()
    }
}

/// What the accountant says at most.
fn upper(event: &Event) -> f64 {
    Pld::default().epsilon(event, DELTA).unwrap().upper
}

fn fires(settings: &Settings) -> Vec<Fires> {
    vec![Fires { steps: settings.fires(settings.steps()).len() as u64, bits: 1 }]
}

#[test]
fn the_lower_limit_never_exceeds_the_accountants() {
    for seed in 0..3 {
        let world = World::new(seed);
        let two = groups::Grouping::Count(2);
        for (batch, steps, epsilon) in [(1, 128, 0.5), (16, 64, 2.0)] {
            let mut s = world.settings(two, batch, steps, Release::Bit);
            let flip = calibrate::flip(epsilon, DELTA, s.sampling_rate(), &fires(&s)).unwrap().pld.upper;
            s.release = Release::Rr { flip, unbiased: false };
            let event =
                Event::SubsampledRandomisedResponse { flip, sampling_rate: s.sampling_rate(), fires: fires(&s) };
            let (bound, found) = (upper(&event), world.audit(world.ferret(s.clone(), seed)));
            println!("rr, flip {flip:.3}: {found:?}, accountant {bound:.3}");
            assert!(found.eps_lower <= bound, "rr, seed {seed}: {found:?} above {bound}");

            let dither = calibrate::dither(epsilon, DELTA, s.sampling_rate(), &fires(&s)).unwrap().pld.upper;
            s.release = Release::Gaussian { dither };
            let bound = upper(&Event::dithered(dither, s.sampling_rate(), &fires(&s)));
            let found = world.audit(world.ferret(s, seed));
            println!("gaussian, dither {dither:.3}: {found:?}, accountant {bound:.3}");
            assert!(found.eps_lower <= bound, "gaussian, seed {seed}: {found:?} above {bound}");
        }
        let (batch, steps) = (32, 40);
        let rate = batch as f64 / world.members().len() as f64;
        let noise_multiplier = calibrate::noise_multiplier(4.0, DELTA, rate, steps.into()).unwrap().pld.upper;
        let bound = upper(&Event::SubsampledGaussian { noise_multiplier, sampling_rate: rate, steps: steps.into() });
        let found = world.audit(world.dpsgd(noise_multiplier, batch, steps, seed));
        println!("dpsgd, noise {noise_multiplier:.3}: {found:?}, accountant {bound:.3}");
        assert!(found.eps_lower <= bound, "dpsgd, seed {seed}: {found:?} above {bound}");
        for release in [ferret_k::Release::Scalar, ferret_k::Release::Level] {
            let of = (release, noise_multiplier);
            let found = world.audit(world.ferret_k(of, (ClipFunction::Automatic, 1.0), batch, steps, seed));
            println!("ferret-k, {release:?}, noise {noise_multiplier:.3}: {found:?}, accountant {bound:.3}");
            assert!(found.eps_lower <= bound, "ferret-k, {release:?}, seed {seed}: {found:?} above {bound}");
        }
    }
}

/// The same audit of mechanisms with their protection taken out: gradients sent where a bit was promised, noise that is not added.
#[test]
fn a_broken_mechanism_is_found_out() {
    let world = World::new(1);
    let claimed = 1.0;
    let s = Settings {
        payload: Payload::TrueGradient,
        route: Route::Adamw,
        learning_rate: 5e-3,
        batch_per: BatchPer::Step,
        ..world.settings(groups::Grouping::Count(2), 32, 160, Release::Bit)
    };
    let found = world.audit(world.ferret(s, 1));
    println!("ferret with true gradients: {found:?}");
    assert!(found.eps_lower > claimed, "{found:?}");
    let found = world.audit(world.dpsgd(0.0, 32, 160, 1));
    println!("dpsgd without noise: {found:?}");
    assert!(found.eps_lower > claimed, "{found:?}");
    for release in [ferret_k::Release::Scalar, ferret_k::Release::Level] {
        let found = world.audit(world.ferret_k((release, 0.0), (ClipFunction::Automatic, 1.0), 32, 160, 1));
        println!("ferret-k, {release:?}, without noise: {found:?}");
        assert!(found.eps_lower > claimed, "{release:?}: {found:?}");
    }
    // Noise that suffices for contributions of length C, added to sketches of any length.
    let rate = 32.0 / world.members().len() as f64;
    let noise_multiplier = calibrate::noise_multiplier(claimed, DELTA, rate, 160).unwrap().pld.upper;
    let noised = (ferret_k::Release::Scalar, noise_multiplier);
    let of = |rule| world.audit(world.ferret_k(noised, (rule, 1e-3), 32, 160, 1));
    let (kept, found) = (of(ClipFunction::Automatic), of(ClipFunction::None));
    println!("ferret-k, noise {noise_multiplier:.3}: clipped {kept:?}, not clipped {found:?}");
    assert!(kept.eps_lower <= claimed && found.eps_lower > claimed, "{kept:?} {found:?}");
}
