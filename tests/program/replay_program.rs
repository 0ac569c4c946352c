//! `ferret replay` as people run it: the same bytes, and what is refused.

use crate::io_support::stderr;
use crate::replay::{base, settings, train};
use ferret::method::Record;
use ferret::model::checkpoint::{self, Dtype, SaveOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Run {
    folder: tempfile::TempDir,
    base: PathBuf,
    tuned: PathBuf,
}

fn saved() -> Run {
    let folder = tempfile::tempdir().unwrap();
    let (base_dir, tuned_dir) = (folder.path().join("base"), folder.path().join("tuned"));
    checkpoint::save(&base_dir, &base(), &SaveOptions::fresh(Dtype::F32)).unwrap();
    let loaded = checkpoint::load_folder(&base_dir).unwrap();
    let (tuned, transcript) = train(&settings(), 80);
    Record::Ferret(transcript.clone()).save(&tuned_dir, &loaded, &tuned).unwrap();
    Run { folder, base: base_dir, tuned: tuned_dir }
}

fn ferret(args: &[&dyn AsRef<std::ffi::OsStr>], threads: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferret")).args(args).env("RAYON_NUM_THREADS", threads).output().unwrap()
}

#[test]
fn the_program_rebuilds_the_checkpoint_byte_for_byte() {
    let run = saved();
    let transcript = run.tuned.join("transcript.json");
    for threads in ["1", "2", "5"] {
        let out = run.folder.path().join(format!("rebuilt-{threads}"));
        let args: [&dyn AsRef<_>; 9] =
            [&"replay", &"--base", &run.base, &"--transcript", &transcript, &"--out", &out, &"--quiet", &"--json"];
        let output = ferret(&args, threads);
        assert!(output.status.success(), "{}", stderr(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["steps"], 80);
        for file in ["model.safetensors", "config.json", "transcript.json"] {
            let (a, b) = (std::fs::read(out.join(file)).unwrap(), std::fs::read(run.tuned.join(file)).unwrap());
            assert!(a == b, "{file} differs with {threads} threads");
        }
        let again = ferret(&args, threads);
        assert!(!again.status.success(), "an existing folder must not be overwritten");
        let output = ferret(&[&"verify", &out, &"--base", &run.base, &"--json"], threads);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["verified"], true);
    }
}

#[test]
fn a_changed_weight_is_found() {
    let run = saved();
    let file = run.tuned.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = ferret(&[&"verify", &run.tuned, &"--base", &run.base], "2");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("differs in 1 of"), "{}", stderr(&output));
}

#[test]
fn a_wrong_base_is_refused() {
    let run = saved();
    let other = run.folder.path().join("other");
    let mut weights = base();
    weights.tensors[3][2] += 1e-3;
    checkpoint::save(&other, &weights, &SaveOptions::fresh(Dtype::F32)).unwrap();
    let out = run.folder.path().join("out");
    let transcript = run.tuned.join("transcript.json");
    for args in [
        &[&"replay" as &dyn AsRef<_>, &"--base", &other, &"--transcript", &transcript, &"--out", &out][..],
        &[&"verify", &run.tuned, &"--base", &other],
    ] {
        let output = ferret(args, "2");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("give the one it was trained from"), "{}", stderr(&output));
    }
    assert!(!out.exists());
}

/// The transcript after `edit`, its checksum made to fit again, as someone who knows the format would.
fn forge(run: &Run, edit: impl Fn(&mut serde_json::Value)) -> Output {
    use sha2::{Digest, Sha256};
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    edit(&mut value);
    value["checksum"] = "".into();
    let sum = Sha256::digest(serde_json::to_string(&value).unwrap());
    value["checksum"] = sum.iter().map(|b| format!("{b:02x}")).collect::<String>().into();
    replay_text(run, &serde_json::to_string_pretty(&value).unwrap())
}

fn replay_text(run: &Run, text: &str) -> Output {
    let path = run.folder.path().join("forged.json");
    std::fs::write(&path, text).unwrap();
    let out = run.folder.path().join("forged");
    let output = ferret(&[&"replay", &"--base", &run.base, &"--transcript", &path, &"--out", &out], "2");
    assert_eq!(output.status.success(), out.exists(), "written if and only if accepted");
    output
}

