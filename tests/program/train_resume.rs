//! Runs that are stopped, killed, damaged, and resumed.

use crate::io_support::kills::{names, resume_to_the_same_files};
use crate::io_support::{TINY, ok, records, says, verb};
use crate::train::{run, train};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn killed_at_any_moment_a_run_resumes_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3, 3);
    let fixed = ["--insecure-seed", "1", "--checkpoint-every", "1"];
    resume_to_the_same_files(dir.path(), 20, |out, more| train(&data, out, &[&fixed[..], more].concat()));
}

/// Start, and stop by `signal` after `lines` lines of the log. The run must not be over by then: it has a step to go in any case.
fn stopped(mut command: Command, out: &Path, lines: usize, signal: &str) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(out.join("log.jsonl")).is_ok_and(|l| l.lines().count() > lines) {
        assert!(Instant::now() < deadline, "the run never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

/// Arguments of a run that takes seconds, so that it can be stopped on the way.
const LONG: [&str; 4] = ["--epochs", "200", "--epsilon", "600"];

#[test]
fn an_interrupt_leaves_a_run_to_resume_with_its_key_for_the_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let held_out = records(dir.path(), "held-out.jsonl", 4, 5);
    let with = [&LONG[..], &["--log-private", "--eval-data", held_out.to_str().unwrap()]].concat();
    let output = stopped(train(&data, &out, &with), &out, 2, "-INT");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    says(&output, "--resume continues");
    let mode = |name: &str| std::fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state/key.json"), mode("state/told.json"), mode("log.jsonl")), (0o600, 0o600, 0o600));
    let again = |extra: &[&str]| run(train(&data, &out, &[&with[..], extra].concat()));
    says(&again(&[]), "--resume");
    says(&again(&["--resume", "--seed", "4"]), "seed");
    // What a run stops at and how it adds up are part of the plan, and its sample and flips are not spent on other records.
    says(&again(&["--resume", "--max-steps", "100"]), "part of its plan");
    says(&again(&["--resume", "--micro-batch", "4"]), "micro_batch");
    says(&again(&["--resume", "--insecure-seed", "4"]), "--insecure-seed");
    let other = dir.path().join("other.jsonl");
    std::fs::write(&other, std::fs::read_to_string(&data).unwrap().replacen('[', "[1,", 1)).unwrap();
    says(&run(train(&other, &out, &[&with[..], &["--resume"]].concat())), "other records");
    assert!(!out.join("privacy.json").exists(), "nothing is stated about a run that was refused");
    // What it began with was measured before the interrupt, and is still the base model's. Its folder tells all the rest.
    let summary = ok(verb(&["train", "--resume", out.to_str().unwrap()]));
    let model = TINY;
    let alone = ok(verb(&["eval", "--model", model, "--data", held_out.to_str().unwrap(), "--json"]));
    assert_eq!(summary["eval_before"]["loss"], alone["loss"]);
    assert_ne!(summary["eval_after"]["loss"], alone["loss"]);
    assert!(!out.join("state").exists());
    says(&again(&["--resume"]), "finished");
    says(&verb(&["train", "--resume", out.to_str().unwrap()]), "finished");
}

/// One flipped bit in any file of the state is found before anything is computed from it.
#[test]
fn a_damaged_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let held_out = records(dir.path(), "held-out.jsonl", 4, 5);
    let with = [&LONG[..], &["--checkpoint-every", "1", "--eval-data", held_out.to_str().unwrap()]].concat();
    assert_eq!(stopped(train(&data, &out, &with), &out, 5, "-INT").status.code(), Some(130));
    let state = out.join("state");
    let saved = std::fs::read_dir(state.join("saved")).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = saved.collect();
    files.extend(["told.json", "key.json", "before.json"].map(|name| state.join(name)));
    assert_eq!(files.len(), 5, "{files:?}");
    for path in files {
        let whole = std::fs::read(&path).unwrap();
        // A digit in the middle, so that what is there still reads well.
        let digits = (0..whole.len()).filter(|&i| whole[i].is_ascii_digit());
        let at = digits.min_by_key(|&i| i.abs_diff(whole.len() / 2)).unwrap();
        let mut flipped = whole.clone();
        flipped[at] = if whole[at] == b'7' { b'8' } else { b'7' };
        std::fs::write(&path, &flipped).unwrap();
        let output = verb(&["train", "--resume", out.to_str().unwrap()]);
        says(&output, path.file_name().unwrap().to_str().unwrap());
        std::fs::write(&path, &whole).unwrap();
    }
    ok(verb(&["train", "--resume", out.to_str().unwrap()]));
}

