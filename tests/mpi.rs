//! Many processes on one run, started by a real `mpirun` on this machine: the bytes of one process, and ends that say why.
#![cfg(all(feature = "mpi", feature = "cli", target_os = "linux"))]

mod common;
#[path = "mpi/faults.rs"]
mod faults;
mod io_support;
#[path = "mpi/pieces.rs"]
mod pieces;
#[path = "mpi/shards.rs"]
mod shards;

use common::Random;
use io_support::ok;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const FERRET: &str = env!("CARGO_BIN_EXE_ferret");

/// Whether there is an `mpirun`; where there must be one, there is.
fn have_mpi() -> bool {
    let found = Command::new("mpirun").arg("--version").output().is_ok_and(|o| o.status.success());
    assert!(found || std::env::var_os("FERRET_REQUIRE_MPI").is_none(), "mpirun is not found");
    if !found {
        eprintln!("skipped: mpirun is not found");
    }
    found
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).to_str().unwrap().to_owned()
}

/// Records of different lengths; those of another seed share none with them.
fn records(dir: &Path, name: &str, seed: u64) -> PathBuf {
    let mut random = Random::new(seed);
    let lines: Vec<String> = (0..120)
        .map(|_| {
            let (first, len) = (random.below(100), 3 + random.below(20));
            json!({"tokens": (0..len as u64).map(|i| (first as u64 + seed * i) % 101).collect::<Vec<_>>()}).to_string()
        })
        .collect();
    let path = dir.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

const FERRET_MAX: [&str; 8] = ["--method", "ferret-max", "--epsilon", "20", "--epochs", "3", "--learning-rate", "1e-3"];

/// The arguments of a run that takes some 36 steps of 10 records, 3 at a time.
fn train(data: &Path, out: &Path, method: &[&str]) -> Vec<String> {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut args: Vec<String> =
        ["train", "-e1", "--batch", "10", "--micro-batch", "3", "--threads", "1", "--json"].map(String::from).to_vec();
    args.extend(["--model".into(), fixture("gpt2_tiny"), "--data".into(), text(data), "--out".into(), text(out)]);
    args.extend(method.iter().map(|a| (*a).to_owned()));
    args
}

fn launcher() -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    // Copies between processes by the kernel are not allowed everywhere.
    command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command
}

fn on_ranks(ranks: usize, args: &[String]) -> Command {
    let mut command = launcher();
    command.args(["-n", &ranks.to_string(), FERRET]).args(args);
    command
}

fn alone(args: &[String]) -> Command {
    let mut command = Command::new(FERRET);
    command.args(args);
    command
}

/// Start, and give up on it after ten minutes: what should end must not hang.
fn end(mut command: Command) -> Output {
    wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn wait(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(600) {
            child.kill().unwrap();
            panic!("it hangs: {}", String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Every one of `ranks` says `sentence`, and the whole fails.
fn all_say(output: &Output, ranks: usize, sentence: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !stderr.contains("panicked"), "{stderr}");
    for rank in 0..ranks {
        let said =
            stderr.lines().filter(|l| l.starts_with(&format!("ferret: rank {rank} of {ranks}: "))).collect::<Vec<_>>();
        assert!(said.len() == 1 && said[0].contains(sentence), "rank {rank} should say {sentence:?} once: {stderr}");
    }
}

/// Every file that a finished run leaves, with its bytes.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|e| e.unwrap().path())
        .map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&p).unwrap_or_default()))
        .collect();
    found.sort();
    found
}

fn same_files(a: &Path, b: &Path, what: &str) {
    let (a, b) = (files(a), files(b));
    let names = |of: &[(String, Vec<u8>)]| of.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b), "{what}");
    assert!(a.len() > 5 && a.iter().any(|f| f.0 == "model.safetensors" && f.1.len() > 10_000), "{what}");
    for (a, b) in a.iter().zip(&b) {
        assert!(a.1 == b.1, "{what}: {} differs", a.0);
    }
}

/// The summary without what names the folder.
fn told(mut summary: Value) -> Value {
    summary["out"] = Value::Null;
    summary
}

/// Take out of a private log how long each step took.
fn forget_times(out: &Path) {
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    let lines = log.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["seconds"] = Value::Null;
        line.to_string()
    });
    std::fs::write(out.join("log.jsonl"), lines.collect::<Vec<_>>().join("\n")).unwrap();
}

#[test]
fn ferret_and_ferret_k_give_the_bytes_of_one_process_at_any_number_of_ranks() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, held_out) = (records(dir.path(), "records.jsonl", 3), records(dir.path(), "held-out.jsonl", 7));
    let held_out = held_out.to_str().unwrap();
    let common = ["--insecure-seed", "1", "--eval-data", held_out];
    let bits = [&FERRET_MAX[..], &common, &["--batch-per", "bit", "--release", "rr", "--flip", "0.1", "--log-private"]]
        .concat();
    let jvp = [&FERRET_MAX[..], &common, &["--engine", "jvp", "--log-private"]].concat();
    let plain = [&FERRET_MAX[..], &common].concat();
    let many = [&["--method", "ferret-k", "--dp-epsilon", "8", "--epochs", "2"][..], &common].concat();
    // So many sums that each rank adds up a part of them.
    let wide = [&many[..], &["--bits-per-step", "9001"]].concat();
    let signs = [&many[..], &["--release", "sign"]].concat();
    // Each rank finds the scales for itself.
    let scaled = [&many[..], &["--scales-from", held_out]].concat();
    for (name, method) in [
        ("plain", plain),
        ("bits", bits),
        ("jvp", jvp),
        ("ferret-k", many),
        ("ferret-k-wide", wide),
        ("ferret-k-signs", signs),
        ("ferret-k-scaled", scaled),
    ] {
        let one = dir.path().join(name);
        let summary = ok(end(alone(&train(&data, &one, &method))));
        for ranks in 1..=4 {
            let out = dir.path().join(format!("{name}-{ranks}"));
            let found = ok(end(on_ranks(ranks, &train(&data, &out, &method))));
            let what = format!("{name} on {ranks} ranks");
            let (mut found, mut summary) = (told(found), told(summary.clone()));
            // Private logs tell how long a step took.
            (found["seconds"], summary["seconds"]) = (Value::Null, Value::Null);
            assert_eq!(found, summary, "{what}");
            // Losses have the order in which they are added up in their last digits.
            if ["bits", "jvp"].contains(&name) {
                [&one, &out].into_iter().for_each(|out| forget_times(out));
            }
            same_files(&one, &out, &what);
        }
    }
}

