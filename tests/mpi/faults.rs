//! Ranks that differ, die, hang or are asked to stop.

use super::*;

#[test]
fn ranks_that_were_told_different_things_end_with_one_sentence_each() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (records(dir.path(), "records.jsonl", 3), records(dir.path(), "other.jsonl", 7));
    let out = dir.path().join("tuned");
    let method = [&FERRET_MAX[..], &["--insecure-seed", "1"]].concat();
    let args = train(&data, &out, &method);
    let with = |extra: &[&str]| [args.clone(), extra.iter().map(|a| (*a).to_owned()).collect()].concat();
    let binary = dir.path().join("ferret");
    std::fs::copy(FERRET, &binary).unwrap();
    let mut bytes = std::fs::read(&binary).unwrap();
    bytes.push(0);
    std::fs::write(&binary, bytes).unwrap();
    let base = fixture("llama_tiny");
    for (program, args_of_1, sentence) in [
        (FERRET, with(&["--seed", "4"]), "rank 1 has another --seed than rank 0 (4, not 0)"),
        (FERRET, with(&["--insecure-seed", "4"]), "rank 1 has another --insecure-seed than rank 0"),
        (FERRET, with(&["--data", other.to_str().unwrap()]), "rank 1 has another set of records"),
        (FERRET, with(&["--model", &base]), "rank 1 has another base model"),
        (FERRET, with(&["--clip", "2"]), "rank 1 has another list of settings"),
        (FERRET, with(&["--max-steps", "3"]), "rank 1 has another --max-steps than rank 0 (3, not 36)"),
        (FERRET, with(&["--data", "nowhere.jsonl"]), "nowhere.jsonl: there is no such file"),
        (binary.to_str().unwrap(), args.clone(), "rank 1 has another build of this program"),
    ] {
        let mut command = launcher();
        command.args(["-n", "1", FERRET]).args(&args).args([":", "-n", "1", program]).args(&args_of_1);
        command.args([":", "-n", "1", FERRET]).args(&args);
        all_say(&end(command), 3, sentence);
        assert!(!out.exists(), "{sentence}");
    }
    // What only the first rank can see is every rank's sentence too.
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("something"), "of mine").unwrap();
    all_say(&end(on_ranks(2, &args)), 2, "is not empty, and nothing there is overwritten");
}

/// Lines of the log of an unfinished run, and how many of them are of steps that its state has.
fn saved(out: &Path) -> (usize, usize) {
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap_or_default();
    let steps: Vec<u64> = log.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()?["step"].as_u64()).collect();
    let pointer = std::fs::read_to_string(out.join("state/saved/current.json")).unwrap_or_default();
    let next = serde_json::from_str::<Value>(&pointer).ok().and_then(|p| p["step"].as_u64()).unwrap_or(0);
    (steps.len(), steps.iter().filter(|step| **step < next).count())
}

