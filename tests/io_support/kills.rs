//! Runs that are killed at any moment, and resumed.

use super::{ok, says, verb};
use crate::common::Random;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Kill `times` runs of `train` in `dir` at moments of their own, and resume each to the files of one that was left alone. `train` is the command for an
/// output folder, with more arguments.
pub fn resume_to_the_same_files(dir: &Path, times: usize, train: impl Fn(&Path, &[&str]) -> Command) {
    let whole = dir.join("whole");
    let clock = Instant::now();
    ok(train(&whole, &[]).output().unwrap());
    assert!(!whole.join("state").exists(), "a finished run leaves no state, and no key in it");
    let mut length = clock.elapsed();
    let mut random = Random::new(std::process::id().into());
    let (mut killed, mut resumed_alone) = (0, 0);
    for i in 0.. {
        assert!(i < 200, "only {killed} of {i} runs were cut short");
        let out = dir.join(format!("killed-{i}"));
        let clock = Instant::now();
        let mut child = train(&out, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(length.mul_f64((random.signed() + 1.0) / 2.0));
        if child.try_wait().unwrap().is_some() {
            // The first run was slower than usual, or the moment lay at the end: aim earlier.
            length = length.min(clock.elapsed()).mul_f64(0.9);
        }
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        // Whatever moment it was, the same command with --resume ends the run, and so does the folder alone where one was begun.
        let finished = out.join("privacy.json").exists() && !out.join("state/told.json").exists();
        let alone = i % 2 == 1 && out.join("state/told.json").exists();
        let again = match alone {
            true => verb(&["train", "--resume", out.to_str().unwrap()]),
            false => train(&out, &["--resume"]).output().unwrap(),
        };
        if finished && out.join("transcript.json").exists() {
            says(&again, "finished");
        } else {
            ok(again);
        }
        resumed_alone += usize::from(alone);
        for name in ["model.safetensors", "transcript.json", "log.jsonl", "privacy.json"] {
            let read = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
            assert!(read(&out) == read(&whole), "{name} after kill {i}");
        }
        assert_eq!(names(&out), names(&whole), "no temporary file stays");
        std::fs::remove_dir_all(&out).unwrap();
        if killed == times {
            break;
        }
    }
    assert!(resumed_alone > times / 10, "{resumed_alone} runs were resumed by their folder alone");
}

/// The files of a folder.
pub fn names(dir: &Path) -> Vec<String> {
    let mut found: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    found
}
