//! Studies: grids end to end on a tiny model, killed and resumed.

use crate::io_support::grid::{PAPER, folder, study};
use crate::io_support::{assert_refused, ferret, stderr, tiny};
use ferret::study::grid::{Basis, Grid, Kind, Runner, Store};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// The stored runs: name, content, time of writing.
fn runs(dir: &Path) -> BTreeMap<String, (String, SystemTime)> {
    let Ok(entries) = std::fs::read_dir(dir.join("out/runs")) else { return BTreeMap::new() };
    let entries = entries.map(|e| e.unwrap()).filter(|e| e.path().extension().is_some_and(|x| x == "json"));
    entries
        .map(|e| {
            let text = std::fs::read_to_string(e.path()).unwrap();
            (e.file_name().into_string().unwrap(), (text, e.metadata().unwrap().modified().unwrap()))
        })
        .collect()
}

/// How many runs a study says it has done.
fn told(stderr: &str) -> usize {
    stderr.lines().filter(|l| l.contains(", seed ")).count()
}

/// Of two rates the better one is at an edge: a third is tried beyond it, once, and told.
#[test]
fn a_rate_at_the_edge_is_followed_outwards() {
    let grid = PAPER.replace("seeds = 2", "seeds = 1\nmatched = false\nfurther_rates = 1");
    let grid = grid.replace("[\"ferret-2\", \"dpsgd\", \"nonprivate\"]", "[\"nonprivate\"]");
    let dir = folder(&grid);
    let rates = |dir: &Path| -> Vec<f64> {
        let runs = runs(dir).into_values().map(|(text, _)| serde_json::from_str::<Value>(&text).unwrap());
        let tuning = runs.filter(|run| run["spec"]["part"] == "tuning");
        let mut rates: Vec<f64> = tuning.map(|run| run["spec"]["learning_rate"].as_f64().unwrap()).collect();
        rates.sort_by(f64::total_cmp);
        rates
    };
    let output = study(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // Three to choose by, the base model, and one result.
    let tried = rates(dir.path());
    assert_eq!((tried.len(), told(&stderr(&output))), (3, 5), "{}", stderr(&output));
    assert!(tried.windows(2).all(|w| (w[1] / w[0] - 3.0).abs() < 1e-9), "{tried:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(tried.iter().all(|rate| text.contains(&format!("{rate:.2e}"))), "{text}");
    let again = study(dir.path()).output().unwrap();
    assert_eq!((told(&stderr(&again)), rates(dir.path())), (0, tried));
    // What was chosen, given to a study that begins anew: the base model and the result, and nothing is tried.
    let file = dir.path().join("out/rates.toml");
    let chosen = std::fs::read_to_string(&file).unwrap();
    #[cfg(unix)]
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions()) & 0o077, 0);
    std::fs::remove_dir_all(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("grid.toml"), grid + &chosen).unwrap();
    let given = study(dir.path()).output().unwrap();
    assert_eq!((told(&stderr(&given)), rates(dir.path())), (2, Vec::new()), "{}", stderr(&given));
    assert!(String::from_utf8(given.stdout).unwrap().contains("given"));
}

