//! Audits and studies, whose pieces go to whoever is free: what they find is what one process finds.

use super::*;
use crate::io_support::grid::PAPER;
use std::collections::BTreeMap;

/// Every file below `dir`, by its name there.
fn below(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

/// What a JSON value tells beside how long it took and where it lies.
fn timeless(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !key.contains("seconds") && key != "out" && key != "command");
            map.values_mut().for_each(timeless);
        }
        Value::Array(list) => list.iter_mut().for_each(timeless),
        _ => {}
    }
}

fn without_times(bytes: &[u8]) -> Value {
    let mut value = serde_json::from_slice(bytes).unwrap();
    timeless(&mut value);
    value
}

#[test]
fn an_audit_with_shadow_models_finds_to_the_byte_what_one_process_finds() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (records(dir.path(), "in.jsonl", 3), records(dir.path(), "out.jsonl", 7));
    let tuned = dir.path().join("tuned");
    ok(end(alone(&train(&inside, &tuned, &["--method", "nonprivate", "--insecure-seed", "1", "--epochs", "2"]))));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (name, extra) in [
        ("threshold", &["--gradient-norm"][..]),
        ("ferret", &["--shadows", "4", "--shadow-method", "ferret-2", "--shadow-batch", "10"]),
        ("whole", &["--shadows", "4", "--shadow-batch", "10", "--shadow-cache"]),
    ] {
        let args = |out: &Path| -> Vec<String> {
            let base = fixture("gpt2_tiny");
            let mut args: Vec<String> =
                ["audit", "--base", &base, "--tuned", &text(&tuned), "--members"].map(String::from).to_vec();
            args.extend([
                text(&inside),
                "--nonmembers".into(),
                text(&outside),
                "--out".into(),
                text(out),
                "--json".into(),
            ]);
            args.extend(["--threads".into(), "1".into()]);
            args.extend(extra.iter().map(|a| (*a).to_owned()));
            if name == "whole" {
                args.push(text(&out.join("kept")));
            }
            args
        };
        let one = dir.path().join(name);
        let mut alone = ok(end(alone(&args(&one))));
        timeless(&mut alone);
        let files = below(&one);
        assert!(files.keys().any(|f| f.ends_with(".scores")) && files.len() > 6, "{:?}", files.keys());
        assert!(name != "ferret" || files.keys().any(|f| f.ends_with(".transcript.json")), "{:?}", files.keys());
        for ranks in [2, 3] {
            let out = dir.path().join(format!("{name}-{ranks}"));
            let mut found = ok(end(on_ranks(ranks, &args(&out))));
            timeless(&mut found);
            assert_eq!(found, alone, "{name} on {ranks} ranks");
            let there = below(&out);
            assert_eq!(there.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>(), "{name} on {ranks} ranks");
            for (file, bytes) in &files {
                let same = match file.ends_with("audit.json") || file.ends_with("report.json") {
                    true => without_times(bytes) == without_times(&there[file]),
                    false => *bytes == there[file],
                };
                assert!(same, "{name} on {ranks} ranks: {file} differs");
            }
            // Nothing is trained again, and the same is found.
            let mut again = ok(end(on_ranks(ranks, &args(&out))));
            timeless(&mut again);
            if name != "threshold" {
                assert_eq!(again["shadows"]["trained_now"], json!(0));
                again["shadows"]["trained_now"] = alone["shadows"]["trained_now"].clone();
            }
            assert_eq!(again, alone, "{name} again on {ranks} ranks");
        }
    }
    // Ranks that audit different records end by a sentence.
    let of = |members: &Path| -> Vec<String> {
        let base = fixture("gpt2_tiny");
        [
            "audit",
            "--base",
            &base,
            "--tuned",
            &text(&tuned),
            "--members",
            &text(members),
            "--nonmembers",
            &text(&outside),
        ]
        .map(String::from)
        .to_vec()
    };
    let mut command = launcher();
    command.args(["-n", "1", FERRET]).args(of(&inside)).args([":", "-n", "1", FERRET]).args(of(&outside));
    all_say(&end(command), 2, "rank 1 has another set of members");
}

