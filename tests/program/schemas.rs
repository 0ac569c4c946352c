//! What programs read: every `--json` that has a schema in schemas/ is of it, and the schemas say something of every key.

use crate::io_support::{ferret, stderr, tiny};
use serde_json::{Map, Value};
use std::path::Path;

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The part of JSON Schema that schemas/ uses: type, enum, properties, required, additionalProperties, items, oneOf. What is wrong, with its place.
fn faults(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    if let Some(forms) = schema["oneOf"].as_array() {
        let tried: Vec<Vec<String>> = forms.iter().map(|form| faults(value, form, at)).collect();
        let fits = tried.iter().filter(|t| t.is_empty()).count();
        return if fits == 1 { Vec::new() } else { vec![format!("{at}: fits {fits} forms: {tried:?}")] };
    }
    let mut out = Vec::new();
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        out.push(format!("{at}: {value} is none of {words:?}"));
    }
    let is = |word: &str| match word {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{at}: the type {other} is not known"),
    };
    let fits = match &schema["type"] {
        Value::Null => true,
        Value::String(word) => is(word),
        words => words.as_array().unwrap().iter().any(|w| is(w.as_str().unwrap())),
    };
    if !fits {
        out.push(format!("{at}: {value} is not of type {}", schema["type"]));
    }
    if let Some(object) = value.as_object() {
        let none = Map::new();
        let known = schema["properties"].as_object().unwrap_or(&none);
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                out.push(format!("{at}: {name} is missing"));
            }
        }
        for (name, inner) in object {
            let place = format!("{at}.{name}");
            match (known.get(name), &schema["additionalProperties"]) {
                (Some(schema), _) => out.extend(faults(inner, schema, &place)),
                (None, Value::Bool(false)) => out.push(format!("{place} is not in the schema")),
                (None, Value::Null | Value::Bool(_)) => {}
                (None, schema) => out.extend(faults(inner, schema, &place)),
            }
        }
    }
    if let (Some(list), true) = (value.as_array(), schema["items"].is_object()) {
        for (i, inner) in list.iter().enumerate() {
            out.extend(faults(inner, &schema["items"], &format!("{at}[{i}]")));
        }
    }
    out
}