#[test]
fn a_grid_runs_once_and_writes_every_table() {
    let dir = folder(PAPER);
    let output = study(dir.path()).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Five rows (three methods, two of them once more with matched steps) by two rates; they and the base model by two seeds.
    let before = runs(dir.path());
    assert_eq!((before.len(), told(&stderr(&output))), (10 + 12, 22));
    let results = summary["runs"].as_array().unwrap();
    assert_eq!(results.len(), 12);

    // A cell is the mean over its runs, beside the paper's own figure.
    let of = |row: &str, measure: &str| -> Vec<f64> {
        results.iter().filter(|r| r["row"] == row).map(|r| r[measure].as_f64().unwrap()).collect()
    };
    for (measure, theirs) in
        [("test_perplexity", 6.72), ("auc", 0.515), ("advantage", 0.027), ("seconds", 144.0), ("gap", 6.72 - 6.67)]
    {
        let cells = summary["cells"].as_array().unwrap();
        let cell = cells.iter().find(|c| c["row"] == "FERRET-2" && c["measure"] == measure).unwrap();
        let values = of("FERRET-2", measure);
        assert!((cell["ours"]["mean"].as_f64().unwrap() - (values[0] + values[1]) / 2.0).abs() < 1e-12);
        assert!((cell["ours"]["sd"].as_f64().unwrap() - (values[0] - values[1]).abs() / 2f64.sqrt()).abs() < 1e-9);
        assert!((cell["paper"].as_f64().unwrap() - theirs).abs() < 1e-9, "{cell}");
    }
    // Matched steps are those that FERRET computed with the same seed.
    let steps = |row: &str| -> Vec<u64> {
        results.iter().filter(|r| r["row"] == row).map(|r| r["steps_computed"].as_u64().unwrap()).collect()
    };
    assert_eq!(steps("FERRET-2"), steps("DPSGD, steps of FERRET-2"));
    assert_eq!(steps("FERRET-2"), steps("non-private, steps of FERRET-2"));
    assert!(steps("FERRET-2")[0] <= steps("DPSGD")[0]);
    // Nats stay nats.
    for run in results {
        let kinds: Vec<&str> =
            run["guarantees"].as_array().unwrap().iter().map(|g| g["kind"].as_str().unwrap()).collect();
        match run["row"].as_str().unwrap() {
            "FERRET-2" => assert_eq!((kinds, &run["unit"]), (vec!["mutual-information"], &Value::from("nats"))),
            "DPSGD" => {
                let both = vec!["mutual-information", "eps-delta"];
                assert_eq!((kinds, &run["unit"]), (both, &Value::from("eps at delta")));
            }
            "non-private" => assert_eq!(kinds, ["non-private"]),
            _ => {}
        }
    }
    assert_eq!(summary["verdicts"].as_array().unwrap().len(), 3);
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert!(read("tables.txt").replace('\n', " ").matches("the units differ").count() >= 5);
    assert!(read("tables.txt").lines().all(|l| l.chars().count() <= 100), "a line is wider than 100");
    assert_eq!(read("tables.csv").lines().count(), 1 + 5 * 6, "a line a cell and measure");
    assert!(read("tables.csv").contains("FERRET-2,4,1,1,nats,test_perplexity,"));
    assert_eq!(read("tables.tex").matches("\\begin{table}").count(), 6);
    let page = read("index.html");
    for part in ["H1 (utility)", "H3 (time)", "<svg", "Privacy statement", "ferret study --grid grid.toml"] {
        assert!(page.contains(part), "{part} is not in the page");
    }

    // Again: nothing is run, nothing is rewritten, the same is said.
    let again = study(dir.path()).arg("--json").output().unwrap();
    assert_eq!(told(&stderr(&again)), 0, "{}", stderr(&again));
    assert_eq!(runs(dir.path()), before);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), summary);

    // One seed more runs that seed alone.
    let more = study(dir.path()).args(["--seeds", "3"]).output().unwrap();
    assert_eq!(told(&stderr(&more)), 6, "{}", stderr(&more));
    // A stored run that was damaged is named.
    let name = before.keys().next().unwrap();
    std::fs::write(dir.path().join("out/runs").join(name), "{").unwrap();
    let output = study(dir.path()).arg("--quiet").output().unwrap();
    assert_refused("a damaged run", &output, &[name, "delete it"]);
}