#[test]
fn a_tampered_transcript_is_refused() {
    let run = saved();
    assert!(forge(&run, |_| {}).status.success(), "the forger's tools work");
    std::fs::remove_dir_all(run.folder.path().join("forged")).unwrap();
    type Edit = fn(&mut serde_json::Value);
    let edits: &[(&str, Edit)] = &[
        ("releases are listed", |t| t["bits"] = (t["bits"].as_str().unwrap().to_owned() + "+").into()),
        ("releases are listed", |t| t["bits"] = t["bits"].as_str().unwrap()[1..].into()),
        ("expected + and - only", |t| t["bits"] = ("0".to_owned() + &t["bits"].as_str().unwrap()[1..]).into()),
        ("not to the", |t| {
            let bits = t["bits"].as_str().unwrap();
            let first = if &bits[..1] == "+" { "-" } else { "+" };
            t["bits"] = (first.to_owned() + &bits[1..]).into();
        }),
        ("releases are listed", |t| t["settings"]["seed"] = 54_321.into()),
        ("p is", |t| t["settings"]["p"] = 0.01.into()),
        ("sampling_rate is", |t| t["settings"]["sampling_rate"] = 0.02.into()),
        ("releases are listed", |t| t["settings"]["epsilon"] = 0.4.into()),
        ("releases are listed", |t| t["settings"]["records"] = 1100.into()),
        ("not to the", |t| t["settings"]["learning_rate"] = 0.002_000_1.into()),
        ("not to the", |t| t["settings"]["direction"] = "rademacher".into()),
        ("not to the", |t| t["settings"]["silent"] = "none".into()),
        ("releases are listed", |t| t["steps_run"] = 40.into()),
        ("of 80 planned", |t| t["steps_run"] = 81.into()),
        ("fires is", |t| t["fires"] = 3.into()),
        ("trained from", |t| t["base_sha256"] = "0".repeat(64).into()),
        ("not to the", |t| t["tuned_sha256"] = "0".repeat(64).into()),
        ("hexadecimal", |t| t["tuned_sha256"] = "short".into()),
        ("unfinished", |t| t["tuned_sha256"] = serde_json::Value::Null),
        ("cannot be replayed", |t| {
            t["settings"]["payload"] = "true-gradient".into();
            t["bits"] = "".into();
        }),
        ("scalars", |t| t["scalars"] = vec![1.0].into()),
        ("unknown field", |t| t["extra"] = 1.into()),
        ("unknown field", |t| t["settings"]["extra"] = 1.into()),
        ("does not name groups", |t| t["settings"]["groups"] = "0x1".into()),
        ("is it another model", |t| t["settings"]["groups"] = "14x1".into()),
        ("version 3", |t| t["version"] = 3.into()),
        ("is no transcript", |t| t["format"] = "other".into()),
    ];
    for (sentence, edit) in edits {
        let output = forge(&run, edit);
        assert_eq!(output.status.code(), Some(1), "{sentence}");
        assert!(stderr(&output).contains(sentence), "expected \"{sentence}\", got: {}", stderr(&output));
    }
    // Edits by hand, the checksum left as it was: settings that no weight depends on.
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    for (from, to) in
        [("ferret-half", "ferret-max"), ("\"poisson\"", "\"shuffle\""), ("\"epochs\": 1", "\"epochs\": 2")]
    {
        assert!(text.contains(from), "{text}");
        let output = replay_text(&run, &text.replace(from, to));
        assert!(stderr(&output).contains("was changed after it was written"), "{from}: {}", stderr(&output));
    }
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        assert_eq!(replay_text(&run, &text[..cut]).status.code(), Some(1));
    }
}

/// A folder whose transcript has one bit to show for `steps` steps of 1,000 groups.
fn endless(run: &Run, name: &str, (steps, steps_run): (u64, u64), epsilon: f64, mask: &str) -> PathBuf {
    let text = std::fs::read_to_string(run.tuned.join("transcript.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    (value["bits"], value["fires"], value["steps_run"]) = ("+".into(), 1.into(), steps_run.into());
    let s = &mut value["settings"];
    (s["steps"], s["groups"], s["epsilon"]) = (steps.into(), "1000x1".into(), epsilon.into());
    s["mask"] = mask.into();
    let dir = run.folder.path().join(name);
    std::fs::create_dir(&dir).unwrap();
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(run.tuned.join(file), dir.join(file)).unwrap();
    }
    std::fs::write(dir.join("transcript.json"), serde_json::to_string_pretty(&value).unwrap()).unwrap();
    dir
}

#[cfg(unix)]
#[test]
fn a_small_transcript_of_endless_fires_is_refused_at_once_and_in_little_memory() {
    let run = saved();
    let (members, others) = (run.folder.path().join("in.jsonl"), run.folder.path().join("out.jsonl"));
    std::fs::write(&members, "{\"tokens\":[1,2,3]}\n").unwrap();
    std::fs::write(&others, "{\"tokens\":[4,5,6]}\n").unwrap();
    let all = (10_000_000, 10_000_000);
    for (name, sentence, steps, epsilon, mask) in [
        ("hundred-million", "slots", (100_000_000, 100_000_000), 1e12, "bernoulli"),
        ("certain", "more than 1 fires", all, 1e12, "bernoulli"),
        ("likely", "more than 1 fires", all, 6.9e7, "bernoulli"),
        ("exact", "more than 1 fires", all, 1e12, "exact"),
        ("drawn", "with mask exact", (10_000_000, 9), 6.9e7, "exact"),
    ] {
        let dir = endless(&run, name, steps, epsilon, mask);
        let at = |path: &Path| path.to_str().unwrap().to_owned();
        let (base, tuned) = (at(&run.base), at(&dir));
        for args in [
            format!("replay --base {base} --transcript {tuned}/transcript.json --out {tuned}/new"),
            format!("verify {tuned} --base {base}"),
            format!("audit --base {base} --tuned {tuned} --members {} --nonmembers {}", at(&members), at(&others)),
        ] {
            // Two gigabytes of address space: listed, the fires would take eighty and more.
            let limited = format!("ulimit -v 2000000; exec {} {args}", env!("CARGO_BIN_EXE_ferret"));
            let begun = std::time::Instant::now();
            let output = Command::new("sh").args(["-c", &limited]).env("RAYON_NUM_THREADS", "2").output().unwrap();
            assert!(begun.elapsed().as_secs_f64() < 5.0, "{name}: {args} took {:?}", begun.elapsed());
            assert_eq!(output.status.code(), Some(1), "{name}: {args}: {}", stderr(&output));
            assert!(stderr(&output).contains(sentence), "{name}: {args}: {}", stderr(&output));
        }
    }
}