#[test]
fn a_wrong_output_is_found() {
    let wrong = [
        ("eval", r#"{"loss": "1", "perplexity": 1, "tokens": 1, "records": 1}"#, "loss"),
        ("eval", r#"{"loss": 1.0, "perplexity": 1, "tokens": 1.5, "records": 1}"#, "tokens"),
        ("eval", r#"{"loss": 1.0, "perplexity": 1, "tokens": 1}"#, "records is missing"),
        ("eval", r#"{"loss": 1.0, "perplexity": 1, "tokens": 1, "records": 1, "epsilon": 2}"#, "epsilon is not in"),
        (
            "eval",
            r#"{"loss": 1.0, "perplexity": 1, "tokens": 1, "records": 1, "record_losses": [true]}"#,
            "record_losses[0]",
        ),
        ("plan", r#"{"epsilon": 1}"#, "fits 0 forms"),
    ];
    for (name, text, says) in wrong {
        let found = faults(&serde_json::from_str(text).unwrap(), &schema(name), name).join("; ");
        assert!(found.contains(says), "{text}: {found}");
    }
}

#[test]
fn every_key_is_described_and_nats_are_never_an_epsilon() {
    fn walk(schema: &Value, at: &str, depth: usize) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let said = inner["description"].as_str().unwrap_or_default();
            assert!(depth > 0 || !said.is_empty(), "{at}.{name} is not described");
            if name.starts_with("epsilon") {
                assert!(!said.contains("nats"), "{at}.{name}: {said}");
            }
            walk(inner, &format!("{at}.{name}"), depth + 1);
        }
        walk_all(schema, at, depth);
    }
    fn walk_all(schema: &Value, at: &str, depth: usize) {
        for form in schema["oneOf"].as_array().into_iter().flatten() {
            walk(form, at, depth);
        }
        if schema["items"].is_object() {
            walk(&schema["items"], at, depth + 1);
        }
    }
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas")).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        walk(&schema(&name), &name, 0);
        seen += 1;
    }
    assert!(seen >= 19);
}

#[test]
fn what_the_verbs_print_is_of_their_schemas() {
    let dir = tempfile::tempdir().unwrap();
    let line = |i: u32| format!("{{\"tokens\": [{}, {}, {}, {}]}}\n", 1 + i % 7, 2 + i % 5, 3 + i % 3, 4 + i % 11);
    std::fs::write(dir.path().join("r.jsonl"), (0..60).map(line).collect::<String>()).unwrap();
    std::fs::write(dir.path().join("e.jsonl"), (60..70).map(|i| line(i * 13)).collect::<String>()).unwrap();
    let asked = r#"{"prompt": "user: Who?\nassistant:", "response": " me"}"#;
    std::fs::write(dir.path().join("a.jsonl"), format!("{asked}\n")).unwrap();
    let tiny = tiny();
    let tiny = tiny.to_str().unwrap();
    let plan = "--records 1000 --batch 50 --epochs 1";
    let calls = [
        ("train", format!("train --method ferret-2 -m {tiny} -d r.jsonl --epsilon 1 --batch 6 --epochs 2 -o a -q")),
        ("train", format!("train --method dpsgd -m {tiny} -d r.jsonl --dp-epsilon 2 --batch 6 -o b -q --tune norms")),
        ("train", format!("train --method nonprivate -m {tiny} -d r.jsonl --eval-data e.jsonl -o c -q")),
        (
            "train",
            format!(
                "train --method ferret-2 -m {tiny} -d r.jsonl --epsilon 1 --batch 2 --release rr --flip 0.1 -o d -q"
            ),
        ),
        ("eval", format!("eval -m {tiny} -d r.jsonl --per-record")),
        ("eval", "eval -m embedded -d a.jsonl --per-record --answers -q".to_owned()),
        ("inspect", format!("inspect {tiny} --show-groups")),
        ("verify", format!("verify a --base {tiny} -q")),
        ("replay", format!("replay --base {tiny} --transcript a/transcript.json -o e -q")),
        ("explain", format!("explain a --base {tiny} --eval-data e.jsonl -q")),
        ("plan", format!("plan --method ferret-2 --epsilon 0.5 {plan} --group-count 2 -q")),
        ("plan", format!("plan --method ferret-2 --epsilon 0.5 {plan} --model {tiny} -q --accounting exact")),
        ("plan", format!("plan --method ferret-2 --epsilon 0.5 --dp-epsilon 1 --release rr {plan} --group-count 2 -q")),
        ("plan", format!("plan --method dpsgd --dp-epsilon 0.5 {plan} -q")),
        ("plan", format!("plan --method dpsgd --noise-multiplier 1.5 {plan} -q")),
        ("plan", format!("plan --method ferret-k --dp-epsilon 0.5 {plan} -q")),
        (
            "plan",
            format!("plan --method ferret-2 --epsilon 0.5 {plan} --model {tiny} --ranks 8 --network 10gbit,50us -q"),
        ),
        ("plan", format!("plan --method dpsgd --dp-epsilon 0.5 {plan} --model {tiny} --ranks 4 -q")),
        ("plan", "plan --nats 1 --records 1000 --epochs 1 -q".to_owned()),
        ("plan", format!("plan --method nonprivate {plan} -q")),
        ("plan", format!("plan --method qsgd {plan} --model {tiny} --ranks 4 -q")),
        ("train", format!("plan --method dpsgd -m {tiny} -d r.jsonl --dp-epsilon 2 --batch 6 -q --clipping per-layer")),
        ("train", format!("train --method ferret-k -m {tiny} -d r.jsonl --dp-epsilon 2 --batch 6 -o k -q")),
        (
            "train",
            format!("train --method ferret-k -m {tiny} -d r.jsonl --dp-epsilon 2 --batch 6 --dry-run --release scalar"),
        ),
        (
            "train",
            format!("train --method ferret-k -m {tiny} -d r.jsonl --dp-epsilon 2 --batch 6 --dry-run --release sign"),
        ),
        (
            "account",
            "account --mechanism gaussian --sampling-rate 0.005 --steps 100 --sigma 1 --delta 1e-5 -q".to_owned(),
        ),
        ("account", "account --mechanism rr --sampling-rate 0.005 --fires 144 --epsilon 1 --delta 1e-5 -q".to_owned()),
        (
            "account",
            "account --mechanism rr --flip 0.1 --sampling-rate 0.005 --fires 144 --nats --delta 1e-5 -q".to_owned(),
        ),
        ("account", "account --mechanism bit --sampling-rate 0.005 --fires 144 --nats".to_owned()),
        ("account", "account --add a/privacy.json d/privacy.json".to_owned()),
        ("account", "account --paper-eq12".to_owned()),
        ("train", format!("train --method ferret-2 -m {tiny} -d r.jsonl --nats 1 --batch 6 -o f -q --audit e.jsonl")),
        (
            "account",
            "account --mechanism dither --sampling-rate 0.005 --fires 144 --epsilon 1 --delta 1e-5 -q".to_owned(),
        ),
    ];
    check(dir.path(), &calls);
}

/// Every call prints what its schema says.
fn check(dir: &Path, calls: &[(&str, String)]) {
    for (name, call) in calls {
        let output = ferret(dir).args(call.split_whitespace()).arg("--json").output().unwrap();
        assert!(output.status.success(), "{call}: {}", stderr(&output));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{call}: {e}"));
        assert_eq!(faults(&value, &schema(name), name), Vec::<String>::new(), "{call}");
    }
}

#[test]
fn so_is_what_audits_studies_and_small_verbs_print() {
    let dir = tempfile::tempdir().unwrap();
    let grid = "kind = \"true-dp\"\nbatches = [10]\ncandidates = 40\naudited = 20\nseeds = 1\nlearning_rates = 1\nepochs = [1]\n";
    std::fs::write(dir.path().join("grid.toml"), grid).unwrap();
    let train = "train -m embedded -b 5 -e 1 --insecure-seed 1 -q";
    let calls = [
        ("init", "init --preset tiny -o tiny -q"),
        ("world", "world -o world --records 40 --paragraphs 5"),
        ("generate", "generate -m embedded --prompt Hello --max-tokens 3 -q"),
        ("grad", "grad -m embedded -d embedded:train:4 -o grad.safetensors --per-sample-norms -q"),
        ("grad", "grad -m embedded -d embedded:train:4 -o other.safetensors -q"),
        ("train", &format!("{train} --method ferret-max -d embedded:train:40 --epsilon 1 -o bits")),
        ("train", &format!("{train} --method nonprivate -d embedded:train:40 --tune lora -o adapter")),
        ("merge", "merge -m embedded --adapter adapter -o merged -q"),
        (
            "audit",
            "audit --base embedded --tuned bits --members embedded:train:40 --nonmembers embedded:test:40 \
             --membership random-subset --out report -q",
        ),
        ("audit-leakage", "audit leakage --base embedded --tuned bits --data embedded:train:40 -q"),
        (
            "audit-plant",
            "audit plant --data world/private-train.jsonl --format Key-@@@@@@ --coin-flip 12 --out planted.jsonl \
             --canaries canaries.json",
        ),
        ("train", &format!("{train} --method ferret-max -d planted.jsonl --epsilon 1 -o canaried")),
        ("audit-canaries", "audit canaries --base embedded --tuned canaried --canaries canaries.json --samples 5 -q"),
        ("audit-canaries", "audit canaries --base embedded --tuned merged --canaries canaries.json --samples 5 -q"),
        ("study", "study --grid grid.toml -o study -q --dry-run"),
        ("study", "study --grid grid.toml -o study -q"),
        #[cfg(feature = "gpu")]
        ("devices", "devices"),
    ];
    check(dir.path(), &calls.map(|(name, call)| (name, call.to_owned())));
}