#[test]
fn a_dry_run_lists_everything_and_writes_nothing() {
    let dir = folder(PAPER);
    let output = study(dir.path()).args(["--dry-run", "--json", "--quiet"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((plan["tuning_runs"].as_u64(), plan["result_runs"].as_u64()), (Some(10), Some(12)));
    assert!(plan["seconds"].as_f64().unwrap() > 0.0);
    assert!(plan["runs"].as_array().unwrap().iter().all(|r| r["seconds"].as_f64().unwrap() > 0.0));
    assert!(!dir.path().join("out").exists());
}

#[cfg(unix)]
#[test]
fn a_killed_study_goes_on_and_runs_nothing_twice() {
    for (signal, code) in [("-KILL", None), ("-INT", Some(130))] {
        let dir = folder(&PAPER.replace("seeds = 2", "seeds = 4"));
        let all = 10 + 24;
        let mut child =
            study(dir.path()).args(["--jobs", "2"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while runs(dir.path()).len() < 3 {
            assert!(child.try_wait().unwrap().is_none(), "ended before three runs were stored");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        let kept = runs(dir.path());
        assert!(kept.len() < all, "{signal} came too late to matter");
        let output = study(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(told(&stderr(&output)), all - kept.len(), "{signal}: {}", stderr(&output));
        let after = runs(dir.path());
        assert_eq!(after.len(), all);
        assert!(kept.iter().all(|(name, run)| after[name] == *run), "a finished run was written again");
    }
}

#[test]
fn readings_and_true_dp_run_end_to_end() {
    let small = "epochs = [1]\nbatches = [4, 1]\nseeds = 1\ncandidates = 60\naudited = 20\nlearning_rates = 1\n";
    let run = |kind: &str| -> (Value, String) {
        let dir = folder(&format!("kind = \"{kind}\"\n{small}"));
        let output = study(dir.path()).args(["--json", "--quiet", "--insecure-seed", "1"]).output().unwrap();
        assert!(output.status.success(), "{kind}: {}", stderr(&output));
        let text = std::fs::read_to_string(dir.path().join("out/tables.txt")).unwrap();
        (serde_json::from_slice(&output.stdout).unwrap(), text)
    };
    let (readings, text) = run("readings");
    // Three payloads by three update rules by two batch sizes, and the base model.
    assert_eq!(readings["runs"].as_array().unwrap().len(), 19);
    // A table that fits the terminal breaks its cells at blanks.
    assert!(text.contains("nats per") && text.contains("no bits"), "{text}");
    let rows: Vec<&str> = readings["runs"].as_array().unwrap().iter().map(|r| r["row"].as_str().unwrap()).collect();
    assert!(rows.iter().any(|row| row.contains("true gradient (not private)")), "{rows:?}");
    let bits = |row: &str| {
        let runs = readings["runs"].as_array().unwrap();
        runs.iter().find(|r| r["row"].as_str().unwrap().ends_with(row)).unwrap()["bits"].as_u64().unwrap()
    };
    assert!(bits("sphere, direct, B = 1") > 2 * bits("sphere, direct, B = 4"), "the same budget buys more bits");

    let (dp, text) = run("true-dp");
    // Flips and noise with two numbers of bits each, DPSGD and FERRET-k, by two batch sizes; the base model.
    assert_eq!(dp["runs"].as_array().unwrap().len(), 13);
    assert!(text.contains("flips ") && text.contains("dither ") && text.contains("noise "), "{text}");
    let finding = dp["findings"][0].as_str().unwrap();
    assert!(finding.contains("FERRET's perplexity is"), "{finding}");
    // Fixed sampling is not private, and says so.
    for run in dp["runs"].as_array().unwrap().iter().filter(|r| r["row"] != "base model") {
        assert_eq!(run["guarantees"][0]["kind"], "non-private", "{run}");
    }
}

#[test]
fn at_equal_nats_no_run_tells_more_and_none_computes_more() {
    let grid = "kind = \"equal-nats\"\nbudgets = [0.5, 2.0]\nbatches = [4, 1]\nepochs = [2]\nseeds = 2\ncandidates = 60\n\
                audited = 20\nlearning_rates = 1\n";
    let dir = folder(grid);
    let output = study(dir.path()).args(["--json", "--quiet"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = found["runs"].as_array().unwrap();
    // Two seeds of the base model, three counts by two batch sizes, FERRET-k and DPSGD, each at two budgets, and non-private training.
    assert_eq!(runs.len(), 2 * (1 + 2 * (3 * 2 + 2) + 1));
    let nats = |run: &Value| run["guarantees"][0]["nats"].as_f64();
    let of = |row: &str, budget: &str, seed: u64| {
        let is = |r: &&Value| r["row"] == row && r["budget"] == budget && r["seed"] == seed;
        runs.iter().find(is).unwrap_or_else(|| panic!("no {row} at {budget}"))
    };
    for seed in [1, 2] {
        let plain = of("non-private, B = 4", "inf", seed)["record_gradients"].as_u64().unwrap();
        for budget in ["0.5", "2"] {
            let most: f64 = budget.parse().unwrap();
            for batch in [4, 1] {
                let row = |how: &str| of(&format!("FERRET, {how}, B = {batch}"), budget, seed);
                let told = ["paper's count", "exact", "exact, flipped"].map(|how| nats(row(how)).unwrap());
                let bits = ["paper's count", "exact", "exact, flipped"].map(|how| row(how)["bits"].as_u64().unwrap());
                assert!(told.iter().all(|t| *t <= most), "{told:?} of {most}");
                // The paper's count leaves nats unspent, so that the exact one buys more bits, and flips more again.
                assert!(bits[0] <= bits[1] && bits[1] <= bits[2] && bits[0] < bits[2], "{bits:?}");
                assert!(row("exact, flipped")["record_gradients"].as_u64().unwrap() <= plain + 4);
            }
            for row in ["DPSGD, B = 4", "FERRET-k, B = 4"] {
                let told = nats(of(row, budget, seed)).unwrap();
                assert!(told <= most && told > 0.9 * most, "{row}: {told} of {most}");
            }
        }
    }
    assert_eq!(found["verdicts"].as_array().unwrap().len(), 3);
    let test = found["verdicts"][0]["test"].as_str().unwrap();
    assert!(test.contains("nats of mutual information for both"), "{test}");
    let text = std::fs::read_to_string(dir.path().join("out/tables.txt")).unwrap();
    assert!(text.replace('\n', " ").contains("At 0.5 nats, 2 epochs: FERRET"), "{text}");
}

#[test]
fn a_wrong_grid_is_refused_in_a_sentence() {
    let dir = folder("");
    let cases: &[(&str, &[&str])] = &[
        ("kind = \"papers\"", &["line 1", "papers", "`paper`"]),
        ("methods = [\"dpsgd\"]", &["kind"]),
        ("kind = \"paper\"\nepoch = [1]", &["line 2", "epoch", "epochs"]),
        ("kind = \"paper\"\nepochs = 3", &["line 2", "sequence"]),
        ("kind = \"paper\"\nepochs = [0]", &["epochs", "from 1"]),
        ("kind = \"paper\"\nbudgets = []", &["budgets is empty"]),
        ("kind = \"paper\"\nbudgets = [-1.0]", &["-1", "above 0"]),
        ("kind = \"paper\"\nmethods = [\"sgd\"]", &["\"sgd\"", "dpsgd"]),
        ("kind = \"readings\"\nmethods = [\"dpsgd\"]", &["\"dpsgd\"", "ferret-2"]),
        ("kind = \"true-dp\"\nbudgets = [inf]", &["inf", "paper"]),
        ("kind = \"paper\"\nbatches = [2000]", &["2000", "quarter"]),
        ("kind = \"paper\"\nseeds = 0", &["seeds is 0"]),
        ("kind = \"paper\"\ndelta = 2.0", &["delta is 2"]),
        ("kind = \"paper\"\nlearning_rates = 0", &["learning_rates is 0"]),
        ("kind = \"paper", &["line 1"]),
        ("kind = \"paper\"\nbudgets = [1.0, 0.5, 1.00]", &["budgets: 1 is named twice"]),
        ("kind = \"paper\"\nbudgets = [1.0, inf, inf]", &["budgets: inf is named twice"]),
        ("kind = \"paper\"\nepochs = [3, 1, 3]", &["epochs: 3 is named twice", "count twice"]),
        ("kind = \"paper\"\nbatches = [50, 50]", &["batches: 50 is named twice"]),
        ("kind = \"paper\"\nmethods = [\"dpsgd\", \"dpsgd\"]", &["methods: dpsgd is named twice"]),
        ("kind = \"true-dp\"\nnats = [4.0, 4.0]", &["nats: 4 is named twice"]),
        ("kind = \"paper\"\nmethods = [\"nonprivate\"]\nbudgets = [1.0]", &["nonprivate gets no run", "inf"]),
        ("kind = \"paper\"\nmatched = false\nbudgets = [1.0]", &["nonprivate gets no run", "matched"]),
        ("kind = \"paper\"\nmethods = [\"ferret-2\"]\nbudgets = [inf]", &["ferret-2 gets no run", "below inf"]),
        ("kind = \"paper\"\nmethods = [\"nonprivate\", \"dpsgd\"]\nbudgets = [inf]", &["dpsgd gets no run"]),
        // A quarter of 2^64, times 4, is 0.
        ("kind = \"paper\"\nbatches = [4611686018427387904]", &["4611686018427387904", "quarter"]),
    ];
    for (text, says) in cases {
        std::fs::write(dir.path().join("grid.toml"), text).unwrap();
        let output = study(dir.path()).output().unwrap();
        assert_refused(text, &output, says);
        assert_refused(text, &output, &["grid.toml"]);
    }
    let output = ferret(dir.path()).args(["study", "--grid", "papers"]).output().unwrap();
    assert_refused("an unknown name", &output, &["papers", "true-dp"]);
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_diverged_run_is_a_result_of_its_rate() {
    let dir = folder(PAPER);
    let (model, data) = (tiny(), dir.path().join("records.jsonl"));
    let grid = Grid::parse(PAPER).unwrap();
    let runner = Runner::new(model.to_str().unwrap(), Some(&data), (1, 1), &|| false);
    let fixed = Basis {
        base_sha256: runner.base_sha256().unwrap(),
        data: "records".into(),
        insecure_seed: Some(1),
        rates: HashMap::new(),
    };
    let mut specs = grid.results(&fixed);
    specs.retain(|s| s.seed == 1 && ["FERRET-2", "non-private"].contains(&s.row.as_str()));
    specs.iter_mut().for_each(|s| s.learning_rate = 1e38);
    let store = Store::open(&dir.path().join("out")).unwrap();
    let runs = runner.run(&store, &specs, &[1.0; 2], &|_| {}).unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        let why = run.outcome.err().unwrap();
        assert!(why.contains("diverged"), "{}: {why}", run.spec.row);
    }
}

#[test]
fn methods_that_compress_take_part() {
    let compress = ["signsgd", "qsgd", "dp-signsgd"];
    let text = PAPER.replace(r#""nonprivate"]"#, &format!(r#""nonprivate", "{}"]"#, compress.join(r#"", ""#)));
    let dir = folder(&text);
    let grid = Grid::parse(&text).unwrap();
    let (model, data) = (tiny(), dir.path().join("records.jsonl"));
    let runner = Runner::new(model.to_str().unwrap(), Some(&data), (1, 1), &|| false);
    let fixed = Basis {
        base_sha256: runner.base_sha256().unwrap(),
        data: "records".into(),
        insecure_seed: Some(1),
        rates: HashMap::new(),
    };
    let rows = ["DPSGD", "signSGD", "QSGD", "DP-signSGD"];
    let mut specs = grid.results(&fixed);
    specs.retain(|s| s.seed == 1 && rows.contains(&s.row.as_str()));
    let store = Store::open(&dir.path().join("out")).unwrap();
    let runs = runner.run(&store, &specs, &[1.0; 4], &|_| {}).unwrap();
    let of = |row: &str| runs.iter().find(|r| r.spec.row == row).unwrap().outcome.as_ref().unwrap();
    // Signs are a 32nd of what is applied otherwise, and eight bits a quarter and a little; the noise is DPSGD's.
    let whole = of("DPSGD").update_bits.unwrap();
    assert_eq!(of("signSGD").update_bits.unwrap() * 32, whole);
    assert_eq!(of("DP-signSGD").update_bits.unwrap() * 32, whole);
    let rounded = of("QSGD").update_bits.unwrap();
    assert!(rounded * 4 > whole && rounded * 3 < whole, "{rounded} of {whole}");
    assert_eq!(of("DP-signSGD").guarantees, of("DPSGD").guarantees);
    assert!(of("signSGD").test_loss != of("QSGD").test_loss);
    // Without a column for them they would get no run, which is said.
    let error = Grid::parse(&text.replace(", inf", "")).unwrap_err();
    assert!(error.contains("signsgd gets no run") && error.contains("inf among the budgets"), "{error}");
}

#[test]
fn a_grid_survives_its_file_and_tunes_fairly() {
    for (name, kind) in Kind::NAMED {
        assert_eq!(Grid::open(name).unwrap(), Grid::named(kind));
        let grid = Grid::named(kind);
        grid.check().unwrap();
        assert_eq!(Grid::parse(&grid.to_toml()).unwrap(), grid);
        // Every row is tuned, by the same number of rates around its own middle.
        let tuned = grid.tuned_rows();
        for row in grid.rows().iter().skip(1) {
            let cells = grid.tune_cells;
            let like = tuned.iter().filter(|t| t.key(cells) == row.key(cells)).count();
            assert_eq!(like, 1, "{}", row.name);
            let rates = row.rates(3);
            assert_eq!((rates.len(), rates[1]), (3, row.centre));
            assert!(rates[0] < rates[1] && rates[1] < rates[2]);
        }
    }
    // The paper's grid: 3 lengths, (3 FERRETs + DPSGD) by 4 budgets, non-private, and both matched at 4 budgets; the base model.
    assert_eq!(Grid::named(Kind::Paper).rows().len(), 1 + 3 * (4 * 4 + 1 + 2 * 4));
}
