//! The study of what is tuned: every method on all weights, adapters and a few tensors, at one budget.

use crate::io_support::grid::{folder, study};
use crate::io_support::{assert_refused, stderr};
use serde_json::Value;

const GRID: &str = r#"
kind = "tune"
methods = ["ferret-2", "ferret-k", "dpsgd", "nonprivate"]
budgets = [2.0]
epochs = [1]
batches = [4]
tune = ["all", "lora:1", "lora:4", "bias", "last:1"]
seeds = 2
candidates = 60
audited = 20
learning_rates = 1
"#;

#[test]
fn every_method_tunes_every_set_for_the_same_price() {
    let dir = folder(GRID);
    let output = study(dir.path()).args(["--json", "--quiet"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * (1 + 4 * 5));
    let sets = ["all", "lora:1", "lora:4", "bias", "last:1"];
    let names = ["all weights", "LoRA rank 1", "LoRA rank 4", "bias", "last block"];
    let of = |method: &str, name: &str, seed: u64| {
        let row = format!("{method}, {name}");
        runs.iter().find(|r| r["row"] == row && r["seed"] == seed).unwrap_or_else(|| panic!("no {row}"))
    };
    for seed in [1, 2] {
        for (set, name) in sets.iter().zip(names) {
            // One set is one number of parameters, whoever tunes it.
            let tuned = of("DPSGD", name, seed)["tuned"].as_u64().unwrap();
            for method in ["FERRET-2", "FERRET-k", "DPSGD", "non-private"] {
                let run = of(method, name, seed);
                assert_eq!((run["tune"].as_str(), run["tuned"].as_u64()), (Some(*set), Some(tuned)));
                // What is promised is the budget's, not the set's: for FERRET the nats of its bits.
                assert_eq!(run["guarantees"], of(method, "all weights", seed)["guarantees"], "{method}, {name}");
            }
            assert_eq!(of("DPSGD", name, seed)["update_bits"], 32 * tuned);
            // As many bits, and from the same public mask.
            assert_eq!(of("FERRET-2", name, seed)["bits"], of("FERRET-2", "all weights", seed)["bits"]);
        }
        let size = |name: &str| of("DPSGD", name, seed)["tuned"].as_u64().unwrap();
        assert_eq!(size("LoRA rank 4"), 4 * size("LoRA rank 1"));
        assert!(size("bias") < size("all weights") && size("last block") < size("all weights"));
        // Another set is another result.
        let losses: Vec<String> =
            names.iter().map(|n| of("non-private", n, seed)["test_perplexity"].to_string()).collect();
        assert!((1..losses.len()).all(|i| !losses[..i].contains(&losses[i])), "{losses:?}");
    }
    let findings = found["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 4, "one a method: {findings:?}");
    let said = findings[0].as_str().unwrap();
    assert!(said.starts_with("FERRET-2 within 2 nats of mutual information") && said.contains(" bits; "), "{said}");
    let said = findings[2].as_str().unwrap();
    assert!(said.starts_with("DPSGD at (2, 1e-5)-differential privacy"), "{said}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert_eq!(read("tables.tex").matches("\\begin{table}").count(), 4);
    let page = read("index.html");
    for part in ["LoRA rank 4", "last block", "made the most of it", "tuned", "<svg"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    // The run of a set is another file than the run of all weights, and the same command runs nothing again.
    let again = study(dir.path()).arg("--json").output().unwrap();
    assert!(!stderr(&again).contains(", seed "), "{}", stderr(&again));
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), found);
}

#[test]
fn a_wrong_set_is_refused_in_a_sentence() {
    let dir = folder("");
    let cases: &[(&str, &[&str])] = &[
        ("kind = \"tune\"\ntune = [\"lora\"]", &["line 2", "lora:4"]),
        ("kind = \"tune\"\ntune = [\"lora:0\"]", &["line 2", "rank 0"]),
        ("kind = \"tune\"\ntune = [\"last:0\"]", &["line 2", "last:1"]),
        ("kind = \"tune\"\ntune = []", &["tune is empty"]),
        ("kind = \"tune\"\ntune = [\"bias\", \"bias\"]", &["tune: bias is named twice"]),
        ("kind = \"paper\"\ntune = [\"bias\"]", &["tune", "leave it out"]),
        ("kind = \"tune\"\nmethods = [\"ferret-flipped\"]", &["\"ferret-flipped\"", "ferret-2"]),
    ];
    for (text, says) in cases {
        std::fs::write(dir.path().join("grid.toml"), text).unwrap();
        let output = study(dir.path()).output().unwrap();
        assert_refused(text, &output, says);
    }
    std::fs::write(
        dir.path().join("grid.toml"),
        "kind = \"tune\"\ntune = [\"all\", \"h.9\"]\ncandidates = 60\nbatches = [4]\n",
    )
    .unwrap();
    let output = study(dir.path()).arg("--quiet").output().unwrap();
    assert_refused("a name of no tensor", &output, &["h.9", "names no tensor"]);
    assert!(!dir.path().join("out/index.html").exists());
}
