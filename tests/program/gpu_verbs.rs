//! The program with --device gpu: what it trains, and verbs that agree with the CPU's.

use super::gpu_train::{base, records};
use crate::common::bits;
use crate::common::gpu;
use crate::io_support::{tiny as base_path, verb};
use ferret::model::checkpoint;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn ok(output: Output) -> (Value, String) {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), stderr)
}

/// A file of records as tokens.
fn write_records(dir: &Path) -> String {
    let lines: Vec<String> = records(3).iter().map(|r| serde_json::json!({"tokens": r.ids}).to_string()).collect();
    let path = dir.join("records.jsonl");
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_program_trains_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (write_records(dir.path()), base_path().to_str().unwrap().to_owned());
    let runs: [(&str, &[&str]); 3] = [
        ("ferret-max", &["--epsilon", "3"]),
        ("dpsgd", &["--noise-multiplier", "1"]),
        ("nonprivate", &["--learning-rate", "1e-3"]),
    ];
    for (method, extra) in runs {
        let out = dir.path().join(method);
        let out = out.to_str().unwrap();
        let mut args =
            vec!["train", "-e1", "--method", method, "--model", &model, "--data", &data, "--out", out, "--json"];
        args.extend(["--batch", "6", "--epochs", "2", "--device", "gpu", "--insecure-seed", "1", "--eval-data", &data]);
        args.extend(extra);
        let (summary, stderr) = ok(verb(&args));
        assert!(stderr.contains(&format!("device: {}", gpu.info().name)), "{stderr}");
        assert!(summary["eval_after"]["loss"].as_f64().unwrap().is_finite());
        let tuned = checkpoint::load(out).unwrap().weights;
        assert_ne!(bits(&tuned.tensors), bits(&base().tensors), "{method}");
        if method == "ferret-max" {
            // What was written is what any machine replays.
            ok(verb(&["verify", out, "--base", &model]));
        }
    }
}

#[test]
fn the_programs_verbs_agree_on_both_devices() {
    let Some(gpu) = gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (write_records(dir.path()), base_path().to_str().unwrap().to_owned());
    let both = |args: &[&str]| {
        ["cpu", "gpu", "auto"].map(|device| {
            let (value, stderr) = ok(verb(&[args, &["--device", device]].concat()));
            let named = stderr.contains(&format!("device: {}", gpu.info().name));
            let expected = device == "gpu" || device == "auto" && !gpu.info().is_software();
            assert_eq!(named, expected, "--device {device}: {stderr}");
            value
        })
    };
    let close = |what: &str, values: &[Value; 3], key: &str| {
        let number = |v: &Value| v[key].as_f64().unwrap_or_else(|| panic!("{what}: no {key} in {v}"));
        let want = number(&values[0]);
        values.iter().for_each(|v| assert!((number(v) - want).abs() < 1e-4 * want.abs(), "{what}: {values:?}"));
    };
    close("eval", &both(&["eval", "--model", &model, "--data", &data, "--json"]), "loss");
    let mut grads = Vec::new();
    for device in ["cpu", "gpu"] {
        let out = dir.path().join(device);
        let args = ["grad", "--model", &model, "--data", &data, "--device", device, "--out", out.to_str().unwrap()];
        ok(verb(&args));
        grads.push(std::fs::read(out).unwrap());
    }
    let [want, got] = [&grads[0], &grads[1]].map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap());
    for (name, want) in want.tensors() {
        let numbers = |data: &[u8]| -> Vec<f32> {
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let (got, want) = (numbers(got.tensor(&name).unwrap().data()), numbers(want.data()));
        // Keys' biases have a gradient of 0 but for rounding: compared with what is usual elsewhere.
        let size = want.iter().fold(1e-2f32, |m, x| m.max(x.abs()));
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4 * size), "{name}");
    }
    let texts = both(&[
        "generate",
        "--model",
        &model,
        "--prompt-tokens",
        "3,1,4",
        "--max-tokens",
        "5",
        "--temperature",
        "0",
        "--json",
    ]);
    assert_eq!(texts[0]["tokens"], texts[1]["tokens"]);
    assert!(texts[0]["tokens"].as_array().is_some_and(|t| t.len() >= 5), "{texts:?}");
}

#[test]
fn devices_are_listed_with_limits_features_and_rates() {
    let Some(gpu) = gpu() else { return };
    let (list, _) = ok(verb(&["devices", "--json"]));
    let own = list["adapters"].as_array().unwrap().iter().find(|a| a["name"] == gpu.info().name.as_str()).unwrap();
    for key in ["gflops", "gigabytes", "max_buffer", "max_binding", "workgroup_memory", "workgroup_threads"] {
        assert!(own[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {own}");
    }
    assert!(own["features"].is_array() && own["backend"].is_string() && list["cpu"]["gflops"].is_number());
    let unknown = Command::new(env!("CARGO_BIN_EXE_ferret"))
        .args(["generate", "--model", base_path().to_str().unwrap(), "--prompt-tokens", "3", "--device", "gpu"])
        .env("FERRET_ADAPTER", "no such adapter")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&unknown.stderr);
    assert!(!unknown.status.success() && stderr.contains(&gpu.info().name) && !stderr.contains("panicked"), "{stderr}");
}
