//! The study of a real model: split by hash, all methods for all weights and an adapter, answers, planted secrets, the figure, the hours.

use crate::io_support::{assert_refused, ferret, stderr};
use ferret::data::Example;
use ferret::study::real::{FREQUENCIES, ProbePlan, Source};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

const GRID: &str = r#"
kind = "real"
budgets = [8.0]
epochs = [1]
batches = [8]
tune = ["all", "lora:2"]
seeds = 1
candidates = 40
audited = 6
learning_rates = 1
asked = { longest = 60, answers = 2, canaries = 1 }
"#;

/// `n` records with a question and a short answer, two of them the same.
fn records(n: usize) -> Vec<String> {
    let names = ["Ana", "Ben", "Cleo", "Dov", "Eli", "Fay", "Gus"];
    let record = |i: usize| {
        let (name, thing) = (names[i % 7], ["key", "lamp", "boat", "coat", "drum"][i / 7 % 5]);
        let prompt = format!("user: Where is the {thing} of {name} {i}?\nassistant:");
        json!({"prompt": prompt, "response": format!(" room {}", i * i % 37)}).to_string()
    };
    (0..n).map(|i| record(if i == 1 { 0 } else { i })).collect()
}

fn folder(grid: &str, records: &[String]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("grid.toml"), grid).unwrap();
    std::fs::write(dir.path().join("records.jsonl"), records.join("\n") + "\n").unwrap();
    dir
}

fn study(dir: &Path) -> Command {
    let mut command = ferret(dir);
    command.args(["study", "--grid", "grid.toml", "--data", "records.jsonl", "--out", "out", "--quiet"]);
    command
}

fn asked() -> ProbePlan {
    ProbePlan { longest: 60, answers: 5, canaries: 2 }
}

#[test]
fn where_a_record_goes_depends_on_itself_and_the_seed() {
    let all = records(120);
    let dir = folder(GRID, &all);
    let open = || Source::open("embedded", &dir.path().join("records.jsonl"), 60).unwrap();
    let source = open();
    let mut sides: Vec<HashSet<Vec<u32>>> = Vec::new();
    for seed in [1, 2] {
        let world = source.world(seed, 50, asked()).unwrap();
        let ids = |list: &[Example]| -> HashSet<Vec<u32>> { list.iter().map(|e| e.ids.clone()).collect() };
        let (members, others, tuning) = (ids(world.own_members()), ids(&world.nonmembers), ids(&world.tuning));
        assert_eq!(world.own_members().len() + world.nonmembers.len(), 50);
        assert!(members.len() > 10 && others.len() > 10 && tuning.len() > 20);
        assert!(members.is_disjoint(&others) && members.is_disjoint(&tuning) && others.is_disjoint(&tuning));
        // Secrets are among the members as often as they should be, and count on no side.
        let times: u32 = FREQUENCIES.iter().sum();
        assert_eq!((world.planted as u32, world.members.len()), (2 * times, world.own_members().len() + world.planted));
        sides.push(tuning);
        sides.push(members);
    }
    assert_eq!(sides[0], sides[2], "what is tuned on is the same for every seed");
    assert_ne!(sides[1], sides[3], "the coins are the seed's");
    // In another order, with a copy and records more, those that were tuned on still are, and no other of them.
    let mut more = records(150);
    more.reverse();
    more.push(all[5].clone());
    std::fs::write(dir.path().join("records.jsonl"), more.join("\n") + "\n").unwrap();
    let world = open().world(1, 1000, asked()).unwrap();
    let now: HashSet<Vec<u32>> = world.tuning.iter().map(|e| e.ids.clone()).collect();
    assert!(sides[0].is_subset(&now) && sides[1].is_disjoint(&now));
    let all = world.own_members().iter().chain(&world.nonmembers).chain(&world.tuning);
    assert_eq!(all.count(), 149, "a copy counts once");
}