/// Killed at ten moments, each of which ends all ranks; gone on with on any number of them, to the bytes of one process.
#[test]
fn a_run_whose_ranks_are_killed_goes_on_at_any_number_of_ranks_to_the_same_bytes() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3);
    let mut random = Random::new(11);
    let dpsgd = ["--method", "dpsgd", "--noise-multiplier", "1", "--learning-rate", "1e-3", "--epochs", "12"];
    let bits = ["--method", "ferret-max", "--epsilon", "150", "--epochs", "20", "--learning-rate", "1e-3"];
    for (name, method, kills) in [("bits", bits, 10), ("dpsgd", dpsgd, 3)] {
        let method = [&method[..], &["--insecure-seed", "1", "--checkpoint-every", "5", "--resume"]].concat();
        let one = dir.path().join(name);
        // Whole updates have the bits of their number of ranks.
        match name {
            "bits" => ok(end(alone(&train(&data, &one, &method)))),
            _ => ok(end(on_ranks(3, &train(&data, &one, &method)))),
        };
        let out = dir.path().join(format!("{name}-killed"));
        let args = train(&data, &out, &method);
        let (mut killed, mut lines, mut kept) = (0, 0, 0);
        for time in 0..kills {
            let ranks = if name == "bits" { 2 + time % 3 } else { 3 };
            let after = Duration::from_millis(random.below(60) as u64);
            let (output, fewest) =
                interrupted(on_ranks(ranks, &args), &out, lines + 3, after, Some(random.below(4)), "KILL");
            assert!(fewest >= kept, "{name}: it went on after {fewest} steps, and {kept} were saved");
            if output.status.success() {
                break;
            }
            (lines, kept) = saved(&out);
            // Bits are saved at every step, and the last line may have been written before its step was saved.
            assert!(kept + if name == "bits" { 1 } else { 5 } >= lines, "{name}: {kept} of {lines} steps are saved");
            killed += 1;
            let stderr = String::from_utf8_lossy(&output.stderr);
            let said = stderr.lines().filter(|l| l.starts_with("ferret: rank ") && l.contains("has died")).count();
            assert!(said == ranks - 1 && !stderr.contains("panicked"), "{said} of {ranks}: {stderr}");
            assert!(!out.join("model.safetensors").exists() && out.join("state/told.json").exists());
        }
        assert_eq!(killed, kills, "so many kills came before the end");
        if out.join("state").exists() {
            ok(end(on_ranks(3, &args)));
        }
        same_files(&one, &out, name);
    }
}

#[test]
fn ctrl_c_on_mpirun_saves_and_one_process_goes_on() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = records(dir.path(), "records.jsonl", 3);
    // Long enough to be stopped on the way.
    let method = [&FERRET_MAX[..], &["--insecure-seed", "1", "--epochs", "30", "--epsilon", "200"]].concat();
    let (one, out) = (dir.path().join("one"), dir.path().join("tuned"));
    ok(end(alone(&train(&data, &one, &method))));
    let args = train(&data, &out, &method);
    let (output, _) = interrupted(on_ranks(2, &args), &out, 3, Duration::ZERO, None, "INT");
    all_say(&output, 2, "they are saved, and --resume continues");
    ok(end(alone(&["train", "--resume", out.to_str().unwrap()].map(String::from))));
    same_files(&one, &out, "saved by two, finished by one");
}

#[test]
fn a_rank_that_hangs_is_given_up_on() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3), dir.path().join("tuned"));
    let args = train(&data, &out, &[&FERRET_MAX[..], &["--insecure-seed", "1"]].concat());
    let mut command = on_ranks(3, &args);
    command.env("FERRET_MPI_PATIENCE", "2");
    let (output, _) = interrupted(command, &out, 3, Duration::ZERO, Some(1), "STOP");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("waited 2 s for the others"), "{stderr}");
    assert!(out.join("state/told.json").exists());
    let mut command = on_ranks(2, &args);
    command.env("FERRET_MPI_PATIENCE", "soon");
    let output = end(command);
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected a number of seconds"));
}

/// The key is the system's: what two ranks drew from it is one secret, kept by the first, and gone at the end.
#[test]
fn a_private_run_on_ranks_verifies_and_leaves_no_key() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (records(dir.path(), "records.jsonl", 3), dir.path().join("tuned"));
    // Long enough to be stopped on the way.
    let args = train(&data, &out, &[&FERRET_MAX[..], &["--epochs", "30", "--epsilon", "200"]].concat());
    let (output, _) = interrupted(on_ranks(3, &args), &out, 3, Duration::ZERO, None, "INT");
    all_say(&output, 3, "they are saved");
    assert!(out.join("state/key.json").exists());
    let resume = ["train", "--resume", out.to_str().unwrap()].map(String::from);
    let summary = ok(end(on_ranks(2, &resume)));
    assert_eq!(summary["private"], json!(true));
    assert!(!out.join("state").exists());
    let args = ["verify", out.to_str().unwrap(), "--base", &fixture("gpt2_tiny")].map(String::from);
    let output = end(alone(&args));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
    assert!(!log.contains("loss") && !log.contains("records"), "{log}");
}