#[test]
fn a_second_process_is_locked_out() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    let mut first = train(&data, &out, &LONG).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(out.join("log.jsonl")).is_ok_and(|l| l.lines().count() > 2) {
        assert!(Instant::now() < deadline, "the run never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Stopped, not ended: it holds the folder however long the others take.
    let signal = |name: &str, id: u32| {
        assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
    };
    signal("-STOP", first.id());
    let resumed = [&LONG[..], &["--resume"]].concat();
    says(&run(train(&data, &out, &resumed)), "another process is at work");
    says(&verb(&["train", "--resume", out.to_str().unwrap()]), "another process is at work");
    signal("-KILL", first.id());
    first.wait().unwrap();
    ok(run(train(&data, &out, &resumed)));
}

/// Where nothing was begun yet, --resume with all arguments begins: what a scheduler that restarts jobs needs.
#[test]
fn resume_begins_where_nothing_is_and_a_folder_alone_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out, whole) =
        (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"), dir.path().join("whole"));
    let fixed = ["--insecure-seed", "1", "--max-steps", "20"];
    ok(run(train(&data, &whole, &fixed)));
    says(&verb(&["train", "--resume", out.to_str().unwrap()]), "no unfinished run");
    assert!(!out.exists());
    // Killed at the very start: a folder with nothing in it, or with what a killed write left, a key in it.
    std::fs::create_dir_all(out.join(".ferret-killed")).unwrap();
    std::fs::write(out.join(".ferret-killed/key.json"), b"a key").unwrap();
    std::fs::write(out.join("log.jsonl"), b"").unwrap();
    ok(run(train(&data, &out, &[&fixed[..], &["--resume"]].concat())));
    assert_eq!(names(&out), names(&whole));
    let read = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert_eq!(read(&out), read(&whole));
    // A folder with anything else in it is nobody's run.
    let full = dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("notes.txt"), b"mine").unwrap();
    says(&run(train(&data, &full, &[&fixed[..], &["--resume"]].concat())), "not empty");
}

/// Killed while the key is wiped, before or after, while the state goes: --resume ends it, and nothing is computed again.
#[test]
fn killed_at_the_very_end_a_run_is_ended_by_resume() {
    let dir = tempfile::tempdir().unwrap();
    let (data, whole) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("whole"));
    let fixed = ["--insecure-seed", "1", "--max-steps", "40"];
    let summary = ok(run(train(&data, &whole, &fixed)));
    let others = records(dir.path(), "others.jsonl", 9, 5);
    let audited = [&fixed[..], &["--audit", others.to_str().unwrap(), "--audit-records", "5"]].concat();
    let folder = dir.path().join("ending");
    let mut command = train(&data, &folder, &audited);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.join("privacy.json").exists() || folder.join("state/key.json").exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the end was never seen");
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if folder.join("state/told.json").exists() {
        // The key half wiped: zeros where it was, and the file still there.
        std::fs::write(folder.join("state/key.json"), [0; 100]).unwrap();
        std::fs::set_permissions(folder.join("state/key.json"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let again = ok(verb(&["train", "--resume", folder.to_str().unwrap()]));
    assert!(again["audit"].is_object() && folder.join("audit").is_dir(), "the audit that was asked for is done too");
    assert_eq!(again["bits"], summary["bits"]);
    assert!(!folder.join("state").exists());
    let read = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert_eq!(read(&folder), read(&whole));
    says(&verb(&["train", "--resume", folder.to_str().unwrap()]), "finished");
    // Killed between the removal of the last file and of its folder.
    std::fs::create_dir(whole.join("state")).unwrap();
    says(&run(train(&data, &whole, &[&fixed[..], &["--resume"]].concat())), "finished");
    assert!(!whole.join("state").exists());
}

/// A run begun to its end and resumed with --max-steps would state what fewer steps spend: it is refused, and states what was planned.
#[test]
fn when_a_run_stops_is_part_of_its_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3, 3), dir.path().join("tuned"));
    assert_eq!(stopped(train(&data, &out, &LONG), &out, 2, "-INT").status.code(), Some(130));
    let fewer = [&LONG[..], &["--resume", "--max-steps", "2000"]].concat();
    says(&run(train(&data, &out, &fewer)), "was begun to stop after 4000 steps, now it is 2000");
    let summary = ok(run(train(&data, &out, &[&LONG[..], &["--resume"]].concat())));
    assert_eq!((summary["steps"].as_u64(), summary["steps_planned"].as_u64()), (Some(4000), Some(4000)));
    // 600 nats at s = 0.05 are 17,312 bits.
    assert_eq!(summary["bits"], 17_312);
}
