//! `ferret plan` and `ferret account`, driven as programs.

use crate::io_support::{TINY, ok, verb};
use serde_json::Value;
use std::process::Output;

fn ferret(args: &str) -> Output {
    verb(&args.split_whitespace().collect::<Vec<_>>())
}

fn json(args: &str) -> Value {
    ok(ferret(&format!("{args} --json")))
}

fn refused(args: &str, says: &str) {
    let out = ferret(args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args}: {said}");
    assert!(said.contains(says) && !said.contains("panicked"), "{args}: {said}");
    assert!(out.stdout.is_empty());
}

const PAPER: &str = "--records 10000 --batch 50 --epochs 5";

#[test]
fn the_papers_head_room_table_comes_out() {
    for (method, groups, ceiling, p) in [
        ("ferret-max", 200, 693.0, 7.2e-4),
        ("ferret-half", 100, 347.0, 1.4e-3),
        ("ferret-quarter", 50, 173.0, 2.9e-3),
        ("ferret-2", 2, 6.93, 0.072),
    ] {
        let plan = json(&format!("plan --method {method} --epsilon 0.5 {PAPER} --group-count {groups}"));
        let get = |key: &str| plan[key].as_f64().unwrap_or_else(|| panic!("no {key}"));
        assert_eq!((get("groups"), get("steps"), get("sampling_rate")), (f64::from(groups), 1000.0, 0.005));
        assert!((get("ceiling") / ceiling - 1.0).abs() < 2e-3, "{method}");
        assert!((get("p") / p - 1.0).abs() < 0.035, "{method}");
        assert!((get("expected_bits") - 144.27).abs() < 0.01);
        assert!((get("advantage_bound") - 0.1).abs() < 1e-12);
        assert_eq!(get("nats_spent"), 0.5);
        let fire = 1.0 - (1.0 - get("p")).powi(groups);
        assert!((get("step_fires_probability") - fire).abs() < 1e-9);
        assert!((get("delta_zero") - (1.0 - (1.0 - 0.005 * fire).powi(1000))).abs() < 1e-9);
    }
}

#[test]
fn a_budget_above_the_ceiling_says_what_is_spent() {
    let args = "plan --method ferret-2 --epsilon 2 --records 10000 --batch 50 --epochs 1 --group-count 2";
    let plan = json(args);
    assert_eq!(plan["p"], 1.0);
    assert!((plan["nats_spent"].as_f64().unwrap() - 2.0 * std::f64::consts::LN_2).abs() < 1e-12);
    let text = String::from_utf8(ferret(args).stdout).unwrap();
    assert!(text.contains("1.3863 nats are spent, not 2"), "{text}");
}

#[test]
fn small_batches_make_flips_nearly_free_and_the_plan_shows_it() {
    let plan = json(&format!("plan --method ferret-max --epsilon 0.5 {PAPER} --group-count 200"));
    let eps = |batch: u64, flip: f64| {
        let offer = plan["would_buy"].as_array().unwrap().iter().find(|o| o["batch"] == batch).unwrap();
        let found = offer["flips"].as_array().unwrap().iter().find(|f| f["flip"] == flip).unwrap();
        found["epsilon"].as_f64().unwrap()
    };
    for (batch, flip, want) in [(50, 0.02, 2.05), (5, 0.02, 0.50), (1, 0.02, 0.20), (1, 0.01, 0.30)] {
        assert!((eps(batch, flip) - want).abs() < 5e-3, "B = {batch}, {flip}: {}", eps(batch, flip));
    }
}

#[test]
fn the_groups_come_from_a_model() {
    let folder = TINY;
    let groups =
        |rest: &str| json(&format!("plan --epsilon 0.5 {PAPER} --model {folder} {rest}"))["groups"].as_u64().unwrap();
    let max = groups("--method ferret-max");
    assert!(max > 16 && (max - 4) % 12 == 0, "{max}");
    assert_eq!(groups("--method ferret-eighth"), max.div_ceil(8));
    assert_eq!(groups("--method ferret-2"), 2);
    assert_eq!(groups("--method ferret --bucket 5"), max.div_ceil(5));
    assert_eq!(groups("--method ferret --groups 7"), 7);
}

#[test]
fn dpsgd_is_planned_by_both_accountants() {
    let plan = json(&format!("plan --method dpsgd --epsilon 0.5 --delta 1e-5 {PAPER}"));
    let get = |key: &str| plan[key].as_f64().unwrap();
    assert_eq!((get("steps"), get("sampling_rate")), (1000.0, 0.005));
    assert!((get("noise_multiplier_rdp") / 1.528 - 1.0).abs() < 5e-3);
    assert!((get("noise_multiplier_pld") / 1.3602 - 1.0).abs() < 1e-2);
}

