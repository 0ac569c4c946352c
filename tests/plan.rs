//! `ferret plan` and `ferret account`, driven as programs.
#![cfg(feature = "cli")]

use serde_json::Value;
use std::process::{Command, Output};

fn ferret(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferret")).args(args.split_whitespace()).output().unwrap()
}

fn json(args: &str) -> Value {
    let out = ferret(&format!("{args} --json"));
    assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args}: {e}"))
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
        assert_eq!(get("epsilon_spent"), 0.5);
        let fire = 1.0 - (1.0 - get("p")).powi(groups);
        assert!((get("fire_probability") - fire).abs() < 1e-9);
        assert!((get("delta_zero") - (1.0 - (1.0 - 0.005 * fire).powi(1000))).abs() < 1e-9);
    }
}

#[test]
fn a_budget_above_the_ceiling_says_what_is_spent() {
    let args = "plan --method ferret-2 --epsilon 2 --records 10000 --batch 50 --epochs 1 --group-count 2";
    let plan = json(args);
    assert_eq!(plan["p"], 1.0);
    assert!((plan["epsilon_spent"].as_f64().unwrap() - 2.0 * std::f64::consts::LN_2).abs() < 1e-12);
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
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gpt2_tiny");
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
    near(&g["rdp"], 1.2055, 1e-3);
    near(&g["pld"]["upper"], 0.8651, 1e-3);
    assert!(g["pld"]["lower"].as_f64().unwrap() <= g["pld_refined"]["upper"].as_f64().unwrap());
    let r = json("account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&r["pld"]["upper"], 1.0136, 5e-5);
    near(&r["pld"]["lower"], 1.0136, 5e-5);
    let shared = json("account --mechanism rr --flip 0.055 --sampling-rate 0.005 --fires 123x1,9x2,1x3 --delta 1e-5");
    near(&shared["pld"]["upper"], 4.4, 0.05);
    let d = json("account --mechanism dither --dither 1.6 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&d["pld"]["upper"], 0.909, 1e-3);
    let f = json("account --mechanism rr --epsilon 0.507 --sampling-rate 0.005 --fires 144 --delta 1e-5");
    near(&f["pld"]["upper"], 0.13, 1e-3);
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
