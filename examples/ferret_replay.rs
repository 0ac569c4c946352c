//! Train by FERRET, publish the transcript, and rebuild the tuned model from it: some hundred bits, no data, no matrix product.
//!
//! `cargo run --release --example ferret_replay`

use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::method::ferret::{Cuts, Settings, Transcript, replay};
use ferret::method::groups::{Grouping, Groups};
use ferret::method::list::{Method, Record};
use ferret::method::run::{Conclusion, GoOn, Task, drive};
use ferret::model::{checkpoint, init};
use ferret::rng::Secret;
use std::path::Path;

fn main() -> ferret::Result<()> {
    let base = init::random(init::Preset::Tiny.config(), 1)?;
    let records: Vec<Example> = (0..200).map(|i| Example::all((i..i + 10).map(|t| t % 40).collect())).collect();

    // Everything that is told is public. The budget decides how often a group fires, before a record is touched.
    let groups = Cuts::of(&Groups::new(&base.layout, Grouping::Bucket(1))?.members)?;
    let settings =
        Settings { epsilon: 2.0, records: 200, batch: 10, epochs: 5, seed: 7, ..Settings::paper("ferret-max", groups) };
    println!(
        "{} groups, {} steps, {} bits planned",
        settings.groups.len(),
        settings.steps(),
        settings.fires(settings.steps()).len()
    );

    // Which records are drawn is secret, and keyed by the operating system.
    let secret = Secret::from_system()?;
    let task = Task::new(base.clone(), Method::Ferret(settings), &secret, &records);
    let mut run = task.begin(Cpu::<f32>::new(), None)?;
    drive(&mut *run, &mut GoOn(|| Ok(())))?;
    let Conclusion { weights, record, .. } = run.finish()?;

    // The file that may be published, and all that whoever reads it needs besides the base model.
    let text = record.to_json()?;
    let Record::Ferret(_) = record else { unreachable!("a FERRET run leaves a transcript") };
    let transcript = Transcript::from_json(&text, Path::new("transcript.json"))?;
    let rebuilt = replay(base, &transcript, |_| ())?;
    assert_eq!(checkpoint::tensors_sha256(&rebuilt), checkpoint::tensors_sha256(&weights));
    println!(
        "{} bits were released; the replay has the same {} weights, bit for bit",
        transcript.releases.len(),
        weights.layout.scalars()
    );
    Ok(())
}
