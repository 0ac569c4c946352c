//! Records that stay on their rank: `--data shard-{rank}.jsonl`.

use super::*;

/// As many shards as ranks, apart from each other, and the name that stands for them.
fn shards(dir: &Path, ranks: usize) -> PathBuf {
    let all = std::fs::read_to_string(records(dir, "all.jsonl", 3)).unwrap();
    let mut seen = std::collections::HashSet::new();
    let lines: Vec<&str> = all.lines().filter(|line| seen.insert(*line)).collect();
    for rank in 0..ranks {
        // Of different sizes.
        let own: Vec<&str> =
            lines.iter().enumerate().filter(|(i, _)| (i + i / 7) % (ranks + 1) % ranks == rank).map(|l| *l.1).collect();
        std::fs::write(dir.join(format!("shard-{rank}.jsonl")), own.join("\n")).unwrap();
    }
    dir.join("shard-{rank}.jsonl")
}

/// What lies beside the folders of runs: no key of a rank, once they are over.
fn keys(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("key")).collect()
}

#[test]
fn ranks_with_a_shard_each_give_the_same_bytes_again_and_state_what_they_trust() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dpsgd: &[&str] = &["--method", "dpsgd", "--noise-multiplier", "1", "--learning-rate", "1e-3"];
    let many: &[&str] = &["--method", "ferret-k", "--dp-epsilon", "8", "--epochs", "2"];
    for (name, ranks, method) in [
        ("ferret", 2, &FERRET_MAX[..]),
        ("ferret", 4, &FERRET_MAX),
        ("ferret-k", 3, many),
        ("dpsgd", 2, dpsgd),
        ("nonprivate", 2, &["--method", "nonprivate"]),
    ] {
        let data = shards(dir.path(), ranks);
        let outs = [0, 1].map(|time| dir.path().join(format!("{name}-{ranks}-{time}")));
        for out in &outs {
            let args = train(&data, out, &[method, &["--insecure-seed", "1"]].concat());
            ok(end(on_ranks(ranks, &args)));
        }
        let what = format!("{name} on {ranks} ranks");
        match name {
            // Its log tells how long a step took.
            "nonprivate" => assert!(numbers(&outs[0]) == numbers(&outs[1]), "{what}"),
            _ => same_files(&outs[0], &outs[1], &what),
        }
        assert_ne!(numbers(&outs[0]), numbers(Path::new(&fixture("gpt2_tiny"))), "{what}");
        let statement: Value = serde_json::from_slice(&std::fs::read(outs[0].join("privacy.json")).unwrap()).unwrap();
        let lines: usize = (0..ranks)
            .map(|r| std::fs::read_to_string(dir.path().join(format!("shard-{r}.jsonl"))).unwrap().lines().count())
            .sum();
        assert_eq!((&statement["shards"], &statement["records"]), (&json!(ranks), &json!(lines)), "{what}");
        assert!(statement["assumptions"].to_string().contains("secure aggregation is not done"), "{what}");
        let log = std::fs::read_to_string(outs[0].join("log.jsonl")).unwrap();
        assert_eq!(log.contains("loss"), name == "nonprivate", "{what}");
    }
    assert_eq!(keys(dir.path()), Vec::<String>::new());
}

/// With keys from the system: stopped, gone on with, verified.
#[test]
fn a_private_run_in_shards_is_killed_goes_on_and_verifies() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (shards(dir.path(), 3), dir.path().join("tuned"));
    let long = ["--method", "ferret-max", "--epsilon", "150", "--epochs", "20", "--learning-rate", "1e-3", "--resume"];
    let args = train(&data, &out, &long);
    let mut random = Random::new(5);
    let mut lines = 0;
    for _ in 0..3 {
        let after = Duration::from_millis(random.below(40) as u64);
        let (output, _) = interrupted(on_ranks(3, &args), &out, lines + 3, after, Some(random.below(3)), "KILL");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !stderr.contains("panicked") && stderr.contains("has died"), "{stderr}");
        lines = std::fs::read_to_string(out.join("log.jsonl")).map_or(0, |log| log.lines().count());
        assert_eq!(keys(dir.path()).len(), 3, "every rank keeps its key");
    }
    // Neither another number of ranks, nor the shards in another order, nor all records in one place.
    all_say(&end(on_ranks(2, &args)), 2, "a run in shards goes on with as many ranks");
    let (one, two) = (dir.path().join("shard-1.jsonl"), dir.path().join("shard-2.jsonl"));
    let swap = dir.path().join("swap");
    let exchange = || {
        std::fs::rename(&one, &swap).unwrap();
        std::fs::rename(&two, &one).unwrap();
        std::fs::rename(&swap, &two).unwrap();
    };
    exchange();
    all_say(&end(on_ranks(3, &args)), 3, "is of another shard");
    exchange();
    let summary = ok(end(on_ranks(3, &args)));
    assert_eq!(summary["private"], json!(true));
    assert_eq!(keys(dir.path()), Vec::<String>::new());
    let args = ["verify", out.to_str().unwrap(), "--base", &fixture("gpt2_tiny"), "--json"].map(String::from);
    let verified = ok(end(alone(&args)));
    assert!(verified["not_checkable"].to_string().contains("lay on 3 ranks"), "{verified}");
}

#[test]
fn shards_that_overlap_or_would_tell_more_are_refused() {
    if !have_mpi() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (shards(dir.path(), 3), dir.path().join("tuned"));
    let run = |extra: &[&str]| train(&data, &out, &[&FERRET_MAX[..], &["--insecure-seed", "1"], extra].concat());
    all_say(&end(on_ranks(3, &run(&["--sampler", "uniform"]))), 3, "set --sampler poisson");
    all_say(&end(on_ranks(3, &run(&["--log-private"]))), 3, "--log-private would tell");
    let audit = ["--audit", dir.path().join("all.jsonl").to_str().unwrap()].map(str::to_owned);
    all_say(&end(on_ranks(3, &[run(&[]), audit.to_vec()].concat())), 3, "--audit scores all records in one place");
    let output = end(alone(&run(&[])));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start several by mpirun"));
    all_say(&end(on_ranks(4, &run(&[]))), 4, "shard-3.jsonl: there is no such file");
    // One record of rank 0 is in the shard of rank 2 too.
    let (first, last) = (dir.path().join("shard-0.jsonl"), dir.path().join("shard-2.jsonl"));
    let line = std::fs::read_to_string(&first).unwrap().lines().nth(4).unwrap().to_owned();
    std::fs::write(&last, std::fs::read_to_string(&last).unwrap() + "\n" + &line).unwrap();
    all_say(&end(on_ranks(3, &run(&[]))), 3, "the shards of ranks 0 and 2 have 1 records in common");
    // Scales from one rank's shard.
    let (private, k) = (dir.path().join("shard-1.jsonl"), ["--method", "ferret-k", "--noise-multiplier", "1"]);
    let args = train(&data, &out, &[&k[..], &["--scales-from", private.to_str().unwrap()]].concat());
    all_say(&end(on_ranks(3, &args)), 3, "are trained on too");
    // A rank whose records are one place, and the others' another.
    let mut command = launcher();
    command.args(["-n", "2", FERRET]).args(run(&[]));
    command.args([":", "-n", "1", FERRET]).args(run(&["--data", first.to_str().unwrap()]));
    let output = end(command);
    assert!(!output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("panicked"));
    assert!(!out.exists() && keys(dir.path()).is_empty());
}
