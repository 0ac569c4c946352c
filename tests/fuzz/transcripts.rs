//! Transcripts and statements.

use super::readers::{document, model};
use super::{CASES, fuzz, mutate, shown};
use ferret::backend::Cpu;
use ferret::data::Example;
use ferret::method::ferret::{Cuts, Release, Settings, Trainer, Transcript};
use ferret::method::groups::{Grouping, Groups};
use ferret::method::{Run, Task};
use ferret::privacy::Sampler;
use ferret::privacy::statement::{Circumstances, Released, Statement};
use ferret::rng::Secret;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;

/// Whether all that `said` says is in `taken`: nothing was passed over. Numbers by value; null may be left out.
fn within(said: &Value, taken: &Value) -> bool {
    match (said, taken) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(key, value)| b.get(key).map_or(value.is_null(), |other| within(value, other)))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| within(a, b)),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => said == taken,
    }
}

/// Sign a transcript anew, as whoever forges one would: the checksum is no secret.
fn signed(mut transcript: Value) -> Value {
    if let Some(checksum) = transcript.get_mut("checksum") {
        *checksum = "".into();
        let hash: String = Sha256::digest(transcript.to_string()).iter().map(|b| format!("{b:02x}")).collect();
        transcript["checksum"] = hash.into();
    }
    transcript
}

/// A text whose document was accepted and is written back as `taken`: every value of it must be there.
fn kept(text: &str, taken: &str) -> Result<bool, String> {
    let said: Value = serde_json::from_str(text).map_err(|e| format!("accepted, and no JSON: {e}"))?;
    let taken: Value = serde_json::from_str(taken).unwrap();
    if within(&said, &taken) { Ok(true) } else { Err(format!("accepted as something else: {taken}")) }
}

/// A short run's transcript.
fn transcript(release: Release) -> String {
    let base = model();
    let groups = Cuts::of(&Groups::new(&base.layout, Grouping::Count(2)).unwrap().members).unwrap();
    let settings = Settings { epsilon: 4.0, records: 20, batch: 4, release, ..Settings::paper("ferret", groups) };
    let records: Vec<Example> = (0..20).map(|i| Example::all(vec![i % 23, (i * 7) % 23, (i * 5 + 1) % 23])).collect();
    let secret = Secret::insecure(1);
    let task = Task::new(base, settings, &secret, &records);
    let mut trainer = Trainer::new(Cpu::<f32>::new(), task, None).unwrap();
    while trainer.step().unwrap().is_some() {}
    trainer.end().unwrap().1.to_json().unwrap()
}

#[test]
fn transcripts() {
    let path = Path::new("transcript.json");
    for release in [Release::Bit, Release::Gaussian { dither: 2.0 }] {
        let seed = transcript(release);
        let original = Transcript::from_json(&seed, path).unwrap();
        fuzz(
            "transcript.json",
            CASES / 2,
            |case| document(&seed, case),
            |bytes| shown(bytes),
            |bytes| {
                let Ok(text) = std::str::from_utf8(bytes) else { return Ok(false) };
                let Ok(found) = Transcript::from_json(text, path) else { return Ok(false) };
                // The checksum is over all of it: what is accepted is the run that was written, or nothing.
                if found != original {
                    return Err("a changed run was accepted".into());
                }
                kept(text, &found.to_json().unwrap())
            },
        );
        // Forged: what is accepted says what it means, and is the run that was written only where it says the same.
        let document: Value = serde_json::from_str(&seed).unwrap();
        // Any version that is read is written as the newest, and signed as such.
        let bare = |text: &str| {
            let mut value: Value = serde_json::from_str(text).unwrap();
            value.as_object_mut().unwrap().retain(|key, _| key != "checksum" && key != "version");
            value.to_string()
        };
        let taken = fuzz(
            "forged transcript.json",
            CASES / 2,
            |case| signed(mutate::json(&document, case)),
            Value::to_string,
            |value| {
                let text = value.to_string();
                let Ok(found) = Transcript::from_json(&text, path) else { return Ok(false) };
                let again = found.to_json().map_err(|e| format!("it cannot be written: {e}"))?;
                if Transcript::from_json(&again, path).ok().as_ref() != Some(&found) {
                    return Err("it does not survive being written".into());
                }
                if found == original && !within(&document_of(&bare(&text)), &document_of(&bare(&seed))) {
                    return Err("taken for the run that was written".into());
                }
                kept(&bare(&text), &bare(&again))
            },
        );
        assert!(taken > 10, "{taken}");
    }
}

fn document_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn statements() {
    let mut statement = Statement::new("dpsgd", released(), Sampler::Poisson, 400, 0.05, 40);
    statement.claim(ferret::privacy::Guarantee::eps_delta(1.5, 1e-5), "PLD", "spent");
    statement.claim(ferret::privacy::Guarantee::MutualInformation { nats: 0.25 }, "mutual information", "planned");
    let seed = statement.finish(Circumstances { windows: true, private_logs: true, ..Default::default() }).to_json();
    let taken = fuzz(
        "privacy.json",
        CASES,
        |case| document(&seed, case),
        |bytes| shown(bytes),
        |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return Ok(false) };
            let Ok(found) = Statement::from_json(text) else { return Ok(false) };
            let again = found.to_json();
            if Statement::from_json(&again).ok().as_ref() != Some(&found) {
                return Err("it does not survive being written".into());
            }
            let _ = found.to_markdown();
            kept(text, &again)
        },
    );
    assert!(taken > 50, "{taken}");
}

fn released() -> Released {
    Released::NoisedSums { count: 40, noise_multiplier: 1.25, clip: 0.5, bits_per_update: Some(4096.0) }
}
