//! Train by FERRET-k under an (eps, delta), publish the transcript, and rebuild the tuned model from it: some kilobytes, no data, no matrix product.
//!
//! `cargo run --release --example ferret_k`

use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::method::ferret_k::{Release, Settings};
use ferret::method::list::{Method, Record};
use ferret::method::run::{Conclusion, GoOn, Task, drive};
use ferret::model::{checkpoint, init};
use ferret::privacy::calibrate;
use ferret::privacy::statement::Circumstances;
use ferret::rng::Secret;
use std::path::Path;

fn main() -> ferret::Result<()> {
    let base = init::random(init::Preset::Tiny.config(), 1)?;
    let records: Vec<Example> = (0..400).map(|i| Example::all((i..i + 10).map(|t| t % 40).collect())).collect();

    // The noise that makes 40 steps on a twentieth of the records each (2, 1e-5)-DP, and the numbers a step that it leaves room for.
    let (rate, steps) = (20.0 / 400.0, 40);
    let noise = calibrate::noise_multiplier(2.0, 1e-5, rate, steps)?.pld.upper;
    let settings = Settings {
        bits_per_step: Settings::usual_bits(Release::default(), 20, noise),
        records: 400,
        batch: 20,
        epochs: 2,
        seed: 7,
        ..Settings::usual(noise)
    };
    println!(
        "noise multiplier {noise:.3}: two bits of {} numbers a step, {} steps",
        settings.bits_per_step,
        settings.steps()
    );
    for claim in settings.statement(settings.steps(), 1e-5, Circumstances::default())?.claims {
        println!("{}: {} ({})", claim.of, claim.guarantee, claim.accountant);
    }

    // Which records are drawn, and the noise, are secret, and keyed by the operating system.
    let secret = Secret::from_system()?;
    let task = Task::new(base.clone(), Method::FerretK(settings), &secret, &records);
    let mut run = task.begin(Cpu::<f32>::new(), None)?;
    drive(&mut *run, &mut GoOn(|| Ok(())))?;
    let Conclusion { weights, record, .. } = run.finish()?;

    // The file that may be published, and all that whoever reads it needs besides the base model.
    let text = record.to_json()?;
    let read = Record::from_transcript(&text, Path::new("transcript.json"))?;
    let rebuilt = read.rebuild(base, |_| ())?;
    assert_eq!(checkpoint::tensors_sha256(&rebuilt), checkpoint::tensors_sha256(&weights));
    println!("a transcript of {} bytes; the replay has the same weights, bit for bit", text.len());
    Ok(())
}
