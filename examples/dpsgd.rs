//! DPSGD with an accountant: find the noise that a promise needs, train, and ask two accountants what was spent.
//!
//! `cargo run --release --example dpsgd`

use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::eval;
use ferret::method::dense::{self, ClipFunction, ClipStyle, Privacy, Settings};
use ferret::method::list::Method;
use ferret::method::run::{Conclusion, GoOn, Task, drive};
use ferret::model::{Decoder, init};
use ferret::privacy::{Accountant, Pld, Rdp, calibrate};
use ferret::rng::Secret;

const DELTA: f64 = 1e-5;

fn main() -> ferret::Result<()> {
    let base = init::random(init::Preset::Tiny.config(), 1)?;
    let records: Vec<Example> = (0..400).map(|i| Example::all((i..i + 10).map(|t| t % 40).collect())).collect();
    let (batch, epochs) = (40, 4);
    let (rate, steps) = (batch as f64 / records.len() as f64, (records.len() / batch * epochs) as u64);

    // The smallest noise with which so many steps are (2, 1e-5)-DP. Nothing has been computed on a record yet.
    let noise = calibrate::noise_multiplier(2.0, DELTA, rate, steps)?;
    let privacy = Privacy {
        noise_multiplier: noise.pld.upper,
        clip: 1.0,
        clip_rule: ClipFunction::Abadi,
        clip_style: ClipStyle::Flat,
        clip_groups: None,
    };
    let settings = Settings {
        records: records.len() as u64,
        batch: batch as u64,
        epochs: epochs as u32,
        learning_rate: 3e-3,
        weight_decay: 0.0,
        ..Settings::usual(dense::Method::Dpsgd(privacy))
    };
    let event = settings.event(settings.steps()).expect("noised sums have an event");

    let loss = |weights| -> ferret::Result<f64> {
        let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
        Ok(eval::token_mean(&eval::losses(&decoder, &records, |_| ())?).0)
    };
    let before = loss(base.clone())?;
    let secret = Secret::from_system()?;
    let task = Task::new(base, Method::Dense(settings), &secret, &records);
    let mut run = task.begin(Cpu::<f32>::new(), None)?;
    drive(&mut *run, &mut GoOn(|| Ok(())))?;
    let Conclusion { weights, .. } = run.finish()?;
    println!(
        "noise multiplier {:.3}: loss {before:.3} before, {:.3} after",
        noise.pld.upper,
        loss(weights.into_form())?
    );

    // The same event, two accountants: the classical one is safe, the other brackets the truth.
    for accountant in [&Rdp::default() as &dyn Accountant, &Pld::default()] {
        let epsilon = accountant.epsilon(&event, DELTA)?;
        println!(
            "{:>4}: epsilon from {:.3} to {:.3} at delta {DELTA:e}",
            accountant.name(),
            epsilon.lower,
            epsilon.upper
        );
        assert!(epsilon.lower <= 2.0);
    }
    assert!(Pld::default().epsilon(&event, DELTA)?.upper <= 2.0 + 1e-6);
    Ok(())
}