/// Ranks that score a run's own records, continue prompts and take bits apart.
#[test]
fn an_audit_after_training_secrets_and_the_meter_find_what_one_process_finds() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    let text = (0..60).map(|i| json!({"text": format!("Note {i}: all quiet at gate {}.", 3 * i)}).to_string());
    std::fs::write(dir.join("plain.jsonl"), text.collect::<Vec<_>>().join("\n")).unwrap();
    let plant = "audit plant --data plain.jsonl --format Unit-{number}-has-#### --frequencies 0,2 --each 3 --out planted.jsonl --canaries list.json";
    let inside = |mut command: Command| {
        command.current_dir(dir);
        end(command)
    };
    let output = inside(alone(&words(plant)));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let train = "train --model embedded --data planted.jsonl --method ferret-max --epsilon 20 --learning-rate 1e-3 --batch 10 --epochs 2 --insecure-seed 1 --threads 1 --json \
                 --audit embedded:test:300 --audit-membership random-subset --out";
    let found = |ranks: usize, args: &str| {
        let mut found = ok(inside(match ranks {
            1 => alone(&words(args)),
            _ => on_ranks(ranks, &words(args)),
        }));
        timeless(&mut found);
        found
    };
    let one = found(1, &format!("{train} one"));
    assert_eq!((&one["audit"]["members"], &one["audit"]["nonmembers"]), (&json!(66), &json!(300)));
    let look = "audit canaries --base embedded --tuned one --canaries list.json --samples 4 --competitors 40 --threads 1 --json";
    let meter =
        "audit leakage --base embedded --tuned one --data planted.jsonl --seed 3 --micro-batch 2 --threads 1 --json";
    let (secrets, reading) = (found(1, look), found(1, meter));
    for ranks in [2, 3] {
        let mut there = found(ranks, &format!("{train} ranks-{ranks}"));
        there["audit"]["tuned"] = one["audit"]["tuned"].clone();
        assert_eq!(there, one, "train --audit on {ranks} ranks");
        let (files, others) = (below(&dir.join("one")), below(&dir.join(format!("ranks-{ranks}"))));
        assert_eq!(files.keys().collect::<Vec<_>>(), others.keys().collect::<Vec<_>>());
        assert!(files.keys().any(|f| f.ends_with(".scores")), "{:?}", files.keys());
        for (file, bytes) in files.iter().filter(|f| !f.0.ends_with("audit.json") && !f.0.ends_with("report.json")) {
            assert!(*bytes == others[file], "{file} differs on {ranks} ranks");
        }
        assert_eq!(found(ranks, look), secrets, "audit canaries on {ranks} ranks");
        assert_eq!(found(ranks, meter), reading, "audit leakage on {ranks} ranks");
    }
    // Ranks that were given different things take part, and end by a sentence.
    for (args, other, sentence) in [
        (look, look.replace("--samples 4", "--samples 5"), "rank 1 has another way of looking"),
        (meter, meter.replace("--micro-batch 2", "--micro-batch 3"), "rank 1 has another --micro-batch"),
    ] {
        let mut command = launcher();
        command.current_dir(dir).args(["-n", "1", FERRET]).args(words(args));
        command.args([":", "-n", "1", FERRET]).args(words(&other));
        all_say(&end(command), 2, sentence);
    }
}

#[test]
fn a_study_on_ranks_stores_the_runs_of_one_process_and_goes_on_after_a_kill() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, grid) = (records(dir.path(), "records.jsonl", 3), dir.path().join("grid.toml"));
    std::fs::write(&grid, PAPER).unwrap();
    let args = |out: &Path| -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let base = fixture("gpt2_tiny");
        ["study", "--grid", &text(&grid), "--data", &text(&data), "--model", &base, "--out", &text(out)]
            .into_iter()
            .chain(["--insecure-seed", "1", "--threads", "1", "--json"])
            .map(String::from)
            .collect()
    };
    let one = dir.path().join("one");
    let mut alone = ok(end(alone(&args(&one))));
    let mut compare = |found: Value, out: &Path, what: &str| {
        let (runs, there) = (below(&one.join("runs")), below(&out.join("runs")));
        assert_eq!(runs.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>(), "{what}");
        assert_eq!(runs.len(), 22);
        for (file, bytes) in &runs {
            assert_eq!(without_times(bytes), without_times(&there[file]), "{what}: {file}");
        }
        // Verdicts on time are of the clock; what runs gave is not.
        let mut found = found;
        for value in [&mut found, &mut alone] {
            timeless(value);
        }
        assert_eq!(found["runs"], alone["runs"], "{what}");
    };
    for ranks in [2, 3] {
        let out = dir.path().join(format!("ranks-{ranks}"));
        let found = ok(end(on_ranks(ranks, &args(&out))));
        compare(found, &out, &format!("{ranks} ranks"));
    }
    // A rank dies on the way: what is finished is kept, and nothing is run twice.
    let out = dir.path().join("killed");
    let mut command = on_ranks(3, &args(&out));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let kept = || std::fs::read_dir(out.join("runs")).map_or(0, Iterator::count);
    let start = Instant::now();
    while kept() < 4 && start.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let all = processes(child.id());
    signal(all[1 % all.len()], "KILL");
    let output = wait(child);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("has died"));
    let there = below(&out.join("runs"));
    assert!(there.len() >= 4 && there.len() < 22, "{}", there.len());
    let found = ok(end(on_ranks(2, &args(&out))));
    for (file, bytes) in there {
        assert!(std::fs::read(out.join("runs").join(&file)).unwrap() == bytes, "{file} was written again");
    }
    compare(found, &out, "killed and gone on with");
}