#[test]
fn every_method_is_measured_asked_and_searched_for_secrets() {
    let dir = folder(GRID, &records(120));
    let output = study(dir.path()).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    // The base model, and five methods for two sets.
    assert_eq!(runs.len(), 1 + 5 * 2);
    for run in runs {
        assert_eq!(run["answers"]["asked"], 2, "{run}");
        let repeats: Vec<u64> =
            run["secrets"].as_array().unwrap().iter().map(|s| s["repeats"].as_u64().unwrap()).collect();
        assert_eq!(repeats, [0, 1, 4, 16]);
        assert!(run["secrets"].as_array().unwrap().iter().all(|s| s["secrets"] == 1));
    }
    let of = |row: &str| -> Vec<&Value> { runs.iter().filter(|r| r["row"] == row).collect() };
    for (row, unit, kind) in [
        ("non-private, all weights", "not private", "non-private"),
        ("DPSGD, LoRA rank 2", "eps at delta", "mutual-information"),
        ("FERRET-2, all weights", "nats", "mutual-information"),
        ("FERRET, exact, flipped, LoRA rank 2, B = 2", "nats", "mutual-information"),
        ("FERRET-k, all weights", "eps at delta", "mutual-information"),
    ] {
        assert_eq!(of(row).len(), 1, "{row}");
        assert_eq!((&of(row)[0]["unit"], &of(row)[0]["guarantees"][0]["kind"]), (&json!(unit), &json!(kind)), "{row}");
    }
    // Exact nats keep the budget.
    for run in of("FERRET, exact, flipped, all weights, B = 2") {
        assert!(run["guarantees"][0]["nats"].as_f64().unwrap() <= 0.5, "{run}");
    }
    assert_eq!(found["verdicts"].as_array().unwrap().len(), 3);
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    let figure = read("released-1.svg");
    for row in ["FERRET-2, all weights", "DPSGD, LoRA rank 2", "non-private, all weights", "bytes released"] {
        assert!(figure.contains(row), "{row} is not in the figure");
    }
    let text = read("tables.txt");
    assert!(text.contains("Planted secrets, 1 epoch") && text.contains("What each method made of the model"), "{text}");
    assert!(read("index.html").contains("Planted secrets"));
    // The same command again runs nothing, and says the same.
    let again = study(dir.path()).arg("--json").output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), found);
}

#[test]
fn hours_choose_the_largest_grid_that_fits() {
    let large = GRID
        .replace("budgets = [8.0]", "budgets = [8.0, 1.0]\nmethods = [\"nonprivate\", \"dpsgd\"]")
        .replace("epochs = [1]", "epochs = [1, 2]")
        .replace("\"all\", ", "")
        .replace("seeds = 1", "seeds = 2");
    let dir = folder(&large, &records(120));
    let plan = |hours: &str| -> Value {
        let output = study(dir.path()).args(["--dry-run", "--json", "--jobs", "1", "--hours", hours]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let whole = plan("1000");
    assert_eq!(whole["left_out"], json!([]));
    // Non-private and DPSGD at two budgets, at two lengths, with the base model; by two seeds.
    assert_eq!(whole["result_runs"], 2 * (1 + 2 * (1 + 2)));
    let hours = whole["seconds"].as_f64().unwrap() / 3600.0;
    let less = plan(&format!("{}", 0.45 * hours));
    let left = less["left_out"].as_array().unwrap();
    assert_eq!(left[0], "runs of 2 epochs", "{left:?}");
    assert!(less["result_runs"].as_u64() < whole["result_runs"].as_u64());
    let output = study(dir.path()).args(["--dry-run", "--hours", "1e-9"]).output().unwrap();
    assert_refused("no time at all", &output, &["--hours", "smallest grid"]);
    let output = study(dir.path()).args(["--dry-run", "--hours", "0"]).output().unwrap();
    assert_refused("no hours", &output, &["--hours", "above 0"]);
    assert!(!dir.path().join("out").exists());
    let output = ferret(dir.path()).args(["study", "--grid", "real"]).output().unwrap();
    assert_refused("no records", &output, &["--data", "--model"]);
}