/// Where one rank can do less, all compute as it does: as one process that is told to.
#[test]
fn ranks_compute_by_the_instructions_that_all_have() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3);
    let method = [&FERRET_MAX[..], &["--insecure-seed", "1", "--log-private"]].concat();
    let outs = ["one", "two"].map(|name| dir.path().join(name));
    let mut one = alone(&train(&data, &outs[0], &method));
    one.env("FERRET_ISA", "portable");
    ok(end(one));
    let args = train(&data, &outs[1], &method);
    let mut two = launcher();
    two.args(["-n", "1", FERRET]).args(&args);
    two.args([":", "-n", "1", "env", "FERRET_ISA=portable", FERRET]).args(&args);
    ok(end(two));
    outs.iter().for_each(|out| forget_times(out));
    same_files(&outs[0], &outs[1], "a rank that has no instructions beyond the portable");
}

/// The numbers of a model, in the order of its file.
fn numbers(out: &Path) -> Vec<f32> {
    let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + head..].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

/// Whole updates are summed rank by rank: near one process, and the same bits each time.
#[test]
fn whole_updates_are_within_rounding_of_one_process_and_repeat_on_as_many_ranks() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3);
    let base = numbers(Path::new(&fixture("gpt2_tiny")));
    let dpsgd: &[&str] = &["--method", "dpsgd", "--noise-multiplier", "1", "--learning-rate", "1e-3", "--epochs", "2"];
    let votes: &[&str] = &["--method", "signsgd", "--variant", "majority-vote", "--learning-rate", "1e-3"];
    for (name, method) in
        [("dpsgd", dpsgd), ("nonprivate", &["--method", "nonprivate", "--epochs", "2"]), ("votes", votes)]
    {
        let method = [method, &["--insecure-seed", "1", "--schedule", "constant"]].concat();
        let one = dir.path().join(name);
        ok(end(alone(&train(&data, &one, &method))));
        let tuned = numbers(&one);
        let length = |of: &dyn Fn(usize) -> f32| (0..tuned.len()).map(|i| f64::from(of(i)).powi(2)).sum::<f64>().sqrt();
        let moved = length(&|i| tuned[i] - base[i]);
        for ranks in [2, 3] {
            let outs = [0, 1].map(|time| dir.path().join(format!("{name}-{ranks}-{time}")));
            for out in &outs {
                ok(end(on_ranks(ranks, &train(&data, out, &method))));
            }
            assert!(numbers(&outs[0]) == numbers(&outs[1]), "{name}: two runs on {ranks} ranks differ");
            let there = numbers(&outs[0]);
            let off = length(&|i| there[i] - tuned[i]);
            // Votes are whole numbers: their sums do not round, and everything else is the same arithmetic.
            let most = if name == "votes" { 0.0 } else { 1e-3 * moved };
            assert!(moved > 0.01 && off <= most, "{name} on {ranks} ranks: off by {off} of {moved}");
        }
    }
}

/// The processes of the ranks that `mpirun` started, in no order.
fn processes(mpirun: u32) -> Vec<u32> {
    let parent = |process: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&process| parent(process) == Some(mpirun)).collect()
}

fn signal(process: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
}

/// Start a run, and signal one of its ranks, or the launcher, once the log has `lines` lines and `after` more has passed. Its end, and the fewest lines that the log had
/// meanwhile.
fn interrupted(
    mut command: Command,
    out: &Path,
    lines: usize,
    after: Duration,
    who: Option<usize>,
    name: &str,
) -> (Output, usize) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (start, mut fewest) = (Instant::now(), usize::MAX);
    while child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(300) {
        if let Ok(log) = std::fs::read_to_string(out.join("log.jsonl")) {
            fewest = fewest.min(log.lines().count());
            if log.lines().count() >= lines {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(after);
    match who {
        None => signal(child.id(), name),
        Some(at) => {
            let all = processes(child.id());
            if !all.is_empty() {
                signal(all[at % all.len()], name);
            }
        }
    }
    (wait(child), fewest)
}

#[test]
fn eval_is_shared_and_other_verbs_are_run_once() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3);
    let args = ["eval", "--model", &fixture("gpt2_tiny"), "--data", data.to_str().unwrap(), "--json", "--per-record"];
    let args = args.map(String::from);
    let one = ok(end(alone(&args)));
    assert!(one["record_losses"].as_array().unwrap().len() == 120);
    for ranks in 2..=4 {
        assert_eq!(ok(end(on_ranks(ranks, &args))), one);
    }
    let args = ["inspect", "--model", &fixture("gpt2_tiny"), "--json"].map(String::from);
    assert_eq!(ok(end(on_ranks(3, &args))), ok(end(alone(&args))));
}