#[test]
fn account_answers_for_every_mechanism() {
    let near = |v: &Value, want: f64, by: f64| assert!((v.as_f64().unwrap() - want).abs() < by, "{v}, expected {want}");
    let g = json("account --mechanism gaussian --sampling-rate 0.005 --steps 1000 --sigma 1 --delta 1e-5");
    near(&g["epsilon_rdp"], 1.2055, 1e-3);
    near(&g["epsilon_pld"]["upper"], 0.8651, 1e-3);
    assert!(g["epsilon_pld"]["lower"].as_f64().unwrap() <= g["epsilon_pld_refined"]["upper"].as_f64().unwrap());
    let r = json("account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&r["epsilon_pld"]["upper"], 1.0136, 5e-5);
    near(&r["epsilon_pld"]["lower"], 1.0136, 5e-5);
    let shared = json("account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 123x1,9x2,1x3 --delta 1e-5");
    near(&shared["epsilon_pld"]["upper"], 4.4, 0.05);
    let d = json("account --mechanism dither --dither 1.6 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&d["epsilon_pld"]["upper"], 0.909, 1e-3);
    let f = json("account --mechanism rr --epsilon 0.507 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&f["flip_pld"]["upper"], 0.13, 1e-3);
}

#[test]
fn equation_12_is_labelled_and_its_failures_shown() {
    let v = json("account --paper-eq12");
    assert_eq!(v["is_a_bound"], false);
    let row = v["rows"].as_array().unwrap().iter().find(|r| r["sigma"] == 2.0 && r["order"] == 4.0).unwrap();
    assert!((row["claimed"].as_f64().unwrap() / 3.6e-11 - 1.0).abs() < 0.03);
    assert!((row["correct"].as_f64().unwrap() / 8.5e-2 - 1.0).abs() < 0.01);
    assert_eq!(row["fails"], true);
    let text = String::from_utf8(ferret("account --paper-eq12").stdout).unwrap();
    assert!(text.contains("NOT a bound"), "{text}");
}

#[test]
fn contradictions_are_refused_in_one_sentence() {
    refused("account --mechanism rr --sigma 1 --sampling-rate 0.1 --fires 3 --delta 1e-5", "--flip");
    refused("account --mechanism gaussian --sampling-rate 0.1 --steps 3 --delta 1e-5", "--sigma");
    refused("account --mechanism gaussian --sampling-rate 0.1 --fires 3 --sigma 1 --delta 1e-5", "--steps");
    refused("account --mechanism gaussian --sampling-rate 1.5 --steps 3 --sigma 1 --delta 1e-5", "sampling rate");
    refused("account --mechanism gaussian --sampling-rate 0.1 --steps 3 --sigma 1 --delta 2", "delta");
    refused("plan --method ferret-max --epsilon 0.5 --records 10 --batch 50 --epochs 5 --group-count 2", "batch of 50");
    refused("plan --method ferret-max --epsilon 0.5 --records 100 --batch 50 --epochs 5", "--group-count");
    refused("plan --method adam --epsilon 0.5 --records 100 --batch 50 --epochs 5", "ferret-max");
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn every_mechanism_is_charged_in_nats() {
    let near = |found: f64, want: f64| assert!((found / want - 1.0).abs() < 3e-3, "{found}, expected {want}");
    let nats = |args: &str| number(&json(&format!("account --nats {args}")), "nats");
    // What one nat buys, N = 10,000.
    for (flip, bits) in [("0.005", 2370), ("0.02", 7587), ("0.1", 45795)] {
        near(nats(&format!("--mechanism rr --flip {flip} --sampling-rate 0.005 --fires {bits}")), 1.0);
    }
    near(nats("--mechanism bit --sampling-rate 0.005 --fires 543"), 1.0);
    near(nats("--mechanism bit --sampling-rate 0.0001 --fires 27182"), 1.0);
    let paper = json("account --nats --mechanism bit --sampling-rate 0.005 --fires 289");
    near(number(&paper, "nats_paper"), 1.0);
    // DPSGD, by each sampler, and signs of the same sums.
    for name in ["dpsgd", "gaussian", "signs --bits 1024", "ferret-k --bits 1024"] {
        let at = |sampler: &str| {
            nats(&format!("--mechanism {name} --sampling-rate 0.005 --steps 1000 --sigma 1 --sampler {sampler}"))
        };
        near(at("poisson"), 0.0212);
        near(at("uniform"), 0.402);
        near(at("shuffle"), 2.5);
    }
    let both =
        json("account --nats --mechanism signs --bits 64 --sampling-rate 0.005 --steps 1000 --sigma 1 --delta 1e-5");
    assert!(number(&both["epsilon_pld"], "upper") < 0.9 && number(&both, "epsilon_rdp") > 1.2, "{both}");
    refused("account --nats --mechanism signs --sampling-rate 0.005 --steps 10 --sigma 1", "--bits");
    refused("account --nats --mechanism gaussian --bits 3 --sampling-rate 0.005 --steps 10 --sigma 1", "--bits");
}

#[test]
fn nats_and_epsilon_never_share_a_name() {
    let paper = "--records 10000 --batch 50 --epochs 5 --group-count 200";
    for plan in [
        json(&format!("plan --method ferret-max --epsilon 0.5 {paper}")),
        json(&format!("plan --method ferret-max --nats 0.5 {paper}")),
    ] {
        let keys: Vec<&String> = plan.as_object().unwrap().keys().collect();
        assert!(keys.iter().all(|k| !k.contains("epsilon")), "{keys:?}");
        assert_eq!(number(&plan, "nats_spent"), 0.5);
    }
    let dense = json(&format!("plan --method dpsgd --dp-epsilon 0.5 --delta 1e-5 {PAPER}"));
    assert_eq!(number(&dense, "epsilon"), 0.5);
    assert!(number(&dense, "nats_spent") < 0.1);
    // An epsilon and a setting have different keys too.
    let found = json("account --mechanism gaussian --sampling-rate 0.005 --steps 100 --epsilon 1 --delta 1e-5");
    assert!(found["noise_multiplier_pld"]["upper"].is_f64() && found.get("epsilon_pld").is_none(), "{found}");
    refused(&format!("plan --method dpsgd --nats 0.5 {PAPER}"), "--dp-epsilon");
    refused(&format!("plan --method ferret-2 --dp-epsilon 0.5 {PAPER} --group-count 2"), "nats");
}

#[test]
fn ferret_k_is_planned_as_dpsgd_is_with_signs_beside() {
    let of = |method: &str| json(&format!("plan --method {method} --dp-epsilon 1 --delta 1e-5 {PAPER}"));
    let (k, dpsgd, signs) = (of("ferret-k"), of("dpsgd"), of("dp-signsgd"));
    for key in ["noise_multiplier_pld", "noise_multiplier_rdp", "nats_spent"] {
        assert_eq!(k[key], dpsgd[key]);
        assert_eq!(signs[key], dpsgd[key]);
    }
    assert!(number(&k, "signs_per_step") > 1000.0 && dpsgd.get("signs_per_step").is_none(), "{k}");
    let text = String::from_utf8(ferret(&format!("plan --method ferret-k --dp-epsilon 1 {PAPER}")).stdout).unwrap();
    assert!(text.contains("one record replaced by an empty one") && text.contains("signs a step"), "{text}");
    assert!(text.contains("levels a step") && text.contains("of two bits"), "{text}");
}

/// The command that the plan prints does what the plan says.
#[test]
fn the_best_plan_can_be_run_and_keeps_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> =
        (0..60).map(|i| format!("{{\"tokens\":[{},{},{}]}}", i % 50, (i * 7) % 50, i % 9)).collect();
    std::fs::write(dir.path().join("records.jsonl"), lines.join("\n")).unwrap();
    let model = TINY;
    for (i, budget) in
        ["--nats 0.3", "--nats 30", "--dp-epsilon 3 --delta 1e-3", "--nats 2 --dp-epsilon 8 --delta 1e-2"]
            .into_iter()
            .enumerate()
    {
        let plan = json(&format!("plan {budget} --records 60 --epochs 2"));
        let (best, out) = (&plan["best"], dir.path().join(format!("run{i}")));
        let line = plan["train"].as_str().unwrap();
        let command = line
            .strip_prefix("ferret ")
            .unwrap()
            .replace("MODEL", model)
            .replace("FILE", dir.path().join("records.jsonl").to_str().unwrap())
            .replace("FOLDER", out.to_str().unwrap());
        let run = ferret(&format!("{command} --threads 1 --quiet"));
        assert!(run.status.success(), "{line}: {}", String::from_utf8_lossy(&run.stderr));
        let stated: Value = serde_json::from_slice(&std::fs::read(out.join("privacy.json")).unwrap()).unwrap();
        let bits = number(best, "batches") * number(best, "bits");
        assert_eq!(number(&stated["released"], "count"), bits, "{line}");
        let (spent, planned) = (number(&stated, "nats_charged"), number(best, "nats"));
        assert!((spent / planned - 1.0).abs() < 1e-6, "{line}: {spent} of {planned}");
        if let Some(nats) = budget.strip_prefix("--nats ").and_then(|b| b.split(' ').next()) {
            assert!(spent <= nats.parse::<f64>().unwrap(), "{line}: {spent}");
        }
        if budget.contains("dp-epsilon") {
            let claim = stated["claims"].as_array().unwrap().iter().find(|c| c["accountant"] == "PLD").unwrap();
            let most = if i == 2 { 3.0 } else { 8.0 };
            assert!(number(&claim["guarantee"], "eps") <= most, "{line}: {claim}");
        }
    }
}

#[test]
fn plans_of_a_billion_bits_take_a_moment() {
    for args in [
        "plan --nats 1 --records 1000000000 --epochs 1",
        "plan --nats 1 --dp-epsilon 1 --delta 1e-10 --records 300000000 --epochs 3",
        "plan --method ferret-max --epsilon 1 --records 1000000000 --batch 1 --epochs 1 --group-count 200",
        "plan --method ferret-max --epsilon 1 --accounting exact --records 1000000000 --batch 100 --epochs 1 --group-count 200",
        "account --mechanism rr --flip 0.1 --sampling-rate 1e-6 --fires 1000000000 --delta 1e-8",
        "account --mechanism rr --flip 0.02 --sampling-rate 1e-4 --fires 1000000x30 --nats",
        "account --mechanism gaussian --sampling-rate 1e-6 --steps 1000000000 --sigma 1 --delta 1e-8",
    ] {
        let begun = std::time::Instant::now();
        let out = ferret(args);
        assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
        // A second on a machine that does nothing else, ten on one that does.
        assert!(begun.elapsed().as_secs_f64() < 10.0, "{args}: {:?}", begun.elapsed());
    }
}

#[test]
fn methods_without_a_budget_are_planned_and_promise_nothing() {
    for method in ["nonprivate", "signsgd", "qsgd"] {
        let plan = json(&format!("plan --method {method} {PAPER} --model preset:tiny"));
        assert_eq!((plan["steps"].as_u64(), plan["record_gradients"].as_u64()), (Some(1000), Some(50_000)));
        assert_eq!(plan["private"], false);
        let text = String::from_utf8(ferret(&format!("plan --method {method} {PAPER}")).stdout).unwrap();
        assert!(text.contains("promises nothing") && text.contains("50,000, on average"), "{text}");
        refused(&format!("plan --method {method} {PAPER} --dp-epsilon 1"), "has no budget");
    }
    let bits =
        |method: &str| json(&format!("plan --method {method} {PAPER} --model preset:tiny"))["bits_per_update"].clone();
    assert_eq!(bits("nonprivate").as_u64().unwrap(), 32 * bits("signsgd").as_u64().unwrap());
    refused(&format!("plan --method sgd {PAPER}"), "nonprivate, signsgd, qsgd");
}

#[test]
fn a_plan_of_records_takes_every_flag_of_train_and_says_what_train_will() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (i, line) in [
        "--method ferret-2 --epsilon 1 --epochs 2 --batch 4 --sampler uniform --accounting exact --seed 3 --weight-decay 0",
        "--method dpsgd --dp-epsilon 2 --batch 4 --epochs 1 --max-steps 5 --clipping per-layer --schedule linear --checkpoint-every 3",
        "--method ferret-k --dp-epsilon 2 --batch 4 --epochs 1 --bits-per-step 64 --insecure-seed 1",
        "--method signsgd --variant majority-vote --batch 4 --epochs 1",
    ]
    .iter()
    .enumerate()
    {
        let line = format!("{line} --model embedded --data embedded:train:24 -q");
        let plan = json(&format!("plan {line}"));
        let mut train = json(&format!("train {line} --out {}", at(&i.to_string())));
        assert_eq!((plan["out"].clone(), plan["seconds"].clone()), (Value::Null, Value::Null));
        for key in ["out", "seconds"] {
            train[key] = Value::Null;
        }
        train["record_gradients"] = plan["record_gradients"].clone();
        assert_eq!(plan, train, "{line}");
        // A folder that is named is not touched.
        let out = at(&format!("planned-{i}"));
        let text = String::from_utf8(ferret(&format!("plan {line} --out {out}")).stdout).unwrap();
        assert!(text.starts_with("planned, and nothing is trained") && text.contains("learning rate"), "{text}");
        assert!(!std::path::Path::new(&out).exists());
    }
    refused("train --method nonprivate --model embedded --data embedded", "--out");
}
